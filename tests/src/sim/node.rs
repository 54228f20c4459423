//! One worker of a job: its endpoints, what it has running, and the ledger of what it was sent and asked for.
//! State only; `act.rs` starts things, `settle.rs` ends them.

use super::Knobs;
use super::forms::{Form, Room};
use super::ledger::{Ledger, Step};
use super::letters::Letters;
use super::loans::Loans;
use super::many::Many;
use super::rma::{Lent, Shore};
use std::collections::{BTreeMap, BTreeSet};
use ucp::rdm::io::PeerId;
use ucp::select::{Row, Thresholds};
use ucp::wire::Features;
use ucp::{Address, Context, Ep, FlushRequest, Message, Worker};
use ucs::config::Source;
use uct::api::OpenError;
use uct::efa::dev::Channel;
use uct::efa::dev::Gid;
use uct::efa::dev::soft::{Device, Fabric, Inproc, SoftConfig};
use uct::efa::{Config, Iface, Params};

/// A send that has not ended.
pub struct Sending {
    /// The receiver.
    pub to: usize,
    /// The message's number in the receiver's ledger.
    pub msg: usize,
    /// Ends when it was received.
    pub sync: bool,
    /// A cancel was asked for and granted.
    pub cancelled: bool,
    /// How it was to go when it was started.
    pub row: Row,
    /// The operation.
    pub request: Form,
}

/// A flush, or a close, that has not ended.
pub struct Flushing {
    /// Whom it is for; everybody, if nobody.
    pub of: Option<usize>,
    /// It may end without having waited for all.
    pub limited: bool,
    /// Nobody waits for it any more.
    pub cancelled: bool,
    /// Reads without request that it ends.
    pub lent: Vec<Lent>,
    /// Writes that it stands for, by target and cell.
    pub cells: Vec<(usize, usize)>,
    /// The operation.
    pub request: FlushRequest,
}

/// Memory regions that a worker of this suite needs for itself: its interface's buffers and its shore.
const OWN_REGIONS: u32 = 3;

/// The interface id of worker number `n`'s NIC number `nic`.
const fn iid(n: usize, nic: usize) -> u64 {
    0xa000 + n as u64 + nic as u64 * 0x100
}

/// A receive that has not ended.
pub struct Receiving {
    /// Its number in the ledger.
    pub rec: usize,
    /// When a cancel was asked for and granted; its end is told later, by progress.
    pub cancelled: Option<Step>,
    /// The operation.
    pub request: Room,
}

/// A message that a probe took and nobody has received.
pub struct Taken {
    /// The number of the receive that stands for the probe.
    pub rec: usize,
    /// The handle.
    pub message: Message,
}

/// A worker and everything the world knows of it.
pub struct Node {
    /// Running operations; declared before the worker, so dropped before it.
    pub sends: Vec<Sending>,
    /// As above.
    pub recvs: Vec<Receiving>,
    /// As above.
    pub many: Vec<Many>,
    /// As above.
    pub taken: Vec<Taken>,
    /// As above.
    pub flushes: Vec<Flushing>,
    /// Active messages.
    pub letters: Letters,
    /// Its memory, and its operations on that of others.
    pub shore: Shore,
    /// Memory it has lent, and what it does with that of others.
    pub loans: Loans,
    /// Endpoints by worker; made at first use.
    pub eps: Vec<Option<Ep>>,
    /// Which worker a peer number stands for, as messages have shown.
    pub peers: BTreeMap<PeerId, usize>,
    /// What it was sent and asked for.
    pub ledger: Ledger,
    /// Whom it closes its endpoint to, by force or soon.
    pub giving_up: BTreeSet<usize>,
    /// Those to whom it has.
    pub parted: BTreeSet<usize>,
    /// It was killed.
    pub dead: bool,
    /// It is in zero-copy receive mode.
    pub in_place: bool,
    /// Its NICs; the first is the one by which others meet it.
    pub nics: Vec<Device<Inproc>>,
    /// One of them went down.
    pub unplugged: bool,
    /// Features it does not announce.
    pub withheld: Features,
    /// Messages it has sent.
    pub seq: u64,
    /// Its address.
    pub address: Address,
    /// The worker.
    pub worker: Worker,
}

impl Node {
    /// Worker number `n` on devices of its own.
    pub fn open(n: usize, fabric: &Fabric, knobs: &Knobs) -> Result<Node, OpenError> {
        let (habit, workers) = (knobs.habits[n], knobs.habits.len());
        let config =
            SoftConfig { generation: habit.generation, max_rdma: knobs.max_rdma, ..SoftConfig::default() };
        let mut profile = config.profile();
        profile.attr.max_mr = OWN_REGIONS + habit.spare_regions;
        profile.attr.max_ah = 1024;
        profile.attr.mtu = knobs.mtu;
        profile.attr.max_send_depth = knobs.tx;
        profile.attr.max_recv_depth = knobs.rx;
        profile.rnr_interval_ns = knobs.rnr_interval;
        let config = Config {
            tx_queue_len: knobs.tx,
            rx_queue_len: knobs.rx,
            rx_spare: knobs.spare,
            user_rx_queue_len: if habit.in_place { knobs.lent } else { 0 },
            rnr_retry: knobs.rnr_retry,
        };
        let (mut nics, mut lanes) = (Vec::new(), Vec::new());
        // That mode is of one NIC.
        for nic in 0..if habit.in_place { 1 } else { knobs.nics } {
            let connid = Some(0x1000 + n as u32 + nic as u32 * 0x100);
            let params = Params { config: config.clone(), connid, events: Channel::Without };
            let device = fabric.open(iid(n, nic), profile.clone())?;
            nics.push(device.clone());
            lanes.push(Iface::open(device, &params)?.into());
        }
        let mut source = Source::empty()
            .with("UCX_KEEPALIVE_INTERVAL", "0")
            // Nor where the allocator has put a buffer.
            .with("UCX_RCACHE_ENABLE", "n")
            // As short as may be: messages are.
            .with("UCX_MIN_RNDV_CHUNK_SIZE", "4096")
            .with("UCX_MIN_RMA_CHUNK_SIZE", "4096")
            .with("UCX_PROGRESS_BATCH", &knobs.batch.to_string())
            .with("UCX_ZCOPY_RECV", if habit.in_place { "y" } else { "n" })
            .with("UCX_WITHHOLD_FEATURES", &habit.withheld.bits().to_string());
        if let Some(rndv) = knobs.rndv {
            source.set("UCX_RNDV_THRESH", &rndv.to_string());
        }
        // Nor what the machine at hand costs: a seed is the same run on every machine.
        let libfabric = Thresholds::LIBFABRIC;
        let mut set = |key, value: Option<usize>| source.set(key, &value.unwrap_or(usize::MAX).to_string());
        set("UCX_MIN_READ_WRITE", knobs.min_read_write.or(libfabric.min_read_write));
        set("UCX_MIN_READ", knobs.min_read.or(libfabric.min_read));
        set("UCX_MIN_RDMA_PUT", Some(knobs.min_rdma));
        set("UCX_MIN_RDMA_GET", Some(knobs.min_rdma));
        if knobs.min_read.is_some() {
            source.set("UCX_RUNT_SIZE", &knobs.runt.to_string());
            source.set("UCX_READ_SEGMENT", &knobs.segment.to_string());
        }
        let context = Context::configured(source)?;
        let worker = context.worker_simulated(lanes, Box::new(fabric.clone()), 1 + n as u32)?;
        Ok(Node {
            sends: Vec::new(),
            recvs: Vec::new(),
            many: Vec::new(),
            taken: Vec::new(),
            flushes: Vec::new(),
            letters: Letters::of(&worker),
            shore: Shore::new(n, workers, &worker).map_err(|e| OpenError::Config(e.to_string()))?,
            loans: Loans::default(),
            eps: (0..workers).map(|_| None).collect(),
            peers: BTreeMap::new(),
            ledger: if habit.in_place { Ledger::without_order() } else { Ledger::default() },
            in_place: habit.in_place,
            giving_up: BTreeSet::new(),
            parted: BTreeSet::new(),
            dead: false,
            nics,
            unplugged: false,
            withheld: habit.withheld,
            seq: 0,
            address: Address::unpack(&worker.address().pack())
                .map_err(|e| OpenError::Config(e.to_string()))?,
            worker,
        })
    }

    /// Whether it does not say that it acknowledges.
    pub fn withholds_dc(&self) -> bool {
        self.withheld.contains(Features::DELIVERY_COMPLETE)
    }

    /// Whether it does not say that it takes active messages and streams, or says that it takes untagged messages alone.
    pub fn withholds_classes(&self) -> bool {
        self.in_place || self.withheld.contains(Features::CLASSES)
    }

    /// The addresses of worker number `n`'s NICs.
    pub fn gids(n: usize, nics: usize) -> impl Iterator<Item = Gid> {
        (0..nics).map(move |nic| Gid::link_local(iid(n, nic)))
    }

    /// One line for people.
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
        let open: Vec<_> = self.recvs.iter().map(|r| r.rec).chain(self.many.iter().map(|m| m.rec)).collect();
        format!(
            "worker {n}{}: sent {} (running {:?}), receives open {open:?}, taken {}, waiting {:?}, requests {}, {:?}, {:?}, peers {views:?}",
            if self.dead { " (dead)" } else { "" },
            self.seq,
            self.sends.iter().map(|s| (s.to, s.msg)).collect::<Vec<_>>(),
            self.taken.len(),
            self.ledger.waiting().map(|m| (m.sender, m.seq, m.len)).collect::<Vec<_>>(),
            self.worker.requests(),
            self.worker.census(),
            self.worker.stats().rare,
        )
    }
}
