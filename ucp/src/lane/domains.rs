//! The memory domains of a context, shared by its workers: one for each device that they open. Memory is
//! registered here once, with every domain and in the table that the workers' engines serve.

#![allow(unsafe_code)]

use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use uct::api::{Access, AllocReq, DevKind, Error, Md as _, Memory as _, OpenError, TlResource};
use uct::rcache::{MemHandles, RegCache};

use crate::rdm::{DomainId, MemKey, MemTable, Region};

use super::{Iface, Md, Mem};

/// A memory domain of a context.
pub(crate) struct Domain {
    pub md: Md,
    pub tl: &'static str,
    pub kind: DevKind,
    /// Names the domain among those of the context, for peers: see [`domain_label`].
    pub label: u32,
    /// Serves puts and gets of an RMA-only lane.
    pub is_rma_only: bool,
    /// Registrations of memory that the program has not registered, of all workers; made with the first one.
    /// `None`: the domain keeps none.
    pub(super) reg_cache: OnceLock<Option<Arc<RegCache<Md>>>>,
}

/// All memory domains of a context, or of a worker on interfaces that the program opened.
pub(crate) struct Domains {
    list: Vec<Domain>,
    /// The memory that peers may access, by key.
    pub memory: Arc<MemTable>,
    handles: Handles,
    exclusive: Mutex<Vec<ExclusiveReg>>,
}

/// A registration that a worker has made for reads into memory of the program.
struct ExclusiveReg {
    at: usize,
    len: usize,
    mem: Weak<Mem>,
}

/// Registrations that the program holds, by domain, for operations on the same memory. Workers take a
/// snapshot when the version has changed.
#[derive(Default)]
struct Handles {
    version: AtomicU64,
    lists: Mutex<Arc<HandleLists>>,
}

pub(super) type HandleLists = Vec<MemHandles<Mem>>;

/// Registrations of one range with the domains that can register it. The first one owns the memory if a
/// domain allocated it.
pub(crate) type Registrations = Vec<(DomainId, Arc<Mem>)>;

/// Returns the label of a domain: the same for the owner of memory and for a peer, which takes it from the
/// address of the owner's lane. Devices of a network are told apart by their address; other transports have
/// one domain a context.
pub(crate) fn domain_label(tl: &str, kind: DevKind, device: &[u8]) -> u32 {
    let mut hasher = rustc_hash::FxHasher::default();
    (tl, if kind == DevKind::Net { device } else { &[] }).hash(&mut hasher);
    let hash = hasher.finish();
    (hash ^ hash >> 32) as u32
}

impl Domains {
    /// Opens the domains of `resources`, and of the RMA-only ones that the system permits.
    pub(crate) fn open(
        (resources, rma_only): (&[TlResource], &[TlResource]),
        open: impl Fn(&TlResource) -> Result<Md, OpenError>,
        nonce: u32,
    ) -> Result<Domains, OpenError> {
        let mut list = Vec::new();
        for found in resources {
            list.push(Domain::new(open(found)?, found.tl, found.kind, false));
        }
        for found in rma_only {
            match open(found) {
                Ok(md) => list.push(Domain::new(md, found.tl, found.kind, true)),
                Err(why) => tracing::debug!(
                    tl = found.tl,
                    "cannot open the RMA-only memory domain, uses packets: {why}"
                ),
            }
        }
        Ok(Domains::of(list, nonce))
    }

    /// Returns the domains of interfaces, in their order.
    pub(crate) fn of_ifaces(ifaces: &[Iface], nonce: u32) -> Domains {
        let of = |iface: &Iface| {
            let (attr, md) = (uct::api::Iface::attr(iface), uct::api::Iface::md(iface));
            Domain::new(md.clone(), attr.tl, attr.kind, false)
        };
        Domains::of(ifaces.iter().map(of).collect(), nonce)
    }

    fn of(list: Vec<Domain>, nonce: u32) -> Domains {
        let handles = Handles::default();
        handles.change(|lists| lists.resize_with(list.len(), MemHandles::default));
        Domains { list, memory: Arc::new(MemTable::new(nonce)), handles, exclusive: Mutex::default() }
    }

    /// Iterates over the domains.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (DomainId, &Domain)> {
        self.list.iter().enumerate().map(|(n, domain)| (DomainId(n as u8), domain))
    }

    pub(crate) fn get(&self, id: DomainId) -> &Domain {
        &self.list[usize::from(id.0)]
    }

    /// Allocates memory where most peers reach it directly: from memory that processes of the host map, else
    /// from a device, else from the process.
    pub(crate) fn alloc(&self, req: &AllocReq<'_>) -> Result<(DomainId, Arc<Mem>), Error> {
        let mut by_reach: Vec<_> =
            self.iter().filter(|(_, domain)| domain.md.attr().can_alloc && !domain.is_rma_only).collect();
        by_reach.sort_by_key(|(_, domain)| match domain.kind {
            DevKind::Shm => 0,
            DevKind::Net => 1,
            _ => 2,
        });
        // The reason that is told is that of the domain that serves best.
        let mut first = None;
        for (id, domain) in by_reach {
            match domain.md.alloc(req) {
                Ok(mem) => return Ok((id, Arc::new(mem))),
                Err(why) => first = first.or(Some(why)),
            }
        }
        Err(first.unwrap_or(Error::NoMemory))
    }

    /// Registers memory with all domains that can, beside those in `regs`, and offers it to peers.
    /// # Safety
    /// As for [`Region::new`] and [`uct::api::Md::register`], until [`Domains::withdraw`].
    pub(crate) unsafe fn offer(
        &self,
        (addr, len): (*mut u8, usize),
        region: Region,
        access: Access,
        mut regs: Registrations,
    ) -> Option<(MemKey, Registrations)> {
        for (id, domain) in self.iter() {
            if !domain.md.attr().can_register || regs.iter().any(|(done, _)| *done == id) {
                continue;
            }
            // SAFETY: the caller's contract includes that of a registration.
            match unsafe { domain.md.register(addr, len, access) } {
                Ok(mem) => regs.push((id, Arc::new(mem))),
                Err(why) => tracing::debug!(
                    tl = domain.tl,
                    len,
                    "cannot register memory with this domain, peers use packets: {why}"
                ),
            }
        }
        let key = self.memory.add(region)?;
        for (id, mem) in &regs {
            if let Some(device) = self.device_key(*id, mem) {
                self.memory.add_device_key(key, *id, device);
            }
        }
        self.handles.change(|lists| {
            for (id, mem) in &regs {
                lists[usize::from(id.0)].insert(mem);
            }
        });
        Some((key, regs))
    }

    /// Withdraws memory: when this returns, neither peers nor devices reach it. Operations of this process
    /// that use its registrations end with an error.
    pub(crate) fn withdraw(&self, key: MemKey, range: (*const u8, usize), regs: &Registrations) {
        self.handles.change(|lists| {
            for (id, mem) in regs {
                lists[usize::from(id.0)].remove(mem);
            }
        });
        // Devices first: what workers are posting meanwhile is over when the table has been changed.
        regs.iter().for_each(|(_, mem)| mem.revoke());
        self.memory.remove(key);
        // No worker begins another read into it; those under way are cut off.
        self.revoke_exclusive(range);
    }

    /// Records a registration that a worker makes for reads into memory of the program, so that these end
    /// with the memory, whatever the worker is doing.
    pub(super) fn add_exclusive(&self, at: *const u8, len: usize, mem: &Arc<Mem>) {
        let mut all = self.exclusive.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|reg| reg.mem.strong_count() > 0);
        all.push(ExclusiveReg { at: at.addr(), len, mem: Arc::downgrade(mem) });
    }

    fn revoke_exclusive(&self, (at, len): (*const u8, usize)) {
        let all = self.exclusive.lock().unwrap_or_else(PoisonError::into_inner);
        let end = at.addr() + len;
        let within = all.iter().filter(|reg| reg.at < end && at.addr() < reg.at + reg.len);
        within.filter_map(|reg| reg.mem.upgrade()).for_each(|mem| mem.revoke());
    }

    /// Returns the key by which a domain's device knows memory in puts and gets, if it has one.
    pub(crate) fn device_key(&self, id: DomainId, mem: &Mem) -> Option<u64> {
        let md = &self.get(id).md;
        if md.attr().rkey_needs_alloc { None } else { md.mr_key(mem).ok() }
    }

    pub(super) fn handles_version(&self) -> u64 {
        self.handles.version.load(Ordering::Acquire)
    }

    /// Returns the program's registrations by domain, and their version.
    pub(super) fn handles(&self) -> (u64, Arc<HandleLists>) {
        let lists = self.handles.lists.lock().unwrap_or_else(PoisonError::into_inner);
        (self.handles_version(), lists.clone())
    }
}

/// Domains, registrations and keys are used by any thread.
const _: fn() = || {
    fn of_any_thread<T: Send + Sync>() {}
    of_any_thread::<(Md, Mem, super::Rkey)>();
    of_any_thread::<Domains>();
};

impl std::fmt::Debug for Domains {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.list.iter().map(|domain| domain.tl)).finish()
    }
}

impl Handles {
    fn change(&self, change: impl FnOnce(&mut HandleLists)) {
        let mut lists = self.lists.lock().unwrap_or_else(PoisonError::into_inner);
        // Copied only if a worker has a snapshot.
        change(Arc::make_mut(&mut lists));
        self.version.fetch_add(1, Ordering::Release);
    }
}

impl Domain {
    fn new(md: Md, tl: &'static str, kind: DevKind, is_rma_only: bool) -> Domain {
        let label = domain_label(tl, kind, &md.device_addr());
        Domain { md, tl, kind, label, is_rma_only, reg_cache: OnceLock::new() }
    }
}
