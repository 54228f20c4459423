//! The loops of `perf/fabric/bench.c` with `ucp`: what `versus --against libfabric` puts beside libfabric's figures.
//! Two processes, each on a core of its own; prints one line of JSON. Transports are those of `UCX_TLS`.
//!
//!     tagged lat|bw SIZE ITERS CORE CORE
//!     tagged self SIZE ITERS                  one process to itself, for instruction counts

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use ucp::{Address, Context, EXACT, Ep, EpParams, Worker};

const MSG: u64 = 0x6d73_6700;
const ACK: u64 = 0x6163_6b00;
/// Messages until the receiver is waited for: `WINDOW` of `bench.c`, and fewer of long ones.
const WINDOW: usize = 64;

type Failure = Box<dyn std::error::Error>;

/// What is measured.
struct Plan {
    latency: bool,
    size: usize,
    window: usize,
    iters: usize,
    first: bool,
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("tagged: {e}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &[String]) -> Result<(), Failure> {
    let usage = "usage: tagged lat|bw SIZE ITERS CORE CORE | tagged self SIZE ITERS";
    if let [kind, size, iters] = args
        && kind == "self"
    {
        return to_self(size.parse()?, iters.parse()?);
    }
    let [kind, size, iters, cores @ ..] = args else { return Err(usage.into()) };
    if kind != "lat" && kind != "bw" || cores.len() < 2 {
        return Err(usage.into());
    }
    let (size, second) = (size.parse()?, cores.len() == 3);
    let window = if size < 65536 { WINDOW } else { WINDOW / 4 };
    let plan = Plan { latency: kind == "lat", size, window, iters: iters.parse()?, first: !second };
    if second {
        pin(&cores[0])?;
        let (input, mut output) = (std::io::stdin(), std::io::stdout());
        let (worker, ep) = meet(&mut input.lock(), &mut output)?;
        plan.pass(&worker, &ep, plan.iters / 10 + 10)?;
        plan.pass(&worker, &ep, plan.iters)?;
        // Until nobody needs an answer any more.
        let (done, wait) = std::sync::mpsc::channel();
        std::thread::spawn(move || done.send(std::io::stdin().lines().next().is_some()));
        while wait.try_recv().is_err() {
            worker.progress();
        }
        return Ok(());
    }
    let mut child = Command::new(std::env::current_exe()?)
        .args(args)
        .arg("second")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let (Some(mut output), Some(input)) = (child.stdin.take(), child.stdout.take()) else {
        return Err("no pipes".into());
    };
    pin(&cores[1])?;
    let (worker, ep) = meet(&mut BufReader::new(input), &mut output)?;
    plan.pass(&worker, &ep, plan.iters / 10 + 10)?;
    let start = Instant::now();
    plan.pass(&worker, &ep, plan.iters)?;
    let took = start.elapsed().as_secs_f64();
    writeln!(output, "done")?;
    child.wait()?;
    let (n, bytes) = (plan.iters as f64, size as f64);
    println!(
        "{{\"latency_us\":{{\"avg\":{:.4}}},\"msg_rate\":{:.0},\"bandwidth_mbs\":{:.1}}}",
        took / n / 2.0 * 1e6,
        n / took,
        n * bytes / took / 1_048_576.0
    );
    Ok(())
}

/// Each message is received before the next is sent: the same work in every run.
fn to_self(size: usize, iters: usize) -> Result<(), Failure> {
    let worker = Context::new()?.worker()?;
    let ep = worker.connect(&worker.address(), EpParams::default())?;
    let (out, mut back) = (vec![0; size], vec![0; size]);
    for _ in 0..iters {
        worker.scope(|s| {
            let received = s.tag_recv(MSG, EXACT, &mut back);
            s.tag_send(&ep, MSG, &out).wait()?;
            received.wait().map(drop)
        })?;
    }
    Ok(())
}

fn pin(core: &str) -> Result<(), Failure> {
    let mut set = rustix::thread::CpuSet::new();
    set.set(core.parse()?);
    rustix::thread::sched_setaffinity(None, &set).map_err(|e| format!("core {core}: {e}").into())
}

/// Exchanges addresses by lines of hexadecimal.
fn meet(input: &mut impl BufRead, output: &mut impl Write) -> Result<(Worker, Ep), Failure> {
    let worker = Context::new()?.worker()?;
    let mine: String = worker.address().pack().iter().map(|b| format!("{b:02x}")).collect();
    writeln!(output, "{mine}")?;
    output.flush()?;
    let mut theirs = String::new();
    input.read_line(&mut theirs)?;
    let pairs = theirs.trim().as_bytes().chunks_exact(2);
    let packed: Result<Vec<u8>, _> =
        pairs.map(|pair| u8::from_str_radix(&String::from_utf8_lossy(pair), 16)).collect();
    let ep = worker.connect(&Address::unpack(&packed?)?, EpParams::default())?;
    Ok((worker, ep))
}

impl Plan {
    fn pass(&self, worker: &Worker, ep: &Ep, iters: usize) -> Result<(), ucp::Error> {
        let (out, mut back) = (vec![0; self.size], vec![0; self.size.max(1) * self.window]);
        if self.latency {
            for _ in 0..iters {
                if self.first {
                    ep.tag_send_blocking(MSG, &out)?;
                }
                worker.tag_recv_blocking(MSG, EXACT, &mut back[..self.size])?;
                if !self.first {
                    ep.tag_send_blocking(MSG, &out)?;
                }
            }
            return Ok(());
        }
        let mut left = iters;
        while left > 0 {
            let n = left.min(self.window);
            left -= n;
            if self.first {
                worker.scope(|s| {
                    let sends: Vec<_> = (0..n).map(|_| s.tag_send(ep, MSG, &out)).collect();
                    sends.into_iter().try_for_each(|send| send.wait())
                })?;
                worker.tag_recv_blocking(ACK, EXACT, &mut [])?;
            } else {
                worker.scope(|s| {
                    let rooms = back.chunks_mut(self.size.max(1)).take(n);
                    let recvs: Vec<_> = rooms.map(|room| s.tag_recv(MSG, EXACT, room)).collect();
                    recvs.into_iter().try_for_each(|recv| recv.wait().map(drop))
                })?;
                ep.tag_send_blocking(ACK, &[])?;
            }
        }
        Ok(())
    }
}
