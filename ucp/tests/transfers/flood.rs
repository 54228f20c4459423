//! A sender faster than a receiver that posts nothing: memory stays within `UCX_UNEXP_MEM`, flow control
//! holds the sender back, nothing is lost, and an expected message still arrives.

use crate::common::{Pair, bytes, runs_in_own_process};
use ucp::{ANY_TAG, Context, Error, Match, SendRequest, TAG_MASK_FULL};
use ucs::config::Source;

const LIMIT: usize = 256 << 10;
const LEN: usize = 3000;

fn pair(tls: &str) -> Pair {
    let source = Source::empty().with("UCX_TLS", tls).with("UCX_UNEXP_MEM", "256k");
    let context = Context::configured(source.with("UCX_NET_DEVICES", "softefa0")).unwrap();
    Pair::of(context.worker().unwrap(), context.worker().unwrap())
}

fn flood(pair: &Pair, count: u64) -> Vec<SendRequest<Vec<u8>>> {
    let mut sends: Vec<_> = (0..count).map(|n| pair.ab.tag_send(n, bytes(n, LEN))).collect();
    for _ in 0..5_000 {
        pair.a.progress();
        pair.b.progress();
        sends.retain_mut(|send| !send.is_done());
    }
    sends
}

fn unexpected_messages_stay_below_the_limit(tls: &str) {
    let pair = pair(tls);
    let count = 4_000;
    let mut left = flood(&pair, count);
    let cost = pair.b.diagnostics().unexpected_bytes();
    // A batch may have been in progress when the limit was reached.
    assert!(cost > LIMIT && cost < LIMIT + 64 * 8192, "{cost} bytes");
    assert!(!left.is_empty(), "the sender is held back");
    assert!(pair.b.stats().rare.poll_stops > 0);
    for n in 0..count {
        let recv = pair.b.tag_recv(n, TAG_MASK_FULL, vec![0; LEN]);
        pair.until(|| recv.is_done());
        assert!(recv.wait().1 == bytes(n, LEN), "message {n}");
        left.retain_mut(|send| !send.is_done());
    }
    pair.until(|| left.iter_mut().all(|send| send.is_done()));
    assert_eq!((pair.b.diagnostics().unexpected_bytes(), pair.b.diagnostics().held_bytes()), (0, 0));
}

fn expected_message_arrives_during_a_flood(tls: &str) {
    let pair = pair(tls);
    let left = flood(&pair, 2000);
    let last = pair.ab.tag_send(1 << 40, bytes(1, 100));
    let recv = pair.b.tag_recv(1 << 40, TAG_MASK_FULL, vec![0; 100]);
    pair.until(|| recv.is_done());
    assert!(recv.wait().1 == bytes(1, 100));
    assert!(pair.b.stats().rare.over_limit > 0, "and what it cost is counted");
    last.wait().0.unwrap();
    left.into_iter().for_each(|send| send.wait().0.unwrap());

    // A probe counts as waiting, too.
    let left = flood(&pair, 1000);
    let last = pair.ab.tag_send(1 << 41, bytes(1, 100));
    pair.until(|| pair.b.probe(Match::tagged(1 << 41, TAG_MASK_FULL)).is_some());
    drop((left, last));
    let mut count = 0;
    while let Some(message) = pair.b.mprobe(Match::tagged(0, ANY_TAG)) {
        drop(message);
        count += 1;
    }
    pair.settle();
    assert!(count >= 2001, "{count}");
}

/// A sender that is no faster than the receiver's calls of progress, each of which finds one message, is held
/// back at the limit, too: a limit for closing peers that is little above it is not reached.
#[test]
fn one_message_a_call_is_held_back_at_the_limit() {
    let source = Source::empty().with("UCX_TLS", "posix").with("UCX_PROGRESS_BATCH", "1");
    let source = source.with("UCX_UNEXP_MEM", "256k").with("UCX_UNEXP_MAX", "256k");
    let context = Context::configured(source).unwrap();
    let pair = Pair::of(context.worker().unwrap(), context.worker().unwrap());
    let mut left = Vec::new();
    let count = 2_000;
    for n in 0..count {
        left.push(pair.ab.tag_send(n, bytes(n, LEN)));
        pair.a.progress();
        pair.b.progress();
        left.retain_mut(|send| !send.is_done());
    }
    let cost = pair.b.diagnostics().unexpected_bytes();
    assert!(cost > LIMIT && cost < LIMIT + 4 * 8192, "{cost} bytes");
    assert!(!left.is_empty(), "the sender is held back");
    for n in 0..count {
        let recv = pair.b.tag_recv(n, TAG_MASK_FULL, vec![0; LEN]);
        pair.until(|| recv.is_done());
        let (result, got) = recv.wait();
        assert!(result.is_ok() && got == bytes(n, LEN), "message {n}: {result:?}");
    }
    left.into_iter().for_each(|send| send.wait().0.unwrap());
}

/// `UCX_UNEXP_MAX` is never exceeded, whatever is expected; the peer that sends more fails with an error.
fn flood_memory_is_bounded(tls: &str) {
    const MOST: usize = 2 << 20;
    let source =
        Source::empty().with("UCX_TLS", tls).with("UCX_UNEXP_MEM", "256k").with("UCX_UNEXP_MAX", "2m");
    let context = Context::configured(source.with("UCX_NET_DEVICES", "softefa0")).unwrap();
    let pair = Pair::of(context.worker().unwrap(), context.worker().unwrap());
    let from = Match::tagged(1 << 40, TAG_MASK_FULL).from(&pair.ba);
    let recv = pair.b.recv(from, vec![0; 100]);
    let left = flood(&pair, 2000);
    assert!(
        pair.b.diagnostics().unexpected_bytes() <= MOST && pair.b.diagnostics().unexpected_bytes() > MOST / 2
    );
    pair.until(|| recv.is_done());
    assert_eq!(recv.wait().0.map(drop), Err(Error::OverLimit(pair.ba.peer())));
    let first = pair.b.tag_recv(0, TAG_MASK_FULL, vec![0; LEN]);
    pair.until(|| first.is_done());
    assert!(first.wait().1 == bytes(0, LEN), "what was kept can be received");
    left.into_iter().for_each(SendRequest::detach);
}

#[test]
fn flood_memory_is_bounded_on_shared_memory() {
    flood_memory_is_bounded("posix");
}

#[test]
fn flood_memory_is_bounded_on_efa() {
    flood_memory_is_bounded("efa");
}

#[test]
fn unexpected_messages_stay_below_the_limit_on_shared_memory() {
    unexpected_messages_stay_below_the_limit("posix");
}

#[test]
fn unexpected_messages_stay_below_the_limit_on_efa() {
    unexpected_messages_stay_below_the_limit("efa");
}

#[test]
fn expected_message_arrives_on_shared_memory() {
    expected_message_arrives_during_a_flood("posix");
}

#[test]
fn expected_message_arrives_on_efa() {
    expected_message_arrives_during_a_flood("efa");
}

/// Memory that this process uses, bytes.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

/// Once many short messages that came unexpected are received, their memory is given back. In a process of
/// its own, as it looks at the memory of the process.
#[test]
fn memory_of_unexpected_messages_is_given_back() {
    if runs_in_own_process("flood::memory_of_unexpected_messages_is_given_back") {
        return;
    }
    const MESSAGES: u64 = 300_000;
    let pair = Pair::on("posix");
    pair.meet();
    pair.settle();
    let before = resident();
    for n in 0..MESSAGES {
        let send = pair.ab.tag_send(n, n.to_le_bytes().to_vec());
        pair.until(|| send.is_done());
        assert_eq!(send.wait().0, Ok(()));
    }
    pair.settle();
    let full = resident() - before;
    for n in 0..MESSAGES {
        let recv = pair.b.tag_recv(n, TAG_MASK_FULL, vec![0; 8]);
        pair.until(|| recv.is_done());
        assert_eq!(recv.wait().1, n.to_le_bytes());
    }
    // The worker looks now and then.
    (0..1000).for_each(|_| _ = pair.b.progress());
    let left = resident().saturating_sub(before);
    assert!(full > 40 << 20, "{full}");
    assert!(left < 12 << 20, "{left} of {full} bytes are left");
}
