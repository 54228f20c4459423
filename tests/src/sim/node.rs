//! One worker of a job: its endpoints, what it has running, and the ledger of what it was sent and asked for.
//! State only; `act.rs` starts things, `settle.rs` ends them.

use super::ledger::{Ledger, Step};
use super::rma::Shore;
use super::{Knobs, Limits};
use std::collections::BTreeMap;
use ucp::rdm::io::PeerId;
use ucp::{Address, Context, Ep, FlushRequest, Message, RecvRequest, SendRequest, Worker};
use ucs::config::Source;
use uct::api::OpenError;
use uct::efa::dev::Channel;
use uct::efa::dev::soft::{Fabric, Profile};
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
    /// The operation.
    pub request: SendRequest<Vec<u8>>,
}

/// A receive that has not ended.
pub struct Receiving {
    /// Its number in the ledger.
    pub rec: usize,
    /// When a cancel was asked for and granted; its end is told later, by progress.
    pub cancelled: Option<Step>,
    /// The operation.
    pub request: RecvRequest<Box<[u8]>>,
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
    pub taken: Vec<Taken>,
    /// As above.
    pub flushes: Vec<FlushRequest>,
    /// Its memory, and its operations on that of others.
    pub shore: Shore,
    /// Endpoints by worker; made at first use.
    pub eps: Vec<Option<Ep>>,
    /// Which worker a peer number stands for, as messages have shown.
    pub peers: BTreeMap<PeerId, usize>,
    /// What it was sent and asked for.
    pub ledger: Ledger,
    /// Messages it has sent.
    pub seq: u64,
    /// Its address.
    pub address: Address,
    /// The worker.
    pub worker: Worker,
}

impl Node {
    /// Worker number `n` on a device of its own.
    pub fn open(n: usize, fabric: &Fabric, knobs: &Knobs, limits: Limits) -> Result<Node, OpenError> {
        let mut profile = Profile::small();
        profile.attr.mtu = knobs.mtu;
        profile.attr.max_send_depth = knobs.tx;
        profile.attr.max_recv_depth = knobs.rx;
        profile.rnr_interval_ns = knobs.rnr_interval;
        let config = Config {
            tx_queue_len: knobs.tx,
            rx_queue_len: knobs.rx,
            rx_spare: knobs.spare,
            ..Config::default()
        };
        let connid = Some(0x1000 + n as u32);
        let params = Params { config, connid, events: Channel::Without };
        let iface = Iface::open(fabric.open(0xa000 + n as u64, profile)?, &params)?;
        // Real time must not show in a run.
        let mut source = Source::empty()
            .with("UCX_KEEPALIVE_INTERVAL", "0")
            .with("UCX_PROGRESS_BATCH", &knobs.batch.to_string());
        if let Some(rndv) = knobs.rndv {
            source.set("UCX_RNDV_THRESH", &rndv.to_string());
        }
        if let Some(min_read) = knobs.min_read {
            source.set("UCX_MIN_READ", &min_read.to_string());
            source.set("UCX_RUNT_SIZE", &knobs.runt.to_string());
            source.set("UCX_READ_SEGMENT", &knobs.segment.to_string());
        }
        let worker = Context::configured(source)?.worker_on(vec![iface.into()])?;
        Ok(Node {
            sends: Vec::new(),
            recvs: Vec::new(),
            taken: Vec::new(),
            flushes: Vec::new(),
            shore: Shore::new(n, limits.workers, &worker).map_err(|e| OpenError::Config(e.to_string()))?,
            eps: (0..limits.workers).map(|_| None).collect(),
            peers: BTreeMap::new(),
            ledger: Ledger::default(),
            seq: 0,
            address: worker.address(),
            worker,
        })
    }

    /// One line for people.
    pub fn state(&self, n: usize) -> String {
        let views: Vec<String> = self
            .eps
            .iter()
            .enumerate()
            .filter_map(|(to, ep)| ep.as_ref().map(|ep| format!("{to}: {:?}", ep.peer_view())))
            .collect();
        let open: Vec<_> = self.recvs.iter().map(|r| (r.rec, self.ledger.rec(r.rec))).collect();
        format!(
            "worker {n}: sent {} (running {:?}), receives open {open:?}, taken {}, waiting {:?}, requests {}, {:?}, peers {views:?}",
            self.seq,
            self.sends.iter().map(|s| (s.to, s.msg)).collect::<Vec<_>>(),
            self.taken.len(),
            self.ledger.waiting().map(|m| (m.sender, m.seq, m.len)).collect::<Vec<_>>(),
            self.worker.requests(),
            self.worker.stats().rare,
        )
    }
}
