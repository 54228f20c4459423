//! Tagged messages between two workers of one thread on every lane: every kind of call, byte for byte.

use crate::common::{Pair, bytes};
use ucp::{ANY_TAG, Error, Match, TAG_MASK_FULL};

/// Sizes around every change of protocol on every lane, and some between.
const SIZES: [usize; 20] = [
    0, 1, 7, 8, 9, 31, 40, 63, 64, 500, 4000, 8192, 8391, 8392, 8393, 8900, 20_000, 65_536, 65_537, 1_000_000,
];

fn all_sizes_arrive(tls: &str) {
    let pair = Pair::on(tls);
    for (n, len) in SIZES.into_iter().enumerate() {
        let tag = n as u64;
        let sent = bytes(tag, len);
        let recv = pair.b.tag_recv(tag, TAG_MASK_FULL, Vec::with_capacity(len));
        let send = pair.ab.tag_send(tag, sent.clone());
        pair.until(|| recv.is_done() && send.is_done());
        let (status, got) = recv.wait();
        assert_eq!(status.map(|s| (s.len, s.tag)), Ok((len, tag)));
        assert!(got == sent, "expected message of {len} bytes differs");
        let (result, back) = send.wait();
        assert_eq!(result, Ok(()));
        assert!(back == sent);
        // Unexpected: the message comes first, in the other direction, from a shared buffer.
        let send = pair.ba.tag_send(tag, std::rc::Rc::<[u8]>::from(sent.as_slice()));
        pair.until(|| pair.a.probe(Match::tagged(tag, TAG_MASK_FULL)).is_some());
        let recv = pair.a.tag_recv(tag, TAG_MASK_FULL, vec![0; len].into_boxed_slice());
        pair.until(|| recv.is_done());
        let (status, got) = recv.wait();
        assert_eq!(status.map(|s| (s.len, s.tag)), Ok((len, tag)));
        assert!(got[..] == sent[..], "unexpected message of {len} bytes differs");
        let send = send;
        pair.until(|| send.is_done());
        assert_eq!(send.wait().0, Ok(()));
    }
    pair.settle();
    assert_eq!((pair.a.diagnostics().requests(), pair.b.diagnostics().requests()), (0, 0));
}

fn order_and_wildcards(tls: &str) {
    let pair = Pair::on(tls);
    let sends: Vec<_> = (0..500u64).map(|n| pair.ab.tag_send(n, n.to_le_bytes().to_vec())).collect();
    for n in 0..500u64 {
        // Any tag, the low bit only, and exactly this one, in turn: always the oldest left.
        let (tag, mask) = [(0xdead, ANY_TAG), (n, 1), (n, TAG_MASK_FULL)][n as usize % 3];
        let recv = pair.b.tag_recv(tag, mask, Vec::with_capacity(8));
        pair.until(|| recv.is_done());
        let (status, got) = recv.wait();
        assert_eq!(status.map(|s| s.tag), Ok(n));
        assert_eq!(got, n.to_le_bytes());
    }
    for send in sends {
        pair.until(|| send.is_done());
    }
}

fn untagged_do_not_match_tagged(tls: &str) {
    let pair = Pair::on(tls);
    let tagged = pair.b.tag_recv(0, ANY_TAG, Vec::with_capacity(8));
    let plain = pair.b.msg_recv(Vec::with_capacity(8));
    pair.ab.msg_send("plain").detach();
    pair.until(|| plain.is_done());
    assert!(!tagged.is_done());
    pair.ab.tag_send(3, "tagged").detach();
    pair.until(|| tagged.is_done());
    assert_eq!(plain.wait().1, b"plain");
    assert_eq!(tagged.wait().1, b"tagged");
}

fn truncation_is_reported_and_contained(tls: &str) {
    let pair = Pair::on(tls);
    for len in [9, 8192, 30_000, 200_000] {
        for early in [true, false] {
            let mut recv = early.then(|| pair.b.tag_recv(1, TAG_MASK_FULL, vec![0; 8].into_boxed_slice()));
            let send = pair.ab.tag_send(1, bytes(1, len));
            if !early {
                pair.until(|| pair.b.probe(Match::tagged(1, TAG_MASK_FULL)).is_some());
                recv = Some(pair.b.tag_recv(1, TAG_MASK_FULL, vec![0; 8].into_boxed_slice()));
            }
            let recv = recv.unwrap();
            pair.until(|| recv.is_done() && send.is_done());
            let (status, got) = recv.wait();
            assert_eq!(status, Err(Error::Truncated { len: len as u64, room: 8 }));
            assert_eq!(got[..], bytes(1, len)[..8]);
            assert_eq!(send.wait().0, Ok(()));
        }
    }
    let recv = pair.b.tag_recv(2, TAG_MASK_FULL, Vec::with_capacity(3));
    pair.ab.tag_send(2, "end").detach();
    pair.until(|| recv.is_done());
    assert_eq!(recv.wait().1, b"end");
}

// [M6.1]
fn sync_send_completes_after_the_match(tls: &str) {
    let pair = Pair::on(tls);
    for len in [0, 100, 20_000, 300_000] {
        let send = pair.ab.tag_send_sync(5, bytes(5, len));
        pair.until(|| pair.b.probe(Match::tagged(5, TAG_MASK_FULL)).is_some());
        pair.settle();
        assert!(!send.is_done(), "{len} bytes: nobody has received it");
        let recv = pair.b.tag_recv(5, TAG_MASK_FULL, Vec::with_capacity(len));
        pair.until(|| recv.is_done() && send.is_done());
        assert_eq!(send.wait().0, Ok(()));
        assert!(recv.wait().1 == bytes(5, len));
    }
}

fn probes(tls: &str) {
    let pair = Pair::on(tls);
    assert_eq!(pair.b.probe(Match::tagged(0, ANY_TAG)), None);
    for len in [10, 20_000, 200_000] {
        let send = pair.ab.tag_send(7, bytes(7, len));
        pair.until(|| pair.b.probe(Match::tagged(7, TAG_MASK_FULL)).is_some());
        assert_eq!(pair.b.probe(Match::tagged(8, TAG_MASK_FULL)), None);
        assert_eq!(pair.b.probe(Match::untagged()), None);
        let seen = pair.b.probe(Match::tagged(7, TAG_MASK_FULL)).unwrap();
        assert_eq!((seen.len, seen.tag), (len as u64, 7));
        assert!(pair.b.probe(Match::tagged(7, TAG_MASK_FULL).from(&pair.ba)).is_some());
        let message = pair.b.mprobe(Match::tagged(7, TAG_MASK_FULL)).unwrap();
        assert_eq!(message.envelope(), seen);
        assert_eq!(pair.b.probe(Match::tagged(7, TAG_MASK_FULL)), None);
        let other = pair.b.tag_recv(7, TAG_MASK_FULL, Vec::with_capacity(len));
        let recv = message.recv(Vec::with_capacity(len));
        pair.until(|| recv.is_done() && send.is_done());
        assert!(recv.wait().1 == bytes(7, len));
        assert!(other.cancel());
    }
    // A probed message that is dropped is gone, and its send completes.
    let send = pair.ab.tag_send_sync(9, bytes(9, 100_000));
    pair.until(|| pair.b.probe(Match::tagged(9, TAG_MASK_FULL)).is_some());
    drop(pair.b.mprobe(Match::tagged(9, TAG_MASK_FULL)));
    pair.until(|| send.is_done());
    assert_eq!(pair.b.probe(Match::tagged(9, TAG_MASK_FULL)), None);
}

fn cancelled_and_dropped_receives_match_nothing(tls: &str) {
    let pair = Pair::on(tls);
    let cancelled = pair.b.tag_recv(1, TAG_MASK_FULL, Vec::with_capacity(8));
    assert!(cancelled.cancel());
    assert_eq!(cancelled.wait().0, Err(Error::Cancelled));
    drop(pair.b.tag_recv(1, TAG_MASK_FULL, Vec::with_capacity(8)));
    pair.ab.tag_send(1, "first").detach();
    let recv = pair.b.tag_recv(1, TAG_MASK_FULL, Vec::with_capacity(8));
    pair.until(|| recv.is_done());
    assert!(!recv.cancel(), "ended already");
    assert_eq!(recv.wait().1, b"first");
    pair.settle();
    assert_eq!(pair.b.diagnostics().requests(), 0);
}

fn dropped_sends_arrive(tls: &str) {
    let pair = Pair::on(tls);
    for len in [10, 20_000, 500_000] {
        drop(pair.ab.tag_send(4, bytes(4, len)));
        let recv = pair.b.tag_recv(4, TAG_MASK_FULL, Vec::with_capacity(len));
        pair.until(|| recv.is_done());
        assert!(recv.wait().1 == bytes(4, len));
    }
    pair.settle();
    assert_eq!((pair.a.diagnostics().requests(), pair.b.diagnostics().requests()), (0, 0));
}

fn worker_sends_to_itself(tls: &str) {
    let context = crate::common::context(crate::common::ends(tls).0);
    let worker = context.worker().unwrap();
    let ep = worker.connect(&worker.address(), Default::default()).unwrap();
    for len in SIZES {
        let send = ep.tag_send_sync(1, bytes(1, len));
        let recv = worker.tag_recv(1, TAG_MASK_FULL, Vec::with_capacity(len));
        crate::common::spin(&[&worker], &mut || send.is_done() && recv.is_done());
        assert!(recv.wait().1 == bytes(1, len), "{len} bytes");
    }
}

fn callbacks_may_start_operations(tls: &str) {
    use std::cell::Cell;
    use std::rc::Rc;
    let pair = Rc::new(Pair::on(tls));
    let rounds = Rc::new(Cell::new(0u64));
    /// Answers each message by one a byte longer, a hundred times.
    fn bounce(pair: Rc<Pair>, rounds: Rc<Cell<u64>>) {
        let (p, r) = (pair.clone(), rounds.clone());
        pair.b.tag_recv(0, ANY_TAG, Vec::with_capacity(1000)).then(move |status, buf| {
            assert_eq!(status.map(|s| s.tag), Ok(r.get()));
            r.set(r.get() + 1);
            if r.get() < 100 {
                bounce(p.clone(), r.clone());
                let mut longer = buf;
                longer.push(0);
                p.ab.tag_send(r.get(), longer).then(|result, _| result.unwrap());
            }
            p.b.progress();
        });
    }
    bounce(pair.clone(), rounds.clone());
    pair.ab.tag_send(0, "go").detach();
    pair.until(|| rounds.get() == 100);
}

fn many_at_a_time(tls: &str) {
    let pair = Pair::on(tls);
    let mut recvs: Vec<_> =
        (0..2000u64).map(|n| pair.b.tag_recv(n, TAG_MASK_FULL, Vec::with_capacity(3000))).collect();
    let mut sends: Vec<_> =
        (0..2000u64).rev().map(|n| pair.ab.tag_send(n, bytes(n, 1 + n as usize))).collect();
    pair.until(|| recvs.iter_mut().all(|r| r.is_done()) && sends.iter_mut().all(|s| s.is_done()));
    for (n, recv) in recvs.into_iter().enumerate() {
        assert!(recv.wait().1 == bytes(n as u64, 1 + n));
    }
}

fn borrowed_and_immediate(tls: &str) {
    let pair = Pair::on(tls);
    let out = bytes(3, 3000);
    let mut back = vec![0; 3000];
    pair.b.scope(|scope| {
        let recv = scope.tag_recv(3, TAG_MASK_FULL, &mut back);
        if let Err(send) = pair.ab.tag_inject(3, &out) {
            pair.until(|| send.is_done());
        }
        pair.until(|| recv.is_done());
        assert_eq!(recv.wait().map(|s| s.len), Ok(3000));
    });
    assert!(back == out);
    // A scope cancels what is pending when its function panics.
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        pair.b.scope(|scope| {
            let _ = scope.tag_recv(99, TAG_MASK_FULL, &mut back);
            panic!("on purpose");
        })
    }));
    assert!(panicked.is_err());
    assert_eq!(pair.b.diagnostics().requests(), 0);
}

/// Ids of a scope's operations are reused: the new operations do not belong to the scope.
fn scope_drops_completed_requests(tls: &str) {
    let pair = Pair::on(tls);
    // Outlives the scope. More than a slot has ids.
    let rooms = vec![[0; 8]; 5000].leak();
    let mut outer = None;
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        pair.b.scope(|scope| {
            for room in rooms {
                let recv = scope.tag_recv(3, TAG_MASK_FULL, room);
                pair.ab.tag_send(3, "8 bytes.").detach();
                pair.until(|| recv.is_done());
                recv.wait().unwrap();
            }
            outer = Some(pair.b.tag_recv(4, TAG_MASK_FULL, Vec::with_capacity(8)));
            panic!("on purpose");
        })
    }));
    assert!(panicked.is_err());
    let outer = outer.unwrap();
    pair.ab.tag_send(4, "for it").detach();
    pair.until(|| outer.is_done());
    assert_eq!(outer.wait().1, b"for it");
}

/// A worker with unreported completions does not sleep.
fn completions_are_reported_before_sleep(tls: &str) {
    let pair = Pair::on(tls);
    pair.settle();
    let recv = pair.b.tag_recv(1, TAG_MASK_FULL, Vec::with_capacity(8));
    let slept = (0..1000).any(|_| pair.b.progress() == 0 && pair.b.arm());
    assert!(slept, "nothing happens");
    assert!(recv.cancel() && !pair.b.arm());
    assert_eq!(pair.b.wait(None), Ok(ucp::WaitStatus::Ready));
    assert_eq!(recv.wait().0, Err(Error::Cancelled));
}

fn flush_and_close(tls: &str) {
    let pair = Pair::on(tls);
    let recv = pair.b.tag_recv(1, TAG_MASK_FULL, Vec::with_capacity(200_000));
    pair.ab.tag_send(1, bytes(1, 200_000)).detach();
    let flush = pair.ab.flush();
    pair.until(|| flush.is_done());
    assert_eq!(flush.wait(), Ok(()));
    pair.until(|| recv.is_done());
    let all = pair.b.flush();
    pair.until(|| all.is_done());
    assert_eq!(all.wait(), Ok(()));
    let Pair { a, b, ab, .. } = pair;
    let second = a.connect(&b.address(), Default::default()).unwrap();
    let close = ab.close(ucp::CloseMode::Flush(std::time::Duration::from_secs(60)));
    crate::common::spin(&[&a, &b], &mut || close.is_done());
    assert_eq!(close.wait(), Ok(()));
    // Closing one endpoint does not affect another to the same peer.
    second.tag_send(8, "still here").detach();
    let recv = b.tag_recv(8, TAG_MASK_FULL, Vec::with_capacity(16));
    crate::common::spin(&[&a, &b], &mut || recv.is_done());
    assert_eq!(recv.wait().1, b"still here");
}

on! {
    [all_sizes_arrive order_and_wildcards untagged_do_not_match_tagged truncation_is_reported_and_contained
     sync_send_completes_after_the_match probes cancelled_and_dropped_receives_match_nothing dropped_sends_arrive
     worker_sends_to_itself callbacks_may_start_operations many_at_a_time borrowed_and_immediate
     scope_drops_completed_requests completions_are_reported_before_sleep flush_and_close]
    loopback: "self",
    posix: "posix",
    efa: "efa",
    all: "all",
    own_contexts: "apart all",
    shared_posix: "shared posix",
    shared_efa: "shared efa",
    // On libibverbs, and between that and the native device: under `softefa run`, see `tests/run verbs`.
    #[cfg(feature = "verbs")]
    verbs: "verbs",
    #[cfg(feature = "verbs")]
    verbs_to_soft: "verbs|soft",
    #[cfg(feature = "verbs")]
    soft_to_verbs: "soft|verbs",
}
