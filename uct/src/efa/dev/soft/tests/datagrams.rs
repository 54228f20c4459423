//! Datagram (UD) queue pairs: sent once, lost silently, behind a GRH, and apart from SRD.

use super::*;

fn datagrams() -> (Fabric, Side, Side) {
    pair(|_, init| (init.kind, init.rnr_retry) = (QpKind::Ud, 7))
}

#[test]
fn a_datagram_follows_its_grh() {
    let (_f, a, b) = datagrams();
    a.fill(0, b"datagram");
    b.qp.recv(7, b.sge(100, 48)).unwrap();
    a.qp.send(&a.to(&b), 1, &[a.sge(0, 8)], Some(5)).unwrap();
    assert_eq!(a.status(), DevStatus::Ok);
    let got = b.next_cqe();
    assert_eq!((got.wr_id, got.status, got.len, got.imm), (7, DevStatus::Ok, 48, Some(5)));
    assert_eq!((got.src_qpn, got.src_gid), (a.qp.qpn(), a.dev.gid()));
    assert_eq!(b.bytes(140, 8), b"datagram");
    assert_eq!((b.bytes(108, 16), b.bytes(124, 16)), (a.dev.gid().0.to_vec(), b.dev.gid().0.to_vec()));
    // Several SGEs, one of which ends within the header.
    b.qp.recv_sge_list(8, &[b.sge(0, 30), b.sge(200, 14), b.sge(300, 100)]).unwrap();
    a.qp.send(&a.to(&b), 2, &[a.sge(0, 8)], None).unwrap();
    assert_eq!((a.status(), b.next_cqe().len), (DevStatus::Ok, 48));
    assert_eq!((b.bytes(210, 4), b.bytes(300, 4)), (b"data".to_vec(), b"gram".to_vec()));
    let short = b.qp.recv(9, b.sge(0, 39));
    assert!(matches!(short, Err(PostError::Invalid(_))), "{short:?}");
    // A rejected post keeps no device buffer, or their memory would grow.
    let before = b.dev.0.link.regions().live();
    for _ in 0..200 {
        let short = b.qp.recv_sge_list(9, &[b.sge(0, 30), b.sge(200, 9)]);
        assert!(matches!(short, Err(PostError::Invalid(_))), "{short:?}");
    }
    assert_eq!(b.dev.0.link.regions().live(), before);
}

#[test]
fn datagrams_the_receiver_rejects_are_lost_silently() {
    let (fabric, a, b) = datagrams();
    let to = a.to(&b);
    let sent = |to: &Dest<Ah>| {
        a.qp.send(to, 1, &[a.sge(0, 8)], None).unwrap();
        a.status()
    };
    assert_eq!(sent(&to), DevStatus::Ok, "no receive was posted");
    b.qp.recv(1, b.sge(0, 47)).unwrap();
    assert_eq!(sent(&to), DevStatus::Ok, "too long for the receive");
    assert_eq!(sent(&Dest { qkey: QKEY + 1, ..to }), DevStatus::Ok, "another q-key");
    assert_eq!(sent(&Dest { qpn: to.qpn + 1, ..to }), DevStatus::Ok, "nobody");
    assert!(b.poll_all().is_empty());
    a.qp.send_inline(&to, 2, b"seven b", None).unwrap();
    assert_eq!((a.status(), b.next_cqe().wr_id), (DevStatus::Ok, 1), "the receive was not used up before");
    // The sender's own errors are reported.
    a.qp.send(&to, 3, &[Sge { lkey: 0, ..a.sge(0, 1) }], None).unwrap();
    assert_eq!(a.status(), DevStatus::InvalidLkey);
    a.qp.read(&to, 4, a.sge(0, 8), b.mr.addr() as u64, b.mr.rkey()).unwrap();
    assert_eq!(a.status(), DevStatus::UnsupportedOp);
    fabric.kill(b.dev.gid());
    assert_eq!(sent(&to), DevStatus::Ok);
}

#[test]
fn srd_and_ud_do_not_mix() {
    let (fabric, a, _b) = datagrams();
    let reliable = Side::open(&fabric, 0xc, |_, _| {});
    reliable.qp.recv(1, reliable.sge(0, 100)).unwrap();
    a.qp.send_inline(&a.to(&reliable), 1, b"x", None).unwrap();
    assert_eq!(a.status(), DevStatus::Ok);
    a.qp.recv(2, a.sge(0, 100)).unwrap();
    reliable.qp.send_inline(&reliable.to(&a), 1, b"x", None).unwrap();
    assert_eq!(reliable.status(), DevStatus::BadDestQpn);
    assert!(a.poll_all().is_empty() && reliable.poll_all().is_empty());
}

#[test]
fn faults_lose_datagrams() {
    let fabric = Fabric::new(3, FaultPlan { fail: 0.5, ..FaultPlan::NONE });
    let open = |iid| Side::open(&fabric, iid, |_, init| (init.kind, init.recv_depth) = (QpKind::Ud, 256));
    let (a, b) = (open(1), open(2));
    (0..200).for_each(|i| b.qp.recv(i, b.sge(0, 100)).unwrap());
    let to = a.to(&b);
    for i in 0..200 {
        a.qp.send_inline(&to, i, b"x", None).unwrap();
        assert_eq!(a.status(), DevStatus::Ok);
    }
    let arrived = std::iter::from_fn(|| Some(b.poll_all().len()).filter(|n| *n > 0)).sum::<usize>();
    assert!((50..150).contains(&arrived), "{arrived}");
}
