//! The memory table of a context as processes of its host read it without that context's help, by an address
//! that does not change: a header and a list of entries, whose words are those of [`Header`] and [`Entry`].
//! `Published` writes them, and [`PublishedRegions`] is what a reader knows of them.
//!
//! The version is odd during a change. A reader that finds the same even version before and after has read
//! one state of the list; later it reads the version alone.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use crate::rdm::rma::mem::{Access, Region};
use crate::wire::RmaIov;

/// Most entries that readers take; more are not published.
const MAX: usize = 4096;
/// First word of a header, combined with its address. Other memory does not have it.
const MARK: u64 = 0x5AB7_E0C1_9D42_663F;

/// Words of a header: mark, version, address of the first entry, number of entries.
pub type Header = [u64; 4];
/// Words of an entry: name, first address as peers name it, first address, length, and access.
pub type Entry = [u64; 5];

/// The published table, of its owner. Changes are made behind a lock.
#[derive(Debug)]
pub(super) struct Published {
    header: Box<[AtomicU64; 4]>,
    entries: Vec<[AtomicU64; 5]>,
    /// Where the entry of a name is.
    index: HashMap<u64, usize, FxBuildHasher>,
}

impl Published {
    pub(super) fn new() -> Published {
        let header = Box::new([0; 4].map(AtomicU64::new));
        let made = Published { header, entries: Vec::new(), index: HashMap::default() };
        made.header[0].store(MARK ^ made.address(), Ordering::Release);
        made
    }

    /// Address of the header.
    pub(super) fn address(&self) -> u64 {
        self.header.as_ptr().expose_provenance() as u64
    }

    /// Lets readers find a region by this name.
    pub(super) fn add(&mut self, name: u64, region: &Region) {
        self.change(|this| {
            let (start, len, access) = region.range();
            let words = [name, region.addr(), start, len, u64::from(access.bits())];
            match this.index.get(&name) {
                Some(at) => store(&this.entries[*at], words),
                None => {
                    this.index.insert(name, this.entries.len());
                    this.entries.push(words.map(AtomicU64::new));
                }
            }
        });
    }

    /// Takes a name away.
    pub(super) fn remove(&mut self, name: u64) {
        let Some(at) = self.index.remove(&name) else { return };
        self.change(|this| {
            if let Some(last) = this.entries.pop()
                && let Some(place) = this.entries.get(at)
            {
                let words = last.map(AtomicU64::into_inner);
                store(place, words);
                this.index.insert(words[0], at);
            }
        });
    }

    fn change(&mut self, change: impl FnOnce(&mut Published)) {
        let version = self.header[1].load(Ordering::Relaxed);
        self.header[1].store(version.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        change(self);
        let count = if self.entries.len() > MAX { 0 } else { self.entries.len() };
        self.header[2].store(self.entries.as_ptr().expose_provenance() as u64, Ordering::Relaxed);
        self.header[3].store(count as u64, Ordering::Relaxed);
        self.header[1].store(version.wrapping_add(2), Ordering::Release);
    }
}

impl Drop for Published {
    fn drop(&mut self) {
        // Readers may come later, when the memory is something else's.
        self.header[0].store(0, Ordering::Release);
    }
}

fn store(entry: &[AtomicU64; 5], words: Entry) {
    for (place, word) in entry.iter().zip(words) {
        place.store(word, Ordering::Relaxed);
    }
}

/// Knowledge of a reader about a peer's published table.
#[derive(Debug)]
pub struct PublishedRegions {
    /// Address of the header.
    at: u64,
    /// Version of the list; odd: none has been read.
    version: u64,
    /// Ascending by name.
    list: Vec<Entry>,
    /// Entry of the last name that was found.
    last: usize,
}

impl PublishedRegions {
    /// Makes the reader of a table whose header is at this address of the peer.
    pub fn new(at: u64) -> PublishedRegions {
        PublishedRegions { at, version: 1, list: Vec::new(), last: 0 }
    }

    /// Returns where the bytes of a piece are in the peer's memory, if the peer publishes them and permits
    /// `need`. `read` reads words at an address of the peer.
    // HOT
    pub fn resolve(
        &mut self,
        piece: &RmaIov,
        need: Access,
        read: impl Fn(u64, &mut [u64]) -> Option<()>,
    ) -> Option<u64> {
        let mut header = Header::default();
        read(self.at, &mut header)?;
        if !self.is_header(&header) {
            return None;
        }
        if header[1] != self.version {
            self.update(header, read)?;
        }
        self.known(piece, need)
    }

    /// Address of the header.
    pub fn header_at(&self) -> u64 {
        self.at
    }

    /// Whether the list is of the table with this header.
    // HOT
    pub fn is_current(&self, header: &Header) -> bool {
        self.is_header(header) && header[1] == self.version
    }

    fn is_header(&self, header: &Header) -> bool {
        header[0] == MARK ^ self.at
    }

    /// Returns where the bytes of a piece were when the list was read.
    // HOT
    pub fn known(&mut self, piece: &RmaIov, need: Access) -> Option<u64> {
        let [_, base, start, len, access] = *self.find(piece.key)?;
        let offset = piece.addr.wrapping_sub(base);
        let is_inside = offset <= len && piece.len <= len - offset;
        let permitted = Access::from_bits_truncate(access as u8).contains(need);
        (is_inside && permitted).then(|| start.wrapping_add(offset))
    }

    fn find(&mut self, name: u64) -> Option<&Entry> {
        if self.list.get(self.last).is_none_or(|entry| entry[0] != name) {
            self.last = self.list.binary_search_by_key(&name, |entry| entry[0]).ok()?;
        }
        self.list.get(self.last)
    }

    /// Reads the list again. `None`: it is changing.
    #[cold]
    fn update(&mut self, header: Header, read: impl Fn(u64, &mut [u64]) -> Option<()>) -> Option<()> {
        let [_, version, entries, count] = header;
        self.version = 1;
        let count = usize::try_from(count).ok().filter(|count| *count <= MAX && version.is_multiple_of(2))?;
        self.list.resize(count, Entry::default());
        if count > 0 {
            read(entries, self.list.as_flattened_mut())?;
        }
        let mut after = Header::default();
        read(self.at, &mut after)?;
        if after != header {
            return None;
        }
        self.list.sort_unstable_by_key(|entry| entry[0]);
        self.version = version;
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::rdm::rma::mem_table::MemTable;
    use crate::rdm::rma::region_counts::RegionCounts;
    use crate::rdm::{DomainId, KeySpace};

    /// Reads words of this process, as the kernel does for another one.
    #[allow(unsafe_code)]
    fn read(at: u64, words: &mut [u64]) -> Option<()> {
        let from = std::ptr::with_exposed_provenance::<AtomicU64>(usize::try_from(at).unwrap());
        for (n, word) in words.iter_mut().enumerate() {
            // SAFETY: the tests read tables that exist and do not change meanwhile.
            *word = unsafe { (*from.wrapping_add(n)).load(Ordering::Acquire) };
        }
        Some(())
    }

    /// A region that nobody touches, of 100 bytes at this address.
    #[allow(unsafe_code)]
    fn region(start: usize, access: Access) -> Region {
        // SAFETY: no test reads or writes it.
        unsafe { Region::new(std::ptr::without_provenance_mut(start), 100, access) }.unwrap()
    }

    fn piece(addr: u64, len: u64, key: u64) -> RmaIov {
        RmaIov { addr, len, key }
    }

    #[test]
    fn readers_find_what_is_published_and_permitted() {
        let table = MemTable::new(3);
        let early = table.add(region(0x1000, Access::all())).unwrap();
        assert!(table.add_device_key(early, DomainId::ONLY_DEVICE, 7));
        let at = table.publish();
        assert_eq!(table.publish(), at);
        let late = table.add(region(0x2000, Access::READ).named_from(0).unwrap()).unwrap();
        assert!(
            table.add_device_key(late, DomainId::PROGRAM, 7) && table.add_device_key(late, DomainId(3), 9)
        );
        let mut peer = PublishedRegions::new(at);
        let mut find = |addr, len, key, need| peer.resolve(&piece(addr, len, key), need, read);
        assert_eq!(PublishedRegions::new(at).known(&piece(0x1010, 20, early.0), Access::WRITE), None);
        for key in [early.0, KeySpace::Device.key(7)] {
            assert_eq!(find(0x1010, 20, key, Access::WRITE), Some(0x1010));
        }
        for key in [late.0, KeySpace::Program.key(7)] {
            assert_eq!(find(60, 40, key, Access::READ), Some(0x2000 + 60));
        }
        assert_eq!(find(0x1000, 101, early.0, Access::READ), None, "longer");
        assert_eq!(find(0xfff, 10, early.0, Access::READ), None, "before it");
        assert_eq!(find(0x1064, 1, early.0, Access::READ), None, "behind it");
        assert_eq!(find(u64::MAX, 2, early.0, Access::READ), None, "it wraps");
        assert_eq!(find(0, 40, late.0, Access::WRITE), None, "read only");
        assert_eq!(find(0, 40, 9, Access::READ), None, "a key of one wire");
        assert_eq!(find(0, 40, early.0 ^ 1 << 40, Access::READ), None, "nobody's");
    }

    #[test]
    fn withdrawn_and_counted_memory_is_not_found() {
        let table = MemTable::new(3);
        let at = table.publish();
        let keys: Vec<_> = (1..=9).map(|n| table.add(region(n << 12, Access::all())).unwrap()).collect();
        let mut peer = PublishedRegions::new(at);
        let mut found = |keys: &[crate::rdm::MemKey]| -> Vec<u64> {
            let find = |(n, key): (usize, &crate::rdm::MemKey)| {
                peer.resolve(&piece((n as u64 + 1) << 12, 1, key.0), Access::READ, read).map(|at| at >> 12)
            };
            keys.iter().enumerate().filter_map(find).collect()
        };
        assert_eq!(found(&keys), (1..=9).collect::<Vec<_>>());
        assert!(table.remove(keys[0]) && table.remove(keys[8]));
        assert!(
            table.count(keys[4], Arc::default()) && !table.count(keys[0], Arc::<RegionCounts>::default())
        );
        assert!(table.add_device_key(keys[4], DomainId::PROGRAM, 5));
        assert_eq!(found(&keys), [2, 3, 4, 6, 7, 8]);
    }

    #[test]
    fn a_reader_takes_no_list_that_is_changing_or_too_long() {
        let table = MemTable::new(3);
        let at = table.publish();
        let keys: Vec<_> = (0..=MAX).map(|_| table.add(region(0x1000, Access::all())).unwrap()).collect();
        let mut peer = PublishedRegions::new(at);
        let last = piece(0x1000, 1, keys[MAX - 1].0);
        assert_eq!(peer.resolve(&last, Access::READ, read), None, "too many");
        assert!(table.remove(keys[MAX]));
        // The owner is at work whenever the header is read, then between two reads of it.
        let odd = |from, words: &mut [u64]| {
            read(from, words)?;
            words[1] |= u64::from(from == at);
            Some(())
        };
        assert_eq!(peer.resolve(&last, Access::READ, odd), None);
        let moves = std::cell::Cell::new(0);
        let moving = |from, words: &mut [u64]| {
            read(from, words)?;
            words[1] += moves.replace(moves.get() + 2);
            Some(())
        };
        assert_eq!(peer.resolve(&last, Access::READ, moving), None);
        assert_eq!(peer.resolve(&last, Access::READ, read), Some(0x1000));
        let mut header = Header::default();
        read(peer.header_at(), &mut header).unwrap();
        assert!(peer.is_current(&header) && peer.known(&last, Access::READ) == Some(0x1000));
        assert!(!peer.is_current(&Header::default()));
        assert!(table.remove(keys[0]));
        read(peer.header_at(), &mut header).unwrap();
        assert!(!peer.is_current(&header), "the table has changed");
        assert_eq!(peer.resolve(&last, Access::READ, |_, _| None), None, "the peer is gone");
        let other = |_, words: &mut [u64]| {
            words.fill(2);
            Some(())
        };
        assert_eq!(peer.resolve(&last, Access::READ, other), None, "other memory is there by now");
    }
}
