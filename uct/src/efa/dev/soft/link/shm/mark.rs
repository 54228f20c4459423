//! Synchronisation of a mark of a copy in memory of a device's owner, without its slot. Used by `copy_marks`;
//! modelled in `loom`.
//!
//! A requester marks its copy, then looks at the key and at the queue pair, copies, and ends the mark. The
//! owner removes the key or closes the queue pair, and then looks at the marks. One of both sees the other:
//! the requester does not copy, or the owner waits for the mark.
//!
//! | Label | Release side | Acquire side | Carries |
//! |---|---|---|---|
//! | SYNC(mark) | [`begin`], load of key or head | removal of either, fence, [`look`] | one sees the other |
//! | SYNC(marked) | [`end`] | [`look`] | the copy has ended |

use ucs::sync::{AtomicU64, Ordering, fence};

/// Marks a copy. The load of the key, and of the head of the queue pair, that follow are SeqCst.
// HOT
#[inline(always)]
pub fn begin(word: &AtomicU64, mark: u64) {
    // SYNC(mark)
    word.store(mark, Ordering::SeqCst);
    #[cfg(loom)]
    // Loom treats SeqCst accesses as AcqRel; only its fences are sequentially consistent.
    fence(Ordering::SeqCst);
}

/// Ends a mark: the copy is made, or is not made.
// HOT
#[inline(always)]
pub fn end(word: &AtomicU64) {
    // SYNC(marked)
    word.store(0, Ordering::Release);
}

/// Precedes the owner's looks at marks, after it has removed a key or closed a queue pair.
pub fn before_look() {
    // SYNC(mark)
    fence(Ordering::SeqCst);
}

/// The mark that is there, 0 for none. Each copy of a requester has another one.
pub fn look(word: &AtomicU64) -> u64 {
    // SYNC(marked)
    word.load(Ordering::Acquire)
}
