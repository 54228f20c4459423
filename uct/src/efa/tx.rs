//! What is on its way: one row per operation the device has, and one per endpoint.
//! Endpoints claim rows, `cq` completes them. Never posts: it only counts and remembers.
//!
//! There are at most as many rows as the send queue is deep, so a claimed row always finds room in the device. A row's
//! number is the work request's number, and also that of its buffer in the transmit region.

use super::epoch::Epochs;
use super::wr_group::{WrGroupId, WrGroups};
use crate::api::{Comp, EpTag, Outcome, Refused};
use std::cell::RefCell;
use std::collections::VecDeque;
use ucs::coll::snug;
use ucs::mem::pool::FreeList;

/// An endpoint's row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct EpIdx(u32);

/// How the end of an operation is to be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum OpKind {
    /// It did what it says or failed.
    Data,
    /// It asked whether the peer is there: an answer of the peer is good whatever it says.
    Check,
    /// One of several work requests of an operation; its group knows whom to tell.
    GroupMember,
    /// As [`Kind::Data`], to a queue pair that takes data alone; [`Tx::imm`] has the word that goes along.
    ToUserQp,
    /// It read into the row's buffer, for a closure to take it from there.
    GetBcopy,
}

/// Where the packet of a row is kept until the device is done with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum PacketLocation {
    /// Nowhere: part of it, or all, is the user's memory.
    None,
    /// In `inline_copies`: it was sent inline, from the stack.
    Inline,
    /// In the row's buffer.
    Buffer,
}

/// Longest inline packet.
pub(super) const MAX_INLINE: usize = 128;
/// Inline packets of this length and less, which are those of a device with the usual limit, are kept by one copy of
/// fixed length.
const USUAL_INLINE: usize = 32;

/// The rows of an interface.
pub(super) struct Tx {
    slots: Box<[Slot]>,
    /// By row: a packet that was sent inline.
    inline_copies: Box<[[u8; MAX_INLINE]]>,
    free: FreeList,
    /// Words that go along with bare messages.
    imms: Box<[Option<u32>]>,
    /// Groups of the rows that are parts.
    group_of: Box<[WrGroupId]>,
    /// Operations of several rows.
    pub(super) groups: WrGroups,
    eps: Vec<TxEp>,
    free_eps: Vec<u32>,
    /// Operations of all endpoints.
    all: Epochs,
    /// Flushes that are over and not told yet.
    done_flushes: VecDeque<Comp>,
    /// For whom free rows are kept; nobody else gets one meanwhile.
    reservation: Option<Reservation>,
    /// Operations that waited are being tried.
    dispatching: bool,
}

/// Rows come back one by one, and who sends from the completions of its own, or needs only one at a time, would take each
/// before those that wait.
#[derive(Clone, Copy)]
struct Reservation {
    /// Whose operation needs several rows at once; `None`: the first comes first among those that wait.
    ep: Option<EpIdx>,
    slots: u32,
    /// It has had its chance.
    attempted: bool,
}

struct Slot {
    comp: Comp,
    kind: OpKind,
    packet: PacketLocation,
    /// Bytes of the packet.
    len: u16,
    ep: EpIdx,
    ep_epoch: u32,
    all_epoch: u32,
}

struct TxEp {
    epochs: Epochs,
    tag: EpTag,
    /// Rows that an operation of several did not find; 0: none was refused.
    slots_needed: u32,
    state: EpState,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum EpState {
    Live,
    /// The user is done with it; operations are still on their way.
    Dropped,
    Free,
}

/// A completed row.
pub(super) struct CompletedSlot {
    /// Whom to tell.
    pub(super) comp: Comp,
    /// What it was.
    pub(super) kind: OpKind,
    /// Whose it was.
    pub(super) ep: EpIdx,
    /// Whether that endpoint is dropped: [`Tx::retire`] it.
    pub(super) ep_dropped: bool,
    /// Its group, if it is a part.
    pub(super) group: Option<WrGroupId>,
}

/// A row taken for an operation that is not posted yet. Dropped uncommitted, it goes back.
pub(super) struct ClaimedSlot<'a> {
    tx: &'a RefCell<Tx>,
    slot: u32,
}

impl ClaimedSlot<'_> {
    /// The row's number: work request and buffer. // HOT
    #[inline(always)]
    pub(super) fn slot(&self) -> u32 {
        self.slot
    }

    /// The device has it. // HOT
    #[inline(always)]
    pub(super) fn commit(self) {
        std::mem::forget(self);
    }

    /// The device is to have the first `len` bytes of `packet`, inline: they are kept in case that they come
    /// back. // HOT
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

    /// The word goes along with the row's bare message.
    pub(super) fn set_imm(&self, imm: Option<u32>) {
        self.tx.borrow_mut().imms[self.slot as usize] = imm;
    }

    /// The device is to have a packet of `len` bytes that lies in the row's buffer. // HOT
    #[inline(always)]
    pub(super) fn set_buffer_len(&self, len: usize) {
        // A packet too long for the field would be cut: its return is an error of the endpoint instead.
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
    /// `depth` rows.
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

    /// Takes a row for an operation of `ep`. // HOT
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

    /// Takes a row for a request of `group`, which is part of an operation that has begun: a fence after it waits for the request,
    /// and does not hold it back.
    pub(super) fn claim_in_group(tx: &RefCell<Tx>, ep: EpIdx, group: WrGroupId) -> Option<ClaimedSlot<'_>> {
        let mut t = tx.borrow_mut();
        let slot = t.free.take()?;
        let (ep_epoch, all_epoch) = t.start_op(ep);
        let (kind, packet) = (OpKind::GroupMember, PacketLocation::None);
        t.slots[slot as usize] = Slot { comp: Comp::None, kind, packet, len: 0, ep, ep_epoch, all_epoch };
        t.set_group(slot, group);
        Some(ClaimedSlot { tx, slot })
    }

    /// Counts an operation that has no row of its own; answers its epochs.
    pub(super) fn start_op(&mut self, ep: EpIdx) -> (u32, u32) {
        (self.eps[ep.0 as usize].epochs.start(), self.all.start())
    }

    /// It is over. Whether its endpoint is dropped: [`Tx::retire`] it.
    pub(super) fn finish_op(&mut self, ep: EpIdx, (ep_epoch, all_epoch): (u32, u32)) -> bool {
        let e = &mut self.eps[ep.0 as usize];
        e.epochs.finish(ep_epoch, &mut self.done_flushes);
        self.all.finish(all_epoch, &mut self.done_flushes);
        e.state != EpState::Live
    }

    /// The device is done with a row. // HOT
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

    /// Whose packet a row holds, where, and how long it is; `None` if nobody could send it again.
    pub(super) fn packet(&self, slot: u32) -> Option<(EpTag, PacketLocation, usize)> {
        let r = &self.slots[slot as usize];
        let ep = &self.eps[r.ep.0 as usize];
        let stored = r.packet != PacketLocation::None && ep.state == EpState::Live;
        stored.then_some((ep.tag, r.packet, usize::from(r.len)))
    }

    /// A packet that was sent inline.
    pub(super) fn inline_copy(&self, slot: u32) -> [u8; MAX_INLINE] {
        self.inline_copies[slot as usize]
    }

    /// The word that goes along with a bare message.
    pub(super) fn imm(&self, slot: u32) -> Option<u32> {
        self.imms[slot as usize]
    }

    /// The row is a part of `group`.
    pub(super) fn set_group(&mut self, slot: u32, group: WrGroupId) {
        self.group_of[slot as usize] = group;
    }

    /// What is on its way in a row. // HOT
    #[inline]
    pub(super) fn kind(&self, slot: u32) -> OpKind {
        self.slots[slot as usize].kind
    }

    /// How many rows there are.
    pub(super) fn depth(&self) -> u32 {
        self.free.total()
    }

    fn free_slots(&self) -> u32 {
        self.free.total() - self.free.used()
    }

    /// Whether an operation of `ep` finds the `slots` rows that it needs all at once. If not, that is remembered for
    /// [`Tx::can_send`]; and if it waited and this was its turn, nobody else gets a row before it has had them.
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

    /// Whoever does not wait finds no row from now on, until there are `slots`.
    fn reserve_slots(&mut self, ep: Option<EpIdx>, slots: u32) {
        self.reservation = Some(Reservation { ep, slots, attempted: false });
        self.all.set_reserved(true);
    }

    /// Nobody's rows are kept any more.
    fn end_reservation(&mut self) {
        if self.reservation.take().is_some() {
            self.all.set_reserved(false);
        }
    }

    /// Operations that waited are tried from now on; answers whether it is worth it.
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

    /// All that waited have been tried. Whether another one was held back for the sake of one that did not want its rows:
    /// then they are to be tried again.
    pub(super) fn release_unused(&mut self) -> bool {
        let unused = self.reservation.is_some_and(|reservation| reservation.attempted);
        if unused {
            self.end_reservation();
        }
        unused
    }

    /// No more of them are tried now; whether some still wait.
    pub(super) fn end_dispatch(&mut self, others_pending: bool) {
        self.dispatching = false;
        if !others_pending {
            self.end_reservation();
        } else if self.reservation.is_none() && !self.has_free_slot() {
            self.reserve_slots(None, 1);
        }
    }

    /// What waited of `ep` does not any more; whether others do.
    pub(super) fn pending_removed(&mut self, ep: EpIdx, others_pending: bool) {
        if !others_pending || self.reservation.is_some_and(|reservation| reservation.ep == Some(ep)) {
            self.end_reservation();
        }
    }

    /// Whether a flush is over that has not been told. // HOT
    #[inline(always)]
    pub(super) fn has_done_flush(&self) -> bool {
        !self.done_flushes.is_empty()
    }

    /// A flush that is over and has not been told.
    pub(super) fn take_done_flush(&mut self) -> Option<Comp> {
        self.done_flushes.pop_front()
    }

    /// Whether there is a free row at all, or as many as are kept for somebody.
    #[inline]
    pub(super) fn has_free_slot(&self) -> bool {
        self.free_slots() >= self.reservation.map_or(1, |reservation| reservation.slots)
    }

    /// Whether the operation of `ep` that was refused last would be taken now.
    pub(super) fn can_send(&mut self, ep: EpIdx) -> bool {
        let slots = self.free_slots();
        let e = &mut self.eps[ep.0 as usize];
        let slots_needed = std::mem::take(&mut e.slots_needed).max(1);
        slots >= slots_needed && !self.all.is_blocked() && !e.epochs.is_fenced()
    }

    /// A row for a new endpoint.
    pub(super) fn add_ep(&mut self) -> EpIdx {
        let new =
            TxEp { epochs: Epochs::default(), tag: EpTag::default(), slots_needed: 0, state: EpState::Live };
        match self.free_eps.pop() {
            Some(at) => {
                self.eps[at as usize] = new;
                EpIdx(at)
            }
            None => {
                snug::push(&mut self.eps, new);
                EpIdx(self.eps.len() as u32 - 1)
            }
        }
    }

    /// The user dropped the endpoint; answers as [`Tx::retire`].
    pub(super) fn drop_ep(&mut self, ep: EpIdx) -> bool {
        self.eps[ep.0 as usize].state = EpState::Dropped;
        self.retire(ep)
    }

    /// Frees the row of a dropped endpoint when nothing is on its way any more. Answers whether it did: then
    /// its address handle goes back.
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

    /// The endpoint's name in error reports.
    pub(super) fn tag(&self, ep: EpIdx) -> EpTag {
        self.eps[ep.0 as usize].tag
    }

    /// Names the endpoint for error reports.
    pub(super) fn set_tag(&mut self, ep: EpIdx, tag: EpTag) {
        self.eps[ep.0 as usize].tag = tag;
    }

    /// Flush of one endpoint, or of all.
    pub(super) fn flush(&mut self, ep: Option<EpIdx>, comp: &Comp) -> Outcome {
        self.epochs(ep).flush(comp)
    }

    /// Fence of one endpoint, or of all.
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
