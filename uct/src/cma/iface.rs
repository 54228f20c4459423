//! The interface of `cma`: an address, batches, and notifications of deaths; there is nothing to receive. An
//! idle poll is two loads.

#![allow(unsafe_code)]

use super::batch::{BatchQueue, ProcBatch};
use super::joint_copy::{HAS_TABLE, OwnTable, PeerCopies};
use super::vm::{self, Direction};
use super::{DEV, Ep, Md, TL, probe};
use crate::api::{
    self, AddrBuf, AmHandler, Caps, Comp, ConnectError, DevKind, Error, Events, IfaceAttr, Iov, Latency,
    OpenError, OrderKind, Outcome, Refused, ResourcePerf, RmaLimits, Sent, Sink,
};
use crate::base::am::{AmTable, ErrorHandler, TableSink};
use crate::base::direct;
use crate::base::ep_table::{EpIdx, EpTable, FailedPeers};
use crate::host::RemoteSegments;
use crate::host::fd_server::{Alarm, FdServer, ProcKey, ProcWatch};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;
use std::cell::{Cell, RefCell};
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use ucs::sys::host::HostKey;
use ucs::sys::proc::start_time;
use ucs::sys::{EventFd, ProcId};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// CPU time for a message, ns.
const OVERHEAD: f64 = 400.0;

/// Follows the key of a process where a published number follows this. Earlier versions have none.
pub(super) const PUBLISHES: u64 = 0x8F4D_27B6_A1E0_935C;

/// Estimates for a present-day machine.
pub(crate) const PERF: ResourcePerf = ResourcePerf::new(80.0, OVERHEAD, 12e9);

ucs::config_table! {
    /// Transport `cma`: memory of other processes of one host, by system call.
    pub struct Config, prefix "UCX_CMA_" {
        /// Let other processes of this user read and write this one's memory where Yama's ptrace_scope is 1.
        /// Without it peers have no permission there.
        pub allow_peers: bool = "y", key "ALLOW_PEERS";
        /// Map memory that a peer has allocated by a transport of this host, and copy without a system call.
        pub map: bool = "y", key "MAP";
        /// How long a peer's process may take to pass memory to map. Memory that it does not pass by then is
        /// copied by the kernel, and later keys are not waited for until it answers.
        pub answer_timeout: Duration = "1s", key "ANSWER_TIMEOUT";
        /// Longest put or get by bcopy: the length of the buffer for memory that is not mapped.
        pub seg_size: usize = "8256", key "SEG_SIZE", unit "bytes", range 64..=1048576;
        /// Most puts and gets by zcopy to one process in one system call. They wait for a poll, flush, fence,
        /// or any other operation with that process. 1: each is done when it is called.
        pub batch: usize = "16", key "BATCH", unit "operations", range 1..=64;
        /// Most bytes of such a system call, during which other operations of the process's threads may have
        /// to wait. An operation as long is done when it is called.
        pub batch_bytes: usize = "512k", key "BATCH_BYTES", unit "bytes", range 1..=1073741824;
        /// Let a peer that polls copy parts of a long put or get with a completion. Peers map a table for
        /// it as they map memory (MAP).
        pub joint: bool = "y", key "JOINT";
        /// Directory of the sockets over which processes pass each other their memory, as for `posix`. Empty:
        /// the value of UCX_POSIX_SOCKET_DIR if it is set, otherwise names of the network namespace.
        /// Where it differs from the one of `posix`, long messages come in packets.
        pub socket_dir: String = "", key "SOCKET_DIR";
    }
}

/// An interface address: the process, and where it keeps its key.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
pub(super) struct Addr {
    pub pid: U32,
    reserved: U32,
    pub key: U64,
    pub key_addr: U64,
}

const _: () = assert!(size_of::<Addr>() == 24);

/// An interface of `cma`. Cloning gives another handle to the same one.
#[derive(Clone)]
pub struct Iface {
    inner: Rc<Inner>,
}

pub(super) struct Inner {
    attr: IfaceAttr,
    md: Md,
    host: HostKey,
    server: Arc<FdServer>,
    /// Read by peers: the key of this process, as they connect, then [`PUBLISHES`] and the published number,
    /// then [`HAS_TABLE`], and name, nonce and address of the table.
    words: Box<[AtomicU64; 7]>,
    pub(super) table: Option<OwnTable>,
    /// Processes with a copy that waits for their part.
    waiting: RefCell<Vec<Rc<Proc>>>,
    alarm: Arc<Alarm>,
    wake: Arc<EventFd>,
    handlers: AmTable,
    pub(super) batches: BatchQueue,
    armed: Cell<bool>,
    /// The buffer of bcopy, made by the first; away while in use.
    bounce: Cell<Option<Box<[u8]>>>,
    failed_peers: FailedPeers<Proc>,
    /// Processes that have endpoints, by pid and key.
    procs: RefCell<HashMap<(u32, ProcKey), Weak<Proc>, FxBuildHasher>>,
}

/// A peer process, shared by all endpoints to it. In this order in memory, for operations.
#[repr(C)]
pub(super) struct Proc {
    pub pid: u32,
    pub failure_reported: Cell<bool>,
    /// The kernel has not found it, perhaps before the watch was notified.
    pub not_found: Cell<bool>,
    pub key: ProcKey,
    pub watch: Arc<ProcWatch>,
    pub eps: EpTable,
    pub batch: ProcBatch,
    pub copies: PeerCopies,
}

impl Proc {
    /// Whether it is known to be dead: no operation begins any more.
    #[inline]
    pub(super) fn is_dead(&self) -> bool {
        self.watch.is_dead() || self.not_found.get()
    }
}

impl Iface {
    /// Opens an interface with a memory domain of its own, if the system permits the system calls.
    pub fn open(config: &Config) -> Result<Self, OpenError> {
        Self::open_on(&Md::open(config)?, config)
    }

    /// Opens an interface on a memory domain that other interfaces may share. `ALLOW_PEERS`, `MAP`,
    /// `ANSWER_TIMEOUT` and `SOCKET_DIR` count as the domain was opened.
    pub fn open_on(md: &Md, config: &Config) -> Result<Self, OpenError> {
        let server = md.server().clone();
        let wake = EventFd::new().map(Arc::new).map_err(|errno| Error::Sys { call: "eventfd", errno })?;
        let table = OwnTable::new(md.shared(), config);
        let capability = table.as_ref().and_then(|table| table.capability(md.shared()));
        let (mark, [name, nonce, at]) = capability.map_or((0, [0; 3]), |it| (HAS_TABLE, it));
        let words = [server.key().0, PUBLISHES, 0, mark, name, nonce, at].map(AtomicU64::new);
        let inner = Inner {
            attr: attr(config.seg_size),
            md: md.clone(),
            host: HostKey::current(),
            words: Box::new(words),
            table,
            waiting: RefCell::default(),
            server,
            alarm: Alarm::new(wake.clone()),
            wake,
            handlers: AmTable::default(),
            batches: BatchQueue::new(config.batch, config.batch_bytes),
            armed: Cell::default(),
            bounce: Cell::default(),
            failed_peers: FailedPeers::default(),
            procs: RefCell::default(),
        };
        Ok(Iface { inner: Rc::new(inner) })
    }

    fn check_host(&self, device: &[u8]) -> Result<(), ConnectError> {
        self.inner.check_host(device)
    }

    #[cfg(test)]
    pub(super) fn inner(&self) -> &Inner {
        &self.inner
    }
}

fn attr(max_bcopy: usize) -> IfaceAttr {
    let rma = RmaLimits {
        max_short: isize::MAX as usize,
        max_bcopy,
        min_zcopy: 0,
        max_zcopy: isize::MAX as usize,
        max_iov: direct::MAX_IOV,
        max_remote: direct::MAX_IOV,
    };
    IfaceAttr {
        tl: TL,
        dev: DEV.into(),
        kind: DevKind::Shm,
        caps: Caps::PUT_SHORT
            | Caps::PUT_BCOPY
            | Caps::PUT_ZCOPY
            | Caps::GET_SHORT
            | Caps::GET_BCOPY
            | Caps::GET_ZCOPY
            | Caps::PUT_SGL
            | Caps::GET_SGL
            | Caps::CONNECT_TO_IFACE
            | Caps::PEER_FAILURE
            | Caps::EP_CHECK
            | Caps::RKEY_PTR
            | Caps::MR_KEY
            | Caps::FLUSH_REMOTE
            // Nothing arrives: it wakes for completions and for the death of a peer.
            | Caps::EVENT_RECV
            | Caps::EVENT_SEND,
        am: Default::default(),
        put: rma,
        get: rma,
        atomics: Default::default(),
        order: OrderKind::Ordered,
        am_id_bits: 8,
        device_addr_len: 8,
        iface_addr_len: size_of::<Addr>(),
        ep_addr_len: 0,
        tx_depth: None,
        // A system call, and the page tables of another process.
        latency: Latency { fixed: PERF.latency, per_ep: 0.0 },
        overhead: OVERHEAD,
        bandwidth: PERF.bandwidth,
        reg_cost: (20.0, 0.0),
        rma: probe::costs(),
    }
}

impl Addr {
    pub(super) fn new(pid: u32, key: u64, key_addr: u64) -> Addr {
        Addr { pid: pid.into(), reserved: 0.into(), key: key.into(), key_addr: key_addr.into() }
    }

    fn read(iface: &[u8]) -> Result<Addr, ConnectError> {
        Addr::read_from_bytes(iface).map_err(|_| ConnectError::Malformed)
    }
}

/// Checks that the process of an address is still the same and permits access, and watches it.
fn verify(addr: &Addr, server: &FdServer) -> Result<Arc<ProcWatch>, ConnectError> {
    let pid = addr.pid.get();
    let start = start_time(pid).map_err(|errno| Error::Sys { call: "open", errno })?;
    let process = ProcId { pid, start: start.ok_or(ConnectError::Gone)? };
    let watch = server.watch(process, ProcKey(addr.key.get()))?;
    let mut word = 0u64;
    let list = [Iov::<()>::new((&raw mut word).cast(), 8, None)];
    // SAFETY: `word` is ours; at `key_addr` the kernel only reads, if the process permits it.
    match unsafe { vm::transfer(Direction::Read, pid, &list, addr.key_addr.get()) } {
        Ok(()) if word == addr.key.get() && !watch.check() => Ok(watch),
        Ok(()) | Err(Error::RemoteAccess | Error::PeerDead) => Err(ConnectError::Gone),
        Err(Error::Unreachable) => Err(ConnectError::Permission),
        Err(e) => Err(e.into()),
    }
}

impl Inner {
    fn check_host(&self, device: &[u8]) -> Result<(), ConnectError> {
        let bytes = device.try_into().map_err(|_| ConnectError::Malformed)?;
        if u64::from_le_bytes(bytes) == self.host.0 { Ok(()) } else { Err(ConnectError::OtherHost) }
    }

    pub(super) fn max_bcopy(&self) -> usize {
        self.attr.put.max_bcopy
    }

    /// Lends the buffer of bcopy, or a new one to a nested call.
    pub(super) fn with_bounce<R>(&self, body: impl FnOnce(&mut [u8]) -> R) -> R {
        let mut bounce = self.bounce.take().unwrap_or_else(|| vec![0; self.max_bcopy()].into_boxed_slice());
        let result = body(&mut bounce);
        self.bounce.set(Some(bounce));
        result
    }

    pub(super) fn is_address_of(&self, peer: &Proc, device: &[u8], iface: &[u8]) -> bool {
        let there = |addr: Addr| (addr.pid.get(), addr.key.get()) == (peer.pid, peer.key.0);
        self.check_host(device).is_ok() && Addr::read_from_bytes(iface).is_ok_and(there)
    }

    #[inline(always)]
    fn poll<S: Sink>(&self, max: usize, sink: &mut S) -> usize {
        let mut reported = 0;
        if self.batches.is_busy() {
            self.end_copies();
            reported = self.batches.poll(max, sink);
        }
        if self.alarm.is_raised() {
            reported += self.report_failed_peers(max - reported, sink);
        }
        match &self.table {
            Some(table) if reported == 0 && table.has_offers() => table.join(self),
            _ => {}
        }
        reported
    }

    #[inline(always)]
    fn is_idle(&self) -> bool {
        !self.alarm.is_raised()
            && !self.batches.is_busy()
            && !self.table.as_ref().is_some_and(OwnTable::has_offers)
    }

    /// Notes a copy that waits for the peer's part, to be reported by a poll.
    pub(super) fn add_waiting(&self, proc: &Rc<Proc>) {
        self.waiting.borrow_mut().push(proc.clone());
        self.batches.begin_other();
    }

    /// Ends the copies whose peers have ended their part.
    fn end_copies(&self) {
        if self.waiting.borrow().is_empty() {
            return;
        }
        self.waiting.borrow_mut().retain(|proc| match proc.copies.poll(proc) {
            Some((comp, ep, result)) => {
                self.batches.end_other(comp, result, proc.eps.tag(ep));
                false
            }
            None => proc.copies.is_waiting(),
        });
    }

    /// Waits for the peer's part of the copy of an endpoint that is dropped.
    pub(super) fn await_copy(&self, proc: &Rc<Proc>, ep: EpIdx) {
        // In a forked child the copy is the parent's, which waits for it.
        if !self.is_ours() {
            return;
        }
        if let Some((comp, result)) = proc.copies.await_unfinished(proc, ep) {
            self.waiting.borrow_mut().retain(|other| !Rc::ptr_eq(other, proc));
            self.batches.end_other(comp, result, proc.eps.tag(ep));
        }
    }

    pub(super) fn has_waiting(&self) -> bool {
        !self.waiting.borrow().is_empty()
    }

    /// Whether this is the process that has opened the interface, not a forked child.
    pub(super) fn is_ours(&self) -> bool {
        self.server.is_ours()
    }

    pub(super) fn segments(&self) -> &RemoteSegments {
        self.md.shared().remote_segments()
    }

    /// Reads words behind the key of a peer's interface, which is at `key_addr`.
    pub(super) fn read_words<const N: usize>(
        &self,
        peer: &Proc,
        key_addr: u64,
        skip: u64,
    ) -> Result<[u64; N], Error> {
        let mut words = [0u64; N];
        let list = [Iov::<()>::new((&raw mut words).cast(), size_of_val(&words), None)];
        if peer.is_dead() {
            return Err(Error::PeerDead);
        }
        // SAFETY: `words` is ours; there the kernel only reads, if the process permits it.
        unsafe { vm::transfer(Direction::Read, peer.pid, &list, key_addr.wrapping_add(8 * skip)) }?;
        Ok(words)
    }

    /// The address of this interface.
    pub(super) fn addr(&self) -> Addr {
        let key_addr = std::ptr::from_ref(&*self.words).addr() as u64;
        Addr::new(ucs::sys::proc::pid(), self.server.key().0, key_addr)
    }

    /// Wakes whoever sleeps until there is something to poll.
    // HOT
    #[inline]
    pub(super) fn wake(&self) {
        if self.armed.get() {
            self.signal();
        }
    }

    #[cold]
    fn signal(&self) {
        self.armed.set(false);
        if let Err(e) = self.wake.signal() {
            tracing::warn!("{TL}: cannot signal the event descriptor: {e}");
        }
    }

    #[cold]
    fn report_failed_peers<S: Sink>(&self, max: usize, sink: &mut S) -> usize {
        self.alarm.take();
        let procs: Vec<Rc<Proc>> = self.procs.borrow().values().filter_map(Weak::upgrade).collect();
        let dead =
            procs.into_iter().filter(|proc| proc.watch.is_dead() && !proc.failure_reported.replace(true));
        self.failed_peers.add(dead, |proc| &proc.eps);
        let reported = self.failed_peers.notify(max, |proc| &proc.eps, |_| Error::PeerDead, sink);
        if !self.failed_peers.is_empty() {
            self.alarm.raise();
        }
        reported
    }

    fn find_proc(&self, addr: &Addr) -> Option<Rc<Proc>> {
        let who = (addr.pid.get(), ProcKey(addr.key.get()));
        self.procs.borrow().get(&who).and_then(Weak::upgrade).filter(|proc| !proc.is_dead())
    }

    /// The process of an address, verified and watched once for all endpoints.
    pub(super) fn proc(&self, addr: &Addr) -> Result<Rc<Proc>, ConnectError> {
        match self.find_proc(addr) {
            Some(proc) => Ok(proc),
            None => self.add_proc(addr),
        }
    }

    #[cold]
    fn add_proc(&self, addr: &Addr) -> Result<Rc<Proc>, ConnectError> {
        let watch = verify(addr, &self.server)?;
        watch.subscribe(&self.alarm);
        let (pid, key) = (addr.pid.get(), ProcKey(addr.key.get()));
        let proc = Rc::new(Proc {
            pid,
            failure_reported: Cell::default(),
            not_found: Cell::default(),
            key,
            watch,
            eps: EpTable::default(),
            batch: ProcBatch::default(),
            copies: PeerCopies::default(),
        });
        let mut procs = self.procs.borrow_mut();
        if procs.len() == procs.capacity() {
            procs.retain(|_, proc| proc.strong_count() > 0);
        }
        procs.insert((pid, key), Rc::downgrade(&proc));
        Ok(proc)
    }
}

impl api::Iface for Iface {
    type Md = Md;
    type Ep = Ep;

    fn attr(&self) -> &IfaceAttr {
        &self.inner.attr
    }

    fn md(&self) -> &Md {
        &self.inner.md
    }

    fn device_addr(&self) -> AddrBuf {
        self.inner.host.0.to_le_bytes().into_iter().collect()
    }

    fn iface_addr(&self) -> AddrBuf {
        self.inner.addr().as_bytes().iter().copied().collect()
    }

    fn publish(&self, number: u64) {
        self.inner.words[2].store(number, Ordering::Release);
    }

    fn reachable(&self, device: &[u8], iface: &[u8]) -> Result<(), ConnectError> {
        self.check_host(device)?;
        let addr = Addr::read(iface)?;
        match self.inner.find_proc(&addr) {
            Some(_) => Ok(()),
            None => verify(&addr, &self.inner.server).map(drop),
        }
    }

    fn connect(&self, device: &[u8], iface: &[u8]) -> Result<Ep, ConnectError> {
        self.check_host(device)?;
        let addr = Addr::read(iface)?;
        let proc = self.inner.proc(&addr)?;
        Ok(Ep::new(self.inner.clone(), proc, addr.key_addr.get()))
    }

    fn set_am_handler(&self, id: u8, handler: Option<AmHandler>) {
        self.inner.handlers.set(id, handler);
    }

    fn set_error_handler(&self, handler: Option<ErrorHandler>) {
        self.inner.handlers.set_error(handler);
    }

    #[inline]
    fn poll<S: Sink>(&self, max: usize, sink: &mut S) -> usize {
        self.inner.poll(max, sink)
    }

    #[inline(always)]
    fn is_idle(&self) -> bool {
        self.inner.is_idle()
    }

    #[inline]
    fn progress(&self, max: usize) -> usize {
        self.inner.poll(max, &mut TableSink(&self.inner.handlers))
    }

    fn flush(&self, comp: Comp) -> Outcome {
        self.inner.batches.submit_all();
        if self.inner.has_waiting() {
            return Err(Refused::NoResource);
        }
        self.inner.batches.flush(comp)
    }

    fn fence(&self) -> Outcome {
        self.inner.batches.submit_all();
        if self.inner.has_waiting() {
            return Err(Refused::NoResource);
        }
        direct::fence();
        Ok(Sent::Done)
    }

    fn event_fd(&self) -> Result<BorrowedFd<'_>, Error> {
        Ok(self.inner.wake.as_fd())
    }

    fn arm(&self, _events: Events) -> Result<bool, Error> {
        self.inner.wake.clear().map_err(|errno| Error::Sys { call: "read", errno })?;
        // The alarm is raised before the signal, so one of the two is still seen.
        let asleep = self.inner.is_idle();
        self.inner.armed.set(asleep);
        Ok(asleep)
    }
}
