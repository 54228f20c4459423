//! Many devices in one thread under virtual time: order, delay, RNR and faults come from a seed, peers can be killed.
//! Used by unit tests and by the simulation of whole jobs. Never uses a thread, a system clock or another process.
//!
//! Time moves when a completion queue is polled, by [`Fabric::step`] (to the next thing due) and by
//! [`Fabric::advance`]. What is due is carried out in the order in which queue pairs were created, so that one seed
//! is one run.

mod port;

use super::{Channel, Link, Pump, RxInit, Verdict, Wake};
use crate::api::{Error, OpenError};
use crate::efa::dev::soft::Device;
use crate::efa::dev::soft::capture::Tap;
use crate::efa::dev::soft::model::FaultPlan;
use crate::efa::dev::soft::mr::{Keep, MrTable, Rows};
use crate::efa::dev::soft::profile::Profile;
use crate::efa::dev::{DevStatus, Gid, QpKind};
use port::{InPeer, InRx, Port};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use rustc_hash::FxHashMap;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use ucs::mem::{Fill, MapOpts, Mapping, Pages};
use ucs::sys::EventFd;
use ucs::time::{Clock, Nanos};

/// Virtual time that one poll of a completion queue takes, ns.
const POLL_NS: u64 = 100;

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
    pcap: RefCell<String>,
    /// Who dies, and at how many deliveries.
    doomed: RefCell<Vec<(u64, u64)>>,
    /// Probability that a registration is refused, and the dice for it.
    refusal: RefCell<Option<(f64, ChaCha8Rng)>>,
    refused: Cell<u64>,
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
            pcap: RefCell::default(),
            doomed: RefCell::default(),
            refusal: RefCell::default(),
            refused: Cell::new(0),
        }))
    }

    /// Devices opened from now on write their packets to a capture file, under virtual time. `name` is a value of
    /// `SOFTEFA_PCAP`; empty for none. A file that cannot be written is an error of [`Fabric::open`].
    pub fn capture(&self, name: &str) {
        *self.0.pcap.borrow_mut() = name.to_owned();
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
            .map_err(|e| OpenError::memory(format_args!("softefa{nth}"), &e))?;
        let node = Rc::new(Node {
            iid,
            table: MrTable::new(Rows::new(Keep::Private(Arc::new(table)), 0, rows)),
            known: RefCell::default(),
            dead: Cell::new(false),
            down: Cell::new(false),
            strict: profile.strict,
        });
        self.0.nodes.borrow_mut().push(Rc::downgrade(&node));
        let tap = match &**self.0.pcap.borrow() {
            "" => None,
            name => {
                let fabric = self.clone();
                Some(Tap::open(name, Gid::link_local(iid), move || fabric.now())?)
            }
        };
        let link = Inproc { fabric: self.clone(), node };
        Ok(Device::new(link, profile, self.0.plan, self.0.seed ^ nth << 48, tap))
    }

    /// The next queue pair gets this number, unless its device has it already: for tests of numbers that are used again.
    pub fn set_next_qpn(&self, qpn: u16) {
        self.0.next_qpn.set(qpn.wrapping_sub(1));
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

    /// As [`Fabric::kill`], right after `n` more messages and RDMA operations have been carried out anywhere here.
    pub fn kill_after(&self, gid: Gid, n: u64) {
        match n {
            0 => self.kill(gid),
            n => self.0.doomed.borrow_mut().push((self.delivered() + n, gid.iid())),
        }
    }

    /// From now on devices refuse this share of registrations, drawn from the seed, as hardware does with memory it cannot
    /// pin.
    pub fn refuse_registrations(&self, probability: f64) {
        let dice = ChaCha8Rng::seed_from_u64(self.0.seed ^ 0x5e);
        *self.0.refusal.borrow_mut() = Some((probability, dice));
    }

    /// Registrations refused so far.
    pub fn refused(&self) -> u64 {
        self.0.refused.get()
    }

    /// Memory regions registered on all devices.
    pub fn regions(&self) -> usize {
        self.0.nodes.borrow().iter().filter_map(Weak::upgrade).map(|node| node.table.live()).sum()
    }

    fn count_delivery(&self) {
        let delivered = self.0.delivered.get() + 1;
        self.0.delivered.set(delivered);
        let due: Vec<u64> = {
            let mut doomed = self.0.doomed.borrow_mut();
            doomed.extract_if(.., |(at, _)| *at <= delivered).map(|(_, iid)| iid).collect()
        };
        due.into_iter().for_each(|iid| self.kill(Gid::link_local(iid)));
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

/// For whoever shall live in the time of the network.
impl Clock for Fabric {
    fn now(&self) -> Nanos {
        Nanos(Fabric::now(self))
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
    known: RefCell<FxHashMap<[u8; 8], u32>>,
    dead: Cell<bool>,
    /// Its NIC went down; the process lives.
    down: Cell<bool>,
    strict: bool,
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

    fn takes_registration(&self) -> bool {
        match &mut *self.fabric.0.refusal.borrow_mut() {
            None => true,
            Some((p, dice)) => {
                let takes = (dice.next_u64() >> 11) as f64 >= *p * (1u64 << 53) as f64;
                self.fabric.0.refused.set(self.fabric.0.refused.get() + u64::from(!takes));
                takes
            }
        }
    }

    fn alloc(&self, len: usize) -> Result<(Keep, Option<i32>), Error> {
        let opts = MapOpts { pages: Pages::Small, fill: Fill::Lazy };
        let map = Mapping::new(len, opts).map_err(|_| Error::NoMemory)?;
        Ok((Keep::Private(Arc::new(map)), None))
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
            kind: init.kind,
            pd: init.pd,
            qkey: Cell::new(init.qkey),
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

    fn resolve(&self, iid: u64, qpn: u16, kind: QpKind) -> Result<InPeer, Verdict> {
        let port = self.fabric.0.ports.borrow().get(&(iid, qpn)).cloned();
        match port {
            Some(port) if port.node.down.get() => Err(Verdict::Done(DevStatus::Unreachable)),
            Some(port) if port.kind != kind => Err(Verdict::Done(DevStatus::BadDestQpn)),
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
        let n = all.entry(iid.to_ne_bytes()).or_default();
        *n = if known { *n + 1 } else { n.saturating_sub(1) };
        if *n == 0 {
            all.remove(&iid.to_ne_bytes());
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

    fn go_down(&self) {
        self.node.down.set(true);
    }

    fn alive(&self) -> bool {
        !self.node.dead.get()
    }
}
