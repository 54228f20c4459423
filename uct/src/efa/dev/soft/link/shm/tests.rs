//! Dying and faulty peers of a queue pair, played by this process through its own mapping of the segment.

#![allow(unsafe_code)]

mod backlog;
mod credit;
mod scribbler;

use super::remote_device::RemoteMemory;
use super::ring::signature;
use super::seg::{FLAG_INLINE, INLINE, SHORT};
use super::*;
use crate::api::Access;
use crate::efa::dev::soft::mr::Region;
use crate::efa::dev::soft::{Ah, Cq, Device, Mr, Pd, Qp, open_shm};
use crate::efa::dev::{Cqe, CqeOp, Dest, Dev, DevCq, DevMr, DevQp, Gid, QpInit, QpKind, Sge};
use proptest::prelude::*;
use std::sync::atomic::AtomicU32;
use std::time::Duration;
use ucs::config::Source;
use ucs::sys::Epoll;

struct Side {
    dev: Device<Shm>,
    pd: Pd,
    cq: Cq<Shm>,
    qp: Qp<Shm>,
    mr: Mr<Shm>,
}

fn side() -> (Side, Dest<Ah>, QpSeg) {
    side_with(Channel::Without)
}

fn side_with(channel: Channel) -> (Side, Dest<Ah>, QpSeg) {
    side_of(channel, false)
}

fn side_of(channel: Channel, unsolicited_write_recv: bool) -> (Side, Dest<Ah>, QpSeg) {
    let dev = open_shm(&Source::empty(), "softefa0").unwrap();
    let pd = dev.alloc_pd().unwrap();
    let cq = dev.create_cq(64, channel).unwrap();
    let init = QpInit {
        kind: QpKind::Srd,
        send_depth: 8,
        recv_depth: 8,
        qkey: 1,
        rnr_retry: 7,
        unsolicited_write_recv,
    };
    let qp = dev.create_qp(&pd, &cq, &cq, &init).unwrap();
    let mr = dev.alloc_mr(&pd, 1 << 16, Access::ALL).unwrap();
    let to = Dest { ah: dev.create_ah(&pd, dev.gid()).unwrap(), qpn: qp.qpn(), qkey: 1 };
    let mem = lookup::lookup("", dev.gid().iid(), qp.qpn()).ok().unwrap().0;
    let seg = QpSeg::attach(mem).unwrap().0;
    (Side { dev, pd, cq, qp, mr }, to, seg)
}

impl Side {
    fn recv(&self, wr_id: u64) {
        self.qp.recv(wr_id, Sge { addr: self.mr.addr(), len: 1 << 15, lkey: self.mr.lkey() }).unwrap();
    }

    /// Receive completions of `polls` polls, as (request, length, status).
    fn received(&self, polls: usize) -> Vec<(u64, u32, DevStatus)> {
        let mut out = [Cqe::EMPTY; 4];
        let mut all = Vec::new();
        for _ in 0..polls {
            let n = self.cq.poll(&mut out);
            let recvs = out[..n].iter().filter(|c| c.op == CqeOp::Recv);
            all.extend(recvs.map(|c| (c.wr_id, c.len, c.status)));
        }
        all
    }
}

const MANY: usize = 10_000;

/// A process id that is no longer in use.
fn dead_pid() -> u32 {
    let mut child = std::process::Command::new("true").spawn().unwrap();
    child.wait().unwrap();
    child.id()
}

/// Claims the next entry for `pid`, and does nothing more.
fn claim(seg: &QpSeg, pid: u32) -> u32 {
    let word = seg.hdr().head.word.load(Relaxed);
    seg.hdr().head.word.store(u64::from(pid) << 32 | u64::from(word as u32 + 1), Relaxed);
    word as u32
}

#[test]
fn a_dead_claimer_is_skipped_and_its_receive_kept() {
    for has_signed in [true, false] {
        for followed in [true, false] {
            let (side, to, seg) = side();
            side.recv(1);
            side.recv(2);
            let pid = dead_pid();
            let index = claim(&seg, pid);
            if has_signed {
                seg.desc(index).claimer.store(signature(pid, index, seg.layout().ring), Relaxed);
            }
            if followed {
                side.qp.send_inline(&to, 0, b"after", None).unwrap();
            }
            let got = side.received(MANY);
            assert_eq!(got, if followed { vec![(2, 5, DevStatus::Ok)] } else { vec![] });
            side.qp.send_inline(&to, 0, b"more", None).unwrap();
            let next = if followed { 1 } else { 2 };
            assert_eq!(
                side.received(MANY),
                [(next, 4, DevStatus::Ok)],
                "signed {has_signed} followed {followed}"
            );
        }
    }
}

/// The number of a dead claimer is that of a process by now which has nothing to do with the queue pair.
#[test]
fn a_dead_claimer_is_skipped_when_its_number_is_anothers() {
    let (side, to, seg) = side();
    side.recv(1);
    side.recv(2);
    let mut other = std::process::Command::new("sleep").arg("100").spawn().unwrap();
    let index = claim(&seg, other.id());
    seg.desc(index).claimer.store(signature(other.id(), index, seg.layout().ring), Relaxed);
    side.qp.send_inline(&to, 0, b"after", None).unwrap();
    let (start, mut got) = (std::time::Instant::now(), Vec::new());
    while got.is_empty() && start.elapsed() < Duration::from_secs(60) {
        got = side.received(MANY);
    }
    other.kill().unwrap();
    other.wait().unwrap();
    assert_eq!(got, [(2, 5, DevStatus::Ok)]);
    side.qp.send_inline(&to, 0, b"more", None).unwrap();
    assert_eq!(side.received(MANY), [(1, 4, DevStatus::Ok)]);
}

#[test]
fn a_slow_sender_is_waited_for() {
    let (side, to, seg) = side();
    side.recv(1);
    side.recv(2);
    let index = claim(&seg, std::process::id());
    seg.desc(index).claimer.store(signature(std::process::id(), index, seg.layout().ring), Relaxed);
    side.qp.send_inline(&to, 0, b"after", None).unwrap();
    assert_eq!(side.received(MANY), []);
    seg.desc(index).len.store(3, Relaxed);
    seg.desc(index).src.store(FLAG_INLINE, Relaxed);
    seg.desc(index).seq.store(index + 1, Release);
    assert_eq!(side.received(MANY), [(1, 3, DevStatus::Ok), (2, 5, DevStatus::Ok)]);
}

#[test]
fn messages_of_every_short_length_arrive_whole() {
    let (side, to, seg) = side();
    let (from, dst) = (side.mr.addr().wrapping_add(1 << 15), side.mr.addr());
    for len in (1..=SHORT + 2).chain([SHORT, INLINE]) {
        let bytes: Vec<u8> = (0..len).map(|i| (i * 7 + len) as u8).collect();
        // SAFETY: both halves of the region are this test's alone, and longer than the message.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), from, len) };
        // SAFETY: the same.
        unsafe { std::ptr::write_bytes(dst, 0xEE, len + 8) };
        side.recv(3);
        let index = seg.hdr().head.word.load(Relaxed) as u32;
        side.qp.send(&to, 0, &[Sge { addr: from, len: len as u32, lkey: side.mr.lkey() }], None).unwrap();
        assert_eq!(seg.desc(index).src.load(Relaxed) & FLAG_INLINE != 0, len <= SHORT, "{len}");
        assert_eq!(side.received(2), [(3, len as u32, DevStatus::Ok)]);
        // SAFETY: as above; the receive is over.
        let got = unsafe { std::slice::from_raw_parts(dst, len + 8) };
        assert_eq!(got[..len], bytes, "{len}");
        assert_eq!(got[len..], [0xEE; 8], "nothing behind a message of {len} bytes is written");
    }
}

#[test]
fn forged_lengths_and_flags_write_nothing() {
    let (side, _, seg) = side();
    for (len, flags) in
        [(SHORT as u32 + 1, FLAG_INLINE), (u32::MAX, FLAG_INLINE), ((1 << 15) + 1, 0), (u32::MAX, 0)]
    {
        side.recv(7);
        let index = claim(&seg, 1);
        seg.desc(index).len.store(len, Relaxed);
        seg.desc(index).src.store(flags, Relaxed);
        seg.desc(index).seq.store(index + 1, Release);
        assert_eq!(side.received(2), [(7, len, DevStatus::BadStatus)]);
    }
    let index = claim(&seg, 1);
    seg.desc(index).seq.store(index + 1, Release);
    assert_eq!(side.received(MANY), [], "there is no receive to complete");
}

#[test]
fn a_recv_wqe_outside_the_peers_memory_is_not_written() {
    let (side, to, seg) = side();
    let sge = Sge { addr: side.mr.addr(), len: 4000, lkey: side.mr.lkey() };
    let (base, key) = (side.mr.addr() as u64, u64::from(side.mr.lkey()));
    let beside = base + (1 << 16) - 3999;
    for (addr, key, status) in [
        (beside, key, DevStatus::InvalidLkey),
        (base - 1, key, DevStatus::InvalidLkey),
        (base, key ^ 1 << 17, DevStatus::InvalidLkey),
        // Key 0: the message goes through a payload slot, whatever the address.
        (0, 0, DevStatus::Ok),
        (u64::MAX - 5, 0, DevStatus::Ok),
    ] {
        side.recv(3);
        let index = seg.hdr().head.word.load(Relaxed) as u32;
        seg.recv_wqe(index).addr.store(addr, Relaxed);
        seg.recv_wqe(index).len_lkey.store(key << 32 | 9000, Relaxed);
        side.qp.send(&to, 0, &[sge], None).unwrap();
        assert_eq!(side.received(2), [(3, 4000, status)], "{addr:#x} {key:#x}");
    }
}

#[test]
fn a_recv_wqe_at_the_end_of_the_address_space_does_not_overflow() {
    let (side, to, seg) = side();
    let region =
        Region { addr: u64::MAX - 100, len: u64::MAX, access: Access::ALL, pd: seg_pd(&seg), file: None };
    let key = side.dev.0.link.0.table.insert(&region).unwrap();
    side.recv(3);
    let index = seg.hdr().head.word.load(Relaxed) as u32;
    seg.recv_wqe(index).addr.store(u64::MAX - 10, Relaxed);
    seg.recv_wqe(index).len_lkey.store(u64::from(key) << 32 | 9000, Relaxed);
    let sge = |len| Sge { addr: side.mr.addr(), len, lkey: side.mr.lkey() };
    side.qp.send(&to, 0, &[sge(100), sge(100)], None).unwrap();
    assert_eq!(side.received(2), [(3, 200, DevStatus::InvalidLkey)]);
}

fn seg_pd_of(side: &Side) -> u32 {
    seg_pd(&QpSeg::attach(lookup::lookup("", side.dev.gid().iid(), side.qp.qpn()).ok().unwrap().0).unwrap().0)
}

fn seg_pd(seg: &QpSeg) -> u32 {
    seg.hdr().pd.load(Relaxed)
}

/// Peers can write the head: closing gives the receives back whatever it says.
#[test]
fn closing_ignores_impossible_claims() {
    for head in [1 << 31, 2_000_000_000, u32::MAX, 4] {
        let (side, _, seg) = side();
        (1..=3).for_each(|wr_id| side.recv(wr_id));
        seg.hdr().head.word.store(u64::from(head), Relaxed);
        side.qp.fail();
        let flushed = [1, 2, 3].map(|wr_id| (wr_id, 0, DevStatus::Flushed));
        assert_eq!(side.received(2), flushed, "{head}");
    }
}

#[test]
fn a_dead_claim_beyond_the_posted_receives_is_ignored() {
    let (side, to, seg) = side();
    let head = seg.hdr().head.word.load(Relaxed);
    claim(&seg, dead_pid());
    assert_eq!(side.received(MANY), []);
    seg.hdr().head.word.store(head, Relaxed);
    side.recv(1);
    side.qp.send_inline(&to, 0, b"after", None).unwrap();
    assert_eq!(side.received(MANY), [(1, 5, DevStatus::Ok)]);
}

#[test]
fn an_unsolicited_arrival_is_always_a_write() {
    let (side, _, seg) = side_of(Channel::Without, true);
    side.recv(0);
    seg.unsol_desc(0).len.store(5, Relaxed);
    seg.unsol_desc(0).src.store(FLAG_INLINE, Relaxed);
    seg.unsol_desc(0).seq.store(1, Release);
    let mut out = [Cqe::EMPTY; 4];
    assert_eq!(side.cq.poll(&mut out), 1);
    assert_eq!((out[0].op, out[0].wr_id, out[0].len), (CqeOp::RecvWriteImm, 0, 5));
}

#[test]
fn a_forged_publication_does_not_prevent_sleep() {
    let (side, _, seg) = side_with(Channel::With);
    seg.desc(0).seq.store(1, Release);
    assert_eq!(side.received(1), []);
    assert!(side.cq.arm());
}

#[test]
fn a_reused_pid_is_not_copied_from_or_to() {
    let (side, _, _) = side();
    let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
    let id = ProcId { pid: child.id(), start: ucs::sys::proc::start_time(child.id()).unwrap().unwrap() };
    let pidfd = PidFd::open(id).unwrap();
    let fd = side.dev.0.link.0.seg.fd();
    let file = DeviceFile { fd, inode: lookup::inode(std::process::id(), fd).unwrap() };
    let mem = SharedMem::open_proc(std::process::id(), fd, 1).unwrap();
    let (seg, mrs) = DevSeg::attach(mem).unwrap();
    // This process plays the peer: the pidfd is the dead one's, the pid ours.
    let remote = RemoteDevice::new(std::process::id(), Some((pidfd, file)), seg, mrs);
    let memory = RemoteMemory::default();
    let mut theirs = vec![7u8; 64];
    // SAFETY: `theirs` outlives the region.
    let private = unsafe { side.dev.reg_mr(&side.pd, theirs.as_mut_ptr(), 64, Access::ALL) }.unwrap();
    let pd = seg_pd_of(&side);
    let from = super::super::Sender { iid: side.dev.gid().iid(), qpn: 1, kind: QpKind::Srd };
    let op = |mr: &Mr<Shm>, local: &mut [u8]| super::super::Rdma {
        local: local.as_mut_ptr(),
        len: 64,
        raddr: mr.addr() as u64,
        rkey: mr.rkey(),
        total: 64,
        lkey: 0,
        pd: 0,
    };
    let mut local = [9u8; 64];
    assert_eq!(remote.write(&memory, pd, from, &op(&private, &mut local)), TryOutcome::Done(DevStatus::Ok));
    child.kill().unwrap();
    child.wait().unwrap();
    std::thread::sleep(Duration::from_millis(200));
    local.fill(1);
    for mr in [&private, &side.mr] {
        let gone = TryOutcome::Done(DevStatus::BadDestQpn);
        assert_eq!(remote.write(&memory, pd, from, &op(mr, &mut local)), gone);
        assert_eq!(remote.read(&memory, pd, from, &op(mr, &mut local)), gone);
    }
    assert_eq!((local, theirs), ([1; 64], vec![9; 64]));
}

#[test]
fn a_reused_key_maps_the_new_memory() {
    let (side, to, _) = side();
    let new = || side.dev.alloc_mr(&side.pd, 4096, Access::ALL).unwrap();
    let write = |mr: &Mr<Shm>, byte: u8| {
        // SAFETY: the region is this test's alone, and longer.
        unsafe { side.mr.addr().write_bytes(byte, 64) };
        let sge = Sge { addr: side.mr.addr(), len: 64, lkey: side.mr.lkey() };
        side.qp.write(&to, 1, sge, mr.addr() as u64, mr.rkey(), None).unwrap();
        let mut out = [Cqe::EMPTY];
        assert_eq!((side.cq.poll(&mut out), out[0].status), (1, DevStatus::Ok));
        // SAFETY: the same; the write is over.
        assert_eq!(unsafe { std::slice::from_raw_parts(mr.addr(), 64) }, [byte; 64]);
    };
    let first = new();
    let key = first.rkey();
    write(&first, 1);
    drop(first);
    let again = std::iter::repeat_with(new).take(1 << 20).find(|mr| mr.rkey() == key);
    write(&again.expect("a million keys"), 2);
}

#[test]
fn a_forked_child_does_not_close_the_parents_device() {
    let (side, to, _seg) = side();
    side.recv(1);
    // SAFETY: the child only drops what it has and exits; that takes no lock another thread may hold.
    match unsafe { libc::fork() } {
        0 => {
            side.dev.destroy_ah(&side.pd, to.ah);
            side.qp.fail();
            drop(side);
            // SAFETY: ends the child without what the test's process does at its end.
            unsafe { libc::_exit(0) }
        }
        child => {
            let mut status = 0;
            // SAFETY: waits for the child.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            assert_eq!(status, 0);
        }
    }
    side.qp.send_inline(&to, 0, b"after", None).unwrap();
    assert_eq!(side.received(MANY), [(1, 5, DevStatus::Ok)]);
    let sge = Sge { addr: side.mr.addr(), len: 64, lkey: side.mr.lkey() };
    side.qp.write(&to, 1, sge, side.mr.addr() as u64 + 64, side.mr.rkey(), None).unwrap();
    let mut out = [Cqe::EMPTY];
    assert_eq!((side.cq.poll(&mut out), out[0].status), (1, DevStatus::Ok));
}

#[test]
fn a_dead_claimer_of_a_failed_queue_pair_keeps_no_receive() {
    let (side, _, seg) = side();
    side.recv(1);
    side.recv(2);
    claim(&seg, dead_pid());
    side.qp.fail();
    let flushed = [2, 1].map(|wr_id| (wr_id, 0, DevStatus::Flushed));
    assert_eq!(side.received(MANY), flushed);
}

#[test]
fn a_shorter_receive_refuses_a_longer_message() {
    let (side, to, _seg) = side();
    let recv = |len| side.qp.recv(1, Sge { addr: side.mr.addr(), len, lkey: side.mr.lkey() }).unwrap();
    // The first fills the cache before anything is posted.
    side.qp.send_inline(&to, 1, b"01234567", None).unwrap();
    recv(8);
    assert_eq!(side.received(2), [(1, 8, DevStatus::Ok)]);
    recv(7);
    side.qp.send_inline(&to, 2, b"01234567", None).unwrap();
    assert_eq!(side.received(2), [(1, 8, DevStatus::BadLength)], "too long for the receive");
    recv(7);
    side.qp.send_inline(&to, 3, b"0123456", None).unwrap();
    assert_eq!(side.received(2), [(1, 7, DevStatus::Ok)]);
}

#[test]
fn messages_in_payload_slots_arrive_whole() {
    const N: usize = 256;
    const LEN: usize = 1000;
    let dev = open_shm(&Source::empty(), "softefa0").unwrap();
    let pd = dev.alloc_pd().unwrap();
    let cq = dev.create_cq(4 * N as u32, Channel::Without).unwrap();
    let init = QpInit {
        kind: QpKind::Srd,
        send_depth: 2 * N as u32,
        recv_depth: N as u32,
        qkey: 1,
        rnr_retry: 7,
        unsolicited_write_recv: false,
    };
    let qp = dev.create_qp(&pd, &cq, &cq, &init).unwrap();
    let to = Dest { ah: dev.create_ah(&pd, dev.gid()).unwrap(), qpn: qp.qpn(), qkey: 1 };
    let mut dst = vec![0u8; N * LEN];
    // SAFETY: `dst` outlives the region, and is read only between arrivals.
    let mr = unsafe { dev.reg_mr(&pd, dst.as_mut_ptr(), N * LEN, Access::LOCAL_WRITE) }.unwrap();
    let from = dev.alloc_mr(&pd, LEN, Access::LOCAL_WRITE).unwrap();
    let part = |i: usize| Sge { addr: mr.addr().wrapping_add(i * LEN), len: LEN as u32, lkey: mr.lkey() };
    let send = |n: usize| {
        let bytes: Vec<u8> = (0..LEN).map(|i| (n * 7 + i) as u8).collect();
        // SAFETY: the region is as long, and nobody reads it now.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), from.addr(), LEN) };
        qp.send(&to, n as u64, &[Sge { addr: from.addr(), len: LEN as u32, lkey: from.lkey() }], None)
            .unwrap();
    };
    (0..N).for_each(|i| qp.recv(i as u64, part(i)).unwrap());
    let (mut sent, mut got) = (0, 0);
    // Number of messages sent, then of arrivals taken.
    for (burst, take) in [(10, 10), (64, 30), (100, 100), (N - 40, 1), (1, 1), (7, 0), (0, 10 * N)] {
        (0..burst).for_each(|n| send(sent + n));
        sent += burst;
        let until = sent.min(got + take);
        while got < until {
            let mut out = [Cqe::EMPTY];
            assert_eq!(cq.poll(&mut out), 1);
            assert_eq!(out[0].status, DevStatus::Ok);
            if out[0].op == CqeOp::Recv {
                let at = out[0].wr_id as usize;
                assert_eq!((at, out[0].len as usize), (got % N, LEN));
                // SAFETY: inside `dst`, where nothing arrives before the receive is posted again.
                let bytes = unsafe { std::slice::from_raw_parts(mr.addr().wrapping_add(at * LEN), LEN) };
                assert!(bytes.iter().enumerate().all(|(i, b)| *b == (got * 7 + i) as u8), "message {got}");
                got += 1;
                qp.recv(at as u64, part(at)).unwrap();
            }
        }
    }
    assert_eq!(got, sent);
}

#[test]
fn a_sleeper_with_an_unpublished_claim_wakes_by_timer() {
    let (side, _, seg) = side_with(Channel::With);
    side.recv(1);
    let index = claim(&seg, std::process::id());
    assert!(side.cq.arm());
    seg.desc(index).len.store(3, Relaxed);
    seg.desc(index).src.store(FLAG_INLINE, Relaxed);
    seg.desc(index).seq.store(index + 1, Release);
    let epoll = Epoll::new().unwrap();
    epoll.add(side.cq.event_fd().unwrap(), 1).unwrap();
    let mut tokens = Vec::new();
    epoll.wait(&mut tokens, Some(Duration::from_secs(20))).unwrap();
    assert_eq!(tokens, [1]);
    assert_eq!(side.received(2), [(1, 3, DevStatus::Ok)]);
}

#[test]
fn no_wakeup_is_lost_between_two_sleepers() {
    const ROUNDS: u64 = 2000;
    let (tx, rx) = std::sync::mpsc::channel::<(Gid, u16)>();
    let (tx_back, rx_back) = std::sync::mpsc::channel::<(Gid, u16)>();
    let sleeper = |first: bool, tx: std::sync::mpsc::Sender<_>, rx: std::sync::mpsc::Receiver<_>| {
        move || {
            let (side, to_me, _) = side_with(Channel::With);
            side.recv(0);
            tx.send((side.dev.gid(), side.qp.qpn())).unwrap();
            let (gid, qpn) = rx.recv().unwrap();
            let to = Dest { ah: side.dev.create_ah(&side.pd, gid).unwrap(), qpn, ..to_me };
            let epoll = Epoll::new().unwrap();
            epoll.add(side.cq.event_fd().unwrap(), 1).unwrap();
            let mut out = [Cqe::EMPTY; 4];
            let mut arrived = || {
                loop {
                    let n = side.cq.poll(&mut out);
                    if out[..n].iter().any(|c| c.op == CqeOp::Recv) {
                        return side.recv(0);
                    }
                    if n == 0 && side.cq.arm() {
                        let mut tokens = Vec::new();
                        epoll.wait(&mut tokens, Some(Duration::from_secs(20))).unwrap();
                        assert!(!tokens.is_empty(), "a wake-up was lost");
                    }
                }
            };
            for round in 0..ROUNDS {
                if !first || round > 0 {
                    arrived();
                }
                // Earlier and later than the other's arming.
                (0..round % 64 * 8).for_each(|_| std::hint::spin_loop());
                side.qp.send_inline(&to, 1, b"wake up", None).unwrap();
            }
            if first {
                arrived();
            }
        }
    };
    let one = std::thread::spawn(sleeper(true, tx, rx_back));
    let other = std::thread::spawn(sleeper(false, tx_back, rx));
    one.join().unwrap();
    other.join().unwrap();
}

/// Not a test: the other process of the next one, which prints the outcome of a lookup.
#[test]
#[ignore = "started by another_pid_namespace_is_denied"]
fn lookup_process() {
    let name = std::env::var("LOOKUP_NAME").unwrap();
    let (iid, qpn) = name.split_once(' ').unwrap();
    let found = match lookup::lookup("", iid.parse().unwrap(), qpn.parse().unwrap()) {
        Ok((_, pid)) => format!("process {pid}"),
        Err(LookupError::NotFound) => "nobody".into(),
        Err(LookupError::Denied(why)) => why,
        Err(LookupError::DeviceDown | LookupError::Retry) => "something else".into(),
    };
    println!("\nfound {found}.");
}

#[test]
fn another_pid_namespace_is_denied() {
    let (side, ..) = side();
    let mut lookup_process = std::process::Command::new("unshare");
    lookup_process.args(["--pid", "--fork", "--"]).arg(std::env::current_exe().unwrap());
    lookup_process.args([
        "--ignored",
        "--exact",
        "--nocapture",
        "efa::dev::soft::link::shm::tests::lookup_process",
    ]);
    lookup_process.env("LOOKUP_NAME", format!("{} {}", side.dev.gid().iid(), side.qp.qpn()));
    let output = match lookup_process.output() {
        Ok(out) if out.status.success() => String::from_utf8_lossy(&out.stdout).into_owned(),
        Ok(out) => {
            return ucs::testing::skipped("another pid namespace", String::from_utf8_lossy(&out.stderr));
        }
        Err(e) => return ucs::testing::skipped("another pid namespace", e),
    };
    assert!(output.contains("found the queue pair's process is in another pid namespace."), "{output}");
}

#[test]
fn qp_names_are_unique_and_vanish() {
    let iid = 0x77aa_0000_0000_0001 | u64::from(std::process::id()) << 16;
    let name = QpName::bind("", iid, 9).unwrap().unwrap();
    assert!(QpName::bind("", iid, 9).unwrap().is_none());
    assert!(matches!(lookup::lookup("", iid, 9), Err(LookupError::NotFound)), "not published yet");
    name.listen().unwrap();
    assert!(
        matches!(lookup::lookup("", iid, 9), Err(LookupError::NotFound)),
        "published, but without a segment"
    );
    drop(name);
    assert!(QpName::bind("", iid, 9).unwrap().is_some());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn attaching_rejects_or_bounds_any_header(pokes in proptest::collection::vec((0usize..32, any::<u32>(), any::<bool>()), 0..4)) {
        let identity = QpIdentity { iid: 1, qpn: 2, pid: 3, start: 4, dev_fd: 5, qkey: 6, pd: 7, wake_fd: -1, mtu: 128, kind: QpKind::Srd };
        let layout = QpLayout { ring: 8, unsol: 8, slot_len: 128 };
        let seg = QpSeg::create("softefa.test", layout, &identity).unwrap();
        for (word, value, small) in pokes {
            let at = std::ptr::from_ref(seg.hdr()).cast::<AtomicU32>().wrapping_add(word);
            // SAFETY: the first 128 bytes of the header, which are atomics.
            unsafe { &*at }.store(if small { 1 << (value % 17) } else { value }, Relaxed);
        }
        if let Some((seg, _)) = QpSeg::attach(seg.into_mem()) {
            let layout = seg.layout();
            seg.desc(u32::MAX).seq.load(Relaxed);
            seg.recv_wqe(u32::MAX).addr.load(Relaxed);
            let last = seg.cold_slot(u32::MAX);
            prop_assert!(seg.payload(seg.hot_slot(u32::MAX), layout.slot_len).is_some());
            prop_assert!(seg.payload(last, layout.slot_len).is_some());
            prop_assert!(seg.payload(last, layout.slot_len + 1).is_none());
            prop_assert!(seg.payload(0, 1).is_none());
        }
    }
}

#[test]
fn a_sender_without_descriptors_wakes_the_receiver_with_a_later_message() {
    let (side, _, seg) = side_with(Channel::With);
    side.recv(1);
    let remote = side.dev.link().attach(side.dev.gid().iid(), side.qp.qpn(), QpKind::Srd).ok().unwrap();
    assert!(side.cq.arm());
    let is_armed = || ring::armed(&seg.hdr().armed.flag).is_some();
    let seen = ring::armed(&seg.hdr().armed.flag).unwrap();
    let errno = ucs::Errno(libc::EMFILE);
    remote.wake_by(seen, || Err(MemError::Descriptors { what: "a peer's segment", errno }));
    assert!(is_armed(), "nobody would wake it any more");
    let epoll = Epoll::new().unwrap();
    epoll.add(side.cq.event_fd().unwrap(), 1).unwrap();
    remote.wake(seen);
    assert!(!is_armed());
    assert_eq!(epoll.wait(&mut Vec::new(), Some(Duration::from_secs(20))), Ok(1));
}

/// One sender stops within its wake-up, another one is so late that the receiver has armed again.
#[test]
fn senders_that_stop_within_a_wakeup_take_it_from_nobody() {
    let (side, to, seg) = side_with(Channel::With);
    side.recv(1);
    let remote = side.dev.link().attach(side.dev.gid().iid(), side.qp.qpn(), QpKind::Srd).ok().unwrap();
    let flag = &seg.hdr().armed.flag;
    assert!(side.cq.arm());
    let seen = ring::armed(flag).unwrap();
    ring::wake(flag, seen, || {
        assert_eq!(ring::armed(flag), Some(seen), "the signal comes first");
        false
    });
    assert_eq!(ring::armed(flag), Some(seen));
    assert!(side.cq.arm());
    remote.wake(seen);
    let epoll = Epoll::new().unwrap();
    epoll.add(side.cq.event_fd().unwrap(), 1).unwrap();
    let is_readable = || epoll.wait(&mut Vec::new(), Some(Duration::from_millis(1))) == Ok(1);
    assert!(is_readable() && ring::armed(flag).is_some_and(|now| now != seen), "a wake-up for nothing");
    side.qp.send_inline(&to, 1, b"message", None).unwrap();
    assert!(ring::armed(flag).is_none() && is_readable());
    assert_eq!(side.received(2), [(1, 7, DevStatus::Ok)]);
}
