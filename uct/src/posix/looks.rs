//! Whether messages in slots are looked at by their handlers, as the reader finds out and tells its writers (`rx.rs`, `peer.rs`).
//!
//! How many buffers a writer best goes round depends on it. Lines that are read have to leave the caches of both processors before
//! they are written again, and do so while many others are written. Lines that nobody reads are best written where they are,
//! in the writer's own cache, so few of them. Handlers that go by the id, the length or the sender alone are such: those that
//! count, that drop what is not for them, or that are told of what came by other ways.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};

/// So many messages in a row have to be passed over until writers are told. One that is looked at is told of at once.
const ROW: u32 = 64;

/// The word that tells writers, in the line of the tail, which they read anyway. At first, and from those who never tell: looked at.
const PASSED_OVER: u32 = 1;

/// The reader's count.
#[derive(Debug, Default)]
pub struct Looks {
    /// Messages in a row that nobody has looked at, up to [`ROW`].
    row: Cell<u32>,
}

impl Looks {
    /// A message in a slot has been with its handler, which has looked at it or not. // HOT
    #[inline(always)]
    pub fn count(&self, looked: bool, word: &AtomicU32) {
        let row = self.row.get();
        let next = if looked { 0 } else { (row + 1).min(ROW) };
        if next != row {
            self.row.set(next);
            if (next == ROW) != (row == ROW) {
                tell(next == ROW, word);
            }
        }
    }
}

#[cold]
fn tell(passed_over: bool, word: &AtomicU32) {
    word.store(if passed_over { PASSED_OVER } else { 0 }, Ordering::Relaxed);
}

/// What a writer is told.
#[inline]
pub fn are_passed_over(word: &AtomicU32) -> bool {
    word.load(Ordering::Relaxed) == PASSED_OVER
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_told_of_and_its_end() {
        let (looks, word) = (Looks::default(), AtomicU32::new(0));
        let count = |looked, times| {
            (0..times).for_each(|_| looks.count(looked, &word));
            are_passed_over(&word)
        };
        assert!(!count(false, ROW - 1));
        assert!(!count(true, 1), "the row begins again");
        assert!(!count(false, ROW - 1));
        assert!(count(false, 1));
        assert!(count(false, 1000));
        assert!(!count(true, 1));
        assert!(!count(true, 1000));
        assert!(!count(false, ROW - 1));
        word.store(7, Ordering::Relaxed);
        assert!(!are_passed_over(&word), "what no reader of ours says");
    }
}
