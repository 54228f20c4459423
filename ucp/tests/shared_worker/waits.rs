//! Threads that sleep until their request ends, an event comes or a signal, and tasks of a runtime.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use ucp::mt::{SharedWorker, ThreadMode};
use ucp::{Context, Error, Match, TAG_MASK_FULL, WaitStatus};

use crate::common::{self, context};
use crate::{Shared, connect, message, named, until_asleep};

/// Threads asleep in a wait for their own requests are woken by the thread that completes these, and by
/// arrivals if there is none.
fn sleeping_threads_are_woken(tls: &str) {
    let pair = Shared::on(tls);
    pair.ab.tag_send(99, vec![1]).wait().unwrap().0.unwrap();
    pair.b.tag_recv(99, TAG_MASK_FULL, Vec::with_capacity(1)).wait().unwrap().0.unwrap();
    for one_progresses in [true, false] {
        let (pair, woken) = (&pair, &Mutex::new(Vec::new()));
        thread::scope(|scope| {
            for tag in 0..3 {
                let name = format!("sleeper {tag}");
                named(scope, &name, move || {
                    let mut recv = pair.b.tag_recv(tag, TAG_MASK_FULL, Vec::with_capacity(8));
                    assert_eq!(recv.wait().unwrap().1, tag.to_le_bytes());
                    woken.lock().unwrap().push(tag);
                });
            }
            (0..3).for_each(|tag| until_asleep(&format!("sleeper {tag}")));
            // Not in the order in which they wait, so that the one that progresses leaves in between.
            for tag in [1, 0, 2] {
                pair.ab.tag_send_blocking(tag, &tag.to_le_bytes()).unwrap();
                let start = Instant::now();
                while !woken.lock().unwrap().contains(&tag) {
                    if one_progresses {
                        pair.b.progress().unwrap();
                    }
                    pair.a.progress().unwrap();
                    assert!(start.elapsed() < Duration::from_secs(60), "{tag} sleeps on");
                }
            }
        });
    }
}

/// A handler waits for a message that comes long after the wait has stopped to spin, and for a send.
fn handlers_wait(tls: &str) {
    let pair = Shared::on(tls);
    let (answer, to) = (Arc::new(Mutex::new(None)), pair.b.clone());
    let answered = answer.clone();
    let handler = move |_| {
        let (received, message) = to.tag_recv(3, TAG_MASK_FULL, Vec::with_capacity(300_000)).wait().unwrap();
        *answered.lock().unwrap() = Some((received.map(|status| status.len), message));
    };
    pair.b.set_am_handler(1, handler).unwrap();
    pair.ab.am_send(1, b"begin", vec![]).detach().unwrap();
    thread::scope(|scope| {
        named(scope, "handles", || {
            let start = Instant::now();
            while answer.lock().unwrap().is_none() {
                pair.b.progress().unwrap();
                assert!(start.elapsed() < Duration::from_secs(60), "nothing arrives");
            }
        });
        thread::sleep(Duration::from_millis(300));
        let mut send = pair.ab.tag_send(3, vec![5; 300_000]);
        send.wait().unwrap().0.unwrap();
    });
    pair.b.clear_am_handler(1).unwrap();
    assert_eq!(answer.lock().unwrap().take(), Some((Ok(300_000), vec![5; 300_000])));
}

/// A signal ends a wait, one that is under way and the next one.
fn signal_ends_a_wait(tls: &str) {
    for mode in [ThreadMode::Single, ThreadMode::Serialized, ThreadMode::Multi] {
        let (ready, go) = channel();
        thread::scope(|scope| {
            named(scope, "waits", || {
                let worker = context(tls).shared_worker(mode).unwrap();
                ready.send(worker.clone()).unwrap();
                let start = Instant::now();
                let waits = || worker.wait(Some(Duration::from_secs(100)));
                while !start.elapsed().is_zero() && worker.progress().unwrap() > 0 {}
                // At once, by the signal before.
                until_signalled(&waits);
                until_signalled(&waits);
                assert!(start.elapsed() < Duration::from_secs(60), "{mode:?}");
                assert_eq!(worker.wait(Some(Duration::from_millis(10))), Ok(WaitStatus::TimedOut));
            });
            let worker = go.recv().unwrap();
            for _ in 0..2 {
                until_asleep("waits");
                worker.signal();
                thread::sleep(Duration::from_millis(50));
            }
        });
    }
}

fn until_signalled(wait: &dyn Fn() -> Result<WaitStatus, Error>) {
    assert_eq!(wait(), Ok(WaitStatus::Ready));
}

/// An armed descriptor tells of arrivals, of events that another thread has received, and of signals.
fn armed_descriptor_is_readable(tls: &str) {
    let pair = Shared::on(tls);
    pair.ab.tag_send(99, vec![1]).wait().unwrap().0.unwrap();
    pair.b.tag_recv(99, TAG_MASK_FULL, Vec::with_capacity(1)).wait().unwrap().0.unwrap();
    let fd = pair.b.event_fd().unwrap().expect("each lane has one");
    let readable = |time| ucs::sys::fd::wait_readable(&[fd], Some(Duration::from_millis(time))).unwrap();
    let arm = || {
        let start = Instant::now();
        while !pair.b.arm().unwrap() {
            pair.progress();
            assert!(start.elapsed() < Duration::from_secs(60), "cannot be armed");
        }
    };
    arm();
    assert!(!readable(10));
    pair.b.signal();
    assert!(readable(10_000) && !pair.b.arm().unwrap());
    arm();
    let other = pair.b.clone();
    pair.ab.tag_send(1, vec![1]).wait().unwrap().0.unwrap();
    assert!(readable(10_000));
    while pair.b.probe(Match::tagged(1, TAG_MASK_FULL)).unwrap().is_none() {
        other.progress().unwrap();
    }
    assert!(readable(10_000), "events that another handle has received");
    assert!(!pair.b.arm().unwrap(), "there were events");
    assert!(pair.b.discard(Match::tagged(1, TAG_MASK_FULL)).unwrap().is_some());
}

/// An operation that another thread begins, and that needs progress, makes the armed descriptor readable.
fn operations_of_others_wake_the_armed_descriptor(tls: &str) {
    let pair = Shared::on(tls);
    pair.ab.tag_send(99, vec![1]).wait().unwrap().0.unwrap();
    pair.b.tag_recv(99, TAG_MASK_FULL, Vec::with_capacity(1)).wait().unwrap().0.unwrap();
    let fd = pair.a.event_source().unwrap().expect("each lane has one");
    let readable = |time| {
        let fd = std::os::fd::AsFd::as_fd(&fd);
        ucs::sys::fd::wait_readable(&[fd], Some(Duration::from_millis(time))).unwrap()
    };
    let arm = || {
        let start = Instant::now();
        while !pair.a.arm().unwrap() || readable(0) {
            pair.progress();
            assert!(start.elapsed() < Duration::from_secs(60), "cannot be armed");
        }
    };
    let start_elsewhere = |count: usize| {
        let start = || (0..count).map(|_| pair.ab.tag_send(1, vec![1; 3000])).collect::<Vec<_>>();
        thread::scope(|threads| threads.spawn(start).join().unwrap())
    };
    arm();
    let mut sends = start_elsewhere(200);
    assert!(readable(10_000), "{} sends wait untold", sends.len());
    pair.until(|| {
        while pair.b.discard(Match::tagged(1, TAG_MASK_FULL)).unwrap().is_some() {}
        sends.iter().all(|send| send.is_done().unwrap())
    });
    sends.drain(..).for_each(|mut send| send.wait().unwrap().0.unwrap());
    arm();
    let limit = Duration::from_secs(50);
    let flush = thread::scope(|threads| threads.spawn(|| pair.ab.flush_within(limit)).join().unwrap());
    assert!(readable(10_000), "a flush with a timer");
    pair.until(|| flush.is_done().unwrap());
}

/// The armed descriptor tells of a timer, and none is armed behind a deadline.
fn timers_wake_the_armed_descriptor(tls: &str) {
    // No other timer does.
    let source = common::source(tls).with("UCX_KEEPALIVE_INTERVAL", "1000000s");
    let context = Context::configured(source).unwrap();
    let [a, b] = [(); 2].map(|()| context.shared_worker(ThreadMode::Multi).unwrap());
    let ab = connect(&a, &b);
    ab.tag_send(99, vec![1]).wait().unwrap().0.unwrap();
    b.tag_recv(99, TAG_MASK_FULL, Vec::with_capacity(1)).wait().unwrap().0.unwrap();
    let fd = a.event_fd().unwrap().expect("each lane has one");
    let readable = |time| ucs::sys::fd::wait_readable(&[fd], Some(Duration::from_millis(time))).unwrap();
    let arm = || {
        let start = Instant::now();
        while !a.arm().unwrap() || readable(0) {
            a.progress().unwrap();
            b.progress().unwrap();
            assert!(start.elapsed() < Duration::from_secs(60), "cannot be armed");
        }
    };
    // Nobody receives it.
    let send = ab.tag_send_sync(5, vec![1]);
    for sleeps_elsewhere in [false, true] {
        let flush = ab.flush_within(Duration::from_millis(300));
        arm();
        let start = Instant::now();
        if sleeps_elsewhere {
            thread::sleep(Duration::from_millis(400));
        } else {
            assert!(readable(10_000), "the timer is not heard of");
        }
        assert!(!a.arm().unwrap(), "a deadline has passed");
        while !flush.is_done().unwrap() {
            assert!(a.progress().unwrap() > 0 || !a.arm().unwrap() || readable(10_000), "it sleeps on");
            assert!(start.elapsed() < Duration::from_secs(60));
        }
    }
    drop(send);
}

/// An operation that another thread begins, and that needs progress, ends the wait of a thread.
fn operations_of_others_end_a_wait(tls: &str) {
    // No timer hides a lost wake-up.
    let source = common::source(tls).with("UCX_KEEPALIVE_INTERVAL", "1000000s");
    let context = Context::configured(source).unwrap();
    let [a, b] = [(); 2].map(|()| context.shared_worker(ThreadMode::Multi).unwrap());
    let (ab, waits, stop) = (connect(&a, &b), &AtomicU32::new(0), &AtomicBool::new(false));
    ab.tag_send(99, vec![1]).wait().unwrap().0.unwrap();
    b.tag_recv(99, TAG_MASK_FULL, Vec::with_capacity(1)).wait().unwrap().0.unwrap();
    let until_waiting = || {
        // What is left to do first keeps it awake for a while.
        let mut before = u32::MAX;
        while before != waits.load(SeqCst) {
            before = waits.load(SeqCst);
            thread::sleep(Duration::from_millis(100));
            until_asleep("waits");
        }
        before
    };
    let until_awake = |before: u32| {
        let start = Instant::now();
        while waits.load(SeqCst) == before && start.elapsed() < Duration::from_secs(10) {
            thread::sleep(Duration::from_millis(1));
        }
        let is_awake = waits.load(SeqCst) != before;
        if !is_awake {
            stop.store(true, SeqCst);
            a.signal();
        }
        is_awake
    };
    let there = a.clone();
    thread::scope(|scope| {
        named(scope, "waits", move || {
            while !stop.load(SeqCst) {
                while there.progress().unwrap() > 0 {}
                there.wait(Some(Duration::from_secs(100))).unwrap();
                waits.fetch_add(1, SeqCst);
            }
        });
        let before = until_waiting();
        let sends: Vec<_> = (0..200).map(|_| ab.tag_send(1, vec![1; 3000])).collect();
        assert!(until_awake(before), "{} sends wait untold", sends.len());
        let start = Instant::now();
        while !sends.iter().all(|send| send.is_done().unwrap()) {
            b.progress().unwrap();
            while b.discard(Match::tagged(1, TAG_MASK_FULL)).unwrap().is_some() {}
            assert!(start.elapsed() < Duration::from_secs(60), "they do not end");
        }
        let before = until_waiting();
        let flush = ab.flush_within(Duration::from_secs(50));
        assert!(until_awake(before), "a flush with a timer");
        while !flush.is_done().unwrap() {
            b.progress().unwrap();
        }
        stop.store(true, SeqCst);
        a.signal();
    });
}

/// Blocking calls within a future that a worker runs, of that worker, and of two crosswise; and one thread
/// leaves the lead to another, which is in such a call.
fn futures_make_blocking_calls(tls: &str) {
    let pair = Arc::new(Shared::on(tls));
    for (there, at) in [(&pair.ab, &pair.b), (&pair.ba, &pair.a)] {
        there.tag_send(99, vec![1]).wait().unwrap().0.unwrap();
        at.tag_recv(99, TAG_MASK_FULL, Vec::with_capacity(1)).wait().unwrap().0.unwrap();
    }
    let (ended, ends) = channel();
    // Not joined: one that hangs must not hold the test.
    let spawn = |name: &str, tag: u64, body: &dyn Fn(Arc<Shared>) -> Box<dyn FnOnce() -> Vec<u8> + Send>| {
        let (ended, body) = (ended.clone(), body(pair.clone()));
        let run = move || ended.send((tag, body())).unwrap();
        thread::Builder::new().name(name.into()).spawn(run).unwrap();
    };
    fn recv(worker: &SharedWorker, tag: u64) -> Vec<u8> {
        let (received, bytes) = worker.tag_recv(tag, TAG_MASK_FULL, Vec::with_capacity(8)).wait().unwrap();
        received.unwrap();
        bytes
    }
    let send = |to_b: bool, tag: u64| {
        let ep = if to_b { &pair.ab } else { &pair.ba };
        ep.tag_send(tag, tag.to_le_bytes().to_vec()).detach().unwrap();
    };
    let expect = |tags: &[u64]| {
        let mut got: Vec<_> = tags.iter().map(|_| ends.recv_timeout(Duration::from_secs(60))).collect();
        got.sort_by_key(|got| got.as_ref().map_or(0, |(tag, _)| *tag));
        let wanted: Vec<_> = tags.iter().map(|tag| Ok((*tag, tag.to_le_bytes().to_vec()))).collect();
        assert_eq!(got, wanted, "a call hangs");
    };

    spawn("in itself", 1, &|pair| Box::new(move || pair.b.block_on(async { recv(&pair.b, 1) }).unwrap()));
    until_asleep("in itself");
    send(true, 1);
    expect(&[1]);

    let both = Arc::new(Barrier::new(2));
    spawn("b in a", 2, &|pair| {
        let both = both.clone();
        let future = |pair: Arc<Shared>| async move {
            both.wait();
            recv(&pair.b, 2)
        };
        Box::new(move || pair.a.block_on(future(pair.clone())).unwrap())
    });
    spawn("a in b", 3, &|pair| {
        let both = both.clone();
        let future = |pair: Arc<Shared>| async move {
            both.wait();
            recv(&pair.a, 3)
        };
        Box::new(move || pair.b.block_on(future(pair.clone())).unwrap())
    });
    ["b in a", "a in b"].into_iter().for_each(until_asleep);
    send(true, 2);
    send(false, 3);
    expect(&[2, 3]);

    spawn("leads", 4, &|pair| Box::new(move || recv(&pair.b, 4)));
    until_asleep("leads");
    spawn("a in b", 5, &|pair| Box::new(move || pair.b.block_on(async { recv(&pair.a, 5) }).unwrap()));
    until_asleep("a in b");
    spawn("follows", 6, &|pair| Box::new(move || recv(&pair.b, 6)));
    until_asleep("follows");
    send(true, 4);
    expect(&[4]);
    send(true, 6);
    expect(&[6]);

    // What wakes the outer wait comes during the inner one.
    spawn("leads", 7, &|pair| Box::new(move || recv(&pair.b, 7)));
    until_asleep("leads");
    spawn("polls once", 8, &|pair| {
        Box::new(move || {
            let mut outer = pair.b.tag_recv(8, TAG_MASK_FULL, Vec::with_capacity(8));
            let mut is_first = true;
            let future = std::future::poll_fn(|cx| {
                let polled = std::pin::Pin::new(&mut outer).poll(cx);
                if std::mem::take(&mut is_first) {
                    recv(&pair.b, 9);
                }
                polled
            });
            pair.b.block_on(future).unwrap().unwrap().1
        })
    });
    for tag in [8, 9] {
        until_asleep("polls once");
        send(true, tag);
        thread::sleep(Duration::from_millis(20));
    }
    expect(&[8]);
    send(true, 7);
    expect(&[7]);
    send(false, 5);
    expect(&[5]);
}

/// Futures of shared requests, in tasks that a runtime moves between its threads.
fn tasks_of_a_runtime_await_messages(tls: &str) {
    let pair = Shared::on(tls);
    let (ab, ba) = (Arc::new(pair.ab), Arc::new(pair.ba));
    let _served = (pair.a.spawn_progress().unwrap(), pair.b.spawn_progress().unwrap());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(3).build().unwrap();
    let tasks: Vec<_> = (0..16u64)
        .map(|tag| {
            let (ab, ba, a, b) = (ab.clone(), ba.clone(), pair.a.clone(), pair.b.clone());
            runtime.spawn(async move {
                for n in 0..50 {
                    let text = message(tag, n * 77);
                    let recv = b.tag_recv(tag, TAG_MASK_FULL, Vec::with_capacity(text.len()));
                    ab.tag_send_sync(tag, text.clone()).await?.0?;
                    let (ended, got) = recv.await?;
                    assert!(ended?.len == text.len() && got == text, "{n} of {tag}");
                    let back = a.tag_recv(1000 + tag, TAG_MASK_FULL, Vec::with_capacity(8));
                    ba.tag_send(1000 + tag, n.to_le_bytes().to_vec()).await?.0?;
                    assert_eq!(back.await?.1, n.to_le_bytes());
                    // Polled once, by another task, and dropped.
                    let never = a.tag_recv(5000 + tag, TAG_MASK_FULL, Vec::with_capacity(8));
                    let waits = tokio::spawn(never);
                    waits.abort();
                }
                ab.flush().await
            })
        })
        .collect();
    for task in tasks {
        runtime.block_on(task).unwrap().unwrap();
    }
    drop(runtime);
    assert_eq!(pair.a.block_on(async { pair.a.flush().await }), Ok(Ok(())));
}

on! {
    [
        sleeping_threads_are_woken
        handlers_wait
        signal_ends_a_wait
        armed_descriptor_is_readable
        operations_of_others_wake_the_armed_descriptor
        timers_wake_the_armed_descriptor
        operations_of_others_end_a_wait
        futures_make_blocking_calls
        tasks_of_a_runtime_await_messages
    ]
    posix: "posix",
    efa: "efa",
    all: "all",
}
