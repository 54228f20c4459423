//! Marks of copies that requesters make in memory of a device's owner. Each remote queue pair that copies has
//! a slot in the owner's device segment, in which it marks the copy that it makes: key and queue pair. The
//! owner waits for marks of a key that it has removed, and of a queue pair that it has closed.
//!
//! A requester that dies leaves its slot, with the mark. Others take it once they need one.

use super::mark;
use std::cell::Cell;
use std::time::{Duration, Instant};
use ucs::sync::Ordering::{AcqRel, Relaxed, Release, SeqCst};
use ucs::sync::hint::spin_loop;
use ucs::sync::{AtomicU32, AtomicU64};
use ucs::sys::proc::WatchError;
use ucs::sys::{PidFd, ProcId};

/// Slots of a device: remote queue pairs of all processes that copy in its memory.
pub(super) const MARK_SLOTS: usize = 1 << 14;

/// Longest wait for copies, all together, of peers that live: a stopped one may not go on for days.
const LAST_WAIT: Duration = Duration::from_secs(1);
/// Rounds of spinning before that.
const SPINS: u32 = 4096;
/// Rounds of waiting between two looks at the process.
const LIVENESS_ROUNDS: u32 = 64;

const PID_BITS: u32 = 22;
const KEY_BITS: u32 = 24;
const QPN_BITS: u32 = 16;

/// Slot of a remote queue pair, a pair of lines of its own.
#[repr(C, align(128))]
pub(super) struct MarkSlot {
    /// The requester's process: number in the low bits, start above; 0: free.
    process: AtomicU64,
    /// Key, queue pair and a count of its copy; 0: none.
    word: AtomicU64,
}

/// The slots of a device, and how many have been used.
#[derive(Clone, Copy)]
pub(super) struct Marks<'a> {
    pub(super) slots: &'a [MarkSlot],
    pub(super) used: &'a AtomicU32,
}

fn key_of(word: u64) -> u32 {
    word as u32 & ((1 << KEY_BITS) - 1)
}

fn qpn_of(word: u64) -> u16 {
    (word >> KEY_BITS) as u16
}

/// A process in one word, which one store claims and frees.
fn word_of(process: ProcId) -> u64 {
    process.start << PID_BITS | u64::from(process.pid)
}

impl MarkSlot {
    /// The process that has the slot.
    fn process(&self) -> Option<ProcId> {
        let word = self.process.load(Relaxed);
        (word != 0).then_some(ProcId { pid: word as u32 & ((1 << PID_BITS) - 1), start: word >> PID_BITS })
    }

    fn claim(&self, before: u64, me: ProcId) -> bool {
        let claimed = self.process.load(Relaxed) == before
            && self.process.compare_exchange(before, word_of(me), AcqRel, Relaxed).is_ok();
        if claimed {
            // That of a process that has died.
            mark::end(&self.word);
        }
        claimed
    }

    fn is_dead(&self) -> bool {
        self.process().is_none_or(has_died)
    }

    /// Waits for the copy marked as `seen`, until `begun` is too long ago. False: it may still be under way.
    fn await_end(&self, seen: u64, begun: Instant) -> bool {
        let mut rounds = 0u32;
        while mark::look(&self.word) == seen {
            rounds = rounds.wrapping_add(1);
            if rounds < SPINS {
                spin_loop();
                continue;
            }
            if rounds.is_multiple_of(LIVENESS_ROUNDS) && self.is_dead() {
                let _ = self.word.compare_exchange(seen, 0, Relaxed, Relaxed);
                return true;
            }
            if begun.elapsed() > LAST_WAIT {
                return false;
            }
            std::thread::yield_now();
        }
        true
    }
}

/// Whether a process has died. One that cannot be watched lives.
fn has_died(process: ProcId) -> bool {
    if process.start == 0 {
        // It could not read its own start.
        return false;
    }
    match PidFd::open(process) {
        Ok(pidfd) => pidfd.is_dead(),
        Err(WatchError::Gone { .. }) => true,
        Err(WatchError::Os { .. }) => false,
    }
}

impl Marks<'_> {
    /// The slots that have been used.
    fn used(&self) -> &[MarkSlot] {
        // SYNC(mark): all slots with a mark of a key, or of a queue pair, that was there.
        &self.slots[..(self.used.load(SeqCst) as usize).min(self.slots.len())]
    }

    /// Takes a slot for `me`, the first that is free.
    #[cold]
    fn claim(&self, me: ProcId) -> Option<usize> {
        let used = self.used();
        if let Some(at) = used.iter().position(|slot| slot.claim(0, me)) {
            return Some(at);
        }
        // Now and then only: it takes system calls.
        if used.len() == self.slots.len() || used.len().is_power_of_two() {
            let mut last = None;
            for (at, slot) in used.iter().enumerate() {
                let Some(process) = slot.process() else { continue };
                let is_dead = match last {
                    Some((known, is_dead)) if known == process => is_dead,
                    _ => has_died(process),
                };
                last = Some((process, is_dead));
                if is_dead && slot.claim(word_of(process), me) {
                    return Some(at);
                }
            }
        }
        let at = used.len() + self.slots[used.len()..].iter().position(|slot| slot.claim(0, me))?;
        // SYNC(mark): before the first mark.
        self.used.fetch_max(at as u32 + 1, SeqCst);
        Some(at)
    }

    /// Waits for copies whose marks are `wanted`. Their key was removed, or their queue pair closed.
    fn wait(&self, wanted: impl Fn(u64) -> bool) {
        mark::before_look();
        let mut begun = None;
        for slot in self.used() {
            let seen = mark::look(&slot.word);
            if seen == 0 || !wanted(seen) {
                continue;
            }
            if !slot.await_end(seen, *begun.get_or_insert_with(Instant::now)) {
                let pid = slot.process().map_or(0, |process| process.pid);
                tracing::warn!(
                    "process {pid} has stopped within a copy from or to memory that is deregistered, and may go on"
                );
            }
        }
    }

    /// Waits for copies from or to memory whose key was removed.
    pub(super) fn await_key(&self, key: u32) {
        self.wait(|word| key_of(word) == key_of(key.into()));
    }

    /// Waits for copies through a queue pair that was closed.
    pub(super) fn await_qp(&self, qpn: u16) {
        self.wait(|word| qpn_of(word) == qpn);
    }
}

/// Place of the slot of one remote queue pair.
pub(super) struct Marker {
    at: Cell<u32>,
    copies: Cell<u64>,
}

/// Not asked for yet.
const UNKNOWN: u32 = u32::MAX;
/// There was none.
const WITHOUT: u32 = u32::MAX - 1;

impl Default for Marker {
    fn default() -> Self {
        Marker { at: Cell::new(UNKNOWN), copies: Cell::new(0) }
    }
}

impl Marker {
    /// Marks a copy by `key` through the queue pair `qpn`, until the mark is dropped.
    // HOT
    #[inline]
    pub(super) fn mark<'a>(&self, marks: Marks<'a>, me: ProcId, qpn: u16, key: u32) -> Mark<'a> {
        let Some(slot) = marks.slots.get(self.at.get() as usize).or_else(|| self.take(marks, me)) else {
            return Mark(None);
        };
        let copies = self.copies.get().wrapping_add(1);
        self.copies.set(copies);
        let what = u64::from(qpn) << KEY_BITS | u64::from(key_of(key.into()));
        mark::begin(&slot.word, copies << (KEY_BITS + QPN_BITS) | what);
        Mark(Some(&slot.word))
    }

    #[cold]
    fn take<'a>(&self, marks: Marks<'a>, me: ProcId) -> Option<&'a MarkSlot> {
        if self.at.get() == WITHOUT {
            return None;
        }
        let at = marks.claim(me);
        self.at.set(at.map_or(WITHOUT, |at| at as u32));
        if at.is_none() {
            tracing::warn!(
                "more than {MARK_SLOTS} queue pairs copy in memory of one process: it does not wait for all of them \
                 when it deregisters"
            );
        }
        marks.slots.get(at?)
    }

    /// Frees the slot.
    pub(super) fn free(&self, marks: Marks<'_>) {
        if let Some(slot) = marks.slots.get(self.at.replace(UNKNOWN) as usize) {
            slot.process.store(0, Release);
        }
    }
}

/// A mark, until it is dropped.
pub(super) struct Mark<'a>(Option<&'a AtomicU64>);

impl Drop for Mark<'_> {
    // HOT
    #[inline]
    fn drop(&mut self) {
        if let Some(word) = self.0 {
            mark::end(word);
        }
    }
}

#[cfg(test)]
mod tests;
