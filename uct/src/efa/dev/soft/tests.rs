//! The object model, status by status, on the in-process link.

#![allow(unsafe_code)]

pub(super) mod capture;
mod datagrams;
mod down;
mod late;
mod turns;

use super::*;
use crate::efa::dev::{Cqe, CqeOp, Dest, DevCq, DevQp, DevStatus, PostError, Sge};
use proptest::prelude::*;

const QKEY: u32 = 0x1234_5678;

/// [`ucs::sys::proc::allow_ptrace`] gets the setting as it is.
#[test]
fn a_setting_keeps_peers_out_of_the_device() {
    use ucs::config::{Source, Table};
    for (value, lets_in) in [("n", false), ("y", true)] {
        let source = Source::empty().with("SOFTEFA_ALLOW_PEERS", value);
        assert_eq!(SoftConfig::load(&source).unwrap().allow_peers, lets_in);
    }
}

struct Side {
    dev: Device<Inproc>,
    pd: Pd,
    mr: Mr<Inproc>,
    qp: Qp<Inproc>,
    cq: Cq<Inproc>,
}

impl Side {
    fn open(fabric: &Fabric, iid: u64, change: impl FnOnce(&mut Profile, &mut QpInit)) -> Side {
        let mut profile = Profile::small();
        let mut init = QpInit {
            kind: QpKind::Srd,
            send_depth: 8,
            recv_depth: 4,
            qkey: QKEY,
            rnr_retry: 7,
            unsolicited_write_recv: false,
        };
        change(&mut profile, &mut init);
        let dev = fabric.open(iid, profile).unwrap();
        let pd = dev.alloc_pd().unwrap();
        let mr = dev.alloc_mr(&pd, 64 << 10, Access::ALL).unwrap();
        let cq = dev.create_cq(32, Channel::Without).unwrap();
        let qp = dev.create_qp(&pd, &cq, &cq, &init).unwrap();
        Side { dev, pd, mr, qp, cq }
    }

    fn to(&self, other: &Side) -> Dest<Ah> {
        let ah = self.dev.create_ah(&self.pd, other.dev.gid()).unwrap();
        Dest { ah, qpn: other.qp.qpn(), qkey: QKEY }
    }

    fn sge(&self, at: usize, len: u32) -> Sge {
        Sge { addr: self.mr.addr().wrapping_add(at), len, lkey: self.mr.lkey() }
    }

    fn fill(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.mr.len());
        // SAFETY: inside the region (asserted), which this test alone uses at the moment.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.mr.addr().wrapping_add(at), bytes.len()) }
    }

    fn bytes(&self, at: usize, len: usize) -> Vec<u8> {
        assert!(at + len <= self.mr.len());
        // SAFETY: inside the region (asserted), which nobody writes during the call.
        unsafe { std::slice::from_raw_parts(self.mr.addr().wrapping_add(at), len) }.to_vec()
    }

    fn poll_all(&self) -> Vec<Cqe> {
        let mut out = [Cqe::EMPTY; 16];
        let n = self.cq.poll(&mut out);
        out[..n].to_vec()
    }

    fn next_cqe(&self) -> Cqe {
        for _ in 0..100_000 {
            let mut got = self.poll_all();
            assert!(got.len() <= 1, "more than one completion: {got:?}");
            if let Some(cqe) = got.pop() {
                return cqe;
            }
        }
        panic!("no completion");
    }

    fn status(&self) -> DevStatus {
        self.next_cqe().status
    }
}

fn pair(change: impl Fn(&mut Profile, &mut QpInit)) -> (Fabric, Side, Side) {
    let fabric = Fabric::new(1, FaultPlan::NONE);
    let a = Side::open(&fabric, 0xa, &change);
    let b = Side::open(&fabric, 0xb, &change);
    (fabric, a, b)
}

fn default_pair() -> (Fabric, Side, Side) {
    pair(|_, _| {})
}

#[test]
fn a_message_lands_in_the_posted_receive() {
    let (_f, a, b) = default_pair();
    b.qp.recv(77, b.sge(100, 1000)).unwrap();
    a.fill(0, b"hello ");
    a.fill(50, b"world");
    a.qp.send(&a.to(&b), 5, &[a.sge(0, 6), a.sge(50, 5)], Some(9)).unwrap();
    let sent = a.next_cqe();
    assert_eq!((sent.wr_id, sent.status, sent.op, sent.qpn), (5, DevStatus::Ok, CqeOp::Send, a.qp.qpn()));
    let got = b.next_cqe();
    assert_eq!(
        (got.wr_id, got.status, got.op, got.len, got.imm),
        (77, DevStatus::Ok, CqeOp::Recv, 11, Some(9))
    );
    assert_eq!((got.src_qpn, got.src_gid, got.qpn), (a.qp.qpn(), a.dev.gid(), b.qp.qpn()));
    assert_eq!(b.bytes(100, 11), b"hello world");
}

#[test]
fn a_receive_sge_list_is_filled_in_order() {
    let (_f, a, b) = default_pair();
    a.fill(0, b"abcdefghij");
    let sges = [b.sge(100, 4), b.sge(500, 0), b.sge(300, 8)];
    // More often than buffers are allocated at once, with another receive in between.
    for i in 0..200u8 {
        a.fill(9, &[i]);
        b.qp.recv_sge_list(7, &sges).unwrap();
        b.qp.recv(8, b.sge(0, 64)).unwrap();
        a.qp.send(&a.to(&b), 1, &[a.sge(0, 10)], None).unwrap();
        a.qp.send_inline(&a.to(&b), 2, b"xyz", None).unwrap();
        assert_eq!(a.poll_all().len(), 2);
        let got: Vec<_> = b.poll_all().iter().map(|c| (c.wr_id, c.status, c.len)).collect();
        assert_eq!(got, [(7, DevStatus::Ok, 10), (8, DevStatus::Ok, 3)]);
        assert_eq!(
            (b.bytes(100, 5), b.bytes(300, 6)),
            (b"abcd\0".to_vec(), vec![b'e', b'f', b'g', b'h', b'i', i])
        );
    }
    // Longer than all SGEs; deregistered memory; a foreign key.
    b.qp.recv_sge_list(7, &sges).unwrap();
    a.qp.send(&a.to(&b), 1, &[a.sge(0, 13)], None).unwrap();
    assert_eq!((a.status(), b.status()), (DevStatus::RemoteBadLength, DevStatus::BadLength));
    b.qp.recv_sge_list(7, &sges).unwrap();
    a.qp.send(&a.to(&b), 1, &[a.sge(0, 12)], None).unwrap();
    assert_eq!((a.status(), b.status()), (DevStatus::Ok, DevStatus::Ok));
    let gone = b.dev.alloc_mr(&b.pd, 64, Access::LOCAL_WRITE).unwrap();
    let lost = Sge { addr: gone.addr(), len: 64, lkey: gone.lkey() };
    b.qp.recv_sge_list(7, &[b.sge(100, 4), lost]).unwrap();
    drop(gone);
    a.qp.send(&a.to(&b), 1, &[a.sge(0, 10)], None).unwrap();
    assert_eq!((a.status(), b.status()), (DevStatus::Ok, DevStatus::InvalidLkey));
    b.qp.recv_sge_list(9, &[b.sge(0, 1), lost]).unwrap();
    assert_eq!(b.status(), DevStatus::InvalidLkey);
    assert!(matches!(b.qp.recv_sge_list(7, &[lost; 4]), Err(PostError::Invalid(_))));
}

#[test]
fn a_write_with_immediate_does_not_touch_the_receive_buffers() {
    let (_f, a, b) = default_pair();
    let (to, _back) = (a.to(&b), b.to(&a));
    let sges = [b.sge(100, 4), b.sge(300, 8)];
    a.fill(0, b"abcdefghij");
    b.qp.recv_sge_list(7, &sges).unwrap();
    a.qp.send(&to, 1, &[a.sge(0, 10)], None).unwrap();
    assert_eq!((a.status(), b.status()), (DevStatus::Ok, DevStatus::Ok));
    b.fill(100, &[0xEE; 300]);
    b.qp.recv_sge_list(8, &sges).unwrap();
    a.qp.write(&to, 2, a.sge(0, 10), b.mr.addr() as u64, b.mr.rkey(), Some(42)).unwrap();
    assert_eq!(a.status(), DevStatus::Ok);
    let got = b.next_cqe();
    assert_eq!((got.wr_id, got.op, got.len, got.imm), (8, CqeOp::RecvWriteImm, 10, Some(42)));
    assert_eq!(b.bytes(100, 300), [0xEE; 300]);
    // The device buffer is used again.
    b.qp.recv_sge_list(9, &sges).unwrap();
    a.qp.send(&to, 3, &[a.sge(0, 10)], None).unwrap();
    assert_eq!((a.status(), b.status(), b.bytes(300, 6)), (DevStatus::Ok, DevStatus::Ok, b"efghij".to_vec()));
}

#[test]
fn an_empty_message_consumes_a_receive() {
    let (_f, a, b) = default_pair();
    b.qp.recv(1, b.sge(0, 0)).unwrap();
    a.qp.send_inline(&a.to(&b), 2, &[], None).unwrap();
    assert_eq!((a.status(), b.next_cqe().len), (DevStatus::Ok, 0));
}

#[test]
fn queues_are_finite_and_a_polled_completion_makes_room() {
    let (_f, a, b) = default_pair();
    let to = a.to(&b);
    for i in 0..8 {
        a.qp.send_inline(&to, i, b"x", None).unwrap();
    }
    assert_eq!(a.qp.send_inline(&to, 8, b"x", None), Err(PostError::Full));
    assert_eq!(a.poll_all().len(), 0, "nobody posted a receive");
    for i in 0..4 {
        b.qp.recv(i, b.sge(0, 10)).unwrap();
    }
    assert_eq!(b.qp.recv(4, b.sge(0, 10)), Err(PostError::Full));
    while a.qp.in_flight() > 4 {
        a.poll_all();
    }
    assert_eq!(b.qp.recv(4, b.sge(0, 10)), Err(PostError::Full), "arrived, but not polled");
    assert_eq!(b.poll_all().len(), 4);
    b.qp.recv(4, b.sge(0, 10)).unwrap();
    a.qp.send_inline(&to, 8, b"x", None).unwrap();
}

#[test]
fn invalid_posts_are_rejected_by_the_driver_checks() {
    let (_f, a, b) = default_pair();
    let to = a.to(&b);
    assert!(matches!(a.qp.send_inline(&to, 0, &[0; 33], None), Err(PostError::Invalid(_))));
    assert!(matches!(a.qp.send(&to, 0, &[a.sge(0, 1); 3], None), Err(PostError::Invalid(_))));
    assert!(matches!(a.qp.recv(0, Sge { lkey: 1 << 24, ..a.sge(0, 1) }), Err(PostError::Invalid(_))));
    assert_eq!(a.qp.in_flight(), 0);
}

#[test]
fn wrong_destinations_complete_with_their_status() {
    let (f, a, b) = default_pair();
    let to = a.to(&b);
    a.qp.send_inline(&Dest { qkey: 1, ..to }, 0, b"x", None).unwrap();
    assert_eq!(a.status(), DevStatus::BadDestQpn);
    a.qp.send_inline(&Dest { qpn: 999, ..to }, 0, b"x", None).unwrap();
    assert_eq!(a.status(), DevStatus::BadDestQpn);
    let other_pd = a.dev.alloc_pd().unwrap();
    let ah = a.dev.create_ah(&other_pd, b.dev.gid()).unwrap();
    a.qp.send_inline(&Dest { ah, ..to }, 0, b"x", None).unwrap();
    assert_eq!(a.status(), DevStatus::InvalidAh);
    a.dev.destroy_ah(&other_pd, ah);
    a.qp.read(&Dest { ah, ..to }, 0, a.sge(0, 1), 0, 0).unwrap();
    assert_eq!(a.status(), DevStatus::InvalidAh);
    f.kill(b.dev.gid());
    a.qp.send_inline(&to, 0, b"x", None).unwrap();
    assert_eq!(a.status(), DevStatus::BadDestQpn);
}

#[test]
fn peer_death_ends_rnr_retries() {
    let (f, a, b) = default_pair();
    a.qp.send_inline(&a.to(&b), 3, b"x", None).unwrap();
    assert!(a.poll_all().is_empty());
    f.kill(b.dev.gid());
    let cqe = a.next_cqe();
    assert_eq!((cqe.wr_id, cqe.status), (3, DevStatus::BadDestQpn));
    b.qp.send_inline(&b.to(&a), 4, b"x", None).unwrap();
    f.advance(1_000_000_000);
    assert!(b.poll_all().is_empty(), "the dead do nothing");
    assert!(!f.step());
}

#[test]
fn lengths_are_checked_at_both_ends() {
    let (_f, a, b) = default_pair();
    let to = a.to(&b);
    a.qp.send(&to, 0, &[a.sge(0, 8929)], None).unwrap();
    assert_eq!(a.status(), DevStatus::BadLength);
    b.qp.recv(1, b.sge(0, 8)).unwrap();
    a.qp.send(&to, 0, &[a.sge(0, 9)], None).unwrap();
    assert_eq!(a.status(), DevStatus::RemoteBadLength);
    let got = b.next_cqe();
    assert_eq!((got.wr_id, got.status, got.len), (1, DevStatus::BadLength, 9));
    b.qp.recv(2, b.sge(0, 8)).unwrap();
    a.qp.send(&to, 0, &[a.sge(0, 8)], None).unwrap();
    assert_eq!((a.status(), b.status()), (DevStatus::Ok, DevStatus::Ok));
    let (_f, a, b) = pair(|p, _| p.attr.max_rdma = 10);
    a.qp.read(&a.to(&b), 0, a.sge(0, 11), b.mr.addr() as u64, b.mr.rkey()).unwrap();
    assert_eq!(a.status(), DevStatus::BadLength);
}

#[test]
fn local_keys_cover_range_access_and_domain() {
    let (_f, a, b) = default_pair();
    let to = a.to(&b);
    for i in 0..4 {
        b.qp.recv(i, b.sge(0, 100)).unwrap();
    }
    let read_only = a.dev.alloc_mr(&a.pd, 100, Access::LOCAL_READ).unwrap();
    let foreign = a.dev.alloc_mr(&a.dev.alloc_pd().unwrap(), 100, Access::ALL).unwrap();
    let whole = |mr: &Mr<Inproc>| Sge { addr: mr.addr(), len: 100, lkey: mr.lkey() };
    for (sge, want) in [
        (Sge { lkey: 0, ..a.sge(0, 1) }, DevStatus::InvalidLkey),
        (Sge { lkey: a.mr.lkey() ^ 1 << 16, ..a.sge(0, 1) }, DevStatus::InvalidLkey),
        (a.sge((64 << 10) - 1, 2), DevStatus::InvalidLkey),
        (a.sge(0, 1), DevStatus::Ok),
        (whole(&read_only), DevStatus::Ok),
        (whole(&foreign), DevStatus::InvalidLkey),
    ] {
        a.qp.send(&to, 0, &[sge], None).unwrap();
        assert_eq!(a.status(), want, "{sge:?}");
    }
    a.qp.recv(9, whole(&read_only)).unwrap();
    let cqe = a.next_cqe();
    assert_eq!((cqe.wr_id, cqe.status, cqe.op), (9, DevStatus::InvalidLkey, CqeOp::Recv));
    a.qp.read(&to, 0, whole(&read_only), b.mr.addr() as u64, b.mr.rkey()).unwrap();
    assert_eq!(a.status(), DevStatus::InvalidLkey, "a read writes locally");
    let stale = whole(&read_only);
    drop(read_only);
    a.qp.send(&to, 0, &[stale], None).unwrap();
    assert_eq!(a.status(), DevStatus::InvalidLkey);
}

#[test]
fn a_deregistered_receive_buffer_fails_both_sides() {
    let (_f, a, b) = default_pair();
    let mr = b.dev.alloc_mr(&b.pd, 100, Access::ALL).unwrap();
    b.qp.recv(1, Sge { addr: mr.addr(), len: 100, lkey: mr.lkey() }).unwrap();
    drop(mr);
    a.qp.send_inline(&a.to(&b), 0, b"x", None).unwrap();
    assert_eq!((a.status(), b.status()), (DevStatus::RemoteAbort, DevStatus::InvalidLkey));
}

#[test]
fn rdma_moves_bytes_without_target_completions() {
    let (_f, a, b) = default_pair();
    let (to, _back) = (a.to(&b), b.to(&a));
    b.fill(10, b"remote");
    a.qp.read(&to, 1, a.sge(0, 6), b.mr.addr() as u64 + 10, b.mr.rkey()).unwrap();
    let cqe = a.next_cqe();
    assert_eq!((cqe.wr_id, cqe.status, cqe.op), (1, DevStatus::Ok, CqeOp::Read));
    assert_eq!(a.bytes(0, 6), b"remote");
    a.fill(0, b"REMOTE");
    a.qp.write(&to, 2, a.sge(0, 6), b.mr.addr() as u64 + 20, b.mr.rkey(), None).unwrap();
    assert_eq!(a.next_cqe().op, CqeOp::Write);
    assert_eq!(b.bytes(20, 6), b"REMOTE");
    a.qp.write(&to, 3, a.sge(0, 0), b.mr.addr() as u64, b.mr.rkey(), None).unwrap();
    assert_eq!(a.status(), DevStatus::Ok, "zero length is legal");
    assert!(b.poll_all().is_empty());
}

#[test]
fn rdma_checks_key_range_access_domain_and_address_handle() {
    let (_f, a, b) = default_pair();
    let to = a.to(&b);
    let (at, key) = (b.mr.addr() as u64, b.mr.rkey());
    a.qp.read(&to, 0, a.sge(0, 1), at, key).unwrap();
    assert_eq!(a.status(), DevStatus::UnknownPeer);
    let back = b.to(&a);
    let foreign = b.dev.alloc_mr(&b.dev.alloc_pd().unwrap(), 10, Access::ALL).unwrap();
    let no_write = b.dev.alloc_mr(&b.pd, 10, Access::REMOTE_READ).unwrap();
    for (raddr, rkey) in [
        (at, key ^ 1 << 16),
        (at - 1, key),
        (at + (64 << 10), key),
        (u64::MAX, key),
        (foreign.addr() as u64, foreign.rkey()),
        (no_write.addr() as u64, no_write.rkey()),
    ] {
        a.qp.write(&to, 0, a.sge(0, 1), raddr, rkey, None).unwrap();
        assert_eq!(a.status(), DevStatus::RemoteBadAddress);
    }
    a.qp.read(&to, 0, a.sge(0, 1), no_write.addr() as u64, no_write.rkey()).unwrap();
    assert_eq!(a.status(), DevStatus::Ok);
    b.dev.destroy_ah(&b.pd, back.ah);
    a.qp.read(&to, 0, a.sge(0, 1), at, key).unwrap();
    assert_eq!(a.status(), DevStatus::UnknownPeer);
    let (_f, a, b) = pair(|p, _| p.strict = false);
    a.qp.read(&a.to(&b), 0, a.sge(0, 1), b.mr.addr() as u64, b.mr.rkey()).unwrap();
    assert_eq!(a.status(), DevStatus::Ok);
}

#[test]
fn an_old_generation_has_no_rdma() {
    let old = ucs::config::Source::empty().with("SOFTEFA_GEN", "efa0");
    let attr = <SoftConfig as ucs::config::Table>::load(&old).unwrap().profile().attr;
    let (_f, a, b) = pair(|p, _| p.attr = attr.clone());
    a.qp.read(&a.to(&b), 0, a.sge(0, 1), b.mr.addr() as u64, b.mr.rkey()).unwrap();
    assert_eq!(a.status(), DevStatus::UnsupportedOp);
    a.qp.write(&a.to(&b), 0, a.sge(0, 1), b.mr.addr() as u64, b.mr.rkey(), None).unwrap();
    assert_eq!(a.status(), DevStatus::UnsupportedOp);
}

#[test]
fn write_with_immediate_uses_a_receive_unless_unsolicited() {
    let (_f, a, b) = default_pair();
    let (to, _back) = (a.to(&b), b.to(&a));
    a.fill(0, b"data");
    a.qp.write(&to, 1, a.sge(0, 4), b.mr.addr() as u64, b.mr.rkey(), Some(42)).unwrap();
    assert!(a.poll_all().is_empty(), "no receive posted");
    b.qp.recv(7, b.sge(1000, 0)).unwrap();
    assert_eq!(a.status(), DevStatus::Ok);
    let got = b.next_cqe();
    assert_eq!((got.wr_id, got.op, got.len, got.imm), (7, CqeOp::RecvWriteImm, 4, Some(42)));
    assert_eq!(b.bytes(0, 4), b"data");

    let (_f, a, b) = pair(|_, init| init.unsolicited_write_recv = true);
    let (to, _back) = (a.to(&b), b.to(&a));
    b.qp.recv(7, b.sge(1000, 0)).unwrap();
    a.qp.write(&to, 1, a.sge(0, 4), b.mr.addr() as u64, b.mr.rkey(), Some(43)).unwrap();
    assert_eq!(a.status(), DevStatus::Ok);
    let got = b.next_cqe();
    assert_eq!((got.wr_id, got.op, got.len, got.imm), (0, CqeOp::RecvWriteImm, 4, Some(43)));
    a.qp.send_inline(&to, 1, b"", None).unwrap();
    assert_eq!((a.status(), b.next_cqe().wr_id), (DevStatus::Ok, 7));
}

#[test]
fn rnr_retries_are_bounded_by_time() {
    for retry in 0..7u8 {
        let (f, a, b) = pair(|_, init| init.rnr_retry = retry);
        let start = f.now();
        a.qp.send_inline(&a.to(&b), 0, b"x", None).unwrap();
        assert_eq!(a.status(), DevStatus::Rnr);
        let (took, least) = (f.now() - start, u64::from(retry) * 50_000);
        assert!((least..least + 1000).contains(&took), "{retry} retries took {took} ns");
    }
    let (f, a, b) = default_pair();
    a.qp.send_inline(&a.to(&b), 0, b"x", None).unwrap();
    f.advance(1_000_000_000);
    assert!(a.poll_all().is_empty(), "seven is for ever");
    b.qp.recv(0, b.sge(0, 1)).unwrap();
    assert_eq!(a.status(), DevStatus::Ok);
}

#[test]
fn a_failed_queue_pair_flushes_and_a_destroyed_one_completes_nothing() {
    let (_f, a, b) = default_pair();
    let to = a.to(&b);
    a.qp.send_inline(&to, 1, b"x", None).unwrap();
    a.qp.recv(2, a.sge(0, 10)).unwrap();
    a.qp.fail();
    a.qp.send_inline(&to, 3, b"x", None).unwrap();
    a.qp.recv(4, a.sge(0, 10)).unwrap();
    let mut got: Vec<(u64, DevStatus)> = a.poll_all().iter().map(|c| (c.wr_id, c.status)).collect();
    got.sort_by_key(|(id, _)| *id);
    assert_eq!(got, [1, 2, 3, 4].map(|id| (id, DevStatus::Flushed)));
    b.qp.send_inline(&b.to(&a), 0, b"x", None).unwrap();
    assert_eq!(b.status(), DevStatus::BadDestQpn);
    let Side { qp, cq, .. } = b;
    qp.recv(1, Sge { lkey: 0, ..a.sge(0, 1) }).unwrap();
    let to_nobody = Dest { ah: Ah(ucs::coll::slots::SlotId::NONE), qpn: 1, qkey: 1 };
    qp.send_inline(&to_nobody, 1, b"", None).unwrap();
    drop(qp);
    let mut out = [a.empty_cqe(); 4];
    assert_eq!(cq.poll(&mut out), 0);
}

impl Side {
    fn empty_cqe(&self) -> Cqe {
        Cqe::EMPTY
    }
}

#[test]
fn injected_faults_complete_with_their_status() {
    let plan = FaultPlan { fail: 1.0, fail_status: DevStatus::Unreachable, ..FaultPlan::NONE };
    let fabric = Fabric::new(1, plan);
    let (a, b) = (Side::open(&fabric, 1, |_, _| {}), Side::open(&fabric, 2, |_, _| {}));
    b.qp.recv(0, b.sge(0, 10)).unwrap();
    a.qp.send_inline(&a.to(&b), 0, b"x", None).unwrap();
    assert_eq!(a.status(), DevStatus::Unreachable);
    assert!(b.poll_all().is_empty());
}

#[test]
fn a_reused_qpn_is_resolved_again() {
    // One entry, so that the number itself is reused.
    let (_f, a, mut b) = pair(|p, _| p.attr.max_qp = 1);
    let to = a.to(&b);
    b.qp.recv(0, b.sge(0, 10)).unwrap();
    a.qp.send_inline(&to, 0, b"x", None).unwrap();
    assert_eq!((a.status(), b.status()), (DevStatus::Ok, DevStatus::Ok));
    let init = QpInit {
        kind: QpKind::Srd,
        send_depth: 4,
        recv_depth: 4,
        qkey: QKEY + 1,
        rnr_retry: 7,
        unsolicited_write_recv: false,
    };
    let Side { dev, pd, cq, qp, .. } = &mut b;
    for _ in 0..=u16::MAX {
        let qpn = qp.qpn();
        qp.0.rx.close(&mut |_| {});
        dev.0.release_qpn(qpn);
        *qp = dev.create_qp(pd, cq, cq, &init).unwrap();
        if qp.qpn() == to.qpn {
            break;
        }
    }
    assert_eq!(b.qp.qpn(), to.qpn);
    b.qp.recv(0, b.sge(0, 10)).unwrap();
    a.qp.send_inline(&to, 0, b"x", None).unwrap();
    assert_eq!(a.status(), DevStatus::BadDestQpn, "the q-key of the one before");
    a.qp.send_inline(&Dest { qkey: QKEY + 1, ..to }, 0, b"x", None).unwrap();
    assert_eq!((a.status(), b.status()), (DevStatus::Ok, DevStatus::Ok));
}

#[test]
fn qpns_are_distinct_modulo_the_table_and_reused_late() {
    let (_f, a, _b) = pair(|p, _| p.attr.max_qp = 4);
    let init = QpInit {
        kind: QpKind::Srd,
        send_depth: 1,
        recv_depth: 1,
        qkey: 0,
        rnr_retry: 0,
        unsolicited_write_recv: false,
    };
    let make = || a.dev.create_qp(&a.pd, &a.cq, &a.cq, &init);
    let more: Vec<_> = (0..3).map(|_| make().unwrap()).collect();
    let mut slots: Vec<u16> = more.iter().chain([&a.qp]).map(|qp| qp.qpn() % 4).collect();
    slots.sort_unstable();
    assert_eq!(slots, [0, 1, 2, 3]);
    assert!(matches!(make(), Err(OpenError::Op(Error::Exhausted(_)))));
    let old: Vec<u16> = more.iter().map(|qp| qp.qpn()).collect();
    drop(more);
    assert!(!old.contains(&make().unwrap().qpn()));
}

#[test]
fn bad_creation_parameters_name_the_key() {
    let (_f, a, _b) = default_pair();
    assert!(a.dev.create_cq(0, Channel::Without).is_err());
    let init = QpInit {
        kind: QpKind::Srd,
        send_depth: 0,
        recv_depth: 1,
        qkey: 0,
        rnr_retry: 0,
        unsolicited_write_recv: false,
    };
    let text = a.dev.create_qp(&a.pd, &a.cq, &a.cq, &init).err().unwrap().to_string();
    assert!(text.contains("not 0") && text.contains("SOFTEFA_SEND_DEPTH"), "{text}");
    let deep = QpInit { send_depth: 1 << 20, ..init };
    assert!(a.dev.create_qp(&a.pd, &a.cq, &a.cq, &deep).is_err());
    let err =
        <SoftConfig as ucs::config::Table>::load(&ucs::config::Source::empty().with("SOFTEFA_MTU", "1"))
            .unwrap_err();
    assert!(err.to_string().starts_with("SOFTEFA_MTU=1"), "{err}");
}

#[test]
fn an_armed_channel_wakes_once() {
    let fabric = Fabric::new(1, FaultPlan::NONE);
    let (a, b) = (Side::open(&fabric, 1, |_, _| {}), Side::open(&fabric, 2, |_, _| {}));
    let cq = b.dev.create_cq(8, Channel::With).unwrap();
    assert!(cq.arm(), "armed before there is any queue pair");
    let init = QpInit {
        kind: QpKind::Srd,
        send_depth: 4,
        recv_depth: 4,
        qkey: QKEY,
        rnr_retry: 7,
        unsolicited_write_recv: false,
    };
    let qp = b.dev.create_qp(&b.pd, &cq, &cq, &init).unwrap();
    let epoll = ucs::sys::Epoll::new().unwrap();
    epoll.add(cq.event_fd().unwrap(), 1).unwrap();
    let readable = || epoll.wait(&mut Vec::new(), Some(std::time::Duration::ZERO)).unwrap() == 1;
    qp.recv(0, b.sge(0, 10)).unwrap();
    qp.recv(1, b.sge(0, 10)).unwrap();
    assert!(!readable());
    let to = Dest { qpn: qp.qpn(), ..a.to(&b) };
    a.qp.send_inline(&to, 0, b"x", None).unwrap();
    assert!(readable());
    assert!(!cq.arm(), "there is something to poll");
    assert!(!readable());
    let mut out = [a.empty_cqe(); 4];
    assert_eq!(cq.poll(&mut out), 1);
    assert!(cq.arm() && !readable());
    qp.send_inline(&Dest { qpn: 9999, ..b.to(&a) }, 0, b"x", None).unwrap();
    assert!(readable(), "a send completion wakes too");
}

#[derive(Clone, Debug)]
enum Step {
    Send { from: usize, to: usize, at: u32, len: u32, imm: Option<u32> },
    Recv { side: usize, at: u32, len: u32 },
    Read { from: usize, to: usize, at: u32, len: u32, raddr: u32, key: u32 },
    Write { from: usize, to: usize, at: u32, len: u32, raddr: u32, key: u32, imm: Option<u32> },
    Poll { side: usize },
    Advance { ns: u16 },
}

const REGION_LEN: u32 = 4096;

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let side = || 0..3usize;
    let at = || 0..REGION_LEN + 64;
    let len = || prop_oneof![0..64u32, 0..REGION_LEN + 64];
    let imm = || proptest::option::of(any::<u32>());
    let key = || prop_oneof![4 => Just(0u32), 1 => any::<u32>()];
    let step =
        prop_oneof![
            (side(), side(), at(), len(), imm()).prop_map(|(from, to, at, len, imm)| Step::Send {
                from,
                to,
                at,
                len,
                imm
            }),
            (side(), at(), len()).prop_map(|(side, at, len)| Step::Recv { side, at, len }),
            (side(), side(), at(), len(), at(), key())
                .prop_map(|(from, to, at, len, raddr, key)| Step::Read { from, to, at, len, raddr, key }),
            (side(), side(), at(), len(), at(), key(), imm()).prop_map(
                |(from, to, at, len, raddr, key, imm)| Step::Write { from, to, at, len, raddr, key, imm }
            ),
            (side()).prop_map(|side| Step::Poll { side }),
            any::<u16>().prop_map(|ns| Step::Advance { ns }),
        ];
    proptest::collection::vec(step, 1..120)
}

/// Runs the steps under faults; each accepted request completes once, no byte outside changes.
fn run(seed: u64, steps: &[Step]) -> Vec<String> {
    let fabric = Fabric::new(seed, FaultPlan { fail: 0.01, ..FaultPlan::ROUGH });
    let guard = 4096usize;
    let sides: Vec<Side> =
        (1..=3).map(|iid| Side::open(&fabric, iid, |_, init| init.rnr_retry = 3)).collect();
    let regions: Vec<Mr<Inproc>> = sides
        .iter()
        .map(|s| {
            s.fill(0, &vec![0xee; s.mr.len()]);
            // SAFETY: inside the side's own region, which outlives this registration.
            unsafe { s.dev.reg_mr(&s.pd, s.mr.addr().wrapping_add(guard), REGION_LEN as usize, Access::ALL) }
                .unwrap()
        })
        .collect();
    let dest: Vec<Vec<Dest<Ah>>> = sides.iter().map(|s| sides.iter().map(|t| s.to(t)).collect()).collect();
    let sge = |i: usize, at: u32, len: u32| Sge {
        addr: regions[i].addr().wrapping_add(at as usize),
        len,
        lkey: regions[i].lkey(),
    };
    let (mut trace, mut outstanding) = (Vec::new(), [0i64; 3]);
    let mut take = |i: usize, outstanding: &mut [i64; 3], fabric: &Fabric| {
        let got = sides[i].poll_all();
        outstanding[i] -= got.len() as i64;
        trace.extend(got.iter().map(|c| format!("{} {i} {c:?}", fabric.now())));
        got.len()
    };
    for (id, step) in steps.iter().enumerate() {
        let wr = id as u64;
        let posted = match *step {
            Step::Send { from, to, at, len, imm } => {
                Some((from, sides[from].qp.send(&dest[from][to], wr, &[sge(from, at, len)], imm)))
            }
            Step::Recv { side, at, len } => Some((side, sides[side].qp.recv(wr, sge(side, at, len)))),
            Step::Read { from, to, at, len, raddr, key } => {
                let raddr = regions[to].addr() as u64 + u64::from(raddr);
                let key = regions[to].rkey() ^ key;
                Some((from, sides[from].qp.read(&dest[from][to], wr, sge(from, at, len), raddr, key)))
            }
            Step::Write { from, to, at, len, raddr, key, imm } => {
                let raddr = regions[to].addr() as u64 + u64::from(raddr);
                let key = regions[to].rkey() ^ key;
                Some((from, sides[from].qp.write(&dest[from][to], wr, sge(from, at, len), raddr, key, imm)))
            }
            Step::Poll { side } => {
                take(side, &mut outstanding, &fabric);
                None
            }
            Step::Advance { ns } => {
                fabric.advance(ns.into());
                None
            }
        };
        match posted {
            Some((side, Ok(()))) => outstanding[side] += 1,
            Some((_, Err(PostError::Full))) | None => {}
            Some((_, Err(e))) => panic!("{step:?}: {e:?}"),
        }
    }
    while fabric.step() {}
    sides.iter().for_each(|s| s.qp.fail());
    for i in 0..3 {
        while take(i, &mut outstanding, &fabric) > 0 {}
    }
    assert_eq!(outstanding, [0; 3], "each accepted request has exactly one completion");
    for s in &sides {
        let end = guard + REGION_LEN as usize;
        assert!(s.bytes(0, guard).iter().chain(&s.bytes(end, s.mr.len() - end)).all(|b| *b == 0xee));
    }
    trace
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_operations_stay_in_bounds_and_replay(seed in any::<u64>(), steps in steps()) {
        let first = run(seed, &steps);
        prop_assert_eq!(first, run(seed, &steps));
    }
}

#[test]
fn reordering_loses_nothing() {
    let plan = FaultPlan { reorder: 0.5, window: 10_000, ..FaultPlan::NONE };
    let fabric = Fabric::new(3, plan);
    let deep = |_: &mut Profile, init: &mut QpInit| (init.send_depth, init.recv_depth) = (256, 256);
    let (a, b) = (Side::open(&fabric, 1, deep), Side::open(&fabric, 2, deep));
    let to = a.to(&b);
    for i in 0..200 {
        b.qp.recv(i, b.sge(0, 10)).unwrap();
        a.qp.send_inline(&to, i, b"x", Some(i as u32)).unwrap();
    }
    let mut order = Vec::new();
    while order.len() < 200 {
        order.extend(b.poll_all().iter().filter_map(|c| c.imm));
    }
    assert!(!order.is_sorted());
    order.sort_unstable();
    assert_eq!(order, (0..200).collect::<Vec<u32>>());
}
