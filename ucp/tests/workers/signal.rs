//! Signals of other threads end the sleep of a worker; a wait for a word of memory ends when it changes.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{bytes, context, ends};
use ucp::{Access, WaitStatus, Worker, wait_mem};
use ucs::sys::fd::wait_readable;

const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(30);

fn worker(tls: &str) -> Worker {
    let worker = context(ends(tls).0).worker().unwrap();
    while worker.progress() > 0 {}
    worker
}

fn a_signal_ends_the_wait(tls: &str) {
    let worker = worker(tls);
    let (signal, sent) = (worker.signaller().unwrap(), Arc::new(AtomicBool::new(false)));
    let told = sent.clone();
    let waker = thread::spawn(move || {
        thread::sleep(SHORT);
        told.store(true, SeqCst);
        signal.signal();
    });
    let start = Instant::now();
    while !sent.load(SeqCst) {
        worker.wait(Some(LONG)).unwrap();
    }
    assert!(start.elapsed() < LONG / 2, "{:?}", start.elapsed());
    waker.join().unwrap();
}

fn signals_before_the_wait_end_it_once(tls: &str) {
    let worker = worker(tls);
    let signal = worker.signaller().unwrap();
    assert_eq!(worker.wait(Some(SHORT)), Ok(WaitStatus::TimedOut));
    for _ in 0..3 {
        signal.signal();
        worker.signaller().unwrap().signal();
        assert_eq!(worker.wait(Some(LONG)), Ok(WaitStatus::Ready));
        assert_eq!(worker.wait(Some(SHORT)), Ok(WaitStatus::TimedOut));
    }
    drop(worker);
    signal.signal();
}

/// A signal of the system ends the sleep early; it is not taken for the end of the time.
fn a_signal_handler_is_no_timeout(tls: &str) {
    static RAN: AtomicBool = AtomicBool::new(false);
    // One of these tests at a time: the handler is the process's.
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    extern "C" fn handler(_: libc::c_int) {
        RAN.store(true, SeqCst);
    }
    // SAFETY: the handler stores a flag and nothing else.
    unsafe { libc::signal(libc::SIGUSR2, handler as extern "C" fn(libc::c_int) as libc::sighandler_t) };
    let worker = worker(tls);
    // SAFETY: the calling thread's handle, used while the thread lives.
    let me = unsafe { libc::pthread_self() } as usize;
    RAN.store(false, SeqCst);
    let is_woken = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            // The first one may come before the sleep.
            while !is_woken.load(SeqCst) {
                thread::sleep(SHORT);
                // SAFETY: that thread waits for this one.
                assert_eq!(unsafe { libc::pthread_kill(me as libc::pthread_t, libc::SIGUSR2) }, 0);
            }
        });
        let start = Instant::now();
        let mut status = worker.wait(Some(LONG));
        while !RAN.load(SeqCst) && status == Ok(WaitStatus::Ready) {
            status = worker.wait(Some(LONG));
        }
        is_woken.store(true, SeqCst);
        assert_eq!(status, Ok(WaitStatus::Ready), "after {:?}", start.elapsed());
        assert!(start.elapsed() < LONG / 2, "{:?}", start.elapsed());
    });
    while worker.wait(Some(SHORT)) != Ok(WaitStatus::TimedOut) {}
    assert_eq!(worker.wait(Some(SHORT)), Ok(WaitStatus::TimedOut));
}

/// A time that no clock reaches is no limit, and does no harm.
fn the_longest_time_is_no_limit(tls: &str) {
    let worker = worker(tls);
    worker.signaller().unwrap().signal();
    assert_eq!(worker.wait(Some(Duration::MAX)), Ok(WaitStatus::Ready));
    let flush = worker.flush_within(Duration::MAX);
    while !flush.is_done() {
        worker.progress();
    }
    assert_eq!(flush.wait(), Ok(()));
}

fn a_signal_makes_the_armed_descriptor_readable(tls: &str) {
    let worker = worker(tls);
    let signal = worker.signaller().unwrap();
    let fd = worker.event_fd().unwrap();
    for _ in 0..3 {
        assert!(worker.arm());
        assert_eq!(wait_readable(&[fd], Some(SHORT)), Ok(false));
        thread::scope(|threads| threads.spawn(|| signal.signal()).join()).unwrap();
        assert_eq!(wait_readable(&[fd], Some(LONG)), Ok(true));
        assert!(!worker.arm(), "a signal has come");
    }
    assert!(worker.arm());
    assert_eq!(wait_readable(&[fd], Some(SHORT)), Ok(false));
}

/// Each round, another thread publishes a word and signals, and waits for the worker's answer.
fn no_signal_is_lost(tls: &str) {
    const ROUNDS: u64 = 3000;
    let worker = worker(tls);
    let signal = worker.signaller().unwrap();
    let (word, answer) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (theirs, answered) = (word.clone(), answer.clone());
    let publisher = thread::spawn(move || {
        for n in 1..=ROUNDS {
            theirs.store(n, SeqCst);
            signal.signal();
            while answered.load(SeqCst) != n {
                thread::yield_now();
            }
        }
    });
    for n in 1..=ROUNDS {
        let start = Instant::now();
        while word.load(SeqCst) != n {
            worker.progress();
            worker.wait(Some(LONG)).unwrap();
            assert!(start.elapsed() < LONG / 2, "round {n}: lost");
        }
        answer.store(n, SeqCst);
    }
    publisher.join().unwrap();
}

/// A peer in another thread puts a word, and this one waits for it.
fn a_wait_for_a_word_ends_when_it_changes(tls: &'static str) {
    let worker = worker(tls);
    let mem = worker.mem_alloc(4096, Access::all()).unwrap();
    // SAFETY: aligned memory that lives longer, accessed by copies and atomics only.
    let word = unsafe { AtomicU64::from_ptr(mem.as_ptr().cast()) };
    assert!(!wait_mem(word, 0), "nothing writes it");
    let (address, key) = (worker.address().pack(), mem.pack_rkey());
    let (at, is_read) = (mem.addr(), Arc::new(AtomicBool::new(false)));
    let done = is_read.clone();
    let peer = thread::spawn(move || {
        let worker = context(ends(tls).1).worker().unwrap();
        let ep = worker.connect(&ucp::Address::unpack(&address).unwrap(), Default::default()).unwrap();
        let rkey = ep.unpack_rkey(&key).unwrap();
        let mut seen = bytes(0, 0);
        for n in 1..=100u64 {
            seen = n.to_le_bytes().to_vec();
            ep.put(seen.clone(), at, &rkey).wait().0.unwrap();
            ep.flush().wait().unwrap();
        }
        while !done.load(SeqCst) {
            worker.progress();
        }
        seen
    });
    let (start, mut seen) = (Instant::now(), 0);
    while seen < 100 {
        if wait_mem(word, seen) {
            seen = word.load(SeqCst);
        }
        worker.progress();
        assert!(start.elapsed() < LONG);
    }
    is_read.store(true, SeqCst);
    assert_eq!(peer.join().unwrap(), seen.to_le_bytes());
}

on! {
    [
        a_signal_ends_the_wait
        a_signal_handler_is_no_timeout
        the_longest_time_is_no_limit
        signals_before_the_wait_end_it_once
        a_signal_makes_the_armed_descriptor_readable
        no_signal_is_lost
        a_wait_for_a_word_ends_when_it_changes
    ]
    over_posix: "posix",
    over_efa: "efa",
    over_all: "posix,efa",
}
