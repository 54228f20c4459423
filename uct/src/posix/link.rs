//! The writing side: an attached segment of a peer, in which packets go. Nothing blocks; whether the peer
//! lives is checked only when its FIFO is full.

#![allow(unsafe_code)]

use super::fifo;
use super::pending_order::Sender;
use super::seg::{CellRef, DEFAULT_SLOT_LEN, FIRST_LINE, IN_SLOT, INLINE, Segment, SlotLayout};
use super::slot_map;
use super::tuning;
use crate::api::{ConnectError, Error, Outcome, Pack, Refused};
use crate::base::check;
use crate::host::fd_server::{Export, ExportKind, Fetched, Name, ProcKey, ProcWatch};
use std::cell::{Cell, OnceCell};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use ucs::sync::prefetch_write;
use ucs::sys::WakeSender;

/// Added to the cached tail while a packet is being packed: more than the head moves meanwhile.
const PACKING_OFFSET: u64 = 1 << 30;

/// Sends that find the FIFO full between two checks of the peer's process.
const LIVENESS_CHECK_EVERY: u32 = 4096;

const PREFETCH_LEN: usize = 1024;

/// Why a peer has failed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum PeerFailure {
    /// The process has died, or has closed the interface.
    Dead,
    /// A process has overwritten shared memory.
    Corrupt,
}

impl PeerFailure {
    /// The error of operations with the peer. Each arm is a constant, so that the compiler sees in a caller
    /// that they fail.
    // HOT
    #[inline(always)]
    pub fn error(self) -> Error {
        match self {
            PeerFailure::Dead => Error::PeerDead,
            PeerFailure::Corrupt => Error::Corrupt,
        }
    }
}

pub struct Link {
    seg: Segment,
    /// The ticket after our last one: the next one, unless another writer has claimed it.
    next_ticket: Cell<u64>,
    /// Cells of the FIFO; 0 once the peer is dead, so that every send takes the path of a full one.
    cells: Cell<u64>,
    slot_len: usize,
    /// Best layout for the last packet in a slot: the length of the next one is unknown until it is packed.
    layout: Cell<SlotLayout>,
    payloads_unread: Cell<bool>,
    /// The tail when it was last read; the shared one is read only if by it there is no room. At full
    /// while an endpoint [waits](WaitingQueues); ahead of any head while a packet is [packed](Packing).
    cached_tail: Cell<u64>,
    saved_tail: Cell<u64>,
    own_name: Name,
    watch: Arc<ProcWatch>,
    dead: Cell<bool>,
    /// Why, if it is dead.
    failure: Cell<PeerFailure>,
    full_count: Cell<u32>,
    wake: Wake,
}

/// The end of the socket that wakes the peer's interface. Most peers poll, so it is validated at its first
/// use.
struct Wake {
    raw: Cell<Option<OwnedFd>>,
    sender: OnceCell<Option<WakeSender>>,
    /// A wake-up has failed, and the log has told it.
    has_failed: Cell<bool>,
}

impl Wake {
    fn new(raw: OwnedFd) -> Wake {
        Wake { raw: Cell::new(Some(raw)), sender: OnceCell::new(), has_failed: Cell::new(false) }
    }

    /// Wakes the peer. False: a later try may succeed.
    fn signal(&self) -> bool {
        let check = || self.raw.take().and_then(|fd| WakeSender::from_peer(fd).ok());
        match self.sender.get_or_init(check) {
            Some(wake) => {
                let warn = |errno: &_| {
                    if !self.has_failed.replace(true) {
                        tracing::warn!(%errno, "cannot wake a peer");
                    }
                };
                wake.signal().inspect_err(warn).is_ok()
            }
            None => {
                tracing::warn!("the peer's wake-up descriptor is not a socket: it will not be woken");
                true
            }
        }
    }
}

/// A claimed ticket and its cell. Dropped unpublished, since a closure panicked, it becomes an empty packet.
struct Claim<'a> {
    link: &'a Link,
    ticket: u64,
    cell: CellRef<'a>,
    published: bool,
}

impl Link {
    pub fn attach(iface: &Export, name: Name, fetched: Fetched) -> Result<Link, ConnectError> {
        let ExportKind::Iface(wake) = fetched.kind else { return Err(ConnectError::Malformed) };
        let wake = Wake::new(wake);
        let mut seg = Segment::attach(fetched.mem, name)?;
        let shape = seg.shape();
        if name.has_default_slots() && shape.slot_len as usize != DEFAULT_SLOT_LEN {
            return Err(ConnectError::Malformed);
        }
        if fifo::flags(seg.state()) & fifo::CLOSED != 0 || fetched.watch.is_dead() {
            return Err(ConnectError::Gone);
        }
        let (me, alive) = (iface.server().key().0, |who| iface.server().is_alive(ProcKey(who)));
        let entry = seg.claim_writer(me, alive);
        seg.use_writer(
            entry.ok_or(Error::Exhausted("places among the peer's writers (its UCX_POSIX_MAX_WRITERS)"))?,
        );
        let cells = u64::from(shape.cells);
        // Endpoints may already wait for it: the first send reads the tail.
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
            failure: Cell::new(PeerFailure::Dead),
            full_count: Cell::new(0),
            wake,
        })
    }

    #[inline(always)]
    pub fn max_packet(&self) -> usize {
        self.slot_len
    }

    /// Sends a packet of at most [`INLINE`] bytes; `fill` writes exactly `len` bytes.
    // HOT
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

    /// Sends what `pack` writes into a buffer of `max` bytes, which is at most [`INLINE`].
    // HOT
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

    /// Sends what `pack` writes into a buffer of `max` bytes, at most [`Link::max_packet`].
    // HOT
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
        // SAFETY: slot_len >= max bytes at `slot` are mapped and initialised; the slot is bound to a map
        // entry of the cell, which the ticket makes ours alone.
        let room = unsafe { std::slice::from_raw_parts_mut(slot, max) };
        let packing = Packing::begin(&claim);
        let len = pack(room);
        drop(packing);
        let len = check::packed(len, max)?;
        if len <= FIRST_LINE {
            // It fits beside the word after all: one line less for the reader to fetch.
            // SAFETY: `len` bytes were packed at `slot`; the cell has room for INLINE; they do not overlap.
            unsafe { std::ptr::copy_nonoverlapping(slot, claim.cell.packet(), len) };
            claim.publish(len as u32);
        } else {
            self.layout.set(SlotLayout::of(len, self.payloads_unread.get()));
            claim.publish(len as u32 | IN_SLOT | layout.bits());
            if is_uncontended {
                self.prefetch_next(len);
            }
        }
        Ok(len)
    }

    /// First byte of a ticket's packet in this layout, if the peer's slot number is valid.
    // HOT
    #[inline(always)]
    fn slot(&self, ticket: u64, layout: SlotLayout) -> Option<*mut u8> {
        let n = slot_map::slot_at(self.seg.slot_entry(self.seg.map_entry(ticket, layout)));
        self.seg.slot(n).map(|slot| slot.wrapping_add(layout.padding()))
    }

    /// Prefetches the lines of the next packet, assuming it is like the last one. Left to the copy, these
    /// misses took a third of the time of a message of 1 KiB.
    // HOT
    #[inline(always)]
    fn prefetch_next(&self, len: usize) {
        let next = self.next_ticket.get();
        if next.wrapping_sub(self.cached_tail.get()) < self.cells.get()
            && let Some(slot) = self.slot(next, self.layout.get())
        {
            (0..len.min(PREFETCH_LEN)).step_by(64).for_each(|at| prefetch_write(slot.wrapping_add(at)));
        }
    }

    /// The ticket and line of our next message, unless another writer claims it.
    // HOT
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
                // The line is with the reader and arrives during the exchange, unless others write too.
                prefetch_write(cell.packet());
            }
            if fifo::claim_at(head, ticket, &self.seg.own_writer().intent).is_ok() {
                self.next_ticket.set(ticket.wrapping_add(1));
                return Ok(Claim { link: self, ticket, cell, published: false });
            }
        }
        self.claim_slow(by)
    }

    #[inline(never)]
    fn claim_slow(&self, by: &impl Sender) -> Result<Claim<'_>, Refused> {
        let (order, intent) = (by.order(), &self.seg.own_writer().intent);
        if self.is_packing() {
            // Our only intent is that of the packet being packed.
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
                    // The hint lies in the line just read.
                    self.payloads_unread.set(tuning::payloads_are_unread(self.seg.payload_hint()));
                }
                self.next_ticket.set(ticket.wrapping_add(1));
                Ok(Claim { link: self, ticket, cell: self.seg.cell(ticket), published: false })
            }
            None => Err(self.refuse(by)),
        }
    }

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

    /// Whether a packet of ours is being packed: then the caller is its closure.
    fn is_packing(&self) -> bool {
        self.seg.head().load(Ordering::Relaxed).wrapping_sub(self.cached_tail.get()) > 1 << 63
    }

    /// Sets the cached tail to full: an endpoint waits for room from now on.
    pub fn mark_full(&self) {
        let full_tail = self.seg.head().load(Ordering::Relaxed).wrapping_sub(self.cells.get());
        if self.is_packing() { self.saved_tail.set(full_tail) } else { self.cached_tail.set(full_tail) }
    }

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
        // A closed interface does not count: its process may have memory to put to.
        if self.failure.get() == PeerFailure::Corrupt {
            by.on_peer_corrupt();
        } else if self.watch.check() {
            by.on_peer_dead();
        }
        Refused::Failed(self.failure.get().error())
    }

    pub fn is_alive(&self) -> bool {
        if !self.dead.get() {
            let flags = fifo::flags(self.seg.state());
            let cells = u64::from(self.seg.shape().cells);
            if flags & fifo::CORRUPT != 0 {
                self.mark_dead(PeerFailure::Corrupt);
            } else if flags & fifo::CLOSED != 0 || self.watch.check() {
                self.mark_dead(PeerFailure::Dead);
            } else if !fifo::is_possible(self.seg.head(), self.seg.tail(), cells) {
                tracing::error!(
                    "head or tail of a peer's shared memory is corrupt: a process has overwritten it"
                );
                // The peer finds it, and other writers.
                self.seg.state().fetch_or(fifo::CLOSED | fifo::CORRUPT, Ordering::SeqCst);
                self.mark_dead(PeerFailure::Corrupt);
            }
        }
        !self.dead.get()
    }

    pub fn is_closed(&self) -> bool {
        self.dead.get() || fifo::flags(self.seg.state()) & fifo::CLOSED != 0
    }

    /// Why sends to it fail, if they do: its process has died, its interface is closed, or memory is corrupt.
    pub fn failure(&self) -> Option<PeerFailure> {
        self.dead.get().then(|| self.failure.get())
    }

    /// Whether its process has died, perhaps before the fd server was notified: asks the system.
    pub fn has_process_died(&self) -> bool {
        self.watch.check()
    }

    /// Whether the fd server was notified of the death of its process.
    pub fn is_known_dead(&self) -> bool {
        self.watch.is_dead()
    }

    pub fn mark_dead(&self, failure: PeerFailure) {
        if !self.dead.replace(true) {
            self.failure.set(failure);
        }
        self.cells.set(0);
    }

    #[cold]
    fn on_flags(&self, flags: u32) {
        if flags & fifo::CLOSED != 0 {
            self.mark_dead(if flags & fifo::CORRUPT != 0 { PeerFailure::Corrupt } else { PeerFailure::Dead });
        }
        if flags & fifo::ARMED != 0 {
            fifo::wake(self.seg.state(), flags, || self.wake.signal());
        }
    }

    #[cfg(test)]
    pub fn abandon(&self, by: &impl Sender) {
        if let Ok(claim) = self.claim(by) {
            std::mem::forget(claim);
        }
    }
}

/// Packs a packet by a closure, which may send too: through this link it finds no room until this is dropped.
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
        if flags & fifo::FLAGS != 0 {
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
        if !self.watch.is_ours() {
            return;
        }
        self.seg.own_writer().release();
    }
}
