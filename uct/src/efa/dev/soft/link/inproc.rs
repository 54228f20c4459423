//! Many devices in one thread under virtual time: order, delay, RNR and faults come from a seed, peers can be killed.
//! Used by unit tests and by the simulation of whole jobs. Never uses a thread, a system clock or another process.
//!
//! Time moves when a completion queue is polled, by [`Fabric::step`] (to the next thing due) and by
//! [`Fabric::advance`]. What is due is carried out in the order in which queue pairs were created, so that one seed
//! is one run.

use super::{Channel, From, Link, Msg, Peer, Posted, Pump, Rdma, Rx, RxInit, Verdict, Wake};
use crate::api::{Access, Error, OpenError};
use crate::efa::dev::soft::Device;
use crate::efa::dev::soft::model::FaultPlan;
use crate::efa::dev::soft::mr::{Keep, MrTable, Rows};
use crate::efa::dev::soft::profile::Profile;
use crate::efa::dev::{Cqe, CqeOp, DevStatus, Gid};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::{Rc, Weak};
use ucs::mem::{Fill, MapOpts, Mapping, Pages};
use ucs::sys::EventFd;

/// Virtual time that one poll of a completion queue takes, ns.
const POLL_NS: u64 = 100;
/// Arrivals of unsolicited writes a queue pair holds before it blocks the way.
const MAX_UNSOLICITED: usize = 4096;

struct State {
    seed: u64,
    plan: FaultPlan,
    now: Cell<u64>,
    opened: Cell<u64>,
    nodes: RefCell<Vec<Weak<Node>>>,
    ports: RefCell<BTreeMap<(u64, u16), Rc<Port>>>,
    pumps: RefCell<Vec<Weak<dyn Pump>>>,
    next_qpn: Cell<u16>,
    delivered: Cell<u64>,
}

/// A network of devices in one thread. Clones are the same network.
#[derive(Clone)]
pub struct Fabric(Rc<State>);

impl Fabric {
    /// An empty network. `seed` and the calls made decide everything that happens on it.
    pub fn new(seed: u64, plan: FaultPlan) -> Fabric {
        Fabric(Rc::new(State {
            seed,
            plan,
            now: Cell::new(0),
            opened: Cell::new(0),
            nodes: RefCell::default(),
            ports: RefCell::default(),
            pumps: RefCell::default(),
            next_qpn: Cell::new(0),
            delivered: Cell::new(0),
        }))
    }

    /// A device with GID `fe80::` + `iid`. Several may share one GID.
    pub fn open(&self, iid: u64, mut profile: Profile) -> Result<Device<Inproc>, OpenError> {
        if iid == 0 {
            return Err(OpenError::Config("an interface id is not zero".into()));
        }
        let nth = self.0.opened.replace(self.0.opened.get() + 1);
        profile.attr.name = format!("softefa{nth}");
        let rows = profile.attr.max_mr as usize;
        let opts = MapOpts { pages: Pages::Small, fill: Fill::Lazy };
        let table = Mapping::new(MrTable::bytes(rows), opts)
            .map_err(|e| OpenError::Environment(format!("softefa{nth}: {e}")))?;
        let node = Rc::new(Node {
            iid,
            table: MrTable::new(Rows::new(Keep::Private(Rc::new(table)), 0, rows)),
            known: RefCell::default(),
            dead: Cell::new(false),
            strict: profile.strict,
        });
        self.0.nodes.borrow_mut().push(Rc::downgrade(&node));
        let link = Inproc { fabric: self.clone(), node };
        Ok(Device::new(link, profile, self.0.plan, self.0.seed ^ nth << 48))
    }

    /// Virtual time, ns.
    pub fn now(&self) -> u64 {
        self.0.now.get()
    }

    /// Messages and RDMA operations carried out so far.
    pub fn delivered(&self) -> u64 {
        self.0.delivered.get()
    }

    /// Moves time to the next thing due and carries out all that is due then. `false`: nothing is under way.
    pub fn step(&self) -> bool {
        match self.next_due() {
            u64::MAX => false,
            due => {
                self.0.now.set(self.0.now.get().max(due));
                self.run_due();
                true
            }
        }
    }

    /// Moves time by `ns`, carrying out what becomes due on the way, in order of time.
    pub fn advance(&self, ns: u64) {
        let end = self.0.now.get().saturating_add(ns);
        loop {
            let due = self.next_due();
            if due > end {
                break;
            }
            self.0.now.set(self.0.now.get().max(due));
            if !self.run_due() {
                break;
            }
        }
        self.0.now.set(end);
    }

    /// The process that owns this GID dies: its queue pairs are gone, its devices do nothing any more.
    pub fn kill(&self, gid: Gid) {
        for node in self.0.nodes.borrow().iter().filter_map(Weak::upgrade) {
            if node.iid == gid.iid() {
                node.dead.set(true);
            }
        }
        self.0.ports.borrow_mut().retain(|(iid, _), port| {
            let dead = *iid == gid.iid();
            if dead {
                port.closed.set(true);
            }
            !dead
        });
    }

    fn pumps(&self) -> Vec<Rc<dyn Pump>> {
        self.0.pumps.borrow_mut().retain(|p| p.strong_count() > 0);
        self.0.pumps.borrow().iter().filter_map(Weak::upgrade).collect()
    }

    fn next_due(&self) -> u64 {
        self.0.pumps.borrow().iter().filter_map(Weak::upgrade).map(|p| p.next_due()).min().unwrap_or(u64::MAX)
    }

    fn run_due(&self) -> bool {
        let mut any = false;
        for pump in self.pumps() {
            any |= pump.pump();
        }
        any
    }
}

/// One device's place on a fabric.
#[derive(Clone)]
pub struct Inproc {
    fabric: Fabric,
    node: Rc<Node>,
}

impl Inproc {
    /// The fabric the device is on.
    pub fn fabric(&self) -> &Fabric {
        &self.fabric
    }
}

struct Node {
    iid: u64,
    table: MrTable,
    /// GIDs with an address handle here, and in how many domains.
    known: RefCell<BTreeMap<u64, u32>>,
    dead: Cell<bool>,
    strict: bool,
}

struct Port {
    qpn: u16,
    pd: u32,
    qkey: u32,
    unsolicited: bool,
    node: Rc<Node>,
    posted: RefCell<VecDeque<Posted>>,
    arrived: RefCell<VecDeque<Cqe>>,
    /// Arrivals that used up a receive and were not polled.
    taken: Cell<u32>,
    closed: Cell<bool>,
    armed: Cell<bool>,
    wake: Option<Rc<EventChannel>>,
}

impl Port {
    fn arrive(&self, cqe: Cqe, used: Used) {
        self.arrived.borrow_mut().push_back(cqe);
        if used == Used::Receive {
            self.taken.set(self.taken.get() + 1);
        }
        if self.armed.replace(false)
            && let Some(wake) = &self.wake
        {
            wake.signal();
        }
    }
}

/// What an arrival used up.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Used {
    Receive,
    Nothing,
}

/// Receive side of a queue pair.
pub struct InRx {
    port: Rc<Port>,
    fabric: Fabric,
}

impl Drop for InRx {
    fn drop(&mut self) {
        self.port.closed.set(true);
        let mut ports = self.fabric.0.ports.borrow_mut();
        let at = (self.port.node.iid, self.port.qpn);
        if ports.get(&at).is_some_and(|p| Rc::ptr_eq(p, &self.port)) {
            ports.remove(&at);
        }
    }
}

impl Rx for InRx {
    fn qpn(&self) -> u16 {
        self.port.qpn
    }

    fn post(&self, posted: Posted) {
        self.port.posted.borrow_mut().push_back(posted);
    }

    fn outstanding(&self) -> u32 {
        self.port.posted.borrow().len() as u32 + self.port.taken.get()
    }

    fn poll(&self, out: &mut [Cqe]) -> usize {
        let mut arrived = self.port.arrived.borrow_mut();
        let n = arrived.len().min(out.len());
        for (to, cqe) in out.iter_mut().zip(arrived.drain(..n)) {
            *to = cqe;
            let used = !(self.port.unsolicited && cqe.op == CqeOp::RecvWriteImm);
            self.port.taken.set(self.port.taken.get() - u32::from(used));
        }
        n
    }

    fn ready(&self) -> bool {
        !self.port.arrived.borrow().is_empty()
    }

    fn stalled(&self) -> bool {
        false
    }

    fn arm(&self, armed: bool) {
        self.port.armed.set(armed);
    }

    fn close(&self, each: &mut dyn FnMut(Posted)) {
        self.port.closed.set(true);
        let posted = std::mem::take(&mut *self.port.posted.borrow_mut());
        posted.into_iter().for_each(each);
    }

    fn upkeep(&self) {}
}

/// Way to a queue pair: the port itself.
pub struct InPeer {
    me: Rc<Node>,
    port: Rc<Port>,
    fabric: Fabric,
}

impl InPeer {
    fn carried_out(&self) -> Verdict {
        self.fabric.0.delivered.set(self.fabric.0.delivered.get() + 1);
        Verdict::Done(DevStatus::Ok)
    }

    /// The remote memory of an RDMA operation, if the target allows it.
    fn remote(&self, from: From, op: &Rdma, need: Access) -> Result<*mut u8, Verdict> {
        let node = &self.port.node;
        if self.me.dead.get() {
            return Err(Verdict::Busy);
        }
        if self.port.closed.get() {
            return Err(Verdict::Done(DevStatus::BadDestQpn));
        }
        if node.strict && !node.known.borrow().contains_key(&from.iid) {
            return Err(Verdict::Done(DevStatus::UnknownPeer));
        }
        if !node.table.allows(op.rkey, self.port.pd, op.raddr, u64::from(op.len), need) {
            return Err(Verdict::Done(DevStatus::RemoteBadAddress));
        }
        Ok(op.raddr as *mut u8)
    }
}

/// Copies `len` bytes that may overlap: a process may write into its own memory.
///
/// # Safety
/// `src` readable and `dst` writable for `len` bytes.
unsafe fn copy(src: *const u8, dst: *mut u8, len: u32) {
    if len > 0 {
        // SAFETY: by this function's contract.
        unsafe { std::ptr::copy(src, dst, len as usize) }
    }
}

impl Peer for InPeer {
    fn qkey(&self) -> u32 {
        self.port.qkey
    }

    fn send(&self, from: From, msg: &Msg<'_>) -> Verdict {
        let port = &*self.port;
        if self.me.dead.get() {
            return Verdict::Busy;
        }
        if port.closed.get() {
            return Verdict::Done(DevStatus::BadDestQpn);
        }
        let Some(&posted) = port.posted.borrow().front() else { return Verdict::NotReady };
        if msg.len() > posted.cap {
            return Verdict::Done(DevStatus::RemoteBadLength);
        }
        port.posted.borrow_mut().pop_front();
        let table = &port.node.table;
        let still = table.allows(
            posted.lkey,
            port.pd,
            posted.addr as u64,
            u64::from(posted.cap),
            Access::LOCAL_WRITE,
        );
        let mut cqe = Cqe {
            wr_id: posted.wr_id,
            status: DevStatus::Ok,
            op: CqeOp::Recv,
            qpn: port.qpn,
            src_qpn: from.qpn,
            len: msg.len(),
            src_gid: Gid::link_local(from.iid),
            imm: msg.imm,
        };
        if !still {
            cqe.status = DevStatus::InvalidLkey;
            port.arrive(cqe, Used::Receive);
            return Verdict::Done(DevStatus::RemoteAbort);
        }
        // SAFETY: the posted range is a live registration for local writes (checked just now) and has room for the
        // message (checked above).
        unsafe { msg.copy_to(posted.addr) };
        port.arrive(cqe, Used::Receive);
        self.carried_out()
    }

    fn read(&self, from: From, op: &Rdma) -> Verdict {
        match self.remote(from, op, Access::REMOTE_READ) {
            Err(verdict) => verdict,
            Ok(remote) => {
                // SAFETY: the local range was checked against its key by the caller, the remote one just now; both
                // registrations are live and of this process.
                unsafe { copy(remote, op.local, op.len) };
                self.carried_out()
            }
        }
    }

    fn write(&self, from: From, op: &Rdma, imm: Option<u32>) -> Verdict {
        let port = &*self.port;
        let remote = match self.remote(from, op, Access::REMOTE_WRITE) {
            Err(verdict) => return verdict,
            Ok(remote) => remote,
        };
        if imm.is_some() && !port.unsolicited && port.posted.borrow().is_empty() {
            return Verdict::NotReady;
        }
        if imm.is_some() && port.unsolicited && port.arrived.borrow().len() >= MAX_UNSOLICITED {
            return Verdict::Busy;
        }
        // SAFETY: as in `read`, the other way round.
        unsafe { copy(op.local, remote, op.len) };
        if imm.is_some() {
            let taken = if port.unsolicited { None } else { port.posted.borrow_mut().pop_front() };
            let cqe = Cqe {
                wr_id: taken.map_or(0, |p| p.wr_id),
                status: DevStatus::Ok,
                op: CqeOp::RecvWriteImm,
                qpn: port.qpn,
                src_qpn: from.qpn,
                len: op.total,
                src_gid: Gid::link_local(from.iid),
                imm,
            };
            port.arrive(cqe, if port.unsolicited { Used::Nothing } else { Used::Receive });
        }
        self.carried_out()
    }
}

/// A completion channel: an event counter.
pub struct EventChannel(EventFd);

impl Wake for EventChannel {
    fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    fn signal(&self) {
        // Fails only if the descriptor is none.
        let _ = self.0.signal();
    }

    fn clear(&self) {
        let _ = self.0.clear();
    }

    /// Virtual time stands still while a thread sleeps.
    fn timer(&self, _ns: u64) -> bool {
        false
    }
}

impl Link for Inproc {
    type Rx = InRx;
    type Peer = InPeer;
    type Wake = EventChannel;

    fn iid(&self) -> u64 {
        self.node.iid
    }

    fn regions(&self) -> &MrTable {
        &self.node.table
    }

    fn alloc(&self, len: usize) -> Result<(Keep, Option<i32>), Error> {
        let opts = MapOpts { pages: Pages::Small, fill: Fill::Lazy };
        let map = Mapping::new(len, opts).map_err(|_| Error::NoMemory)?;
        Ok((Keep::Private(Rc::new(map)), None))
    }

    fn open_rx(&self, init: RxInit<EventChannel>, free: &dyn Fn(u16) -> bool) -> Result<InRx, OpenError> {
        let mut ports = self.fabric.0.ports.borrow_mut();
        let next = self.fabric.0.next_qpn.get();
        let qpn = (1..=u16::MAX)
            .map(|n| next.wrapping_add(n))
            .find(|&qpn| qpn != 0 && free(qpn) && !ports.contains_key(&(self.node.iid, qpn)))
            .ok_or(Error::Exhausted("queue pair numbers"))?;
        self.fabric.0.next_qpn.set(qpn);
        let port = Rc::new(Port {
            qpn,
            pd: init.pd,
            qkey: init.qkey,
            unsolicited: init.unsolicited,
            node: self.node.clone(),
            posted: RefCell::new(VecDeque::with_capacity(init.depth as usize)),
            arrived: RefCell::default(),
            taken: Cell::new(0),
            closed: Cell::new(false),
            armed: Cell::new(false),
            wake: init.wake,
        });
        ports.insert((self.node.iid, qpn), port.clone());
        Ok(InRx { port, fabric: self.fabric.clone() })
    }

    fn resolve(&self, iid: u64, qpn: u16) -> Result<InPeer, Verdict> {
        let port = self.fabric.0.ports.borrow().get(&(iid, qpn)).cloned();
        match port {
            Some(port) => Ok(InPeer { me: self.node.clone(), port, fabric: self.fabric.clone() }),
            None => Err(Verdict::Done(DevStatus::BadDestQpn)),
        }
    }

    fn wake(&self, channel: Channel) -> Result<Option<EventChannel>, OpenError> {
        if channel == Channel::Without {
            return Ok(None);
        }
        let fd = EventFd::new().map_err(|errno| Error::Sys { call: "eventfd", errno })?;
        Ok(Some(EventChannel(fd)))
    }

    fn know(&self, iid: u64, known: bool) -> Result<(), Error> {
        let mut all = self.node.known.borrow_mut();
        let n = all.entry(iid).or_default();
        *n = if known { *n + 1 } else { n.saturating_sub(1) };
        if *n == 0 {
            all.remove(&iid);
        }
        Ok(())
    }

    fn on_poll(&self) {
        let state = &*self.fabric.0;
        state.now.set(state.now.get() + POLL_NS);
        if self.fabric.next_due() <= state.now.get() {
            self.fabric.run_due();
        }
    }

    fn ticks(&self) -> u64 {
        self.fabric.now()
    }

    fn clock(&self) -> u64 {
        self.fabric.now()
    }

    fn retry_ticks(&self, interval_ns: u64) -> u64 {
        interval_ns
    }

    fn adopt(&self, pump: Weak<dyn Pump>) {
        self.fabric.0.pumps.borrow_mut().push(pump);
    }

    fn alive(&self) -> bool {
        !self.node.dead.get()
    }
}
