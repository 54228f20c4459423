//! The writer table: which process owns an entry, and whether it may hold a ticket. Used by `link.rs`
//! (writers) and `rx.rs` (the reader); checked by `loom.rs`.
//!
//! An entry belongs to a process from [`claim_or_grow`] until it is released, or its owner is dead and
//! another claims it: so a dead process's last intent stays for the reader to see.
//!
//! The table grows with the peers. The segment has room for its limit, whose pages take no
//! memory before they are used, and the reader looks at the used entries only. No entry is written before a
//! writer claims it: a page of zeros is a page of free entries.
//!
//! | Label | Release side | Acquire side | What it carries |
//! |---|---|---|---|
//! | SYNC(entry) | [`Writer::release`] | [`claim_or_grow`] | the last intent before the next owner's |
//! | SYNC(used) | [`claim_or_grow`] | the reader's scan | the number of entries, before the first claim |
//! | SYNC(owner) | [`fifo::claim`] | [`Writer::holder`] | the owner's key, stored before its first intent |

use super::fifo;
use ucs::sync::{AtomicU32, AtomicU64, Ordering};

const FREE: u64 = 0;

/// Entries that a table has before those of dead processes are used again.
pub const REUSE_FROM: u32 = 512;

#[repr(C, align(64))]
pub struct Writer {
    /// Key of the owning process, or [`FREE`].
    pub owner: AtomicU64,
    /// The ticket it may hold unpublished.
    pub intent: AtomicU64,
}

/// Claims an entry for the process `me`: a free one of those in use, or one of a dead process, or else one
/// more, up to `limit`. Those of dead processes are looked for when the number is to be doubled, not at each
/// claim. Returns its number.
pub fn claim_or_grow<'a, I: Iterator<Item = &'a Writer> + Clone>(
    used: &AtomicU32,
    limit: u32,
    entries: impl Fn(u32) -> I,
    me: u64,
    is_alive: impl Fn(u64) -> bool,
) -> Option<u32> {
    loop {
        let count = used.load(Ordering::Acquire).min(limit);
        let looks_for_dead = count == limit || count >= REUSE_FROM && count.is_power_of_two();
        let claimed = claim_free(entries(count), me).or_else(|| {
            let dead = looks_for_dead.then(|| claim_dead(entries(count), me, &is_alive));
            dead.flatten()
        });
        if claimed.is_some() || count == limit {
            return claimed;
        }
        // SYNC(used). If another writer raises it first, there is one more entry all the same.
        let _ = used.compare_exchange(count, count + 1, Ordering::AcqRel, Ordering::Relaxed);
    }
}

fn claim_free<'a>(entries: impl Iterator<Item = &'a Writer>, me: u64) -> Option<u32> {
    let is_free = |entry: &Writer| entry.owner.load(Ordering::Relaxed) == FREE;
    let mut numbered = (0..).zip(entries);
    numbered.find(|(_, entry)| is_free(entry) && entry.replace_owner(FREE, me)).map(begin_ownership)
}

fn claim_dead<'a>(
    entries: impl Iterator<Item = &'a Writer>,
    me: u64,
    is_alive: impl Fn(u64) -> bool,
) -> Option<u32> {
    let mut numbered = (0..).zip(entries);
    let claimed = numbered.find(|(_, entry)| {
        let owner = entry.owner.load(Ordering::Acquire);
        owner != FREE && !is_alive(owner) && entry.replace_owner(owner, me)
    });
    claimed.map(begin_ownership)
}

fn begin_ownership((n, entry): (u32, &Writer)) -> u32 {
    // A dead owner may have left an intent; a page of zeros has one too.
    entry.intent.store(fifo::NO_TICKET, Ordering::Release);
    n
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

    /// The process that may hold a ticket by this entry, dead or alive.
    pub fn holder(&self, ticket: u64) -> Option<u64> {
        // SYNC(owner). The intent first: a writer that is slow to register has not claimed anything yet.
        let named = fifo::names(&self.intent, ticket);
        let owner = self.owner.load(Ordering::Acquire);
        (named && owner != FREE).then_some(owner)
    }

    #[cfg(loom)]
    pub fn may_hold(&self, ticket: u64, is_alive: impl Fn(u64) -> bool) -> bool {
        self.holder(ticket).is_some_and(is_alive)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn the_table_grows_to_its_limit_and_reuses_what_the_dead_had() {
        const LIMIT: u32 = 1200;
        let entry = |_| Writer { owner: AtomicU64::new(FREE), intent: AtomicU64::new(0) };
        let (table, used): (Vec<Writer>, _) = ((0..LIMIT).map(entry).collect(), AtomicU32::new(0));
        let checks = Cell::new(0);
        let claim = |me: u64, dead: u64| {
            let is_alive = |owner| {
                checks.set(checks.get() + 1);
                owner != dead
            };
            claim_or_grow(&used, LIMIT, |count| table[..count as usize].iter(), me, is_alive)
        };
        assert_eq!((0..513).map(|n| claim(1 + n, 0)).collect::<Option<Vec<_>>>(), Some((0..513).collect()));
        assert_eq!((used.load(Ordering::Relaxed), checks.get()), (513, 512), "looked once for dead ones");
        assert_eq!(claim(600, 3), Some(513), "a dead one's entry is not looked for at each claim");
        table[7].release();
        assert_eq!(claim(601, 0), Some(7), "a free one is");
        assert!((0..LIMIT - 514).all(|n| claim(700 + u64::from(n), 0).is_some()));
        assert_eq!((used.load(Ordering::Relaxed), claim(5000, 0)), (LIMIT, None));
        assert_eq!(claim(5000, 3), Some(2), "the limit is reached: the dead one's");
        used.store(u32::MAX, Ordering::Relaxed);
        assert_eq!(claim(5001, 5000), Some(2), "a number that a peer has written");
    }
}
