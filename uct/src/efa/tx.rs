//! TX slots, one per operation in the device, and the send state of endpoints. Endpoints claim slots, `cq`
//! completes them.
//!
//! There are at most as many slots as the send queue is deep, so a claimed slot always finds room. The slot
//! number is the work request id and the number of its bounce buffer.

use super::epoch::Epochs;
use super::wr_group::{WrGroupId, WrGroups};
use crate::api::{Comp, EpTag, Outcome, Refused};
use std::cell::RefCell;
use std::collections::VecDeque;
use ucs::coll::growth;
use ucs::mem::pool::FreeList;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct EpIdx(u32);

/// How the completion of a slot is interpreted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum OpKind {
    Data,
    /// A liveness check: any answer of the peer is success.
    Check,
    GroupMember,
    /// As [`OpKind::Data`], to a peer's user receive queue pair; [`Tx::imm`] has its immediate.
    ToUserQp,
    /// A read into the slot's buffer, for a closure to unpack.
    GetBcopy,
}

/// Where the packet of a slot is kept until its completion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum PacketLocation {
    /// Not kept: part of it is the user's memory.
    None,
    /// In `inline_copies`: sent inline from the stack.
    Inline,
    Buffer,
}

pub(super) const MAX_INLINE: usize = 128;
/// Inline packets up to this length, the usual device limit, are kept by one copy of fixed length.
const USUAL_INLINE: usize = 32;

pub(super) struct Tx {
    slots: Box<[Slot]>,
    /// By slot: the packet sent inline.
    inline_copies: Box<[[u8; MAX_INLINE]]>,
    free: FreeList,
    imms: Box<[Option<u32>]>,
    group_of: Box<[WrGroupId]>,
    pub(super) groups: WrGroups,
    eps: Vec<TxEp>,
    free_eps: Vec<u32>,
    all: Epochs,
    done_flushes: VecDeque<Comp>,
    /// Free slots reserved for one endpoint or for the pending queue.
    reservation: Option<Reservation>,
    dispatching: bool,
}

/// Free slots reserved for a pending operation, which senders of one slot at a time would otherwise take.
#[derive(Clone, Copy)]
struct Reservation {
    /// Endpoint whose operation needs several slots; `None`: whichever pending operation is first.
    ep: Option<EpIdx>,
    slots: u32,
    /// Whether the operation was tried since.
    attempted: bool,
}

struct Slot {
    comp: Comp,
    kind: OpKind,
    packet: PacketLocation,
    len: u16,
    ep: EpIdx,
    ep_epoch: u32,
    all_epoch: u32,
}

struct TxEp {
    epochs: Epochs,
    tag: EpTag,
    /// Slots that a refused operation needed; 0: none was refused.
    slots_needed: u32,
    state: EpState,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum EpState {
    Live,
    Dropped,
    Free,
}

pub(super) struct CompletedSlot {
    pub(super) comp: Comp,
    pub(super) kind: OpKind,
    pub(super) ep: EpIdx,
    /// Whether the endpoint is dropped: call [`Tx::retire`].
    pub(super) ep_dropped: bool,
    pub(super) group: Option<WrGroupId>,
}

/// A slot claimed for an operation not posted yet. Dropping it without `commit` frees it.
pub(super) struct ClaimedSlot<'a> {
    tx: &'a RefCell<Tx>,
    slot: u32,
}

impl ClaimedSlot<'_> {
    // HOT
    #[inline(always)]
    pub(super) fn slot(&self) -> u32 {
        self.slot
    }

    /// Leaves the slot to the device.
    // HOT
    #[inline(always)]
    pub(super) fn commit(self) {
        std::mem::forget(self);
    }

    /// Keeps a copy of the inline packet, in case it is returned.
    // HOT
    #[inline(always)]
    pub(super) fn set_inline_copy(&self, packet: &[u8; MAX_INLINE], len: usize) {
        let mut tx = self.tx.borrow_mut();
        let slot = &mut tx.slots[self.slot as usize];
        (slot.packet, slot.len) = (PacketLocation::Inline, len as u16);
        let stored = &mut tx.inline_copies[self.slot as usize];
        stored[..USUAL_INLINE].copy_from_slice(&packet[..USUAL_INLINE]);
        if len > USUAL_INLINE {
            stored[USUAL_INLINE..].copy_from_slice(&packet[USUAL_INLINE..]);
        }
    }

    pub(super) fn set_imm(&self, imm: Option<u32>) {
        self.tx.borrow_mut().imms[self.slot as usize] = imm;
    }

    /// Records a packet of `len` bytes in the slot's buffer.
    // HOT
    #[inline(always)]
    pub(super) fn set_buffer_len(&self, len: usize) {
        // A longer packet could not be returned whole: it becomes an endpoint error.
        let Ok(len) = u16::try_from(len) else { return };
        let mut tx = self.tx.borrow_mut();
        let slot = &mut tx.slots[self.slot as usize];
        (slot.packet, slot.len) = (PacketLocation::Buffer, len);
    }
}

impl Drop for ClaimedSlot<'_> {
    fn drop(&mut self) {
        // Bound first: the completion inside may own an endpoint, whose drop borrows `tx`.
        let unposted = self.tx.borrow_mut().finish(self.slot);
        drop(unposted);
    }
}

impl Tx {
    pub(super) fn new(depth: u32) -> Self {
        let slot = || Slot {
            comp: Comp::None,
            kind: OpKind::Data,
            packet: PacketLocation::None,
            len: 0,
            ep: EpIdx(u32::MAX),
            ep_epoch: 0,
            all_epoch: 0,
        };
        Tx {
            slots: (0..depth).map(|_| slot()).collect(),
            inline_copies: vec![[0; MAX_INLINE]; depth as usize].into(),
            free: FreeList::new(depth),
            imms: vec![None; depth as usize].into(),
            group_of: (0..depth).map(|_| WrGroupId(u32::MAX)).collect(),
            groups: WrGroups::default(),
            eps: Vec::new(),
            free_eps: Vec::new(),
            all: Epochs::default(),
            done_flushes: VecDeque::new(),
            reservation: None,
            dispatching: false,
        }
    }

    /// Claims a slot for an operation of `ep`.
    // HOT
    #[inline]
    pub(super) fn claim(
        tx: &RefCell<Tx>,
        ep: EpIdx,
        kind: OpKind,
        comp: Comp,
    ) -> Result<ClaimedSlot<'_>, Refused> {
        let mut t = tx.borrow_mut();
        let t = &mut *t;
        let e = &mut t.eps[ep.0 as usize];
        if t.all.is_blocked() || e.epochs.is_fenced() {
            return Err(Refused::NoResource);
        }
        let slot = t.free.take().ok_or(Refused::NoResource)?;
        let (ep_epoch, all_epoch) = (e.epochs.start(), t.all.start());
        t.slots[slot as usize] =
            Slot { comp, kind, packet: PacketLocation::None, len: 0, ep, ep_epoch, all_epoch };
        Ok(ClaimedSlot { tx, slot })
    }

    /// Claims a slot for a request of `group`, which has begun: a later fence does not block it.
    pub(super) fn claim_in_group(tx: &RefCell<Tx>, ep: EpIdx, group: WrGroupId) -> Option<ClaimedSlot<'_>> {
        let mut t = tx.borrow_mut();
        let slot = t.free.take()?;
        let (ep_epoch, all_epoch) = t.start_op(ep);
        let (kind, packet) = (OpKind::GroupMember, PacketLocation::None);
        t.slots[slot as usize] = Slot { comp: Comp::None, kind, packet, len: 0, ep, ep_epoch, all_epoch };
        t.set_group(slot, group);
        Some(ClaimedSlot { tx, slot })
    }

    /// Counts an operation without a slot and returns its epochs.
    pub(super) fn start_op(&mut self, ep: EpIdx) -> (u32, u32) {
        (self.eps[ep.0 as usize].epochs.start(), self.all.start())
    }

    /// Ends such an operation; returns whether its endpoint is dropped, for [`Tx::retire`].
    pub(super) fn finish_op(&mut self, ep: EpIdx, (ep_epoch, all_epoch): (u32, u32)) -> bool {
        let e = &mut self.eps[ep.0 as usize];
        e.epochs.finish(ep_epoch, &mut self.done_flushes);
        self.all.finish(all_epoch, &mut self.done_flushes);
        e.state != EpState::Live
    }

    /// Frees a slot that the device completed.
    // HOT
    #[inline]
    pub(super) fn finish(&mut self, slot: u32) -> CompletedSlot {
        let r = &mut self.slots[slot as usize];
        let comp = std::mem::take(&mut r.comp);
        let (kind, ep) = (r.kind, r.ep);
        let e = &mut self.eps[ep.0 as usize];
        e.epochs.finish(r.ep_epoch, &mut self.done_flushes);
        self.all.finish(r.all_epoch, &mut self.done_flushes);
        self.free.give(slot);
        let group = if kind == OpKind::GroupMember { Some(self.group_of[slot as usize]) } else { None };
        CompletedSlot { comp, kind, ep, ep_dropped: e.state != EpState::Live, group }
    }

    /// The packet kept in a slot: endpoint tag, location and length; `None` if it cannot be resent.
    pub(super) fn packet(&self, slot: u32) -> Option<(EpTag, PacketLocation, usize)> {
        let r = &self.slots[slot as usize];
        let ep = &self.eps[r.ep.0 as usize];
        let stored = r.packet != PacketLocation::None && ep.state == EpState::Live;
        stored.then_some((ep.tag, r.packet, usize::from(r.len)))
    }

    pub(super) fn inline_copy(&self, slot: u32) -> [u8; MAX_INLINE] {
        self.inline_copies[slot as usize]
    }

    pub(super) fn imm(&self, slot: u32) -> Option<u32> {
        self.imms[slot as usize]
    }

    pub(super) fn set_group(&mut self, slot: u32, group: WrGroupId) {
        self.group_of[slot as usize] = group;
    }

    // HOT
    #[inline]
    pub(super) fn kind(&self, slot: u32) -> OpKind {
        self.slots[slot as usize].kind
    }

    /// Whether nobody waits for the end of a slot's operation.
    // HOT
    #[inline]
    pub(super) fn is_silent(&self, slot: u32) -> bool {
        let r = &self.slots[slot as usize];
        matches!((&r.comp, r.kind), (Comp::None, OpKind::Data | OpKind::ToUserQp))
            && self.eps[r.ep.0 as usize].state == EpState::Live
    }

    pub(super) fn depth(&self) -> u32 {
        self.free.total()
    }

    fn free_slots(&self) -> u32 {
        self.free.total() - self.free.used()
    }

    /// Whether `ep` finds `slots` slots at once. If not, notes the need; during dispatch, reserves them.
    pub(super) fn try_reserve(&mut self, ep: EpIdx, slots: u32) -> bool {
        let others =
            self.reservation.is_some_and(|reservation| reservation.ep != Some(ep) || !self.dispatching);
        let fenced = self.all.is_fenced() || self.eps[ep.0 as usize].epochs.is_fenced();
        if fenced || others || self.free_slots() < slots {
            self.eps[ep.0 as usize].slots_needed = slots;
            if self.dispatching && !fenced && !others {
                self.reserve_slots(Some(ep), slots);
            }
            return false;
        }
        self.eps[ep.0 as usize].slots_needed = 0;
        self.end_reservation();
        true
    }

    fn reserve_slots(&mut self, ep: Option<EpIdx>, slots: u32) {
        self.reservation = Some(Reservation { ep, slots, attempted: false });
        self.all.set_reserved(true);
    }

    fn end_reservation(&mut self) {
        if self.reservation.take().is_some() {
            self.all.set_reserved(false);
        }
    }

    /// Starts dispatch of pending operations; returns whether any can proceed.
    pub(super) fn begin_dispatch(&mut self) -> bool {
        if !self.has_free_slot() {
            self.end_dispatch(true);
            return false;
        }
        self.dispatching = true;
        match &mut self.reservation {
            Some(Reservation { ep: Some(_), attempted, .. }) => *attempted = true,
            _ => self.end_reservation(),
        }
        true
    }

    /// Releases an unused reservation after its operation was tried; returns whether to dispatch again.
    pub(super) fn release_unused(&mut self) -> bool {
        let unused = self.reservation.is_some_and(|reservation| reservation.attempted);
        if unused {
            self.end_reservation();
        }
        unused
    }

    /// Ends dispatch; reserves a slot if operations are still pending and none is free.
    pub(super) fn end_dispatch(&mut self, others_pending: bool) {
        self.dispatching = false;
        if !others_pending {
            self.end_reservation();
        } else if self.reservation.is_none() && !self.has_free_slot() {
            self.reserve_slots(None, 1);
        }
    }

    /// Ends a reservation whose pending operation was removed.
    pub(super) fn pending_removed(&mut self, ep: EpIdx, others_pending: bool) {
        if !others_pending || self.reservation.is_some_and(|reservation| reservation.ep == Some(ep)) {
            self.end_reservation();
        }
    }

    // HOT
    #[inline(always)]
    pub(super) fn has_done_flush(&self) -> bool {
        !self.done_flushes.is_empty()
    }

    pub(super) fn take_done_flush(&mut self) -> Option<Comp> {
        self.done_flushes.pop_front()
    }

    /// Whether a slot is free, or as many as are reserved.
    #[inline]
    pub(super) fn has_free_slot(&self) -> bool {
        self.free_slots() >= self.reservation.map_or(1, |reservation| reservation.slots)
    }

    /// Whether the operation of `ep` that was refused last would succeed now.
    pub(super) fn can_send(&mut self, ep: EpIdx) -> bool {
        let slots = self.free_slots();
        let e = &mut self.eps[ep.0 as usize];
        let slots_needed = std::mem::take(&mut e.slots_needed).max(1);
        slots >= slots_needed && !self.all.is_blocked() && !e.epochs.is_fenced()
    }

    pub(super) fn add_ep(&mut self) -> EpIdx {
        let new =
            TxEp { epochs: Epochs::default(), tag: EpTag::default(), slots_needed: 0, state: EpState::Live };
        match self.free_eps.pop() {
            Some(at) => {
                self.eps[at as usize] = new;
                EpIdx(at)
            }
            None => {
                growth::push(&mut self.eps, new);
                EpIdx(self.eps.len() as u32 - 1)
            }
        }
    }

    /// Marks the endpoint dropped; returns as [`Tx::retire`].
    pub(super) fn drop_ep(&mut self, ep: EpIdx) -> bool {
        self.eps[ep.0 as usize].state = EpState::Dropped;
        self.retire(ep)
    }

    /// Frees a dropped endpoint without operations in flight; returns whether its address handle can go.
    #[cold]
    pub(super) fn retire(&mut self, ep: EpIdx) -> bool {
        let e = &mut self.eps[ep.0 as usize];
        if e.state != EpState::Dropped || !e.epochs.is_idle() {
            return false;
        }
        e.state = EpState::Free;
        self.free_eps.push(ep.0);
        true
    }

    pub(super) fn tag(&self, ep: EpIdx) -> EpTag {
        self.eps[ep.0 as usize].tag
    }

    pub(super) fn set_tag(&mut self, ep: EpIdx, tag: EpTag) {
        self.eps[ep.0 as usize].tag = tag;
    }

    pub(super) fn flush(&mut self, ep: Option<EpIdx>, comp: &Comp) -> Outcome {
        self.epochs(ep).flush(comp)
    }

    pub(super) fn fence(&mut self, ep: Option<EpIdx>) {
        self.epochs(ep).fence();
    }

    fn epochs(&mut self, ep: Option<EpIdx>) -> &mut Epochs {
        match ep {
            Some(ep) => &mut self.eps[ep.0 as usize].epochs,
            None => &mut self.all,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_stay_small() {
        assert_eq!(size_of::<Slot>(), 32, "two rows a cache line");
        assert!(size_of::<TxEp>() <= 32, "there may be 100 000 of them: {}", size_of::<TxEp>());
    }

    #[test]
    fn an_unposted_claim_is_undone() {
        let tx = RefCell::new(Tx::new(1));
        let ep = tx.borrow_mut().add_ep();
        let claim = Tx::claim(&tx, ep, OpKind::Data, Comp::Token(5)).unwrap();
        assert_eq!(Tx::claim(&tx, ep, OpKind::Data, Comp::None).err(), Some(Refused::NoResource));
        drop(claim);
        assert!(tx.borrow_mut().can_send(ep));
        assert_eq!(tx.borrow_mut().flush(Some(ep), &Comp::None), Ok(crate::api::Sent::Done));
    }

    #[test]
    fn a_dropped_endpoint_keeps_its_address_handle_until_its_last_operation() {
        let tx = RefCell::new(Tx::new(4));
        let ep = tx.borrow_mut().add_ep();
        let slots: Vec<u32> = (0..2)
            .map(|_| {
                let claim = Tx::claim(&tx, ep, OpKind::Data, Comp::None).unwrap();
                let slot = claim.slot();
                claim.commit();
                slot
            })
            .collect();
        let mut tx = tx.into_inner();
        assert!(!tx.drop_ep(ep));
        assert!(tx.finish(slots[1]).ep_dropped);
        assert!(!tx.retire(ep));
        assert!(tx.finish(slots[0]).ep_dropped);
        assert!(tx.retire(ep));
        assert_eq!(tx.add_ep(), ep, "the row is used again");
    }

    #[test]
    fn an_interface_fence_blocks_every_endpoint() {
        let tx = RefCell::new(Tx::new(4));
        let (a, b) = {
            let mut t = tx.borrow_mut();
            (t.add_ep(), t.add_ep())
        };
        let claim = Tx::claim(&tx, a, OpKind::Data, Comp::None).unwrap();
        let slot = claim.slot();
        claim.commit();
        tx.borrow_mut().fence(None);
        assert!(Tx::claim(&tx, b, OpKind::Data, Comp::None).is_err());
        tx.borrow_mut().finish(slot);
        tx.borrow_mut().fence(Some(a));
        let claim = Tx::claim(&tx, b, OpKind::Data, Comp::None).unwrap();
        tx.borrow_mut().fence(Some(b));
        assert!(Tx::claim(&tx, a, OpKind::Data, Comp::None).is_ok(), "another endpoint is not held");
        assert!(Tx::claim(&tx, b, OpKind::Data, Comp::None).is_err());
        drop(claim);
        assert!(Tx::claim(&tx, b, OpKind::Data, Comp::None).is_ok());
    }
}
