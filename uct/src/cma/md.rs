//! Memory of `cma`. Any memory has a key, since the kernel copies to wherever its owner has it; what this
//! domain allocates can be mapped too, which a peer does when it unpacks the key.

#![allow(unsafe_code)]

use super::{Config, TL, probe};
use crate::api::{self, Access, AddrBuf, AllocMethod, AllocReq, Error, MdAttr, Memory as _, OpenError};
use crate::base::direct::{Range, Window};
use crate::host;
use crate::host::fd_server::{Capability, FdServer, Name, ProcKey, SocketNamespace};
use crate::host::{RemoteSegment, Watch};
use std::sync::Arc;
use std::time::Duration;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct PackedKey {
    /// Key of the owner's process; endpoints to another process refuse it.
    owner: U64,
    /// Name of the memory if it can be mapped, or 0.
    name: U64,
    addr: U64,
    len: U64,
    access: U32,
    magic: U32,
    /// Proves to the owner that this key was given away, if there is a name.
    nonce: U64,
}

const KEY_LEN: usize = size_of::<PackedKey>();
const KEY_MAGIC: u32 = u32::from_le_bytes(*b"cke2");
const _: () = assert!(KEY_LEN == 48);

/// The memory domain of `cma`. Cloning gives another handle to the same one.
#[derive(Clone)]
pub struct Md {
    attr: Arc<MdAttr>,
    shared_mem: host::Md,
    owner: ProcKey,
    map_allocated: bool,
}

/// Registered memory.
#[derive(Debug)]
pub struct Mem(host::Mem);

/// An unpacked key.
#[derive(Debug)]
pub struct Rkey {
    owner: ProcKey,
    memory: KeyMemory,
}

#[derive(Debug)]
enum KeyMemory {
    Syscall(Range),
    Mapped(Window, #[expect(dead_code, reason = "keeps the window mapped")] Arc<RemoteSegment>),
}

impl Md {
    /// Opens a domain if the system permits the system calls.
    pub fn open(config: &Config) -> Result<Self, OpenError> {
        if let Some(why) = probe::unavailable_reason() {
            return Err(OpenError::Environment(format!("transport '{TL}' is off: {why}")));
        }
        ucs::sys::proc::allow_ptrace(config.allow_peers);
        let server = FdServer::get(SocketNamespace::new(&config.socket_dir)?)?;
        Ok(Md::new(server, config.map, config.answer_timeout))
    }

    fn new(server: Arc<FdServer>, map_allocated: bool, answer_timeout: Duration) -> Self {
        let owner = server.key();
        // Interfaces watch processes from their first endpoint on.
        let shared_mem = host::Md::new(TL, server, Watch::Nothing, answer_timeout);
        let attr = MdAttr {
            component: TL,
            rkey_len: KEY_LEN,
            rkey_needs_alloc: false,
            ..api::Md::attr(&shared_mem).clone()
        };
        Md { attr: Arc::new(attr), shared_mem, owner, map_allocated }
    }

    /// The part that `posix` has as well.
    pub(super) fn shared(&self) -> &host::Md {
        &self.shared_mem
    }

    pub(super) fn server(&self) -> &Arc<FdServer> {
        self.shared_mem.remote_segments().server()
    }
}

impl api::Md for Md {
    type Mem = Mem;
    type Rkey = Rkey;

    fn attr(&self) -> &MdAttr {
        &self.attr
    }

    fn alloc(&self, req: &AllocReq<'_>) -> Result<Mem, Error> {
        self.shared_mem.alloc(req).map(Mem)
    }

    unsafe fn register(&self, addr: *mut u8, len: usize, access: Access) -> Result<Mem, Error> {
        // SAFETY: the caller's promise is the same.
        unsafe { self.shared_mem.register(addr, len, access) }.map(Mem)
    }

    fn pack_rkey(&self, mem: &Mem) -> Result<AddrBuf, Error> {
        let mapped = self.shared_mem.capability(&mem.0)?;
        let key = PackedKey {
            owner: self.owner.0.into(),
            name: mapped.map_or(0, |it| it.name.0).into(),
            nonce: mapped.map_or(0, |it| it.nonce).into(),
            addr: (mem.addr().addr() as u64).into(),
            len: (mem.len() as u64).into(),
            access: mem.0.access().bits().into(),
            magic: KEY_MAGIC.into(),
        };
        Ok(key.as_bytes().iter().copied().collect())
    }

    fn unpack_rkey(&self, packed: &[u8]) -> Result<Rkey, Error> {
        let key = PackedKey::read_from_bytes(packed).ok().filter(|key| key.magic.get() == KEY_MAGIC);
        let key = key.ok_or(Error::InvalidParam("not a key of this transport"))?;
        let (owner, addr) = (ProcKey(key.owner.get()), key.addr.get());
        let len = usize::try_from(key.len.get()).map_err(|_| Error::RemoteAccess)?;
        let access = Access::from_bits_truncate(key.access.get());
        // Else an endpoint to the owner would reach the memory of a third process.
        if key.name.get() != 0 && Name(key.name.get()).owner() != owner {
            return Err(Error::InvalidParam("key of one process names memory of another"));
        }
        let mapped = match key.name.get() {
            0 => None,
            _ if !self.map_allocated => None,
            // Without a mapping (other network namespace, no descriptor, stopped process) the kernel copies.
            name => self
                .shared_mem
                .remote_segments()
                .map(Capability { name: Name(name), nonce: key.nonce.get() })
                .and_then(|segment| Ok((segment.window(addr, len, access)?, segment)))
                .ok(),
        };
        let memory = match mapped {
            Some((window, segment)) => KeyMemory::Mapped(window, segment),
            None => KeyMemory::Syscall(Range::new(addr, len, access)),
        };
        Ok(Rkey { owner, memory })
    }

    /// The key of the process: the kernel decides who may reach its memory.
    fn mr_key(&self, mem: &Mem) -> Result<u64, Error> {
        // A revoked one has none.
        self.shared_mem.capability(&mem.0)?;
        Ok(self.owner.0)
    }

    fn rkey_from_mr_key(&self, key: u64, addr: u64, len: u64) -> Result<Rkey, Error> {
        let len = usize::try_from(len).map_err(|_| Error::RemoteAccess)?;
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
        Ok(Rkey { owner: ProcKey(key), memory: KeyMemory::Syscall(Range::new(addr, len, access)) })
    }

    fn rkey_ptr(&self, rkey: &Rkey, remote: u64, len: usize) -> Option<*mut u8> {
        rkey.window()?.at(remote, len, Access::empty()).ok()
    }
}

impl api::Memory for Mem {
    fn addr(&self) -> *mut u8 {
        self.0.addr()
    }

    fn len(&self) -> usize {
        self.0.len()
    }

    fn method(&self) -> Option<AllocMethod> {
        self.0.method()
    }

    fn access(&self) -> Access {
        api::Memory::access(&self.0)
    }

    /// Withdraws the name of an allocation, so that nobody maps it any more. Processes that have mapped it
    /// keep access by the mapping, and the kernel copies to and from the memory for whoever has had a key.
    fn revoke(&self) {
        self.0.revoke();
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

/// Mapped or not, keys of the same memory of a process are equal.
impl Ord for Rkey {
    fn cmp(&self, other: &Rkey) -> std::cmp::Ordering {
        let identity = |rkey: &Rkey| (rkey.owner.0, *rkey.bounds());
        identity(self).cmp(&identity(other))
    }
}

impl Rkey {
    pub(super) fn owner(&self) -> ProcKey {
        self.owner
    }

    /// The mapping, if there is one.
    // HOT
    #[inline(always)]
    pub(super) fn window(&self) -> Option<&Window> {
        match &self.memory {
            KeyMemory::Mapped(window, _) => Some(window),
            KeyMemory::Syscall(_) => None,
        }
    }

    /// The range in its owner's addresses.
    // HOT
    #[inline(always)]
    pub(super) fn bounds(&self) -> &Range {
        match &self.memory {
            KeyMemory::Mapped(window, _) => window.bounds(),
            KeyMemory::Syscall(range) => range,
        }
    }
}

impl api::Rkey for Rkey {
    fn range(&self) -> (u64, usize) {
        self.bounds().range()
    }
}
