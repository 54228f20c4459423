//! Memory that the engine has registered on lanes, by the number it knows it by: for one operation, or out of a lane's
//! cache of registrations, where the kernel tells when memory goes and registering costs something. What lies in memory that
//! the program has registered itself is not registered again.
//! Filled and emptied through `bind`, owned by the worker's core. Never keeps what peers may not reach any more.

use std::ptr::NonNull;
use std::rc::Rc;

use ucs::coll::slots::{SlotId, Slots};
use uct::api::{Access, Caps, Iface as _, Md as _};
use uct::rcache::{CacheStats, Coherence, Limits, MemHandles, RegCache};

use crate::rdm::Piece;
use crate::rdm::io::{Rdma, Reg, RegAccess, RegError};

use super::{Iface, Lane, LaneIdx, Md, Mem};

/// Whether registrations are kept for the next operation on the same memory (`UCX_RCACHE_ENABLE`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Keep {
    /// Each operation registers for itself.
    No,
    /// Where registering costs more than looking, and the kernel tells when memory goes.
    #[default]
    Try,
    /// On every lane; a worker that cannot is not made.
    Yes,
}

impl std::fmt::Display for Keep {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Keep::No => "n",
            Keep::Try => "try",
            Keep::Yes => "y",
        })
    }
}

impl ucs::config::ConfigValue for Keep {
    fn parse(text: &str) -> Option<Keep> {
        if text.eq_ignore_ascii_case("try") {
            return Some(Keep::Try);
        }
        bool::parse(text).map(|yes| if yes { Keep::Yes } else { Keep::No })
    }

    fn expected() -> String {
        format!("try or {}", bool::expected())
    }
}

/// What registering has to cost for a cache to be worth its look, nanoseconds: about what the system call takes that says
/// whether memory is going just now.
const WORTH: f64 = 1000.0;

/// A registration in use.
enum Held {
    /// Of one operation.
    Own(Mem),
    /// The cache or the program has it too, perhaps, and other operations.
    Kept(Rc<Mem>),
    /// Nothing of the lane's: peers read the memory by another way.
    Beside,
    /// Nothing, as the lane takes memory of its own process as it is.
    Unneeded,
}

/// The cache of a lane.
enum Cache {
    /// Nothing has been registered yet.
    Unknown,
    /// Not worth it, not wanted or not possible.
    None,
    Is(Box<RegCache<Md>>),
}

/// Registrations of a worker.
pub(crate) struct Regs {
    all: Slots<(LaneIdx, Held)>,
    /// By lane.
    caches: Vec<Cache>,
    /// By lane: what the program holds.
    handles: Vec<MemHandles<Mem>>,
    /// Registrations that operations made.
    made: u64,
    keep: Keep,
    limits: Limits,
}

impl Regs {
    /// None yet.
    pub(crate) fn new(keep: Keep, limits: Limits) -> Regs {
        Regs { all: Slots::default(), caches: Vec::new(), handles: Vec::new(), made: 0, keep, limits }
    }

    /// Registers memory on a lane.
    ///
    /// # Safety
    /// The piece stays valid until its registration is released; whoever uses the memory holds no reference to what the
    /// device may write meanwhile.
    pub(super) unsafe fn register(
        &mut self,
        lanes: &[Lane],
        lane: LaneIdx,
        piece: Piece,
        for_what: RegAccess,
    ) -> Result<Reg, RegError> {
        let md = lanes[usize::from(lane.0)].iface.md();
        if for_what.difference(RegAccess::LOCAL_WRITE).is_empty() && !md.attr().needs_local_key {
            return self.note(lane, Held::Unneeded, 0);
        }
        let access = access(for_what);
        // Memory that is taken back has to be out of the device's reach at once, whoever else uses its pages.
        let held = match NonNull::new(piece.ptr()).filter(|_| !for_what.contains(RegAccess::EXCLUSIVE)) {
            // SAFETY: the caller's promise.
            Some(at) => unsafe { self.shared(lanes, lane, at, piece.len(), access) },
            None => None,
        };
        let held = match held {
            Some(mem) => Held::Kept(mem),
            None => {
                self.made += 1;
                // SAFETY: the caller's promise is that of a registration.
                Held::Own(unsafe { md.register(piece.ptr(), piece.len(), access) }.map_err(no_reg)?)
            }
        };
        // Memory that only we touch needs no name.
        let key = match held.mem() {
            Some(mem) if for_what.intersects(RegAccess::REMOTE_READ | RegAccess::REMOTE_WRITE) => {
                md.mr_key(mem).map_err(no_reg)?
            }
            _ => 0,
        };
        self.note(lane, held, key)
    }

    /// A registration that others have too: of the program's, or from the cache.
    ///
    /// # Safety
    /// As for [`Regs::register`].
    unsafe fn shared(
        &mut self,
        lanes: &[Lane],
        lane: LaneIdx,
        at: NonNull<u8>,
        len: usize,
        access: Access,
    ) -> Option<Rc<Mem>> {
        let handles = self.handles.get(usize::from(lane.0));
        if let Some(mem) = handles.and_then(|handles| handles.find(at.addr().get(), len, access)) {
            return Some(mem.clone());
        }
        // SAFETY: the caller's promise; the other bytes of its pages are as valid, and the device writes only where the
        // engine tells it to.
        self.cache(lanes, lane).and_then(|cache| unsafe { cache.get(at, len, access) }.ok())
    }

    /// Makes known what the program has registered on a lane: until [`Regs::disown`].
    pub(crate) fn own(&mut self, lane: LaneIdx, mem: &Rc<Mem>) {
        let at = usize::from(lane.0);
        if self.handles.len() <= at {
            self.handles.resize_with(at + 1, MemHandles::default);
        }
        self.handles[at].insert(mem.clone());
    }

    /// The program is about to let go of it. Operations that use it keep it until their end.
    pub(crate) fn disown(&mut self, lane: LaneIdx, mem: &Rc<Mem>) {
        if let Some(handles) = self.handles.get_mut(usize::from(lane.0)) {
            handles.remove(mem);
        }
    }

    /// Notes memory that peers of a lane are to read by another way, by this key.
    pub(super) fn offer(&mut self, lane: LaneIdx, key: u64) -> Result<Reg, RegError> {
        self.note(lane, Held::Beside, key)
    }

    fn note(&mut self, lane: LaneIdx, held: Held, key: u64) -> Result<Reg, RegError> {
        let id = self.all.insert((lane, held)).map_err(|_| RegError::Full)?.raw();
        Ok(Reg { id, key })
    }

    /// Whether it is such memory.
    pub(super) fn is_beside(&self, id: u32) -> bool {
        matches!(self.all.get(SlotId::from_raw(id)), Some((_, Held::Beside)))
    }

    fn cache(&mut self, lanes: &[Lane], lane: LaneIdx) -> Option<&RegCache<Md>> {
        let at = usize::from(lane.0);
        if self.caches.len() <= at {
            self.caches.resize_with(lanes.len(), || Cache::Unknown);
        }
        if let Cache::Unknown = self.caches[at] {
            self.caches[at] = self.new_cache(&lanes[at].iface);
        }
        match &self.caches[at] {
            Cache::Is(cache) => Some(cache),
            _ => None,
        }
    }

    #[cold]
    fn new_cache(&self, iface: &Iface) -> Cache {
        let worth = match self.keep {
            Keep::No => false,
            Keep::Try => iface.attr().reg_cost.0 > WORTH,
            Keep::Yes => true,
        };
        if !worth {
            return Cache::None;
        }
        match Coherence::open() {
            Coherence::Unavailable(why) => {
                tracing::debug!(tl = iface.attr().tl, "registrations are not kept: no userfaultfd ({why})");
                Cache::None
            }
            kernel => Cache::Is(Box::new(RegCache::new(iface.md().clone(), self.limits, kernel))),
        }
    }

    /// The lane that memory is for, and its registration there, if it needs one.
    pub(super) fn get(&self, id: u32) -> Option<(LaneIdx, Option<&Mem>)> {
        match self.all.get(SlotId::from_raw(id))? {
            (_, Held::Beside) => None,
            (lane, held) => Some((*lane, held.mem())),
        }
    }

    /// How many are in use.
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// Registrations that operations have made so far, in caches or for themselves.
    pub(crate) fn made(&self) -> u64 {
        self.made + self.cache_stats().misses
    }

    /// What the caches of all lanes did, together.
    pub(crate) fn cache_stats(&self) -> CacheStats {
        let mut sum = CacheStats::default();
        for cache in &self.caches {
            let Cache::Is(cache) = cache else { continue };
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

    /// Ends one. It may be kept for the next operation.
    pub(super) fn remove(&mut self, id: u32) {
        self.all.remove(SlotId::from_raw(id));
    }

    /// Ends one whose key a peer may still use. Another operation on the same memory, if there is one, keeps it until its
    /// own end.
    pub(super) fn revoke(&mut self, id: u32) {
        if let Some((lane, Held::Kept(mem))) = self.all.remove(SlotId::from_raw(id))
            && let Some(Cache::Is(cache)) = self.caches.get(usize::from(lane.0))
        {
            cache.revoke(mem);
        }
    }
}

impl Held {
    fn mem(&self) -> Option<&Mem> {
        match self {
            Held::Own(mem) => Some(mem),
            Held::Kept(mem) => Some(mem),
            Held::Beside | Held::Unneeded => None,
        }
    }
}

/// Whether the kernel tells when memory goes; why not.
pub(crate) fn can_keep() -> Result<(), ucs::Errno> {
    match Coherence::open() {
        Coherence::Kernel(_) => Ok(()),
        Coherence::Unavailable(why) => Err(why),
    }
}

/// The engine's use of memory in the words of the lanes.
fn access(for_what: RegAccess) -> Access {
    let mut access = Access::LOCAL_READ;
    access.set(Access::LOCAL_WRITE, for_what.intersects(RegAccess::LOCAL_WRITE | RegAccess::REMOTE_WRITE));
    access.set(Access::REMOTE_READ, for_what.contains(RegAccess::REMOTE_READ));
    access.set(Access::REMOTE_WRITE, for_what.contains(RegAccess::REMOTE_WRITE));
    access
}

/// Whether a lane reaches only memory that it has allocated itself: peers read messages out of that, while puts and gets go by
/// the keys of `api::rkey`, which map it.
pub(crate) fn needs_alloc(iface: &Iface) -> bool {
    iface.md().attr().rkey_needs_alloc
}

/// The word by which a lane's device knows memory in puts and gets, if it does.
pub(crate) fn device_key(iface: &Iface, mem: &Mem) -> Option<u64> {
    if needs_alloc(iface) { None } else { iface.md().mr_key(mem).ok() }
}

/// What a lane can do beside packets: only with keys that RDM v4 can carry.
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

/// Why memory was not registered.
#[cold]
fn no_reg(e: uct::api::Error) -> RegError {
    match e {
        uct::api::Error::Exhausted(_) | uct::api::Error::NoMemory | uct::api::Error::NoDescriptor => {
            RegError::Full
        }
        _ => RegError::Refused,
    }
}
