//! Handlers and callbacks that use their worker or panic.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use ucp::TAG_MASK_FULL;

use crate::{Shared, connect, multi, named, until_asleep};

/// Handlers and callbacks may use the worker that calls them.
fn handlers_use_their_worker(tls: &str) {
    let pair = Shared::on(tls);
    let ep = Arc::new(connect(&pair.b, &pair.a));
    let inner = ep.clone();
    pair.b
        .set_am_handler(1, move |message| {
            let n = message.header()[0];
            // Progress, queries, sends and a wait, all inside.
            inner.worker().progress().unwrap();
            assert!(!inner.worker().ifaces().unwrap().is_empty());
            inner.tag_send(1, vec![n; 8]).wait().unwrap().0.unwrap();
            let then = inner.clone();
            inner
                .tag_send(2, vec![n; 8])
                .then(move |_| then.tag_send(3, vec![n; 8]).detach().unwrap())
                .unwrap();
        })
        .unwrap();
    let _served = pair.b.spawn_progress().unwrap();
    for n in 0..100u8 {
        pair.ab.am_send(1, &[n], Vec::new()).wait().unwrap().0.unwrap();
        for tag in 1..4 {
            let (ended, got) = pair.a.tag_recv(tag, TAG_MASK_FULL, Vec::with_capacity(8)).wait().unwrap();
            assert!(ended.is_ok() && got == [n; 8]);
        }
    }
    // The handler holds an endpoint, and that the worker.
    pair.b.clear_am_handler(1).unwrap();
    assert_eq!(Arc::strong_count(&ep), 1);
}

/// A panic of a handler reaches the thread that progresses, and leaves the worker to the others.
#[test]
fn panic_in_a_handler_leaves_the_lock_open() {
    let worker = multi("posix");
    let ep = connect(&worker, &worker);
    worker.set_am_handler(1, |_| panic!("on purpose")).unwrap();
    let send_panic = || ep.am_send(1, &[], Vec::new()).detach().unwrap();
    send_panic();
    let panic = catch_unwind(AssertUnwindSafe(|| {
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(60) {
            worker.progress().unwrap();
        }
    }));
    assert_eq!(panic.unwrap_err().downcast_ref(), Some(&"on purpose"));
    // Of two threads that wait, the one that progresses panics, and the other one goes on progressing.
    let wait = |tag: u64| {
        let mut recv = worker.tag_recv(tag, TAG_MASK_FULL, Vec::with_capacity(8));
        catch_unwind(AssertUnwindSafe(|| recv.wait().unwrap().1)).ok()
    };
    thread::scope(|scope| {
        let waiting = [2, 3].map(|tag| named(scope, &format!("waits {tag}"), move || wait(tag)));
        [2, 3].iter().for_each(|tag| until_asleep(&format!("waits {tag}")));
        send_panic();
        let start = Instant::now();
        while !waiting.iter().any(|thread| thread.is_finished()) {
            assert!(start.elapsed() < Duration::from_secs(60));
            thread::yield_now();
        }
        for tag in [2, 3] {
            ep.tag_send_blocking(tag, &[tag as u8; 8]).unwrap();
        }
        let mut got = waiting.map(|thread| thread.join().unwrap());
        got.sort();
        assert!(got == [None, Some(vec![2; 8])] || got == [None, Some(vec![3; 8])], "{got:?}");
    });
    // A callback's panic ends neither a wait for borrowed memory nor the worker.
    let (mut recv, mut buf) = (worker.tag_recv(4, TAG_MASK_FULL, Vec::with_capacity(8)), [0; 8]);
    worker.tag_recv(5, TAG_MASK_FULL, Vec::with_capacity(8)).then(|_| panic!("on purpose")).unwrap();
    let panic = thread::scope(|scope| {
        let blocked = named(scope, "blocked", || {
            catch_unwind(AssertUnwindSafe(|| worker.tag_recv_blocking(6, TAG_MASK_FULL, &mut buf)))
        });
        until_asleep("blocked");
        ep.tag_send_blocking(5, &[5; 8]).unwrap();
        blocked.join().unwrap()
    });
    assert!(panic.is_err(), "the receive was cancelled");
    ep.tag_send_blocking(4, &[4; 8]).unwrap();
    assert_eq!(recv.wait().unwrap().1, [4; 8]);
}

on! {
    [handlers_use_their_worker]
    posix: "posix",
    efa: "efa",
    all: "all",
}
