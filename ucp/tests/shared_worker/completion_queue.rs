//! A completion queue that several threads fill and read.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ucp::mt::SharedCompletionQueue;
use ucp::{Error, TAG_MASK_FULL};

use crate::{Shared, WRONG, message, named, until_asleep};

/// Threads send and post receives, others read the ends.
fn threads_fill_and_read_a_queue(tls: &str) {
    const THREADS: u64 = 3;
    const EACH: u64 = 400;
    let pair = Shared::on(tls);
    let queue: SharedCompletionQueue = pair.b.completion_queue(32).unwrap();
    let (seen, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        for channel in 0..THREADS {
            let (pair, queue) = (&pair, &queue);
            scope.spawn(move || {
                for n in 0..EACH {
                    let mut sent = pair.ab.tag_send(channel, message(channel, n));
                    let mut recv = pair.b.tag_recv(channel, TAG_MASK_FULL, Vec::with_capacity(100_000));
                    while let Err(full) = queue.track(recv, channel) {
                        assert_eq!(full.error, Error::QueueFull(32));
                        recv = full.request;
                        pair.progress();
                    }
                    while sent.test().unwrap().is_none() {
                        pair.progress();
                    }
                }
            });
        }
        for _ in 0..2 {
            scope.spawn(|| {
                while seen.load(Ordering::Acquire) < (THREADS * EACH) as usize {
                    let Some(end) = queue.read().unwrap() else {
                        pair.progress();
                        thread::yield_now();
                        continue;
                    };
                    let buf = end.buf.unwrap();
                    let n = u64::from_le_bytes(*buf.first_chunk().unwrap());
                    assert!(buf == message(end.context, n));
                    assert_eq!(
                        end.result.map(|status| (status.len, status.tag)),
                        Ok((buf.len(), end.context))
                    );
                    seen.fetch_add(1, Ordering::AcqRel);
                }
                is_over.store(true, Ordering::Release);
            });
        }
    });
    assert!(is_over.load(Ordering::Acquire));
    assert_eq!((queue.len(), queue.running(), queue.is_empty()), (Ok(0), Ok(0), Ok(true)));
    assert!(queue.wait().unwrap().is_none(), "nothing runs");
}

/// A thread that sleeps in a wait of the queue is woken by an end that another thread's progress brings, and
/// by arrivals if there is none.
fn a_sleeping_reader_is_woken(tls: &str) {
    let pair = Shared::on(tls);
    let queue: SharedCompletionQueue = pair.b.completion_queue(4).unwrap();
    for one_progresses in [true, false] {
        queue.track(pair.b.tag_recv(1, TAG_MASK_FULL, Vec::with_capacity(8)), 1).unwrap();
        thread::scope(|scope| {
            let waits = named(scope, "reader", || queue.wait().unwrap().unwrap());
            until_asleep("reader");
            pair.ab.tag_send_blocking(1, &[9; 8]).unwrap();
            let start = Instant::now();
            while !waits.is_finished() {
                if one_progresses {
                    pair.b.progress().unwrap();
                }
                pair.a.progress().unwrap();
                assert!(start.elapsed() < Duration::from_secs(60), "it sleeps on");
            }
            let end = waits.join().unwrap();
            assert_eq!((end.context, end.buf), (1, Some(vec![9; 8])));
        });
    }
    assert_eq!(queue.cancel(1), Ok(0));
}

/// In mode single another thread gets an error, and its request back.
fn a_wrong_thread_is_refused(tls: &str) {
    let worker = crate::common::context(tls).shared_worker(ucp::mt::ThreadMode::Single).unwrap();
    let queue: SharedCompletionQueue = worker.completion_queue(4).unwrap();
    let recv = worker.tag_recv(1, TAG_MASK_FULL, Vec::with_capacity(8));
    thread::scope(|scope| {
        let other = scope.spawn(|| {
            let refused = queue.track(recv, 1).unwrap_err();
            assert_eq!((refused.error, queue.len(), queue.read().map(drop)), (WRONG, Err(WRONG), Err(WRONG)));
        });
        other.join().unwrap();
    });
    drop(queue);
}

on! {
    [threads_fill_and_read_a_queue a_sleeping_reader_is_woken a_wrong_thread_is_refused]
    posix: "posix",
    efa: "efa",
}
