//! The payload-access hint: whether handlers read what lies in slots. The reader publishes it, writers follow
//! it.
//!
//! It decides how many buffers a writer goes round. Lines that were read have to leave the caches of both
//! processors before they are written again, and do so while many others are written. Lines that nobody reads
//! are best written in the writer's cache, so few of them. Handlers that only count or drop messages do not
//! read them.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};

/// Unread messages in a row until the hint is set. One that is read clears it at once.
const UNREAD_THRESHOLD: u32 = 64;

/// The hint for unread payloads, in the line of the tail, which writers read anyway. Other values: read.
const UNREAD: u32 = 1;

#[derive(Debug, Default)]
pub struct PayloadAccess {
    run: Cell<u32>,
}

impl PayloadAccess {
    /// Records whether the handler of a message in a slot has read it.
    // HOT
    #[inline(always)]
    pub fn record(&self, read: bool, hint: &AtomicU32) {
        let run = self.run.get();
        let next = if read { 0 } else { (run + 1).min(UNREAD_THRESHOLD) };
        if next != run {
            self.run.set(next);
            if (next == UNREAD_THRESHOLD) != (run == UNREAD_THRESHOLD) {
                publish(next == UNREAD_THRESHOLD, hint);
            }
        }
    }
}

#[cold]
fn publish(unread: bool, hint: &AtomicU32) {
    hint.store(if unread { UNREAD } else { 0 }, Ordering::Relaxed);
}

#[inline]
pub fn are_unread(hint: &AtomicU32) -> bool {
    hint.load(Ordering::Relaxed) == UNREAD
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hint_is_set_after_a_run_of_unread_payloads() {
        let (access, hint) = (PayloadAccess::default(), AtomicU32::new(0));
        let record = |read, times| {
            (0..times).for_each(|_| access.record(read, &hint));
            are_unread(&hint)
        };
        assert!(!record(false, UNREAD_THRESHOLD - 1));
        assert!(!record(true, 1), "the run begins again");
        assert!(!record(false, UNREAD_THRESHOLD - 1));
        assert!(record(false, 1));
        assert!(record(false, 1000));
        assert!(!record(true, 1));
        assert!(!record(true, 1000));
        assert!(!record(false, UNREAD_THRESHOLD - 1));
        hint.store(7, Ordering::Relaxed);
        assert!(!are_unread(&hint), "an unknown value");
    }
}
