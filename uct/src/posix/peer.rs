//! The writing side: a peer as this interface knows it, shared by all endpoints to that peer. Its segment is attached at
//! the first packet, and written from then on. Called by `ep.rs`. A full FIFO is an answer, and whether the peer still lives
//! is only asked then. Nothing blocks.

use super::binding;
use super::fifo;
use super::lines;
use super::looks;
use super::porter::{Alarm, Asked, Death, Export, Fetched, Name, Porter, ProcKey, What};
use super::seg::{CellRef, FIRST_LINE, IN_SLOT, INLINE, Lay, Segment, USUAL_SLOT};
use super::turns::{Sends, Waiting};
use crate::api::{ConnectError, Error, Outcome, Pack, Refused};
use crate::base::check;
use crate::base::eps::Eps;
use std::cell::{Cell, OnceCell};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use ucs::sync::prefetch_write;
use ucs::sys::EventFd;

/// How far the copy of the tail is put ahead while a packet is being packed: further than any head gets meanwhile.
const PACKING: u64 = 1 << 30;

/// Calls that find the FIFO full between two looks at the peer's process.
const LOOK_EVERY: u32 = 4096;

/// Bytes of the next packet whose lines are asked for.
const ASKED: usize = 1024;

/// A peer that some endpoint leads to.
pub struct Peer {
    name: Name,
    link: OnceCell<Link>,
    /// What its porter gave when it was asked for another peer of the process: taken when this one is attached.
    given: Cell<Option<Fetched>>,
    /// The question to its porter, until the answer comes.
    asked: Cell<Option<Box<Asked>>>,
    /// It was gone when it was to be attached, or its process has died.
    gone: Cell<bool>,
    /// Its process has died, and its endpoints know.
    mourned: Cell<bool>,
    /// The ticket below which all is that it can have sent, once somebody has found it dead.
    last_words: Cell<Option<u64>>,
    /// Endpoints to it, by number.
    pub eps: Eps,
    /// Those that wait for room.
    pub waiting: Waiting,
}

/// An attached peer.
pub struct Link {
    seg: Segment,
    /// The ticket after our last one: ours too, unless somebody else has been here.
    after: Cell<u64>,
    /// Cells of the FIFO; none once the peer is known to be dead, so that every send takes the way of a full one.
    cells: Cell<u64>,
    slot_len: usize,
    /// Best for the last packet in a slot: how long the next one is, is not known before it is packed.
    lay: Cell<Lay>,
    /// The peer does not look at what is in slots, as it said when its tail was looked at.
    passed_over: Cell<bool>,
    /// Our copy of the tail, by which there is room or the shared one is looked at. It stays behind, where there is none, while an
    /// endpoint [waits](Waiting), and is ahead of everything while a packet is being [packed](Packing).
    seen_tail: Cell<u64>,
    /// What it is when that is over.
    kept_tail: Cell<u64>,
    /// Our interface's name, for the source word.
    own: Name,
    death: Arc<Death>,
    dead: Cell<bool>,
    full: Cell<u32>,
    wake: Wake,
}

/// What wakes the peer's interface, as it was given. Most peers poll and are never woken, so whether it is what it should be
/// is looked at when it is first used.
struct Wake {
    given: Cell<Option<OwnedFd>>,
    checked: OnceCell<Option<EventFd>>,
}

impl Wake {
    fn new(given: OwnedFd) -> Wake {
        Wake { given: Cell::new(Some(given)), checked: OnceCell::new() }
    }

    /// Wakes it.
    fn signal(&self) {
        let checked = || self.given.take().and_then(|fd| EventFd::from_peer(fd).ok());
        match self.checked.get_or_init(checked) {
            Some(wake) => {
                if let Err(errno) = wake.signal() {
                    tracing::warn!(%errno, "cannot wake a peer");
                }
            }
            None => tracing::warn!(
                "a peer wants to be woken by something that is not an eventfd: it is not woken"
            ),
        }
    }
}

/// A ticket of ours and its cell. Dropped unpublished (a closure panicked), it is published as an empty packet, which
/// the reader skips: nobody waits for it.
struct Claim<'a> {
    link: &'a Link,
    ticket: u64,
    cell: CellRef<'a>,
    published: bool,
}

impl Peer {
    /// The peer of an address. Asks nobody.
    pub fn new(name: Name) -> Peer {
        let (given, asked) = (Cell::new(None), Cell::new(None));
        let (gone, mourned, last_words) = (Cell::new(false), Cell::new(false), Cell::new(None));
        let (link, eps, waiting) = (OnceCell::new(), Eps::default(), Waiting::default());
        Peer { name, link, given, asked, gone, mourned, last_words, eps, waiting }
    }

    /// What it is called.
    pub fn name(&self) -> Name {
        self.name
    }

    /// Whether its porter is still to be asked for it.
    pub fn is_unasked(&self) -> bool {
        self.is_wanting() && !self.is_asked_for()
    }

    /// Whether its porter has been asked for it and has not answered.
    pub fn is_asked_for(&self) -> bool {
        let asked = self.asked.take();
        let is = asked.is_some();
        self.asked.set(asked);
        is
    }

    /// Whether there is nothing yet to attach it by.
    fn is_wanting(&self) -> bool {
        let given = self.given.take();
        let wanting = given.is_none() && self.link.get().is_none() && !self.gone.get();
        self.given.set(given);
        wanting
    }

    /// Keeps what its porter gave until it is attached, if it is not. `alarm` is raised when the peer dies from now on.
    pub fn give(&self, given: Fetched, alarm: &Arc<Alarm>) {
        if self.is_wanting() {
            given.death.tell(alarm);
            self.given.set(Some(given));
        }
    }

    /// Takes the question out that its porter was asked, to hear what is said.
    pub fn take_asked(&self) -> Option<Box<Asked>> {
        self.asked.take()
    }

    /// Its porter has been asked.
    pub fn ask(&self, asked: Box<Asked>) {
        self.asked.set(Some(asked));
    }

    /// Lets go of what its porter gave: true if there was something.
    pub fn let_go(&self) -> bool {
        self.given.take().is_some()
    }

    /// Its process has died: everything on its endpoints fails from now on.
    pub fn lose(&self) {
        self.gone.set(true);
        self.mourned.set(true);
        if let Some(link) = self.link.get() {
            link.bury();
        }
        self.asked.take();
        self.let_go();
    }

    /// Whether everything on its endpoints fails.
    pub fn is_lost(&self) -> bool {
        self.gone.get()
    }

    /// Whether a send has found that its process has died, of which the porter may still have to hear.
    pub fn was_found_dead(&self) -> bool {
        self.link.get().is_some_and(|link| link.dead.get() && link.death.look())
    }

    /// Whether sending to it fails, because it is lost or because it has closed its interface.
    pub fn is_deaf(&self) -> bool {
        self.gone.get() || self.link.get().is_some_and(|link| link.dead.get())
    }

    /// Its segment, if it is attached. // HOT
    #[inline(always)]
    pub fn link(&self) -> Option<&Link> {
        self.link.get()
    }

    /// Its segment, attached if it is not yet, from what was given or else what `fetch` gives; `None` if that is nothing yet. What
    /// may pass (no descriptor left) is tried again by the next call.
    #[cold]
    pub fn attach(
        &self,
        own: &Export,
        fetch: impl FnOnce() -> Result<Option<Fetched>, ConnectError>,
    ) -> Result<Option<&Link>, ConnectError> {
        if self.gone.get() {
            return Err(ConnectError::Gone);
        }
        if let Some(link) = self.link.get() {
            return Ok(Some(link));
        }
        let fetched = self.given.take().map_or_else(fetch, |given| Ok(Some(given)));
        let attach = |fetched: Option<_>| fetched.map(|it| Link::attach(own, self.name, it)).transpose();
        match fetched.and_then(attach) {
            Ok(None) => Ok(None),
            Ok(Some(link)) => {
                // Others may have got it for this peer, while its own question was under way.
                self.asked.take();
                Ok(Some(self.link.get_or_init(|| link)))
            }
            Err(why) => {
                self.gone.set(why == ConnectError::Gone);
                Err(why)
            }
        }
    }

    /// Longest packet it takes, id byte included, as far as its name says.
    pub fn usual_packet(&self) -> Option<usize> {
        self.name.is_usual().then_some(USUAL_SLOT)
    }

    /// Whether it can still read: asks its process if it is not attached.
    pub fn is_alive(&self, porter: &Porter) -> bool {
        match self.link.get() {
            Some(link) => link.is_alive(),
            None => !self.gone.get() && porter.is_alive(self.name.owner()),
        }
    }

    /// It has been found dead, so `claimed` is above all that it has sent: as it was the first time.
    pub fn last_words(&self, claimed: impl FnOnce() -> u64) -> u64 {
        let last = self.last_words.get().unwrap_or_else(claimed);
        self.last_words.set(Some(last));
        last
    }

    /// Whether it is known without asking that its interface is closed, while its process may live on: who connects to that
    /// name again means another one.
    pub fn is_closed(&self) -> bool {
        match self.link.get() {
            Some(link) => link.is_closed() && !link.death.look(),
            None => self.gone.get() && !self.mourned.get(),
        }
    }

    /// Whether its process has died, as far as the porter knows because somebody here watches it.
    pub fn has_died(&self, porter: &Porter) -> bool {
        match self.link.get() {
            Some(link) => link.death.is_dead(),
            None => porter.is_known_dead(self.name.owner()),
        }
    }

    /// The same, if its endpoints are still to be told: until it is [lost](Peer::lose).
    pub fn is_to_mourn(&self, porter: &Porter) -> bool {
        !self.mourned.get() && self.has_died(porter)
    }
}

impl Link {
    fn attach(own: &Export, name: Name, fetched: Fetched) -> Result<Link, ConnectError> {
        let What::Iface(wake) = fetched.what else { return Err(ConnectError::Malformed) };
        let wake = Wake::new(wake);
        let mut seg = Segment::attach(fetched.mem, name)?;
        let shape = seg.shape();
        if name.is_usual() && shape.slot_len as usize != USUAL_SLOT {
            return Err(ConnectError::Malformed);
        }
        // If it dies from here on, that is told like any death.
        if fifo::flags(seg.state()) & fifo::CLOSED != 0 || fetched.death.is_dead() {
            return Err(ConnectError::Gone);
        }
        let (me, alive) = (own.porter().key().0, |who| own.porter().is_alive(ProcKey(who)));
        let line = lines::take(seg.writers(), me, alive);
        seg.take(line.ok_or(Error::Exhausted("writer lines in the peer's segment"))?);
        let cells = u64::from(shape.cells);
        // Endpoints may wait for it already: whether there is room is still to be looked at.
        let seen_tail = Cell::new(seg.head().load(Ordering::Relaxed).wrapping_sub(cells));
        Ok(Link {
            seg,
            after: Cell::new(0),
            cells: Cell::new(cells),
            slot_len: shape.slot_len as usize,
            lay: Cell::default(),
            passed_over: Cell::new(false),
            seen_tail,
            kept_tail: Cell::new(0),
            own: own.name(),
            death: fetched.death,
            dead: Cell::new(false),
            full: Cell::new(0),
            wake,
        })
    }

    /// Longest packet it takes, id byte included.
    #[inline(always)]
    pub fn max_packet(&self) -> usize {
        self.slot_len
    }

    /// Sends a packet of at most [`INLINE`] bytes; `fill` writes exactly `len` at the pointer it is given. // HOT
    #[inline(always)]
    pub fn send_inline(
        &self,
        by: &impl Sends,
        len: usize,
        fill: impl FnOnce(*mut u8),
    ) -> Result<(), Refused> {
        debug_assert!(len <= INLINE);
        let claim = self.claim(by)?;
        fill(claim.cell.packet());
        claim.publish(len as u32);
        Ok(())
    }

    /// Sends what `pack` writes into a buffer of `max` bytes, which is at most [`INLINE`]. // HOT
    #[inline(always)]
    pub fn send_in_cell<P: Pack>(&self, by: &impl Sends, max: usize, pack: P) -> Outcome<usize> {
        let max = max.min(INLINE);
        let claim = self.claim(by)?;
        // SAFETY: INLINE bytes at `packet` are mapped and initialised, and the ticket makes them ours alone.
        let room = unsafe { std::slice::from_raw_parts_mut(claim.cell.packet(), max) };
        let packing = P::MAY_SEND.then(|| Packing::begin(&claim));
        let len = pack.pack(room);
        drop(packing);
        let len = check::packed(len, max)?;
        claim.publish(len as u32);
        Ok(len)
    }

    /// The same for what may be longer; `max` is at most [`Link::max_packet`]. // HOT
    #[inline]
    pub fn send_in_slot(
        &self,
        by: &impl Sends,
        max: usize,
        pack: impl FnOnce(&mut [u8]) -> usize,
    ) -> Outcome<usize> {
        let after_ours = self.after.get();
        let claim = self.claim(by)?;
        let is_alone = claim.ticket == after_ours;
        let lay = self.lay.get();
        let slot = self.slot(claim.ticket, lay).ok_or(Refused::Failed(Error::Unreachable))?;
        // SAFETY: slot_len >= max bytes at `slot` are mapped and initialised; the slot is bound to a place of the
        // cell, which the ticket makes ours alone.
        let room = unsafe { std::slice::from_raw_parts_mut(slot, max) };
        let packing = Packing::begin(&claim);
        let len = pack(room);
        drop(packing);
        let len = check::packed(len, max)?;
        if len <= FIRST_LINE {
            // It fits beside the word after all: one line less for the reader to fetch.
            // SAFETY: `len` bytes were packed at `slot`; the cell has room for INLINE; they are different memory.
            unsafe { std::ptr::copy_nonoverlapping(slot, claim.cell.packet(), len) };
            claim.publish(len as u32);
        } else {
            self.lay.set(Lay::of(len, self.passed_over.get()));
            claim.publish(len as u32 | IN_SLOT | lay.marks());
            // Others may be writing them, if there are others.
            if is_alone {
                self.ask_for_next(len);
            }
        }
        Ok(len)
    }

    /// Where the packet of a ticket begins that lies so, if the peer names a slot that there is. // HOT
    #[inline(always)]
    fn slot(&self, ticket: u64, lay: Lay) -> Option<*mut u8> {
        let n = binding::bound(self.seg.slot_of(self.seg.place(ticket, lay)));
        self.seg.slot(n).map(|slot| slot.wrapping_add(lay.lead()))
    }

    /// A packet of `len` bytes has gone. The lines that the next one will be written to, if it is like it, come while the program
    /// makes it: left to the copy, they took a third of the time of a message of 1 KiB. // HOT
    #[inline(always)]
    fn ask_for_next(&self, len: usize) {
        let next = self.after.get();
        if next.wrapping_sub(self.seen_tail.get()) < self.cells.get()
            && let Some(slot) = self.slot(next, self.lay.get())
        {
            (0..len.min(ASKED)).step_by(64).for_each(|at| prefetch_write(slot.wrapping_add(at)));
        }
    }

    /// The ticket of our next message and the line that it will be written to, unless somebody else sends one first. // HOT
    #[inline(always)]
    pub fn next_line(&self) -> (u64, *mut u8) {
        let ticket = self.after.get();
        (ticket, self.seg.cell(ticket).packet())
    }

    #[inline(always)]
    fn claim(&self, by: &impl Sends) -> Result<Claim<'_>, Refused> {
        let head = self.seg.head();
        let ticket = head.load(Ordering::Relaxed);
        if ticket.wrapping_sub(self.seen_tail.get()) < self.cells.get() {
            let cell = self.seg.cell(ticket);
            if ticket == self.after.get() {
                // The line is with the reader: it comes while the exchange is made. Not if the reader may still have to
                // read it, nor if there are other writers: they may have it by then.
                prefetch_write(cell.packet());
            }
            if fifo::claim_at(head, ticket, &self.seg.mine().intent).is_ok() {
                self.after.set(ticket.wrapping_add(1));
                return Ok(Claim { link: self, ticket, cell, published: false });
            }
        }
        self.claim_next(by)
    }

    /// The same, when others send as well or the FIFO seems to be full.
    #[inline(never)]
    fn claim_next(&self, by: &impl Sends) -> Result<Claim<'_>, Refused> {
        let (turn, intent) = (by.turn(), &self.seg.mine().intent);
        if self.is_packing() {
            // The one intent that we have is that of the packet that is being packed.
            return Err(self.refuse(by));
        }
        if turn.is_held_back() {
            intent.store(fifo::NO_TICKET, Ordering::Release);
            return Err(self.refuse(by));
        }
        let apart = Cell::new(self.seen_tail.get());
        let seen_tail = if turn.is_awaited() { &apart } else { &self.seen_tail };
        let before = seen_tail.get();
        match fifo::claim(self.seg.head(), self.seg.tail(), seen_tail, self.cells.get(), intent) {
            Some(ticket) => {
                if seen_tail.get() != before {
                    // The line is here, then.
                    self.passed_over.set(looks::are_passed_over(self.seg.looks()));
                }
                self.after.set(ticket.wrapping_add(1));
                Ok(Claim { link: self, ticket, cell: self.seg.cell(ticket), published: false })
            }
            None => Err(self.refuse(by)),
        }
    }

    /// Whether a send would find room now.
    pub fn has_room(&self, by: &impl Sends) -> bool {
        let is_free = |tail| self.seg.head().load(Ordering::Relaxed).wrapping_sub(tail) < self.cells.get();
        if self.is_packing() || is_free(self.seen_tail.get()) {
            return !self.is_packing();
        }
        // SYNC(tail)
        let tail = self.seg.tail().load(Ordering::Acquire);
        if !by.turn().is_awaited() {
            self.seen_tail.set(tail);
        }
        is_free(tail)
    }

    /// Whether the packet of a claim of ours is being packed: who sends meanwhile is called by who packs.
    fn is_packing(&self) -> bool {
        self.seg.head().load(Ordering::Relaxed).wrapping_sub(self.seen_tail.get()) > 1 << 63
    }

    /// An endpoint waits for room from now on: there is none by the copy of the tail.
    pub fn shut(&self) {
        let full = self.seg.head().load(Ordering::Relaxed).wrapping_sub(self.cells.get());
        if self.is_packing() { self.kept_tail.set(full) } else { self.seen_tail.set(full) }
    }

    /// The FIFO is full: for want of time, or because nobody reads it any more?
    #[cold]
    fn refuse(&self, by: &impl Sends) -> Refused {
        let full = self.full.get().wrapping_add(1);
        self.full.set(full);
        if full % LOOK_EVERY == 1 {
            self.is_alive();
        }
        if !self.dead.get() {
            return Refused::NoResource;
        }
        // Whoever else has buried it. Not if it has closed: its process may have memory to put to.
        if self.death.look() {
            by.bereave();
        }
        Refused::Failed(Error::PeerDead)
    }

    /// Whether the peer can still read: its interface is open and its process runs.
    fn is_alive(&self) -> bool {
        if !self.dead.get() && (fifo::flags(self.seg.state()) & fifo::CLOSED != 0 || self.death.look()) {
            self.bury();
        }
        !self.dead.get()
    }

    fn is_closed(&self) -> bool {
        self.dead.get() || fifo::flags(self.seg.state()) & fifo::CLOSED != 0
    }

    /// Nothing will be read any more: from now on every send fails.
    fn bury(&self) {
        self.cells.set(0);
        self.dead.set(true);
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
        self.wake.signal();
    }

    /// For tests of dying writers: claims a ticket and forgets it.
    #[cfg(test)]
    pub fn abandon(&self, by: &impl Sends) {
        if let Ok(claim) = self.claim(by) {
            std::mem::forget(claim);
        }
    }
}

/// The packet of a claim is with a closure, which may send too: through this link it finds no room until this is dropped, at the
/// closure's end.
struct Packing<'a>(&'a Link);

impl Packing<'_> {
    #[inline(always)]
    fn begin<'a>(claim: &Claim<'a>) -> Packing<'a> {
        let link = claim.link;
        link.kept_tail.set(link.seen_tail.get());
        link.seen_tail.set(claim.ticket.wrapping_add(PACKING));
        Packing(link)
    }
}

impl Drop for Packing<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.0.seen_tail.set(self.0.kept_tail.get());
    }
}

impl Claim<'_> {
    #[inline(always)]
    fn publish(mut self, about: u32) {
        self.published = true;
        self.cell.source().store(self.link.own.0, Ordering::Relaxed);
        fifo::publish(self.cell.word(), self.ticket, about);
        let flags = fifo::flags(self.link.seg.state());
        if flags != 0 {
            self.link.notice(flags);
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

impl Drop for Link {
    fn drop(&mut self) {
        // The line is our parent's if we have the link by a fork.
        if !self.death.is_ours() {
            return;
        }
        self.seg.mine().leave();
    }
}
