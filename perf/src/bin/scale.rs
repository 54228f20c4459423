//! Cost of endpoints and of idle progress, and message rate over several endpoints: the loops of
//! `perf/ucx/scale.c` with `ucp` and `uct`, in two processes. Started by `versus --against scale`; prints one
//! line of JSON.
//!
//!     scale rate EPS ITERS CORE CORE   tagged messages of 8 bytes, windows of 64, over EPS endpoints in turn
//!     scale peers EPS CORE CORE        ucp: endpoints to EPS workers, twice; memory; address; idle progress
//!     scale uct_peers EPS CORE CORE    uct posix: as peers, with interfaces
//!     scale shared THREADS ITERS CORE CORE   uct posix: messages of 8 bytes; threads share an interface
//!     scale threads THREADS ITERS CORE CORE  tagged messages of 8 bytes, windows of 64; the threads of each
//!                                      side share its worker
//!     scale self WINDOW ITERS          tagged messages of 8 bytes to itself, for instruction counts
//!
//! Transports of ucp are those of `UCX_TLS`.

use std::hint::black_box;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Instant;

use perf::second_process::{Failure, PeerProcess, pin, split_role};
use tools_common::out::line;
use ucp::mt::{SharedEp, SharedEpParams, SharedWorker};
use ucp::{Address, Context, Ep, EpParams, Match, OpParams, OpStatus, SendParams, TAG_MASK_FULL, Worker};
use ucs::config::{Source, Table as _};
use uct::api::{Am, Ep as _, EpTag, Error, Iface as _, Refused, Sink};
use uct::mt::{self, HandlerThread, ThreadMode};
use uct::posix;

const MSG: u64 = 0x6d73_6700;
const ACK: u64 = 0x6163_6b00;
const SIZE: usize = 8;
const WINDOW: usize = 64;
const THREADS: usize = 64;
const BURST: u64 = 16;
const IDLE: u32 = 5_000_000;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            ucs::stderr_line!("scale: {e}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &[String]) -> Result<(), Failure> {
    let usage = "usage: scale rate EPS ITERS CORE CORE | scale peers|uct_peers EPS CORE CORE | \
                 scale shared|threads THREADS ITERS CORE CORE | scale self WINDOW ITERS";
    let (args, second) = split_role(args);
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let words = words.as_slice();
    if let ["self", window, iters] = words {
        return to_self(count(window, WINDOW)?, iters.parse()?);
    }
    if let ["shared", threads, iters, one, other] = words {
        return shared(count(threads, THREADS)?, iters.parse()?, [one, other]);
    }
    let (server, client) = match words {
        [.., server, client] => (*server, *client),
        _ => return Err(usage.into()),
    };
    let other = if second {
        pin(server)?;
        PeerProcess::first()
    } else {
        let child = PeerProcess::second(args)?;
        pin(client)?;
        child
    };
    match (words, second) {
        (["rate", eps, iters, _, _], true) => receive(other, count(eps, WINDOW)?, iters.parse()?),
        (["rate", eps, iters, _, _], false) => send(other, count(eps, WINDOW)?, iters.parse()?),
        (["threads", threads, iters, _, _], _) => {
            one_worker(other, second, count(threads, THREADS)?, iters.parse()?)
        }
        (["peers", eps, _, _], true) => serve_peers(other, count(eps, 4096)?),
        (["peers", eps, _, _], false) => peers(other, count(eps, 4096)?),
        (["uct_peers", eps, _, _], true) => serve_uct_peers(other, count(eps, 4096)?),
        (["uct_peers", eps, _, _], false) => uct_peers(other, count(eps, 4096)?),
        _ => Err(usage.into()),
    }
}

fn count(text: &str, most: usize) -> Result<usize, Failure> {
    text.parse()
        .ok()
        .filter(|n| (1..=most).contains(n))
        .ok_or_else(|| format!("'{text}': from 1 to {most}").into())
}

fn rss() -> Result<f64, Failure> {
    let text = std::fs::read_to_string("/proc/self/statm")?;
    let pages: f64 = text.split(' ').nth(1).ok_or("statm has no second number")?.parse()?;
    Ok(pages * rustix::param::page_size() as f64)
}

fn workers(count: usize) -> Result<Vec<Worker>, Failure> {
    let context = Context::new()?;
    Ok((0..count).map(|_| context.worker()).collect::<Result<_, _>>()?)
}

fn connect(worker: &Worker, address: &[u8]) -> Result<Ep, Failure> {
    Ok(worker.connect(&Address::unpack(address)?, EpParams::default())?)
}

fn whole_windows(iters: usize) -> (usize, usize) {
    ((iters / 10).next_multiple_of(WINDOW).max(WINDOW) / WINDOW, iters.div_ceil(WINDOW))
}

fn send(mut other: PeerProcess, count: usize, iters: usize) -> Result<(), Failure> {
    let worker = Context::new()?.worker()?;
    other.send(&worker.address().pack())?;
    let mut eps = Vec::new();
    for _ in 0..count {
        eps.push(connect(&worker, &other.recv()?)?);
    }
    let params = SendParams { tag: Some(MSG), ..SendParams::default() };
    let (out, mut ack_buf) = ([0u8; SIZE], [0u8; SIZE]);
    let mut next = 0;
    let mut running = Vec::with_capacity(WINDOW);
    let mut pass = |windows: usize| -> Result<(), ucp::Error> {
        for _ in 0..windows {
            for _ in 0..WINDOW {
                // SAFETY: `out` outlives the sends, which end below, and does not change.
                if let OpStatus::InProgress(id) = unsafe { eps[next].send_raw(out.as_ptr(), SIZE, &params) }?
                {
                    running.push(id);
                }
                next = if next + 1 == count { 0 } else { next + 1 };
            }
            for id in running.drain(..) {
                worker.wait_for(id)?;
            }
            // SAFETY: `ack_buf` outlives the receive, which ends here, and is not read.
            let ack = unsafe {
                worker.recv_raw(
                    ack_buf.as_mut_ptr(),
                    SIZE,
                    Match::tagged(ACK, TAG_MASK_FULL),
                    &OpParams::default(),
                )
            }?;
            if let OpStatus::InProgress(id) = ack {
                worker.wait_for(id)?;
            }
        }
        Ok(())
    };
    let (warm, windows) = whole_windows(iters);
    pass(warm)?;
    let start = Instant::now();
    pass(windows)?;
    let took = start.elapsed().as_secs_f64();
    line(format!("{{\"msg_rate\":{:.0}}}", (windows * WINDOW) as f64 / took));
    other.done()
}

fn receive(mut other: PeerProcess, count: usize, iters: usize) -> Result<(), Failure> {
    let workers = workers(count)?;
    for worker in &workers {
        other.send(&worker.address().pack())?;
    }
    let ep = connect(&workers[0], &other.recv()?)?;
    let params = SendParams { tag: Some(ACK), ..SendParams::default() };
    let (out, mut buffers) = ([0u8; SIZE], [[0u8; SIZE]; WINDOW]);
    let mut running = Vec::with_capacity(WINDOW);
    let (warm, windows) = whole_windows(iters);
    let finish = |worker: &Worker, id| -> Result<(), ucp::Error> {
        while worker.test(id).transpose()?.is_none() {
            for worker in &workers {
                worker.progress();
            }
        }
        Ok(())
    };
    for _ in 0..warm + windows {
        for (i, buf) in buffers.iter_mut().enumerate() {
            let worker = &workers[i % count];
            // SAFETY: the buffers outlive the receives, which end below, and are not read.
            let started = unsafe {
                worker.recv_raw(
                    buf.as_mut_ptr(),
                    SIZE,
                    Match::tagged(MSG, TAG_MASK_FULL),
                    &OpParams::default(),
                )
            };
            if let OpStatus::InProgress(id) = started? {
                running.push((worker, id));
            }
        }
        for (worker, id) in running.drain(..) {
            finish(worker, id)?;
        }
        // SAFETY: `out` outlives the send, which ends here, and does not change.
        if let OpStatus::InProgress(id) = unsafe { ep.send_raw(out.as_ptr(), SIZE, &params) }? {
            finish(&workers[0], id)?;
        }
    }
    let end = other.end_signal();
    while end.try_recv().is_err() {
        for worker in &workers {
            worker.progress();
        }
    }
    Ok(())
}

/// One side: threads that share a worker, of which each exchanges messages with its own of the other side.
fn one_worker(mut other: PeerProcess, second: bool, threads: usize, iters: usize) -> Result<(), Failure> {
    let worker = Context::new()?.shared_worker(ThreadMode::Multi)?;
    other.send(&worker.address()?.pack())?;
    let ep = worker.connect(&Address::unpack(&other.recv()?)?, SharedEpParams::default())?;
    let (warm, windows) = whole_windows(iters / threads);
    let barrier = Barrier::new(threads);
    let pass = if second { receive_windows } else { send_windows };
    let run = &|thread: u64| {
        let ready = pass(&worker, &ep, thread, warm);
        // The others wait here, whatever failed.
        barrier.wait();
        let start = Instant::now();
        ready.and_then(|()| pass(&worker, &ep, thread, windows)).map(|()| (start, Instant::now()))
    };
    let times = std::thread::scope(|scope| -> Result<Vec<_>, Failure> {
        let running: Vec<_> = (0..threads as u64).map(|n| scope.spawn(move || run(n))).collect();
        let ended =
            running.into_iter().map(|thread| Ok(thread.join().map_err(|_| "a thread panicked")??));
        ended.collect()
    })?;
    if second {
        let end = other.end_signal();
        while end.try_recv().is_err() {
            worker.progress()?;
        }
        return Ok(());
    }
    print_rate(times, (windows * WINDOW * threads) as u64)?;
    other.done()
}

fn send_windows(worker: &SharedWorker, ep: &SharedEp, thread: u64, windows: usize) -> Result<(), ucp::Error> {
    let (mut sends, mut ack) = (Vec::with_capacity(WINDOW), Vec::with_capacity(SIZE));
    for _ in 0..windows {
        sends.extend((0..WINDOW).map(|_| ep.tag_send(MSG + thread, &[0u8; SIZE])));
        for mut send in sends.drain(..) {
            send.wait()?.0?;
        }
        let (ended, buf) = worker.tag_recv(ACK + thread, TAG_MASK_FULL, ack).wait()?;
        ended?;
        ack = buf;
    }
    Ok(())
}

fn receive_windows(
    worker: &SharedWorker,
    ep: &SharedEp,
    thread: u64,
    windows: usize,
) -> Result<(), ucp::Error> {
    let mut idle: Vec<_> = (0..WINDOW).map(|_| Vec::with_capacity(SIZE)).collect();
    let mut recvs = Vec::with_capacity(WINDOW);
    for _ in 0..windows {
        recvs.extend(idle.drain(..).map(|buf| worker.tag_recv(MSG + thread, TAG_MASK_FULL, buf)));
        for mut recv in recvs.drain(..) {
            let (ended, buf) = recv.wait()?;
            ended?;
            idle.push(buf);
        }
        ep.tag_send(ACK + thread, &[0u8; SIZE]).wait()?.0?;
    }
    Ok(())
}

/// Prints the rate of threads that began and ended then: a thread that only waits for them may wake late.
fn print_rate(times: Vec<(Instant, Instant)>, messages: u64) -> Result<(), Failure> {
    let (starts, ends): (Vec<_>, Vec<_>) = times.into_iter().unzip();
    let took = match (starts.iter().min(), ends.iter().max()) {
        (Some(&first), Some(&last)) => (last - first).as_secs_f64(),
        _ => return Err("no threads".into()),
    };
    line(format!("{{\"msg_rate\":{:.0}}}", messages as f64 / took));
    Ok(())
}

/// Posts the receives of a window, then sends.
fn to_self(window: usize, iters: usize) -> Result<(), Failure> {
    let worker = Context::new()?.worker()?;
    let ep = connect(&worker, &worker.address().pack())?;
    let params = SendParams { tag: Some(MSG), ..SendParams::default() };
    let (out, mut ack_buf) = ([0u8; SIZE], [0u8; SIZE]);
    let mut running = Vec::with_capacity(window);
    for _ in 0..iters.div_ceil(window) {
        for _ in 0..window {
            // SAFETY: the buffer outlives the receives, which end below, and is not read.
            let started = unsafe {
                worker.recv_raw(
                    ack_buf.as_mut_ptr(),
                    SIZE,
                    Match::tagged(MSG, TAG_MASK_FULL),
                    &OpParams::default(),
                )
            }?;
            if let OpStatus::InProgress(id) = started {
                running.push(id);
            }
        }
        for _ in 0..window {
            // SAFETY: `out` outlives the send and does not change.
            if let OpStatus::InProgress(id) = unsafe { ep.send_raw(out.as_ptr(), SIZE, &params) }? {
                worker.wait_for(id)?;
            }
        }
        for id in running.drain(..) {
            while worker.test(id).transpose()?.is_none() {
                worker.progress();
            }
        }
    }
    line(format!("{{\"messages\":{iters}}}"));
    Ok(())
}

fn serve_peers(mut other: PeerProcess, count: usize) -> Result<(), Failure> {
    let workers = workers(count)?;
    for worker in &workers {
        other.send(&worker.address().pack())?;
    }
    let end = other.end_signal();
    while end.try_recv().is_err() {
        for worker in &workers {
            worker.progress();
        }
    }
    Ok(())
}

fn peers(mut other: PeerProcess, count: usize) -> Result<(), Failure> {
    let worker = Context::new()?.worker()?;
    let addresses = (0..count).map(|_| other.recv()).collect::<Result<Vec<_>, _>>()?;
    let connect_all = || -> Result<(f64, Vec<Ep>), Failure> {
        let (mut eps, start) = (Vec::with_capacity(count), Instant::now());
        for address in &addresses {
            eps.push(connect(&worker, address)?);
        }
        Ok((start.elapsed().as_secs_f64() / count as f64, eps))
    };
    let before = rss()?;
    let (create, eps) = connect_all()?;
    let start = Instant::now();
    for ep in &eps {
        ep.tag_send_blocking(MSG, &[0; SIZE])?;
    }
    let first = create + start.elapsed().as_secs_f64() / count as f64;
    let each = (rss()? - before) / count as f64;
    let (again, _more) = connect_all()?;
    print([create, first, again], each, addresses[0].len(), idle(|| worker.progress()));
    other.done()
}

fn print(times: [f64; 3], rss: f64, address: usize, idle: f64) {
    let [create, first, again] = times.map(|seconds| seconds * 1e6);
    line(format!(
        "{{\"create_us\":{create:.3},\"first_us\":{first:.3},\"again_us\":{again:.3},\"rss_bytes\":{rss:.0},\"address_bytes\":{address},\"idle_ns\":{idle:.3}}}"
    ));
}

/// Nanoseconds of a call that finds nothing.
fn idle(mut progress: impl FnMut() -> usize) -> f64 {
    for _ in 0..IDLE / 10 {
        black_box(progress());
    }
    let start = Instant::now();
    for _ in 0..IDLE {
        black_box(progress());
    }
    start.elapsed().as_secs_f64() / f64::from(IDLE) * 1e9
}

struct IgnoreAll;

impl Sink for IgnoreAll {
    fn on_am(&mut self, _am: Am<'_>) {}
    fn on_comp(&mut self, _token: u64, _result: Result<(), Error>) {}
    fn on_ep_error(&mut self, _ep: EpTag, error: Error) {
        ucs::stderr_line!("scale: {error}");
    }
}

fn open(count: usize) -> Result<Vec<posix::Iface>, Failure> {
    let config = posix::Config::load(&Source::from_env()?)?;
    Ok((0..count).map(|_| posix::Iface::open(&config)).collect::<Result<_, _>>()?)
}

fn serve_uct_peers(mut other: PeerProcess, count: usize) -> Result<(), Failure> {
    let ifaces = open(count)?;
    for iface in &ifaces {
        other.send(&iface.device_addr())?;
        other.send(&iface.iface_addr())?;
    }
    other.recv().map(drop)
}

fn uct_peers(mut other: PeerProcess, count: usize) -> Result<(), Failure> {
    let iface = open(1)?.remove(0);
    let mut addresses = Vec::with_capacity(count);
    for _ in 0..count {
        addresses.push((other.recv()?, other.recv()?));
    }
    let connect_all = || -> Result<(f64, Vec<posix::Ep>), Failure> {
        let (mut eps, start) = (Vec::with_capacity(count), Instant::now());
        for (device, own) in &addresses {
            eps.push(iface.connect(device, own)?);
        }
        Ok((start.elapsed().as_secs_f64() / count as f64, eps))
    };
    let before = rss()?;
    let (create, eps) = connect_all()?;
    let start = Instant::now();
    for ep in &eps {
        let sent = loop {
            match ep.am_short(0, MSG, &[]) {
                // The peer has not answered yet.
                Err(Refused::NoResource) => {}
                sent => break sent,
            }
        };
        sent.map(drop).map_err(|refused| format!("first message: {refused:?}"))?;
    }
    let first = create + start.elapsed().as_secs_f64() / count as f64;
    let each = (rss()? - before) / count as f64;
    let (again, _more) = connect_all()?;
    let mut sink = IgnoreAll;
    let address = addresses[0].0.len() + addresses[0].1.len();
    print([create, first, again], each, address, idle(|| iface.poll(16, &mut sink)));
    other.done()
}

fn shared(threads: usize, iters: u64, cores: [&str; 2]) -> Result<(), Failure> {
    let iface = mt::Iface::open("posix", "memory", &Source::from_env()?, ThreadMode::Multi)?;
    let ep = iface.connect(&iface.device_addr(), &iface.iface_addr())?;
    let arrived = Arc::new(AtomicU64::new(0));
    let count = arrived.clone();
    // One thread at a time runs the handler.
    let counts = move |_: Am<'_>| count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    iface.set_am_handler(0, HandlerThread::Any, Some(Box::new(counts)))?;
    let pass = |share: u64, until: u64| -> Result<(), Refused> {
        let mut sent = 0;
        while sent < share {
            match ep.am_short(0, MSG, &[]) {
                Ok(_) => sent += 1,
                Err(Refused::NoResource) => drop(iface.progress(WINDOW)?),
                Err(failed) => return Err(failed),
            }
            if sent % BURST == 0 {
                iface.progress(WINDOW)?;
            }
        }
        while arrived.load(Ordering::Relaxed) < until {
            iface.progress(WINDOW)?;
        }
        Ok(())
    };
    let (warm, share) = (iters / 10 / threads as u64, iters / threads as u64);
    let (warmed, all) = (warm * threads as u64, share * threads as u64);
    let barrier = Barrier::new(threads);
    let run = &|n: usize| {
        let pinned = pin(cores[n % cores.len()]).map_err(|e| e.to_string());
        let ready = pass(warm, warmed);
        // The others wait here, whatever failed.
        barrier.wait();
        pinned?;
        let start = Instant::now();
        let passed = ready.and_then(|()| pass(share, warmed + all));
        passed.map_err(|refused| format!("message: {refused:?}"))?;
        Ok::<_, String>((start, Instant::now()))
    };
    let times = std::thread::scope(|scope| -> Result<Vec<_>, Failure> {
        let running: Vec<_> = (0..threads).map(|n| scope.spawn(move || run(n))).collect();
        let ended =
            running.into_iter().map(|thread| Ok(thread.join().map_err(|_| "a thread panicked")??));
        ended.collect()
    })?;
    print_rate(times, all)
}
