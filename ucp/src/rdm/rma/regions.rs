//! A worker's view of the memory table. Requests of peers are resolved here, and nothing else in the engine
//! finds memory by key.

use std::sync::Arc;

use arrayvec::ArrayVec;
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;
use ucs::coll::slots::{SlotId, Slots};
use ucs::sync::RcuReader;

use crate::rdm::ids::{DomainId, KeySpace};
use crate::rdm::rma::mem::{Access, Region, Span, Spans};
use crate::rdm::rma::mem_table::{Change, MemTable, Update};
use crate::rdm::rma::region_counts::RegionCounts;
use crate::wire::{Iovs, MAX_IOV, RmaIov};

/// The regions of a [`MemTable`], as far as this worker has followed its changes. Memory that it resolves is
/// valid until the end of the section ([`Regions::enter`]), and later while the table has it.
#[derive(Debug)]
pub(in crate::rdm) struct Regions {
    /// High half of every key.
    nonce: u32,
    /// Changes followed.
    seen: u64,
    /// By the index of their id.
    list: Vec<Option<(SlotId, Region)>>,
    devices: HashMap<(DomainId, u64), SlotId, FxBuildHasher>,
    /// Counts of the regions that have some.
    counted: HashMap<SlotId, Arc<RegionCounts>, FxBuildHasher>,
    reader: RcuReader,
    table: Arc<MemTable>,
}

impl Regions {
    pub(in crate::rdm) fn new(table: Arc<MemTable>) -> Regions {
        Regions {
            nonce: table.nonce(),
            seen: 0,
            list: Vec::new(),
            devices: HashMap::default(),
            counted: HashMap::default(),
            reader: table.reader(),
            table,
        }
    }

    pub(in crate::rdm) fn table(&self) -> &Arc<MemTable> {
        &self.table
    }

    /// Begins a section in which no memory is withdrawn that the view has. False: one is under way.
    // HOT
    #[inline(always)]
    #[must_use]
    pub(in crate::rdm) fn enter(&self) -> bool {
        self.reader.enter()
    }

    /// Ends a section that [`Regions::enter`] has begun.
    // HOT
    #[inline(always)]
    pub(in crate::rdm) fn leave(&self) {
        self.reader.leave();
    }

    /// Whether the table has changed since [`Regions::update`].
    // HOT
    #[inline(always)]
    pub(in crate::rdm) fn is_stale(&self) -> bool {
        self.table.version() != self.seen
    }

    /// Follows the changes of the table. Returns the regions that are gone.
    #[cold]
    pub(in crate::rdm) fn update(&mut self) -> Vec<SlotId> {
        let (update, version) = self.table.since(self.seen);
        self.seen = version;
        match update {
            Update::Changes(changes) => changes.into_iter().filter_map(|change| self.apply(change)).collect(),
            Update::Whole(table) => {
                let before = std::mem::take(&mut self.list);
                self.devices.clear();
                self.counted.clear();
                for change in table {
                    self.apply(change);
                }
                let gone = |(id, _): (SlotId, Region)| self.get(id).is_none().then_some(id);
                before.into_iter().flatten().filter_map(gone).collect()
            }
        }
    }

    /// Applies a change; returns the region that is gone by it.
    fn apply(&mut self, change: Change) -> Option<SlotId> {
        match change {
            Change::Added(id, region) => {
                let at = index(id);
                if self.list.len() <= at {
                    self.list.resize(at + 1, None);
                }
                self.list[at] = Some((id, region));
                None
            }
            Change::DeviceKey(domain, key, id) => {
                self.devices.insert((domain, key), id);
                None
            }
            Change::Counted(id, counts) => {
                self.counted.insert(id, counts);
                None
            }
            Change::Removed(id) => {
                self.counted.remove(&id);
                self.get(id)?;
                self.list[index(id)] = None;
                self.devices.retain(|_, named| *named != id);
                Some(id)
            }
        }
    }

    #[inline]
    fn get(&self, id: SlotId) -> Option<&Region> {
        match self.list.get(index(id)) {
            Some(Some((found, region))) if *found == id => Some(region),
            _ => None,
        }
    }

    /// Resolves the memory that a request from a wire of `domain` names. `None` if a piece is not inside a
    /// region or `need` is not permitted. A piece without bytes needs no region.
    // HOT
    // [M8.1] [M8.11]
    #[inline]
    pub(in crate::rdm) fn resolve(&self, domain: DomainId, iovs: &Iovs, need: Access) -> Option<Spans> {
        let mut list = ArrayVec::new();
        let mut len = 0u64;
        for iov in iovs.as_slice() {
            let span = self.span(domain, iov, need)?;
            len = len.checked_add(iov.len)?;
            list.try_push(span).ok()?;
        }
        Some(Spans::new(list, len))
    }

    /// Resolves one piece of memory.
    // HOT
    #[inline]
    pub(in crate::rdm) fn resolve_one(&self, domain: DomainId, iov: &RmaIov, need: Access) -> Option<Spans> {
        Some(Spans::one(self.span(domain, iov, need)?))
    }

    /// Writes `bytes` to one piece. False if that is not permitted or it has another length.
    // HOT
    #[inline]
    pub(in crate::rdm) fn put(&self, domain: DomainId, iov: &RmaIov, bytes: &[u8]) -> bool {
        match self.span(domain, iov, Access::WRITE) {
            Some(span) if span.put(bytes) => {
                if !self.counted.is_empty() {
                    self.count_regions(std::iter::once(span.region()), false);
                }
                true
            }
            _ => false,
        }
    }

    /// Whether operations on some region are counted.
    // HOT
    #[inline(always)]
    pub(in crate::rdm) fn has_counts(&self) -> bool {
        !self.counted.is_empty()
    }

    /// Counts an operation of a peer on these pieces, once for each of their regions.
    // HOT
    #[inline(always)]
    pub(in crate::rdm) fn count(&self, spans: &Spans, is_read: bool) {
        if !self.counted.is_empty() {
            self.count_regions(spans.regions(), is_read);
        }
    }

    #[cold]
    #[inline(never)]
    fn count_regions(&self, regions: impl Iterator<Item = SlotId>, is_read: bool) {
        let mut counted = ArrayVec::<SlotId, MAX_IOV>::new();
        for region in regions {
            if !counted.contains(&region)
                && let Some(counts) = self.counted.get(&region)
            {
                counts.add(is_read);
                let _ = counted.try_push(region);
            }
        }
    }

    /// Resolves one piece of memory, for those who need it alone.
    // HOT
    #[inline]
    pub(super) fn span(&self, domain: DomainId, iov: &RmaIov, need: Access) -> Option<Span> {
        if iov.len == 0 {
            return Some(Span::EMPTY);
        }
        let id = match (iov.key >> 32) as u32 {
            0 => *self.devices.get(&(domain, iov.key))?,
            nonce if nonce == self.nonce => SlotId::from_raw(iov.key as u32),
            high => *self.devices.get(&(KeySpace::domain_of(high)?, iov.key & u64::from(u32::MAX)))?,
        };
        self.get(id)?.span(iov.addr, iov.len, need, id)
    }
}

#[inline(always)]
fn index(id: SlotId) -> usize {
    // The table's slots have the default split.
    Slots::<()>::index_of(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(bytes: &mut [u8]) -> Region {
        // SAFETY: the tests keep `bytes` and do not touch it while the region is used.
        #[allow(unsafe_code)]
        unsafe { Region::new(bytes.as_mut_ptr(), bytes.len(), Access::all()) }.unwrap()
    }

    fn has(view: &Regions, key: crate::rdm::MemKey, of: Region) -> bool {
        let iov = RmaIov { addr: of.addr(), len: 1, key: key.0 };
        view.resolve_one(DomainId(0), &iov, Access::READ).is_some()
    }

    #[test]
    fn a_view_follows_changes_and_catches_up_when_they_are_forgotten() {
        let mut bytes = [0u8; 16];
        let of = region(&mut bytes);
        let table = Arc::new(MemTable::new(5));
        let mut views = [Regions::new(table.clone()), Regions::new(table.clone())];
        let kept = table.add(of).unwrap();
        assert!(table.add_device_key(kept, DomainId(3), 9) && table.add_device_key(kept, DomainId(3), 9));
        assert!(table.add_device_key(kept, DomainId::PROGRAM, 5));
        let gone = table.add(of).unwrap();
        assert!(!table.add_device_key(gone, DomainId(3), 9), "another region has the key");
        for view in &mut views {
            assert!(view.is_stale() && !has(view, kept, of));
            assert!(view.update().is_empty() && !view.is_stale());
            assert!(has(view, kept, of) && has(view, gone, of));
        }
        assert!(table.remove(gone) && !table.remove(gone));
        let ended = views[0].update();
        assert_eq!(ended, [SlotId::from_raw(gone.0 as u32)]);
        // The other one misses more changes than are kept.
        let last = (0..1000).map(|_| table.add(of).unwrap()).fold(None, |before, key| {
            before.into_iter().for_each(|key| assert!(table.remove(key)));
            Some(key)
        });
        for view in &mut views {
            let ended = view.update();
            assert!(!has(view, gone, of) && has(view, kept, of) && has(view, last.unwrap(), of));
            assert_eq!(view.list.iter().flatten().count(), 2);
            let device = RmaIov { addr: of.addr(), len: 16, key: 9 };
            assert!(view.resolve_one(DomainId(3), &device, Access::READ).is_some());
            assert!(view.resolve_one(DomainId(2), &device, Access::READ).is_none());
            // A key of the program is one of every wire.
            let named = |key| RmaIov { key, ..device };
            assert!(view.resolve_one(DomainId(2), &named(KeySpace::Program.key(5)), Access::READ).is_some());
            assert!(view.resolve_one(DomainId(2), &named(KeySpace::Device.key(5)), Access::READ).is_none());
            assert!(view.resolve_one(DomainId(2), &named(3 << 32 | 5), Access::READ).is_none());
            assert!(ended.iter().all(|id| view.get(*id).is_none()));
        }
        assert!(table.state_len() < 400);
    }

    #[test]
    fn memory_is_withdrawn_when_no_worker_uses_it() {
        let table = Arc::new(MemTable::new(1));
        let stop = std::sync::atomic::AtomicBool::new(false);
        let mut first = vec![1u8; 64];
        let of = region(&mut first);
        let now = std::sync::Mutex::new((table.add(of).unwrap(), of));
        let mut keep = vec![first];
        std::thread::scope(|scope| {
            for _ in 0..2 {
                let mut view = Regions::new(table.clone());
                let (stop, now) = (&stop, &now);
                scope.spawn(move || {
                    let mut served = 0;
                    while !stop.load(std::sync::atomic::Ordering::Relaxed) || served == 0 {
                        let (key, of) = *now.lock().unwrap();
                        assert!(view.enter());
                        if view.is_stale() {
                            view.update();
                        }
                        let iov = RmaIov { addr: of.addr(), len: 64, key: key.0 };
                        if let Some(spans) = view.resolve_one(DomainId(0), &iov, Access::READ) {
                            let mut read = [0; 64];
                            spans.copy_to(0, &mut read);
                            assert_eq!(read, [1; 64], "withdrawn memory was read");
                            served += 1;
                        }
                        view.leave();
                    }
                });
            }
            for _ in 0..500 {
                let mut next = vec![1u8; 64];
                let of = region(&mut next);
                let before = std::mem::replace(&mut *now.lock().unwrap(), (table.add(of).unwrap(), of));
                assert!(table.remove(before.0));
                keep.last_mut().unwrap().fill(0);
                keep.push(next);
            }
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
        });
    }
}
