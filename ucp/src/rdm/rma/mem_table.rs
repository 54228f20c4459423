//! The table of memory that peers may access: one for all workers of a context, whichever threads they are
//! in. Workers follow it by its changes, so that serving a request takes no lock.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;
use ucs::coll::slots::{SlotId, Slots};
use ucs::sync::{Rcu, RcuReader};

use crate::rdm::ids::{DomainId, KeySpace};
use crate::rdm::rma::mem::{MemKey, Region};
use crate::rdm::rma::published::Published;
use crate::rdm::rma::region_counts::RegionCounts;

/// Changes that are kept beyond the number of regions. A worker that is further behind reads the whole table.
const KEPT: usize = 256;

/// Memory offered to peers by all workers of a context, by key. A key is above 32 bits and of no other table.
#[derive(Debug)]
pub struct MemTable {
    /// High half of every key.
    nonce: u32,
    /// Number of changes so far.
    version: AtomicU64,
    rcu: Rcu,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    slots: Slots<Entry>,
    devices: HashMap<(DomainId, u64), SlotId, FxBuildHasher>,
    /// The last changes, up to the present version.
    log: VecDeque<Change>,
    /// The table for processes of this host, once a worker has asked for it.
    published: Option<Published>,
}

#[derive(Debug)]
struct Entry {
    region: Region,
    device_keys: Vec<(DomainId, u64)>,
    counts: Option<Arc<RegionCounts>>,
}

/// One change of the table.
#[derive(Clone, Debug)]
pub(super) enum Change {
    Added(SlotId, Region),
    /// The device of this domain knows the region by this key.
    DeviceKey(DomainId, u64, SlotId),
    /// Operations of peers on the region are counted there.
    Counted(SlotId, Arc<RegionCounts>),
    Removed(SlotId),
}

/// Changes that bring a worker up to date.
pub(super) enum Update {
    Changes(Vec<Change>),
    /// The whole table, as additions: the worker has missed changes that are forgotten.
    Whole(Vec<Change>),
}

impl MemTable {
    /// Makes an empty table. Tables that a peer can meet in turn differ in their nonce.
    pub fn new(nonce: u32) -> MemTable {
        MemTable {
            nonce: nonce | 1 << 31,
            version: AtomicU64::new(0),
            rcu: Rcu::default(),
            state: Mutex::default(),
        }
    }

    /// Offers a region to peers. `None`: too many regions.
    pub fn add(&self, region: Region) -> Option<MemKey> {
        let mut state = self.state();
        let id = state.slots.insert(Entry { region, device_keys: Vec::new(), counts: None }).ok()?;
        self.note(&mut state, Change::Added(id, region));
        let key = self.key(id);
        if let Some(published) = &mut state.published {
            published.add(key.0, &region);
        }
        Some(key)
    }

    /// Publishes the table for processes of this host, which find it at this address of the process as long
    /// as it lives. Memory of which operations are counted is not there.
    pub fn publish(&self) -> u64 {
        let mut state = self.state();
        let State { slots, published, .. } = &mut *state;
        let published = published.get_or_insert_with(|| {
            let mut made = Published::new();
            for (id, entry) in slots.iter().filter(|(_, entry)| entry.counts.is_none()) {
                entry.names(self.key(id)).for_each(|name| made.add(name, &entry.region));
            }
            made
        });
        published.address()
    }

    /// Lets peers name the region of `key` by the key of a device too, in packets on wires of this domain.
    /// False if there is no such region, or another one has that key.
    pub fn add_device_key(&self, key: MemKey, domain: DomainId, device_key: u64) -> bool {
        let mut state = self.state();
        let name = (domain, device_key);
        let Some(id) = self.id(key) else { return false };
        if let Some(named) = state.devices.get(&name) {
            return *named == id;
        }
        let State { slots, devices, published, .. } = &mut *state;
        let Some(entry) = slots.get_mut(id) else { return false };
        entry.device_keys.push(name);
        devices.insert(name, id);
        if let (Some(published), Some(name), None) =
            (published, KeySpace::name_of(domain, device_key), &entry.counts)
        {
            published.add(name, &entry.region);
        }
        self.note(&mut state, Change::DeviceKey(domain, device_key, id));
        true
    }

    /// Counts what peers do with the region of `key` by packets, from now on. False: there is none.
    pub fn count(&self, key: MemKey, counts: Arc<RegionCounts>) -> bool {
        let mut state = self.state();
        let Some(id) = self.id(key) else { return false };
        let State { slots, published, .. } = &mut *state;
        let Some(entry) = slots.get_mut(id) else { return false };
        entry.counts = Some(counts.clone());
        if let Some(published) = published {
            entry.names(key).for_each(|name| published.remove(name));
        }
        self.note(&mut state, Change::Counted(id, counts));
        true
    }

    /// Withdraws a region: when this returns, no worker accesses it any more, and none will. Peers'
    /// operations on it end with an error as the workers progress. False if there is no such region.
    ///
    /// Waits for workers that are serving a request at the moment, so it must not be called while the engine
    /// of a worker is in use by the calling thread.
    pub fn remove(&self, key: MemKey) -> bool {
        let Some(id) = self.id(key) else { return false };
        {
            let mut state = self.state();
            let Some(entry) = state.slots.remove(id) else { return false };
            if let Some(published) = &mut state.published {
                entry.names(key).for_each(|name| published.remove(name));
            }
            for name in entry.device_keys {
                state.devices.remove(&name);
            }
            self.note(&mut state, Change::Removed(id));
        }
        self.rcu.synchronize();
        true
    }

    /// True if no memory is offered.
    pub fn is_empty(&self) -> bool {
        self.state().slots.is_empty()
    }

    /// The number of changes so far.
    // HOT
    #[inline(always)]
    pub(super) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// High half of every key.
    pub(super) fn nonce(&self) -> u32 {
        self.nonce
    }

    pub(super) fn reader(&self) -> RcuReader {
        self.rcu.reader()
    }

    /// Returns the changes since version `seen`, and the present version.
    pub(super) fn since(&self, seen: u64) -> (Update, u64) {
        let state = self.state();
        let version = self.version();
        let behind = usize::try_from(version - seen).unwrap_or(usize::MAX);
        let update = match state.log.len().checked_sub(behind) {
            Some(known) => Update::Changes(state.log.iter().skip(known).cloned().collect()),
            None => Update::Whole(state.whole()),
        };
        (update, version)
    }

    fn note(&self, state: &mut State, change: Change) {
        state.log.push_back(change);
        while state.log.len() > state.slots.len() + KEPT {
            state.log.pop_front();
        }
        // After the change itself: whoever sees the number finds it.
        self.version.fetch_add(1, Ordering::Release);
    }

    fn key(&self, id: SlotId) -> MemKey {
        MemKey(u64::from(self.nonce) << 32 | u64::from(id.raw()))
    }

    fn id(&self, key: MemKey) -> Option<SlotId> {
        ((key.0 >> 32) as u32 == self.nonce).then(|| SlotId::from_raw(key.0 as u32))
    }

    #[cfg(test)]
    pub(super) fn state_len(&self) -> usize {
        self.state().log.len()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entry {
    /// Keys in packets of every wire, of a region with this key.
    fn names(&self, key: MemKey) -> impl Iterator<Item = u64> {
        let others = self.device_keys.iter().filter_map(|(domain, key)| KeySpace::name_of(*domain, *key));
        std::iter::once(key.0).chain(others)
    }
}

impl State {
    fn whole(&self) -> Vec<Change> {
        let of_entry = |(id, entry): (SlotId, &Entry)| {
            let keys: Vec<_> =
                entry.device_keys.iter().map(|&(domain, key)| Change::DeviceKey(domain, key, id)).collect();
            let counted = entry.counts.clone().map(|counts| Change::Counted(id, counts));
            std::iter::once(Change::Added(id, entry.region)).chain(keys).chain(counted)
        };
        self.slots.iter().flat_map(of_entry).collect()
    }
}
