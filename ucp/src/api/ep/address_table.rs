//! Addresses of workers by number, and the number of the sender of a message, without a connection to any of
//! them. The index of senders is made when it is first asked: a table that only sends has none.

use std::hash::{BuildHasher, RandomState};

use arrayvec::ArrayVec;
use hashbrown::HashTable;
use uct::api::{DevKind, Iface as _};

use crate::address::{Address, AddressError, Entry, WorkerId};
use crate::api::worker::handle::Worker;
use crate::lane::{AddrForm, connid};
use crate::rdm::io::PeerId;
use crate::rdm::mark_connected;
use crate::wire::RawAddr;

/// A table of addresses by number, such as a job's by rank. Numbers are given in order and not used again.
#[derive(Debug, Default)]
pub struct AddressTable {
    /// Packed; `None`: removed, or never there.
    addresses: Vec<Option<Box<[u8]>>>,
    index: Index,
}

/// Numbers by the raw addresses of lanes.
#[derive(Debug, Default)]
struct Index {
    entries: HashTable<IndexEntry>,
    /// Addresses below this number are in it.
    end: usize,
    /// Keyed, since peers choose their addresses.
    hasher: RandomState,
}

/// A lane of a worker: half the hash of its raw address, and the number of the worker.
#[derive(Clone, Copy, Debug)]
struct IndexEntry {
    hash: u32,
    number: u32,
}

/// Spreads half a hash over all bits.
fn spread(hash: u32) -> u64 {
    u64::from(hash).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// The raw address that packets from a lane of a worker carry.
fn raw_of(entry: &Entry) -> Option<RawAddr> {
    let form = AddrForm::of_len(entry.iface.len())?;
    form.raw(&entry.iface, entry.connid).map(|raw| RawAddr::from_bytes(&raw))
}

impl Index {
    fn hash(&self, raw: &RawAddr) -> u32 {
        self.hasher.hash_one(raw) as u32
    }

    fn add(&mut self, number: u32, address: &Address) {
        for raw in address.entries.iter().filter_map(raw_of) {
            let entry = IndexEntry { hash: self.hash(&raw), number };
            self.entries.insert_unique(spread(entry.hash), entry, |entry| spread(entry.hash));
        }
    }

    fn remove(&mut self, number: u32, address: &Address) {
        for raw in address.entries.iter().filter_map(raw_of) {
            let hash = self.hash(&raw);
            let is_it = |entry: &IndexEntry| entry.hash == hash && entry.number == number;
            if let Ok(entry) = self.entries.find_entry(spread(hash), is_it) {
                entry.remove();
            }
        }
    }
}

impl AddressTable {
    /// Creates an empty table.
    pub fn new() -> AddressTable {
        AddressTable::default()
    }

    /// Makes room for `more` addresses.
    pub fn reserve(&mut self, more: usize) {
        self.addresses.reserve(more);
    }

    /// Number that the next address gets.
    pub fn end(&self) -> u64 {
        self.addresses.len() as u64
    }

    /// Adds a packed address, or those of several workers of one peer, packed one behind another. Returns the
    /// number, which is that of each of them.
    pub fn insert(&mut self, packed: &[u8]) -> Result<u64, AddressError> {
        Address::unpack_all(packed)?;
        self.addresses.push(Some(packed.into()));
        Ok(self.end() - 1)
    }

    /// Skips a number: there is no address with it.
    pub fn skip(&mut self) {
        self.addresses.push(None);
    }

    /// Removes an address. Returns false if there is none with this number.
    pub fn remove(&mut self, number: u64) -> bool {
        let gone = usize::try_from(number).ok().and_then(|at| self.addresses.get_mut(at)?.take());
        let Some(packed) = gone else { return false };
        if let (Ok(workers), Ok(number)) = (Address::unpack_all(&packed), u32::try_from(number)) {
            workers.iter().for_each(|address| self.index.remove(number, address));
        }
        true
    }

    /// The packed address with this number, or the addresses.
    pub fn packed(&self, number: u64) -> Option<&[u8]> {
        self.addresses.get(usize::try_from(number).ok()?)?.as_deref()
    }

    /// The address with this number, of several the first.
    pub fn address(&self, number: u64) -> Option<Address> {
        self.address_of(number, 0)
    }

    /// The address of the `nth` worker of those with this number.
    pub fn address_of(&self, number: u64, nth: usize) -> Option<Address> {
        self.workers(number).into_iter().nth(nth)
    }

    fn workers(&self, number: u64) -> Vec<Address> {
        self.packed(number).and_then(|packed| Address::unpack_all(packed).ok()).unwrap_or_default()
    }

    /// The lowest number of an address of the worker that has a lane with this raw address.
    fn number_of(&mut self, raw: &RawAddr) -> Option<u64> {
        let end = self.addresses.len().min(u32::MAX as usize);
        for at in self.index.end..end {
            for address in self.workers(at as u64) {
                self.index.add(at as u32, &address);
            }
        }
        self.index.end = end;
        let hash = self.index.hash(raw);
        let candidates = self.index.entries.iter_hash(spread(hash)).filter(|entry| entry.hash == hash);
        let is_it = |number: &u64| {
            let has_lane = |of: Address| of.entries.iter().filter_map(raw_of).any(|lane| lane == *raw);
            self.workers(*number).into_iter().any(has_lane)
        };
        candidates.map(|entry| u64::from(entry.number)).filter(is_it).min()
    }
}

impl Worker {
    /// Number of the sender of a message in a table: the lowest one of its addresses. Takes constant time,
    /// connects to nobody, and keeps the [`PeerId`] of a sender that is in the table. `None`: it is not.
    pub fn sender_in(&self, table: &mut AddressTable, from: PeerId) -> Option<u64> {
        let raw = self.core().engine.peers().info(from)?.addr;
        let number = table.number_of(&raw)?;
        mark_connected(self.core().engine.peers_mut(), from);
        Some(number)
    }

    /// Address of the sender of a message: of the lane over which it has sent. It is made from what the
    /// sender's packets say, so that it has no [`Address::uid`]. An endpoint to it is an endpoint to the same
    /// [`PeerId`]. `None`: the sender is no peer any more.
    pub fn sender_address(&self, from: PeerId) -> Option<Address> {
        let core = self.core();
        let view = core.engine.peers().info(from)?;
        let lane = core.lanes.iter().find(|lane| lane.wire == view.wire)?;
        let raw = view.addr.to_bytes();
        let (device, iface) = lane.form.addrs(&raw, &lane.device);
        let attr = lane.iface.attr();
        let tl = ArrayVec::try_from(attr.tl.as_bytes()).ok()?;
        // Only workers of this process send over such a lane.
        let process = if attr.kind == DevKind::Loopback { core.id.process } else { 0 };
        let id = WorkerId { process, ..WorkerId::default() };
        Some(Address { id, entries: vec![Entry { tl, connid: connid(&raw), device, iface }] })
    }
}
