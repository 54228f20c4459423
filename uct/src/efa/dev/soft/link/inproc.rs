//! Many devices in one thread under virtual time, all decided by a seed: order, delay, RNR, faults; peers can
//! be killed. Used by unit tests and simulations.
//!
//! Time moves at polls of completion queues, by [`Fabric::step`] and by [`Fabric::advance`]. Due work is done
//! in the order in which queue pairs were created, so a seed determines the run.

mod qp;

use super::{Channel, CompChannel, Link, Progress, RecvQueueInit, TryOutcome};
use crate::api::{Error, OpenError};
use crate::base::alloc;
use crate::base::thread_bound::ThreadBound;
use crate::efa::dev::soft::Device;
use crate::efa::dev::soft::capture::Capture;
use crate::efa::dev::soft::fault_model::FaultPlan;
use crate::efa::dev::soft::mr::{Memory, MrTable};
use crate::efa::dev::soft::profile::Profile;
use crate::efa::dev::{DevStatus, Gid, Placement, QpKind};
use qp::{FabricQp, InprocRecvQueue, InprocRemoteQp};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use rustc_hash::FxHashMap;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::{Rc, Weak};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{self, Arc, Mutex, MutexGuard, PoisonError};
use ucs::mem::{FixedMap, MapOpts, Mapping, Pages};
use ucs::sys::EventFd;
use ucs::time::{Clock, Nanos};

/// Virtual duration of a completion queue poll, ns.
const POLL_NS: u64 = 100;

struct FabricState {
    seed: u64,
    plan: FaultPlan,
    now: Cell<u64>,
    opened: Cell<u64>,
    nodes: RefCell<Vec<sync::Weak<Node>>>,
    qps: RefCell<BTreeMap<(u64, u16), Rc<FabricQp>>>,
    progressables: RefCell<Vec<Weak<dyn Progress>>>,
    next_qpn: Cell<u16>,
    delivered: Cell<u64>,
    pcap: RefCell<String>,
    /// Number of deliveries at which an interface id is killed.
    scheduled_kills: RefCell<Vec<(u64, u64)>>,
    registration_faults: RefCell<Option<(f64, ChaCha8Rng)>>,
    refused: Cell<u64>,
    late: LateOutcomes,
}

/// Outcomes that are told later, by the device and queue pair of the request.
#[derive(Default)]
struct LateOutcomes {
    /// Time until they are told; 0: they are told within the call.
    delay: Cell<u64>,
    last_token: Cell<u32>,
    waiting: RefCell<VecDeque<LateOutcome>>,
}

struct LateOutcome {
    due: u64,
    to: (u64, u16),
    token: u32,
    outcome: TryOutcome,
}

/// A network of devices in one thread. Clones share it.
#[derive(Clone)]
pub struct Fabric(Rc<FabricState>);

impl Fabric {
    /// Creates an empty network, determined by `seed` and the calls made.
    pub fn new(seed: u64, plan: FaultPlan) -> Fabric {
        Fabric(Rc::new(FabricState {
            seed,
            plan,
            now: Cell::new(0),
            opened: Cell::new(0),
            nodes: RefCell::default(),
            qps: RefCell::default(),
            progressables: RefCell::default(),
            next_qpn: Cell::new(0),
            delivered: Cell::new(0),
            pcap: RefCell::default(),
            scheduled_kills: RefCell::default(),
            registration_faults: RefCell::default(),
            refused: Cell::new(0),
            late: LateOutcomes::default(),
        }))
    }

    /// Makes devices opened later write a capture under virtual time. `name` is a value of `SOFTEFA_PCAP`;
    /// empty for none. A write error fails [`Fabric::open`].
    pub fn capture(&self, name: &str) {
        *self.0.pcap.borrow_mut() = name.to_owned();
    }

    /// Opens a device with GID `fe80::` + `iid`. Several may share one GID.
    pub fn open(&self, iid: u64, mut profile: Profile) -> Result<Device<Inproc>, OpenError> {
        if iid == 0 {
            return Err(OpenError::Config("an interface id is not zero".into()));
        }
        let nth = self.0.opened.replace(self.0.opened.get() + 1);
        profile.attr.name = format!("softefa{nth}");
        let entries = profile.attr.max_mr as usize;
        let table =
            MrTable::new(entries, None).map_err(|e| OpenError::memory(format_args!("softefa{nth}"), &e))?;
        let node = Arc::new(Node {
            iid,
            table,
            known_gids: Mutex::default(),
            dead: AtomicBool::new(false),
            down: AtomicBool::new(false),
            strict: profile.strict,
        });
        self.0.nodes.borrow_mut().push(Arc::downgrade(&node));
        let capture = match &**self.0.pcap.borrow() {
            "" => None,
            name => {
                let fabric = ThreadBound::new(self.clone());
                Some(Capture::open(name, Gid::link_local(iid), move || fabric.now())?)
            }
        };
        let link = Inproc { fabric: ThreadBound::new(self.clone()), node };
        Ok(Device::new(link, profile, self.0.plan, self.0.seed ^ nth << 48, capture))
    }

    /// Sets the number of the next queue pair, unless its device has it already: for tests of reused numbers.
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

    /// Moves time to the next due work and does it. Returns `false` if nothing is deferred.
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

    /// Moves time by `ns`, doing work that becomes due, in order of time.
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

    /// Kills the process that owns this GID: its queue pairs are gone and its devices stop.
    pub fn kill(&self, gid: Gid) {
        for node in self.0.nodes.borrow().iter().filter_map(sync::Weak::upgrade) {
            if node.iid == gid.iid() {
                node.dead.store(true, Relaxed);
            }
        }
        self.0.qps.borrow_mut().retain(|(iid, _), qp| {
            let dead = *iid == gid.iid();
            if dead {
                qp.closed.set(true);
            }
            !dead
        });
    }

    /// As [`Fabric::kill`], right after `n` more deliveries.
    pub fn kill_after(&self, gid: Gid, n: u64) {
        match n {
            0 => self.kill(gid),
            n => self.0.scheduled_kills.borrow_mut().push((self.delivered() + n, gid.iid())),
        }
    }

    /// Makes devices refuse this fraction of registrations from now on, drawn from the seed.
    pub fn refuse_registrations(&self, probability: f64) {
        let rng = ChaCha8Rng::seed_from_u64(self.0.seed ^ 0x5e);
        *self.0.registration_faults.borrow_mut() = Some((probability, rng));
    }

    /// Makes every outcome known at the sender only `ns` later, as on a network. 0: within the call, as at
    /// first.
    pub fn answer_late(&self, ns: u64) {
        self.0.late.delay.set(ns);
    }

    /// Tells an outcome later, if it is to be.
    fn tell(&self, to: (u64, u16), outcome: TryOutcome) -> TryOutcome {
        let late = &self.0.late;
        if late.delay.get() == 0 || outcome == TryOutcome::Busy {
            return outcome;
        }
        let token = late.last_token.get().wrapping_add(1);
        late.last_token.set(token);
        let due = self.now() + late.delay.get();
        late.waiting.borrow_mut().push_back(LateOutcome { due, to, token, outcome });
        TryOutcome::Pending(token)
    }

    /// Registrations refused so far.
    pub fn refused(&self) -> u64 {
        self.0.refused.get()
    }

    /// Memory regions registered on all devices.
    pub fn regions(&self) -> usize {
        self.0.nodes.borrow().iter().filter_map(sync::Weak::upgrade).map(|node| node.table.live()).sum()
    }

    fn count_delivery(&self) {
        let delivered = self.0.delivered.get() + 1;
        self.0.delivered.set(delivered);
        let due: Vec<u64> = {
            let mut scheduled_kills = self.0.scheduled_kills.borrow_mut();
            scheduled_kills.extract_if(.., |(at, _)| *at <= delivered).map(|(_, iid)| iid).collect()
        };
        due.into_iter().for_each(|iid| self.kill(Gid::link_local(iid)));
    }

    fn progressables(&self) -> Vec<Rc<dyn Progress>> {
        self.0.progressables.borrow_mut().retain(|p| p.strong_count() > 0);
        self.0.progressables.borrow().iter().filter_map(Weak::upgrade).collect()
    }

    fn next_due(&self) -> u64 {
        self.0
            .progressables
            .borrow()
            .iter()
            .filter_map(Weak::upgrade)
            .map(|p| p.next_due())
            .min()
            .unwrap_or(u64::MAX)
    }

    fn run_due(&self) -> bool {
        let mut any = false;
        for op in self.progressables() {
            any |= op.progress();
        }
        any
    }
}

/// Virtual time of the network.
impl Clock for Fabric {
    fn now(&self) -> Nanos {
        Nanos(Fabric::now(self))
    }
}

/// Connection of one device to a fabric. Only the fabric's thread may use it, though its type is for any: the
/// device's memory domain is then like those of real devices.
#[derive(Clone)]
pub struct Inproc {
    fabric: ThreadBound<Fabric>,
    node: Arc<Node>,
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
    known_gids: Mutex<FxHashMap<[u8; 8], u32>>,
    dead: AtomicBool,
    down: AtomicBool,
    strict: bool,
}

impl Node {
    fn known_gids(&self) -> MutexGuard<'_, FxHashMap<[u8; 8], u32>> {
        self.known_gids.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_dead(&self) -> bool {
        self.dead.load(Relaxed)
    }

    fn is_down(&self) -> bool {
        self.down.load(Relaxed)
    }
}

/// A completion channel on an eventfd.
pub struct InprocCompChannel(EventFd);

impl CompChannel for InprocCompChannel {
    fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    fn signal(&self) {
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
    /// One thread has the fabric and its time.
    const SERVES_THREADS: bool = false;

    type RecvQueue = InprocRecvQueue;
    type RemoteQp = InprocRemoteQp;
    type CompChannel = InprocCompChannel;

    fn iid(&self) -> u64 {
        self.node.iid
    }

    fn regions(&self) -> &MrTable {
        &self.node.table
    }

    fn allows_registration(&self) -> bool {
        match &mut *self.fabric.0.registration_faults.borrow_mut() {
            None => true,
            Some((p, rng)) => {
                let takes = (rng.next_u64() >> 11) as f64 >= *p * (1u64 << 53) as f64;
                self.fabric.0.refused.set(self.fabric.0.refused.get() + u64::from(!takes));
                takes
            }
        }
    }

    fn alloc(&self, len: usize, place: Placement) -> Result<(Memory, Option<i32>), Error> {
        let opts = MapOpts { pages: Pages::Small, fill: place.fill };
        let memory = match place.at {
            Some(at) => FixedMap::anon(at, len, opts).map(|map| Memory::Fixed(Arc::new(map))),
            None => Mapping::new(len, opts).map(|map| Memory::Private(Arc::new(map))),
        };
        Ok((memory.map_err(alloc::error)?, None))
    }

    fn open_recv_queue(
        &self,
        init: RecvQueueInit<InprocCompChannel>,
        free: &dyn Fn(u16) -> bool,
    ) -> Result<InprocRecvQueue, OpenError> {
        let mut qps = self.fabric.0.qps.borrow_mut();
        let next = self.fabric.0.next_qpn.get();
        let qpn = (1..=u16::MAX)
            .map(|n| next.wrapping_add(n))
            .find(|&qpn| qpn != 0 && free(qpn) && !qps.contains_key(&(self.node.iid, qpn)))
            .ok_or(Error::Exhausted("queue pair numbers"))?;
        self.fabric.0.next_qpn.set(qpn);
        let qp = Rc::new(FabricQp {
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
            channel: init.channel,
        });
        qps.insert((self.node.iid, qpn), qp.clone());
        Ok(InprocRecvQueue { qp, fabric: Fabric::clone(&self.fabric) })
    }

    fn resolve(&self, iid: u64, qpn: u16, kind: QpKind) -> Result<InprocRemoteQp, TryOutcome> {
        let qp = self.fabric.0.qps.borrow().get(&(iid, qpn)).cloned();
        match qp {
            Some(qp) if qp.node.is_down() => Err(TryOutcome::Done(DevStatus::Unreachable)),
            Some(qp) if qp.kind != kind => Err(TryOutcome::Done(DevStatus::BadDestQpn)),
            Some(qp) => Ok(InprocRemoteQp { me: self.node.clone(), qp, fabric: Fabric::clone(&self.fabric) }),
            None => Err(TryOutcome::Done(DevStatus::BadDestQpn)),
        }
    }

    fn create_channel(&self, channel: Channel) -> Result<Option<InprocCompChannel>, OpenError> {
        if channel == Channel::Without {
            return Ok(None);
        }
        let fd = EventFd::new().map_err(|errno| Error::Sys { call: "eventfd", errno })?;
        Ok(Some(InprocCompChannel(fd)))
    }

    fn set_peer_known(&self, iid: u64, known: bool) -> Result<(), Error> {
        let mut all = self.node.known_gids();
        let n = all.entry(iid.to_ne_bytes()).or_default();
        *n = if known { *n + 1 } else { n.saturating_sub(1) };
        if *n == 0 {
            all.remove(&iid.to_ne_bytes());
        }
        Ok(())
    }

    fn on_poll(&self, _polls: &Cell<u64>) {
        let state = &*self.fabric.0;
        state.now.set(state.now.get() + POLL_NS);
        if self.fabric.next_due() <= state.now.get() {
            self.fabric.run_due();
        }
    }

    fn ticks(&self, _polls: &Cell<u64>) -> u64 {
        self.fabric.now()
    }

    fn clock(&self) -> u64 {
        self.fabric.now()
    }

    fn retry_ticks(&self, interval_ns: u64) -> u64 {
        interval_ns
    }

    fn register_progress(&self, progress: Weak<dyn Progress>) {
        self.fabric.0.progressables.borrow_mut().push(progress);
    }

    fn go_down(&self) -> bool {
        !self.node.down.swap(true, Relaxed)
    }

    fn is_down(&self) -> bool {
        self.node.is_down()
    }

    fn alive(&self) -> bool {
        !self.node.is_dead()
    }

    fn next_outcome(&self, qpn: u16) -> Option<(u32, TryOutcome)> {
        let (now, to) = (self.fabric.now(), (self.node.iid, qpn));
        let mut waiting = self.fabric.0.late.waiting.borrow_mut();
        let at = waiting.iter().position(|late| late.to == to && late.due <= now)?;
        waiting.remove(at).map(|late| (late.token, late.outcome))
    }

    fn give_up_pending(&self, qpn: u16) {
        let to = (self.node.iid, qpn);
        self.fabric.0.late.waiting.borrow_mut().retain(|late| late.to != to);
    }
}
