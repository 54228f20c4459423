//! Memory regions: a table from keys to range, access and domain. Peers read a copy of it over shared memory.
//! The owner checks its own, which nobody else can write: what a peer writes into the shared copy gives no
//! right to memory of the owner.

#![allow(unsafe_code)]

use super::mr_entry::MrEntry;
use crate::api::{Access, Error};
use std::any::Any;
use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use ucs::mem::{Fill, FixedMap, MapOpts, Mapping, MemError, Pages, SharedMem};

/// Name of the memory regions in an error, with the key of their limit.
const OUT_OF_MRS: &str = "memory regions of the software EFA device (SOFTEFA_MAX_MR)";

pub(super) use super::mr_entry::Region;

/// Memory that stays mapped while this lives.
#[derive(Clone)]
#[allow(dead_code, reason = "held for its Drop")]
pub enum Memory {
    Private(Arc<Mapping>),
    Shared(Arc<SharedMem>),
    /// At an address of the program's choice.
    Fixed(Arc<FixedMap>),
    /// Such an address, where a memory file is mapped.
    FixedFile(Arc<(FixedMap, SharedMem)>),
}

impl Memory {
    pub(super) fn as_ptr(&self) -> *mut u8 {
        match self {
            Memory::Private(m) => m.as_ptr(),
            Memory::Shared(m) => m.as_ptr(),
            Memory::Fixed(m) => m.as_ptr(),
            Memory::FixedFile(m) => m.0.as_ptr(),
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Memory::Private(m) => m.len(),
            Memory::Shared(m) => m.len(),
            Memory::Fixed(m) => m.len(),
            Memory::FixedFile(m) => m.0.len(),
        }
    }

    pub(super) fn as_any(&self) -> Arc<dyn Any + Send + Sync> {
        match self {
            Memory::Private(m) => m.clone(),
            Memory::Shared(m) => m.clone(),
            Memory::Fixed(m) => m.clone(),
            Memory::FixedFile(m) => m.clone(),
        }
    }
}

/// How other processes can reach memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Backing {
    /// They can map it: a memory file.
    File,
    /// By system call only, or there is none.
    Private,
}

/// View of a key table: one's own, or a peer's.
pub struct MrTableView {
    first: NonNull<MrEntry>,
    count: usize,
    _memory: Memory,
}

// SAFETY: the entries consist of atomics and lie in memory that the view keeps.
unsafe impl Send for MrTableView {}
// SAFETY: as above.
unsafe impl Sync for MrTableView {}

/// Bits of a key that select the entry; the others are its generation, never 0.
const INDEX_BITS: u32 = 16;
const LAST_GENERATION: u32 = 0xff;
/// An entry freed is not reused before this many others were freed.
const RECYCLE_AFTER: usize = 64;

impl MrTableView {
    /// Views the entries from `offset` bytes into `keep`. Panics if they do not fit, or are not aligned.
    pub(super) fn new(keep: Memory, offset: usize, count: usize) -> MrTableView {
        assert!(offset.is_multiple_of(64) && count <= 1 << INDEX_BITS);
        let end = count.checked_mul(64).and_then(|n| n.checked_add(offset));
        assert!(end.is_some_and(|end| end <= keep.len()), "the table does not fit its memory");
        // SAFETY: `offset` is inside the mapping, checked above.
        let first = unsafe { keep.as_ptr().add(offset) }.cast::<MrEntry>();
        MrTableView { first: NonNull::new(first).expect("a mapping is not at null"), count, _memory: keep }
    }

    #[inline]
    fn entry(&self, index: usize) -> Option<&MrEntry> {
        if index >= self.count {
            return None;
        }
        // SAFETY: `index < count` and `count` entries lie inside the mapping (checked in `new`).
        let at = unsafe { self.first.as_ptr().add(index) };
        // SAFETY: mapped while `_memory` lives, aligned, every bit pattern is an entry of atomics.
        Some(unsafe { &*at })
    }

    /// Region of `key`.
    // HOT
    #[inline]
    pub(super) fn find(&self, key: u32) -> Option<Region> {
        self.entry(key as usize & ((1 << INDEX_BITS) - 1))?.get(key)
    }

    /// Unique id of the region that `key` now names: keys are reused.
    // HOT
    #[inline]
    pub(super) fn unique_key(&self, key: u32) -> u64 {
        let wraps = self.entry(key as usize & ((1 << INDEX_BITS) - 1)).map_or(0, MrEntry::key_wraps);
        u64::from(wraps) << 32 | u64::from(key)
    }
}

struct FreeEntries {
    uses: Vec<u32>,
    entries: VecDeque<u32>,
}

/// Key table of one device, the only writer of its entries. Threads take turns to write.
pub struct MrTable {
    /// The entries that the owner checks.
    own: MrTableView,
    /// The copy that peers read, in shared memory. The owner never reads it.
    shown: Option<MrTableView>,
    limit: usize,
    free: Mutex<FreeEntries>,
}

impl MrTable {
    /// A table of `limit` entries, and a copy of it for peers.
    pub(super) fn new(limit: usize, shown: Option<MrTableView>) -> Result<MrTable, MemError> {
        let opts = MapOpts { pages: Pages::Small, fill: Fill::Lazy };
        let own = Memory::Private(Arc::new(Mapping::new(MrTable::bytes(limit), opts)?));
        let own = MrTableView::new(own, 0, limit);
        let free = Mutex::new(FreeEntries { uses: Vec::new(), entries: VecDeque::new() });
        Ok(MrTable { own, shown, limit, free })
    }

    fn lock(&self) -> MutexGuard<'_, FreeEntries> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) const fn bytes(count: usize) -> usize {
        count * size_of::<MrEntry>()
    }

    pub(super) fn live(&self) -> usize {
        let free = self.lock();
        free.uses.len() - free.entries.len()
    }

    /// Adds a region; returns a non-zero 24-bit key that was not used recently.
    pub(super) fn insert(&self, region: &Region) -> Result<u32, Error> {
        let free = &mut *self.lock();
        let fresh = free.uses.len() < self.limit;
        let index = match free.entries.len() {
            n if n > RECYCLE_AFTER || (n > 0 && !fresh) => free.entries.pop_front().unwrap_or(0),
            _ if fresh => {
                free.uses.push(0);
                free.uses.len() as u32 - 1
            }
            _ => return Err(Error::Exhausted(OUT_OF_MRS)),
        };
        let uses = &mut free.uses[index as usize];
        let key = (1 + *uses % LAST_GENERATION) << INDEX_BITS | index;
        let wraps = *uses / LAST_GENERATION;
        *uses = uses.wrapping_add(1);
        let entries = [Some(&self.own), self.shown.as_ref()].into_iter().flatten();
        for entry in entries.filter_map(|view| view.entry(index as usize)) {
            entry.set_key_wraps(wraps);
            entry.set(key, region);
        }
        Ok(key)
    }

    /// Removes the region of `key`, and returns it.
    pub(super) fn remove(&self, key: u32) -> Option<Region> {
        let index = key & ((1 << INDEX_BITS) - 1);
        let entry = self.own.entry(index as usize)?;
        let mut free = self.lock();
        let region = entry.get(key)?;
        if entry.clear(key) {
            if let Some(shown) = self.shown.as_ref().and_then(|view| view.entry(index as usize)) {
                shown.withdraw();
            }
            free.entries.push_back(index);
        }
        Some(region)
    }

    /// Whether domain `pd` may access `len` bytes at `addr` with `lkey`.
    // HOT
    #[inline]
    pub(super) fn allows(&self, lkey: u32, pd: u32, addr: u64, len: u64, need: Access) -> bool {
        self.backing(lkey, pd, addr, len, need).is_some()
    }

    /// As [`MrTable::allows`], and how the memory is reached.
    // HOT
    #[inline]
    pub(super) fn backing(&self, lkey: u32, pd: u32, addr: u64, len: u64, need: Access) -> Option<Backing> {
        if len == 0 {
            return Some(Backing::Private);
        }
        let region = self.own.find(lkey).filter(|r| r.allows(pd, addr, len, need))?;
        Some(if region.file.is_some() { Backing::File } else { Backing::Private })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(count: usize) -> MrTable {
        MrTable::new(count, None).unwrap()
    }

    /// A table, and the copy that peers can write.
    fn shown_table(count: usize) -> (MrTable, MrTableView) {
        let map = Arc::new(Mapping::new(MrTable::bytes(count), MapOpts::default()).unwrap());
        let view = || MrTableView::new(Memory::Private(map.clone()), 0, count);
        (MrTable::new(count, Some(view())).unwrap(), view())
    }

    fn region(addr: u64, len: u64) -> Region {
        Region { addr, len, access: Access::LOCAL_READ | Access::REMOTE_READ, pd: 3, file: None }
    }

    #[test]
    fn a_removed_key_is_stale() {
        let t = table(4);
        let mut seen = std::collections::HashSet::new();
        for i in 0..4 * 250 {
            let key = t.insert(&region(i, 1)).unwrap();
            assert!(key != 0 && key < 1 << 24 && seen.insert(key), "key {key:#x} came back early");
            assert_eq!(t.own.find(key), Some(region(i, 1)));
            assert_eq!(t.live(), 1);
            t.remove(key);
            assert_eq!(t.own.find(key), None);
            t.remove(key);
            assert_eq!(t.live(), 0);
        }
        let keys: Vec<u32> = (0..4).map(|i| t.insert(&region(i, 1)).unwrap()).collect();
        assert_eq!(t.insert(&region(9, 1)), Err(Error::Exhausted(OUT_OF_MRS)));
        t.remove(keys[2]);
        assert!(t.insert(&region(9, 1)).is_ok());
        assert_eq!(t.own.find(0), None);
        assert_eq!(t.own.find(u32::MAX), None);
    }

    #[test]
    fn what_a_peer_writes_gives_no_right_to_the_owners_memory() {
        let (t, peers) = shown_table(4);
        let kept = t.insert(&region(1, 1)).unwrap();
        let key = t.insert(&region(1000, 100)).unwrap();
        assert_eq!(peers.find(key), Some(region(1000, 100)));
        let entry = peers.entry((key & 0xffff) as usize).unwrap();
        // More rights than it has, then the row of a key that was removed.
        let more = Region { access: Access::ALL, ..region(0, u64::MAX) };
        entry.set(key, &more);
        assert!(t.allows(key, 3, 1000, 100, Access::REMOTE_READ));
        assert!(!t.allows(key, 3, 1000, 100, Access::REMOTE_WRITE));
        assert!(!t.allows(key, 3, 999, 100, Access::REMOTE_READ));
        t.remove(key);
        assert_eq!((peers.find(key), t.live()), (None, 1));
        entry.set(key, &more);
        assert!(!t.allows(key, 3, 1000, 100, Access::REMOTE_READ));
        // Nor does it take one away.
        peers.entry((kept & 0xffff) as usize).unwrap().withdraw();
        assert!(t.allows(kept, 3, 1, 1, Access::REMOTE_READ));
        t.remove(kept);
        assert_eq!(t.live(), 0);
    }

    #[test]
    fn bounds_domain_and_access_are_checked() {
        let t = table(1);
        let key = t.insert(&region(1000, 100)).unwrap();
        let ok = |pd, addr, len, need| t.allows(key, pd, addr, len, need);
        assert!(ok(3, 1000, 100, Access::REMOTE_READ));
        assert!(ok(3, 1099, 1, Access::LOCAL_READ));
        assert!(!ok(2, 1000, 100, Access::REMOTE_READ));
        assert!(!ok(3, 1000, 100, Access::REMOTE_WRITE));
        assert!(!ok(3, 999, 2, Access::LOCAL_READ));
        assert!(!ok(3, 1001, 100, Access::LOCAL_READ));
        assert!(!ok(3, 1100, 1, Access::LOCAL_READ));
        assert!(!ok(3, u64::MAX, 2, Access::LOCAL_READ));
        assert!(!ok(3, 1000, u64::MAX, Access::LOCAL_READ));
        assert!(t.allows(0, 3, 0, 0, Access::ALL), "nothing needs no key");
    }
}
