//! The slot map: which slot each map entry is bound to. The reader owns it and binds another slot when a
//! handler keeps a packet; a writer that has claimed a cell reads the entry for its packet. Checked by
//! `loom.rs`.
//!
//! The words need no order of their own: the reader changes one between the packet's publication and the
//! release of its ticket, and a writer reads it after it has claimed a later ticket of the cell (`fifo`'s
//! SYNC(tail)).

use std::cell::Cell;
use ucs::sync::{AtomicU32, Ordering};

/// The slot of an entry whose cell the caller has claimed. A peer may have put any number there.
// HOT
#[inline(always)]
pub fn slot_at(entry: &AtomicU32) -> u32 {
    entry.load(Ordering::Relaxed)
}

/// Binds `spare` to the entry of a ticket that is not released yet, and returns the slot bound before, which
/// nobody writes any more. `private` is the reader's copy, which no peer can change.
pub fn replace(entry: &AtomicU32, private: &Cell<u32>, spare: u32) -> u32 {
    entry.store(spare, Ordering::Relaxed);
    private.replace(spare)
}
