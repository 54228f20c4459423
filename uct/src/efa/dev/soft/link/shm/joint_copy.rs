//! Long copies by system call that both processes carry out: the requester from the front, the peer's device
//! from the back whenever a poll of it finds nothing else. A peer that does not poll costs the requester
//! nothing: it copies all parts itself.
//!
//! The requester offers a copy in a slot of the peer's device segment. The peer checks the range against its
//! own keys, and copies only from or to a process that it has attached.

#![allow(unsafe_code)]

use super::super::Rdma;
use super::remote_device::RemoteDevice;
use super::seg::{COPY_SLOTS, CopySlot};
use super::vm::CopyDir;
use super::{Shm, lock};
use crate::api::Access;
use crate::efa::dev::DevStatus;
use crate::host::joint::{self, PeerState};
use std::cell::RefCell;
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;
use ucs::sync::Ordering::Relaxed;
use ucs::sys::{ProcId, proc};

/// Longest part; shorter ones cost more system calls, longer ones leave one side waiting.
const MAX_PART: u32 = 256 << 10;
const MIN_PART: u32 = 64 << 10;
/// Shortest copy that is offered to the peer.
const MIN_LEN: u32 = 2 * MIN_PART;
const PARTS: u32 = 4;

/// Longest wait for that part within the call; then the rest of the request is deferred.
const WAIT: Duration = Duration::from_millis(20);
/// Longest wait for it before memory of a failed request is returned to the program.
const LAST_WAIT: Duration = Duration::from_secs(1);

/// A copy that waits for the peer's part.
struct Unfinished {
    slot: usize,
    /// Both ends of the rest of the request that the copy covers: parts of the peer. Null: of a failed one.
    local: *mut u8,
    raddr: u64,
    rest: u32,
    part: u32,
}

/// Copies to one remote queue pair that wait for the peer's part.
#[derive(Default)]
pub(super) struct UnfinishedCopies(RefCell<Vec<Unfinished>>);

impl UnfinishedCopies {
    pub(super) fn is_empty(&self) -> bool {
        self.0.borrow().is_empty()
    }
}

fn part_of(len: u32) -> u32 {
    (len / PARTS).next_multiple_of(4096).clamp(MIN_PART, MAX_PART)
}

impl RemoteDevice {
    /// Copies `len` bytes of `op` together with the peer. Returns the length of the start that is done: 0 if
    /// all waits for the peer's part.
    pub(super) fn copy_jointly(
        &self,
        unfinished: &UnfinishedCopies,
        pd: u32,
        op: &Rdma,
        len: u32,
        dir: CopyDir,
    ) -> Result<u32, DevStatus> {
        if !unfinished.is_empty()
            && let Some(done) = self.finish_copy(unfinished, op, dir)
        {
            return done;
        }
        let Some((at, slot)) = (len >= MIN_LEN).then(|| self.free_slot()).flatten() else {
            return self.copy(op.raddr, op.local, len, dir).map(|()| len);
        };
        let part = part_of(len);
        slot.fill(self.me(), pd, op, (len, part), dir);
        joint::offer(&slot.word, len.div_ceil(part));
        self.offers().fetch_or(1 << at, Relaxed);
        let copy = |at, len| self.copy_part(op, at, len, dir);
        let (from, result) = joint::copy_front(&slot.word, (len, part), copy);
        self.offers().fetch_and(!(1 << at), Relaxed);
        if from == len {
            joint::close(&slot.word);
            return result.map(|()| len);
        }
        match self.await_peer(slot, WAIT) {
            PeerState::Busy => {
                let local = match result {
                    Ok(()) => op.local.wrapping_add(from as usize),
                    Err(_) => std::ptr::null_mut(),
                };
                let raddr = op.raddr + u64::from(from);
                unfinished.0.borrow_mut().push(Unfinished { slot: at, local, raddr, rest: len - from, part });
                result.map(|()| from)
            }
            state => {
                joint::close(&slot.word);
                result?;
                if state == PeerState::Failed {
                    self.copy_part(op, from, part.min(len - from), dir)?;
                }
                Ok(len)
            }
        }
    }

    /// Copies `len` bytes from offset `at` of `op`.
    fn copy_part(&self, op: &Rdma, at: u32, len: u32, dir: CopyDir) -> Result<(), DevStatus> {
        self.copy(op.raddr + u64::from(at), op.local.wrapping_add(at as usize), len, dir)
    }

    /// Ends a copy whose rest is `op`, if there is one. `Ok(0)`: the peer still copies its part.
    #[cold]
    fn finish_copy(
        &self,
        unfinished: &UnfinishedCopies,
        op: &Rdma,
        dir: CopyDir,
    ) -> Option<Result<u32, DevStatus>> {
        let mut all = unfinished.0.borrow_mut();
        let is_rest =
            |copy: &Unfinished| (copy.local, copy.raddr) == (op.local, op.raddr) && copy.rest <= op.len;
        let at = all.iter().position(is_rest)?;
        let slot = self.copy_slot(all[at].slot);
        let state = match joint::peer_state(&slot.word) {
            PeerState::Busy if self.is_dead() => PeerState::Failed,
            state => state,
        };
        if state == PeerState::Busy {
            return Some(Ok(0));
        }
        let Unfinished { rest, part, .. } = all.swap_remove(at);
        joint::close(&slot.word);
        let redone = match state {
            PeerState::Failed => self.copy_part(op, 0, part.min(rest), dir),
            _ => Ok(()),
        };
        Some(redone.map(|()| rest))
    }

    /// Waits for the peer's part of copies whose requests are given up: their memory may be used again.
    #[cold]
    pub(super) fn await_unfinished(&self, unfinished: &UnfinishedCopies) {
        for copy in unfinished.0.borrow_mut().drain(..) {
            let slot = self.copy_slot(copy.slot);
            match self.await_peer(slot, LAST_WAIT) {
                PeerState::Busy => {
                    tracing::warn!(
                        "joint copy abandoned: the stopped peer process may still write to the request's memory"
                    );
                    self.given_up.fetch_or(1 << copy.slot, Relaxed);
                }
                _ => joint::close(&slot.word),
            }
        }
    }

    fn await_peer(&self, slot: &CopySlot, longest: Duration) -> PeerState {
        joint::await_peer(&slot.word, longest, || self.is_dead())
    }

    /// Frees slots of copies that were given up, and of which the peer has copied its part since.
    #[cold]
    fn close_given_up(&self) {
        let given_up = self.given_up.load(Relaxed);
        for at in (0..COPY_SLOTS).filter(|at| given_up >> at & 1 != 0) {
            let (word, bit) = (&self.copy_slot(at).word, 1 << at);
            // Another thread may have closed it, and a third one use it now.
            if self.given_up.fetch_and(!bit, Relaxed) & bit == 0 {
                continue;
            }
            match joint::peer_state(word) {
                PeerState::Busy => _ = self.given_up.fetch_or(bit, Relaxed),
                _ => joint::close(word),
            }
        }
    }

    fn free_slot(&self) -> Option<(usize, &CopySlot)> {
        if self.given_up.load(Relaxed) != 0 {
            self.close_given_up();
        }
        (0..COPY_SLOTS)
            .map(|at| (at, self.copy_slot(at)))
            .find(|(_, slot)| joint::begin(&slot.word).is_some())
    }
}

impl CopySlot {
    fn fill(&self, me: ProcId, pd: u32, op: &Rdma, (len, part): (u32, u32), dir: CopyDir) {
        self.pid.store(me.pid, Relaxed);
        self.start.store(me.start, Relaxed);
        self.pd.store(pd, Relaxed);
        self.rkey.store(op.rkey, Relaxed);
        self.raddr.store(op.raddr, Relaxed);
        self.laddr.store(op.local as u64, Relaxed);
        self.len.store(len, Relaxed);
        self.part.store(part, Relaxed);
        self.write.store((dir == CopyDir::ToPeer).into(), Relaxed);
    }

    /// Reads the fields, each once: the requester could change them between check and use.
    fn offer(&self) -> Offer {
        Offer {
            requester: ProcId { pid: self.pid.load(Relaxed), start: self.start.load(Relaxed) },
            pd: self.pd.load(Relaxed),
            rkey: self.rkey.load(Relaxed),
            ours: self.raddr.load(Relaxed),
            theirs: self.laddr.load(Relaxed),
            len: self.len.load(Relaxed),
            part: self.part.load(Relaxed),
            write: self.write.load(Relaxed) != 0,
        }
    }
}

/// A copy that a peer offers to share.
struct Offer {
    requester: ProcId,
    pd: u32,
    rkey: u32,
    ours: u64,
    theirs: u64,
    len: u32,
    part: u32,
    write: bool,
}

impl Offer {
    /// Copies part `n`, if our keys allow it.
    fn copy_part(&self, dev: &Shm, with: &RemoteDevice, n: u32) -> Result<(), DevStatus> {
        let bad = DevStatus::RemoteBadAddress;
        let at = n.checked_mul(self.part).filter(|at| *at < self.len).ok_or(bad)?;
        let len = self.part.min(self.len - at).min(MAX_PART);
        let (need, dir) = match self.write {
            true => (Access::REMOTE_WRITE, CopyDir::FromPeer),
            false => (Access::REMOTE_READ, CopyDir::ToPeer),
        };
        let ours = self.ours.checked_add(at.into()).ok_or(bad)?;
        let theirs = self.theirs.checked_add(at.into()).ok_or(bad)?;
        // Deregistration removes the key, and then waits.
        let _copies = dev.0.copies.read().unwrap_or_else(PoisonError::into_inner);
        if self.part > MAX_PART || !dev.0.table.allows(self.rkey, self.pd, ours, len.into(), need) {
            return Err(bad);
        }
        with.copy(theirs, ours as *mut u8, len, dir)
    }
}

impl Shm {
    /// Copies a part of one copy that a peer has offered.
    #[cold]
    pub(super) fn join_copy(&self) {
        if !self.0.is_owner_process() {
            return;
        }
        let hdr = self.0.seg.hdr();
        let offers = hdr.offers.bits.load(Relaxed);
        for slot in
            hdr.copies.iter().enumerate().filter(|(at, _)| offers >> at & 1 != 0).map(|(_, slot)| slot)
        {
            let seen = joint::load(&slot.word);
            if !joint::is_offered(seen) {
                continue;
            }
            let offer = slot.offer();
            let Some(with) = self.attached(offer.requester) else { continue };
            if let Some(n) = joint::claim_last(&slot.word, seen) {
                joint::end_part(&slot.word, offer.copy_part(self, &with, n).is_ok());
                return;
            }
        }
    }

    /// The device of a process with which this one has exchanged something.
    fn attached(&self, process: ProcId) -> Option<Arc<RemoteDevice>> {
        let remotes = lock(&self.0.remotes);
        let found =
            remotes.iter().find(|((pid, start, _), _)| (*pid, *start) == (process.pid, process.start));
        found.and_then(|(_, remote)| Weak::upgrade(remote))
    }
}

impl super::ShmDevice {
    /// Frees slots of dead requesters. One that died while it filled its slot keeps it.
    #[cold]
    pub(super) fn free_abandoned_copies(&self) {
        let hdr = self.seg.hdr();
        for (at, slot) in hdr.copies.iter().enumerate() {
            let seen = joint::load(&slot.word);
            if !joint::has_requester(seen) {
                continue;
            }
            let offer = slot.offer();
            let gone = match proc::start_time(offer.requester.pid) {
                Ok(start) => start != Some(offer.requester.start),
                Err(_) => false,
            };
            if gone && joint::give_up(&slot.word, seen) {
                hdr.offers.bits.fetch_and(!(1 << at), Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests;
