//! An endpoint of `posix`: writes into the peer's FIFO and into the memory its keys name. Every operation is
//! complete when its call returns, so completions never fire.

#![allow(unsafe_code)]

use super::addr;
use super::iface::Inner;
use super::link::Link;
use super::peer::Peer;
use super::pending_order::{PendingOrder, Sender};
use super::seg::INLINE;
use super::{Mem, Rkey};
use crate::api::{
    self, Access, AtomicOp, Comp, ConnectError, EpTag, Error, Iov, Outcome, Pack, Pending, PendingQueued,
    Refused, RemoteIov, Sent, Word,
};
use crate::base::ep_table::EpIdx;
use crate::base::pending::QueueId;
use crate::base::{check, direct, iov};
use std::ptr::{NonNull, copy_nonoverlapping};
use std::rc::Rc;

const MAX_SHORT: usize = INLINE - 1;

/// A connection to an interface of this host. Endpoints to the same peer share its attachment.
pub struct Ep {
    peer: Rc<Peer>,
    own: Rc<Inner>,
    queue: QueueId,
    idx: EpIdx,
}

impl Ep {
    pub(super) fn new(own: Rc<Inner>, peer: Rc<Peer>) -> Self {
        let queue = own.pending.open();
        Ep { idx: peer.eps.insert(), peer, own, queue }
    }

    /// The peer's segment, attached by the first call.
    // HOT
    #[inline(always)]
    pub(super) fn link(&self) -> Result<&Link, Refused> {
        match self.peer.link() {
            Some(link) => Ok(link),
            None => self.attach(),
        }
    }

    /// Fails if the peer is dead: its memory stays mapped while a key exists, but is not touched.
    // HOT
    #[inline(always)]
    fn check_peer(&self) -> Result<(), Error> {
        if self.peer.has_failed_or_died() { Err(self.peer.cause()) } else { Ok(()) }
    }

    #[cold]
    fn attach(&self) -> Result<&Link, Refused> {
        match self.own.attach_to_send(&self.peer) {
            Ok(link) => link.ok_or(Refused::NoResource),
            Err(why) => Err(self.peer.op_error(why).into()),
        }
    }

    /// Attaches the peer, waiting up to the answer timeout.
    #[cold]
    fn attach_blocking(&self) -> Result<&Link, ConnectError> {
        self.own.attach(&self.peer, self.own.answer_timeout)?.ok_or(ConnectError::NoAnswer)
    }
}

impl Sender for Ep {
    fn order(&self) -> PendingOrder<'_> {
        PendingOrder { waiting: &self.peer.waiting, pending: &self.own.pending, queue: self.queue }
    }

    fn on_peer_dead(&self) {
        self.peer.set_found_dead();
        self.own.set_peer_failed();
    }

    fn on_peer_corrupt(&self) {
        self.own.on_peer_corrupt(&self.peer);
    }
}

impl Drop for Ep {
    fn drop(&mut self) {
        self.own.pending.close(self.queue);
        self.peer.eps.remove(self.idx);
    }
}

impl api::Ep for Ep {
    type Mem = Mem;
    type Rkey = Rkey;

    fn tag(&self) -> EpTag {
        self.peer.eps.tag(self.idx)
    }

    fn set_tag(&self, tag: EpTag) {
        self.peer.eps.set_tag(self.idx, tag);
    }

    // HOT
    #[inline]
    fn am_short(&self, id: u8, header: u64, payload: &[u8]) -> Outcome {
        check::fits(payload.len(), MAX_SHORT - 8)?;
        let link = self.link()?;
        link.send_inline(self, 1 + 8 + payload.len(), |packet| {
            // SAFETY: INLINE bytes at `packet` are ours to write.
            unsafe { packet.write(id) };
            let header = header.to_le();
            // SAFETY: as above; bytes 1 to 8.
            unsafe { packet.wrapping_add(1).cast::<u64>().write_unaligned(header) };
            // SAFETY: payload.len() + 9 <= INLINE (checked), and a `&[u8]` of ours is not the peer's cell.
            unsafe { copy_nonoverlapping(payload.as_ptr(), packet.wrapping_add(9), payload.len()) };
        })?;
        self.own.on_sent(self.peer.name(), link);
        Ok(Sent::Done)
    }

    // HOT
    #[inline]
    fn am_short_iov(&self, id: u8, iov: &[&[u8]]) -> Outcome {
        let len = check::total(iov);
        check::fits(len, MAX_SHORT)?;
        let link = self.link()?;
        link.send_inline(self, 1 + len, |packet| {
            // SAFETY: INLINE bytes at `packet` are ours to write.
            unsafe { packet.write(id) };
            let mut at = packet.wrapping_add(1);
            for piece in iov {
                // SAFETY: the pieces together are at most MAX_SHORT bytes (checked).
                unsafe { copy_nonoverlapping(piece.as_ptr(), at, piece.len()) };
                at = at.wrapping_add(piece.len());
            }
        })?;
        self.own.on_sent(self.peer.name(), link);
        Ok(Sent::Done)
    }

    // HOT
    #[inline]
    fn am_bcopy<F: FnOnce(&mut [u8]) -> usize>(&self, id: u8, pack: F) -> Outcome<usize> {
        // The peer's own limit, known once it is attached.
        let max = self.link()?.max_packet();
        self.am_packet(max, |packet| {
            packet[0] = id;
            pack(&mut packet[1..]).saturating_add(1)
        })
        .map(|len| len - 1)
    }

    // HOT
    #[inline]
    fn am_packet<F: FnOnce(&mut [u8]) -> usize>(&self, max: usize, pack: F) -> Outcome<usize> {
        let link = self.link()?;
        check::fits(max, link.max_packet())?;
        match max <= INLINE {
            true => link.send_in_cell(self, max, pack),
            false => link.send_in_slot(self, max, pack),
        }
    }

    // HOT
    #[inline(always)]
    fn am_short_packet<P: Pack + Copy>(&self, max: usize, pack: P) -> Outcome<usize> {
        let link = self.link()?;
        let len = match max > INLINE {
            true => {
                let pack = pack.copy();
                self.am_packet(max, |slot: &mut [u8]| pack.pack(slot))?
            }
            false => link.send_in_cell(self, max, pack)?,
        };
        self.own.on_sent(self.peer.name(), link);
        Ok(len)
    }

    fn max_bcopy(&self) -> usize {
        let known = self.peer.link().map(Link::max_packet).or_else(|| self.peer.default_max_packet());
        // Neither segment nor name tells the limit: the peer must answer. If not, sends will say why.
        known
            .or_else(|| self.attach_blocking().ok().map(Link::max_packet))
            .unwrap_or(self.own.attr.am.max_bcopy + 1)
            - 1
    }

    fn ensure_connected(&self) -> Result<(), ConnectError> {
        self.attach_blocking().map(drop)
    }

    fn begin_connecting(&self) -> Result<bool, ConnectError> {
        self.own.attach_briefly(&self.peer).map(|link| link.is_some())
    }

    unsafe fn am_zcopy(&self, id: u8, header: &[u8], iov: &[Iov<'_, Mem>], _comp: Comp) -> Outcome {
        let link = self.link()?;
        let max = link.max_packet() - 1;
        let len = iov::checked_len(iov, direct::MAX_IOV, max)?;
        check::fits(header.len().saturating_add(len), max)?;
        let packet_len = 1 + header.len() + len;
        let pack = |packet: &mut [u8]| {
            let (head, body) = packet.split_at_mut(1 + header.len());
            head[0] = id;
            head[1..].copy_from_slice(header);
            // SAFETY: the caller vouches for the blocks; `body` has `len` bytes and is not theirs.
            unsafe { iov::gather(iov, body.as_mut_ptr()) };
            packet_len
        };
        if packet_len <= INLINE {
            link.send_in_cell(self, packet_len, pack)?;
        } else {
            link.send_in_slot(self, packet_len, pack)?;
        }
        Ok(Sent::Done)
    }

    // HOT
    #[inline(always)]
    fn may_access(&self, rkey: &Rkey, need: Access) -> bool {
        !self.peer.has_failed_or_died() && rkey.window().access().contains(need)
    }

    // HOT
    #[inline]
    fn put_short(&self, bytes: &[u8], remote: u64, rkey: &Rkey) -> Outcome {
        self.check_peer()?;
        direct::put_short(rkey.window(), bytes, remote)
    }

    fn put_bcopy<F: FnOnce(&mut [u8]) -> usize>(
        &self,
        max: usize,
        pack: F,
        remote: u64,
        rkey: &Rkey,
    ) -> Outcome<usize> {
        self.check_peer()?;
        direct::put_bcopy(rkey.window(), max, pack, remote)
    }

    unsafe fn put_zcopy(&self, iov: &[Iov<'_, Mem>], remote: u64, rkey: &Rkey, _comp: Comp) -> Outcome {
        self.check_peer()?;
        // SAFETY: the caller's promise is the same.
        unsafe { direct::put_zcopy(rkey.window(), iov, remote) }
    }

    // HOT
    #[inline]
    fn get_short(&self, out: &mut [u8], remote: u64, rkey: &Rkey) -> Outcome {
        self.check_peer()?;
        direct::get_short(rkey.window(), out, remote)
    }

    fn get_bcopy<F: FnOnce(&[u8]) + 'static>(
        &self,
        len: usize,
        unpack: F,
        remote: u64,
        rkey: &Rkey,
        _comp: Comp,
    ) -> Outcome {
        self.check_peer()?;
        direct::get_bcopy(rkey.window(), len, unpack, remote)
    }

    unsafe fn get_zcopy(&self, iov: &[Iov<'_, Mem>], remote: u64, rkey: &Rkey, _comp: Comp) -> Outcome {
        self.check_peer()?;
        // SAFETY: the caller's promise is the same.
        unsafe { direct::get_zcopy(rkey.window(), iov, remote) }
    }

    unsafe fn put_sgl(&self, iov: &[Iov<'_, Mem>], remote: &[RemoteIov<'_, Rkey>], _comp: Comp) -> Outcome {
        self.check_peer()?;
        // SAFETY: the caller's promise is the same.
        unsafe { direct::put_sgl(iov, remote, |rkey: &Rkey| Ok(rkey.window())) }
    }

    unsafe fn get_sgl(&self, iov: &[Iov<'_, Mem>], remote: &[RemoteIov<'_, Rkey>], _comp: Comp) -> Outcome {
        self.check_peer()?;
        // SAFETY: the caller's promise is the same.
        unsafe { direct::get_sgl(iov, remote, |rkey: &Rkey| Ok(rkey.window())) }
    }

    // HOT
    #[inline]
    fn atomic_post<W: Word>(&self, op: AtomicOp, value: W, remote: u64, rkey: &Rkey) -> Outcome {
        self.check_peer()?;
        direct::atomic_post(rkey.window(), op, value, remote)
    }

    // HOT
    #[inline]
    unsafe fn atomic_fetch<W: Word>(
        &self,
        op: AtomicOp,
        value: W,
        result: NonNull<W>,
        remote: u64,
        rkey: &Rkey,
        _comp: Comp,
    ) -> Outcome {
        self.check_peer()?;
        // SAFETY: the caller's promise is the same.
        unsafe { direct::atomic_fetch(rkey.window(), op, value, result, remote) }
    }

    // HOT
    #[inline]
    unsafe fn atomic_cswap<W: Word>(
        &self,
        compare: W,
        swap: W,
        result: NonNull<W>,
        remote: u64,
        rkey: &Rkey,
        _comp: Comp,
    ) -> Outcome {
        self.check_peer()?;
        // SAFETY: the caller's promise is the same.
        unsafe { direct::atomic_cswap(rkey.window(), compare, swap, result, remote) }
    }

    fn flush(&self, _comp: Comp) -> Outcome {
        direct::fence();
        if self.own.is_unreachable(&self.peer) { Err(self.peer.cause().into()) } else { Ok(Sent::Done) }
    }

    fn fence(&self) -> Outcome {
        direct::fence();
        Ok(Sent::Done)
    }

    fn pending_add(&self, op: Pending) -> Result<PendingQueued, Error> {
        // A peer that cannot be attached has room for the call that says so, one that is silent has none.
        let has_room = || match self.link() {
            Ok(link) => link.has_room(self),
            Err(why) => why != Refused::NoResource,
        };
        if self.own.pending.is_empty(self.queue) && has_room() {
            return Ok(PendingQueued::Busy);
        }
        self.order().enqueue();
        if let Some(link) = self.peer.link() {
            link.mark_full();
        }
        self.own.pending.add(self.queue, op);
        Ok(PendingQueued::Queued)
    }

    fn pending_purge(&self, each: &mut dyn FnMut(Pending)) {
        self.own.pending.take_all(self.queue).into_iter().for_each(each);
    }

    fn check(&self, _comp: Comp) -> Outcome {
        if self.own.is_alive_or_undrained(&self.peer) {
            Ok(Sent::Done)
        } else {
            Err(self.peer.cause().into())
        }
    }

    fn is_connected(&self, device: &[u8], iface: &[u8]) -> bool {
        addr::check_device(device, self.own.namespace()).is_ok()
            && addr::unpack(iface) == Ok(self.peer.name())
    }

    fn peer_process(&self) -> Option<u64> {
        Some(self.peer.name().owner().0)
    }
}
