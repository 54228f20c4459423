//! A NIC that goes down while its process lives, on both links.

use super::*;
use ucs::config::Source;

fn statuses(side: &Side) -> Vec<(u64, DevStatus)> {
    side.poll_all().iter().map(|c| (c.wr_id, c.status)).collect()
}

#[test]
fn a_down_nic_flushes_and_peers_see_unresponsive() {
    let (fabric, a, b) = default_pair();
    let c = Side::open(&fabric, 0xc, |_, _| {});
    let to = a.to(&b);
    b.qp.recv(1, b.sge(0, 10)).unwrap();
    a.qp.send_inline(&to, 2, b"x", None).unwrap();
    assert_eq!((a.status(), b.status()), (DevStatus::Ok, DevStatus::Ok));
    b.qp.recv(3, b.sge(0, 10)).unwrap();
    b.qp.recv(4, b.sge(0, 10)).unwrap();
    b.qp.send_inline(&b.to(&a), 5, b"x", None).unwrap();
    assert!(b.poll_all().is_empty() && !b.dev.is_down());
    b.dev.take_down();
    assert!(b.dev.is_down());
    let mut flushed = statuses(&b);
    flushed.sort_by_key(|(wr_id, _)| *wr_id);
    assert_eq!(flushed, [3, 4, 5].map(|wr_id| (wr_id, DevStatus::Flushed)));
    b.qp.send_inline(&b.to(&a), 6, b"x", None).unwrap();
    b.qp.recv(7, b.sge(0, 10)).unwrap();
    assert_eq!(statuses(&b), [(6, DevStatus::Flushed), (7, DevStatus::Flushed)]);
    a.qp.send_inline(&to, 8, b"x", None).unwrap();
    assert_eq!(a.status(), DevStatus::Unresponsive);
    a.qp.read(&to, 9, a.sge(0, 8), b.mr.addr() as u64, b.mr.rkey()).unwrap();
    assert_eq!(a.status(), DevStatus::Unresponsive);
    c.qp.send_inline(&c.to(&b), 10, b"x", None).unwrap();
    assert_eq!(c.status(), DevStatus::Unreachable);
}

#[test]
fn a_nic_goes_down_after_its_planned_operations() {
    let fabric = Fabric::new(1, FaultPlan { down_after: Some(3), ..FaultPlan::NONE });
    let (a, b) = (Side::open(&fabric, 1, |_, _| {}), Side::open(&fabric, 2, |_, _| {}));
    for i in 0..3 {
        b.qp.recv(i, b.sge(0, 10)).unwrap();
        a.qp.send_inline(&a.to(&b), i, b"x", None).unwrap();
        assert_eq!((a.status(), b.status()), (DevStatus::Ok, DevStatus::Ok));
    }
    a.qp.send_inline(&a.to(&b), 3, b"x", None).unwrap();
    assert_eq!((a.status(), a.dev.is_down(), b.dev.is_down()), (DevStatus::Flushed, true, false));
}

#[test]
fn one_of_several_nics_goes_down_over_shm() {
    let source = Source::empty().with("SOFTEFA_DEVICES", "2").with("SOFTEFA_DOWN", "1:2");
    let open = |name| open_shm(&source, name).unwrap();
    let (good, bad, other) = (open("softefa0"), open("softefa1"), open("softefa0"));
    let init = QpInit {
        kind: QpKind::Srd,
        send_depth: 8,
        recv_depth: 8,
        qkey: 1,
        rnr_retry: 7,
        unsolicited_write_recv: false,
    };
    let make = |dev: &Device<Shm>| {
        let pd = dev.alloc_pd().unwrap();
        let cq = dev.create_cq(64, Channel::Without).unwrap();
        let qp = dev.create_qp(&pd, &cq, &cq, &init).unwrap();
        let mr = dev.alloc_mr(&pd, 4096, Access::ALL).unwrap();
        let recv = |wr_id| qp.recv(wr_id, Sge { addr: mr.addr(), len: 4096, lkey: mr.lkey() }).unwrap();
        (0..4).for_each(recv);
        (pd, cq, qp, mr)
    };
    let (g, b, o) = (make(&good), make(&bad), make(&other));
    let ended = |cq: &Cq<Shm>| {
        let mut out = [Cqe::EMPTY; 16];
        let n = cq.poll(&mut out);
        out[..n].iter().map(|c| (c.op, c.status)).collect::<Vec<_>>()
    };
    let to_bad = Dest { ah: other.create_ah(&o.0, bad.gid()).unwrap(), qpn: b.2.qpn(), qkey: 1 };
    let to_good = Dest { ah: other.create_ah(&o.0, good.gid()).unwrap(), qpn: g.2.qpn(), qkey: 1 };
    for _ in 0..2 {
        o.2.send_inline(&to_bad, 0, b"x", None).unwrap();
        assert_eq!(ended(&o.1), [(CqeOp::Send, DevStatus::Ok)]);
        assert_eq!(ended(&b.1), [(CqeOp::Recv, DevStatus::Ok)]);
    }
    // The third is the last to arrive: two packets were planned.
    o.2.send_inline(&to_bad, 0, b"x", None).unwrap();
    assert_eq!(ended(&o.1), [(CqeOp::Send, DevStatus::Ok)]);
    assert_eq!(ended(&b.1), [(CqeOp::Recv, DevStatus::Ok)]);
    assert!(bad.is_down() && !good.is_down());
    assert_eq!(ended(&b.1), [(CqeOp::Recv, DevStatus::Flushed)]);
    o.2.send_inline(&to_bad, 0, b"x", None).unwrap();
    assert_eq!(ended(&o.1), [(CqeOp::Send, DevStatus::Unresponsive)]);
    o.2.send_inline(&to_good, 0, b"x", None).unwrap();
    assert_eq!(ended(&o.1), [(CqeOp::Send, DevStatus::Ok)]);
    assert_eq!(ended(&g.1), [(CqeOp::Recv, DevStatus::Ok)]);
    assert!(bad.create_qp(&b.0, &b.1, &b.1, &init).is_err(), "nothing new on it");
}
