//! The allocations of a memory domain by address. Any thread looks one up without a lock; changes are rare.

use super::fd_server::{Name, lock};
use crate::api::Access;
use std::sync::Mutex;
use std::sync::OnceLock;
use ucs::sync::{AtomicU32, AtomicU64, AtomicUsize, Ordering, fence, hint};

/// An allocation that peers can map.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Allocated {
    pub len: usize,
    pub access: Access,
    /// `None` if peers have no rights.
    pub name: Option<Name>,
}

#[derive(Default)]
struct Entry {
    start: AtomicUsize,
    len: AtomicUsize,
    access: AtomicU32,
    name: AtomicU64,
}

/// Entries of the first table; each one after it has twice as many.
const FIRST_LEN: usize = 64;
const TABLES: usize = 26;

/// Reads that meet a change, after which a reader waits for the writer.
const MAX_RETRIES: u32 = 64;

/// A table sorted by address, which a version protects: odd during a change. A table that is too short is
/// replaced by a longer one and kept, since a reader may be in it.
pub struct Allocations {
    version: AtomicU32,
    /// Entries in use; all are in one table, the shortest that has room.
    count: AtomicUsize,
    tables: [OnceLock<Box<[Entry]>>; TABLES],
    writer: Mutex<()>,
}

impl Default for Allocations {
    fn default() -> Self {
        Allocations {
            version: AtomicU32::new(0),
            count: AtomicUsize::new(0),
            tables: [const { OnceLock::new() }; TABLES],
            writer: Mutex::new(()),
        }
    }
}

impl Entry {
    fn set(&self, start: usize, it: &Allocated) {
        self.start.store(start, Ordering::Relaxed);
        self.len.store(it.len, Ordering::Relaxed);
        self.access.store(it.access.bits(), Ordering::Relaxed);
        self.name.store(it.name.map_or(0, |name| name.0), Ordering::Relaxed);
    }

    fn get(&self) -> (usize, Allocated) {
        let it = Allocated {
            len: self.len.load(Ordering::Relaxed),
            access: Access::from_bits_truncate(self.access.load(Ordering::Relaxed)),
            name: Some(self.name.load(Ordering::Relaxed)).filter(|&name| name != 0).map(Name),
        };
        (self.start.load(Ordering::Relaxed), it)
    }
}

/// The table that holds `count` entries.
fn table_of(count: usize) -> usize {
    count.div_ceil(FIRST_LEN).next_power_of_two().ilog2() as usize
}

impl Allocations {
    fn table(&self, count: usize) -> Option<&[Entry]> {
        self.tables.get(table_of(count))?.get().map(|table| &**table)
    }

    /// The allocation that contains a whole range.
    #[inline]
    pub fn containing(&self, addr: usize, len: usize) -> Option<Allocated> {
        if self.count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        for _ in 0..MAX_RETRIES {
            if let Ok(found) = self.try_find(addr, len) {
                return found;
            }
            hint::spin_loop();
        }
        self.find_when_idle(addr, len)
    }

    /// Looks once. `Err`: the table changed meanwhile.
    #[inline]
    fn try_find(&self, addr: usize, len: usize) -> Result<Option<Allocated>, ()> {
        // SYNC(allocations): what is read between two equal even versions belongs together.
        let version = self.version.load(Ordering::Acquire);
        let found = self.find(addr, len);
        fence(Ordering::Acquire);
        if version.is_multiple_of(2) && self.version.load(Ordering::Relaxed) == version {
            Ok(found)
        } else {
            Err(())
        }
    }

    fn find(&self, addr: usize, len: usize) -> Option<Allocated> {
        let count = self.count.load(Ordering::Relaxed);
        let entries = self.table(count)?.get(..count)?;
        let after = entries.partition_point(|entry| entry.start.load(Ordering::Relaxed) <= addr);
        let (start, it) = entries.get(after.checked_sub(1)?)?.get();
        let into = addr.checked_sub(start)?;
        (into < it.len && len <= it.len - into).then_some(it)
    }

    #[cold]
    fn find_when_idle(&self, addr: usize, len: usize) -> Option<Allocated> {
        let _writer = lock(&self.writer);
        self.find(addr, len)
    }

    /// Runs a change, during which readers try again. The writer's lock is held.
    fn change(&self, change: impl FnOnce()) {
        let version = self.version.load(Ordering::Relaxed);
        // SYNC(allocations)
        self.version.store(version.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        change();
        self.version.store(version.wrapping_add(2), Ordering::Release);
    }

    /// Adds the allocation that starts at `start`, which is not in the table.
    pub fn insert(&self, start: usize, it: Allocated) {
        let _writer = lock(&self.writer);
        let count = self.count.load(Ordering::Relaxed);
        let to = table_of(count + 1);
        let len = FIRST_LEN << to;
        let longer = self.tables[to].get_or_init(|| (0..len).map(|_| Entry::default()).collect());
        let old = self.table(count).unwrap_or(&[]);
        let place = old[..count].partition_point(|entry| entry.start.load(Ordering::Relaxed) < start);
        self.change(|| {
            for n in (place..count).rev() {
                let (start, it) = old[n].get();
                longer[n + 1].set(start, &it);
            }
            if !std::ptr::eq(old, &**longer) {
                for n in 0..place {
                    let (start, it) = old[n].get();
                    longer[n].set(start, &it);
                }
            }
            longer[place].set(start, &it);
            self.count.store(count + 1, Ordering::Relaxed);
        });
    }

    /// Removes the allocation that starts at `start`, if there is one.
    pub fn remove(&self, start: usize) {
        let _writer = lock(&self.writer);
        let count = self.count.load(Ordering::Relaxed);
        let Some(old) = self.table(count) else { return };
        let place = old[..count].partition_point(|entry| entry.start.load(Ordering::Relaxed) < start);
        if place == count || old[place].start.load(Ordering::Relaxed) != start {
            return;
        }
        let Some(shorter) = self.table(count - 1) else { return };
        let moves = !std::ptr::eq(old, shorter);
        self.change(|| {
            for n in if moves { 0 } else { place }..count - 1 {
                let (start, it) = old[if n < place { n } else { n + 1 }].get();
                shorter[n].set(start, &it);
            }
            self.count.store(count - 1, Ordering::Relaxed);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    fn allocated(n: usize) -> Allocated {
        Allocated { len: 10 * n, access: Access::REMOTE_READ, name: Some(Name(n as u64)) }
    }

    #[test]
    fn contains_whole_ranges_only() {
        let all = Allocations::default();
        assert_eq!(all.containing(1000, 1), None);
        for n in [3, 1, 2] {
            all.insert(1000 * n, allocated(n));
        }
        assert_eq!(all.containing(2000, 20), Some(allocated(2)));
        assert_eq!(all.containing(3029, 1), Some(allocated(3)));
        for (addr, len) in [(999, 1), (1010, 0), (2000, 21), (2019, 2), (3030, 1), (usize::MAX, 1), (0, 0)] {
            assert_eq!(all.containing(addr, len), None, "{addr}+{len}");
        }
        all.remove(2000);
        all.remove(2000);
        assert_eq!((all.containing(2000, 1), all.containing(1000, 1)), (None, Some(allocated(1))));
    }

    #[test]
    fn grows_and_shrinks_across_tables() {
        let all = Allocations::default();
        let many = 5 * FIRST_LEN;
        // In an order that inserts in the middle too.
        for n in (1..=many).step_by(2).chain((2..=many).step_by(2)) {
            all.insert(100_000 * n, allocated(n));
        }
        let holds = |n: usize| all.containing(100_000 * n + 10 * n - 1, 1) == Some(allocated(n));
        assert!((1..=many).all(holds));
        for n in (1..=many).rev().filter(|n| n % 3 != 0) {
            all.remove(100_000 * n);
        }
        assert!((1..=many).all(|n| holds(n) == (n % 3 == 0)));
        for n in (1..=many).filter(|n| n % 3 == 0) {
            all.remove(100_000 * n);
        }
        assert!(!(1..=many).any(holds));
    }

    #[test]
    fn readers_see_whole_entries_during_changes() {
        let (all, stop) = (Allocations::default(), AtomicBool::new(false));
        all.insert(500_000, allocated(5));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0..20_000 {
                    let n = 1 + round % 9;
                    if n != 5 {
                        all.insert(100_000 * n, allocated(n));
                        all.remove(100_000 * n);
                    }
                }
                stop.store(true, Ordering::Relaxed);
            });
            while !stop.load(Ordering::Relaxed) {
                assert_eq!(all.containing(500_000, 50), Some(allocated(5)), "it is there all the time");
                for n in [1, 4, 6, 9] {
                    assert!(all.containing(100_000 * n, 1).is_none_or(|it| it == allocated(n)));
                }
            }
        });
    }
}
