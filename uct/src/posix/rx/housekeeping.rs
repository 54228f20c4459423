//! Checks that few polls make: for dead peers, for tickets that nobody publishes, and for shared words that
//! neither the reader nor a writer puts there.

use super::Rx;
use crate::base::hold_time::HoldTime;
use crate::host::fd_server::ProcKey;
use crate::posix::writer_table::REUSE_FROM;
use crate::posix::{fifo, slot_map};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Most rounds of housekeeping between two checks of a stuck ticket; doubled while its holder lives.
const MAX_STUCK_INTERVAL: u32 = 1 << 10;

/// Time for which a live process that runs may hold a ticket without publishing it: a copy takes
/// microseconds.
const MAX_HOLD: Duration = Duration::from_secs(4);

/// Slot map entries compared at a time.
const MAP_ENTRIES_PER_CHECK: u32 = 64;

impl Rx {
    /// Looks for dead peers and stuck tickets. True when peers have died and all they sent is read.
    #[cold]
    pub(super) fn housekeeping(&self, events: usize) -> bool {
        self.polls_left.set(self.tuning.next_interval());
        let next = self.next.get();
        self.recently_active.set(self.next_at_check.replace(next) != next);
        if self.alarm.take() {
            // The dead claim nothing any more: what they sent is below the head.
            self.drain_until.set(Some(self.claimed_end()));
            self.stuck_wait.set(0);
        }
        let wait = self.stuck_wait.get().saturating_sub(1);
        self.stuck_wait.set(wait);
        if events == 0 && wait == 0 {
            self.check_stuck_ticket();
        }
        match self.drain_until.get() {
            None => false,
            Some(ticket) if self.next.get() >= ticket => {
                self.drain_until.set(None);
                true
            }
            Some(_) => {
                self.polls_left.set(1);
                false
            }
        }
    }

    /// Finds a shared word that holds what neither the reader nor a writer puts there.
    #[cold]
    fn impossible_word(&self) -> Option<&'static str> {
        let (seg, next) = (self.seg(), self.next.get());
        let ahead = seg.head().load(Ordering::SeqCst).wrapping_sub(next);
        if ahead > u64::from(seg.shape().cells) {
            return Some("the head of the FIFO");
        }
        // Released every few cells, and at once behind a ticket that was skipped.
        let behind = next.wrapping_sub(seg.tail().load(Ordering::Relaxed));
        if behind > self.release_mask + 1 {
            return Some("the tail of the FIFO");
        }
        if fifo::flags(seg.state()) & fifo::CLOSED != 0 {
            return Some("the state");
        }
        let used = seg.writers_used().load(Ordering::Acquire);
        if used < self.writers_seen.replace(used) || used > seg.shape().writers {
            return Some("the number of writers");
        }
        let first = self.map_checked.get();
        let last = first.saturating_add(MAP_ENTRIES_PER_CHECK).min(seg.shape().map_entries);
        self.map_checked.set(if last == seg.shape().map_entries { 0 } else { last });
        let differs =
            |n: &u32| slot_map::slot_at(seg.slot_entry(*n)) != self.slot_map_copy[*n as usize].get();
        (first..last).find(differs).map(|_| "the slot map")
    }

    /// Gives the segment up: honest writers find it closed, and all endpoints of the interface fail.
    #[cold]
    pub(super) fn mark_corrupt(&self, what: &str) {
        if self.corrupt.replace(true) {
            return;
        }
        let name = self.export.name().0;
        tracing::error!(
            "shared memory of interface {name:#x} of this process is corrupt ({what}): a process of this user has \
             overwritten it. Its endpoints fail"
        );
        self.seg().state().fetch_or(fifo::CLOSED | fifo::CORRUPT, Ordering::SeqCst);
        self.resume_reporting();
    }

    fn check_stuck_ticket(&self) {
        let ticket = self.next.get();
        self.stuck_wait.set(self.stuck_every.get());
        if self.corrupt.get() {
            return;
        }
        if let Some(what) = self.impossible_word() {
            return self.mark_corrupt(what);
        }
        if !fifo::stuck(self.seg().head(), ticket) {
            self.stuck_every.set(1);
            return;
        }
        if self.suspect_ticket.replace(ticket) != ticket {
            self.suspect.set(Some(HoldTime::new(Instant::now())));
            return;
        }
        let mut suspect = self.suspect.get();
        suspect.iter_mut().for_each(|hold| hold.look(Instant::now()));
        self.suspect.set(suspect);
        let server = self.export.server();
        let holders = || self.seg().writers().filter_map(|writer| writer.holder(ticket).map(ProcKey));
        if let Some(holder) = holders().find(|who| server.is_alive(*who)) {
            self.stuck_every.set((self.stuck_every.get() * 2).min(MAX_STUCK_INTERVAL));
            let is_long = suspect.is_some_and(|hold| hold.held() > MAX_HOLD);
            if is_long && !server.may_be_halted(holder) {
                self.mark_corrupt("a cell, or who writes it");
            }
            return;
        }
        // The last holder may have published just before it died. SYNC(intent) makes that visible.
        if fifo::peek(self.seg().cell(ticket).word(), ticket).is_some() {
            return;
        }
        // A dead writer's entry names its ticket, unless another process has taken the entry.
        let used = self.writers_seen.get();
        let may_be_reused = used >= REUSE_FROM || used == self.seg().shape().writers;
        if holders().next().is_none() && !may_be_reused {
            return self.mark_corrupt("a cell that nobody writes");
        }
        let mut stats = self.stats.get();
        stats.abandoned += 1;
        self.stats.set(stats);
        tracing::debug!(ticket, "a writer died in the middle of a message; skipped");
        self.next.set(ticket + 1);
        self.stuck_every.set(1);
        self.stuck_wait.set(0);
        self.polls_left.set(1);
        fifo::release(self.seg().tail(), ticket + 1);
    }
}
