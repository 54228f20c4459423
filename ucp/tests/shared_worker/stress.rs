//! Threads that send and receive on one worker, and on two workers of one context. Each message is checked:
//! its number, its length and its bytes.

use std::thread;

use ucp::TAG_MASK_FULL;
use ucp::mt::{SharedEp, SharedEpParams, SharedWorker, ThreadMode};

use crate::common::context;
use crate::{Shared, connect, len_of, message, multi};

/// Messages in all of a stress test; `UCX_STRESS_MESSAGES` sets another number.
fn stress_messages() -> u64 {
    let given = std::env::var("UCX_STRESS_MESSAGES").ok();
    given.map_or(40_000, |n| n.parse().expect("UCX_STRESS_MESSAGES is a number"))
}

/// Sent before an acknowledgement is waited for.
const BATCH: u64 = 64;

fn send_all(ep: &SharedEp, worker: &SharedWorker, channel: u64, count: u64) {
    let mut sends = Vec::new();
    for n in 0..count {
        let mut send = ep.tag_send(channel, message(channel, n));
        // Some are waited for by the sender, most are taken later.
        if n % 7 == 0 {
            send.wait().unwrap().0.unwrap();
        } else {
            sends.push(send);
        }
        if n % BATCH == BATCH - 1 {
            let (ended, ack) =
                worker.tag_recv(1000 + channel, TAG_MASK_FULL, Vec::with_capacity(8)).wait().unwrap();
            assert_eq!((ended.map(|s| s.len), ack), (Ok(8), n.to_le_bytes().to_vec()));
            sends.drain(..).for_each(|mut send| send.wait().unwrap().0.unwrap());
        }
    }
    sends.into_iter().for_each(|mut send| send.wait().unwrap().0.unwrap());
}

fn recv_all(ep: &SharedEp, worker: &SharedWorker, channel: u64, count: u64) {
    let post = |n| worker.tag_recv(channel, TAG_MASK_FULL, Vec::with_capacity(len_of(n)));
    let mut posted: std::collections::VecDeque<_> = (0..count.min(8)).map(post).collect();
    for n in 0..count {
        let (ended, got) = posted.pop_front().unwrap().wait().unwrap();
        let status = ended.unwrap();
        assert_eq!((status.len, status.tag), (len_of(n), channel));
        assert!(got == message(channel, n), "message {n} of {channel}");
        if n + 8 < count {
            posted.push_back(post(n + 8));
        }
        if n % BATCH == BATCH - 1 {
            ep.tag_send_blocking(1000 + channel, &n.to_le_bytes()).unwrap();
        }
    }
}

/// `threads` threads send on `a` and as many receive on `b`, which may be the same worker.
fn pass((a, ab): (&SharedWorker, &SharedEp), (b, ba): (&SharedWorker, &SharedEp), threads: u64, total: u64) {
    thread::scope(|scope| {
        for channel in 0..threads {
            scope.spawn(move || send_all(ab, a, channel, total / threads));
            scope.spawn(move || recv_all(ba, b, channel, total / threads));
        }
    });
}

fn four_threads_pass_messages(tls: &str) {
    let pair = Shared::on(tls);
    pass((&pair.a, &pair.ab), (&pair.b, &pair.ba), 4, stress_messages());
    assert_eq!(pair.a.diagnostics(|d| d.requests()), Ok(0));
    assert_eq!(pair.b.diagnostics(|d| (d.requests(), d.held_bytes())), Ok((0, 0)));
}

fn four_threads_pass_messages_to_their_own_worker(tls: &str) {
    let worker = multi(tls);
    let ep = connect(&worker, &worker);
    pass((&worker, &ep), (&worker, &ep), 4, stress_messages());
    assert_eq!(worker.diagnostics(|d| (d.requests(), d.held_bytes())), Ok((0, 0)));
}

/// Two workers of one context, two threads each, to a worker with four.
fn two_workers_of_a_context(tls: &str) {
    let (one, peer) = (context(tls), multi(tls));
    let workers = [(); 2].map(|()| one.shared_worker(ThreadMode::Multi).unwrap());
    let ends = [0, 1].map(|n| (connect(&workers[n], &peer), connect(&peer, &workers[n])));
    thread::scope(|scope| {
        for n in 0..2 {
            let ((to, back), worker, peer) = (&ends[n], &workers[n], &peer);
            for channel in [2 * n as u64, 2 * n as u64 + 1] {
                scope.spawn(move || send_all(to, worker, channel, stress_messages() / 4));
                scope.spawn(move || recv_all(back, peer, channel, stress_messages() / 4));
            }
        }
    });
}

/// A worker's own interface carries messages to itself, and reaches no other worker of the process.
#[test]
fn messages_to_itself_go_by_its_own_interface() {
    for tls in ["self", "self,posix"] {
        let context = context(tls);
        let worker = context.shared_worker(ThreadMode::Multi).unwrap();
        let other = context.shared_worker(ThreadMode::Multi).unwrap();
        let ep = worker.connect(&worker.address().unwrap(), SharedEpParams::default()).unwrap();
        std::thread::scope(|scope| {
            for tag in 0..4u64 {
                let (worker, ep) = (&worker, &ep);
                scope.spawn(move || {
                    for n in 0..1000u64 {
                        let mut recv = worker.tag_recv(tag, TAG_MASK_FULL, Vec::with_capacity(8));
                        let sent = ep.tag_send(tag, n.to_ne_bytes().to_vec()).wait().unwrap();
                        assert_eq!(sent.0, Ok(()));
                        let (status, got) = recv.wait().unwrap();
                        assert_eq!((status.map(|s| s.len), got), (Ok(8), n.to_ne_bytes().to_vec()), "{tls}");
                    }
                });
            }
        });
        let reached = worker.connect(&other.address().unwrap(), SharedEpParams::default());
        assert_eq!(reached.is_ok(), tls != "self", "{tls}");
    }
}

on! {
    [four_threads_pass_messages four_threads_pass_messages_to_their_own_worker two_workers_of_a_context]
    posix: "posix",
    efa: "efa",
    all: "all",
}

on! {
    [four_threads_pass_messages_to_their_own_worker]
    loopback: "self",
}
