//! The writer table: which process owns an entry, and whether it may hold a ticket. Used by `peer.rs`
//! (writers) and `rx.rs` (the reader); checked by `loom.rs`.
//!
//! An entry belongs to a process from [`claim_entry`] until it is released, or its owner is dead and another
//! claims it: so a dead process's last intent stays for the reader to see.
//!
//! | Label | Release side | Acquire side | What it carries |
//! |---|---|---|---|
//! | SYNC(entry) | [`Writer::release`] | [`claim_entry`] | the last intent before the next owner's |
//! | SYNC(owner) | [`fifo::claim`] | [`Writer::may_hold`] | the owner's key, stored before its first intent |

use super::fifo;
use ucs::sync::{AtomicU64, Ordering};

const FREE: u64 = 0;

#[repr(C, align(64))]
pub struct Writer {
    /// Key of the owning process, or [`FREE`].
    pub owner: AtomicU64,
    /// The ticket it may hold unpublished.
    pub intent: AtomicU64,
}

/// Claims an entry that is free, or else one whose owner is dead, for the process `me`. Returns its number.
pub fn claim_entry<'a>(
    entries: impl Iterator<Item = &'a Writer> + Clone,
    me: u64,
    is_alive: impl Fn(u64) -> bool,
) -> Option<u32> {
    let mut numbered = (0..).zip(entries);
    let free = numbered.clone().find(|(_, entry)| entry.replace_owner(FREE, me));
    let claimed = free.or_else(|| {
        numbered.find(|(_, entry)| {
            let owner = entry.owner.load(Ordering::Acquire);
            owner != FREE && !is_alive(owner) && entry.replace_owner(owner, me)
        })
    });
    claimed.map(|(n, entry)| {
        // A dead owner may have left an intent.
        entry.intent.store(fifo::NO_TICKET, Ordering::Release);
        n
    })
}

impl Writer {
    fn replace_owner(&self, from: u64, to: u64) -> bool {
        // SYNC(entry)
        self.owner.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    pub fn release(&self) {
        self.intent.store(fifo::NO_TICKET, Ordering::Release);
        // SYNC(entry)
        self.owner.store(FREE, Ordering::Release);
    }

    pub fn may_hold(&self, ticket: u64, is_alive: impl Fn(u64) -> bool) -> bool {
        // SYNC(owner). The intent first: a writer that is slow to register has not claimed anything yet.
        let named = fifo::names(&self.intent, ticket);
        let owner = self.owner.load(Ordering::Acquire);
        named && owner != FREE && is_alive(owner)
    }
}
