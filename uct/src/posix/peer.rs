//! The writing side: a peer's segment as this interface has attached it, shared by all endpoints to that peer.
//! Called by `ep.rs`. Never blocks: a full FIFO is an answer, and whether the peer still lives is only asked then.

use super::fifo;
use super::porter::{Alarm, Death, Export, Name, Porter, ProcKey};
use super::seg::{CellRef, FIRST_LINE, IN_SLOT, INLINE, Segment};
use crate::api::{ConnectError, EpTag, Error, Outcome, Refused};
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use ucs::sync::prefetch_write;
use ucs::sys::EventFd;

/// Calls that find the FIFO full between two looks at the peer's process.
const LOOK_EVERY: u32 = 4096;

/// An attached peer.
pub struct Peer {
    seg: Segment,
    /// The ticket after our last one: ours too, unless somebody else has been here.
    after: Cell<u64>,
    /// Cells of the FIFO; none once the peer is known to be dead, so that every send takes the way of a full one.
    cells: Cell<u64>,
    slot_len: usize,
    seen_tail: Cell<u64>,
    /// Our interface's name, for the source word.
    own: Name,
    death: Arc<Death>,
    dead: Cell<bool>,
    mourned: Cell<bool>,
    full: Cell<u32>,
    wake: EventFd,
    /// Endpoints to it, by number.
    eps: RefCell<Eps>,
}

#[derive(Default)]
struct Eps {
    tags: Vec<Option<EpTag>>,
    free: Vec<u32>,
}

/// An endpoint among those to one peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EpIdx(u32);

/// A ticket of ours and its cell. Dropped unpublished (a closure panicked), it is published as an empty packet, which
/// the reader skips: nobody waits for it.
struct Claim<'a> {
    peer: &'a Peer,
    ticket: u64,
    cell: CellRef<'a>,
    published: bool,
}

impl Peer {
    /// Attaches the segment behind an address and takes a writer's line in it.
    pub fn attach(own: &Export, name: Name, alarm: &Arc<Alarm>) -> Result<Self, ConnectError> {
        let porter = own.porter();
        let fetched = porter.fetch(name)?;
        let wake = fetched.wake.ok_or(ConnectError::Malformed)?;
        let mut seg = Segment::attach(fetched.mem, name)?;
        if fifo::flags(seg.state()) & fifo::CLOSED != 0 || fetched.death.look() {
            return Err(ConnectError::Gone);
        }
        seg.take(take_line(&seg, porter).ok_or(Error::Exhausted("writer lines in the peer's segment"))?);
        // A dead owner of the line may have left one.
        seg.mine().intent.store(fifo::NO_TICKET, Ordering::Release);
        let shape = seg.shape();
        fetched.death.tell(alarm);
        Ok(Peer {
            seg,
            after: Cell::new(0),
            cells: Cell::new(u64::from(shape.cells)),
            slot_len: shape.slot_len as usize,
            seen_tail: Cell::new(0),
            own: own.name(),
            death: fetched.death,
            dead: Cell::new(false),
            mourned: Cell::new(false),
            full: Cell::new(0),
            wake,
            eps: RefCell::default(),
        })
    }

    /// Longest packet it takes, id byte included.
    #[inline(always)]
    pub fn max_packet(&self) -> usize {
        self.slot_len
    }

    /// Sends a packet of at most [`INLINE`] bytes; `fill` writes exactly `len` at the pointer it is given. // HOT
    #[inline(always)]
    pub fn send_inline(&self, len: usize, fill: impl FnOnce(*mut u8)) -> Result<(), Refused> {
        debug_assert!(len <= INLINE);
        let claim = self.claim()?;
        fill(claim.cell.packet());
        claim.publish(len as u32);
        Ok(())
    }

    /// Sends what `pack` writes into a buffer of at least `max` bytes; `max` is at most [`Peer::max_packet`]. // HOT
    #[inline(always)]
    pub fn send_packed(&self, max: usize, pack: impl FnOnce(&mut [u8]) -> usize) -> Outcome<usize> {
        let claim = self.claim()?;
        if max <= INLINE {
            // SAFETY: INLINE bytes at `packet` are mapped and initialised, and the ticket makes them ours alone.
            let room = unsafe { std::slice::from_raw_parts_mut(claim.cell.packet(), max) };
            let len = pack(room);
            assert!((1..=max).contains(&len), "pack wrote more than it was given, or nothing");
            claim.publish(len as u32);
            return Ok(len);
        }
        let slot = claim.slot()?;
        // SAFETY: slot_len >= max bytes at `slot` are mapped and initialised; the slot is bound to the cell, which
        // the ticket makes ours alone.
        let room = unsafe { std::slice::from_raw_parts_mut(slot, max) };
        let len = pack(room);
        assert!((1..=max).contains(&len), "pack wrote more than it was given, or nothing");
        if len <= FIRST_LINE {
            // It fits beside the word after all: one line less for the reader to fetch.
            // SAFETY: `len` bytes were packed at `slot`; the cell has room for INLINE; they are different memory.
            unsafe { std::ptr::copy_nonoverlapping(slot, claim.cell.packet(), len) };
            claim.publish(len as u32);
        } else {
            claim.publish(len as u32 | IN_SLOT);
        }
        Ok(len)
    }

    #[inline(always)]
    fn claim(&self) -> Result<Claim<'_>, Refused> {
        let (head, after) = (self.seg.head(), self.after.get());
        if head.load(Ordering::Relaxed) == after
            && after.wrapping_sub(self.seen_tail.get()) < self.cells.get()
        {
            // The line is with the reader: it comes while the exchange is made. Not if the reader may still have to
            // read it, nor if there are other writers: they may have it by then.
            prefetch_write(self.seg.cell(after).packet());
        }
        let intent = &self.seg.mine().intent;
        match fifo::claim(head, self.seg.tail(), &self.seen_tail, self.cells.get(), intent) {
            Some(ticket) => {
                self.after.set(ticket.wrapping_add(1));
                Ok(Claim { peer: self, ticket, cell: self.seg.cell(ticket), published: false })
            }
            None => Err(self.refuse()),
        }
    }

    /// Whether a send would find room now.
    pub fn has_room(&self) -> bool {
        let used = |tail| self.seg.head().load(Ordering::Relaxed).wrapping_sub(tail);
        let cells = self.cells.get();
        if used(self.seen_tail.get()) >= cells {
            // SYNC(tail)
            self.seen_tail.set(self.seg.tail().load(Ordering::Acquire));
        }
        used(self.seen_tail.get()) < cells
    }

    /// The FIFO is full: for want of time, or because nobody reads it any more?
    #[cold]
    fn refuse(&self) -> Refused {
        let full = self.full.get().wrapping_add(1);
        self.full.set(full);
        if full % LOOK_EVERY == 1 && !self.is_alive() {
            return Refused::Failed(Error::PeerDead);
        }
        if self.dead.get() { Refused::Failed(Error::PeerDead) } else { Refused::NoResource }
    }

    /// Whether the peer can still read: its interface is open and its process runs.
    pub fn is_alive(&self) -> bool {
        if !self.dead.get() && (fifo::flags(self.seg.state()) & fifo::CLOSED != 0 || self.death.look()) {
            self.bury();
        }
        !self.dead.get()
    }

    /// Whether it is known without asking that nothing will be read any more. No system call.
    pub fn is_buried(&self) -> bool {
        self.dead.get() || fifo::flags(self.seg.state()) & fifo::CLOSED != 0 || self.death.is_dead()
    }

    /// Nothing will be read any more: from now on every send fails.
    fn bury(&self) {
        self.cells.set(0);
        self.dead.set(true);
    }

    /// Whether its process has died, as far as the porter knows. True once: its endpoints are to be told.
    pub fn is_to_mourn(&self) -> bool {
        if !self.death.is_dead() || self.mourned.replace(true) {
            return false;
        }
        self.bury();
        true
    }

    /// Enters an endpoint.
    pub fn enter(&self) -> EpIdx {
        let mut eps = self.eps.borrow_mut();
        let tag = Some(EpTag::default());
        if let Some(idx) = eps.free.pop() {
            eps.tags[idx as usize] = tag;
            return EpIdx(idx);
        }
        eps.tags.push(tag);
        EpIdx(eps.tags.len() as u32 - 1)
    }

    /// Strikes an endpoint out.
    pub fn leave(&self, idx: EpIdx) {
        let mut eps = self.eps.borrow_mut();
        eps.tags[idx.0 as usize] = None;
        eps.free.push(idx.0);
    }

    /// An endpoint's tag.
    pub fn tag(&self, idx: EpIdx) -> EpTag {
        self.eps.borrow().tags[idx.0 as usize].unwrap_or_default()
    }

    /// Changes an endpoint's tag.
    pub fn set_tag(&self, idx: EpIdx, tag: EpTag) {
        self.eps.borrow_mut().tags[idx.0 as usize] = Some(tag);
    }

    /// The tags of its endpoints.
    pub fn tags(&self) -> Vec<EpTag> {
        self.eps.borrow().tags.iter().copied().flatten().collect()
    }

    /// The reader raised a flag that we saw after publishing.
    #[cold]
    fn notice(&self, flags: u32) {
        if flags & fifo::CLOSED != 0 {
            self.bury();
        }
        if flags & fifo::ARMED == 0 || !fifo::disarm(self.seg.state()) {
            return;
        }
        if let Err(errno) = self.wake.signal() {
            tracing::warn!(%errno, "cannot wake a peer");
        }
    }

    /// For tests of dying writers: claims a ticket and forgets it.
    #[cfg(test)]
    pub fn abandon(&self) {
        if let Ok(claim) = self.claim() {
            std::mem::forget(claim);
        }
    }
}

impl Claim<'_> {
    /// The slot bound to the cell.
    #[inline(always)]
    fn slot(&self) -> Result<*mut u8, Refused> {
        // SYNC(tail) ordered this behind the reader's last change of the binding.
        let n = self.peer.seg.slot_of(self.ticket as u32).load(Ordering::Relaxed);
        self.peer.seg.slot(n).ok_or(Refused::Failed(Error::Unreachable))
    }

    #[inline(always)]
    fn publish(mut self, about: u32) {
        self.published = true;
        self.cell.source().store(self.peer.own.0, Ordering::Relaxed);
        fifo::publish(self.cell.word(), self.ticket, about);
        let flags = fifo::flags(self.peer.seg.state());
        if flags != 0 {
            self.peer.notice(flags);
        }
    }
}

impl Drop for Claim<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if !self.published {
            fifo::publish(self.cell.word(), self.ticket, 0);
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let line = self.seg.mine();
        line.intent.store(fifo::NO_TICKET, Ordering::Release);
        line.who.store(0, Ordering::Release);
    }
}

/// A free writer's line, or one whose owner is dead.
fn take_line(seg: &Segment, porter: &Porter) -> Option<u32> {
    let me = porter.key().0;
    let lines = 0..seg.shape().writers;
    let take = |n: u32, from: u64| {
        let who = &seg.writer(n).who;
        who.compare_exchange(from, me, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    };
    lines.clone().find(|&n| take(n, 0)).or_else(|| {
        lines.clone().find(|&n| {
            let who = seg.writer(n).who.load(Ordering::Acquire);
            who != 0 && !porter.is_alive(ProcKey(who)) && take(n, who)
        })
    })
}
