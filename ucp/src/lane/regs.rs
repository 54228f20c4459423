//! Memory registrations of the engine on the lanes, by id. Each serves one operation, comes from a lane's
//! cache, or belongs to the program. Never keeps memory that peers may no longer reach.

#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::sync::Arc;

use ucs::coll::slots::{SlotId, Slots};
use uct::api::{Access, Caps, Iface as _, Md as _};
use uct::rcache::{CacheFront, CacheStats, Coherence, Limits, RegCache};

use crate::rdm::Piece;
use crate::rdm::io::{Rdma, Reg, RegAccess, RegError};

use super::domains::{Domains, HandleLists};
use super::{Iface, IfaceIdx, Md, Mem, WorkerIface};

/// Whether registrations are cached for later operations on the same memory (`UCX_RCACHE_ENABLE`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum RcacheMode {
    /// Registers for each operation.
    No,
    /// Caches where registering costs more than a lookup and the kernel reports unmapping.
    #[default]
    Try,
    /// Caches on every lane; creating the worker fails where that is impossible.
    Yes,
}

impl std::fmt::Display for RcacheMode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            RcacheMode::No => "n",
            RcacheMode::Try => "try",
            RcacheMode::Yes => "y",
        })
    }
}

impl ucs::config::ConfigValue for RcacheMode {
    fn parse(text: &str) -> Option<RcacheMode> {
        if ["try", "maybe"].iter().any(|word| text.eq_ignore_ascii_case(word)) {
            return Some(RcacheMode::Try);
        }
        bool::parse(text).map(|yes| if yes { RcacheMode::Yes } else { RcacheMode::No })
    }

    fn expected() -> String {
        format!("try or {}", bool::expected())
    }
}

/// Least cost of registering that makes a cache worthwhile, ns: about one system call.
const MIN_CACHED_REG_COST: f64 = 1000.0;

enum Registration {
    /// For one operation.
    Owned(Mem),
    /// For one operation on memory of the program, which may withdraw it meanwhile.
    Exclusive(Arc<Mem>),
    /// Shared with the cache, the program or other operations.
    Shared(Arc<Mem>),
    /// No registration of the lane: peers read the memory by the RMA-only lane.
    RmaOnly,
    /// No registration: the lane accepts any memory of its own process.
    Unneeded,
}

/// A worker's view of the cache of a lane's domain.
enum Cache {
    /// Undecided until the first registration.
    Unknown,
    /// Not worthwhile, not wanted or not possible.
    None,
    Is(Box<CacheFront<Md>>),
}

/// The registrations of all lanes.
pub(crate) struct RegTable {
    all: Slots<(IfaceIdx, Registration)>,
    caches: Vec<Cache>,
    pub(crate) domains: Arc<Domains>,
    /// By domain: registrations that the program holds, at version `seen`.
    handles: Arc<HandleLists>,
    seen: u64,
    /// Registrations made for operations, without those of the caches.
    registered: u64,
    mode: RcacheMode,
    limits: Limits,
}

impl RegTable {
    pub(crate) fn new(domains: Arc<Domains>, mode: RcacheMode, limits: Limits) -> RegTable {
        let (seen, handles) = domains.handles();
        RegTable {
            all: Slots::default(),
            caches: Vec::new(),
            domains,
            handles,
            seen,
            registered: 0,
            mode,
            limits,
        }
    }

    /// Registers memory on a lane.
    /// # Safety
    /// The piece stays valid until its registration is released. Users of the memory hold no reference to
    /// what the device may write meanwhile.
    pub(super) unsafe fn register(
        &mut self,
        ifaces: &[WorkerIface],
        lane: IfaceIdx,
        piece: Piece,
        for_what: RegAccess,
    ) -> Result<Reg, RegError> {
        let md = ifaces[usize::from(lane.0)].iface.md();
        if for_what.difference(RegAccess::LOCAL_WRITE).is_empty() && !md.attr().needs_local_key {
            return self.insert(lane, Registration::Unneeded, 0);
        }
        let access = access(for_what);
        // Revocable memory must be out of the device's reach at once, whatever else shares its pages.
        let reg = match NonNull::new(piece.ptr()).filter(|_| !for_what.contains(RegAccess::EXCLUSIVE)) {
            // SAFETY: the caller's promise.
            Some(at) => unsafe { self.shared(ifaces, lane, at, piece.len(), access) },
            None => None,
        };
        let reg = match reg {
            Some(mem) => Registration::Shared(mem),
            None => {
                self.registered += 1;
                // SAFETY: the caller's promise is that of a registration.
                let mem =
                    unsafe { md.register_for_op(piece.ptr(), piece.len(), access) }.map_err(reg_error)?;
                if for_what.contains(RegAccess::EXCLUSIVE) {
                    let mem = Arc::new(mem);
                    self.domains.add_exclusive(piece.ptr(), piece.len(), &mem);
                    Registration::Exclusive(mem)
                } else {
                    Registration::Owned(mem)
                }
            }
        };
        // Memory that only we touch needs no key.
        let key = match reg.mem() {
            Some(mem) if for_what.intersects(RegAccess::REMOTE_READ | RegAccess::REMOTE_WRITE) => {
                md.mr_key(mem).map_err(reg_error)?
            }
            _ => 0,
        };
        self.insert(lane, reg, key)
    }

    /// Returns a shared registration: the program's own, or one of the cache.
    /// # Safety
    /// As for [`RegTable::register`].
    unsafe fn shared(
        &mut self,
        ifaces: &[WorkerIface],
        lane: IfaceIdx,
        at: NonNull<u8>,
        len: usize,
        access: Access,
    ) -> Option<Arc<Mem>> {
        self.follow_handles();
        let handles = self.handles.get(usize::from(ifaces[usize::from(lane.0)].domain.0));
        if let Some(mem) = handles.and_then(|handles| handles.find(at.addr().get(), len, access)) {
            return Some(mem);
        }
        // SAFETY: the caller's promise; in the rest of its pages the device writes nothing.
        self.cache(ifaces, lane).and_then(|cache| unsafe { cache.get(at, len, access) }.ok())
    }

    /// Takes a new snapshot of the program's registrations if they have changed.
    // HOT
    #[inline]
    fn follow_handles(&mut self) {
        if self.domains.handles_version() != self.seen {
            (self.seen, self.handles) = self.domains.handles();
        }
    }

    /// Records memory that peers of a lane read by the RMA-only lane, with its key.
    pub(super) fn offer(&mut self, lane: IfaceIdx, key: u64) -> Result<Reg, RegError> {
        self.insert(lane, Registration::RmaOnly, key)
    }

    fn insert(&mut self, lane: IfaceIdx, reg: Registration, key: u64) -> Result<Reg, RegError> {
        let id = self.all.insert((lane, reg)).map_err(|_| RegError::Full)?.raw();
        Ok(Reg { id, key })
    }

    /// Whether peers read this memory by the RMA-only lane.
    pub(super) fn is_rma_only(&self, id: u32) -> bool {
        matches!(self.all.get(SlotId::from_raw(id)), Some((_, Registration::RmaOnly)))
    }

    fn cache(&mut self, ifaces: &[WorkerIface], lane: IfaceIdx) -> Option<&mut CacheFront<Md>> {
        let at = usize::from(lane.0);
        if self.caches.len() <= at {
            self.caches.resize_with(ifaces.len(), || Cache::Unknown);
        }
        if let Cache::Unknown = self.caches[at] {
            let domain = self.domains.get(ifaces[at].domain);
            let cache = domain.reg_cache.get_or_init(|| self.new_cache(&ifaces[at].iface));
            self.caches[at] = match cache {
                Some(cache) => Cache::Is(Box::new(CacheFront::new(cache.clone()))),
                None => Cache::None,
            };
        }
        match &mut self.caches[at] {
            Cache::Is(cache) => Some(cache),
            _ => None,
        }
    }

    /// Makes the cache of a domain, if it is to have one.
    #[cold]
    fn new_cache(&self, iface: &Iface) -> Option<Arc<RegCache<Md>>> {
        let wanted = match self.mode {
            RcacheMode::No => false,
            RcacheMode::Try => iface.attr().reg_cost.0 > MIN_CACHED_REG_COST,
            RcacheMode::Yes => true,
        };
        if !wanted {
            return None;
        }
        match Coherence::open() {
            Coherence::Unavailable(why) => {
                tracing::debug!(tl = iface.attr().tl, "registrations are not kept: no userfaultfd ({why})");
                None
            }
            kernel => Some(Arc::new(RegCache::new(iface.md().clone(), self.limits, kernel))),
        }
    }

    /// Returns the lane of a registration, and the lane's handle if it needs one.
    pub(super) fn get(&self, id: u32) -> Option<(IfaceIdx, Option<&Mem>)> {
        match self.all.get(SlotId::from_raw(id))? {
            (_, Registration::RmaOnly) => None,
            (lane, reg) => Some((*lane, reg.mem())),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// Returns how many registrations operations of this worker have made, cached or not.
    pub(crate) fn registered(&self) -> u64 {
        let made = |cache: &Cache| if let Cache::Is(front) = cache { front.made() } else { 0 };
        self.registered + self.caches.iter().map(made).sum::<u64>()
    }

    /// Returns counters and contents of the context's caches.
    pub(crate) fn cache_stats(&self) -> CacheStats {
        let mut sum = CacheStats::default();
        for (_, domain) in self.domains.iter() {
            let Some(Some(cache)) = domain.reg_cache.get() else { continue };
            let one = cache.stats();
            sum.hits += one.hits;
            sum.misses += one.misses;
            sum.evicted += one.evicted;
            sum.invalidated += one.invalidated;
            sum.count += one.count;
            sum.bytes += one.bytes;
        }
        sum
    }

    /// Releases a registration. The cache may keep it.
    pub(super) fn remove(&mut self, id: u32) {
        self.all.remove(SlotId::from_raw(id));
    }

    /// Releases a registration whose key a peer may use. Other operations on the memory keep it until their
    /// end.
    pub(super) fn revoke(&mut self, id: u32) {
        if let Some((lane, Registration::Shared(mem))) = self.all.remove(SlotId::from_raw(id))
            && let Some(Cache::Is(cache)) = self.caches.get(usize::from(lane.0))
        {
            cache.cache().revoke(mem);
        }
    }
}

impl Registration {
    fn mem(&self) -> Option<&Mem> {
        match self {
            Registration::Owned(mem) => Some(mem),
            Registration::Exclusive(mem) => Some(mem),
            Registration::Shared(mem) => Some(mem),
            Registration::RmaOnly | Registration::Unneeded => None,
        }
    }
}

/// Checks whether the kernel reports unmapped memory.
pub(crate) fn check_rcache() -> Result<(), ucs::Errno> {
    match Coherence::open() {
        Coherence::Kernel(_) => Ok(()),
        Coherence::Unavailable(why) => Err(why),
    }
}

fn access(for_what: RegAccess) -> Access {
    let mut access = Access::LOCAL_READ;
    access.set(Access::LOCAL_WRITE, for_what.intersects(RegAccess::LOCAL_WRITE | RegAccess::REMOTE_WRITE));
    access.set(Access::REMOTE_READ, for_what.contains(RegAccess::REMOTE_READ));
    access.set(Access::REMOTE_WRITE, for_what.contains(RegAccess::REMOTE_WRITE));
    access
}

/// Whether a lane exposes only memory that it has allocated itself; `api::rkey` maps that for puts and gets.
pub(crate) fn needs_alloc(iface: &Iface) -> bool {
    iface.md().attr().rkey_needs_alloc
}

/// Returns the RDMA abilities of a lane; none if RDM v4 cannot carry its keys.
pub(crate) fn rdma(iface: &Iface) -> Rdma {
    let attr = iface.attr();
    if !attr.has(Caps::MR_KEY) {
        return Rdma::NONE;
    }
    let max = |cap: Caps, max: usize| if attr.has(cap) { max as u64 } else { 0 };
    if needs_alloc(iface) {
        return Rdma { read: max(Caps::GET_ZCOPY, attr.get.max_zcopy), ..Rdma::NONE };
    }
    Rdma {
        read: max(Caps::GET_ZCOPY, attr.get.max_zcopy),
        write: max(Caps::PUT_ZCOPY, attr.put.max_zcopy),
        write_imm: attr.has(Caps::PUT_ZCOPY | Caps::PUT_IMM),
    }
}

#[cold]
fn reg_error(e: uct::api::Error) -> RegError {
    match e {
        uct::api::Error::Exhausted(_) | uct::api::Error::NoMemory | uct::api::Error::NoDescriptor => {
            RegError::Full
        }
        _ => RegError::Refused,
    }
}
