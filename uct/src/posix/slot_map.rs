//! Which slot is bound to a place: kept by the reader, which binds another one when a handler keeps the packet in it, and
//! read by whoever writes a cell whose packet goes to that place. Called by `rx.rs` and `peer.rs`; checked exhaustively by `loom.rs`.
//!
//! The word in the segment needs no order of its own: the reader changes it between the packet's publication and the
//! release of its ticket, a writer reads it after it has claimed a later one of the cell (`fifo`'s SYNC(tail)).

use std::cell::Cell;
use ucs::sync::{AtomicU32, Ordering};

/// The slot of a place, for who has claimed its cell. A peer may have put any number there. // HOT
#[inline(always)]
pub fn slot_at(entry: &AtomicU32) -> u32 {
    entry.load(Ordering::Relaxed)
}

/// Binds `spare` to the place of a ticket that is not released yet; answers the slot that was bound, which is nobody's now. `private` is
/// what the reader goes by, where no peer can change it.
pub fn replace(entry: &AtomicU32, private: &Cell<u32>, spare: u32) -> u32 {
    entry.store(spare, Ordering::Relaxed);
    private.replace(spare)
}
