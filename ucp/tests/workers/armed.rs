//! The armed descriptor of a worker: what other tasks of the thread begin while the program sleeps on it
//! makes it readable if it has to wait, has a timer or ends at once. A program that only listens to the
//! descriptor and its own timer finishes everything.

use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::common::{Pair, bytes};
use ucp::{
    Access, AmProto, AtomicOp, CloseMode, ConnectParams, Context, EpParams, OpParams, SendRequest,
    TAG_MASK_FULL, Worker,
};
use ucs::config::Source;
use ucs::sys::fd::wait_readable;

const LONG: Duration = Duration::from_secs(60);

/// Workers that look after nobody: no timer of theirs hides a lost wake-up.
fn pair(tls: &str) -> Pair {
    let context = || {
        let source = Source::empty().with("UCX_TLS", tls).with("UCX_KEEPALIVE_INTERVAL", "1000000s");
        Context::configured(source).unwrap()
    };
    let pair = Pair::of(context().worker().unwrap(), context().worker().unwrap());
    pair.meet();
    pair
}

fn is_readable(worker: &Worker) -> bool {
    wait_readable(&[worker.event_fd().unwrap()], Some(Duration::ZERO)).unwrap()
}

/// Arms the descriptor, as a program does that is about to sleep.
fn arm(worker: &Worker) {
    let start = Instant::now();
    while worker.progress() > 0 || !worker.arm() {
        assert!(start.elapsed() < LONG, "there is always something to do");
    }
    assert!(!is_readable(worker));
}

/// Sends until one has to wait, and withdraws that one: the next has to wait, too.
fn fill(pair: &Pair) -> Vec<SendRequest<Vec<u8>>> {
    let mut sent = Vec::new();
    loop {
        let send = pair.ab.tag_send(1, vec![1; 8]);
        if send.is_done() {
            sent.push(send);
            continue;
        }
        assert!(send.cancel() && send.wait().0 == Err(ucp::Error::Cancelled));
        return sent;
    }
}

/// Sends begin while the program sleeps; there is room for some of them only.
fn sends_begun_in_a_sleep_go_on(tls: &str) {
    let pair = pair(tls);
    let count = if tls == "posix" { 200 } else { 3000 };
    let mut recvs: Vec<_> =
        (0..count).map(|_| pair.b.tag_recv(1, TAG_MASK_FULL, Vec::with_capacity(3000))).collect();
    pair.settle();
    arm(&pair.a);
    let mut sends: Vec<_> = (0..count).map(|n| pair.ab.tag_send(1, bytes(n, 3000))).collect();
    assert!(sends.iter().any(|send| !send.is_done()), "there was room for all");
    let start = Instant::now();
    loop {
        // The sender's loop: woken by its descriptor only.
        if is_readable(&pair.a) {
            while pair.a.progress() > 0 || !pair.a.arm() {
                pair.b.progress();
            }
        }
        pair.b.progress();
        sends.retain(|send| !send.is_done());
        recvs.retain(|recv| !recv.is_done());
        if sends.is_empty() && recvs.is_empty() {
            break;
        }
        assert!(start.elapsed() < Duration::from_secs(20), "{} sends sleep on", sends.len());
    }
}

/// Each kind of operation that begins to wait for room in the peer's queue.
fn every_kind_that_waits_for_room_wakes(tls: &str) {
    type Start = (&'static str, fn(&Pair, &ucp::Rkey, u64) -> Box<dyn std::any::Any>);
    let kinds: &[Start] = &[
        ("tag_send", |pair, _, _| Box::new(pair.ab.tag_send(2, vec![1; 8]))),
        ("tag_send_sync", |pair, _, _| Box::new(pair.ab.tag_send_sync(2, vec![1; 8]))),
        ("long send", |pair, _, _| Box::new(pair.ab.tag_send(2, vec![1; 1 << 20]))),
        ("msg_send", |pair, _, _| Box::new(pair.ab.msg_send(vec![1; 8]))),
        ("send_iov", |pair, _, _| Box::new(pair.ab.send_iov(vec![vec![1; 8]; 3], &Default::default()))),
        ("am_send", |pair, _, _| Box::new(pair.ab.am_send(2, b"head", vec![1; 8]))),
        ("rendezvous am", |pair, _, _| {
            Box::new(pair.ab.am_send_with(AmProto::Rendezvous, 2, b"head", vec![1; 8]))
        }),
        ("stream_send", |pair, _, _| Box::new(pair.ab.stream_send(vec![1; 8]))),
        ("put", |pair, rkey, at| Box::new(pair.ab.put(vec![1; 8], at, rkey))),
        ("get", |pair, rkey, at| Box::new(pair.ab.get(Vec::with_capacity(8), at, rkey))),
        ("atomic_post", |pair, rkey, at| {
            pair.ab.atomic_post(AtomicOp::Sum, 1u64, at, rkey).unwrap();
            Box::new(())
        }),
        ("atomic_fetch", |pair, rkey, at| Box::new(pair.ab.atomic_fetch(AtomicOp::Sum, 1u64, at, rkey))),
    ];
    for (name, start) in kinds {
        let pair = pair(tls);
        let mut memory = vec![0u64; 8];
        let at = memory.as_mut_ptr() as u64;
        // SAFETY: the memory lives longer, and nobody else uses it.
        let mem = unsafe { pair.b.mem_map(memory.as_mut_ptr().cast(), 64, Access::all()) }.unwrap();
        let rkey = pair.ab.unpack_rkey(&mem.pack_rkey()).unwrap();
        let sent = fill(&pair);
        arm(&pair.a);
        let request = start(&pair, &rkey, at);
        assert!(is_readable(&pair.a), "{name} begins to wait behind {} sends, untold", sent.len());
        drop((request, mem));
    }
}

/// Operations that only progress ends, and operations with a timer.
fn flushes_closes_and_timers_wake(tls: &str) {
    let pair = pair(tls);
    let (a, to_b) = (&pair.a, &pair.b.address());
    arm(a);
    let flush = pair.ab.flush();
    assert!(is_readable(a), "a flush that only progress ends");
    arm_with(&pair, || flush.is_done());
    let flush = a.flush_within(Duration::from_secs(5));
    assert!(is_readable(a), "a flush of the worker with a timer");
    arm_with(&pair, || flush.is_done());
    let ep = a.connect(to_b, EpParams::default()).unwrap();
    arm(a);
    let close = ep.close(CloseMode::Flush(Duration::from_secs(5)));
    assert!(is_readable(a), "a close");
    arm_with(&pair, || close.is_done());

    // A flush that waits for its receiver, and is cancelled while the program sleeps.
    let send = pair.ab.tag_send_sync(3, vec![3; 8]);
    let flush = pair.ab.flush();
    while a.progress() > 0 {}
    arm(a);
    let limited = pair.ab.flush_within(Duration::from_millis(20));
    assert!(is_readable(a), "a timer before all others");
    arm(a);
    assert!(flush.cancel() && is_readable(a), "an end that only progress reports");
    let start = Instant::now();
    while !limited.is_done() {
        if is_readable(a) {
            while a.progress() > 0 || !a.arm() {}
        }
        assert!(start.elapsed() < Duration::from_secs(10), "the timer was not heard of");
    }
    drop(send);
}

fn arm_with(pair: &Pair, done: impl Fn() -> bool) {
    pair.until(done);
    arm(&pair.a);
}

/// A peer whose socket address is known only, and one that becomes known later.
#[test]
fn connections_wake() {
    let pair = pair("posix");
    let asked = Rc::new(std::cell::Cell::new(false));
    let told = asked.clone();
    let listener = pair.b.listen("127.0.0.1:0".parse().unwrap(), move |_| told.set(true)).unwrap();
    arm(&pair.a);
    let ep = pair.a.connect_to(listener.local_addr(), ConnectParams::default()).unwrap();
    assert!(is_readable(&pair.a), "the exchange begins");
    let send = ep.tag_send(1, vec![1; 8]);
    pair.until(|| asked.get() && send.is_done());
    assert!(send.wait().0.is_err(), "the request was dropped");

    let (ep, connector) = pair.a.connect_later(EpParams::default());
    let sends: Vec<_> = (0..200).map(|_| ep.tag_send(1, vec![1; 3000])).collect();
    arm(&pair.a);
    connector.connect(&pair.b.address()).unwrap();
    assert!(is_readable(&pair.a), "deferred sends begin, and some wait");
    drop(sends);
}

/// A callback of an operation that ends within a call is called by progress only.
#[test]
fn ends_of_receives_wake() {
    let pair = pair("posix");
    pair.ab.stream_send(vec![5; 8]).wait().0.unwrap();
    pair.settle();
    arm(&pair.b);
    unsafe fn called(arg: *mut (), _: ucp::RequestId, _: Result<ucp::RecvStatus, ucp::Error>) {
        // SAFETY: the argument is the flag below.
        unsafe { *arg.cast::<bool>() = true };
    }
    let (mut is_called, mut buf) = (false, [0u8; 8]);
    let done = ucp::Callback::new(called, (&raw mut is_called).cast());
    // SAFETY: buffer and flag outlive the operation.
    let id = unsafe {
        let mode = ucp::StreamRecvMode::WaitAll;
        pair.ba.stream_recv_raw(buf.as_mut_ptr(), 8, mode, &OpParams::with_callback(done)).unwrap()
    };
    assert!(is_readable(&pair.b), "progress is to call back");
    pair.b.progress();
    assert!(is_called && pair.b.test(id).is_some());
}

/// Calls that leave nothing to do do not wake, however often the program looks.
fn looks_do_not_wake(tls: &str) {
    let pair = pair(tls);
    arm(&pair.a);
    let mut recv = std::pin::pin!(pair.a.tag_recv(9, TAG_MASK_FULL, Vec::with_capacity(8)));
    for _ in 0..3 {
        let cx = &mut std::task::Context::from_waker(std::task::Waker::noop());
        assert!(std::future::Future::poll(recv.as_mut(), cx).is_pending());
        pair.a.next_timer();
        pair.a.stats();
        assert_eq!(pair.a.diagnostics().requests(), 1);
    }
    if tls == "posix" {
        // On efa, the device reports the end of the send.
        pair.ab.tag_send(1, vec![1; 8]).wait().0.unwrap();
    }
    assert!(!is_readable(&pair.a), "nothing waits");
}

on! {
    [sends_begun_in_a_sleep_go_on flushes_closes_and_timers_wake looks_do_not_wake]
    posix: "posix",
    efa: "efa",
}

on! {
    [every_kind_that_waits_for_room_wakes]
    full_posix: "posix",
}
