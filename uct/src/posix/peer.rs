//! The writing side: a peer as this interface knows it, shared by all endpoints to that peer. Its segment is attached at
//! the first packet, and written from then on. Called by `ep.rs`. A full FIFO is an answer, and whether the peer still lives
//! is only asked then. Nothing blocks.

use super::fifo;
use super::pending_order::{Sender, WaitingQueues};
use super::seg::{CellRef, DEFAULT_SLOT_LEN, FIRST_LINE, IN_SLOT, INLINE, Segment, SlotLayout};
use super::slot_map;
use super::tuning;
use super::writer_table;
use crate::api::{ConnectError, Error, Outcome, Pack, Refused};
use crate::base::check;
use crate::base::eps::Eps;
use crate::host::fd_server::{Alarm, Export, ExportKind, FdServer, Fetched, Name, ProcKey, ProcWatch, Query};
use std::cell::{Cell, OnceCell};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use ucs::sync::prefetch_write;
use ucs::sys::EventFd;

/// How far the copy of the tail is put ahead while a packet is being packed: further than any head gets meanwhile.
const PACKING_OFFSET: u64 = 1 << 30;

/// Calls that find the FIFO full between two looks at the peer's process.
const LIVENESS_CHECK_EVERY: u32 = 4096;

/// Bytes of the next packet whose lines are asked for.
const PREFETCH_LEN: usize = 1024;

/// A peer that some endpoint leads to.
pub struct Peer {
    name: Name,
    link: OnceCell<Link>,
    /// What its fd server gave when it was asked for another peer of the process: taken when this one is attached.
    fetched: Cell<Option<Fetched>>,
    /// The question to its fd server, until the answer comes.
    query: Cell<Option<Box<Query>>>,
    /// It was gone when it was to be attached, or its process has died.
    failed: Cell<bool>,
    /// Its process has died, and its endpoints know.
    reported: Cell<bool>,
    /// The ticket below which all is that it can have sent, once somebody has found it dead.
    drain_limit: Cell<Option<u64>>,
    /// Endpoints to it, by number.
    pub eps: Eps,
    /// Those that wait for room.
    pub waiting: WaitingQueues,
}

/// An attached peer.
pub struct Link {
    seg: Segment,
    /// The ticket after our last one: ours too, unless somebody else has been here.
    next_ticket: Cell<u64>,
    /// Cells of the FIFO; none once the peer is known to be dead, so that every send takes the way of a full one.
    cells: Cell<u64>,
    slot_len: usize,
    /// Best for the last packet in a slot: how long the next one is, is not known before it is packed.
    layout: Cell<SlotLayout>,
    /// The peer does not look at what is in slots, as it said when its tail was looked at.
    payloads_unread: Cell<bool>,
    /// Our copy of the tail, by which there is room or the shared one is looked at. It stays behind, where there is none, while an
    /// endpoint [waits](Waiting), and is ahead of everything while a packet is being [packed](Packing).
    cached_tail: Cell<u64>,
    /// What it is when that is over.
    saved_tail: Cell<u64>,
    /// Our interface's name, for the source word.
    own_name: Name,
    watch: Arc<ProcWatch>,
    dead: Cell<bool>,
    full_count: Cell<u32>,
    wake: Wake,
}

/// What wakes the peer's interface, as it was given. Most peers poll and are never woken, so whether it is what it should be
/// is looked at when it is first used.
struct Wake {
    raw: Cell<Option<OwnedFd>>,
    eventfd: OnceCell<Option<EventFd>>,
}

impl Wake {
    fn new(raw: OwnedFd) -> Wake {
        Wake { raw: Cell::new(Some(raw)), eventfd: OnceCell::new() }
    }

    /// Wakes it.
    fn signal(&self) {
        let check = || self.raw.take().and_then(|fd| EventFd::from_peer(fd).ok());
        match self.eventfd.get_or_init(check) {
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
        let (fetched, query) = (Cell::new(None), Cell::new(None));
        let (failed, reported, drain_limit) = (Cell::new(false), Cell::new(false), Cell::new(None));
        let (link, eps, waiting) = (OnceCell::new(), Eps::default(), WaitingQueues::default());
        Peer { name, link, fetched, query, failed, reported, drain_limit, eps, waiting }
    }

    /// What it is called.
    pub fn name(&self) -> Name {
        self.name
    }

    /// Whether its fd server is still to be asked for it.
    pub fn needs_query(&self) -> bool {
        self.needs_fetch() && !self.has_query()
    }

    /// Whether its fd server has been asked for it and has not answered.
    pub fn has_query(&self) -> bool {
        let query = self.query.take();
        let is = query.is_some();
        self.query.set(query);
        is
    }

    /// Whether there is nothing yet to attach it by.
    fn needs_fetch(&self) -> bool {
        let fetched = self.fetched.take();
        let wanting = fetched.is_none() && self.link.get().is_none() && !self.failed.get();
        self.fetched.set(fetched);
        wanting
    }

    /// Keeps what its fd server gave until it is attached, if it is not. `alarm` is raised when the peer dies from now on.
    pub fn set_fetched(&self, fetched: Fetched, alarm: &Arc<Alarm>) {
        if self.needs_fetch() {
            fetched.watch.subscribe(alarm);
            self.fetched.set(Some(fetched));
        }
    }

    /// Takes the question out that its fd server was asked, to hear what is said.
    pub fn take_query(&self) -> Option<Box<Query>> {
        self.query.take()
    }

    /// Its fd server has been asked.
    pub fn set_query(&self, query: Box<Query>) {
        self.query.set(Some(query));
    }

    /// Lets go of what its fd server gave: true if there was something.
    pub fn drop_fetched(&self) -> bool {
        self.fetched.take().is_some()
    }

    /// Its process has died: everything on its endpoints fails from now on.
    pub fn mark_failed(&self) {
        self.failed.set(true);
        self.reported.set(true);
        if let Some(link) = self.link.get() {
            link.mark_dead();
        }
        self.query.take();
        self.drop_fetched();
    }

    /// Whether everything on its endpoints fails.
    pub fn has_failed(&self) -> bool {
        self.failed.get()
    }

    /// Whether a send has found that its process has died, of which the fd server may still have to hear.
    pub fn was_found_dead(&self) -> bool {
        self.link.get().is_some_and(|link| link.dead.get() && link.watch.check())
    }

    /// Whether sending to it fails, because it is lost or because it has closed its interface.
    pub fn is_send_failing(&self) -> bool {
        self.failed.get() || self.link.get().is_some_and(|link| link.dead.get())
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
        iface: &Export,
        fetch: impl FnOnce() -> Result<Option<Fetched>, ConnectError>,
    ) -> Result<Option<&Link>, ConnectError> {
        if self.failed.get() {
            return Err(ConnectError::Gone);
        }
        if let Some(link) = self.link.get() {
            return Ok(Some(link));
        }
        let fetched = self.fetched.take().map_or_else(fetch, |fetched| Ok(Some(fetched)));
        let attach = |fetched: Option<_>| fetched.map(|it| Link::attach(iface, self.name, it)).transpose();
        match fetched.and_then(attach) {
            Ok(None) => Ok(None),
            Ok(Some(link)) => {
                // Others may have got it for this peer, while its own question was under way.
                self.query.take();
                Ok(Some(self.link.get_or_init(|| link)))
            }
            Err(why) => {
                self.failed.set(why == ConnectError::Gone);
                Err(why)
            }
        }
    }

    /// Longest packet it takes, id byte included, as far as its name says.
    pub fn default_max_packet(&self) -> Option<usize> {
        self.name.has_default_slots().then_some(DEFAULT_SLOT_LEN)
    }

    /// Whether it can still read: asks its process if it is not attached.
    pub fn is_alive(&self, server: &FdServer) -> bool {
        match self.link.get() {
            Some(link) => link.is_alive(),
            None => !self.failed.get() && server.is_alive(self.name.owner()),
        }
    }

    /// It has been found dead, so `claimed` is above all that it has sent: as it was the first time.
    pub fn drain_limit(&self, claimed: impl FnOnce() -> u64) -> u64 {
        let last = self.drain_limit.get().unwrap_or_else(claimed);
        self.drain_limit.set(Some(last));
        last
    }

    /// Whether it is known without asking that its interface is closed, while its process may live on: who connects to that
    /// name again means another one.
    pub fn is_closed(&self) -> bool {
        match self.link.get() {
            Some(link) => link.is_closed() && !link.watch.check(),
            None => self.failed.get() && !self.reported.get(),
        }
    }

    /// Whether its process has died, as far as the fd server knows because somebody here watches it.
    pub fn has_died(&self, server: &FdServer) -> bool {
        match self.link.get() {
            Some(link) => link.watch.is_dead(),
            None => server.is_known_dead(self.name.owner()),
        }
    }

    /// The same, if its endpoints are still to be told: until it is [lost](Peer::lose).
    pub fn is_unreported(&self, server: &FdServer) -> bool {
        !self.reported.get() && self.has_died(server)
    }
}

impl Link {
    fn attach(iface: &Export, name: Name, fetched: Fetched) -> Result<Link, ConnectError> {
        let ExportKind::Iface(wake) = fetched.kind else { return Err(ConnectError::Malformed) };
        let wake = Wake::new(wake);
        let mut seg = Segment::attach(fetched.mem, name)?;
        let shape = seg.shape();
        if name.has_default_slots() && shape.slot_len as usize != DEFAULT_SLOT_LEN {
            return Err(ConnectError::Malformed);
        }
        // If it dies from here on, that is told like any death.
        if fifo::flags(seg.state()) & fifo::CLOSED != 0 || fetched.watch.is_dead() {
            return Err(ConnectError::Gone);
        }
        let (me, alive) = (iface.server().key().0, |who| iface.server().is_alive(ProcKey(who)));
        let entry = writer_table::claim_entry(seg.writers(), me, alive);
        seg.use_writer(entry.ok_or(Error::Exhausted("writer lines in the peer's segment"))?);
        let cells = u64::from(shape.cells);
        // Endpoints may wait for it already: whether there is room is still to be looked at.
        let cached_tail = Cell::new(seg.head().load(Ordering::Relaxed).wrapping_sub(cells));
        Ok(Link {
            seg,
            next_ticket: Cell::new(0),
            cells: Cell::new(cells),
            slot_len: shape.slot_len as usize,
            layout: Cell::default(),
            payloads_unread: Cell::new(false),
            cached_tail,
            saved_tail: Cell::new(0),
            own_name: iface.name(),
            watch: fetched.watch,
            dead: Cell::new(false),
            full_count: Cell::new(0),
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
        by: &impl Sender,
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
    pub fn send_in_cell<P: Pack>(&self, by: &impl Sender, max: usize, pack: P) -> Outcome<usize> {
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
        by: &impl Sender,
        max: usize,
        pack: impl FnOnce(&mut [u8]) -> usize,
    ) -> Outcome<usize> {
        let after_ours = self.next_ticket.get();
        let claim = self.claim(by)?;
        let is_uncontended = claim.ticket == after_ours;
        let layout = self.layout.get();
        let slot = self.slot(claim.ticket, layout).ok_or(Refused::Failed(Error::Unreachable))?;
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
            self.layout.set(SlotLayout::of(len, self.payloads_unread.get()));
            claim.publish(len as u32 | IN_SLOT | layout.bits());
            // Others may be writing them, if there are others.
            if is_uncontended {
                self.prefetch_next(len);
            }
        }
        Ok(len)
    }

    /// Where the packet of a ticket begins that lies so, if the peer names a slot that there is. // HOT
    #[inline(always)]
    fn slot(&self, ticket: u64, layout: SlotLayout) -> Option<*mut u8> {
        let n = slot_map::slot_at(self.seg.slot_entry(self.seg.map_entry(ticket, layout)));
        self.seg.slot(n).map(|slot| slot.wrapping_add(layout.padding()))
    }

    /// A packet of `len` bytes has gone. The lines that the next one will be written to, if it is like it, come while the program
    /// makes it: left to the copy, they took a third of the time of a message of 1 KiB. // HOT
    #[inline(always)]
    fn prefetch_next(&self, len: usize) {
        let next = self.next_ticket.get();
        if next.wrapping_sub(self.cached_tail.get()) < self.cells.get()
            && let Some(slot) = self.slot(next, self.layout.get())
        {
            (0..len.min(PREFETCH_LEN)).step_by(64).for_each(|at| prefetch_write(slot.wrapping_add(at)));
        }
    }

    /// The ticket of our next message and the line that it will be written to, unless somebody else sends one first. // HOT
    #[inline(always)]
    pub fn next_tx(&self) -> (u64, *mut u8) {
        let ticket = self.next_ticket.get();
        (ticket, self.seg.cell(ticket).packet())
    }

    #[inline(always)]
    fn claim(&self, by: &impl Sender) -> Result<Claim<'_>, Refused> {
        let head = self.seg.head();
        let ticket = head.load(Ordering::Relaxed);
        if ticket.wrapping_sub(self.cached_tail.get()) < self.cells.get() {
            let cell = self.seg.cell(ticket);
            if ticket == self.next_ticket.get() {
                // The line is with the reader: it comes while the exchange is made. Not if the reader may still have to
                // read it, nor if there are other writers: they may have it by then.
                prefetch_write(cell.packet());
            }
            if fifo::claim_at(head, ticket, &self.seg.own_writer().intent).is_ok() {
                self.next_ticket.set(ticket.wrapping_add(1));
                return Ok(Claim { link: self, ticket, cell, published: false });
            }
        }
        self.claim_slow(by)
    }

    /// The same, when others send as well or the FIFO seems to be full.
    #[inline(never)]
    fn claim_slow(&self, by: &impl Sender) -> Result<Claim<'_>, Refused> {
        let (order, intent) = (by.order(), &self.seg.own_writer().intent);
        if self.is_packing() {
            // The one intent that we have is that of the packet that is being packed.
            return Err(self.refuse(by));
        }
        if order.has_own_pending() {
            intent.store(fifo::NO_TICKET, Ordering::Release);
            return Err(self.refuse(by));
        }
        let private_tail = Cell::new(self.cached_tail.get());
        let cached_tail = if order.has_any_pending() { &private_tail } else { &self.cached_tail };
        let before = cached_tail.get();
        match fifo::claim(self.seg.head(), self.seg.tail(), cached_tail, self.cells.get(), intent) {
            Some(ticket) => {
                if cached_tail.get() != before {
                    // The line is here, then.
                    self.payloads_unread.set(tuning::payloads_are_unread(self.seg.payload_hint()));
                }
                self.next_ticket.set(ticket.wrapping_add(1));
                Ok(Claim { link: self, ticket, cell: self.seg.cell(ticket), published: false })
            }
            None => Err(self.refuse(by)),
        }
    }

    /// Whether a send would find room now.
    pub fn has_room(&self, by: &impl Sender) -> bool {
        let is_free = |tail| self.seg.head().load(Ordering::Relaxed).wrapping_sub(tail) < self.cells.get();
        if self.is_packing() || is_free(self.cached_tail.get()) {
            return !self.is_packing();
        }
        // SYNC(tail)
        let tail = self.seg.tail().load(Ordering::Acquire);
        if !by.order().has_any_pending() {
            self.cached_tail.set(tail);
        }
        is_free(tail)
    }

    /// Whether the packet of a claim of ours is being packed: who sends meanwhile is called by who packs.
    fn is_packing(&self) -> bool {
        self.seg.head().load(Ordering::Relaxed).wrapping_sub(self.cached_tail.get()) > 1 << 63
    }

    /// An endpoint waits for room from now on: there is none by the copy of the tail.
    pub fn mark_full(&self) {
        let full_count = self.seg.head().load(Ordering::Relaxed).wrapping_sub(self.cells.get());
        if self.is_packing() { self.saved_tail.set(full_count) } else { self.cached_tail.set(full_count) }
    }

    /// The FIFO is full: for want of time, or because nobody reads it any more?
    #[cold]
    fn refuse(&self, by: &impl Sender) -> Refused {
        let full_count = self.full_count.get().wrapping_add(1);
        self.full_count.set(full_count);
        if full_count % LIVENESS_CHECK_EVERY == 1 {
            self.is_alive();
        }
        if !self.dead.get() {
            return Refused::NoResource;
        }
        // Whoever else has buried it. Not if it has closed: its process may have memory to put to.
        if self.watch.check() {
            by.on_peer_dead();
        }
        Refused::Failed(Error::PeerDead)
    }

    /// Whether the peer can still read: its interface is open and its process runs.
    fn is_alive(&self) -> bool {
        if !self.dead.get() && (fifo::flags(self.seg.state()) & fifo::CLOSED != 0 || self.watch.check()) {
            self.mark_dead();
        }
        !self.dead.get()
    }

    fn is_closed(&self) -> bool {
        self.dead.get() || fifo::flags(self.seg.state()) & fifo::CLOSED != 0
    }

    /// Nothing will be read any more: from now on every send fails.
    fn mark_dead(&self) {
        self.cells.set(0);
        self.dead.set(true);
    }

    /// The reader raised a flag that we saw after publishing.
    #[cold]
    fn on_flags(&self, flags: u32) {
        if flags & fifo::CLOSED != 0 {
            self.mark_dead();
        }
        if flags & fifo::ARMED == 0 || !fifo::disarm(self.seg.state()) {
            return;
        }
        self.wake.signal();
    }

    /// For tests of dying writers: claims a ticket and forgets it.
    #[cfg(test)]
    pub fn abandon(&self, by: &impl Sender) {
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
        link.saved_tail.set(link.cached_tail.get());
        link.cached_tail.set(claim.ticket.wrapping_add(PACKING_OFFSET));
        Packing(link)
    }
}

impl Drop for Packing<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.0.cached_tail.set(self.0.saved_tail.get());
    }
}

impl Claim<'_> {
    #[inline(always)]
    fn publish(mut self, meta: u32) {
        self.published = true;
        self.cell.source().store(self.link.own_name.0, Ordering::Relaxed);
        fifo::publish(self.cell.word(), self.ticket, meta);
        let flags = fifo::flags(self.link.seg.state());
        if flags != 0 {
            self.link.on_flags(flags);
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
        if !self.watch.is_ours() {
            return;
        }
        self.seg.own_writer().release();
    }
}
