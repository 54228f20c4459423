//! Memory and remote keys of a shared worker.

#![allow(unsafe_code)]

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::SharedWorker;
use super::shared::{Inside, Locked, OfWorker};
use crate::{Access, Error, Mem, MemError, Rkey};

/// Memory of a [`SharedWorker`] that peers with its remote key may access: [`Mem`].
pub struct SharedMem {
    mem: Locked<Mem>,
    /// Held while a thread copies, so that threads of this process do not race with each other.
    copying: Mutex<()>,
}

// SAFETY: all of it is its worker's.
unsafe impl OfWorker for Mem {}

/// A remote key, unpacked by an endpoint of a [`SharedWorker`], for endpoints of that worker: [`Rkey`].
pub struct SharedRkey(pub(super) Locked<Rkey>);

// SAFETY: all of it is its worker's.
unsafe impl OfWorker for Rkey {}

impl SharedWorker {
    /// Allocates `len` zeroed bytes that peers may access: [`crate::Worker::mem_alloc`].
    pub fn mem_alloc(&self, len: usize, access: Access) -> Result<SharedMem, MemError> {
        let inside = self.shared.enter()?;
        Ok(SharedMem::new(inside.worker().mem_alloc(len, access)?, &inside))
    }

    /// Registers `len` bytes at `addr` for access by peers: [`crate::Worker::mem_map`].
    /// # Safety
    /// As there.
    pub unsafe fn mem_map(&self, addr: *mut u8, len: usize, access: Access) -> Result<SharedMem, MemError> {
        let inside = self.shared.enter()?;
        // SAFETY: the caller's promise is the same.
        let mem = unsafe { inside.worker().mem_map(addr, len, access) }?;
        Ok(SharedMem::new(mem, &inside))
    }

    /// A remote key for packets, from a peer with another library: [`Rkey::from_key`].
    pub fn rkey_from_key(&self, key: u64) -> Result<SharedRkey, Error> {
        Ok(SharedRkey(Locked::new(Rkey::from_key(key), &self.enter()?)))
    }

    /// A remote key for device and packets, from a peer with libfabric: [`Rkey::from_device_key`].
    pub fn rkey_from_device_key(&self, key: u64) -> Result<SharedRkey, Error> {
        Ok(SharedRkey(Locked::new(Rkey::from_device_key(key), &self.enter()?)))
    }
}

impl SharedMem {
    fn new(mem: Mem, inside: &Inside<'_>) -> SharedMem {
        SharedMem { mem: Locked::new(mem, inside), copying: Mutex::new(()) }
    }

    fn copying(&self) -> MutexGuard<'_, ()> {
        self.copying.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// First byte. Peers may change the memory at any time: use volatile or atomic accesses.
    pub fn as_ptr(&self) -> *mut u8 {
        self.mem.fixed().as_ptr()
    }

    /// First address, as used by peers.
    pub fn addr(&self) -> u64 {
        self.mem.fixed().addr()
    }

    /// Length, bytes.
    pub fn len(&self) -> usize {
        self.mem.fixed().len()
    }

    /// Always false: the length is at least one byte.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Access permitted to peers.
    pub fn access(&self) -> Access {
        self.mem.fixed().access()
    }

    /// Key of the memory in packets: [`Mem::key`].
    pub fn key(&self) -> u64 {
        self.mem.fixed().key()
    }

    /// Key by which a device knows the memory: [`Mem::device_key`].
    pub fn device_key(&self, tl: &str) -> Result<Option<u64>, Error> {
        Ok(self.mem.look(|mem| mem.device_key(tl))?)
    }

    /// Packs the remote key, for any peer of the worker: [`Mem::pack_rkey`].
    pub fn pack_rkey(&self) -> Result<Vec<u8>, Error> {
        Ok(self.mem.look(Mem::pack_rkey)?)
    }

    /// Copies `bytes` to offset `at`, without the worker's lock: [`Mem::write`]. Panics if out of bounds.
    pub fn write(&self, at: usize, bytes: &[u8]) {
        let _copying = self.copying();
        self.mem.fixed().write(at, bytes);
    }

    /// Copies bytes at offset `at` to `out`, without the worker's lock: [`Mem::read`]. Panics if out of
    /// bounds.
    pub fn read(&self, at: usize, out: &mut [u8]) {
        let _copying = self.copying();
        self.mem.fixed().read(at, out);
    }

    /// Reads the 8-byte word at offset `at`. Panics if it is out of bounds.
    pub fn word(&self, at: usize) -> u64 {
        self.mem.fixed().word(at)
    }
}

impl SharedRkey {
    /// First address, as in the owner's process, and length in bytes.
    pub fn range(&self) -> (u64, u64) {
        self.0.fixed().range()
    }

    /// Permitted kinds of access.
    pub fn access(&self) -> Access {
        self.0.fixed().access()
    }
}

impl std::fmt::Debug for SharedMem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SharedMem({} bytes at {:#x})", self.len(), self.addr())
    }
}

impl std::fmt::Debug for SharedRkey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (addr, len) = self.range();
        write!(f, "SharedRkey({len} bytes at {addr:#x})")
    }
}
