//! Memory that peers may access, registered with every lane and the engine. Peers access it concurrently:
//! there is no Rust reference to it, only pointers and copies.

#![allow(unsafe_code)]

use std::rc::Rc;

use uct::api::{Access as WireAccess, AllocMethod, AllocReq, Iface as _, Md as _, Memory as _};

use crate::api::mem::remote_writes::RemoteWrite;
use crate::api::rma::rkey::Packer;
use crate::api::worker::handle::Worker;

use crate::lane::{self, LaneIdx, connid};
use crate::rdm::{Access, DomainId, MemKey, Region};
use crate::select::RemoteMem;

/// Error of allocating or registering memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemError {
    /// The range is empty, wraps, or starts at 0.
    #[error("no memory there")]
    BadRange,
    /// The worker has no free keys.
    #[error("too many registrations")]
    TooMany,
    /// A transport failed to allocate or register.
    #[error(transparent)]
    Wire(#[from] uct::api::Error),
}

/// Memory of this worker that peers with its remote key may access. Dropping it revokes the key once local
/// operations have ended, but does not stop kernel copies (`cma`), which need no key.
pub struct Mem {
    worker: Worker,
    key: MemKey,
    addr: *mut u8,
    len: usize,
    access: Access,
    /// Registrations by lane. The first owns allocated memory and is dropped last.
    regs: Vec<(LaneIdx, Rc<lane::Mem>)>,
    /// Registration for kernel copies.
    rma_only: Option<lane::Mem>,
}

impl Worker {
    /// Allocates `len` zeroed bytes that peers may access, from the fastest lane that can. Local peers map
    /// them. With [`Access::READ`] peers read long messages directly from them.
    pub fn mem_alloc(&self, len: usize, access: Access) -> Result<Mem, MemError> {
        if len == 0 {
            return Err(MemError::BadRange);
        }
        let mut first = Err(uct::api::Error::NoMemory);
        {
            let core = self.core();
            for (at, lane) in core.lanes.iter().enumerate().filter(|(_, l)| l.iface.md().attr().can_alloc) {
                let req = AllocReq { access: wire_access(access), ..AllocReq::new(len, "ucp") };
                first = lane.iface.md().alloc(&req).map(|mem| (LaneIdx(at as u8), Rc::new(mem)));
                if first.is_ok() {
                    break;
                }
            }
        }
        let (at, mem) = first?;
        let addr = mem.addr();
        // SAFETY: the allocation lives in the new `Mem` until its region is removed; no reference exists.
        unsafe { self.map(addr, len, access, vec![(at, mem)]) }
    }

    /// Registers `len` bytes at `addr` for access by peers. Packets serve lanes that cannot register memory.
    /// # Safety
    /// `addr..addr + len` stays valid for reads, and for writes if `access` has more than [`Access::READ`],
    /// until the result is dropped. Meanwhile nobody holds a Rust reference to bytes that a peer may write.
    pub unsafe fn mem_map(&self, addr: *mut u8, len: usize, access: Access) -> Result<Mem, MemError> {
        // SAFETY: the caller's contract.
        unsafe { self.map(addr, len, access, Vec::new()) }
    }

    /// Unsafe: as for [`Worker::mem_map`].
    unsafe fn map(
        &self,
        addr: *mut u8,
        len: usize,
        access: Access,
        mut regs: Vec<(LaneIdx, Rc<lane::Mem>)>,
    ) -> Result<Mem, MemError> {
        if len == 0 {
            return Err(MemError::BadRange);
        }
        // SAFETY: the caller's contract includes that of a region.
        let region = unsafe { Region::new(addr, len, access) }.ok_or(MemError::BadRange)?;
        let mut core = self.core();
        for (at, lane) in core.lanes.iter().enumerate() {
            let at = LaneIdx(at as u8);
            if !lane.iface.md().attr().can_register || regs.iter().any(|(done, _)| *done == at) {
                continue;
            }
            // SAFETY: the caller's contract includes that of a registration.
            match unsafe { lane.iface.md().register(addr, len, wire_access(access)) } {
                Ok(mem) => regs.push((at, Rc::new(mem))),
                Err(why) => tracing::debug!(tl = lane.iface.attr().tl, len, "memory goes by packets: {why}"),
            }
        }
        // SAFETY: as above.
        let reg = |rma_only: &lane::RmaOnlyLane| unsafe { rma_only.register(addr, len, wire_access(access)) };
        let rma_only = core.rma_only.as_ref().and_then(reg);
        let key = core.engine.add_memory(region).ok_or(MemError::TooMany)?;
        let core = &mut *core;
        for (at, mem) in &regs {
            core.regs.own(*at, mem);
            let lane = &core.lanes[usize::from(at.0)];
            if let Some(device) = lane::device_key(&lane.iface, mem) {
                core.engine.memory().add_device_key(key, DomainId(lane.wire.0), device);
            }
        }
        Ok(Mem { worker: self.clone(), key, addr, len, access, regs, rma_only })
    }

    /// Takes the next completed remote write that carried data for this worker, in order of completion.
    pub fn take_remote_write(&self) -> Option<RemoteWrite> {
        self.core().remote_writes.take()
    }
}

impl Mem {
    /// First byte. Peers may change the memory at any time: use volatile or atomic accesses.
    pub fn as_ptr(&self) -> *mut u8 {
        self.addr
    }

    /// First address, as used by peers.
    pub fn addr(&self) -> u64 {
        self.addr.expose_provenance() as u64
    }

    /// Length, bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Always false: the length is at least one byte.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Access permitted to peers.
    pub fn access(&self) -> Access {
        self.access
    }

    /// Key of the memory in packets. A peer with another library needs it and an address.
    pub fn key(&self) -> u64 {
        self.key.0
    }

    /// Key of the memory for RDMA by the device of transport `tl`, for peers with another library.
    pub fn device_key(&self, tl: &str) -> Option<u64> {
        let core = self.worker.core();
        self.regs.iter().find_map(|(at, mem)| {
            let iface = &core.lanes[usize::from(at.0)].iface;
            if iface.attr().tl == tl { lane::device_key(iface, mem) } else { None }
        })
    }

    /// Packs the remote key, for any peer of this worker. The peer unpacks it by [`crate::Ep::unpack_rkey`].
    pub fn pack_rkey(&self) -> Vec<u8> {
        let core = self.worker.core();
        let mut packer = Packer::new(self.key.0, self.addr(), self.len as u64, self.access);
        for (at, mem) in &self.regs {
            let lane = &core.lanes[usize::from(at.0)];
            if let Ok(key) = lane.iface.md().pack_rkey(mem) {
                let is_allocated = mem.method() == Some(AllocMethod::Md);
                let remote_mem = if is_allocated { RemoteMem::Allocated } else { RemoteMem::Registered };
                packer.lane(connid(&lane.raw), &key, lane::device_key(&lane.iface, mem), remote_mem);
            }
        }
        if let Some(mem) = &self.rma_only
            && let Some((connid, key)) = core.rma_only.as_ref().and_then(|rma_only| rma_only.pack_rkey(mem))
        {
            packer.lane(connid, &key, None, RemoteMem::Registered);
        }
        packer.finish()
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
        let mut core = self.worker.core();
        let (engine, mut wire, _) = core.split();
        engine.remove_memory(&mut wire, self.key);
        self.regs.iter().for_each(|(at, mem)| core.regs.disown(*at, mem));
        drop(core);
        self.rma_only = None;
        while self.regs.pop().is_some() {}
    }
}

impl std::fmt::Debug for Mem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let lanes = self.regs.len();
        f.debug_struct("Mem")
            .field("addr", &self.addr)
            .field("len", &self.len)
            .field("lanes", &lanes)
            .finish()
    }
}

fn wire_access(access: Access) -> WireAccess {
    let mut all = WireAccess::LOCAL_READ | WireAccess::LOCAL_WRITE;
    all.set(WireAccess::REMOTE_READ, access.contains(Access::READ));
    all.set(WireAccess::REMOTE_WRITE, access.contains(Access::WRITE));
    all.set(WireAccess::REMOTE_ATOMIC, access.contains(Access::ATOMIC));
    all
}
