//! Whether messages in slots are looked at by their handlers, as the reader finds out and tells its writers (`rx.rs`, `peer.rs`).
//!
//! How many buffers a writer best goes round depends on it. Lines that are read have to leave the caches of both processors before
//! they are written again, and do so while many others are written. Lines that nobody reads are best written where they are,
//! in the writer's own cache, so few of them. Handlers that go by the id, the length or the sender alone are such: those that
//! count, that drop what is not for them, or that are told of what came by other ways.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};

/// So many messages in a row have to be passed over until writers are told. One that is looked at is told of at once.
const UNREAD_THRESHOLD: u32 = 64;

/// The word that tells writers, in the line of the tail, which they read anyway. At first, and from those who never tell: looked at.
const UNREAD: u32 = 1;

/// The reader's count.
#[derive(Debug, Default)]
pub struct PayloadAccess {
    /// Messages in a row that nobody has looked at, up to [`UNREAD_THRESHOLD`].
    run: Cell<u32>,
}

impl PayloadAccess {
    /// A message in a slot has been with its handler, which has looked at it or not. // HOT
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

/// What a writer is told.
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
        assert!(!record(true, 1), "the row begins again");
        assert!(!record(false, UNREAD_THRESHOLD - 1));
        assert!(record(false, 1));
        assert!(record(false, 1000));
        assert!(!record(true, 1));
        assert!(!record(true, 1000));
        assert!(!record(false, UNREAD_THRESHOLD - 1));
        hint.store(7, Ordering::Relaxed);
        assert!(!are_unread(&hint), "what no reader of ours says");
    }
}
