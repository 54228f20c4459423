//! An endpoint of `self`: each send is one copy into the receiver's slot. Nothing is ever in progress.

#![allow(unsafe_code)]

use super::iface::{Handle, Inner};
use super::{Mem, Rkey};
use crate::api::{
    self, Access, AtomicOp, Comp, EpTag, Error, Iov, Outcome, Pending, PendingQueued, Refused, RemoteIov,
    Sent, Word,
};
use crate::base::am::CopyOnKeep;
use crate::base::pending::QueueId;
use crate::base::{check, direct, iov};
use std::cell::Cell;
use std::ptr::NonNull;
use std::rc::Rc;
use ucs::mem::copy::copy_slice;

/// A connection to an interface of the same thread, possibly the sender itself.
pub struct Ep {
    own: Handle,
    peer: Rc<Inner>,
    queue: QueueId,
    tag: Cell<EpTag>,
}

impl Ep {
    pub(super) fn new(own: Handle, peer: Rc<Inner>) -> Self {
        let queue = own.pending.open();
        Ep { own, peer, queue, tag: Cell::default() }
    }

    /// Refuses what would overtake what waits for room.
    // HOT
    #[inline(always)]
    fn check_order(&self) -> Result<(), Refused> {
        if self.own.pending.waiting() > 0 && self.own.pending.holds_back(self.queue) {
            return Err(self.peer.refuse());
        }
        Ok(())
    }
}

impl Ep {
    /// A short message in a slot.
    // HOT
    #[inline(never)]
    fn push_short(&self, id: u8, header: u64, payload: &[u8]) -> Outcome {
        check::fits(payload.len().saturating_add(8), self.peer.attr.am.max_short)?;
        self.check_order()?;
        self.peer.push(self.own.id, 9 + payload.len(), |slot| {
            let (head, body) = slot.split_at_mut(9);
            head[0] = id;
            head[1..].copy_from_slice(&header.to_le_bytes());
            if !payload.is_empty() {
                copy_slice(body, payload);
            }
        })?;
        Ok(Sent::Done)
    }
}

impl Drop for Ep {
    fn drop(&mut self) {
        self.own.pending.close(self.queue);
    }
}

impl api::Ep for Ep {
    type Mem = Mem;
    type Rkey = Rkey;

    fn tag(&self) -> EpTag {
        self.tag.get()
    }

    fn set_tag(&self, tag: EpTag) {
        self.tag.set(tag);
    }

    // HOT
    #[inline]
    fn am_short(&self, id: u8, header: u64, payload: &[u8]) -> Outcome {
        // A header alone needs no slot. That it fits is the interface's rule.
        if payload.is_empty() && self.own.pending.waiting() == 0 && self.peer.can_deliver_inline() {
            let mut packet = [id; 9];
            packet[1..].copy_from_slice(&header.to_le_bytes());
            self.peer.deliver(&packet, &CopyOnKeep, self.own.id);
            return Ok(Sent::Done);
        }
        self.push_short(id, header, payload)
    }

    #[inline]
    fn am_short_iov(&self, id: u8, iov: &[&[u8]]) -> Outcome {
        let len = check::total(iov);
        check::fits(len, self.peer.attr.am.max_short)?;
        self.check_order()?;
        self.peer.push(self.own.id, 1 + len, |slot| {
            slot[0] = id;
            let mut at = 1;
            for piece in iov {
                copy_slice(&mut slot[at..at + piece.len()], piece);
                at += piece.len();
            }
        })?;
        Ok(Sent::Done)
    }

    // HOT
    #[inline]
    fn am_packet<F: FnOnce(&mut [u8]) -> usize>(&self, max: usize, pack: F) -> Outcome<usize> {
        check::fits(max, self.peer.attr.am.max_bcopy + 1)?;
        self.check_order()?;
        self.peer.push_packed(self.own.id, max, pack)
    }

    fn max_bcopy(&self) -> usize {
        self.peer.attr.am.max_bcopy
    }

    unsafe fn am_zcopy(&self, id: u8, header: &[u8], iov: &[Iov<'_, Mem>], _comp: Comp) -> Outcome {
        let limits = &self.peer.attr.am;
        let len = iov::checked_len(iov, limits.max_iov, limits.max_zcopy)?;
        check::fits(header.len().saturating_add(len), limits.max_zcopy)?;
        self.check_order()?;
        self.peer.push(self.own.id, 1 + header.len() + len, |slot| {
            let (head, body) = slot.split_at_mut(1 + header.len());
            head[0] = id;
            head[1..].copy_from_slice(header);
            // SAFETY: the caller vouches for the blocks; `body` has `len` bytes and is not theirs.
            unsafe { iov::gather(iov, body.as_mut_ptr()) };
        })?;
        Ok(Sent::Done)
    }

    // HOT
    #[inline(always)]
    fn may_access(&self, rkey: &Rkey, need: Access) -> bool {
        rkey.window().is_ok_and(|window| window.access().contains(need))
    }

    fn put_short(&self, bytes: &[u8], remote: u64, rkey: &Rkey) -> Outcome {
        direct::put_short(rkey.window()?, bytes, remote)
    }

    fn put_bcopy<F: FnOnce(&mut [u8]) -> usize>(
        &self,
        max: usize,
        pack: F,
        remote: u64,
        rkey: &Rkey,
    ) -> Outcome<usize> {
        direct::put_bcopy(rkey.window()?, max, pack, remote)
    }

    unsafe fn put_zcopy(&self, iov: &[Iov<'_, Mem>], remote: u64, rkey: &Rkey, _comp: Comp) -> Outcome {
        // SAFETY: the caller's promise is the same.
        unsafe { direct::put_zcopy(rkey.window()?, iov, remote) }
    }

    fn get_short(&self, out: &mut [u8], remote: u64, rkey: &Rkey) -> Outcome {
        direct::get_short(rkey.window()?, out, remote)
    }

    fn get_bcopy<F: FnOnce(&[u8]) + 'static>(
        &self,
        len: usize,
        unpack: F,
        remote: u64,
        rkey: &Rkey,
        _comp: Comp,
    ) -> Outcome {
        direct::get_bcopy(rkey.window()?, len, unpack, remote)
    }

    unsafe fn get_zcopy(&self, iov: &[Iov<'_, Mem>], remote: u64, rkey: &Rkey, _comp: Comp) -> Outcome {
        // SAFETY: the caller's promise is the same.
        unsafe { direct::get_zcopy(rkey.window()?, iov, remote) }
    }

    unsafe fn put_sgl(&self, iov: &[Iov<'_, Mem>], remote: &[RemoteIov<'_, Rkey>], _comp: Comp) -> Outcome {
        // SAFETY: the caller's promise is the same.
        unsafe { direct::put_sgl(iov, remote, Rkey::window) }
    }

    unsafe fn get_sgl(&self, iov: &[Iov<'_, Mem>], remote: &[RemoteIov<'_, Rkey>], _comp: Comp) -> Outcome {
        // SAFETY: the caller's promise is the same.
        unsafe { direct::get_sgl(iov, remote, Rkey::window) }
    }

    unsafe fn put_imm(
        &self,
        iov: &[Iov<'_, Mem>],
        remote: u64,
        rkey: &Rkey,
        imm: u32,
        _comp: Comp,
    ) -> Outcome {
        let len = iov::checked_len(iov, 1, usize::MAX)?;
        self.check_order()?;
        if !self.peer.has_room() {
            return Err(self.peer.refuse());
        }
        // SAFETY: the caller's promise is the same.
        let done = unsafe { direct::put_zcopy(rkey.window()?, iov, remote) }?;
        self.peer.push_imm(api::Imm { value: imm, len, source: self.own.source() })?;
        Ok(done)
    }

    fn atomic_post<W: Word>(&self, op: AtomicOp, value: W, remote: u64, rkey: &Rkey) -> Outcome {
        direct::atomic_post(rkey.window()?, op, value, remote)
    }

    unsafe fn atomic_fetch<W: Word>(
        &self,
        op: AtomicOp,
        value: W,
        result: NonNull<W>,
        remote: u64,
        rkey: &Rkey,
        _comp: Comp,
    ) -> Outcome {
        // SAFETY: the caller's promise is the same.
        unsafe { direct::atomic_fetch(rkey.window()?, op, value, result, remote) }
    }

    unsafe fn atomic_cswap<W: Word>(
        &self,
        compare: W,
        swap: W,
        result: NonNull<W>,
        remote: u64,
        rkey: &Rkey,
        _comp: Comp,
    ) -> Outcome {
        // SAFETY: the caller's promise is the same.
        unsafe { direct::atomic_cswap(rkey.window()?, compare, swap, result, remote) }
    }

    fn flush(&self, _comp: Comp) -> Outcome {
        self.check(Comp::None)
    }

    fn fence(&self) -> Outcome {
        Ok(Sent::Done)
    }

    fn pending_add(&self, op: Pending) -> Result<PendingQueued, Error> {
        // A closed peer has room for the call that says so.
        let has_room = || self.peer.has_room() || self.peer.is_closed();
        if self.own.pending.is_empty(self.queue) && has_room() {
            return Ok(PendingQueued::Busy);
        }
        self.own.pending.add(self.queue, op);
        Ok(PendingQueued::Queued)
    }

    fn pending_purge(&self, each: &mut dyn FnMut(Pending)) {
        self.own.pending.take_all(self.queue).into_iter().for_each(each);
    }

    fn check(&self, _comp: Comp) -> Outcome {
        if self.peer.is_closed() { Err(Error::PeerDead.into()) } else { Ok(Sent::Done) }
    }

    fn is_connected(&self, device: &[u8], iface: &[u8]) -> bool {
        device.is_empty() && iface == self.peer.id.to_le_bytes()
    }
}
