//! The reading side: this interface's own segment, polled by `iface.rs`. Holds the slots that handlers keep.
//! Trusts nothing that a writer put there: lengths are bounded, slots are looked up in a private copy.

#![allow(unsafe_code)]

mod housekeeping;

use super::fifo;
use super::seg::{CellRef, DEFAULT_SLOT_LEN, IN_SLOT, INLINE, LEN_BITS, Segment, Shape, SlotLayout};
use super::slot_map;
use super::tuning::Tuning;
use crate::api::{Am, Error, Keep, PollOne, RecvCallback, RecvDesc, Sink, SrcAddr};
use crate::base::hold_time::HoldTime;
use crate::base::recv_desc::RecvDescPool;
use crate::base::reentry::ReentryGuard;
use crate::host::fd_server::{Alarm, Export, ExportKind, FdServer, Name};
use std::cell::{Cell, RefCell};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use ucs::mem::MemError;
use ucs::sync::{load_fence, prefetch_read};
use ucs::sys::WakeSocket;

/// Cells that the reader prefetches ahead, once it has read as many in a row: only then are they likely to be
/// written. Fetched before that, a line has to go back to its writer.
const PREFETCH_CELLS: u64 = 8;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RxStats {
    /// Tickets skipped because their writer died before publishing.
    pub abandoned: u64,
    /// Packets dropped because of an impossible length, or skipped because their writer gave up on them.
    pub malformed: u64,
}

/// A receive FIFO and its reader's private state. In memory in this order: what every poll needs is together.
#[repr(C)]
pub struct Rx {
    next: Cell<u64>,
    /// A message is with its handler: a nested poll must not release it.
    in_handler: Cell<bool>,
    polls_left: Cell<u32>,
    /// A message has arrived since the housekeeping before the last one.
    recently_active: Cell<bool>,
    peer_failed: Cell<bool>,
    /// The last poll left messages behind; the lines of the next cells are prefetched.
    has_backlog: Cell<bool>,
    /// The tail is released when the next ticket is a multiple of this plus one.
    release_mask: u64,
    store: SlotStore,
    tuning: Tuning,
    /// The slot bound to each map entry: a private copy, which no peer can change.
    slot_map_copy: Box<[Cell<u32>]>,
    next_at_check: Cell<u64>,
    /// Rounds of housekeeping until a stuck ticket is checked for, and between two checks.
    stuck_wait: Cell<u32>,
    stuck_every: Cell<u32>,
    suspect_ticket: Cell<u64>,
    /// How long that ticket has been held; `None` if there is none.
    suspect: Cell<Option<HoldTime>>,
    /// Used writer entries when last looked, and the first slot map entry to compare next.
    writers_seen: Cell<u32>,
    map_checked: Cell<u32>,
    corrupt: Cell<bool>,
    stats: Cell<RxStats>,
    /// The reader sleeps on it; writers have its far end.
    wake: Arc<WakeSocket>,
    alarm: Arc<Alarm>,
    /// Peers have died; their endpoints fail once all below this ticket is read.
    drain_until: Cell<Option<u64>>,
    export: Export,
}

/// The segment and its spare slots. The segment stays mapped while messages are kept.
#[repr(C)]
struct SlotStore {
    seg: Segment,
    slot_len: usize,
    spare: RefCell<Vec<u32>>,
    lent: Arc<RecvDescPool>,
}

struct Delivery<'a> {
    rx: &'a Rx,
    /// The map entry whose slot holds the packet, if it is not in the cell.
    map_entry: Option<u32>,
}

/// Releases the cells up to that of a ticket that is read, every few tickets, also if its handler panics.
struct Release<'a> {
    rx: &'a Rx,
    ticket: u64,
}

impl Drop for Release<'_> {
    // HOT
    #[inline(always)]
    fn drop(&mut self) {
        let next = self.ticket + 1;
        if next & self.rx.release_mask == 0 {
            fifo::release(self.rx.seg().tail(), next);
        }
    }
}

impl Rx {
    /// Creates and exports the segment. No answer is left unpolled for longer than `max_delay`.
    pub fn create(shape: Shape, max_delay: Duration, server: &Arc<FdServer>) -> Result<Self, MemError> {
        let name = if shape.slot_len as usize == DEFAULT_SLOT_LEN {
            server.new_name()
        } else {
            server.new_name().with_custom_slots()
        };
        let seg = Segment::create(shape, name)?;
        let wake = WakeSocket::new().map_err(|errno| MemError::Descriptors { what: "a wake-up", errno })?;
        let wake = Arc::new(wake);
        let mem = seg.own_mem().expect("it has just been made").clone();
        let export = server.export(name, mem.clone(), ExportKind::Iface(wake.clone()));
        let mut spare = Vec::with_capacity(shape.slots as usize);
        spare.extend((shape.map_entries..shape.slots).rev());
        Ok(Rx {
            store: SlotStore {
                lent: RecvDescPool::new(shape.slots, mem),
                seg,
                slot_len: shape.slot_len as usize,
                spare: RefCell::new(spare),
            },
            tuning: Tuning::new(max_delay),
            next: Cell::new(0),
            in_handler: Cell::new(false),
            release_mask: u64::from(shape.cells / 8).max(1) - 1,
            slot_map_copy: (0..shape.map_entries).map(Cell::new).collect(),
            has_backlog: Cell::new(false),
            polls_left: Cell::new(Tuning::INITIAL_POLLS),
            recently_active: Cell::new(true),
            peer_failed: Cell::new(false),
            next_at_check: Cell::new(0),
            stuck_wait: Cell::new(0),
            stuck_every: Cell::new(1),
            suspect_ticket: Cell::new(fifo::NO_TICKET),
            suspect: Cell::new(None),
            writers_seen: Cell::new(0),
            map_checked: Cell::new(0),
            corrupt: Cell::new(false),
            stats: Cell::default(),
            alarm: Alarm::new(wake.clone()),
            wake,
            drain_until: Cell::new(None),
            export,
        })
    }

    pub fn seg(&self) -> &Segment {
        &self.store.seg
    }

    pub fn export(&self) -> &Export {
        &self.export
    }

    pub fn alarm(&self) -> &Arc<Alarm> {
        &self.alarm
    }

    pub fn set_peer_failed(&self) {
        self.peer_failed.set(true);
    }

    /// Whether some endpoint fails.
    pub fn has_peer_failed(&self) -> bool {
        self.peer_failed.get()
    }

    pub fn has_unreported_failure(&self) -> bool {
        self.alarm.is_raised() || self.drain_until.get().is_some()
    }

    /// Whether a word of the segment was found overwritten: its endpoints fail.
    // HOT
    #[inline(always)]
    pub fn is_corrupt(&self) -> bool {
        self.corrupt.get()
    }

    pub fn claimed_end(&self) -> u64 {
        self.seg().head().load(Ordering::SeqCst)
    }

    pub fn has_read(&self, ticket: u64) -> bool {
        self.next.get() >= ticket
    }

    pub fn resume_reporting(&self) {
        self.drain_until.set(Some(0));
        self.polls_left.set(1);
    }

    #[cfg(test)]
    pub fn polls_until_check(&self) -> u32 {
        self.polls_left.get()
    }

    #[cfg(test)]
    pub fn delays_polls(&self) -> bool {
        self.tuning.is_delay_learned()
    }

    pub fn is_in_handler(&self) -> bool {
        self.in_handler.get()
    }

    pub fn stats(&self) -> RxStats {
        self.stats.get()
    }

    /// Delivers up to `max` messages and returns their number; none while a message is with its handler.
    /// Calls `on_peer_failed` when peers have died and all they sent is read.
    // HOT
    #[inline(always)]
    pub fn poll<S: Sink>(&self, max: usize, sink: &mut S, on_peer_failed: impl FnOnce(&mut S)) -> usize {
        // Inline: an empty poll is latency. A delayed poll looks at the cell too: 0 means no arrival.
        let ticket = self.next.get();
        let word = self.seg().cell(ticket).word();
        if self.tuning.is_delaying() {
            self.tuning.wait_for_answer(|| fifo::peek(word, ticket).is_some());
        }
        let events = match fifo::peek(word, ticket) {
            Some(meta) if max > 0 => self.deliver_batch(ticket, meta, max, sink),
            _ => {
                self.pause_after_empty_poll();
                0
            }
        };
        let polls_left = self.polls_left.get() - 1;
        self.polls_left.set(polls_left);
        if polls_left == 0 && self.housekeeping(events) {
            on_peer_failed(sink);
        }
        events
    }

    /// Whether a poll would find neither a message nor housekeeping due; counts as one.
    // HOT
    #[inline(always)]
    pub fn is_idle(&self) -> bool {
        matches!(self.peek(), Err(PollOne::Empty))
    }

    /// Polls for one packet: see [`crate::api::Iface::poll_one`].
    // HOT
    #[inline(always)]
    pub fn poll_one<T: RecvCallback>(&self, callback: T) -> PollOne {
        let (ticket, cell, meta) = match self.peek() {
            Ok(next) => next,
            Err(none) => return none,
        };
        let Some((at, len, _)) = self.locate(ticket, &cell, meta) else { return PollOne::NeedsPoll };
        let Some(_guard) = ReentryGuard::begin(&self.in_handler) else { return PollOne::Empty };
        // SAFETY: `locate` vouches for the bytes; the callback's documentation warns of dishonest writers.
        let packet = unsafe { std::slice::from_raw_parts(at, len) };
        let source = SrcAddr { node: cell.source().load(Ordering::Relaxed), port: 0 };
        self.tuning.on_received(source.node);
        // As in `deliver`: a callback that panics is not given the packet again.
        self.next.set(ticket + 1);
        let release = Release { rx: self, ticket };
        if !callback.on_packet(packet, source) {
            self.next.set(ticket);
            std::mem::forget(release);
            return PollOne::NeedsPoll;
        }
        // The callback may have polled, or have made housekeeping due: the next look still finds it so.
        self.polls_left.set(self.polls_left.get().max(2) - 1);
        self.recently_active.set(true);
        drop(release);
        PollOne::Received { more: fifo::peek(self.seg().cell(ticket + 1).word(), ticket + 1).is_some() }
    }

    /// The next message: ticket, cell, word's upper half. An error if there is none or housekeeping is due.
    #[inline(always)]
    fn peek(&self) -> Result<(u64, CellRef<'_>, u32), PollOne> {
        let ticket = self.next.get();
        let cell = self.seg().cell(ticket);
        let word = cell.word();
        if self.tuning.is_delaying() && !self.tuning.wait_for_answer(|| fifo::peek(word, ticket).is_some()) {
            return Err(PollOne::Empty);
        }
        let polls_left = self.polls_left.get();
        if polls_left == 1 {
            return Err(PollOne::NeedsPoll);
        }
        match fifo::peek(word, ticket) {
            Some(meta) => Ok((ticket, cell, meta)),
            None => {
                // No pause: between two calls the caller polls other interfaces.
                self.polls_left.set(polls_left - 1);
                Err(PollOne::Empty)
            }
        }
    }

    /// Records a short message or short packet sent to `to`: the next one has ticket `ticket` there and will
    /// be written to the line at `tx_line`.
    // HOT
    #[inline(always)]
    pub fn on_sent(&self, to: Name, ticket: u64, tx_line: *mut u8) {
        // Numbered by the messages of the interface with the smaller name, so equal on both sides.
        let round = || if self.export.name().0 < to.0 { ticket } else { self.next.get() };
        self.tuning.on_sent(to, tx_line, round);
    }

    /// After an empty poll: loads the line again only when it can have changed. Not after a thousand empty
    /// polls: the fence would delay what a peer puts to memory that the program watches.
    // HOT
    #[inline(always)]
    fn pause_after_empty_poll(&self) {
        if self.recently_active.get() {
            load_fence();
        }
    }

    #[inline(never)]
    fn deliver_batch<S: Sink>(&self, mut ticket: u64, mut meta: u32, max: usize, sink: &mut S) -> usize {
        let Some(_guard) = ReentryGuard::begin(&self.in_handler) else { return 0 };
        self.recently_active.set(true);
        let is_ping_pong = self.tuning.on_batch(|| self.seg().cell(ticket).source().load(Ordering::Relaxed));
        let first = ticket;
        let mut run = if self.has_backlog.get() { PREFETCH_CELLS } else { 0 };
        loop {
            if run >= PREFETCH_CELLS {
                prefetch_read(self.seg().cell(ticket + PREFETCH_CELLS).packet());
            }
            self.deliver(ticket, meta, sink);
            (ticket, run) = (ticket + 1, run + 1);
            let events = (ticket - first) as usize;
            let next = fifo::peek(self.seg().cell(ticket).word(), ticket);
            match next {
                Some(next) if events < max => meta = next,
                _ => {
                    if is_ping_pong && events > 1 {
                        self.tuning.on_more_received();
                    }
                    self.end_batch(ticket, next.is_some());
                    return events;
                }
            }
        }
    }

    /// Ends a poll before `ticket`. If that is there, the next are too: prefetches their lines.
    #[inline(always)]
    fn end_batch(&self, ticket: u64, has_more: bool) {
        self.has_backlog.set(has_more);
        if has_more {
            (1..PREFETCH_CELLS).for_each(|ahead| prefetch_read(self.seg().cell(ticket + ahead).packet()));
        }
    }

    /// Address and length of a ticket's packet, mapped and initialised, and the map entry whose slot holds
    /// it. Honest writers keep away until the ticket is released. `None` if the word is invalid.
    // HOT
    #[inline(always)]
    fn locate(&self, ticket: u64, cell: &CellRef<'_>, meta: u32) -> Option<(*const u8, usize, Option<u32>)> {
        if (meta as usize).wrapping_sub(1) < INLINE {
            return Some((cell.packet().cast_const(), meta as usize, None));
        }
        if meta & IN_SLOT == 0 {
            return None;
        }
        let len = (meta & ((1 << LEN_BITS) - 1)) as usize;
        let layout = SlotLayout::from_word(meta);
        let entry = self.seg().map_entry(ticket, layout);
        let slot = self.store.slot(self.slot_map_copy[entry as usize].get());
        let fits = len.wrapping_sub(1) < self.store.slot_len;
        fits.then_some((slot.wrapping_add(layout.padding()), len, Some(entry)))
    }

    #[inline(always)]
    fn deliver<S: Sink>(&self, ticket: u64, meta: u32, sink: &mut S) {
        let cell = self.seg().cell(ticket);
        // Before the handler: if it panics, the message is not delivered again.
        self.next.set(ticket + 1);
        let _release = Release { rx: self, ticket };
        match self.locate(ticket, &cell, meta) {
            Some((at, len, map_entry)) => {
                // SAFETY: `locate` vouches for the bytes; `Am` warns of dishonest writers.
                let packet = unsafe { std::slice::from_raw_parts(at, len) };
                let source = SrcAddr { node: cell.source().load(Ordering::Relaxed), port: 0 };
                let (was_read, delivery) = (Cell::new(false), Delivery { rx: self, map_entry });
                let am = Am::new(packet, source, &delivery);
                sink.on_am(am.with_access_flag(map_entry.map(|_| &was_read)));
                if map_entry.is_some() {
                    self.tuning.record_payload(was_read.get(), self.seg().payload_hint());
                }
            }
            None => self.drop_malformed(meta),
        }
    }

    #[cold]
    fn drop_malformed(&self, meta: u32) {
        let mut stats = self.stats.get();
        stats.malformed += 1;
        self.stats.set(stats);
        let len = meta & ((1 << LEN_BITS) - 1);
        tracing::debug!(len, "packet without content or with an impossible length skipped");
        // A writer that gives up publishes a packet without content.
        if meta != 0 {
            self.mark_corrupt("a cell has an impossible length");
        }
    }

    pub fn event_fd(&self) -> Result<BorrowedFd<'_>, Error> {
        Ok(self.wake.as_fd())
    }

    pub fn arm(&self) -> Result<bool, Error> {
        self.wake.clear().map_err(|errno| Error::Sys { call: "recv", errno })?;
        if self.has_unreported_failure() {
            self.polls_left.set(1);
            return Ok(false);
        }
        if self.corrupt.get() {
            // Nothing arrives any more, whatever the head says.
            return Ok(true);
        }
        Ok(fifo::arm(self.seg().state(), self.seg().head(), self.next.get()))
    }
}

impl Drop for Rx {
    fn drop(&mut self) {
        // After a fork the segment is the parent's.
        if !self.export.server().is_ours() {
            return;
        }
        // Attached writers stop sending; the memory lives until they detach.
        self.seg().state().fetch_or(fifo::CLOSED, Ordering::SeqCst);
    }
}

impl Keep for Delivery<'_> {
    fn keep(&self, packet: &[u8]) -> RecvDesc {
        let store = &self.rx.store;
        let Some(spare) = store.take_spare() else { return RecvDesc::copied(packet) };
        let (slot, at) = match self.map_entry {
            Some(entry) => {
                // Before the ticket is released: SYNC(tail) shows the spare slot to the next writer.
                let slot = slot_map::replace(
                    store.seg.slot_entry(entry),
                    &self.rx.slot_map_copy[entry as usize],
                    spare,
                );
                (slot, packet.as_ptr())
            }
            None => {
                // SAFETY: the spare slot is unused and as long as any packet; `packet` lies in a cell.
                unsafe {
                    std::ptr::copy_nonoverlapping(packet.as_ptr(), store.slot(spare).cast_mut(), packet.len())
                };
                (spare, store.slot(spare))
            }
        };
        // SAFETY: the packet lies in the slot, which is bound to no map entry until it is given back.
        unsafe { store.lent.lend(slot, at, packet.len()) }
    }
}

impl SlotStore {
    /// First byte of one of our own slots.
    // HOT
    #[inline(always)]
    fn slot(&self, n: u32) -> *const u8 {
        self.seg.slot(n).expect("bound and spare slots are ours to name")
    }

    fn take_spare(&self) -> Option<u32> {
        let mut spare = self.spare.borrow_mut();
        if spare.is_empty() {
            self.lent.reclaim(|slot| spare.push(slot));
        }
        spare.pop()
    }
}
