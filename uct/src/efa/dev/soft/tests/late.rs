//! Outcomes that a link tells later, as one over a network does.

use super::*;

const LATE_NS: u64 = 5_000;

fn late_pair(change: impl Fn(&mut Profile, &mut QpInit)) -> (Fabric, Side, Side) {
    let (fabric, a, b) = pair(change);
    fabric.answer_late(LATE_NS);
    (fabric, a, b)
}

#[test]
fn a_send_completes_when_its_outcome_is_told() {
    let (f, a, b) = late_pair(|_, _| {});
    b.qp.recv(77, b.sge(100, 100)).unwrap();
    a.fill(0, b"hello");
    let start = f.now();
    a.qp.send(&a.to(&b), 5, &[a.sge(0, 5)], Some(9)).unwrap();
    assert!(a.qp.has_deferred() && a.poll_all().is_empty());
    let got = b.next_cqe();
    assert_eq!((got.wr_id, got.status, got.len, got.imm), (77, DevStatus::Ok, 5, Some(9)));
    let sent = a.next_cqe();
    assert_eq!((sent.wr_id, sent.status, sent.op), (5, DevStatus::Ok, CqeOp::Send));
    assert!(f.now() - start >= LATE_NS);
    assert!(!a.qp.has_deferred());
    assert_eq!((b.bytes(100, 5), a.qp.in_flight()), (b"hello".to_vec(), 0));
}

#[test]
fn rdma_completes_when_its_outcome_is_told() {
    let (_f, a, b) = late_pair(|_, _| {});
    let (to, _back) = (a.to(&b), b.to(&a));
    b.fill(10, b"remote");
    let there = b.mr.addr() as u64;
    a.qp.read(&to, 1, a.sge(0, 6), there + 10, b.mr.rkey()).unwrap();
    a.qp.write(&to, 2, a.sge(100, 6), there + 20, b.mr.rkey(), None).unwrap();
    a.qp.write(&to, 3, a.sge(0, 6), there, 0x99_0001, None).unwrap();
    let mut got = Vec::new();
    while got.len() < 3 {
        got.extend(a.poll_all().iter().map(|c| (c.wr_id, c.op, c.status)));
    }
    got.sort_by_key(|c| c.0);
    let want = [
        (1, CqeOp::Read, DevStatus::Ok),
        (2, CqeOp::Write, DevStatus::Ok),
        (3, CqeOp::Write, DevStatus::RemoteBadAddress),
    ];
    assert_eq!((got, a.bytes(0, 6)), (want.to_vec(), b"remote".to_vec()));
}

#[test]
fn a_receiver_that_is_not_ready_is_tried_again_or_reported() {
    let (f, a, b) = late_pair(|_, _| {});
    a.qp.send_inline(&a.to(&b), 1, b"x", None).unwrap();
    (0..300).for_each(|_| assert!(a.poll_all().is_empty()));
    b.qp.recv(2, b.sge(0, 8)).unwrap();
    assert_eq!((a.status(), b.status()), (DevStatus::Ok, DevStatus::Ok));
    a.qp.set_rnr_retry(0);
    a.qp.send_inline(&a.to(&b), 3, b"x", None).unwrap();
    assert_eq!(a.status(), DevStatus::Rnr);
    a.qp.set_rnr_retry(2);
    let start = f.now();
    a.qp.send_inline(&a.to(&b), 4, b"x", None).unwrap();
    assert_eq!(a.status(), DevStatus::Rnr);
    assert!(f.now() - start >= 2 * Profile::small().rnr_interval_ns);
}

#[test]
fn statuses_of_the_far_side_complete_the_request() {
    let (_f, a, b) = late_pair(|_, _| {});
    let to = a.to(&b);
    a.qp.send_inline(&Dest { qpn: 999, ..to }, 0, b"x", None).unwrap();
    assert_eq!(a.status(), DevStatus::BadDestQpn);
    b.qp.recv(1, b.sge(0, 8)).unwrap();
    a.qp.send(&to, 0, &[a.sge(0, 9)], None).unwrap();
    assert_eq!((a.status(), b.status()), (DevStatus::RemoteBadLength, DevStatus::BadLength));
}

#[test]
fn a_queue_pair_that_fails_flushes_what_is_pending_once() {
    let (f, a, b) = late_pair(|_, _| {});
    b.qp.recv(1, b.sge(0, 8)).unwrap();
    a.qp.send_inline(&a.to(&b), 7, b"x", None).unwrap();
    a.qp.fail();
    let cqe = a.next_cqe();
    assert_eq!((cqe.wr_id, cqe.status), (7, DevStatus::Flushed));
    f.advance(10 * LATE_NS);
    assert!(a.poll_all().is_empty() && !a.qp.has_deferred());
}

#[test]
fn a_queue_pair_is_destroyed_with_requests_pending() {
    let (f, a, b) = late_pair(|_, _| {});
    b.qp.recv(1, b.sge(0, 8)).unwrap();
    a.qp.send_inline(&a.to(&b), 7, b"x", None).unwrap();
    let Side { qp, cq, .. } = a;
    drop(qp);
    f.advance(10 * LATE_NS);
    assert_eq!(cq.poll(&mut [Cqe::EMPTY; 4]), 0);
}
