//! Send side of one queue pair of another process (or this one): claim, write, publish, wake. Never waits.
//!
//! A message up to 32 bytes travels in the descriptor, one up to 96 also in its extension. A longer one is
//! written to the receiver's buffer if that is a memory file, else to a payload slot, from which the owner
//! copies.

#![allow(unsafe_code)]

use super::super::{Msg, Rdma, RemoteQp, Sender, TryOutcome};
use super::copy_marks::Mark;
use super::remote_device::{RemoteDevice, RemoteMemory};
use super::ring::{self, CLOSED};
use super::seg::{
    Credit, Desc, FLAG_ABORT, FLAG_COLD, FLAG_HOT, FLAG_IMM, FLAG_INLINE, FLAG_TOO_LONG, FLAG_VOID,
    FLAG_WRITE, Head, INLINE, QpIdentity, QpSeg, SHORT,
};
use crate::efa::dev::{DevStatus, QpKind};
use std::cell::{Cell, OnceCell};
use std::sync::Arc;
use std::time::Duration;
use ucs::Blame;
use ucs::mem::MemError;
use ucs::sync::Ordering::{Acquire, Relaxed, SeqCst};
use ucs::sync::{fence, prefetch_write};
use ucs::sys::{Waker, proc};

/// Operations between two liveness checks.
const LIVENESS_INTERVAL: u32 = 64;
const LIVENESS_VALID: Duration = Duration::from_millis(5);
const LIVENESS_MISSES: u32 = 256;

/// Distance of prefetched lines: they arrive before their claim. Nearer ones may be watched by the owner.
const PREFETCH_AHEAD: u32 = 4;

#[derive(Default)]
struct CreditCache {
    posted: Cell<u32>,
    min_recv_len: Cell<u32>,
    /// Whether some receive is written directly by senders.
    direct: Cell<bool>,
    taken: Cell<u32>,
}

/// A queue pair of a process on this host.
pub struct ShmRemoteQp {
    me: u32,
    seg: QpSeg,
    identity: QpIdentity,
    remote: Arc<RemoteDevice>,
    memory: RemoteMemory,
    ring: CreditCache,
    unsol: CreditCache,
    sent: Cell<u32>,
    misses: Cell<u32>,
    dead: Cell<bool>,
    /// `None` inside: it cannot be woken.
    waker: OnceCell<Option<Waker>>,
    warned_asleep: Cell<bool>,
}

/// A claimed ring entry, made by a compare-and-swap.
struct Claim {
    index: u32,
    word: u64,
}

impl ShmRemoteQp {
    pub(super) fn new(me: u32, seg: QpSeg, identity: QpIdentity, remote: Arc<RemoteDevice>) -> ShmRemoteQp {
        ShmRemoteQp {
            me,
            seg,
            identity,
            remote,
            memory: RemoteMemory::default(),
            ring: CreditCache::default(),
            unsol: CreditCache::default(),
            sent: Cell::new(0),
            misses: Cell::new(0),
            dead: Cell::new(false),
            waker: OnceCell::new(),
            warned_asleep: Cell::new(false),
        }
    }

    /// Whether a claim at `index` of a ring of this length may be tried.
    // HOT
    #[inline]
    fn granted(&self, index: u32, (head, credit): (&Head, &Credit), cache: &CreditCache, ring: u32) -> bool {
        if ring::is_below(index, cache.posted.get(), ring) {
            return true;
        }
        cache.posted.set(ring::granted(&credit.posted));
        cache.min_recv_len.set(credit.min_recv_len.load(Relaxed));
        cache.direct.set(credit.direct.load(Relaxed) != 0);
        ring::may_claim(&head.word, index, cache.posted.get(), ring)
    }

    #[cold]
    fn no_credit(&self) -> TryOutcome {
        let n = self.misses.get();
        self.misses.set(n.wrapping_add(1));
        if n.is_multiple_of(LIVENESS_MISSES) {
            self.check_alive();
        }
        if self.dead.get() { self.closed_outcome() } else { TryOutcome::NotReady }
    }

    #[cold]
    fn closed_outcome(&self) -> TryOutcome {
        TryOutcome::Done(if self.remote.is_down() { DevStatus::Unresponsive } else { DevStatus::BadDestQpn })
    }

    #[cold]
    fn check_alive(&self) {
        self.dead.set(self.remote.is_dead());
    }

    #[cold]
    fn check_alive_if_due(&self) {
        if !self.remote.seen_within(LIVENESS_VALID) {
            self.check_alive();
        }
    }

    // HOT
    #[inline]
    fn claim(
        &self,
        head: &Head,
        credit: &Credit,
        cache: &CreditCache,
        ring: u32,
    ) -> Result<Claim, TryOutcome> {
        let mut word = head.word.load(Relaxed);
        loop {
            if word & CLOSED != 0 {
                return Err(self.closed_outcome());
            }
            let index = word as u32;
            if !self.granted(index, (head, credit), cache, ring) {
                return Err(self.no_credit());
            }
            match self.try_claim(head, word) {
                Ok(claim) => return Ok(claim),
                Err(now) => word = now,
            }
        }
    }

    #[inline]
    fn try_claim(&self, head: &Head, word: u64) -> Result<Claim, u64> {
        let index = ring::claim_at(&head.word, word, self.me)?;
        self.misses.set(0);
        Ok(Claim { index, word })
    }

    /// Signs a descriptor after the claim: the owner can tell a slow sender from a dead one.
    // HOT
    #[inline]
    fn sign(&self, desc: &Desc, claim: &Claim, ring: u32) {
        ring::sign_claim(&desc.claimer, &desc.before, self.me, claim.word, ring);
    }

    /// Publishes a descriptor of either ring.
    // HOT
    #[inline]
    fn publish(&self, desc: &Desc, index: u32, from: Sender, len: u32, imm: Option<u32>, flags: u32) {
        let flags = flags | if imm.is_some() { FLAG_IMM } else { 0 };
        desc.len.store(len, Relaxed);
        desc.src_iid.store(from.iid, Relaxed);
        desc.imm.store(imm.unwrap_or(0), Relaxed);
        desc.src.store(u32::from(from.qpn) | flags, Relaxed);
        ring::publish(&desc.seq, index);
        if let Some(seen) = ring::armed(&self.seg.hdr().armed.flag) {
            self.wake(seen);
        }
    }

    /// Publishes a message's descriptor and prefetches a later one.
    // HOT
    #[inline]
    fn publish_msg(&self, desc: &Desc, index: u32, from: Sender, msg: &Msg<'_>, flags: u32) {
        self.publish(desc, index, from, msg.len(), msg.imm, flags);
        prefetch_write(self.seg.desc(index.wrapping_add(PREFETCH_AHEAD)).seq.as_ptr());
    }

    /// Wakes the receiver, whose flag was `seen`. If that fails, the flag stays set for other senders, and
    /// for later messages.
    #[cold]
    pub(super) fn wake(&self, seen: u32) {
        self.wake_by(seen, || Waker::open(self.identity.pid, self.identity.wake_fd));
    }

    pub(super) fn wake_by(&self, seen: u32, open: impl FnOnce() -> Result<Waker, MemError>) {
        let signal = || self.waker(open).is_some_and(|waker| waker.wake().is_ok());
        ring::wake(&self.seg.hdr().armed.flag, seen, signal);
    }

    /// Opens the receiver's pipe, unless it is open, or will never be.
    fn waker(&self, open: impl FnOnce() -> Result<Waker, MemError>) -> Option<&Waker> {
        if self.waker.get().is_none() {
            let waker = match open() {
                // If the peer is dead, its pid may be another's.
                Ok(waker) => Some(waker).filter(|_| !self.remote.is_dead()),
                Err(MemError::Gone { .. }) => None,
                Err(e) => {
                    if !self.warned_asleep.replace(true) {
                        tracing::warn!("cannot wake process {}: {e}", self.identity.pid);
                    }
                    if e.blame() != Blame::Peer {
                        // It may work for the next message.
                        return None;
                    }
                    None
                }
            };
            let _ = self.waker.set(waker);
        }
        self.waker.get()?.as_ref()
    }

    /// Checks liveness now and then; returns whether the receiver lives.
    // HOT
    #[inline]
    fn alive(&self) -> bool {
        let n = self.sent.get().wrapping_add(1);
        self.sent.set(n);
        if n.is_multiple_of(LIVENESS_INTERVAL) {
            self.check_alive_if_due();
        }
        !self.dead.get()
    }

    /// Sends a message. The lengths of receives are read after the credit, which covers them.
    // HOT
    #[inline]
    fn send_message(&self, from: Sender, msg: &Msg<'_>) -> TryOutcome {
        let h = self.seg.hdr();
        let (short, ring) = (msg.len() as usize <= SHORT, self.seg.layout().ring);
        let mut word = h.head.word.load(Acquire);
        loop {
            if word & CLOSED != 0 {
                return self.closed_outcome();
            }
            if !self.granted(word as u32, (&h.head, &h.credit), &self.ring, ring) {
                return self.no_credit();
            }
            if msg.len() > self.ring.min_recv_len.get() || (!short && self.ring.direct.get()) {
                match self.send_by_wqe(from, msg, word) {
                    Ok(outcome) => return outcome,
                    Err(now) => word = now,
                }
                continue;
            }
            match self.try_claim(&h.head, word) {
                Ok(claim) if short => return self.fill_desc(&claim, from, msg),
                Ok(claim) => return self.fill_slot(&claim, from, msg),
                Err(now) => word = now,
            }
        }
    }

    /// Publishes a short message in its descriptor and extension.
    // HOT
    #[inline]
    fn fill_desc(&self, claim: &Claim, from: Sender, msg: &Msg<'_>) -> TryOutcome {
        let desc = self.seg.desc(claim.index);
        self.sign(desc, claim, self.seg.layout().ring);
        let mut words = [0u64; SHORT / 8];
        // SAFETY: the caller has checked that the message is at most SHORT bytes, the size of `words`.
        if !unsafe { msg.copy_to(words.as_mut_ptr().cast()) } {
            return self.void(desc, claim.index, from, msg);
        }
        let (body, rest) = words.split_at(INLINE / 8);
        desc.body.iter().zip(body).for_each(|(to, &word)| to.store(word, Relaxed));
        if msg.len() as usize > INLINE {
            let desc_ext = self.seg.desc_ext(claim.index);
            desc_ext.0.iter().zip(rest).for_each(|(to, &word)| to.store(word, Relaxed));
            prefetch_write(self.seg.desc_ext(claim.index.wrapping_add(PREFETCH_AHEAD)).0[0].as_ptr());
        }
        self.publish_msg(desc, claim.index, from, msg, FLAG_INLINE);
        TryOutcome::Done(DevStatus::Ok)
    }

    /// Gives a claim back: the program has unmapped the message.
    #[cold]
    fn void(&self, desc: &Desc, index: u32, from: Sender, msg: &Msg<'_>) -> TryOutcome {
        self.publish_msg(desc, index, from, msg, FLAG_VOID);
        TryOutcome::Done(DevStatus::InvalidLkey)
    }

    /// Sends by the receive WQE, which is valid only if the claim succeeds. `Err`: the head moved.
    fn send_by_wqe(&self, from: Sender, msg: &Msg<'_>, word: u64) -> Result<TryOutcome, u64> {
        let head = &self.seg.hdr().head;
        let len = msg.len();
        let wqe = self.seg.recv_wqe(word as u32);
        let addr = wqe.addr.load(Relaxed);
        let len_lkey = wqe.len_lkey.load(Relaxed);
        let (cap, lkey) = (len_lkey as u32, (len_lkey >> 32) as u32);
        if len > cap && from.kind == QpKind::Ud {
            fence(Acquire);
            return match head.word.load(Relaxed) {
                now if now == word => Ok(TryOutcome::Done(DevStatus::RemoteBadLength)),
                now => Err(now),
            };
        }
        if len > cap {
            return Ok(self.send_too_long(&self.try_claim(head, word)?, from, msg));
        }
        if lkey == 0 {
            return Ok(self.fill_slot(&self.try_claim(head, word)?, from, msg));
        }
        let mark = self.mark(lkey);
        let target = self.remote.recv_buffer(&self.memory, self.identity.pd, lkey, addr, len);
        Ok(self.fill_recv_buffer(&self.try_claim(head, word)?, from, msg, (addr, target, mark)))
    }

    /// Consumes a receive that is too short; reported at both ends.
    #[cold]
    fn send_too_long(&self, claim: &Claim, from: Sender, msg: &Msg<'_>) -> TryOutcome {
        let desc = self.seg.desc(claim.index);
        self.sign(desc, claim, self.seg.layout().ring);
        self.publish_msg(desc, claim.index, from, msg, FLAG_TOO_LONG);
        TryOutcome::Done(DevStatus::RemoteBadLength)
    }

    /// Publishes a long message in a payload slot. A recycled slot is free once taken one round before.
    // HOT
    #[inline]
    fn fill_slot(&self, claim: &Claim, from: Sender, msg: &Msg<'_>) -> TryOutcome {
        let index = claim.index;
        let desc = self.seg.desc(index);
        self.sign(desc, claim, self.seg.layout().ring);
        let (slots, taken) = (self.seg.layout().hot(), &self.ring.taken);
        let free = || ring::has_slot(index, taken.get(), slots);
        if !free() {
            taken.set(ring::taken(&self.seg.hdr().credit.taken));
        }
        let (slot, flag) = if free() {
            (self.seg.hot_slot(index), FLAG_HOT)
        } else {
            (self.seg.cold_slot(index), FLAG_COLD)
        };
        let Some(to) = self.seg.payload(slot, msg.len()) else {
            // The owner granted more than its slots hold.
            self.publish_msg(desc, index, from, msg, FLAG_ABORT);
            return TryOutcome::Done(DevStatus::RemoteAbort);
        };
        // SAFETY: `to` has room for the message in the payload area of the peer's segment (checked), and the
        // claim makes the slot ours.
        if !unsafe { msg.copy_to(to) } {
            return self.void(desc, index, from, msg);
        }
        self.publish_msg(desc, index, from, msg, flag);
        TryOutcome::Done(DevStatus::Ok)
    }

    fn fill_recv_buffer(
        &self,
        claim: &Claim,
        from: Sender,
        msg: &Msg<'_>,
        (addr, target, mark): (u64, Result<Option<*mut u8>, ()>, Mark<'_>),
    ) -> TryOutcome {
        let desc = self.seg.desc(claim.index);
        self.sign(desc, claim, self.seg.layout().ring);
        let written = match target {
            Ok(Some(to)) => {
                // SAFETY: `to` is mapped with room for the message in a region of the peer (checked), and the
                // claim makes it ours.
                if unsafe { msg.copy_to(to) } { Ok(()) } else { Err(DevStatus::InvalidLkey) }
            }
            Ok(None) => {
                let [a, b] = &msg.bufs;
                self.remote
                    .copy_to_peer(addr, a)
                    .and_then(|()| self.remote.copy_to_peer(addr + u64::from(a.len), b))
            }
            Err(()) => Err(DevStatus::RemoteAbort),
        };
        // Before the receiver learns of the message, and may deregister its memory.
        drop(mark);
        let flags = match written {
            Ok(()) => 0,
            Err(DevStatus::InvalidLkey) => FLAG_VOID,
            Err(_) => FLAG_ABORT,
        };
        self.publish_msg(desc, claim.index, from, msg, flags);
        TryOutcome::Done(written.err().unwrap_or(DevStatus::Ok))
    }
}

impl RemoteQp for ShmRemoteQp {
    #[inline]
    fn has_qkey(&self, qkey: u32) -> bool {
        self.identity.qkey == qkey
    }

    fn is_gone(&self) -> bool {
        self.seg.hdr().head.word.load(Relaxed) & CLOSED != 0 || self.remote.is_dead()
    }

    // HOT
    #[inline]
    fn send(&self, from: Sender, msg: &Msg<'_>) -> TryOutcome {
        if !self.alive() {
            return self.closed_outcome();
        }
        self.send_message(from, msg)
    }

    fn await_given_up(&self) {
        // In a forked child the copies are the parent's, which waits for them.
        if !self.memory.unfinished.is_empty() && self.me == proc::pid() {
            self.remote.await_unfinished(&self.memory.unfinished);
        }
    }

    fn read(&self, from: Sender, op: &Rdma) -> TryOutcome {
        let _mark = self.mark_rdma(op);
        if self.closed() {
            self.closed_outcome()
        } else {
            self.remote.read(&self.memory, self.identity.pd, from, op)
        }
    }

    fn write(&self, from: Sender, op: &Rdma, imm: Option<u32>) -> TryOutcome {
        let mark = self.mark_rdma(op);
        if self.closed() {
            return self.closed_outcome();
        }
        let written = self.remote.write(&self.memory, self.identity.pd, from, op);
        drop(mark);
        match written {
            TryOutcome::Done(DevStatus::Ok) => {}
            other => return other,
        }
        let Some(imm) = imm else { return TryOutcome::Done(DevStatus::Ok) };
        let h = self.seg.hdr();
        let layout = self.seg.layout();
        let unsolicited = layout.unsol > 0;
        let claim = if unsolicited {
            self.claim(&h.unsol_head, &h.unsol_credit, &self.unsol, layout.unsol)
        } else {
            self.claim(&h.head, &h.credit, &self.ring, layout.ring)
        };
        let claim = match claim {
            Ok(claim) => claim,
            // A full ring of unsolicited arrivals is not RNR.
            Err(TryOutcome::NotReady) if unsolicited => return TryOutcome::Busy,
            Err(outcome) => return outcome,
        };
        let (desc, ring) = match unsolicited {
            true => (self.seg.unsol_desc(claim.index), layout.unsol),
            false => (self.seg.desc(claim.index), layout.ring),
        };
        self.sign(desc, &claim, ring);
        self.publish(desc, claim.index, from, op.total, Some(imm), FLAG_WRITE);
        TryOutcome::Done(DevStatus::Ok)
    }
}

impl ShmRemoteQp {
    /// Whether the queue pair is closed or, checked now and then, its process dead.
    fn closed(&self) -> bool {
        // SYNC(mark)
        self.seg.hdr().head.word.load(SeqCst) & CLOSED != 0 || !self.alive()
    }

    /// Marks a copy in memory of the peer, which has `key`.
    // HOT
    #[inline]
    fn mark(&self, key: u32) -> Mark<'_> {
        self.remote.mark(&self.memory, self.identity.qpn, key)
    }

    /// As [`mark`](Self::mark). An operation of no bytes copies nothing.
    // HOT
    #[inline]
    fn mark_rdma(&self, op: &Rdma) -> Option<Mark<'_>> {
        (op.len != 0).then(|| self.mark(op.rkey))
    }
}

impl Drop for ShmRemoteQp {
    fn drop(&mut self) {
        self.await_given_up();
        // In a forked child it is the parent's.
        if self.me == proc::pid() {
            self.remote.free_mark(&self.memory);
        }
    }
}
