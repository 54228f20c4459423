//! Addresses of workers by number, and the number of the sender of a message, without a connection to any of
//! them. The index of senders is made when it is first asked: a table that only sends has none.

use std::hash::{BuildHasher, RandomState};

use arrayvec::ArrayVec;
use hashbrown::HashTable;
use uct::api::{DevKind, Iface as _};

use crate::address::{Address, AddressError, Entry, WorkerId};
use crate::api::ep::shared_list::{Change, SharedList, SharedTableError, TableAccess, remove_all_unused};
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
    /// Changes that other processes make, too.
    shared: Option<Box<SharedList>>,
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

    /// Opens the table of this name, which the processes of this host and user share: what one inserts or
    /// removes, all have. The table lasts as long as a process has it open. Without the capability to write,
    /// it must be there.
    ///
    /// [`AddressTable::refresh`] reads what others have changed; changes of this process, and
    /// [`Worker::sender_in`] for a sender that is not found, do so before. An endpoint to an address that
    /// another process removes stays.
    pub fn open_shared(name: &str, access: TableAccess) -> Result<AddressTable, SharedTableError> {
        let shared = SharedList::open(name, access)?;
        let mut table = AddressTable { shared: Some(Box::new(shared)), ..AddressTable::default() };
        table.refresh()?;
        Ok(table)
    }

    /// Removes the shared tables that killed processes of this user have left in `/dev/shm`. Opening a shared
    /// table does so, too.
    pub fn remove_abandoned() {
        remove_all_unused();
    }

    /// Whether other processes may change the table.
    pub fn is_shared(&self) -> bool {
        self.shared.is_some()
    }

    /// Whether this process may only look addresses up.
    pub fn is_read_only(&self) -> bool {
        self.shared.as_ref().is_some_and(|shared| shared.is_read_only())
    }

    /// Reads what other processes have changed. Does nothing in a table that is not shared.
    pub fn refresh(&mut self) -> Result<(), SharedTableError> {
        let Some(mut shared) = self.shared.take() else { return Ok(()) };
        let read = shared.read(|change, _| self.apply(change).is_some());
        self.shared = Some(shared);
        read
    }

    /// Makes a change, in a shared table behind those of others. Returns the number that it is about.
    fn change(&mut self, change: Change<'_>) -> Result<Option<u64>, AddressError> {
        let Some(mut shared) = self.shared.take() else { return Ok(self.apply(change)) };
        let mut number = None;
        let changed = match shared.is_read_only() {
            true => Err(std::io::ErrorKind::PermissionDenied),
            false => shared
                .append(change)
                .and_then(|()| {
                    shared.read(|other, is_own| {
                        let applied = self.apply(other);
                        if is_own {
                            number = applied;
                        }
                        applied.is_some()
                    })
                })
                .map_err(|error| {
                    tracing::error!("{error}");
                    match error {
                        SharedTableError::System(_, error) => error.kind(),
                        _ => std::io::ErrorKind::InvalidData,
                    }
                }),
        };
        self.shared = Some(shared);
        changed.map_err(|kind| AddressError::NotShared { kind })?;
        Ok(number)
    }

    /// Makes a change in this process. `None`: it is not possible.
    fn apply(&mut self, change: Change<'_>) -> Option<u64> {
        match change {
            Change::Insert(packed) => {
                Address::unpack_all(packed).ok()?;
                self.addresses.push(Some(packed.into()));
            }
            Change::Skip => self.addresses.push(None),
            Change::Remove(number) => {
                let at = self.addresses.get_mut(usize::try_from(number).ok()?)?;
                if let Some(packed) = at.take() {
                    self.forget(number, &packed);
                }
                return Some(number);
            }
        }
        Some(self.end() - 1)
    }

    /// Removes an address from the index.
    fn forget(&mut self, number: u64, packed: &[u8]) {
        if let (Ok(workers), Ok(number)) = (Address::unpack_all(packed), u32::try_from(number)) {
            workers.iter().for_each(|address| self.index.remove(number, address));
        }
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
        self.change(Change::Insert(packed))?.ok_or(AddressError::NotAnAddress { len: packed.len() })
    }

    /// Skips a number: there is no address with it.
    pub fn skip(&mut self) {
        // A shared table that cannot be changed gives no numbers, either.
        _ = self.change(Change::Skip);
    }

    /// Removes an address. Returns false if there is none with this number, or the table is shared and cannot
    /// be changed.
    pub fn remove(&mut self, number: u64) -> bool {
        _ = self.refresh();
        self.packed(number).is_some() && self.change(Change::Remove(number)).is_ok()
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
        let number = match table.number_of(&raw) {
            // Another process may have inserted it.
            None if table.is_shared() && table.refresh().is_ok() => table.number_of(&raw)?,
            found => found?,
        };
        mark_connected(self.core().engine.peers_mut(), from);
        Some(number)
    }
}

impl Address {
    /// Address of the sender of a message: of the lane over which it has sent. It is made from what the
    /// sender's packets say, so that it has no [`Address::uid`]. An endpoint to it is an endpoint to the same
    /// [`PeerId`]. `None`: the sender is no peer any more.
    pub fn of_sender(worker: &Worker, from: PeerId) -> Option<Address> {
        let core = worker.core();
        let view = core.engine.peers().info(from)?;
        let lane = core.ifaces.iter().find(|lane| lane.wire == view.wire)?;
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
