//! What is on its way: one row per operation the device has, and one per endpoint.
//! Endpoints claim rows, `cq` completes them. Never posts: it only counts and remembers.
//!
//! There are at most as many rows as the send queue is deep, so a claimed row always finds room in the device. A row's
//! number is the work request's number, and also that of its buffer in the transmit region.

use super::epoch::Epochs;
use super::parts::{GroupId, Groups};
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
pub(super) enum Kind {
    /// It did what it says or failed.
    Data,
    /// It asked whether the peer is there: an answer of the peer is good whatever it says.
    Check,
    /// One of several work requests of an operation; its group knows whom to tell.
    Part,
    /// As [`Kind::Data`], to a queue pair that takes data alone; [`Tx::imm`] has the word that goes along.
    Bare,
    /// It read into the row's buffer, for a closure to take it from there.
    Get,
}

/// Where the packet of a row is kept until the device is done with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place {
    /// Nowhere: part of it, or all, is the user's memory.
    Nowhere,
    /// In `shorts`: it was sent inline, from the stack.
    Short,
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
    rows: Box<[Row]>,
    /// By row: a packet that was sent inline.
    shorts: Box<[[u8; MAX_INLINE]]>,
    free: FreeList,
    /// Words that go along with bare messages.
    imms: Box<[Option<u32>]>,
    /// Groups of the rows that are parts.
    group_of: Box<[GroupId]>,
    /// Operations of several rows.
    pub(super) groups: Groups,
    eps: Vec<EpRow>,
    free_eps: Vec<u32>,
    /// Operations of all endpoints.
    all: Epochs,
    /// Flushes that are over and not told yet.
    ready: VecDeque<Comp>,
    /// For whom free rows are kept; nobody else gets one meanwhile.
    hold: Option<Hold>,
    /// Operations that waited are being tried.
    in_turn: bool,
}

/// Rows come back one by one, and who sends from the completions of its own, or needs only one at a time, would take each
/// before those that wait.
#[derive(Clone, Copy)]
struct Hold {
    /// Whose operation needs several rows at once; `None`: the first comes first among those that wait.
    ep: Option<EpIdx>,
    rows: u32,
    /// It has had its chance.
    tried: bool,
}

struct Row {
    comp: Comp,
    kind: Kind,
    packet: Place,
    /// Bytes of the packet.
    len: u16,
    ep: EpIdx,
    ep_epoch: u32,
    all_epoch: u32,
}

struct EpRow {
    epochs: Epochs,
    tag: EpTag,
    /// Rows that an operation of several did not find; 0: none was refused.
    need: u32,
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
pub(super) struct Finished {
    /// Whom to tell.
    pub(super) comp: Comp,
    /// What it was.
    pub(super) kind: Kind,
    /// Whose it was.
    pub(super) ep: EpIdx,
    /// Whether that endpoint is dropped: [`Tx::retire`] it.
    pub(super) orphan: bool,
    /// Its group, if it is a part.
    pub(super) group: Option<GroupId>,
}

/// A row taken for an operation that is not posted yet. Dropped uncommitted, it goes back.
pub(super) struct Claim<'a> {
    tx: &'a RefCell<Tx>,
    row: u32,
}

impl Claim<'_> {
    /// The row's number: work request and buffer. // HOT
    #[inline(always)]
    pub(super) fn row(&self) -> u32 {
        self.row
    }

    /// The device has it. // HOT
    #[inline(always)]
    pub(super) fn commit(self) {
        std::mem::forget(self);
    }

    /// The device is to have the first `len` bytes of `packet`, inline: they are kept in case that they come
    /// back. // HOT
    #[inline(always)]
    pub(super) fn keep_short(&self, packet: &[u8; MAX_INLINE], len: usize) {
        let mut tx = self.tx.borrow_mut();
        let row = &mut tx.rows[self.row as usize];
        (row.packet, row.len) = (Place::Short, len as u16);
        let kept = &mut tx.shorts[self.row as usize];
        kept[..USUAL_INLINE].copy_from_slice(&packet[..USUAL_INLINE]);
        if len > USUAL_INLINE {
            kept[USUAL_INLINE..].copy_from_slice(&packet[USUAL_INLINE..]);
        }
    }

    /// The word goes along with the row's bare message.
    pub(super) fn keep_imm(&self, imm: Option<u32>) {
        self.tx.borrow_mut().imms[self.row as usize] = imm;
    }

    /// The device is to have a packet of `len` bytes that lies in the row's buffer. // HOT
    #[inline(always)]
    pub(super) fn keep_in_buffer(&self, len: usize) {
        // A packet too long for the field would be cut: its return is an error of the endpoint instead.
        let Ok(len) = u16::try_from(len) else { return };
        let mut tx = self.tx.borrow_mut();
        let row = &mut tx.rows[self.row as usize];
        (row.packet, row.len) = (Place::Buffer, len);
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        // Bound first: the completion inside may own an endpoint, whose drop borrows `tx`.
        let undone = self.tx.borrow_mut().finish(self.row);
        drop(undone);
    }
}

impl Tx {
    /// `depth` rows.
    pub(super) fn new(depth: u32) -> Self {
        let row = || Row {
            comp: Comp::None,
            kind: Kind::Data,
            packet: Place::Nowhere,
            len: 0,
            ep: EpIdx(u32::MAX),
            ep_epoch: 0,
            all_epoch: 0,
        };
        Tx {
            rows: (0..depth).map(|_| row()).collect(),
            shorts: vec![[0; MAX_INLINE]; depth as usize].into(),
            free: FreeList::new(depth),
            imms: vec![None; depth as usize].into(),
            group_of: (0..depth).map(|_| GroupId(u32::MAX)).collect(),
            groups: Groups::default(),
            eps: Vec::new(),
            free_eps: Vec::new(),
            all: Epochs::default(),
            ready: VecDeque::new(),
            hold: None,
            in_turn: false,
        }
    }

    /// Takes a row for an operation of `ep`. // HOT
    #[inline]
    pub(super) fn claim(tx: &RefCell<Tx>, ep: EpIdx, kind: Kind, comp: Comp) -> Result<Claim<'_>, Refused> {
        let mut t = tx.borrow_mut();
        let t = &mut *t;
        let e = &mut t.eps[ep.0 as usize];
        if t.all.closed() || e.epochs.gated() {
            return Err(Refused::NoResource);
        }
        let row = t.free.take().ok_or(Refused::NoResource)?;
        let (ep_epoch, all_epoch) = (e.epochs.start(), t.all.start());
        t.rows[row as usize] = Row { comp, kind, packet: Place::Nowhere, len: 0, ep, ep_epoch, all_epoch };
        Ok(Claim { tx, row })
    }

    /// Takes a row for a request of `group`, which is part of an operation that has begun: a fence after it waits for the request,
    /// and does not hold it back.
    pub(super) fn claim_part(tx: &RefCell<Tx>, ep: EpIdx, group: GroupId) -> Option<Claim<'_>> {
        let mut t = tx.borrow_mut();
        let row = t.free.take()?;
        let (ep_epoch, all_epoch) = t.start_whole(ep);
        let (kind, packet) = (Kind::Part, Place::Nowhere);
        t.rows[row as usize] = Row { comp: Comp::None, kind, packet, len: 0, ep, ep_epoch, all_epoch };
        t.join(row, group);
        Some(Claim { tx, row })
    }

    /// Counts an operation that has no row of its own; answers its epochs.
    pub(super) fn start_whole(&mut self, ep: EpIdx) -> (u32, u32) {
        (self.eps[ep.0 as usize].epochs.start(), self.all.start())
    }

    /// It is over. Whether its endpoint is dropped: [`Tx::retire`] it.
    pub(super) fn end_whole(&mut self, ep: EpIdx, (ep_epoch, all_epoch): (u32, u32)) -> bool {
        let e = &mut self.eps[ep.0 as usize];
        e.epochs.finish(ep_epoch, &mut self.ready);
        self.all.finish(all_epoch, &mut self.ready);
        e.state != EpState::Live
    }

    /// The device is done with a row. // HOT
    #[inline]
    pub(super) fn finish(&mut self, row: u32) -> Finished {
        let r = &mut self.rows[row as usize];
        let comp = std::mem::take(&mut r.comp);
        let (kind, ep) = (r.kind, r.ep);
        let e = &mut self.eps[ep.0 as usize];
        e.epochs.finish(r.ep_epoch, &mut self.ready);
        self.all.finish(r.all_epoch, &mut self.ready);
        self.free.give(row);
        let group = if kind == Kind::Part { Some(self.group_of[row as usize]) } else { None };
        Finished { comp, kind, ep, orphan: e.state != EpState::Live, group }
    }

    /// Whose packet a row holds, where, and how long it is; `None` if nobody could send it again.
    pub(super) fn packet(&self, row: u32) -> Option<(EpTag, Place, usize)> {
        let r = &self.rows[row as usize];
        let ep = &self.eps[r.ep.0 as usize];
        let kept = r.packet != Place::Nowhere && ep.state == EpState::Live;
        kept.then_some((ep.tag, r.packet, usize::from(r.len)))
    }

    /// A packet that was sent inline.
    pub(super) fn short(&self, row: u32) -> [u8; MAX_INLINE] {
        self.shorts[row as usize]
    }

    /// The word that goes along with a bare message.
    pub(super) fn imm(&self, row: u32) -> Option<u32> {
        self.imms[row as usize]
    }

    /// The row is a part of `group`.
    pub(super) fn join(&mut self, row: u32, group: GroupId) {
        self.group_of[row as usize] = group;
    }

    /// What is on its way in a row. // HOT
    #[inline]
    pub(super) fn kind(&self, row: u32) -> Kind {
        self.rows[row as usize].kind
    }

    /// How many rows there are.
    pub(super) fn depth(&self) -> u32 {
        self.free.total()
    }

    fn free_rows(&self) -> u32 {
        self.free.total() - self.free.used()
    }

    /// Whether an operation of `ep` finds the `rows` rows that it needs all at once. If not, that is remembered for
    /// [`Tx::would_take`]; and if it waited and this was its turn, nobody else gets a row before it has had them.
    pub(super) fn admit(&mut self, ep: EpIdx, rows: u32) -> bool {
        let others = self.hold.is_some_and(|hold| hold.ep != Some(ep) || !self.in_turn);
        let fenced = self.all.gated() || self.eps[ep.0 as usize].epochs.gated();
        if fenced || others || self.free_rows() < rows {
            self.eps[ep.0 as usize].need = rows;
            if self.in_turn && !fenced && !others {
                self.keep_rows(Some(ep), rows);
            }
            return false;
        }
        self.eps[ep.0 as usize].need = 0;
        self.release();
        true
    }

    /// Whoever does not wait finds no row from now on, until there are `rows`.
    fn keep_rows(&mut self, ep: Option<EpIdx>, rows: u32) {
        self.hold = Some(Hold { ep, rows, tried: false });
        self.all.hold(true);
    }

    /// Nobody's rows are kept any more.
    fn release(&mut self) {
        if self.hold.take().is_some() {
            self.all.hold(false);
        }
    }

    /// Operations that waited are tried from now on; answers whether it is worth it.
    pub(super) fn begin_turns(&mut self) -> bool {
        if !self.has_room() {
            self.end_turns(true);
            return false;
        }
        self.in_turn = true;
        match &mut self.hold {
            Some(Hold { ep: Some(_), tried, .. }) => *tried = true,
            _ => self.release(),
        }
        true
    }

    /// All that waited have been tried. Whether another one was held back for the sake of one that did not want its rows:
    /// then they are to be tried again.
    pub(super) fn kept_in_vain(&mut self) -> bool {
        let vain = self.hold.is_some_and(|hold| hold.tried);
        if vain {
            self.release();
        }
        vain
    }

    /// No more of them are tried now; whether some still wait.
    pub(super) fn end_turns(&mut self, some_wait: bool) {
        self.in_turn = false;
        if !some_wait {
            self.release();
        } else if self.hold.is_none() && !self.has_room() {
            self.keep_rows(None, 1);
        }
    }

    /// What waited of `ep` does not any more; whether others do.
    pub(super) fn leave_turns(&mut self, ep: EpIdx, some_wait: bool) {
        if !some_wait || self.hold.is_some_and(|hold| hold.ep == Some(ep)) {
            self.release();
        }
    }

    /// Whether a flush is over that has not been told. // HOT
    #[inline(always)]
    pub(super) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// A flush that is over and has not been told.
    pub(super) fn take_ready(&mut self) -> Option<Comp> {
        self.ready.pop_front()
    }

    /// Whether there is a free row at all, or as many as are kept for somebody.
    #[inline]
    pub(super) fn has_room(&self) -> bool {
        self.free_rows() >= self.hold.map_or(1, |hold| hold.rows)
    }

    /// Whether the operation of `ep` that was refused last would be taken now.
    pub(super) fn would_take(&mut self, ep: EpIdx) -> bool {
        let rows = self.free_rows();
        let e = &mut self.eps[ep.0 as usize];
        let need = std::mem::take(&mut e.need).max(1);
        rows >= need && !self.all.closed() && !e.epochs.gated()
    }

    /// A row for a new endpoint.
    pub(super) fn add_ep(&mut self) -> EpIdx {
        let new = EpRow { epochs: Epochs::default(), tag: EpTag::default(), need: 0, state: EpState::Live };
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
        if e.state != EpState::Dropped || !e.epochs.idle() {
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
    fn rows_stay_small() {
        assert_eq!(size_of::<Row>(), 32, "two rows a cache line");
        assert!(size_of::<EpRow>() <= 32, "there may be 100 000 of them: {}", size_of::<EpRow>());
    }

    #[test]
    fn a_claim_not_posted_leaves_no_trace() {
        let tx = RefCell::new(Tx::new(1));
        let ep = tx.borrow_mut().add_ep();
        let claim = Tx::claim(&tx, ep, Kind::Data, Comp::Token(5)).unwrap();
        assert_eq!(Tx::claim(&tx, ep, Kind::Data, Comp::None).err(), Some(Refused::NoResource));
        drop(claim);
        assert!(tx.borrow_mut().would_take(ep));
        assert_eq!(tx.borrow_mut().flush(Some(ep), &Comp::None), Ok(crate::api::Sent::Done));
    }

    #[test]
    fn a_dropped_endpoint_keeps_its_address_handle_until_its_last_operation() {
        let tx = RefCell::new(Tx::new(4));
        let ep = tx.borrow_mut().add_ep();
        let rows: Vec<u32> = (0..2)
            .map(|_| {
                let claim = Tx::claim(&tx, ep, Kind::Data, Comp::None).unwrap();
                let row = claim.row();
                claim.commit();
                row
            })
            .collect();
        let mut tx = tx.into_inner();
        assert!(!tx.drop_ep(ep));
        assert!(tx.finish(rows[1]).orphan);
        assert!(!tx.retire(ep));
        assert!(tx.finish(rows[0]).orphan);
        assert!(tx.retire(ep));
        assert_eq!(tx.add_ep(), ep, "the row is used again");
    }

    #[test]
    fn a_fence_of_the_interface_holds_every_endpoint() {
        let tx = RefCell::new(Tx::new(4));
        let (a, b) = {
            let mut t = tx.borrow_mut();
            (t.add_ep(), t.add_ep())
        };
        let claim = Tx::claim(&tx, a, Kind::Data, Comp::None).unwrap();
        let row = claim.row();
        claim.commit();
        tx.borrow_mut().fence(None);
        assert!(Tx::claim(&tx, b, Kind::Data, Comp::None).is_err());
        tx.borrow_mut().finish(row);
        tx.borrow_mut().fence(Some(a));
        let claim = Tx::claim(&tx, b, Kind::Data, Comp::None).unwrap();
        tx.borrow_mut().fence(Some(b));
        assert!(Tx::claim(&tx, a, Kind::Data, Comp::None).is_ok(), "another endpoint is not held");
        assert!(Tx::claim(&tx, b, Kind::Data, Comp::None).is_err());
        drop(claim);
        assert!(Tx::claim(&tx, b, Kind::Data, Comp::None).is_ok());
    }
}
