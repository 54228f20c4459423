//! Writers' lines: whose a line is, and whether its owner may hold a ticket. Taken and left by `peer.rs`, looked at by
//! `rx.rs`; checked exhaustively by `loom.rs`. Knows nothing of segments; who is alive is the caller's to say.
//!
//! A line is its process's from [`take`] until it leaves, or until it is dead and another takes its place. So a dead
//! one's last intent stays for the reader to judge, and its line is not lost.
//!
//! | Label | Release side | Acquire side | What it carries |
//! |---|---|---|---|
//! | SYNC(entry) | [`Writer::release`] | [`take`] | the intents: the last of who leaves comes before the first of who follows |
//! | SYNC(owner) | [`fifo::claim`], by its intent | [`Writer::may_hold`] | the key: who names a ticket has put it there before |

use super::fifo;
use ucs::sync::{AtomicU64, Ordering};

/// The key of nobody.
const FREE: u64 = 0;

/// A writer's line.
#[repr(C, align(64))]
pub struct Writer {
    /// Key of its process, or 0 when free.
    pub owner: AtomicU64,
    /// The ticket it may hold unpublished.
    pub intent: AtomicU64,
}

/// Takes the first line that is free, or else the first whose owner is dead, for the process `me`; answers its number.
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
        // A dead owner may have left one.
        entry.intent.store(fifo::NO_TICKET, Ordering::Release);
        n
    })
}

impl Writer {
    fn replace_owner(&self, from: u64, to: u64) -> bool {
        // SYNC(entry)
        self.owner.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Its owner needs it no more, and holds nothing.
    pub fn release(&self) {
        self.intent.store(fifo::NO_TICKET, Ordering::Release);
        // SYNC(entry)
        self.owner.store(FREE, Ordering::Release);
    }

    /// Whether its owner lives and may hold `ticket`.
    pub fn may_hold(&self, ticket: u64, is_alive: impl Fn(u64) -> bool) -> bool {
        // SYNC(owner). Named first: a writer that is slow to register has not claimed anything yet.
        let named = fifo::names(&self.intent, ticket);
        let owner = self.owner.load(Ordering::Acquire);
        named && owner != FREE && is_alive(owner)
    }
}
