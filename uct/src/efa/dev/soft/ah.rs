//! Address handles: reference-counted numbers for (protection domain, GID). Looked up once per post.

use crate::api::Error;
use crate::efa::dev::Gid;
use hashbrown::HashTable;
use rustc_hash::FxBuildHasher;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use ucs::coll::slots::{SlotId, Slots};
use zerocopy::FromZeros;

/// Name of the address handles in an error, with the key of their limit.
pub(in crate::efa::dev::soft) const OUT_OF_AHS: &str =
    "address handles of the software EFA device (SOFTEFA_MAX_AH)";

/// An address handle: one number per (protection domain, GID) of a device.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Ah(pub(super) SlotId);

impl Ah {
    /// The number, in place of the hardware's AHN.
    pub fn number(self) -> u32 {
        self.0.raw()
    }
}

/// An address handle as posts read it. Zero: none.
#[derive(FromZeros)]
#[repr(C)]
struct AhEntry {
    iid: AtomicU64,
    pd: AtomicU32,
    number: AtomicU32,
}

/// The handles of a device. Any thread reads them without a lock.
pub(super) struct AhTable {
    entries: Box<[AhEntry]>,
    /// How often the last reference to a handle was dropped.
    released: AtomicU64,
    registry: Mutex<Registry>,
}

/// Reference counts, and which handle a GID has.
pub(super) struct Registry {
    refs: Slots<u32>,
    by_gid: HashTable<SlotId>,
}

fn hash(pd: u32, iid: u64) -> u64 {
    FxBuildHasher.hash_one((pd, iid))
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum AhChange {
    GidSet,
    RefCount,
}

impl AhEntry {
    fn owner(&self) -> (u32, u64) {
        (self.pd.load(Ordering::Relaxed), self.iid.load(Ordering::Relaxed))
    }

    fn set(&self, number: u32, pd: u32, iid: u64) {
        self.iid.store(iid, Ordering::Relaxed);
        self.pd.store(pd, Ordering::Relaxed);
        self.number.store(number, Ordering::Relaxed);
    }
}

impl AhTable {
    pub(super) fn new(limit: usize) -> AhTable {
        let entries = <[AhEntry]>::new_box_zeroed_with_elems(limit).expect("memory for address handles");
        let registry = Registry { refs: Slots::with_limit(limit), by_gid: HashTable::new() };
        AhTable { entries, released: AtomicU64::new(0), registry: Mutex::new(registry) }
    }

    /// Locks the table for changes.
    pub(super) fn lock(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn entry(&self, id: SlotId) -> &AhEntry {
        &self.entries[Slots::<u32>::index_of(id)]
    }

    pub(super) fn get(&self, registry: &mut Registry, pd: u32, gid: Gid) -> Result<(Ah, AhChange), Error> {
        if Gid::link_local(gid.iid()) != gid || gid.iid() == 0 {
            return Err(Error::Unreachable);
        }
        let iid = gid.iid();
        let is_it = |&id: &SlotId| self.entry(id).owner() == (pd, iid);
        if let Some(&id) = registry.by_gid.find(hash(pd, iid), is_it) {
            *registry.refs.get_mut(id).expect("index and entries agree") += 1;
            return Ok((Ah(id), AhChange::RefCount));
        }
        let id = registry.refs.insert(1).map_err(|_| Error::Exhausted(OUT_OF_AHS))?;
        self.entry(id).set(id.raw(), pd, iid);
        let hash_of = |&id: &SlotId| {
            let (pd, iid) = self.entry(id).owner();
            hash(pd, iid)
        };
        registry.by_gid.insert_unique(hash(pd, iid), id, hash_of);
        Ok((Ah(id), AhChange::GidSet))
    }

    /// Drops a reference; returns the interface id if it was the last.
    pub(super) fn put(&self, registry: &mut Registry, pd: u32, ah: Ah) -> Option<u64> {
        let iid = self.iid(pd, ah)?;
        let refs = registry.refs.get_mut(ah.0)?;
        *refs -= 1;
        if *refs > 0 {
            return None;
        }
        registry.refs.remove(ah.0)?;
        if let Ok(bucket) = registry.by_gid.find_entry(hash(pd, iid), |&id| id == ah.0) {
            bucket.remove();
        }
        self.entry(ah.0).set(0, 0, 0);
        self.released.fetch_add(1, Ordering::Relaxed);
        Some(iid)
    }

    /// How often a handle has gone: whoever keeps something by handle compares this with the last time.
    pub(super) fn released(&self) -> u64 {
        self.released.load(Ordering::Relaxed)
    }

    /// Whether domain `pd` has a handle of this interface id.
    pub(super) fn has(&self, registry: &Registry, pd: u32, iid: u64) -> bool {
        registry.by_gid.find(hash(pd, iid), |&id| self.entry(id).owner() == (pd, iid)).is_some()
    }

    /// Interface id of a handle of domain `pd`.
    // HOT
    #[inline]
    pub(super) fn iid(&self, pd: u32, ah: Ah) -> Option<u64> {
        let entry = self.entries.get(Slots::<u32>::index_of(ah.0))?;
        let there = entry.number.load(Ordering::Relaxed) == ah.number();
        (there && entry.pd.load(Ordering::Relaxed) == pd).then(|| entry.iid.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_number_per_domain_and_gid() {
        let t = AhTable::new(2);
        let get = |pd, gid| t.get(&mut t.lock(), pd, gid);
        let put = |pd, ah| t.put(&mut t.lock(), pd, ah);
        let (gid, other) = (Gid::link_local(7), Gid::link_local(8));
        let (a, new) = get(1, gid).unwrap();
        assert_eq!(new, AhChange::GidSet);
        assert_eq!(get(1, gid).unwrap(), (a, AhChange::RefCount));
        let (b, _) = get(2, gid).unwrap();
        assert_ne!(a, b);
        assert_eq!(get(1, other), Err(Error::Exhausted(OUT_OF_AHS)));
        assert_eq!((t.iid(1, a), t.iid(2, a)), (Some(7), None));
        assert_eq!(put(2, a), None);
        assert_eq!(put(1, a), None);
        assert_eq!(put(1, a), Some(7));
        assert_eq!((t.iid(1, a), put(1, a)), (None, None));
        assert!(get(1, other).is_ok());
        assert_eq!(get(1, Gid([1; 16])), Err(Error::Unreachable));
        assert_eq!(get(1, Gid::link_local(0)), Err(Error::Unreachable));
    }
}
