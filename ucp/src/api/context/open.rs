//! Contexts: configuration, transports, and the memory domains that are common to the workers. Devices are
//! opened when the first worker or memory needs them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use ucs::config::{ConfigError, Source, Table as _, TableDesc, report_undeclared};
use ucs::sys::fd::Epoll;
use ucs::time::Clock;
use ucs::trace::LogConfig;
use uct::api::{Caps, DevKind, Iface as _, OpenError, OrderKind, TlResource};
use uct::rcache::Limits;

use crate::address::{WorkerId, lane_connid, nonce_of};
use crate::api::context::calibrate::{self, Calibration};
use crate::api::context::config::Config;
use crate::api::context::libfabric::LibfabricConfig;
use crate::api::context::resources::{ListPolicy, choose_resources, choose_rma_only};
use crate::api::core::clock::WorkerClock;
use crate::api::core::ep_config::EpConfigs;
use crate::api::core::process::process;
use crate::api::core::report::StatsDump;
use crate::api::core::requests::{RequestParams, Requests};
use crate::api::core::worker_core::WorkerCore;
use crate::api::worker::handle::Worker;

use crate::cm::CmConfig;
use crate::lane::{
    Domains, Iface, IfaceIdx, Md, RcacheMode, RegTable, RmaOnlyLane, WorkerIface, check_rcache, rail_lanes,
    rdma, source,
};
use crate::rdm::rma::PacketOrder;
use crate::rdm::{DomainId, Emulation, Engine, EngineConfig, FirstContact, Grant, ReqLen, RetryPolicy};
use crate::select::Thresholds;
use crate::select::copy_method::CopyPolicy;
use crate::wire::{Features, RawAddr, UserRecvQp};

/// Most memory that one held packet of any transport costs, bytes.
const MAX_HELD_PACKET: usize = 32 << 10;

/// Configuration, transports and devices, common to its workers.
/// ```no_run
/// let context = ucp::Context::new()?;
/// let worker = context.worker()?;
/// println!("{}", worker.address());
/// # Ok::<(), uct::api::OpenError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Context {
    source: Source,
    config: Config,
    resources: Vec<TlResource>,
    rma_only: Vec<TlResource>,
    calibration: Option<Arc<Calibration>>,
    /// Opened when first needed.
    domains: Arc<Mutex<Option<Arc<Domains>>>>,
    request_params: RequestParams,
    am_alignment: usize,
}

impl Context {
    /// Creates a context from the environment (`UCX_TLS`, ...) and the file named by `UCX_CONFIG_FILE`.
    pub fn new() -> Result<Context, OpenError> {
        let source = Source::from_env().map_err(|e| OpenError::Config(e.to_string()))?;
        Context::configured(source)
    }

    /// Creates a context from `source` alone.
    pub fn configured(source: Source) -> Result<Context, OpenError> {
        let bad_value = |e: ConfigError| OpenError::Config(e.to_string());
        report_undeclared(&source, &Context::known_tables()).map_err(bad_value)?;
        let config = Config::load(&source).map_err(bad_value)?;
        let found = uct::any::resources(&source)?;
        let resources = choose_resources(&found, &config, ListPolicy::of(&source))?;
        let rma_only = choose_rma_only(&found, &config);
        let calibration =
            calibrate::load_or_measure(&config, resources.iter().chain(&rma_only))?.map(Arc::new);
        Ok(Context {
            source,
            config,
            resources,
            rma_only,
            calibration,
            domains: Arc::default(),
            request_params: RequestParams::default(),
            am_alignment: 1,
        })
    }

    /// Aligns the data of active messages that workers made from now on hand to handlers
    /// ([`AmMessage::data`]): to `bytes`, rounded up to a power of two. Messages are copied to such a place
    /// where they are copied anyway; one that takes several packets is moved once more. Above 8 KiB each
    /// message takes memory of its own.
    ///
    /// A clone of the context with another alignment shares the memory of this one.
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let source = ucs::config::Source::empty().with("UCX_TLS", "posix");
    /// let worker = ucp::Context::configured(source)?.with_am_alignment(64).worker()?;
    /// worker.set_am_handler(1, |message| {
    ///     let data = message.data().unwrap_or_default();
    ///     assert!(data.is_empty() || data.as_ptr().addr() % 64 == 0);
    /// });
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// [`AmMessage::data`]: crate::AmMessage::data
    #[must_use]
    pub fn with_am_alignment(self, bytes: usize) -> Context {
        let am_alignment = bytes.checked_next_power_of_two().unwrap_or(1 << (usize::BITS - 1));
        Context { am_alignment, ..self }
    }

    /// Gives each request of the context's workers memory of the user ([`RequestId::user_memory`]).
    ///
    /// [`RequestId::user_memory`]: crate::RequestId::user_memory
    #[must_use]
    pub fn with_request_params(self, request_params: RequestParams) -> Context {
        Context { request_params, ..self }
    }

    /// Configuration keys of this layer and the transports, for `ucx-info -c` and for finding misspelt keys.
    pub fn tables() -> Vec<&'static TableDesc> {
        [&Config::DESC, &LibfabricConfig::DESC].into_iter().chain(uct::any::tables()).collect()
    }

    /// The tables of all layers, this one's first.
    fn known_tables() -> Vec<&'static TableDesc> {
        Context::tables().into_iter().chain([&LogConfig::DESC]).collect()
    }

    /// Transports and devices that workers open.
    pub fn resources(&self) -> &[TlResource] {
        &self.resources
    }

    /// RMA-only transports, of which workers open the first that the system permits.
    pub fn rma_only_resources(&self) -> &[TlResource] {
        &self.rma_only
    }

    /// Configuration in force.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Measured costs, with `UCX_CALIBRATE=y`.
    pub fn calibration(&self) -> Option<&Calibration> {
        self.calibration.as_deref()
    }

    /// Creates a worker of the calling thread, with an interface on each of [`Context::resources`].
    pub fn worker(&self) -> Result<Worker, OpenError> {
        self.worker_with(uct::any::open_iface)
    }

    /// Creates a worker whose interfaces `open` opens, one on each of [`Context::resources`].
    pub(crate) fn worker_with(
        &self,
        open: impl Fn(&Md, &Source) -> Result<Iface, OpenError>,
    ) -> Result<Worker, OpenError> {
        let source = uct::any::without_emulated_atomics(&self.source);
        let source = uct::any::with_deep_queues(&uct::any::with_rnr_resend(&source));
        let source = if self.config.zcopy_recv { uct::any::with_user_receives(&source) } else { source };
        let domains = self.domains()?;
        let mut ifaces = Vec::new();
        for (id, domain) in domains.iter().filter(|(_, domain)| !domain.is_rma_only) {
            ifaces.push((open(&domain.md, &source)?, id));
        }
        let worker = self.make_worker(ifaces, &domains, WorkerClock::System, None)?;
        // An explicit UCX_MIN_READ excludes the choice by measured cost.
        let policy = match self.config.min_read.given() {
            Some(_) if self.config.kernel_copy.method_may_change() => CopyPolicy::Estimated,
            _ => self.config.kernel_copy,
        };
        let mut core = worker.core();
        let connid = lane_connid(core.id.nonce, core.ifaces.len());
        if let Some(rma_only) = RmaOnlyLane::open(&domains, &source, connid, policy) {
            rma_only.publish(domains.memory.publish());
            core.ep_configs.set_kernel_costs(rma_only.attr(), self.calibration());
            core.rma_only = Some(rma_only);
        }
        drop(core);
        Ok(worker)
    }

    /// Creates a worker on interfaces that the caller opened. The worker uses all their active message ids.
    pub fn worker_on(&self, ifaces: Vec<Iface>) -> Result<Worker, OpenError> {
        self.make_worker_on(ifaces, WorkerClock::System, None)
    }

    /// Creates a worker as [`Context::worker_on`], with its own `clock` and `seed`: equal calls give equal
    /// runs. [`Worker::wait`] sleeps in real time; simulations use [`Worker::next_timer`].
    pub fn worker_simulated(
        &self,
        ifaces: Vec<Iface>,
        clock: Box<dyn Clock>,
        seed: u32,
    ) -> Result<Worker, OpenError> {
        self.make_worker_on(ifaces, WorkerClock::Simulated(clock), Some(seed))
    }

    /// Creates a simulated worker with the memory of `sibling`, as the workers of [`Context::worker`] share
    /// it. `ifaces` are on the memory domains of the sibling's interfaces, in the same order.
    #[doc(hidden)]
    pub fn worker_simulated_beside(
        &self,
        sibling: &Worker,
        ifaces: Vec<Iface>,
        clock: Box<dyn Clock>,
        seed: u32,
    ) -> Result<Worker, OpenError> {
        let domains = sibling.core().regs.domains.clone();
        let known = domains.iter().count();
        if ifaces.len() != known {
            let why = format!("{} interfaces do not match the sibling's {known}", ifaces.len());
            return Err(OpenError::Config(why));
        }
        let ifaces = ifaces.into_iter().zip(domains.iter().map(|(id, _)| id)).collect();
        self.make_worker(ifaces, &domains, WorkerClock::Simulated(clock), Some(seed))
    }

    /// Memory domains of [`Context::resources`], common to the workers of [`Context::worker`].
    pub(crate) fn domains(&self) -> Result<Arc<Domains>, OpenError> {
        let mut domains = self.domains.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(domains) = &*domains {
            return Ok(domains.clone());
        }
        let source = uct::any::without_emulated_atomics(&self.source);
        let open = |found: &TlResource| uct::any::open_md(found.tl, &found.dev, &source);
        let opened = Domains::open((&self.resources, &self.rma_only), open, nonce_of(random_id()))?;
        Ok(domains.insert(Arc::new(opened)).clone())
    }

    /// Makes a worker with memory domains of its own: those of the interfaces.
    fn make_worker_on(
        &self,
        ifaces: Vec<Iface>,
        clock: WorkerClock,
        seed: Option<u32>,
    ) -> Result<Worker, OpenError> {
        let nonce = seed.unwrap_or_else(|| nonce_of(random_id()));
        let domains = Arc::new(Domains::of_ifaces(&ifaces, nonce));
        let ifaces = ifaces.into_iter().zip(domains.iter().map(|(id, _)| id)).collect();
        self.make_worker(ifaces, &domains, clock, seed)
    }

    fn make_worker(
        &self,
        mut ifaces: Vec<(Iface, DomainId)>,
        domains: &Arc<Domains>,
        clock: WorkerClock,
        seed: Option<u32>,
    ) -> Result<Worker, OpenError> {
        ifaces.sort_by_key(|(iface, _)| match iface.attr().kind {
            DevKind::Shm => 0,
            DevKind::Loopback => 1,
            DevKind::Net => 2,
            _ => 3,
        });
        if ifaces.is_empty() || ifaces.len() > usize::from(u8::MAX) {
            return Err(OpenError::Config(format!(
                "a worker needs 1 to 255 interfaces, not {}",
                ifaces.len()
            )));
        }
        let id = worker_id(&ifaces, seed);
        let config = engine_config(&self.config, id.nonce);
        let has_rails = config.rndv_rails.max(config.rma_rails) > 1;
        let mut engine = Engine::with_memory(config, domains.memory.clone());
        let lanes = add_lanes(&mut engine, ifaces, id.nonce)?;
        if has_rails {
            set_rails(&mut engine, &lanes);
        }
        if self.config.rcache == RcacheMode::Yes {
            check_rcache().map_err(|why| {
                OpenError::Config(format!(
                    "UCX_RCACHE_ENABLE=y: the system has no userfaultfd for us ({why})"
                ))
            })?;
        }
        let events = event_set(&lanes);
        let stats_dump =
            StatsDump::new(&self.config.stats_dest, &self.config.stats_trigger).map_err(OpenError::Config)?;
        let attrs = lanes.iter().map(|lane| lane.iface.attr());
        let ep_configs = EpConfigs::new(attrs, self.calibration.as_deref());
        let (batch, keepalive) = (self.config.progress_batch, self.config.keepalive_interval());
        let rcache_limits = Limits { count: self.config.rcache_regions, bytes: self.config.rcache_size };
        let regs = RegTable::new(domains.clone(), self.config.rcache, rcache_limits);
        let mut core =
            WorkerCore::new(engine, (lanes, regs), batch, keepalive, (ep_configs, stats_dump, clock));
        core.id = id;
        core.reqs = Requests::new(self.request_params.clone());
        core.cm.config =
            CmConfig { timeout: self.config.cm_timeout, max_pending: self.config.cm_max_pending };
        if self.config.zcopy_recv {
            enable_zcopy_recv(&mut core).map_err(OpenError::Config)?;
        }
        Ok(Worker::new(core, events, thresholds(&self.config), (self.config.spin, self.am_alignment)))
    }
}

/// Lengths from which protocols are used, as the program has set them.
fn thresholds(config: &Config) -> Thresholds {
    Thresholds {
        medium_max: config.max_medium.given(),
        rndv_thresh: config.rndv_thresh.intra.given(),
        rndv_thresh_inter: config.rndv_thresh.inter.given(),
        min_read: config.min_read.given(),
        min_read_write: config.min_read_write.given(),
        min_rdma_put: config.min_rdma_put.given(),
        min_rdma_get: config.min_rdma_get.given(),
        runt_size: config.runt_size,
    }
}

/// Settings of the engine of a worker.
fn engine_config(config: &Config, nonce: u32) -> EngineConfig {
    // A worker checks its limit before a poll, so one poll may exceed it.
    let poll = config.progress_batch * MAX_HELD_PACKET;
    let ((rndv_rails, rndv_chunk), (rma_rails, rma_chunk)) = (config.rndv_rails(), config.rma_rails());
    EngineConfig {
        nonce,
        runt_size: config.runt_size,
        read_segment: config.read_segment as u64,
        unexpected_max: config.unexp_mem,
        unexpected_hard_max: config.unexp_max.max(config.unexp_mem.saturating_add(poll)),
        max_unknown_peers: config.unknown_peers_max,
        unknown_peers_timeout: config.unknown_peers_timeout,
        emulation: if config.emulation { Emulation::Allowed } else { Emulation::Refused },
        first_contact: if config.untagged_wait { FirstContact::Wait } else { FirstContact::Send },
        retry: RetryPolicy { first_delay: config.rnr_wait, max_delay: config.rnr_max_wait },
        rndv_rails,
        rndv_chunk,
        rma_rails,
        rma_chunk,
        req_len: if config.const_hdr { ReqLen::Constant } else { ReqLen::Shortest },
        withhold: Features::from_bits_retain(config.withhold_features),
        ..EngineConfig::default()
    }
}

/// Makes a lane of each interface, and a wire of it in the engine.
fn add_lanes(
    engine: &mut Engine,
    ifaces: Vec<(Iface, DomainId)>,
    nonce: u32,
) -> Result<Vec<WorkerIface>, OpenError> {
    let mut lanes = Vec::with_capacity(ifaces.len());
    for (at, (iface, domain)) in ifaces.into_iter().enumerate() {
        let need = Caps::AM_BCOPY | Caps::AM_SOURCE | Caps::CONNECT_TO_IFACE;
        if !iface.attr().has(need) {
            let attr = iface.attr();
            let missing = need - attr.caps;
            return Err(OpenError::Config(format!(
                "transport '{}' cannot carry messages: {missing:?}",
                attr.tl
            )));
        }
        let (form, raw) = WorkerIface::identity(&iface, lane_connid(nonce, at))?;
        let wire = engine.wires_mut().add(RawAddr::from_bytes(&raw));
        engine.wires_mut().set_domain(wire, domain);
        // Mapped memory blocks the sender when full and loses nothing.
        if iface.attr().kind != DevKind::Net {
            engine.wires_mut().set_grant(wire, Grant::Whole);
        }
        if iface.attr().order == OrderKind::Ordered {
            engine.wires_mut().set_packet_order(wire, PacketOrder::Kept);
        }
        engine.wires_mut().set_rdma(wire, rdma(&iface));
        lanes.push(WorkerIface { wire, domain, raw, form, device: iface.device_addr(), iface });
    }
    Ok(lanes)
}

/// Enters zero-copy receive mode. The worker forwards packets to itself, hence the endpoint to itself.
fn enable_zcopy_recv(core: &mut WorkerCore) -> Result<(), String> {
    let [lane] = &core.ifaces[..] else {
        let lanes = core.ifaces.len();
        return Err(format!(
            "UCX_ZCOPY_RECV=y is for one NIC and no other transport, not {lanes} (UCX_TLS=efa, UCX_NET_DEVICES)"
        ));
    };
    let Some(qp) = lane.iface.user_recv_qp() else {
        let tl = lane.iface.attr().tl;
        return Err(format!(
            "UCX_ZCOPY_RECV=y: transport '{tl}' has no receives of the program's own memory"
        ));
    };
    let ep = lane.iface.connect(&lane.iface.device_addr(), &lane.iface.iface_addr());
    let ep = ep.map_err(|e| format!("UCX_ZCOPY_RECV=y: no way to ourselves: {e}"))?;
    let qp = UserRecvQp { qpn: qp.qpn.into(), qkey: qp.qkey };
    let me = core.engine.enable_zcopy_recv(lane.wire, qp, source(&lane.raw));
    core.peer_eps.set(me, IfaceIdx(0), ep);
    Ok(())
}

fn set_rails(engine: &mut Engine, ifaces: &[WorkerIface]) {
    let mut done: Vec<IfaceIdx> = Vec::new();
    for at in (0..ifaces.len()).map(|at| IfaceIdx(at as u8)) {
        let all = rail_lanes(ifaces, at);
        if !done.contains(&at) && all.contains(&at) {
            let wires: Vec<_> = all.iter().map(|at| ifaces[usize::from(at.0)].wire).collect();
            engine.wires_mut().set_rails(&wires);
            done.extend(all);
        }
    }
}

/// Epoll set over all lanes; `None` if a lane has no descriptor.
fn event_set(ifaces: &[WorkerIface]) -> Option<Epoll> {
    let all = Epoll::new().ok()?;
    for (at, lane) in ifaces.iter().enumerate() {
        if !lane.iface.attr().has(Caps::EVENT_RECV) {
            return None;
        }
        all.add(lane.iface.event_fd().ok()?, at as u64).ok()?;
    }
    Some(all)
}

/// Identity of a new worker. The uid is the id of its loopback interface, if it has one, so that the packed
/// address contains that once.
fn worker_id(ifaces: &[(Iface, DomainId)], seed: Option<u32>) -> WorkerId {
    let loopback = ifaces.iter().map(|(iface, _)| iface).find(|iface| iface.attr().kind == DevKind::Loopback);
    let id =
        loopback.and_then(|iface| Some(u64::from_le_bytes(iface.iface_addr().as_slice().try_into().ok()?)));
    let uid = id.unwrap_or_else(|| match seed {
        Some(seed) => (u64::from(seed) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15),
        None => random_id(),
    });
    WorkerId { uid: uid.max(1), nonce: seed.unwrap_or_else(|| nonce_of(uid)), process: process() }
}

/// A random number, different in forked children, too. Not a secret.
fn random_id() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    static COUNT: AtomicU64 = AtomicU64::new(0);
    RandomState::new().hash_one((std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed)))
}
