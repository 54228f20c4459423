//! Memory domains: allocating, registering and naming memory for a transport.

#![allow(unsafe_code)]

use super::{AddrBuf, Error, Op};
use bitflags::bitflags;
use std::ptr::NonNull;
pub use ucs::mem::Fill;

bitflags! {
    /// Access granted by a registration.
    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
    pub struct Access: u32 {
        /// The local device may read (sources of sends and puts). Always granted.
        const LOCAL_READ = 1;
        /// The local device may write (receive buffers, targets of gets).
        const LOCAL_WRITE = 2;
        /// Peers may read.
        const REMOTE_READ = 4;
        /// Peers may write.
        const REMOTE_WRITE = 8;
        /// Peers may do atomics.
        const REMOTE_ATOMIC = 16;
        /// All of it.
        const ALL = 31;
    }
}

/// Where memory lives. Part of registration and of protocol selection; host only for now.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Default)]
#[non_exhaustive]
pub enum MemKind {
    /// Memory of this host's CPUs.
    #[default]
    Host,
}

/// A way to get memory, tried in the order given.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub enum AllocMethod {
    /// The memory domain's own way: what the transport does its fastest operations on.
    Md,
    /// Huge pages reserved on this machine.
    Huge,
    /// Ordinary pages with the advice to make them huge.
    Thp,
    /// A memory file without a name, which other processes may map.
    Memfd,
    /// Anonymous pages.
    Mmap,
    /// The process heap.
    Heap,
}

/// Request for memory.
#[derive(Clone, Copy, Debug)]
pub struct AllocReq<'a> {
    /// Bytes, more than zero.
    pub len: usize,
    /// Methods in order of preference.
    pub methods: &'a [AllocMethod],
    /// Access to register it for.
    pub access: Access,
    /// Kind of memory.
    pub kind: MemKind,
    /// Where to put it: page aligned, and nothing may be there. `None`: anywhere.
    pub at: Option<NonNull<u8>>,
    /// When the pages get their memory. [`Fill::Lazy`] makes the call quick however large the memory.
    pub fill: Fill,
    /// A name that shows in `/proc/PID/maps` where the method can carry one.
    pub name: &'a str,
}

impl<'a> AllocReq<'a> {
    /// `len` bytes of host memory, all access, the domain's own method first.
    pub fn new(len: usize, name: &'a str) -> Self {
        const DEFAULT: &[AllocMethod] = &[AllocMethod::Md, AllocMethod::Thp, AllocMethod::Mmap];
        AllocReq {
            len,
            methods: DEFAULT,
            access: Access::ALL,
            kind: MemKind::Host,
            at: None,
            fill: Fill::Now,
            name,
        }
    }
}

/// Announced use of memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Advice {
    /// Nothing special.
    Normal,
    /// It will be used soon: read it in.
    WillNeed,
    /// Make its pages huge where possible.
    Huge,
}

/// Description of the memory at an address.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct MemQuery {
    /// Kind of memory.
    pub kind: MemKind,
    /// First byte of the mapping it lies in.
    pub start: usize,
    /// Bytes of that mapping.
    pub len: usize,
    /// Bytes in a page.
    pub page: usize,
    /// Whether other processes that map the same see writes.
    pub shared: bool,
}

/// Attributes of a memory domain.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct MdAttr {
    /// Component name (`self`, `posix`, `efa`).
    pub component: &'static str,
    /// Whether `alloc` with [`AllocMethod::Md`] works.
    pub can_alloc: bool,
    /// Whether `register` of memory the caller owns works.
    pub can_register: bool,
    /// Whether registrations yield a remote key.
    pub has_rkey: bool,
    /// Whether only memory the domain has allocated itself has one, and what is registered of that.
    pub rkey_needs_alloc: bool,
    /// Whether local zcopy needs a registration of this domain.
    pub needs_local_key: bool,
    /// Longest packed remote key, bytes.
    pub rkey_len: usize,
    /// Most registrations at a time, if bounded.
    pub max_reg: Option<usize>,
    /// Whether [`Memory::revoke`] ends the access by every key that has been unpacked.
    pub revokes_keys: bool,
}

/// Registered memory: a local key, for any thread. Dropping it deregisters (and frees, if the domain
/// allocated it).
pub trait Memory: Send + Sync {
    /// First byte.
    fn addr(&self) -> *mut u8;
    /// Length, bytes.
    fn len(&self) -> usize;
    /// Never true: a registration has at least one byte.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// The way it was allocated, or `None` if the caller owns the memory.
    fn method(&self) -> Option<AllocMethod>;
    /// Registered access.
    fn access(&self) -> Access;
    /// Ends the access by keys while the registration lives on, perhaps shared. From its return on the
    /// registration yields no key. With [`MdAttr::revokes_keys`] an operation that begins by an earlier key
    /// fails too; without, whoever has unpacked one may go on, as the transport says. Operations that other
    /// threads have begun may still be under way. A second call has no effect.
    fn revoke(&self);
}

/// An unpacked remote key, for any thread. Keys of one owner are equal if they name the same memory by the
/// same registration with the same rights. Their order is total and has no meaning.
pub trait Rkey: Ord + Send + Sync {
    /// The remote range it names: first virtual address in the owner's process, and length.
    fn range(&self) -> (u64, usize);
}

/// A memory domain. Interfaces of several threads may be opened on one; what is registered with it serves all
/// of them.
pub trait Md: Send + Sync {
    /// Registered memory.
    type Mem: Memory;
    /// Unpacked remote key.
    type Rkey: Rkey;

    /// Attributes.
    fn attr(&self) -> &MdAttr;

    /// Address of the device, as [`super::Iface::device_addr`] of its interfaces; empty for domains that are
    /// no device of a network.
    fn device_addr(&self) -> AddrBuf {
        AddrBuf::new()
    }

    /// Allocates memory and registers it. The bytes are zero.
    fn alloc(&self, req: &AllocReq<'_>) -> Result<Self::Mem, Error>;

    /// Whether a range lies in one allocation of this domain, which has a remote key also with
    /// [`MdAttr::rkey_needs_alloc`].
    fn has_allocated(&self, _addr: *const u8, _len: usize) -> bool {
        false
    }

    /// Registers memory the caller owns. Where the transport itself would access it by the program's own
    /// instructions (`self`, `efa` on the software device), memory that is not mapped, or is read-only and to
    /// be written, is refused with `EFAULT`, as NICs do. `posix` and `cma` record the range: the first gives
    /// no key of such memory, with the second the kernel refuses the access.
    /// # Safety
    /// The memory stays valid (for writes if `access` has any) until the registration is dropped and all
    /// operations on it, by any thread of this process, are over; nobody holds a Rust reference to it while a
    /// peer may write it.
    unsafe fn register(&self, addr: *mut u8, len: usize, access: Access) -> Result<Self::Mem, Error>;

    /// Registers memory as [`Md::register`], for operations of a caller that knows it to be accessible: does
    /// without a check by the system where that is not part of registering.
    /// # Safety
    /// As for [`Md::register`].
    unsafe fn register_for_op(&self, addr: *mut u8, len: usize, access: Access) -> Result<Self::Mem, Error> {
        // SAFETY: the caller's promise is the same.
        unsafe { self.register(addr, len, access) }
    }

    /// Advises the system about `len` bytes of a registration from `offset` on; a hint.
    fn advise(&self, mem: &Self::Mem, offset: usize, len: usize, advice: Advice) -> Result<(), Error> {
        if offset > mem.len() || len > mem.len() - offset {
            return Err(Error::BadLocalKey);
        }
        crate::base::alloc::advise(mem.addr().wrapping_add(offset), len, advice)
    }

    /// Describes the memory at `addr` by the system's list: slow. `None`: not mapped.
    fn query(&self, addr: *const u8) -> Option<MemQuery> {
        let found = ucs::mem::query::mapping_at(addr.addr())?;
        let (start, len, page, shared) = (found.start, found.len, found.page, found.shared);
        Some(MemQuery { kind: MemKind::Host, start, len, page, shared })
    }

    /// Packs the remote key of a registration; the peer gets it out of band.
    fn pack_rkey(&self, _mem: &Self::Mem) -> Result<AddrBuf, Error> {
        Err(Error::Unsupported(Op::RemoteKey))
    }

    /// Unpacks a peer's remote key. The bytes are a claim and are checked.
    fn unpack_rkey(&self, _packed: &[u8]) -> Result<Self::Rkey, Error> {
        Err(Error::Unsupported(Op::RemoteKey))
    }

    /// The remote key as one word, as in EFA RDM v4 iovs. Needs [`super::Caps::MR_KEY`].
    fn mr_key(&self, _mem: &Self::Mem) -> Result<u64, Error> {
        Err(Error::Unsupported(Op::RemoteKey))
    }

    /// The key of `len` bytes at `addr` by a peer's word, checked at use. [`Error::NotReady`]: it is asked.
    fn rkey_from_mr_key(&self, _key: u64, _addr: u64, _len: u64) -> Result<Self::Rkey, Error> {
        Err(Error::Unsupported(Op::RemoteKey))
    }

    /// Local pointer to `len` mapped bytes of the peer while the key lives: for raw copies and atomics.
    fn rkey_ptr(&self, _rkey: &Self::Rkey, _remote: u64, _len: usize) -> Option<*mut u8> {
        None
    }
}
