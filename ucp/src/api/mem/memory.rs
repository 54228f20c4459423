//! Memory that peers may access, registered with the memory domains of the context and offered by all of its
//! workers. Peers access it concurrently: there is no Rust reference to it, only pointers and copies.

#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::sync::Arc;

use ucs::mem::Fill;
use ucs::mem::rights::may_access;
use uct::api::{Access as WireAccess, Advice, AllocMethod, AllocReq, Md as _, Memory as _, OpenError};

use crate::api::context::open::Context;
use crate::api::mem::map_params::MapParams;
use crate::api::mem::remote_writes::RemoteWrite;
use crate::api::mem::served::ServedOps;
use crate::api::rma::packed_rkey::Packer;
use crate::api::rma::rkey::EFA;
use crate::api::worker::handle::Worker;

use crate::lane::{Domain, Domains, Registrations, Rkey};
use crate::rdm::{Access, DomainId, MemKey, Region, RegionCounts};
use crate::select::RemoteMem;

/// Error of allocating or registering memory.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemError {
    /// The range is empty, wraps, or starts at 0.
    #[error("no memory there")]
    BadRange,
    /// Other memory of the context has the key that the program has chosen.
    #[error("the key {key:#x} names other memory of the context")]
    KeyInUse {
        /// The key.
        key: u32,
    },
    /// The context has no free keys.
    #[error("too many registrations")]
    TooMany,
    /// A transport failed to allocate or register.
    #[error(transparent)]
    Wire(#[from] uct::api::Error),
    /// A device of the context could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// Other processes cannot map the memory.
    #[error(
        "memory cannot be exported: only what a context has allocated for processes of this host, by posix, can be"
    )]
    NotExportable,
    /// The bytes are not exported memory, or of another version of this library.
    #[error("not exported memory")]
    NotExported,
    /// No transport of the context maps the exported memory.
    #[error("exported memory cannot be mapped: the context has no transport for it (posix)")]
    NotMapped,
    /// The calling thread may not use the worker ([`crate::mt`]).
    #[error("worker: {0}")]
    Thread(#[from] ucs::sync::LockError),
}

/// Parameters of an allocation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AllocParams {
    access: Access,
    at: Option<NonNull<u8>>,
    fill: Fill,
}

impl AllocParams {
    /// Memory anywhere, with its pages, for this access by peers.
    pub fn new(access: Access) -> AllocParams {
        AllocParams { access, at: None, fill: Fill::Now }
    }

    /// Allocates at this address, which is page aligned; fails if something is mapped there.
    pub fn at(self, addr: NonNull<u8>) -> AllocParams {
        AllocParams { at: Some(addr), ..self }
    }

    /// Takes pages when they are first used, so that the call is quick however large the memory.
    pub fn lazily_filled(self) -> AllocParams {
        AllocParams { fill: Fill::Lazy, ..self }
    }
}

/// Memory that peers with its remote key may access, through every worker of the context. Any thread may
/// hold, use and drop it.
///
/// Dropping it revokes the key: no worker and no device accesses the memory afterwards. Operations of peers
/// on it end with an error, and so do operations of this process that use its registration. A peer that has
/// mapped memory of [`Context::mem_alloc`] keeps its mapping, which is then of pages that nobody else has.
/// Kernel copies (`cma`) need no key and are not stopped. Dropping waits for workers of other threads that
/// are serving a request at the moment.
#[must_use = "dropping memory revokes its key"]
pub struct Mem {
    domains: Arc<Domains>,
    key: MemKey,
    addr: *mut u8,
    /// Address of the first byte, as peers name it.
    base: u64,
    len: usize,
    access: Access,
    /// The first owns allocated memory and is dropped last.
    regs: Registrations,
    /// Operations of peers on it, if they are counted.
    counts: Option<Arc<RegionCounts>>,
    /// Pages were not there when it was registered.
    is_late: bool,
    /// Keeps the mapping of imported memory, behind its registrations.
    _mapping: Option<Rkey>,
}

// SAFETY: `addr` is the address of memory that is used through copies and atomics only; everything else may
// be used by any thread.
unsafe impl Send for Mem {}
// SAFETY: as above.
unsafe impl Sync for Mem {}

impl Context {
    /// Allocates `len` zeroed bytes that peers may access, where most peers reach them directly: peers of
    /// this host map them, or their device does. With [`Access::READ`] peers read long messages directly from
    /// them.
    pub fn mem_alloc(&self, len: usize, access: Access) -> Result<Mem, MemError> {
        self.mem_alloc_with(len, AllocParams::new(access))
    }

    /// Allocates as [`Context::mem_alloc`], at a given address or lazily filled.
    pub fn mem_alloc_with(&self, len: usize, params: AllocParams) -> Result<Mem, MemError> {
        Mem::alloc(self.domains()?, len, params)
    }

    /// Registers `len` bytes at `addr` for access by peers, through every worker of this context. Packets
    /// serve lanes that cannot register memory. Peers cannot write pages that are read-only now, nor reach
    /// pages that cannot be read: [`Mem::access`] tells what is left.
    /// # Safety
    /// `addr..addr + len` keeps its pages and their rights until the result is dropped. Meanwhile nobody
    /// holds a Rust reference to bytes that a peer may write.
    pub unsafe fn mem_map(&self, addr: *mut u8, len: usize, access: Access) -> Result<Mem, MemError> {
        // SAFETY: the caller's contract.
        unsafe { Mem::map(self.domains()?, (addr, len), MapParams::new(access), Vec::new()) }
    }

    /// Registers memory as [`Context::mem_map`], with a key or addresses of the program, or for packets only.
    /// # Safety
    /// As for [`Context::mem_map`].
    pub unsafe fn mem_map_with(&self, addr: *mut u8, len: usize, params: MapParams) -> Result<Mem, MemError> {
        // SAFETY: the caller's contract.
        unsafe { Mem::map(self.domains()?, (addr, len), params, Vec::new()) }
    }
}

impl Worker {
    /// Allocates memory as [`Context::mem_alloc`], for the workers of the same context.
    pub fn mem_alloc(&self, len: usize, access: Access) -> Result<Mem, MemError> {
        let domains = self.core().regs.domains.clone();
        Mem::alloc(domains, len, AllocParams::new(access))
    }

    /// Registers memory as [`Context::mem_map`], for the workers of the same context.
    /// # Safety
    /// As for [`Context::mem_map`].
    pub unsafe fn mem_map(&self, addr: *mut u8, len: usize, access: Access) -> Result<Mem, MemError> {
        let domains = self.core().regs.domains.clone();
        // SAFETY: the caller's contract.
        unsafe { Mem::map(domains, (addr, len), MapParams::new(access), Vec::new()) }
    }

    /// Takes the next completed remote write that carried data for this worker, in order of completion.
    // HOT
    #[inline]
    pub fn take_remote_write(&self) -> Option<RemoteWrite> {
        self.core_keep_idle().remote_writes.take()
    }
}

impl Mem {
    fn alloc(domains: Arc<Domains>, len: usize, params: AllocParams) -> Result<Mem, MemError> {
        if len == 0 {
            return Err(MemError::BadRange);
        }
        let AllocParams { access, at, fill } = params;
        let (domain, mem) = domains.alloc(&AllocReq {
            access: wire_access(access),
            at,
            fill,
            ..AllocReq::new(len, "ucp")
        })?;
        let addr = mem.addr();
        // SAFETY: the allocation lives in the new `Mem` until its region is removed; no reference exists.
        unsafe { Mem::map(domains, (addr, len), MapParams::new(access), vec![(domain, mem)]) }
    }

    /// # Safety
    /// As for [`Context::mem_map`].
    unsafe fn map(
        domains: Arc<Domains>,
        (addr, len): (*mut u8, usize),
        params: MapParams,
        regs: Registrations,
    ) -> Result<Mem, MemError> {
        // The null byte is no memory.
        let skipped = usize::from(params.is_unbacked && addr.is_null());
        let (addr, len) = (addr.wrapping_add(skipped), len.saturating_sub(skipped));
        if len == 0 {
            return Err(MemError::BadRange);
        }
        // A domain that has allocated it has done so for this access.
        let access = if regs.is_empty() { permitted(addr, len, params.access) } else { params.access };
        let is_late = params.is_unbacked && access != params.access;
        let access = if is_late { params.access } else { access };
        let region = match is_late {
            // SAFETY: the caller's contract includes that of a region.
            true => unsafe { Region::unbacked(addr, len, access) },
            // SAFETY: as above.
            false => unsafe { Region::new(addr, len, access) },
        };
        let region = region.ok_or(MemError::BadRange)?;
        let region = match params.base {
            Some(base) => {
                let base = base.checked_add(skipped as u64).ok_or(MemError::BadRange)?;
                region.named_from(base).ok_or(MemError::BadRange)?
            }
            None => region,
        };
        let (key, regs) = if params.only_packets {
            (domains.memory.add(region).ok_or(MemError::TooMany)?, regs)
        } else {
            // SAFETY: the caller's contract includes that of registrations.
            let offered = unsafe { domains.offer((addr, len), region, wire_access(access), regs) };
            offered.ok_or(MemError::TooMany)?
        };
        let counts = params.is_counted.then(Arc::<RegionCounts>::default);
        if let Some(counts) = &counts {
            domains.memory.count(key, counts.clone());
        }
        let base = region.addr();
        let made = Mem { domains, key, addr, base, len, access, regs, counts, is_late, _mapping: None };
        match params.key {
            Some(key) if !made.domains.memory.add_device_key(made.key, DomainId::PROGRAM, key.into()) => {
                Err(MemError::KeyInUse { key })
            }
            _ => Ok(made),
        }
    }

    /// Memory of another process that a key maps here, registered as memory of this one, which keeps the key.
    /// `None`: the key maps no such range.
    pub(super) fn of_key(
        domains: Arc<Domains>,
        id: DomainId,
        key: Rkey,
        (addr, len): (u64, usize),
        access: Access,
    ) -> Result<Option<Mem>, MemError> {
        let Some(at) = domains.get(id).md.rkey_ptr(&key, addr, len) else { return Ok(None) };
        // SAFETY: the mapping lasts as long as the key, which the memory keeps and drops last. It is of this
        // process alone, and no reference to it exists.
        let mut mem = unsafe { Mem::map(domains, (at, len), MapParams::new(access), Vec::new()) }?;
        mem._mapping = Some(key);
        Ok(Some(mem))
    }

    /// First byte. Peers may change the memory at any time: use volatile or atomic accesses.
    pub fn as_ptr(&self) -> *mut u8 {
        self.addr
    }

    /// First address, as used by peers.
    pub fn addr(&self) -> u64 {
        self.addr.expose_provenance();
        self.base
    }

    /// Length, bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Always false: the length is at least one byte.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Whether it holds `len` bytes at `addr`.
    #[inline]
    pub fn holds(&self, addr: *const u8, len: usize) -> bool {
        let offset = addr.addr().wrapping_sub(self.addr.addr());
        offset <= self.len && len <= self.len - offset
    }

    /// Access permitted to peers: what was asked for, as far as the pages permit it.
    pub fn access(&self) -> Access {
        self.access
    }

    /// Operations of peers on the memory, served by whichever worker of the context. Zero unless it was
    /// mapped with [`MapParams::counted`].
    pub fn served(&self) -> ServedOps {
        match &self.counts {
            Some(counts) => ServedOps { reads: counts.reads(), writes: counts.writes() },
            None => ServedOps::default(),
        }
    }

    /// Key of the memory in packets. A peer with another library needs it and an address.
    pub fn key(&self) -> u64 {
        self.key.0
    }

    /// Key of the memory for RDMA by the device of transport `tl`, for peers with another library.
    pub fn device_key(&self, tl: &str) -> Option<u64> {
        let of_tl = self.regs.iter().filter(|(domain, _)| self.domains.get(*domain).tl == tl);
        of_tl.into_iter().find_map(|(domain, mem)| self.domains.device_key(*domain, mem))
    }

    /// Key of the memory for libfabric, whose keys serve packets and devices: that of the `efa` device where
    /// this is the only one of the context and has registered the memory, else [`Mem::key`]. Peers make a
    /// remote key of it by [`Rkey::from_libfabric_key`](crate::Rkey::from_libfabric_key).
    pub fn libfabric_key(&self) -> u64 {
        let mut devices = self.domains.iter().filter(|(_, domain)| domain.tl == EFA);
        let (Some((only, _)), None) = (devices.next(), devices.next()) else { return self.key.0 };
        let reg = self.regs.iter().find(|(id, _)| *id == only);
        let device = reg.and_then(|(id, mem)| self.domains.device_key(*id, mem));
        match device {
            Some(key) if self.domains.memory.add_device_key(self.key, DomainId::ONLY_DEVICE, key) => key,
            _ => self.key.0,
        }
    }

    /// Packs the remote key, for any peer of any worker of the context. The peer unpacks it by
    /// [`crate::Ep::unpack_rkey`].
    pub fn pack_rkey(&self) -> Vec<u8> {
        let mut packer = Packer::new(self.key.0, self.addr(), self.len as u64, self.access);
        for (id, mem) in &self.regs {
            let domain = self.domains.get(*id);
            if let Ok(key) = domain.md.pack_rkey(mem) {
                let is_allocated = mem.method() == Some(AllocMethod::Md);
                let remote_mem = if is_allocated { RemoteMem::Allocated } else { RemoteMem::Registered };
                packer.domain(domain.label, &key, self.domains.device_key(*id, mem), remote_mem);
            }
        }
        packer.finish()
    }

    /// Domains that pack a key of the memory.
    pub(super) fn key_domains(&self) -> impl Iterator<Item = &Domain> {
        let domains = self.regs.iter().map(|(id, mem)| (self.domains.get(*id), mem));
        domains.filter(|(domain, mem)| domain.md.pack_rkey(mem).is_ok()).map(|(domain, _)| domain)
    }

    /// Advises the system about `len` bytes from `offset` on: a hint. Fails if they are out of bounds.
    pub fn advise(&self, offset: usize, len: usize, advice: Advice) -> Result<(), MemError> {
        if offset > self.len || len > self.len - offset {
            return Err(MemError::BadRange);
        }
        match self.regs.first() {
            Some((id, mem)) => Ok(self.domains.get(*id).md.advise(mem, offset, len, advice)?),
            None => Ok(()),
        }
    }

    /// Copies `bytes` to offset `at`. An aligned 8-byte word is written whole. Panics if out of bounds.
    pub fn write(&self, at: usize, bytes: &[u8]) {
        let to = self.range(at, bytes.len());
        if bytes.len() == 8 && to.addr().is_multiple_of(8) {
            // SAFETY: eight aligned bytes of this memory (checked); peers use only copies and atomics.
            let word = unsafe { std::sync::atomic::AtomicU64::from_ptr(to.cast()) };
            let value = u64::from_ne_bytes(bytes.try_into().expect("eight bytes"));
            return word.store(value, std::sync::atomic::Ordering::Release);
        }
        // SAFETY: the range is inside this memory (checked), to which no references exist.
        unsafe { ucs::mem::copy_bytes(bytes.as_ptr(), to, bytes.len()) };
    }

    /// Copies bytes at offset `at` to `out`. An aligned 8-byte word is read whole. Panics if out of bounds.
    pub fn read(&self, at: usize, out: &mut [u8]) {
        let from = self.range(at, out.len());
        if out.len() == 8 && from.addr().is_multiple_of(8) {
            // SAFETY: as in `write`.
            let word = unsafe { std::sync::atomic::AtomicU64::from_ptr(from.cast()) };
            let value = word.load(std::sync::atomic::Ordering::Acquire);
            return out.copy_from_slice(&value.to_ne_bytes());
        }
        // SAFETY: the range is inside this memory (checked); `out` is borrowed exclusively.
        unsafe { ucs::mem::copy_bytes(from, out.as_mut_ptr(), out.len()) };
    }

    /// Reads the 8-byte word at offset `at`. Panics if it is out of bounds.
    pub fn word(&self, at: usize) -> u64 {
        let mut bytes = [0; 8];
        self.read(at, &mut bytes);
        u64::from_ne_bytes(bytes)
    }

    fn range(&self, at: usize, len: usize) -> *mut u8 {
        assert!(at <= self.len && len <= self.len - at, "{len} bytes at {at} of {}", self.len);
        self.addr.wrapping_add(at)
    }
}

impl Drop for Mem {
    fn drop(&mut self) {
        // Other memory of the program may lie in such a range, as in that of the whole address space.
        let len = if self.is_late { 0 } else { self.len };
        self.domains.withdraw(self.key, (self.addr, len), &self.regs);
        while self.regs.pop().is_some() {}
    }
}

impl std::fmt::Debug for Mem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mem")
            .field("addr", &self.addr)
            .field("len", &self.len)
            .field("domains", &self.regs.len())
            .finish()
    }
}

/// The part of `access` that the pages permit: what they refuse would be a fault of this process when a
/// peer's packet asks for it.
fn permitted(addr: *mut u8, len: usize, access: Access) -> Access {
    let writes = Access::WRITE | Access::ATOMIC;
    let permitted = if access.is_empty() || may_access(addr.addr(), len, access.intersects(writes)) {
        access
    } else if access.intersects(writes) && may_access(addr.addr(), len, false) {
        access - writes
    } else {
        Access::empty()
    };
    if permitted != access {
        tracing::debug!(
            len,
            "access of peers reduced from {access:?} to {permitted:?}: the pages do not permit more"
        );
    }
    permitted
}

fn wire_access(access: Access) -> WireAccess {
    let mut all = WireAccess::LOCAL_READ | WireAccess::LOCAL_WRITE;
    all.set(WireAccess::REMOTE_READ, access.contains(Access::READ));
    all.set(WireAccess::REMOTE_WRITE, access.contains(Access::WRITE));
    all.set(WireAccess::REMOTE_ATOMIC, access.contains(Access::ATOMIC));
    all
}
