//! Memory of `posix`: allocated as sealed memory files that peers fetch and map, or registered where it is.
//! Only allocated memory has a remote key: a peer can map a file, not another process' private pages. Registered
//! memory works as a local buffer of zcopy, and asking for its key answers *unsupported*.

use super::TL;
use super::porter::{Export, Name, Porter, as_error};
use crate::api::{self, Access, AddrBuf, AllocMethod, AllocReq, Error, MdAttr, Op};
use crate::base::alloc::{self, by_methods};
use crate::base::direct::Window;
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use ucs::mem::{Fill, FixedMap, MapOpts, MemError, SharedMap, SharedMem};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A remote key on its way: what the memory is called, and where its owner has it mapped.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct PackedKey {
    name: U64,
    addr: U64,
    len: U64,
    access: U32,
    magic: U32,
}

const KEY_LEN: usize = size_of::<PackedKey>();
const KEY_MAGIC: u32 = u32::from_le_bytes(*b"pkey");
const _: () = assert!(KEY_LEN == 32);

/// Mappings of peers' memory, shared by the keys that name the same file.
type Mappings = HashMap<Name, Weak<SharedMap>>;

/// The memory domain of `posix`. Cloning gives another handle to the same one.
#[derive(Clone)]
pub struct Md {
    inner: Rc<Inner>,
}

struct Inner {
    attr: MdAttr,
    porter: Arc<Porter>,
    mappings: RefCell<Mappings>,
}

/// Registered memory.
#[derive(Debug)]
pub struct Mem {
    addr: *mut u8,
    len: usize,
    access: Access,
    shared: Option<Shared>,
}

#[derive(Debug)]
struct Shared {
    export: Export,
    _map: Arc<SharedMem>,
    /// Where it is used, if that was asked for.
    _fixed: Option<FixedMap>,
    method: AllocMethod,
}

/// An unpacked key: the peer's memory is mapped as long as it lives.
#[derive(Debug)]
pub struct Rkey {
    window: Window,
    _map: Rc<SharedMap>,
}

impl Md {
    pub(crate) fn new(porter: Arc<Porter>) -> Self {
        let attr = MdAttr {
            component: TL,
            can_alloc: true,
            can_register: true,
            has_rkey: true,
            rkey_needs_alloc: true,
            needs_local_key: false,
            rkey_len: KEY_LEN,
            max_reg: None,
        };
        Md { inner: Rc::new(Inner { attr, porter, mappings: RefCell::default() }) }
    }

    /// The mapping of a peer's file, made if no key has it yet.
    pub(crate) fn map(&self, name: Name, len: usize) -> Result<Rc<SharedMap>, Error> {
        let mut mappings = self.inner.mappings.borrow_mut();
        if let Some(map) = mappings.get(&name).and_then(Weak::upgrade) {
            return Ok(map);
        }
        let fetched = self.inner.porter.fetch(name).map_err(as_error)?;
        let map = SharedMem::from_fd(fetched.mem, len).map_err(unpack_error)?;
        mappings.retain(|_, map| map.strong_count() > 0);
        let map = Rc::new(SharedMap::from(map));
        mappings.insert(name, Rc::downgrade(&map));
        Ok(map)
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
            // Private pages have no name a peer could map, so these are memory files, whatever their pages.
            let lazy = MapOpts { fill: Fill::Lazy, ..MapOpts::default() };
            // The address first, so that the file's own mapping does not take it.
            let mut fixed = match req.at {
                Some(at) => Some(FixedMap::anon(at, req.len, lazy).map_err(alloc::error)?),
                None => None,
            };
            let file =
                SharedMem::create(req.name, req.len, alloc::map_opts(req, method)).map_err(alloc::error)?;
            if let Some(fixed) = &mut fixed {
                fixed.back_by(&file).map_err(alloc::error)?;
            }
            let addr = fixed.as_ref().map_or(file.as_ptr(), FixedMap::as_ptr);
            let (porter, map) = (&self.inner.porter, Arc::new(file));
            let export = porter.export(porter.new_name(), map.clone(), None);
            let shared = Shared { export, _map: map, _fixed: fixed, method };
            Ok(Mem { addr, len: req.len, access: req.access, shared: Some(shared) })
        })
    }

    unsafe fn register(&self, addr: *mut u8, len: usize, access: Access) -> Result<Mem, Error> {
        if addr.is_null() || len == 0 {
            return Err(Error::InvalidParam("registration of no memory"));
        }
        Ok(Mem { addr, len, access, shared: None })
    }

    fn pack_rkey(&self, mem: &Mem) -> Result<AddrBuf, Error> {
        let shared = mem.shared.as_ref().ok_or(Error::Unsupported(Op::RemoteKey))?;
        let key = PackedKey {
            name: shared.export.name().0.into(),
            addr: (mem.addr.addr() as u64).into(),
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
        let map = self.map(Name(key.name.get()), len)?;
        if len > map.len() {
            return Err(Error::RemoteAccess);
        }
        let access = Access::from_bits_truncate(key.access.get());
        // SAFETY: `len` bytes are mapped (just checked) as long as `_map`, which lives in the same key.
        let window = unsafe { Window::new(key.addr.get(), len, map.as_ptr(), access) };
        Ok(Rkey { window, _map: map })
    }

    fn direct_ptr(&self, rkey: &Rkey, remote: u64, len: usize) -> Option<*mut u8> {
        rkey.window.at(remote, len, Access::empty()).ok()
    }
}

impl Mem {
    /// What peers call it, if they can map it.
    pub(crate) fn name(&self) -> Option<Name> {
        self.shared.as_ref().map(|shared| shared.export.name())
    }

    /// What it may be used for.
    pub(crate) fn access(&self) -> Access {
        self.access
    }
}

impl Rkey {
    /// The peer's memory. // HOT
    #[inline(always)]
    pub(super) fn window(&self) -> &Window {
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
        self.addr
    }

    fn len(&self) -> usize {
        self.len
    }

    fn method(&self) -> Option<AllocMethod> {
        self.shared.as_ref().map(|shared| shared.method)
    }

    fn access(&self) -> Access {
        self.access
    }
}

fn unpack_error(e: MemError) -> Error {
    match e {
        MemError::Gone { .. } => Error::PeerDead,
        MemError::Denied { .. } => Error::Unreachable,
        MemError::Refused { .. } | MemError::BadLength { .. } => Error::RemoteAccess,
        MemError::Descriptors { .. } => Error::NoDescriptor,
        MemError::Exhausted { .. } | MemError::FileLimit { .. } | MemError::LockLimit { .. } => {
            Error::NoMemory
        }
        MemError::Os { op, errno } => Error::Sys { call: op, errno },
    }
}
