//! Credit that a sender has kept from its last message, while others have claimed any number of entries.

use super::*;
use crate::efa::dev::soft::link::{Msg, RemoteQp, SendBuf, Sender, TryOutcome};

/// Claims after which the difference to a kept credit changes its sign.
const HALF: u32 = 1 << 31;

#[test]
fn an_old_credit_counts_within_a_ring_only() {
    for posted in [0, 5, HALF - 1, u32::MAX] {
        let is_below = |index: u32| ring::is_below(index, posted, 8);
        assert!((1..=8).all(|behind| is_below(posted.wrapping_sub(behind))), "{posted}");
        assert!(!is_below(posted) && !is_below(posted.wrapping_sub(9)), "{posted}");
        assert!(!is_below(posted.wrapping_add(HALF + 5)), "{posted}");
    }
}

/// Moves a ring on by 2^31 + 5 claims, all of which have been taken.
fn move_on(head: &seg::Head, credit: &seg::Credit, posted: u32) {
    let index = (head.word.load(Relaxed) as u32).wrapping_add(HALF + 5);
    head.word.store(u64::from(std::process::id()) << 32 | u64::from(index), Relaxed);
    credit.taken.store(index, Relaxed);
    credit.posted.store(index.wrapping_add(posted), Relaxed);
}

#[test]
fn a_sender_with_wrapped_credit_rereads_it() {
    let (side, _, seg) = side();
    let remote = side.dev.link().attach(side.dev.gid().iid(), side.qp.qpn(), QpKind::Srd).ok().unwrap();
    let from = Sender { iid: side.dev.gid().iid(), qpn: 1, kind: QpKind::Srd };
    let sends = || {
        let msg = Msg { bufs: [SendBuf::of(b"message"), SendBuf::EMPTY], imm: None };
        remote.send(from, &msg)
    };
    side.recv(1);
    assert!(matches!(sends(), TryOutcome::Done(DevStatus::Ok)));
    assert_eq!(side.received(1), [(1, 7, DevStatus::Ok)]);
    move_on(&seg.hdr().head, &seg.hdr().credit, 0);
    assert!(matches!(sends(), TryOutcome::NotReady), "there is no receive");
    move_on(&seg.hdr().head, &seg.hdr().credit, 1);
    assert!(matches!(sends(), TryOutcome::Done(DevStatus::Ok)), "there is one");
}
