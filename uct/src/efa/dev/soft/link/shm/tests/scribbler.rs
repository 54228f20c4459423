//! A process that overwrites one word of a queue pair's segment: traffic goes on, or the queue pair fails
//! with a status within ten seconds, and its senders find it gone.

use super::*;
use std::time::Instant;

const LIMIT: Duration = Duration::from_secs(10);

/// Sends and receives until all of some messages have arrived (true), or receiver and sender have a status.
fn goes_on(side: &Side, sender: &Side, why: &str) -> bool {
    let to =
        Dest { ah: sender.dev.create_ah(&sender.pd, side.dev.gid()).unwrap(), qpn: side.qp.qpn(), qkey: 1 };
    let (start, mut arrived, mut failed) = (Instant::now(), 0, None);
    let (mut sent, mut refused, mut open) = (0, None, 0);
    let mut out = [Cqe::EMPTY; 4];
    loop {
        if open < 4
            && sent < 100
            && refused.is_none()
            && sender.qp.send_inline(&to, 1, b"message", None).is_ok()
        {
            open += 1;
        }
        let n = sender.cq.poll(&mut out);
        for cqe in &out[..n] {
            open -= 1;
            match cqe.status {
                DevStatus::Ok => sent += 1,
                status => refused = Some(status),
            }
        }
        let n = side.cq.poll(&mut out);
        for cqe in &out[..n] {
            match cqe.status {
                DevStatus::Ok => arrived += 1,
                status => failed = failed.or(Some(status)),
            }
            if failed.is_none() {
                side.recv(cqe.wr_id);
            }
        }
        if arrived >= 100 && sent >= 100 && failed.is_none() {
            return true;
        }
        if failed.is_some() && (refused.is_some() || sent >= 100) {
            assert!(matches!(failed, Some(DevStatus::QpInternal)), "{why}: {failed:?} {refused:?}");
            return false;
        }
        let state = (arrived, sent, failed, refused);
        assert!(start.elapsed() < LIMIT, "{why}: nothing happens: {state:?}");
    }
}

fn scribble(why: &str, word: fn(&QpSeg), may_go_on: bool) {
    let (side, _, seg) = side();
    let (sender, ..) = super::side();
    side.dev.create_ah(&side.pd, sender.dev.gid()).unwrap();
    (0..6).for_each(|n| side.recv(n));
    word(&seg);
    assert!(!goes_on(&side, &sender, why) || may_go_on, "{why}: went on");
}

#[test]
fn words_of_a_queue_pair() {
    scribble("nothing", |_| {}, true);
    scribble("head far ahead", |seg| _ = seg.hdr().head.word.fetch_add(1 << 20, Relaxed), false);
    scribble("head back", |seg| seg.hdr().head.word.store(0xffff_fff0, Relaxed), false);
    scribble("head closed", |seg| _ = seg.hdr().head.word.fetch_or(ring::CLOSED, Relaxed), false);
    scribble("a claim that nobody made", |seg| _ = seg.hdr().head.word.fetch_add(1, Relaxed), true);
    scribble("credit far ahead", |seg| _ = seg.hdr().credit.posted.fetch_add(1 << 20, Relaxed), true);
    scribble("no credit", |seg| seg.hdr().credit.posted.store(0, Relaxed), true);
    scribble("length of receives", |seg| seg.hdr().credit.min_recv_len.store(3, Relaxed), true);
    scribble("direct receives", |seg| seg.hdr().credit.direct.store(7, Relaxed), true);
    scribble("taken claims", |seg| seg.hdr().credit.taken.store(1 << 20, Relaxed), true);
    scribble("armed", |seg| seg.hdr().armed.flag.store(1, Relaxed), true);
    scribble("a published claim", |seg| seg.desc(0).seq.store(1, Relaxed), true);
    scribble("a receive", |seg| seg.recv_wqe(0).len_lkey.store(u64::MAX, Relaxed), true);
}
