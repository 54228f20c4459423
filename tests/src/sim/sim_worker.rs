//! One worker of a job: its endpoints, its operations in flight, and its model. State only; `step` starts
//! operations, `completions` ends them.

use super::active_messages::AmState;
use super::forms::{RecvOp, SendOp};
use super::job_params::JobParams;
use super::model::{Model, StepNo};
use super::multi_recv::MultiRecvOp;
use super::revoked_memory::RevocableState;
use super::rma::{ImplicitGet, RmaState};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use ucp::mt::{SharedWorker, WorkerGuard};
use ucp::rdm::io::PeerId;
use ucp::select::{Protocol, Thresholds};
use ucp::wire::Features;
use ucp::{Address, Context, Ep, Error, FlushRequest, Message, Worker};
use ucs::config::Source;
use uct::api::OpenError;
use uct::efa::dev::Channel;
use uct::efa::dev::Gid;
use uct::efa::dev::soft::{Device, Fabric, Inproc, SoftConfig};
use uct::efa::{Config, Iface, Md, Params, RawAddr};

pub struct Sending {
    pub to: usize,
    pub msg: usize,
    pub sync: bool,
    pub cancelled: bool,
    pub row: Protocol,
    pub request: SendOp,
}

pub struct Flushing {
    pub of: Option<usize>,
    /// It may end before everything has.
    pub limited: bool,
    pub cancelled: bool,
    pub implicit_gets: Vec<ImplicitGet>,
    /// Writes that it covers, by target and cell.
    pub cells: Vec<(usize, usize)>,
    /// Whether the endpoint is closed with it, and its operations end when the time is over.
    pub closes: bool,
    /// `None`: it has ended, with `end`.
    pub request: Option<FlushRequest>,
    pub end: Option<Result<(), Error>>,
}

impl Flushing {
    /// Whether it has ended.
    pub(super) fn is_done(&mut self) -> bool {
        if let Some(request) = self.request.take_if(|request| request.is_done()) {
            self.end = Some(request.wait());
        }
        self.end.is_some()
    }
}

/// Memory regions that a worker needs for itself: its interface's buffers and its memory.
const OWN_REGIONS: u32 = 3;

/// Of NIC `nic` of the context whose first worker is `n`.
const fn iid(n: usize, nic: usize) -> u64 {
    0xa000 + n as u64 + nic as u64 * 0x100
}

pub struct Receiving {
    pub rec: usize,
    /// When a cancel was granted; the end is reported later, by progress.
    pub cancelled: Option<StepNo>,
    pub request: RecvOp,
}

/// A message that a probe claimed and nobody has received.
pub struct Claimed {
    /// The number of the receive that stands for the probe.
    pub rec: usize,
    pub message: Message,
}

pub struct SimWorker {
    /// Operations in flight; declared before the worker, so dropped before it.
    pub sends: Vec<Sending>,
    pub recvs: Vec<Receiving>,
    pub multi_recvs: Vec<MultiRecvOp>,
    pub claimed: Vec<Claimed>,
    pub flushes: Vec<Flushing>,
    pub ams: AmState,
    pub rma: RmaState,
    pub revocable: RevocableState,
    /// Endpoints by worker, made at first use.
    pub eps: Vec<Option<Ep>>,
    /// The worker that a peer number stands for, as messages have shown.
    pub peers: BTreeMap<PeerId, usize>,
    pub model: Model,
    /// Receivers to which it closes by force or with a limit.
    pub closing_early: BTreeSet<usize>,
    /// Receivers to which it has closed by force.
    pub force_closed: BTreeSet<usize>,
    pub dead: bool,
    pub zcopy_recv: bool,
    pub nic_down: bool,
    pub withheld: Features,
    pub seq: u64,
    pub address: Address,
    /// Of its interfaces.
    pub raw_addrs: Vec<RawAddr>,
    pub worker: Worker,
    /// The shared worker around `worker`, if threads may share it.
    shared: Option<SharedWorker>,
    mds: Vec<Md<Device<Inproc>>>,
    context: Rc<Context>,
}

/// Locks a worker, for calls to the plain one.
pub fn locked(shared: &SharedWorker) -> WorkerGuard<'_> {
    // SAFETY: a job is one thread.
    unsafe { shared.lock() }.expect("a job is one thread")
}

impl SimWorker {
    /// Opens worker `n`, behind those `before` it.
    pub fn open(
        n: usize,
        before: &[SimWorker],
        fabric: &Fabric,
        params: &JobParams,
    ) -> Result<SimWorker, OpenError> {
        let (worker_params, workers) = (params.workers[n], params.workers.len());
        let sibling = before.get(worker_params.first_of_context);
        let config = SoftConfig {
            generation: worker_params.generation,
            max_rdma: params.max_rdma,
            ..SoftConfig::default()
        };
        let mut profile = config.profile();
        let sharing = params.context_of(n).count() as u32;
        profile.attr.max_mr = sharing * (OWN_REGIONS + worker_params.spare_regions);
        profile.attr.max_ah = 1024;
        profile.attr.mtu = params.mtu;
        profile.attr.max_send_depth = params.tx;
        profile.attr.max_recv_depth = params.rx;
        profile.rnr_interval_ns = params.rnr_interval;
        let config = Config {
            atomics: false,
            tx_queue_len: params.tx,
            rx_queue_len: params.rx,
            rx_spare: params.spare,
            user_rx_queue_len: if worker_params.zcopy_recv { params.posted_recvs } else { 0 },
            rnr_retry: params.rnr_retry,
        };
        let (mut mds, mut raw_addrs, mut lanes) = (Vec::new(), Vec::new(), Vec::new());
        // Zero-copy receive mode has one NIC.
        for nic in 0..if worker_params.zcopy_recv { 1 } else { params.nics } {
            let connid = Some(0x1000 + n as u32 + nic as u32 * 0x100);
            let params = Params { config: config.clone(), connid, events: Channel::Without };
            let md = match sibling {
                Some(sibling) => sibling.mds[nic].clone(),
                None => Md::open(fabric.open(iid(n, nic), profile.clone())?)?,
            };
            let iface = Iface::open_on(&md, &params)?;
            raw_addrs.push(iface.raw_addr());
            mds.push(md);
            lanes.push(iface.into());
        }
        let mut source = Source::empty()
            .with("UCX_KEEPALIVE_INTERVAL", "0")
            // A run must not depend on where the allocator puts a buffer.
            .with("UCX_RCACHE_ENABLE", "n")
            // The minimum, as messages are short.
            .with("UCX_MIN_RNDV_CHUNK_SIZE", "4096")
            .with("UCX_MIN_RMA_CHUNK_SIZE", "4096")
            .with("UCX_PROGRESS_BATCH", &params.batch.to_string())
            .with("UCX_ZCOPY_RECV", if worker_params.zcopy_recv { "y" } else { "n" })
            .with("UCX_WITHHOLD_FEATURES", &worker_params.withheld.bits().to_string());
        if let Some(rndv) = params.rndv {
            source.set("UCX_RNDV_THRESH", &rndv.to_string());
        }
        // A run must not depend on measured costs of the machine.
        let libfabric = Thresholds::LIBFABRIC;
        let mut set = |key, value: Option<usize>| source.set(key, &value.unwrap_or(usize::MAX).to_string());
        set("UCX_MIN_READ_WRITE", params.min_read_write.or(libfabric.min_read_write));
        set("UCX_MIN_READ", params.min_read.or(libfabric.min_read));
        set("UCX_MIN_RDMA_PUT", Some(params.min_rdma));
        set("UCX_MIN_RDMA_GET", Some(params.min_rdma));
        if params.min_read.is_some() {
            source.set("UCX_RUNT_SIZE", &params.runt.to_string());
            source.set("UCX_READ_SEGMENT", &params.segment.to_string());
        }
        let (clock, seed) = (Box::new(fabric.clone()), 1 + n as u32);
        let (context, worker) = match sibling {
            Some(sibling) => {
                let context = sibling.context.clone();
                let worker = context.worker_simulated_beside(&sibling.worker, lanes, clock, seed)?;
                (context, worker)
            }
            None => {
                let context = Rc::new(Context::configured(source)?);
                let worker = context.worker_simulated(lanes, clock, seed)?;
                (context, worker)
            }
        };
        let (worker, shared) = match worker_params.shared {
            Some(mode) => {
                // SAFETY: a job is one thread, and the worker is new.
                let shared = unsafe { SharedWorker::from_worker(worker, mode) };
                // SAFETY: as above.
                let worker = unsafe { shared.with(Worker::clone) };
                (worker.map_err(|e| OpenError::Config(e.to_string()))?, Some(shared))
            }
            None => (worker, None),
        };
        Ok(SimWorker {
            sends: Vec::new(),
            recvs: Vec::new(),
            multi_recvs: Vec::new(),
            claimed: Vec::new(),
            flushes: Vec::new(),
            ams: AmState::of(&worker),
            rma: RmaState::new(n, workers, &worker).map_err(|e| OpenError::Config(e.to_string()))?,
            revocable: RevocableState::default(),
            eps: (0..workers).map(|_| None).collect(),
            peers: BTreeMap::new(),
            model: if worker_params.zcopy_recv { Model::unordered() } else { Model::default() },
            zcopy_recv: worker_params.zcopy_recv,
            closing_early: BTreeSet::new(),
            force_closed: BTreeSet::new(),
            dead: false,
            nic_down: false,
            withheld: worker_params.withheld,
            seq: 0,
            address: Address::unpack(&worker.address().pack())
                .map_err(|e| OpenError::Config(e.to_string()))?,
            raw_addrs,
            worker,
            shared,
            mds,
            context,
        })
    }

    /// A handle to the shared worker around `worker`, if threads may share it.
    pub fn shared(&self) -> Option<SharedWorker> {
        self.shared.as_ref().and_then(|shared| shared.downgrade().upgrade())
    }

    /// Progresses the worker; a shared one inside its lock.
    pub fn progress(&self) -> usize {
        match &self.shared {
            Some(shared) => shared.progress().expect("a job is one thread"),
            None => self.worker.progress(),
        }
    }

    /// NICs; others meet the worker by the first.
    pub fn nics(&self) -> impl ExactSizeIterator<Item = &Device<Inproc>> {
        self.mds.iter().map(Md::dev)
    }

    /// Whether something that may concern this worker has not ended.
    pub fn waits_for(&self, other: usize) -> bool {
        let is_to = |send: &Sending| send.to == other;
        let of_any = self.flushes.len() + self.rma.open() + self.revocable.open() + self.ams.open();
        self.sends.iter().any(is_to) || of_any > 0
    }

    pub fn withholds_dc(&self) -> bool {
        self.withheld.contains(Features::DELIVERY_COMPLETE)
    }

    pub fn withholds_classes(&self) -> bool {
        self.zcopy_recv || self.withheld.contains(Features::CLASSES)
    }

    pub fn first_gid(&self) -> Option<Gid> {
        self.raw_addrs.first().map(|addr| addr.gid)
    }

    pub fn state(&self, n: usize) -> String {
        let views: Vec<String> = self
            .eps
            .iter()
            .enumerate()
            .filter_map(|(to, ep)| {
                let view = ep.as_ref()?.peer_view()?;
                Some(format!(
                    "{to}: {:?}, {} outstanding, fault {:?}",
                    view.hdr, view.outstanding, view.fault
                ))
            })
            .collect();
        let open: Vec<_> =
            self.recvs.iter().map(|r| r.rec).chain(self.multi_recvs.iter().map(|m| m.rec)).collect();
        format!(
            "worker {n}{}: sent {} (running {:?}), receives open {open:?}, taken {}, waiting {:?}, requests {}, {:?}, {:?}, peers {views:?}",
            if self.dead { " (dead)" } else { "" },
            self.seq,
            self.sends.iter().map(|s| (s.to, s.msg)).collect::<Vec<_>>(),
            self.claimed.len(),
            self.model.waiting().map(|m| (m.sender, m.seq, m.len)).collect::<Vec<_>>(),
            self.worker.diagnostics().requests(),
            self.worker.diagnostics().snapshot(),
            self.worker.stats().rare,
        )
    }
}
