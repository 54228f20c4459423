//! Address handles: reference-counted numbers for (protection domain, GID). Looked up once per post.

use crate::api::Error;
use crate::efa::dev::Gid;
use hashbrown::HashTable;
use rustc_hash::FxBuildHasher;
use std::hash::BuildHasher;
use ucs::coll::slots::{SlotId, Slots};

/// An address handle: one number per (protection domain, GID) of a device.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Ah(pub(super) SlotId);

impl Ah {
    /// The number, in place of the hardware's AHN.
    pub fn number(self) -> u32 {
        self.0.raw()
    }
}

/// Packed: one per known GID.
#[derive(Clone, Copy)]
#[repr(C, packed(4))]
struct AhEntry {
    iid: u64,
    pd: u32,
    refs: u32,
}

pub(super) struct AhTable {
    entries: Slots<AhEntry>,
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

impl AhTable {
    pub(super) fn new(limit: usize) -> AhTable {
        AhTable { entries: Slots::with_limit(limit), by_gid: HashTable::new() }
    }

    pub(super) fn get(&mut self, pd: u32, gid: Gid) -> Result<(Ah, AhChange), Error> {
        if Gid::link_local(gid.iid()) != gid || gid.iid() == 0 {
            return Err(Error::Unreachable);
        }
        let is_it = |id: &SlotId| {
            self.entries.get(*id).is_some_and(|&AhEntry { iid, pd: of, .. }| (of, iid) == (pd, gid.iid()))
        };
        if let Some(&id) = self.by_gid.find(hash(pd, gid.iid()), is_it) {
            self.entries.get_mut(id).expect("index and entries agree").refs += 1;
            return Ok((Ah(id), AhChange::RefCount));
        }
        let entry = AhEntry { pd, iid: gid.iid(), refs: 1 };
        let id = self.entries.insert(entry).map_err(|_| Error::Exhausted("address handles"))?;
        let entries = &self.entries;
        self.by_gid.insert_unique(hash(pd, gid.iid()), id, |&id| {
            let &AhEntry { pd, iid, .. } = entries.get(id).expect("index and entries agree");
            hash(pd, iid)
        });
        Ok((Ah(id), AhChange::GidSet))
    }

    /// Drops a reference; returns the interface id if it was the last.
    pub(super) fn put(&mut self, pd: u32, ah: Ah) -> Option<u64> {
        let entry = self.entries.get_mut(ah.0).filter(|entry| entry.pd == pd)?;
        entry.refs -= 1;
        if entry.refs > 0 {
            return None;
        }
        let entry = self.entries.remove(ah.0)?;
        if let Ok(bucket) = self.by_gid.find_entry(hash(entry.pd, entry.iid), |&id| id == ah.0) {
            bucket.remove();
        }
        Some(entry.iid)
    }

    /// Interface id of a handle of domain `pd`. // HOT
    #[inline]
    pub(super) fn iid(&self, pd: u32, ah: Ah) -> Option<u64> {
        self.entries.get(ah.0).filter(|entry| entry.pd == pd).map(|entry| entry.iid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_number_per_domain_and_gid() {
        let mut t = AhTable::new(2);
        let (gid, other) = (Gid::link_local(7), Gid::link_local(8));
        let (a, new) = t.get(1, gid).unwrap();
        assert_eq!(new, AhChange::GidSet);
        assert_eq!(t.get(1, gid).unwrap(), (a, AhChange::RefCount));
        let (b, _) = t.get(2, gid).unwrap();
        assert_ne!(a, b);
        assert_eq!(t.get(1, other), Err(Error::Exhausted("address handles")));
        assert_eq!((t.iid(1, a), t.iid(2, a)), (Some(7), None));
        assert_eq!(t.put(2, a), None);
        assert_eq!(t.put(1, a), None);
        assert_eq!(t.put(1, a), Some(7));
        assert_eq!((t.iid(1, a), t.put(1, a)), (None, None));
        assert!(t.get(1, other).is_ok());
        assert_eq!(t.get(1, Gid([1; 16])), Err(Error::Unreachable));
        assert_eq!(t.get(1, Gid::link_local(0)), Err(Error::Unreachable));
    }
}
