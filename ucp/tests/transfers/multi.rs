//! One buffer for many messages, on every lane: short and long, taken out, cancelled, dropped in flight.

use crate::common::{Pair, bytes};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Wake, Waker};
use ucp::{ANY_TAG, Error, Match, MultiRecvParams, TAG_MASK_FULL};

const LENS: [usize; 5] = [0, 8, 1000, 20_000, 100_000];

fn multi_packet_messages_arrive_whole(tls: &str) {
    let pair = Pair::on(tls);
    let all: usize = LENS.iter().sum();
    let mut many = pair.b.recv_multi(Match::tagged(0, ANY_TAG), vec![0u8; all + 10], 11).unwrap();
    assert!(many.try_next().is_none() && !many.is_done());
    let sends: Vec<_> = (0..).zip(LENS).map(|(n, len)| pair.ab.tag_send(n, bytes(n, len))).collect();
    let mut seen = vec![false; LENS.len()];
    while !seen.iter().all(|seen| *seen) {
        pair.a.progress();
        pair.b.progress();
        while let Some(message) = many.try_next() {
            let status = message.status().unwrap();
            assert!(many.bytes(&message) == bytes(status.tag, LENS[status.tag as usize]));
            assert!(!std::mem::replace(&mut seen[status.tag as usize], true), "once");
        }
    }
    // Too little room is left: the next message is for another receive.
    assert!(many.is_done() && many.wait_next().is_none() && !many.cancel());
    sends.into_iter().for_each(|send| send.wait().0.unwrap());
    pair.ab.tag_send(9, bytes(9, 10)).wait().0.unwrap();
    pair.until(|| pair.b.probe(Match::tagged(9, TAG_MASK_FULL)).is_some());
    let (end, buf) = many.finish();
    assert_eq!((end, buf.len()), (Ok(()), all + 10));
    assert_eq!(pair.b.discard(Match::tagged(9, TAG_MASK_FULL)).map(|found| found.len), Some(10));
    assert_eq!(pair.b.discard(Match::tagged(9, TAG_MASK_FULL)), None);
    assert_eq!(pair.b.diagnostics().held_bytes(), 0);
}

/// A vector of which nothing was filled is as long as what has come; one that is longer stays so.
fn the_buffer_comes_back_with_its_bytes(tls: &str) {
    let pair = Pair::on(tls);
    pair.meet();
    for buf in [Vec::with_capacity(5000), vec![7; 5000]] {
        let before = buf.len();
        let many = pair.b.recv_multi(Match::tagged(1, TAG_MASK_FULL), buf, 1000).unwrap();
        let sends: Vec<_> = (1..=3).map(|n| pair.ab.tag_send_sync(1, bytes(n, 1000))).collect();
        pair.until(|| sends.iter().all(|send| send.is_done()));
        let (ended, buf) = many.finish();
        assert_eq!((ended, buf.len()), (Ok(()), before.max(3000)));
        (1..=3).for_each(|n| assert!(buf[(n - 1) * 1000..n * 1000] == bytes(n as u64, 1000)));
    }
}

/// Counts its calls.
#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// The watcher is woken once a message and once at the end, also beside a future.
fn the_watcher_is_woken(tls: &str) {
    let pair = Pair::on(tls);
    pair.meet();
    let (count, of_future) = (Arc::new(Count::default()), Arc::new(Count::default()));
    let watcher = Waker::from(count.clone());
    let params = MultiRecvParams { min_room: 10, watcher: Some(&watcher), ..MultiRecvParams::default() };
    let mut many = pair.b.recv_multi(Match::tagged(1, TAG_MASK_FULL), vec![0; 100], params).unwrap();
    drop(watcher);
    let calls = || count.0.load(Ordering::Relaxed);
    let mut next = Box::pin(many.next_message());
    let waker = Waker::from(of_future.clone());
    assert!(next.as_mut().poll(&mut std::task::Context::from_waker(&waker)).is_pending());
    drop(next);
    for n in 1..=4 {
        assert_eq!(calls(), n - 1);
        // The fourth leaves no room.
        let send = pair.ab.tag_send_sync(1, bytes(1, if n < 4 { 20 } else { 35 }));
        pair.until(|| send.is_done() && calls() >= n);
    }
    pair.until(|| many.is_done() && calls() == 5);
    assert_eq!(of_future.0.load(Ordering::Relaxed), 1);
    assert_eq!(std::iter::from_fn(|| many.try_next()).count(), 4);
    drop(many);
    assert_eq!(Arc::strong_count(&count), 1, "the receive keeps no waker behind its end");
}

fn requests_cancelled_in_flight(tls: &str) {
    let pair = Pair::on(tls);
    pair.meet();
    for drops in [false, true] {
        let mut many = pair.b.recv_multi(Match::tagged(1, TAG_MASK_FULL), vec![0u8; 300_000], 1000).unwrap();
        let send = pair.ab.tag_send_sync(1, bytes(1, 250_000));
        for _ in 0..50 {
            pair.a.progress();
            pair.b.progress();
        }
        if drops {
            drop(many);
        } else {
            assert!(many.cancel() && !many.cancel());
            pair.until(|| many.is_done());
            let message = many.try_next().unwrap();
            assert!(many.bytes(&message) == bytes(1, 250_000));
            assert_eq!(many.finish().0, Err(Error::Cancelled));
        }
        pair.until(|| send.is_done());
        assert_eq!(send.wait().0, Ok(()));
        // Messages that it does not take stay for others.
        let later = pair.ab.tag_send(1, bytes(2, 10));
        let recv = pair.b.tag_recv(1, TAG_MASK_FULL, vec![0; 10]);
        pair.until(|| recv.is_done());
        assert!(recv.wait().1 == bytes(2, 10));
        later.wait().0.unwrap();
    }
    pair.settle();
    assert_eq!((pair.b.diagnostics().requests(), pair.b.diagnostics().held_bytes()), (0, 0));
}

fn too_long_messages_are_truncated(tls: &str) {
    let pair = Pair::on(tls);
    let mut many = pair.b.recv_multi(Match::untagged(), vec![0u8; 100], 1).unwrap();
    let sends = [pair.ab.msg_send(bytes(1, 60)), pair.ab.msg_send(bytes(2, 60))];
    pair.until(|| many.is_done());
    let parts = [many.try_next().unwrap(), many.try_next().unwrap()];
    assert_eq!(parts[1].status(), Err(Error::Truncated { len: 60, room: 40 }));
    assert!(many.bytes(&parts[0]) == bytes(1, 60) && *many.bytes(&parts[1]) == bytes(2, 60)[..40]);
    let other = pair.b.recv_multi(Match::untagged(), vec![0u8; 100], 1).unwrap();
    assert!(other.bytes(&parts[0]).is_empty(), "another buffer's");
    sends.into_iter().for_each(|send| send.wait().0.unwrap());
    // As a future: all messages until it is used up.
    let mut third = pair.b.recv_multi(Match::tagged(3, TAG_MASK_FULL), vec![0u8; 30], 10).unwrap();
    let sends: Vec<_> = (0..3).map(|_| pair.ab.tag_send(3, bytes(3, 10))).collect();
    pair.settle();
    let count = pair.b.block_on(async {
        let mut count = 0;
        while let Some(message) = third.next_message().await {
            assert!(third.bytes(&message) == bytes(3, 10));
            count += 1;
        }
        count
    });
    assert_eq!(count, 3);
    sends.into_iter().for_each(|send| send.wait().0.unwrap());
}

on! {
    [multi_packet_messages_arrive_whole requests_cancelled_in_flight too_long_messages_are_truncated
     the_buffer_comes_back_with_its_bytes the_watcher_is_woken]
    loopback: "self",
    posix: "posix",
    efa: "soft",
    shared_posix: "shared posix",
    shared_efa: "shared efa",
}
