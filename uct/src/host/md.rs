//! The memory domain of shared memory: allocates sealed memory files, which peers fetch and map, and
//! registers any memory. Only allocations have a remote key, since a peer cannot map another process's
//! private pages; other registered memory serves as a local buffer. `posix` uses it as its own, `cma` extends
//! it.

#![allow(unsafe_code)]

use super::allocations::{Allocated, Allocations};
use super::fd_server::{Capability, Export, ExportKind, FdServer, MemRange, Name};
use super::remote_segment::{RemoteSegment, RemoteSegments, Watch};
use crate::api::{self, Access, AddrBuf, AllocMethod, AllocReq, Error, MdAttr, Op};
use crate::base::alloc::{self, by_methods};
use crate::base::check::registrable;
use crate::base::direct::Window;
use crate::base::mem_ptr::MemPtr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use ucs::mem::{FixedMap, SharedMem};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct PackedKey {
    name: U64,
    addr: U64,
    len: U64,
    access: U32,
    magic: U32,
    /// Proves to the owner that this key was given away.
    nonce: U64,
}

const KEY_LEN: usize = size_of::<PackedKey>();
const KEY_MAGIC: u32 = u32::from_le_bytes(*b"pke2");
/// The rights that peers may have.
const REMOTE: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE).union(Access::REMOTE_ATOMIC);
const _: () = assert!(KEY_LEN == 40);

/// A memory domain of shared memory. Cloning gives another handle to the same one.
#[derive(Clone)]
pub struct Md {
    inner: Arc<Inner>,
}

struct Inner {
    attr: MdAttr,
    remote_segments: RemoteSegments,
    allocations: Allocations,
}

/// Registered memory.
#[derive(Debug)]
pub struct Mem {
    addr: MemPtr,
    len: usize,
    access: Access,
    /// Name of the allocation it lies in, if peers may use that with these rights.
    name: Option<Name>,
    /// The allocation; `None` if the caller owns the memory.
    shared: Option<Shared>,
    revoked: AtomicBool,
}

struct Shared {
    server: Arc<FdServer>,
    /// `None` if peers have no rights.
    export: Option<Export>,
    map: Arc<SharedMem>,
    fixed: Option<FixedMap>,
    method: AllocMethod,
    md: Weak<Inner>,
}

/// An unpacked key: the peer's memory is mapped as long as it lives.
#[derive(Debug)]
pub struct Rkey {
    window: Window,
    segment: Arc<RemoteSegment>,
}

impl Md {
    /// A domain of transport `component`. `watch`: whether its interfaces want to hear of the death of a
    /// process whose memory is mapped, see [`RemoteSegments::add_alarm`].
    pub(crate) fn new(
        component: &'static str,
        server: Arc<FdServer>,
        watch: Watch,
        answer_timeout: Duration,
    ) -> Self {
        let attr = MdAttr {
            component,
            can_alloc: true,
            can_register: true,
            has_rkey: true,
            rkey_needs_alloc: true,
            needs_local_key: false,
            rkey_len: KEY_LEN,
            max_reg: None,
            revokes_keys: false,
        };
        let remote_segments = RemoteSegments::new(server, watch, answer_timeout);
        Md { inner: Arc::new(Inner { attr, remote_segments, allocations: Allocations::default() }) }
    }

    /// The capability in keys of the memory; `None` if it can have none. Fails once it is revoked.
    pub(crate) fn capability(&self, mem: &Mem) -> Result<Option<Capability>, Error> {
        let server = self.inner.remote_segments.server();
        Ok(mem.name()?.map(|name| Capability { name, nonce: server.nonce(name) }))
    }

    pub(crate) fn remote_segments(&self) -> &RemoteSegments {
        &self.inner.remote_segments
    }
}

impl Shared {
    /// Takes the allocation from those that peers can map.
    fn withdraw(&self) {
        // After a fork another thread of the parent may hold a lock for ever.
        if !self.server.is_ours() {
            return;
        }
        if let Some(md) = self.md.upgrade() {
            md.allocations.remove(self.at().addr());
        }
        if let Some(export) = &self.export {
            export.withdraw();
        }
    }

    fn at(&self) -> *mut u8 {
        self.fixed.as_ref().map_or(self.map.as_ptr(), FixedMap::as_ptr)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // After a fork the memory is the parent's, which may go on.
        if !self.server.is_ours() {
            return;
        }
        self.withdraw();
        // Peers keep the mapping but lose the pages. Not of huge pages, which may run out for later readers.
        if self.method != AllocMethod::Huge {
            self.map.discard();
        }
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("export", &self.export).field("method", &self.method).finish()
    }
}

impl api::Md for Md {
    type Mem = Mem;
    type Rkey = Rkey;

    fn attr(&self) -> &MdAttr {
        &self.inner.attr
    }

    fn alloc(&self, req: &AllocReq<'_>) -> Result<Mem, Error> {
        by_methods(req, |method| {
            // Peers map memory files, so allocations are such, whatever their pages.
            let opts = alloc::map_opts(req, method);
            // Reserved first, so that the file's own mapping does not take it.
            let reserve = |at| FixedMap::reserve(at, req.len, opts.pages).map_err(alloc::error);
            let mut fixed = req.at.map(reserve).transpose()?;
            let remote = req.access & REMOTE;
            let read_only = remote == Access::REMOTE_READ;
            let create = if read_only { SharedMem::create_for_readers } else { SharedMem::create };
            let file = create(req.name, req.len, opts).map_err(alloc::error)?;
            if let Some(fixed) = &mut fixed {
                fixed.map_file(&file, opts).map_err(alloc::error)?;
            }
            if read_only {
                // What a peer may only read it cannot map for writing either.
                file.refuse_writers().map_err(alloc::error)?;
            }
            let addr = fixed.as_ref().map_or(file.as_ptr(), FixedMap::as_ptr);
            let server = self.inner.remote_segments.server().clone();
            let range = MemRange::new(addr.addr() as u64, req.len as u64, req.access.bits());
            let map = Arc::new(file);
            // Memory that peers have no rights to is passed to nobody.
            let export = || server.export(server.new_name(), map.clone(), ExportKind::Memory(range));
            let export = (!remote.is_empty()).then(export);
            let (len, access, name) = (req.len, req.access, export.as_ref().map(Export::name));
            self.inner.allocations.insert(addr.addr(), Allocated { len, access, name });
            let shared = Shared { server, export, map, fixed, method, md: Arc::downgrade(&self.inner) };
            Ok(Mem {
                addr: MemPtr(addr),
                len,
                access,
                name,
                shared: Some(shared),
                revoked: AtomicBool::new(false),
            })
        })
    }

    #[inline]
    fn has_allocated(&self, addr: *const u8, len: usize) -> bool {
        self.inner.allocations.containing(addr.addr(), len).is_some()
    }

    unsafe fn register(&self, addr: *mut u8, len: usize, access: Access) -> Result<Mem, Error> {
        registrable(addr, len)?;
        let remote = access & REMOTE;
        let allocation = || self.inner.allocations.containing(addr.addr(), len);
        let by_this_domain = || allocation().and_then(|it| Some((it.name?, it.access)));
        let in_process = || self.inner.remote_segments.server().memory_at(addr.addr() as u64, len as u64);
        let allocated = match remote.is_empty() {
            true => None,
            false => by_this_domain().or_else(in_process).filter(|(_, access)| access.contains(remote)),
        };
        let (name, revoked) = (allocated.map(|(name, _)| name), AtomicBool::new(false));
        Ok(Mem { addr: MemPtr(addr), len, access, name, shared: None, revoked })
    }

    fn pack_rkey(&self, mem: &Mem) -> Result<AddrBuf, Error> {
        let it = self.capability(mem)?.ok_or(Error::Unsupported(Op::RemoteKey))?;
        let key = PackedKey {
            name: it.name.0.into(),
            nonce: it.nonce.into(),
            addr: (mem.addr.0.addr() as u64).into(),
            len: (mem.len as u64).into(),
            access: mem.access.bits().into(),
            magic: KEY_MAGIC.into(),
        };
        Ok(key.as_bytes().iter().copied().collect())
    }

    fn unpack_rkey(&self, packed: &[u8]) -> Result<Rkey, Error> {
        let key = PackedKey::read_from_bytes(packed).ok().filter(|key| key.magic.get() == KEY_MAGIC);
        let key = key.ok_or(Error::InvalidParam("not a key of this transport"))?;
        let len = usize::try_from(key.len.get()).map_err(|_| Error::RemoteAccess)?;
        let segment = self
            .inner
            .remote_segments
            .map(Capability { name: Name(key.name.get()), nonce: key.nonce.get() })?;
        let window = segment.window(key.addr.get(), len, Access::from_bits_truncate(key.access.get()))?;
        Ok(Rkey { window, segment })
    }

    /// An alias of the allocation: a key for all of it, with its own rights.
    fn mr_key(&self, mem: &Mem) -> Result<u64, Error> {
        let server = self.inner.remote_segments.server();
        let alias = mem.name()?.and_then(|name| server.alias(name));
        alias.map(|name| name.0).ok_or(Error::Unsupported(Op::RemoteKey))
    }

    /// The first call for a name queries the peer's fd server and returns [`Error::NotReady`].
    #[inline]
    fn rkey_from_mr_key(&self, key: u64, _addr: u64, _len: u64) -> Result<Rkey, Error> {
        let segment = self.inner.remote_segments.by_mr_key(Name(key))?;
        Ok(Rkey { window: segment.all()?, segment })
    }

    fn rkey_ptr(&self, rkey: &Rkey, remote: u64, len: usize) -> Option<*mut u8> {
        rkey.window.at(remote, len, Access::empty()).ok()
    }
}

impl Mem {
    /// Name of the allocation it lies in. Fails once it is revoked.
    fn name(&self) -> Result<Option<Name>, Error> {
        if self.revoked.load(Ordering::Relaxed) { Err(Error::BadLocalKey) } else { Ok(self.name) }
    }

    pub(crate) fn access(&self) -> Access {
        self.access
    }
}

impl PartialEq for Rkey {
    fn eq(&self, other: &Rkey) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Rkey {}

impl PartialOrd for Rkey {
    fn partial_cmp(&self, other: &Rkey) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Rkey {
    fn cmp(&self, other: &Rkey) -> std::cmp::Ordering {
        let identity = |rkey: &Rkey| (rkey.segment.name().0, *rkey.window.bounds());
        identity(self).cmp(&identity(other))
    }
}

impl Rkey {
    /// The memory of the peer.
    // HOT
    #[inline(always)]
    pub(crate) fn window(&self) -> &Window {
        &self.window
    }
}

impl api::Rkey for Rkey {
    fn range(&self) -> (u64, usize) {
        self.window.range()
    }
}

impl api::Memory for Mem {
    fn addr(&self) -> *mut u8 {
        self.addr.0
    }

    fn len(&self) -> usize {
        self.len
    }

    fn method(&self) -> Option<AllocMethod> {
        self.shared.as_ref().map(|shared| shared.method)
    }

    /// Withdraws the name of an allocation, so that nobody maps it any more. Processes that have mapped it
    /// keep the mapping, and access by it, until it is dropped. A part of an allocation yields no key any
    /// more.
    fn revoke(&self) {
        self.revoked.store(true, Ordering::Relaxed);
        if let Some(shared) = &self.shared {
            shared.withdraw();
        }
    }

    fn access(&self) -> Access {
        self.access
    }
}
