//! Endpoints: an address handle, a queue pair number and a q-key, and the posting of all operations. Never
//! polls.
//!
//! Each operation first claims a TX slot; a claimed slot always finds room in the device, so nothing is
//! packed in vain.

#![allow(unsafe_code)]

use super::addr::{RawAddr, parse_pair};
use super::dev::{Dest, Dev, DevQp, PostError, Sge};
use super::iface::Inner;
use super::md::{Mem, Rkey};
use super::rdma::RmaDir;
use super::tx::{ClaimedSlot, EpIdx, MAX_INLINE, OpKind, Tx};
use crate::api::{
    self, AtomicOp, Comp, EpTag, Error, Iov, Op, Outcome, Pending, PendingQueued, Refused, RemoteIov, Sent,
    UserQp, Word,
};
use crate::base::check::{fits, total};
use crate::base::iov::{checked_len, gather};
use crate::base::pending::QueueId;
use arrayvec::ArrayVec;
use std::ptr::NonNull;
use std::rc::Rc;

/// Most SGEs used by a send, whatever the device offers.
pub(super) const MAX_SGE: usize = 8;

/// An endpoint to one remote queue pair.
pub struct Ep<D: Dev> {
    pub(super) iface: Rc<Inner<D>>,
    pub(super) to: Dest<D::Ah>,
    pub(super) idx: EpIdx,
    queue: QueueId,
}

impl<D: Dev> Ep<D> {
    pub(super) fn new(iface: Rc<Inner<D>>, to: &RawAddr) -> Result<Self, Error> {
        let ah = iface.ahs.borrow().create(to.gid)?;
        let idx = iface.tx.borrow_mut().add_ep();
        let queue = iface.pending.open();
        Ok(Ep { to: Dest { ah, qpn: to.qpn, qkey: to.connid }, idx, queue, iface })
    }

    /// Claims a TX slot.
    // HOT
    #[inline(always)]
    pub(super) fn claim(&self, kind: OpKind, comp: Comp) -> Result<ClaimedSlot<'_>, Refused> {
        Tx::claim(&self.iface.tx, self.idx, kind, comp)
    }

    fn pending_removed(&self) {
        self.iface.tx.borrow_mut().pending_removed(self.idx, self.iface.pending.waiting() > 0);
    }

    /// Sends a short message that the device does not take inline, from a copy in the slot's buffer.
    #[cold]
    fn am_short_copied(&self, id: u8, pieces: &[&[u8]]) -> Outcome {
        let len = total(pieces);
        fits(len, self.iface.attr.am.max_short)?;
        let pack = |slot: &mut [u8]| {
            slot[0] = id;
            let mut at = 1;
            pieces.iter().for_each(|piece| append(slot, &mut at, piece));
            at
        };
        api::Ep::am_packet(self, 1 + len, pack)?;
        Ok(Sent::Done)
    }

    /// Sends the first `len` bytes of `packet` inline.
    // HOT
    #[inline]
    fn send_inline(
        &self,
        claim: ClaimedSlot<'_>,
        packet: &[u8; MAX_INLINE],
        len: usize,
    ) -> Result<(), Refused> {
        let wr_id = u64::from(claim.slot());
        claim.set_inline_copy(packet, len);
        self.finish_post(claim, self.iface.qp.send_inline(&self.to, wr_id, &packet[..len], None))
    }

    /// Sends an `am_zcopy` of many blocks from a copy in the slot's buffer. Unsafe: every block is readable.
    #[cold]
    unsafe fn am_zcopy_gathered(
        &self,
        id: u8,
        header: &[u8],
        iov: &[Iov<'_, Mem<D>>],
        len: usize,
    ) -> Outcome {
        let iface = &*self.iface;
        let claim = self.claim(OpKind::Data, Comp::None)?;
        let slot = claim.slot();
        // SAFETY: a claimed slot has its buffer to itself until its completion.
        let buf = unsafe { iface.bounce.bytes_mut(slot, len) };
        buf[0] = id;
        let mut at = 1;
        append(buf, &mut at, header);
        // SAFETY: the caller vouches for the blocks; they have `len - at` bytes.
        unsafe { gather(iov, buf[at..].as_mut_ptr()) };
        claim.set_buffer_len(len);
        let sge = iface.bounce.sge(slot, len);
        self.finish_post(claim, iface.qp.send(&self.to, u64::from(slot), &[sge], None))?;
        Ok(Sent::Done)
    }

    /// Commits the slot and rings the doorbell if the post succeeded.
    // HOT
    #[inline]
    pub(super) fn finish_post(
        &self,
        claim: ClaimedSlot<'_>,
        result: Result<(), PostError>,
    ) -> Result<(), Refused> {
        match result {
            Ok(()) => {
                claim.commit();
                self.iface.qp.ring_doorbell();
                Ok(())
            }
            Err(e) => Err(post_error(e)),
        }
    }
}

#[cold]
pub(super) fn post_error(e: PostError) -> Refused {
    match e {
        // A slot was free, so the device has fewer entries than it reports.
        PostError::Full => Refused::NoResource,
        PostError::Invalid(why) => Error::InvalidParam(why).into(),
    }
}

/// SGEs for the blocks of `iov`, adjacent ones merged; `None` if more than `max`. All must be registered.
fn gather_sges<D: Dev>(iov: &[Iov<'_, Mem<D>>], max: usize) -> Result<Option<ArrayVec<Sge, MAX_SGE>>, Error> {
    let mut blocks = ArrayVec::<Sge, MAX_SGE>::new();
    let mut many = false;
    for part in iov.iter().filter(|part| part.total() > 0) {
        let mem = part.mem.ok_or(Error::BadLocalKey)?;
        let (addr, len, count) =
            part.contiguous().map_or((part.addr, part.len, part.count), |(a, l)| (a, l, 1));
        for n in 0..count {
            let sge = mem.sge(addr.wrapping_add(n * part.stride), len)?;
            let full = blocks.len() == max;
            match blocks.last_mut() {
                Some(last)
                    if last.lkey == sge.lkey && last.addr.wrapping_add(last.len as usize) == sge.addr =>
                {
                    last.len += sge.len;
                }
                _ if full => many = true,
                _ => blocks.push(sge),
            }
        }
    }
    Ok((!many).then_some(blocks))
}

#[inline(always)]
fn check_packed(n: usize, max: usize) -> Result<usize, Refused> {
    if n == 0 || n > max {
        return Err(Error::InvalidParam("pack wrote no id, or more than it was given").into());
    }
    Ok(n)
}

/// Appends `bytes` to the packet in `buf`, which has room.
// HOT
#[inline(always)]
fn append(buf: &mut [u8], at: &mut usize, bytes: &[u8]) {
    buf[*at..*at + bytes.len()].copy_from_slice(bytes);
    *at += bytes.len();
}

impl<D: Dev> api::Ep for Ep<D> {
    type Mem = Mem<D>;
    type Rkey = Rkey;

    fn tag(&self) -> EpTag {
        self.iface.tx.borrow().tag(self.idx)
    }

    fn set_tag(&self, tag: EpTag) {
        self.iface.tx.borrow_mut().set_tag(self.idx, tag);
    }

    // HOT
    #[inline]
    fn am_short(&self, id: u8, header: u64, payload: &[u8]) -> Outcome {
        if 8 + payload.len() >= self.iface.limits.inline {
            return self.am_short_copied(id, &[&header.to_le_bytes(), payload]);
        }
        let claim = self.claim(OpKind::Data, Comp::None)?;
        let mut buf = [0u8; MAX_INLINE];
        buf[0] = id;
        let mut len = 1;
        append(&mut buf, &mut len, &header.to_le_bytes());
        append(&mut buf, &mut len, payload);
        self.send_inline(claim, &buf, len)?;
        Ok(Sent::Done)
    }

    // HOT
    #[inline]
    fn am_short_iov(&self, id: u8, iov: &[&[u8]]) -> Outcome {
        if total(iov) >= self.iface.limits.inline {
            return self.am_short_copied(id, iov);
        }
        let claim = self.claim(OpKind::Data, Comp::None)?;
        let mut buf = [0u8; MAX_INLINE];
        buf[0] = id;
        let mut len = 1;
        for part in iov {
            append(&mut buf, &mut len, part);
        }
        self.send_inline(claim, &buf, len)?;
        Ok(Sent::Done)
    }

    /// Builds the packet on the stack if `max` fits the inline limit, else in the slot's buffer.
    // HOT
    #[inline]
    fn am_packet<F: FnOnce(&mut [u8]) -> usize>(&self, max: usize, pack: F) -> Outcome<usize> {
        let (iface, limits) = (&*self.iface, &self.iface.limits);
        fits(max, limits.packet)?;
        let claim = self.claim(OpKind::Data, Comp::None)?;
        if max <= limits.inline {
            let mut buf = [0u8; MAX_INLINE];
            let n = check_packed(pack(&mut buf[..max]), max)?;
            self.send_inline(claim, &buf, n)?;
            return Ok(n);
        }
        // SAFETY: a claimed slot has its buffer to itself until its completion.
        let buf = unsafe { iface.bounce.bytes_mut(claim.slot(), max) };
        let n = check_packed(pack(buf), max)?;
        let wr_id = u64::from(claim.slot());
        claim.set_buffer_len(n);
        if n <= limits.inline {
            self.finish_post(claim, iface.qp.send_inline(&self.to, wr_id, &buf[..n], None))?;
        } else {
            let sge = iface.bounce.sge(claim.slot(), n);
            self.finish_post(claim, iface.qp.send(&self.to, wr_id, &[sge], None))?;
        }
        Ok(n)
    }

    /// Builds the data in the slot's buffer and sends it to another queue pair of the same peer device.
    fn send_to_user_qp<F: FnOnce(&mut [u8]) -> usize>(
        &self,
        to: UserQp,
        max: usize,
        imm: Option<u32>,
        pack: F,
    ) -> Outcome<usize> {
        let (iface, limits) = (&*self.iface, &self.iface.limits);
        fits(max, limits.packet)?;
        let to = Dest { ah: self.to.ah, qpn: to.qpn, qkey: to.qkey };
        let claim = self.claim(OpKind::ToUserQp, Comp::None)?;
        // SAFETY: a claimed slot has its buffer to itself until its completion.
        let buf = unsafe { iface.bounce.bytes_mut(claim.slot(), max) };
        let n = pack(buf);
        if n > max {
            return Err(Error::InvalidParam("pack wrote more than it was given").into());
        }
        let wr_id = u64::from(claim.slot());
        claim.set_buffer_len(n);
        claim.set_imm(imm);
        let posted = match n <= limits.inline {
            true => iface.qp.send_inline(&to, wr_id, &buf[..n], imm),
            false => iface.qp.send(&to, wr_id, &[iface.bounce.sge(claim.slot(), n)], imm),
        };
        self.finish_post(claim, posted)?;
        Ok(n)
    }

    #[inline]
    fn max_bcopy(&self) -> usize {
        self.iface.attr.am.max_bcopy
    }

    /// Sends the header from the slot's buffer and the blocks in place; copies short or many blocks.
    unsafe fn am_zcopy(&self, id: u8, header: &[u8], iov: &[Iov<'_, Mem<D>>], comp: Comp) -> Outcome {
        let (iface, limits) = (&*self.iface, &self.iface.limits);
        if limits.iov == 0 {
            return Err(Error::Unsupported(Op::AmZcopy).into());
        }
        let hdr_len = 1 + header.len();
        fits(header.len(), iface.attr.am.max_hdr)?;
        let len = hdr_len + checked_len(iov, limits.iov, limits.packet - hdr_len)?;
        if len <= limits.inline {
            let claim = self.claim(OpKind::Data, Comp::None)?;
            let mut buf = [0u8; MAX_INLINE];
            buf[0] = id;
            let mut at = 1;
            append(&mut buf, &mut at, header);
            // SAFETY: the caller vouches for the blocks; `len - at` bytes, which fit the buffer.
            unsafe { gather(iov, buf[at..len].as_mut_ptr()) };
            self.send_inline(claim, &buf, len)?;
            return Ok(Sent::Done);
        }
        let Some(blocks) = gather_sges(iov, limits.iov)? else {
            // SAFETY: the caller's promise is the same.
            return unsafe { self.am_zcopy_gathered(id, header, iov, len) };
        };
        let claim = self.claim(OpKind::Data, comp)?;
        let slot = claim.slot();
        // SAFETY: a claimed slot has its buffer to itself until its completion.
        let buf = unsafe { iface.bounce.bytes_mut(slot, hdr_len) };
        buf[0] = id;
        buf[1..].copy_from_slice(header);
        let mut sges = ArrayVec::<Sge, MAX_SGE>::new();
        sges.push(iface.bounce.sge(slot, hdr_len));
        sges.extend(blocks);
        self.finish_post(claim, iface.qp.send(&self.to, u64::from(slot), &sges, None))?;
        Ok(Sent::InProgress)
    }

    // HOT
    #[inline]
    fn put_short(&self, bytes: &[u8], remote: u64, rkey: &Rkey) -> Outcome {
        let copy = |slot: &mut [u8]| {
            slot.copy_from_slice(bytes);
            bytes.len()
        };
        self.put_packed(Op::PutShort, bytes.len(), copy, remote, rkey)?;
        Ok(Sent::Done)
    }

    // HOT
    #[inline]
    fn put_bcopy<F: FnOnce(&mut [u8]) -> usize>(
        &self,
        max: usize,
        pack: F,
        remote: u64,
        rkey: &Rkey,
    ) -> Outcome<usize> {
        self.put_packed(Op::PutBcopy, max, pack, remote, rkey)
    }

    // HOT
    #[inline]
    unsafe fn put_zcopy(&self, iov: &[Iov<'_, Mem<D>>], remote: u64, rkey: &Rkey, comp: Comp) -> Outcome {
        // SAFETY: the caller's promise is the same.
        unsafe { self.zcopy(RmaDir::Put, iov, remote, rkey, comp) }
    }

    fn get_bcopy<F: FnOnce(&[u8]) + 'static>(
        &self,
        len: usize,
        unpack: F,
        remote: u64,
        rkey: &Rkey,
        comp: Comp,
    ) -> Outcome {
        self.get_unpacked(len, unpack, remote, rkey, comp)
    }

    // HOT
    #[inline]
    unsafe fn get_zcopy(&self, iov: &[Iov<'_, Mem<D>>], remote: u64, rkey: &Rkey, comp: Comp) -> Outcome {
        // SAFETY: the caller's promise is the same.
        unsafe { self.zcopy(RmaDir::Get, iov, remote, rkey, comp) }
    }

    unsafe fn put_sgl(&self, iov: &[Iov<'_, Mem<D>>], remote: &[RemoteIov<'_, Rkey>], comp: Comp) -> Outcome {
        // SAFETY: the caller's promise is the same.
        unsafe { self.sgl(RmaDir::Put, iov, remote, comp) }
    }

    unsafe fn get_sgl(&self, iov: &[Iov<'_, Mem<D>>], remote: &[RemoteIov<'_, Rkey>], comp: Comp) -> Outcome {
        // SAFETY: the caller's promise is the same.
        unsafe { self.sgl(RmaDir::Get, iov, remote, comp) }
    }

    unsafe fn put_imm(
        &self,
        iov: &[Iov<'_, Mem<D>>],
        remote: u64,
        rkey: &Rkey,
        imm: u32,
        comp: Comp,
    ) -> Outcome {
        // SAFETY: the caller's promise is the same.
        unsafe { self.write_imm(iov, remote, rkey, imm, comp) }
    }

    fn atomic_post<W: Word>(&self, op: AtomicOp, value: W, remote: u64, rkey: &Rkey) -> Outcome {
        self.amo_post(op, value, remote, rkey)
    }

    unsafe fn atomic_fetch<W: Word>(
        &self,
        op: AtomicOp,
        value: W,
        result: NonNull<W>,
        remote: u64,
        rkey: &Rkey,
        comp: Comp,
    ) -> Outcome {
        // SAFETY: the caller's promise is the same.
        unsafe { self.amo_fetch(op, value, result, remote, rkey, comp) }
    }

    unsafe fn atomic_cswap<W: Word>(
        &self,
        compare: W,
        swap: W,
        result: NonNull<W>,
        remote: u64,
        rkey: &Rkey,
        comp: Comp,
    ) -> Outcome {
        // SAFETY: the caller's promise is the same.
        unsafe { self.amo_cswap((compare, swap), result, remote, rkey, comp) }
    }

    fn flush(&self, comp: Comp) -> Outcome {
        self.iface.tx.borrow_mut().flush(Some(self.idx), &comp)
    }

    /// Always *done*: operations find *no resource* until all earlier ones to this peer have completed.
    fn fence(&self) -> Outcome {
        self.iface.tx.borrow_mut().fence(Some(self.idx));
        Ok(Sent::Done)
    }

    fn pending_add(&self, op: Pending) -> Result<PendingQueued, Error> {
        let iface = &*self.iface;
        if iface.pending.is_empty(self.queue) && iface.tx.borrow_mut().can_send(self.idx) {
            return Ok(PendingQueued::Busy);
        }
        iface.pending.add(self.queue, op);
        Ok(PendingQueued::Queued)
    }

    fn pending_purge(&self, each: &mut dyn FnMut(Pending)) {
        let ops = self.iface.pending.take_all(self.queue);
        self.pending_removed();
        ops.into_iter().for_each(each);
    }

    /// Compares address handles, of which a GID has one: an endpoint keeps no other part of the address.
    fn is_connected(&self, device: &[u8], iface: &[u8]) -> bool {
        let Ok(addr) = parse_pair(device, iface) else { return false };
        if (addr.qpn, addr.connid) != (self.to.qpn, self.to.qkey) {
            return false;
        }
        let ahs = self.iface.ahs.borrow();
        let Ok(ah) = ahs.create(addr.gid) else { return false };
        ahs.destroy(ah);
        ah == self.to.ah
    }

    /// Posts an empty read with an invalid key: any answer of the peer's device proves that it is alive.
    fn check(&self, comp: Comp) -> Outcome {
        let iface = &*self.iface;
        if iface.limits.read.is_none() {
            return Err(Error::Unsupported(Op::Check).into());
        }
        let claim = self.claim(OpKind::Check, comp)?;
        let slot = claim.slot();
        let nothing = iface.bounce.sge(slot, 0);
        self.finish_post(claim, iface.qp.read(&self.to, u64::from(slot), nothing, 0, 0))?;
        Ok(Sent::InProgress)
    }
}

impl<D: Dev> Drop for Ep<D> {
    /// Drops pending operations untried; operations in flight go on and still complete.
    fn drop(&mut self) {
        self.iface.pending.close(self.queue);
        self.pending_removed();
        let retired = self.iface.tx.borrow_mut().drop_ep(self.idx);
        let mut ahs = self.iface.ahs.borrow_mut();
        match retired {
            true => ahs.end_ep(&self.iface.qp, self.to.ah, self.to.qpn),
            false => ahs.end_ep_when_idle(self.idx, self.to.ah, self.to.qpn),
        }
    }
}
