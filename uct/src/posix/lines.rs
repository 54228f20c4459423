//! Writers' lines: whose a line is, and whether its owner may hold a ticket. Taken and left by `peer.rs`, looked at by
//! `rx.rs`; checked exhaustively by `loom.rs`. Knows nothing of segments; who is alive is the caller's to say.
//!
//! A line is its process's from [`take`] until it leaves, or until it is dead and another takes its place. So a dead
//! one's last intent stays for the reader to judge, and its line is not lost.
//!
//! | Label | Release side | Acquire side | What it carries |
//! |---|---|---|---|
//! | SYNC(line) | [`Writer::leave`] | [`take`] | the intents: the last of who leaves comes before the first of who follows |
//! | SYNC(owner) | [`fifo::claim`], by its intent | [`Writer::may_hold`] | the key: who names a ticket has put it there before |

use super::fifo;
use ucs::sync::{AtomicU64, Ordering};

/// The key of nobody.
const FREE: u64 = 0;

/// A writer's line.
#[repr(C, align(64))]
pub struct Writer {
    /// Key of its process, or 0 when free.
    pub who: AtomicU64,
    /// The ticket it may hold unpublished.
    pub intent: AtomicU64,
}

/// Takes the first line that is free, or else the first whose owner is dead, for the process `me`; answers its number.
pub fn take<'a>(
    lines: impl Iterator<Item = &'a Writer> + Clone,
    me: u64,
    is_alive: impl Fn(u64) -> bool,
) -> Option<u32> {
    let mut numbered = (0..).zip(lines);
    let free = numbered.clone().find(|(_, line)| line.change_owner(FREE, me));
    let taken = free.or_else(|| {
        numbered.find(|(_, line)| {
            let who = line.who.load(Ordering::Acquire);
            who != FREE && !is_alive(who) && line.change_owner(who, me)
        })
    });
    taken.map(|(n, line)| {
        // A dead owner may have left one.
        line.intent.store(fifo::NO_TICKET, Ordering::Release);
        n
    })
}

impl Writer {
    fn change_owner(&self, from: u64, to: u64) -> bool {
        // SYNC(line)
        self.who.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Its owner needs it no more, and holds nothing.
    pub fn leave(&self) {
        self.intent.store(fifo::NO_TICKET, Ordering::Release);
        // SYNC(line)
        self.who.store(FREE, Ordering::Release);
    }

    /// Whether its owner lives and may hold `ticket`.
    pub fn may_hold(&self, ticket: u64, is_alive: impl Fn(u64) -> bool) -> bool {
        // SYNC(owner). Named first: a writer that is slow to register has not claimed anything yet.
        let named = fifo::names(&self.intent, ticket);
        let who = self.who.load(Ordering::Acquire);
        named && who != FREE && is_alive(who)
    }
}
