//! A software SRD NIC: protection domains, keys with bounds, finite queues, address handles, RNR and RDMA,
//! without order.
//!
//! [`Device`] implements the device trait over a link: [`link::inproc`] joins many devices in one seeded
//! thread, [`link::shm`] joins processes of one host, [`link::net`] also those of other hosts, over UDP. The
//! object model is the same for all links; a link only
//! tries to deliver.
//!
//! A post passes the driver's checks (`qp/post.rs`), draws faults if a fault plan is in force, and is
//! attempted: local keys, remote queue pair, q-key, link. A request that finds no receive posted, or is
//! partly done, is deferred (`qp/deferred.rs`) and progressed when a completion queue is polled.

#![allow(unsafe_code)]

mod ah;
pub mod capture;
mod cq;
mod fault_model;
mod job_secret;
pub mod link;
mod mr;
mod mr_entry;
mod open;
mod profile;
mod qp;
pub mod secret;
#[cfg(test)]
mod tests;
mod user_secret;

pub use ah::Ah;
pub use cq::Cq;
pub use fault_model::{FaultDraw, FaultPlan};
pub use job_secret::{JobSecret, with_job_secret};
pub use link::inproc::{Fabric, Inproc};
pub use link::net::Net;
pub use link::shm::{Shm, permissions};
pub use open::{SoftDevice, list, open, open_shm};
pub(crate) use profile::RESOURCE_PERF;
pub use profile::{Generation, Iid, Outage, PortRange, Profile, SoftConfig, UdpUse};
pub use qp::{MAX_RECV_SGE, Qp};

use super::{Channel, Dev, DevAttr, DevMr, Gid, Placement, QpInit, QpKind};
use crate::api::{Access, ConnectError, DeviceCounters, Error, OpenError};
use crate::base::check::accessible;
use crate::base::mem_ptr::MemPtr;
use ah::{AhChange, AhTable};
use capture::Capture;
use cq::CqCore;
use fault_model::FaultModel;
use link::{CompChannel, Link, RecvQueue, RecvQueueInit};
use mr::{Memory, Region};
use qp::QpParts;
use std::any::Any;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use ucs::mem::page::page_size;

/// Counters of events other than immediate success.
#[derive(Debug, Default)]
pub struct Counters {
    /// Requests deferred: delayed, blocked, partly done, or at a receiver that is not ready.
    pub deferred: Counter,
    /// Requests that found the receiver not ready.
    pub rnr: Counter,
    /// Deferred requests that failed.
    pub failed: Counter,
}

/// A count of events in all threads.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Events so far.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }

    fn add(&self) {
        self.0.fetch_add(1, Relaxed);
    }
}

struct DeviceCore<L: Link> {
    attr: DevAttr,
    link: L,
    plan: FaultPlan,
    seed: u64,
    rnr_interval_ns: u64,
    retry_ticks: u64,
    ahs: AhTable,
    next_pd: AtomicU32,
    /// Queue pair numbers in use, modulo the table size.
    qpns: Mutex<Vec<bool>>,
    /// Memory this device allocated: address, length, descriptor.
    alloc_files: Mutex<Vec<(u64, u64, i32)>>,
    counters: Counters,
    /// Operations left until the NIC goes down; [`NEVER`].
    ops_until_down: AtomicU64,
    /// Channels of completion queues, signalled when the NIC goes down.
    channels: Mutex<Vec<Weak<L::CompChannel>>>,
    capture: Option<Arc<Capture>>,
}

const NEVER: u64 = u64::MAX;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Data behind these locks is consistent between any two statements.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<L: Link> DeviceCore<L> {
    fn release_qpn(&self, qpn: u16) {
        let mut qpns = lock(&self.qpns);
        let at = usize::from(qpn) % qpns.len();
        qpns[at] = false;
    }

    /// Counts an operation toward a planned outage; returns whether the NIC is down.
    #[cold]
    fn count_op(&self) -> bool {
        let count = |left: u64| (left != NEVER).then(|| left.checked_sub(1).unwrap_or(NEVER));
        if self.ops_until_down.fetch_update(Relaxed, Relaxed, count) == Ok(0) {
            self.take_down();
        }
        self.link.is_down()
    }

    /// Queue pairs fail when they are used or polled next, each in its thread.
    #[cold]
    fn take_down(&self) {
        if self.link.go_down() {
            tracing::warn!("{} goes down", self.attr.name);
            lock(&self.channels).iter().filter_map(Weak::upgrade).for_each(|channel| channel.signal());
        }
    }
}

/// An opened software device on link `L`. Clones share its context.
pub struct Device<L: Link>(Arc<DeviceCore<L>>);

impl<L: Link> Clone for Device<L> {
    fn clone(&self) -> Self {
        Device(self.0.clone())
    }
}

/// A protection domain: its keys, queue pairs and address handles are not usable in another.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Pd(u32);

/// A memory region. Dropping it makes its keys stale and frees the memory if the device allocated it.
pub struct Mr<L: Link> {
    dev: Arc<DeviceCore<L>>,
    addr: MemPtr,
    len: usize,
    key: u32,
    memory: Option<Memory>,
    revoked: AtomicBool,
}

impl<L: Link> Device<L> {
    fn new(link: L, profile: Profile, plan: FaultPlan, seed: u64, capture: Option<Capture>) -> Self {
        let max_qp = profile.attr.max_qp.max(1).next_power_of_two() as usize;
        let core = DeviceCore {
            plan,
            seed,
            rnr_interval_ns: profile.rnr_interval_ns,
            retry_ticks: link.retry_ticks(profile.rnr_interval_ns),
            ahs: AhTable::new(profile.attr.max_ah as usize),
            next_pd: AtomicU32::new(1),
            qpns: Mutex::new(vec![false; max_qp]),
            alloc_files: Mutex::default(),
            counters: Counters::default(),
            ops_until_down: AtomicU64::new(plan.down_after.unwrap_or(NEVER)),
            channels: Mutex::default(),
            capture: capture.map(Arc::new),
            attr: profile.attr,
            link,
        };
        Device(Arc::new(core))
    }

    /// Counters so far.
    pub fn counters(&self) -> &Counters {
        &self.0.counters
    }

    /// Takes the NIC down for good, as `SOFTEFA_DOWN` does. Outstanding and later requests complete as
    /// flushed, from each thread's next post or poll on. Peers that sent to it before see
    /// [`DevStatus::Unresponsive`](crate::efa::dev::DevStatus::Unresponsive), others that it is unreachable.
    pub fn take_down(&self) {
        self.0.take_down();
    }

    /// Whether the NIC is down.
    pub fn is_down(&self) -> bool {
        self.0.link.is_down()
    }

    /// The link it is on.
    pub fn link(&self) -> &L {
        &self.0.link
    }

    fn insert(&self, region: &Region, memory: Option<Memory>) -> Result<Mr<L>, Error> {
        if !self.0.link.allows_registration() {
            return Err(Error::InvalidParam("memory that this device does not register"));
        }
        let key = self.0.link.regions().insert(region)?;
        if let (Some(_), Some((fd, _))) = (&memory, region.file) {
            lock(&self.0.alloc_files).push((region.addr, region.len, fd));
        }
        let addr = MemPtr(region.addr as *mut u8);
        let (len, revoked) = (region.len as usize, AtomicBool::new(false));
        Ok(Mr { dev: self.0.clone(), addr, len, key, memory, revoked })
    }

    fn check_access(&self, access: Access) -> Result<(), Error> {
        if access.contains(Access::REMOTE_WRITE) && !access.contains(Access::LOCAL_WRITE) {
            return Err(Error::InvalidParam("remote write needs local write"));
        }
        Ok(())
    }
}

impl<L: Link> Dev for Device<L> {
    type Pd = Pd;
    type Mr = Mr<L>;
    type Cq = Cq<L>;
    type Qp = Qp<L>;
    type Ah = Ah;

    fn attr(&self) -> &DevAttr {
        &self.0.attr
    }

    fn gid(&self) -> Gid {
        Gid::link_local(self.0.link.iid())
    }

    fn counters_by_part(&self) -> Vec<DeviceCounters> {
        let Counters { deferred, rnr, failed } = &self.0.counters;
        let counts = [("deferred", deferred), ("receiver not ready", rnr), ("failed after deferral", failed)];
        let counts = counts.map(|(name, counter)| (name, counter.get())).to_vec();
        let mut all = vec![DeviceCounters { part: "efa", counts, times: Vec::new() }];
        all.extend(self.0.link.counters());
        all
    }

    fn serves_threads(&self) -> bool {
        L::SERVES_THREADS
    }

    fn check_reachable(&self, other: Gid) -> Result<(), ConnectError> {
        self.0.link.check_reachable(other)
    }

    fn alloc_pd(&self) -> Result<Pd, OpenError> {
        let pd = self.0.next_pd.fetch_update(Relaxed, Relaxed, |pd| pd.checked_add(1));
        Ok(Pd(pd.map_err(|_| Error::Exhausted("protection domains"))?))
    }

    /// Allocates zeroed memory; on the shared-memory link a memory file, into which peers write directly.
    fn alloc_mr_with(&self, pd: &Pd, len: usize, access: Access, place: Placement) -> Result<Mr<L>, Error> {
        self.check_access(access)?;
        if len == 0 {
            return Err(Error::InvalidParam("a memory region has at least one byte"));
        }
        let (memory, fd) = self.0.link.alloc(len, place)?;
        let access = access | Access::LOCAL_READ;
        let (addr, len) = (memory.as_ptr() as u64, len as u64);
        let region = Region { addr, len, access, pd: pd.0, file: fd.map(|fd| (fd, 0)) };
        self.insert(&region, Some(memory))
    }

    /// Refuses memory that is not mapped, or is read-only and to be written, with `EFAULT`: a NIC pins the
    /// pages, this device would crash later.
    unsafe fn reg_mr(&self, pd: &Pd, addr: *mut u8, len: usize, access: Access) -> Result<Mr<L>, Error> {
        accessible(addr, len, access)?;
        // SAFETY: the caller's promise is the same.
        unsafe { self.reg_mr_for_op(pd, addr, len, access) }
    }

    unsafe fn reg_mr_for_op(
        &self,
        pd: &Pd,
        addr: *mut u8,
        len: usize,
        access: Access,
    ) -> Result<Mr<L>, Error> {
        self.check_access(access)?;
        let start = addr as u64;
        if addr.is_null() || len == 0 || start.checked_add(len as u64).is_none() {
            return Err(Error::InvalidParam("not a range of memory"));
        }
        // A part of allocated memory is as reachable as the whole.
        let alloc_files = lock(&self.0.alloc_files);
        // A registration cache registers whole pages.
        let whole_pages = |n: u64| n.next_multiple_of(page_size() as u64);
        let inside = alloc_files
            .iter()
            .find(|(a, n, _)| start >= *a && start - a <= whole_pages(*n).saturating_sub(len as u64));
        let file =
            inside.filter(|(_, n, _)| len as u64 <= whole_pages(*n)).map(|(a, _, fd)| (*fd, start - a));
        drop(alloc_files);
        let access = access | Access::LOCAL_READ;
        self.insert(&Region { addr: start, len: len as u64, access, pd: pd.0, file }, None)
    }

    fn create_cq(&self, depth: u32, channel: Channel) -> Result<Cq<L>, OpenError> {
        let max = self.0.attr.max_cqe;
        if depth == 0 || depth > max {
            let text = format!("a completion queue has 1 to {max} entries, not {depth}");
            return Err(OpenError::Config(text));
        }
        let channel = self.0.link.create_channel(channel)?.map(Arc::new);
        if let Some(channel) = &channel {
            let mut channels = lock(&self.0.channels);
            channels.retain(|channel| channel.strong_count() > 0);
            channels.push(Arc::downgrade(channel));
        }
        let depth = depth.next_power_of_two() as usize;
        Ok(Cq(Rc::new(CqCore::new(self.0.link.clone(), depth, channel, self.0.capture.clone()))))
    }

    fn create_qp(
        &self,
        pd: &Pd,
        send_cq: &Cq<L>,
        recv_cq: &Cq<L>,
        init: &QpInit,
    ) -> Result<Qp<L>, OpenError> {
        let attr = &self.0.attr;
        if self.0.link.is_down() {
            return Err(OpenError::Environment(format!("{} is down", attr.name)));
        }
        let fits = |what: &str, asked: u32, max: u32| {
            let text = format!(
                "a {what} queue has 1 to {max} entries, not {asked} (see SOFTEFA_SEND_DEPTH, SOFTEFA_RECV_DEPTH)"
            );
            if (1..=max).contains(&asked) { Ok(()) } else { Err(OpenError::Config(text)) }
        };
        fits("send", init.send_depth, attr.max_send_depth)?;
        fits("receive", init.recv_depth, attr.max_recv_depth)?;
        if init.rnr_retry > 7 {
            return Err(OpenError::Op(Error::InvalidParam("RNR retries are 0 to 6, or 7 for ever")));
        }
        if init.unsolicited_write_recv && !attr.unsolicited_write_recv {
            return Err(OpenError::Op(Error::InvalidParam("the device has no unsolicited write receive")));
        }
        let send_depth = init.send_depth.next_power_of_two().min(attr.max_send_depth);
        let recv_depth = init.recv_depth.next_power_of_two().min(attr.max_recv_depth);
        let recv_queue_init = RecvQueueInit {
            kind: init.kind,
            pd: pd.0,
            depth: recv_depth,
            qkey: init.qkey,
            unsolicited: init.unsolicited_write_recv,
            channel: recv_cq.0.channel.clone(),
        };
        let rx = {
            let mut qpns = lock(&self.0.qpns);
            if !qpns.iter().take(attr.max_qp as usize).any(|used| !used) {
                return Err(
                    Error::Exhausted("queue pairs of the software EFA device (SOFTEFA_MAX_QP)").into()
                );
            }
            let slots = qpns.len();
            let rx = self.0.link.open_recv_queue(recv_queue_init, &|qpn| !qpns[usize::from(qpn) % slots])?;
            qpns[usize::from(rx.qpn()) % slots] = true;
            rx
        };
        let stream = self.0.link.iid() << 16 | u64::from(rx.qpn());
        Ok(Qp::new(QpParts {
            dev: self.0.clone(),
            pd: pd.0,
            model: FaultModel::new(self.0.plan, self.0.seed, stream),
            rx,
            send_cq: send_cq.0.clone(),
            recv_cq: recv_cq.0.clone(),
            send_depth,
            recv_depth,
            // Without the capability the count cannot be set and the device retries for ever.
            rnr_retry: match init.kind {
                QpKind::Ud => 0,
                QpKind::Srd if attr.rnr_retry => init.rnr_retry,
                QpKind::Srd => 7,
            },
            kind: init.kind,
        }))
    }

    fn create_ah(&self, pd: &Pd, gid: Gid) -> Result<Ah, Error> {
        let ahs = &self.0.ahs;
        let registry = &mut *ahs.lock();
        let (ah, change) = ahs.get(registry, pd.0, gid)?;
        if change == AhChange::GidSet
            && let Err(e) = self.0.link.set_peer_known(gid.iid(), true)
        {
            ahs.put(registry, pd.0, ah);
            return Err(e);
        }
        Ok(ah)
    }

    fn destroy_ah(&self, pd: &Pd, ah: Ah) {
        // In a forked child another thread of the parent may hold the lock for ever.
        if !self.0.link.is_owner_process() {
            return;
        }
        let registry = &mut *self.0.ahs.lock();
        if let Some(iid) = self.0.ahs.put(registry, pd.0, ah) {
            let _ = self.0.link.set_peer_known(iid, false);
        }
    }
}

impl<L: Link> DevMr for Mr<L> {
    fn addr(&self) -> *mut u8 {
        self.addr.0
    }

    fn len(&self) -> usize {
        self.len
    }

    fn lkey(&self) -> u32 {
        self.key
    }

    fn rkey(&self) -> u32 {
        self.key
    }

    fn revoke(&self) {
        // In a forked child the keys are the parent's, and another thread of it may hold a lock for ever.
        if !self.dev.link.is_owner_process() || self.revoked.swap(true, Relaxed) {
            return;
        }
        if let Some(region) = self.dev.link.regions().remove(self.key) {
            self.dev.link.await_copies(self.key, &region);
        }
        if self.memory.is_some() {
            lock(&self.dev.alloc_files).retain(|(addr, ..)| *addr != self.addr.0 as u64);
        }
    }

    fn is_revoked(&self) -> bool {
        self.revoked.load(Relaxed)
    }

    fn backing(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        self.memory.as_ref().map(Memory::as_any)
    }
}

impl<L: Link> Drop for Mr<L> {
    fn drop(&mut self) {
        self.revoke();
    }
}
