//! One side of a joint copy is the device, the other is played by the test through its own mapping of the
//! segment.

use super::super::remote_device::{DeviceFile, RemoteDevice, RemoteMemory};
use super::super::seg::DevSeg;
use super::super::{Shm, TryOutcome, lookup};
use super::*;
use crate::efa::dev::soft::link::{Link, Sender};
use crate::efa::dev::soft::{Ah, Cq, Device, Mr, Pd, Qp, open_shm};
use crate::efa::dev::{Channel, Cqe, Dest, Dev, DevCq, DevMr, DevQp, QpInit, QpKind, Sge};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::thread;
use ucs::config::Source;
use ucs::mem::SharedMem;
use ucs::sys::PidFd;

const LEN: usize = 1 << 20;
const PART: usize = 256 << 10;

const INIT: QpInit = QpInit {
    kind: QpKind::Srd,
    send_depth: 8,
    recv_depth: 8,
    qkey: 1,
    rnr_retry: 7,
    unsolicited_write_recv: false,
};

/// A device that is its own peer, with memory that no other process maps.
struct Side {
    dev: Device<Shm>,
    pd: Pd,
    cq: Cq<Shm>,
    qp: Qp<Shm>,
    to: Dest<Ah>,
    /// Both registered: requests go between the two halves.
    mr: Mr<Shm>,
    bytes: Vec<u8>,
}

fn seg_of(dev: &Device<Shm>) -> DevSeg {
    let mem = SharedMem::open_proc(std::process::id(), dev.link().0.seg.fd(), 1).unwrap();
    DevSeg::attach(mem).unwrap().0
}

impl Side {
    fn new() -> Side {
        let dev = open_shm(&Source::empty(), "softefa0").unwrap();
        let pd = dev.alloc_pd().unwrap();
        let cq = dev.create_cq(64, Channel::Without).unwrap();
        let qp = dev.create_qp(&pd, &cq, &cq, &INIT).unwrap();
        let to = Dest { ah: dev.create_ah(&pd, dev.gid()).unwrap(), qpn: qp.qpn(), qkey: 1 };
        let mut bytes = vec![0; 2 * LEN];
        // SAFETY: the bytes outlive the region: they are dropped after it, and never grow.
        let mr = unsafe { dev.reg_mr(&pd, bytes.as_mut_ptr(), 2 * LEN, Access::ALL) }.unwrap();
        let side = Side { dev, pd, cq, qp, to, mr, bytes };
        side.fill();
        // Attaches the device to itself.
        side.read(1);
        assert_eq!(side.poll(), Some(DevStatus::Ok));
        side.fill();
        side
    }

    fn theirs(&self) -> *mut u8 {
        self.mr.addr().wrapping_add(LEN)
    }

    /// Writes a pattern into the second half, and zeroes into the first.
    fn fill(&self) {
        for at in 0..LEN {
            // SAFETY: inside the registered bytes, which nobody else uses now.
            unsafe { self.theirs().wrapping_add(at).write((at / 1000) as u8 | 1) };
        }
        // SAFETY: the same.
        unsafe { self.mr.addr().write_bytes(0, LEN) };
    }

    /// Whether the bytes of the second half are in the first, from `from` on.
    fn is_copied(&self, from: usize, to: usize) -> bool {
        self.bytes[from..to] == self.bytes[LEN + from..LEN + to]
    }

    fn is_untouched(&self, from: usize, to: usize) -> bool {
        self.bytes[from..to].iter().all(|byte| *byte == 0)
    }

    fn read(&self, len: usize) {
        let sge = Sge { addr: self.mr.addr(), len: len as u32, lkey: self.mr.lkey() };
        self.qp.read(&self.to, 7, sge, self.theirs() as u64, self.mr.rkey()).unwrap();
    }

    fn poll(&self) -> Option<DevStatus> {
        let mut out = [Cqe::EMPTY];
        (self.cq.poll(&mut out) == 1).then(|| out[0].status)
    }

    fn pd(&self) -> u32 {
        self.mr_region().pd
    }

    fn mr_region(&self) -> crate::efa::dev::soft::mr::Region {
        let (_, keys) =
            DevSeg::attach(SharedMem::open_proc(std::process::id(), self.dev.link().0.seg.fd(), 1).unwrap())
                .unwrap();
        keys.find(self.mr.rkey()).unwrap()
    }

    /// Offers a read of the second half into the first, changed by `change`, as a requester does.
    fn offer(&self, seg: &DevSeg, change: impl FnOnce(&CopySlot)) {
        let slot = &seg.hdr().copies[3];
        joint::begin(&slot.word).expect("the slot is free");
        let op = Rdma {
            local: self.mr.addr(),
            len: LEN as u32,
            raddr: self.theirs() as u64,
            rkey: self.mr.rkey(),
            total: LEN as u32,
            lkey: 0,
            pd: 0,
        };
        slot.fill(ProcId::current(), self.pd(), &op, (LEN as u32, PART as u32), CopyDir::FromPeer);
        change(slot);
        joint::offer(&slot.word, (LEN / PART) as u32);
        seg.hdr().offers.bits.store(1 << 3, Relaxed);
    }
}

#[test]
fn a_poll_that_finds_nothing_copies_the_last_part_of_a_copy_offered() {
    let side = Side::new();
    let seg = seg_of(&side.dev);
    assert!(!side.dev.link().has_offers());
    side.offer(&seg, |_| {});
    assert!(!side.cq.is_idle(), "an offer is work");
    assert_eq!(side.poll(), None);
    assert!(side.is_untouched(0, LEN - PART) && side.is_copied(LEN - PART, LEN));
    let word = &seg.hdr().copies[3].word;
    assert_eq!((joint::peer_state(word), joint::claim_first(word)), (PeerState::Done, Some(0)));
    for _ in 0..4 {
        assert_eq!(side.poll(), None);
    }
    // The first part is the requester's.
    assert!(side.is_untouched(0, PART) && side.is_copied(PART, LEN));
    assert_eq!((joint::last_claimed(word), joint::claim_first(word)), (1, None));
}

#[test]
fn an_offered_write_fills_the_owners_memory() {
    let side = Side::new();
    let seg = seg_of(&side.dev);
    side.offer(&seg, |slot| {
        slot.write.store(1, Relaxed);
        slot.raddr.store(side.mr.addr() as u64, Relaxed);
        slot.laddr.store(side.theirs() as u64, Relaxed);
    });
    (0..4).for_each(|_| assert_eq!(side.poll(), None));
    assert!(side.is_copied(0, LEN));
}

#[test]
fn an_offer_that_the_owners_keys_do_not_allow_copies_nothing() {
    let forged: [&dyn Fn(&CopySlot); 6] = [
        &|slot| slot.rkey.store(0x1234, Relaxed),
        &|slot| slot.pd.store(99, Relaxed),
        &|slot| slot.raddr.store(slot.raddr.load(Relaxed) + 4096, Relaxed),
        &|slot| slot.raddr.store(u64::MAX - 4096, Relaxed),
        &|slot| slot.part.store(u32::MAX, Relaxed),
        &|slot| slot.len.store(4096, Relaxed),
    ];
    for forge in forged {
        let side = Side::new();
        let seg = seg_of(&side.dev);
        side.offer(&seg, forge);
        (0..4).for_each(|_| assert_eq!(side.poll(), None));
        assert!(side.is_untouched(0, LEN));
        let word = &seg.hdr().copies[3].word;
        assert_eq!(joint::peer_state(word), PeerState::Failed, "the requester is to copy the part");
    }
}

#[test]
fn a_copy_of_an_unknown_process_is_left_to_it_and_its_slot_freed_when_it_is_dead() {
    let side = Side::new();
    let seg = seg_of(&side.dev);
    let mut child = std::process::Command::new("true").spawn().unwrap();
    child.wait().unwrap();
    side.offer(&seg, |slot| slot.pid.store(child.id(), Relaxed));
    let word = &seg.hdr().copies[3].word;
    assert_eq!(side.poll(), None);
    assert!(side.is_untouched(0, LEN) && joint::is_used(word));
    // Upkeep comes with idle polls.
    (0..10_000).for_each(|_| assert_eq!(side.poll(), None));
    assert!(!joint::is_used(word) && !side.dev.link().has_offers());
    // A requester that had taken its offer back waited for a part.
    side.offer(&seg, |slot| slot.pid.store(child.id(), Relaxed));
    seg.hdr().offers.bits.store(0, Relaxed);
    (0..10_000).for_each(|_| assert_eq!(side.poll(), None));
    assert!(!joint::is_used(word));
}

/// Plays the peer: takes the last part of the copy that `side` offers, and ends it as `end` says.
fn play_peer(seg: &DevSeg, end: impl FnOnce(&CopySlot, u32)) {
    let slot = &seg.hdr().copies[0];
    loop {
        let seen = joint::load(&slot.word);
        if joint::is_offered(seen)
            && let Some(part) = joint::claim_last(&slot.word, seen)
        {
            return end(slot, part);
        }
        thread::yield_now();
    }
}

/// Reads until the played peer has had a part, which it ends after the requester's call has returned.
fn read_with_slow_peer(copies: bool) -> DevStatus {
    let side = Side::new();
    let seg = seg_of(&side.dev);
    let (ours, theirs) = (side.mr.addr() as usize, side.theirs() as usize);
    thread::scope(|scope| {
        let peer = scope.spawn(|| {
            play_peer(&seg, |slot, part| {
                thread::sleep(5 * WAIT);
                let at = part as usize * PART;
                if copies {
                    // SAFETY: the part is claimed: nobody else writes there.
                    unsafe { std::ptr::copy((theirs + at) as *const u8, (ours + at) as *mut u8, PART) };
                }
                joint::end_part(&slot.word, copies);
            });
        });
        let status = loop {
            side.fill();
            side.read(LEN);
            // The requester may have copied all before the peer came.
            let status = loop {
                if let Some(status) = side.poll() {
                    break status;
                }
            };
            if peer.is_finished() {
                break status;
            }
        };
        assert!(side.is_copied(0, LEN));
        assert!(!joint::is_used(&seg.hdr().copies[0].word), "the slot is free again");
        status
    })
}

#[test]
fn a_request_waits_for_the_part_of_a_slow_peer_in_its_polls() {
    assert_eq!(read_with_slow_peer(true), DevStatus::Ok);
}

#[test]
fn a_part_that_the_peer_could_not_copy_is_the_requesters() {
    assert_eq!(read_with_slow_peer(false), DevStatus::Ok);
}

#[test]
fn a_request_ends_when_its_peer_dies_within_a_part() {
    let side = Side::new();
    let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
    let start = proc::start_time(child.id()).unwrap().unwrap();
    let pidfd = PidFd::open(ProcId { pid: child.id(), start }).unwrap();
    let fd = side.dev.link().0.seg.fd();
    let file = DeviceFile { fd, inode: lookup::inode(std::process::id(), fd).unwrap() };
    let mem = SharedMem::open_proc(std::process::id(), fd, 1).unwrap();
    let (seg, keys) = DevSeg::attach(mem).unwrap();
    // This process plays the peer: the pidfd is the dead one's, the pid ours.
    let remote = RemoteDevice::new(std::process::id(), Some((pidfd, file)), seg, keys);
    let memory = RemoteMemory::default();
    let mut op = Rdma {
        local: side.mr.addr(),
        len: LEN as u32,
        raddr: side.theirs() as u64,
        rkey: side.mr.rkey(),
        total: LEN as u32,
        lkey: 0,
        pd: 0,
    };
    let from = Sender { iid: side.dev.gid().iid(), qpn: 1, kind: QpKind::Srd };
    let seg = seg_of(&side.dev);
    let outcome = thread::scope(|scope| {
        let peer = scope.spawn(|| {
            play_peer(&seg, |_, _| {
                child.kill().unwrap();
                child.wait().unwrap();
            });
        });
        loop {
            match remote.read(&memory, side.pd(), from, &op) {
                // The peer is slow to die: the rest of the request waits for its part.
                TryOutcome::Partial(done) => {
                    op.local = op.local.wrapping_add(done as usize);
                    op.raddr += u64::from(done);
                    op.len -= done;
                }
                TryOutcome::Busy => thread::yield_now(),
                TryOutcome::Done(DevStatus::Ok) if !peer.is_finished() => {}
                outcome => break outcome,
            }
        }
    });
    assert_eq!(outcome, TryOutcome::Done(DevStatus::BadDestQpn));
}

#[test]
fn deregistration_waits_for_a_part_that_another_thread_copies() {
    let side = Side::new();
    let link = side.dev.link().clone();
    let (begun, ended) = (AtomicBool::new(false), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            // What a thread has while it copies.
            let _copies = link.0.copies.read().unwrap();
            begun.store(true, SeqCst);
            thread::sleep(Duration::from_millis(50));
            ended.store(true, SeqCst);
        });
        while !begun.load(SeqCst) {
            thread::yield_now();
        }
        side.mr.revoke();
        assert!(ended.load(SeqCst), "the memory was given back meanwhile");
    });
}

/// Reads until a played peer has taken a part of the copy, which it does not end.
fn begin_with_stopped_peer(side: &Side, seg: &DevSeg) {
    thread::scope(|scope| {
        let peer = scope.spawn(|| play_peer(seg, |_, _| {}));
        while !peer.is_finished() {
            side.read(LEN);
            // The requester may have copied all before the peer came.
            while side.poll().is_none() && !peer.is_finished() {}
        }
    });
    assert!(side.qp.in_flight() == 1 && joint::is_used(&seg.hdr().copies[0].word));
}

#[test]
fn a_slot_given_up_on_a_stopped_peer_is_free_when_the_peer_has_gone_on() {
    let side = Side::new();
    let seg = seg_of(&side.dev);
    let word = &seg.hdr().copies[0].word;
    begin_with_stopped_peer(&side, &seg);
    side.qp.fail();
    assert!(joint::is_used(word), "the peer may still read the slot");
    joint::end_part(word, true);
    let cq = side.dev.create_cq(64, Channel::Without).unwrap();
    let qp = side.dev.create_qp(&side.pd, &cq, &cq, &INIT).unwrap();
    let to = Dest { qpn: qp.qpn(), ..side.to };
    let sge = Sge { addr: side.mr.addr(), len: LEN as u32, lkey: side.mr.lkey() };
    qp.read(&to, 7, sge, side.theirs() as u64, side.mr.rkey()).unwrap();
    let mut out = [Cqe::EMPTY];
    assert_eq!((cq.poll(&mut out), out[0].status), (1, DevStatus::Ok));
    assert!(!joint::is_used(word), "no later copy finds it free");
}

#[test]
fn a_forked_child_leaves_an_unfinished_copy_to_its_parent() {
    let side = Side::new();
    let seg = seg_of(&side.dev);
    begin_with_stopped_peer(&side, &seg);
    // SAFETY: the child only drops what it has and exits; that takes no lock another thread may hold.
    match unsafe { libc::fork() } {
        0 => {
            side.qp.fail();
            drop(side);
            // SAFETY: ends the child without what the test's process does at its end.
            unsafe { libc::_exit(0) }
        }
        child => {
            let word = &seg.hdr().copies[0].word;
            // The peer ends its part while the child drops.
            thread::sleep(Duration::from_millis(20));
            joint::end_part(word, true);
            let mut status = 0;
            // SAFETY: waits for the child.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            assert_eq!(status, 0);
            assert!(joint::is_used(word), "the copy is the parent's");
        }
    }
    let status = loop {
        if let Some(status) = side.poll() {
            break status;
        }
    };
    assert_eq!(status, DevStatus::Ok);
}

/// Ends the played peer, also when the test fails.
struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

#[test]
fn two_devices_copy_large_requests_whole() {
    let target = Side::new();
    let from = Side::new();
    let to =
        Dest { ah: from.dev.create_ah(&from.pd, target.dev.gid()).unwrap(), qpn: target.qp.qpn(), qkey: 1 };
    // The target attaches the requester when it has sent something.
    let back =
        Dest { ah: target.dev.create_ah(&target.pd, from.dev.gid()).unwrap(), qpn: from.qp.qpn(), qkey: 1 };
    let sge = Sge { addr: target.mr.addr(), len: 1, lkey: target.mr.lkey() };
    target.qp.write(&back, 1, sge, from.mr.addr() as u64, from.mr.rkey(), None).unwrap();
    assert_eq!(target.poll(), Some(DevStatus::Ok));
    let stop = AtomicBool::new(false);
    let link = target.dev.link().clone();
    thread::scope(|scope| {
        let _stop = StopAtEnd(&stop);
        // Queue pairs belong to a thread: this one does what a poll of the target's does.
        scope.spawn(|| {
            while !stop.load(Relaxed) {
                link.join_copy();
            }
        });
        for len in [LEN, LEN - 1, MIN_LEN as usize, MIN_LEN as usize + 1, 70_000] {
            for write in [false, true] {
                from.fill();
                target.fill();
                let sge = Sge { addr: from.mr.addr(), len: len as u32, lkey: from.mr.lkey() };
                let (raddr, rkey) = (target.theirs() as u64, target.mr.rkey());
                match write {
                    true => from.qp.write(&to, 1, sge, raddr, rkey, None).unwrap(),
                    false => from.qp.read(&to, 1, sge, raddr, rkey).unwrap(),
                }
                let status = loop {
                    if let Some(status) = from.poll() {
                        break status;
                    }
                };
                assert_eq!(status, DevStatus::Ok);
                assert!(from.bytes[..len] == target.bytes[LEN..LEN + len], "{len} bytes, write: {write}");
                let is_same = |side: &Side| side.bytes[LEN + len..] == from.bytes[LEN + len..];
                assert!(is_same(&target) && from.is_untouched(if write { 0 } else { len }, LEN));
            }
        }
    });
}
