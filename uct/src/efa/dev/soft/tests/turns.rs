//! Sources of one completion queue take turns: none waits while others fill every poll.

use super::*;

/// Completions that one poll takes.
const BATCH: usize = 16;

fn deep_pair() -> (Fabric, Side, Side) {
    pair(|profile, init| {
        profile.attr.max_send_depth = 64;
        profile.attr.max_recv_depth = 64;
        (init.send_depth, init.recv_depth) = (64, 64);
    })
}

/// A further queue pair on the completion queue of `side`, for which a message waits.
fn second_qp_with_a_message(side: &Side, from: &Side) -> Qp<Inproc> {
    let init = QpInit {
        kind: QpKind::Srd,
        send_depth: 8,
        recv_depth: 8,
        qkey: QKEY,
        rnr_retry: 7,
        unsolicited_write_recv: false,
    };
    let qp = side.dev.create_qp(&side.pd, &side.cq, &side.cq, &init).unwrap();
    qp.recv(u64::MAX, side.sge(0, 8)).unwrap();
    let to = Dest { qpn: qp.qpn(), ..from.to(side) };
    from.qp.send_inline(&to, 1, b"stop", None).unwrap();
    assert_eq!(from.status(), DevStatus::Ok);
    qp
}

/// Polls after each `busy`, which must complete a whole batch, until the message of the second queue pair.
fn polls_until_the_message(side: &Side, second: &Qp<Inproc>, mut busy: impl FnMut()) -> usize {
    for polls in 1..=100 {
        busy();
        let got = side.poll_all();
        if got.iter().any(|cqe| cqe.qpn == second.qpn() && cqe.op == CqeOp::Recv) {
            return polls;
        }
        assert_eq!(got.len(), BATCH, "not busy");
    }
    panic!("no poll has found the message");
}

#[test]
fn completions_of_requests_do_not_starve_arrivals() {
    let (_f, a, b) = deep_pair();
    let second = second_qp_with_a_message(&a, &b);
    let (to, _back) = (a.to(&b), b.to(&a));
    let there = b.mr.addr() as u64;
    let busy =
        || (0..BATCH as u64).for_each(|n| a.qp.write(&to, n, a.sge(0, 8), there, b.mr.rkey(), None).unwrap());
    assert!(polls_until_the_message(&a, &second, busy) <= 4);
}

#[test]
fn arrivals_of_one_queue_pair_do_not_starve_those_of_another() {
    let (_f, a, b) = deep_pair();
    let second = second_qp_with_a_message(&a, &b);
    let to = b.to(&a);
    let busy = || {
        for n in 0..BATCH as u64 {
            a.qp.recv(n, a.sge(64, 8)).unwrap();
            b.qp.send_inline(&to, n, b"more", None).unwrap();
        }
        assert_eq!(b.poll_all().len(), BATCH);
    };
    assert!(polls_until_the_message(&a, &second, busy) <= 4);
}

/// Turns change nothing but the order: each completion comes once.
#[test]
fn every_completion_comes_once() {
    let (_f, a, b) = deep_pair();
    let second = second_qp_with_a_message(&a, &b);
    let (to, back) = (a.to(&b), b.to(&a));
    let there = b.mr.addr() as u64;
    for n in 0..40 {
        a.qp.write(&to, n, a.sge(0, 8), there, b.mr.rkey(), None).unwrap();
        a.qp.recv(100 + n, a.sge(64, 8)).unwrap();
        b.qp.send_inline(&back, n, b"more", None).unwrap();
    }
    let mut got: Vec<u64> = Vec::new();
    for max in (1..=3).cycle().take(60) {
        let mut out = [Cqe::EMPTY; 3];
        let n = a.cq.poll(&mut out[..max]);
        got.extend(out[..n].iter().map(|cqe| cqe.wr_id));
    }
    got.sort_unstable();
    let want: Vec<u64> = (0..40).chain(100..140).chain([u64::MAX]).collect();
    assert_eq!((got, second.qpn() != a.qp.qpn()), (want, true));
}
