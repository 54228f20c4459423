//! One of the two processes: its worker, endpoint, memory and operations. `failing_process` and `observer`
//! drive it.

use super::op::{LEN, Op};
use super::{Closing, Progress, Role};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use ucp::rdm::RdmStats;
use ucp::{
    ANY_TAG, Access, Address, CloseMode, Context, Ep, EpParams, Error, FlushRequest, Match, Mem, Rkey, Worker,
};
use ucp::{RecvRequest, SendRequest};

/// Returns the result of an operation once, when it has ended.
pub type End = Box<dyn FnMut() -> Option<Result<(), Error>>>;

const EXCHANGE_TAG: u64 = 1;
/// Longer than any run.
const LONG: Duration = Duration::from_secs(600);

/// Polls a send.
pub fn end_of_send(request: SendRequest<Vec<u8>>) -> End {
    let mut request = Some(request);
    Box::new(move || match request.as_mut()?.is_done() {
        true => request.take().map(|request| request.wait().0),
        false => None,
    })
}

/// Polls a receive or get.
pub fn end_of_recv(request: RecvRequest<Vec<u8>>) -> End {
    let mut request = Some(request);
    Box::new(move || match request.as_mut()?.is_done() {
        true => request.take().map(|request| request.wait().0.map(drop)),
        false => None,
    })
}

/// The addresses of a worker and its memory.
#[derive(Serialize, Deserialize)]
pub struct PeerInfo {
    address: Vec<u8>,
    at: u64,
    key: u64,
    rkey: Vec<u8>,
}

/// The other process's memory.
pub struct RemoteMem {
    /// The address.
    pub at: u64,
    /// A key for packets only.
    pub packets: Rkey,
    /// The key packed by its owner.
    pub device: Rkey,
}

/// One of the two processes.
pub struct Side {
    // Operations and endpoint are dropped before the worker.
    ends: Vec<(End, Option<Result<(), Error>>)>,
    closing: Option<FlushRequest>,
    ep: Option<Ep>,
    remote: Option<RemoteMem>,
    mem: Mem,
    worker: Worker,
    before: RdmStats,
}

impl Side {
    /// Opens a worker for `op` on the transport `wire`; sockets of `posix` are files in `dir`.
    pub fn open(wire: &str, dir: &str, op: Op) -> Side {
        let settings = op.settings(wire).with("UCX_POSIX_SOCKET_DIR", dir);
        let worker = Context::configured(settings).unwrap().worker().unwrap();
        let mem = worker.mem_alloc(LEN, Access::all()).unwrap();
        let before = worker.stats();
        Side { ends: Vec::new(), closing: None, ep: None, remote: None, mem, worker, before }
    }

    /// The addresses that the other process needs.
    pub fn peer_info(&self) -> PeerInfo {
        PeerInfo {
            address: self.worker.address().pack(),
            at: self.mem.addr(),
            key: self.mem.key(),
            rkey: self.mem.pack_rkey(),
        }
    }

    /// Makes the endpoint to the other process.
    pub fn connect(&mut self, peer_info: &PeerInfo) {
        let ep =
            self.worker.connect(&Address::unpack(&peer_info.address).unwrap(), EpParams::default()).unwrap();
        let device = ep.unpack_rkey(&peer_info.rkey).unwrap();
        self.remote = Some(RemoteMem { at: peer_info.at, packets: Rkey::from_key(peer_info.key), device });
        self.ep = Some(ep);
    }

    /// The endpoint.
    pub fn ep(&self) -> &Ep {
        self.ep.as_ref().expect("connected and not closed")
    }

    /// The worker.
    pub fn worker(&self) -> &Worker {
        &self.worker
    }

    /// The other process's memory.
    pub fn remote(&self) -> &RemoteMem {
        self.remote.as_ref().expect("connected")
    }

    /// Starts a sync message each way.
    pub fn exchange(&mut self) {
        let from = Match::tagged(EXCHANGE_TAG, ANY_TAG).from(self.ep());
        let ends = [
            end_of_recv(self.worker.recv(from, Vec::with_capacity(1))),
            end_of_send(self.ep().tag_send_sync(EXCHANGE_TAG, vec![1])),
        ];
        self.ends = ends.into_iter().map(|end| (end, None)).collect();
    }

    /// Starts its part of an operation. [`Side::progress`] counts from here.
    pub fn start(&mut self, op: Op, role: Role) {
        assert!(self.ends.iter().all(|(_, end)| *end == Some(Ok(()))), "they have met");
        self.before = self.worker.stats();
        self.ends = op.start(self, role).into_iter().map(|end| (end, None)).collect();
        self.poll_ends();
    }

    /// Progresses once; answers the events.
    pub fn progress_once(&mut self) -> usize {
        let events = self.worker.progress();
        self.poll_ends();
        events
    }

    fn poll_ends(&mut self) {
        for (end, outcome) in self.ends.iter_mut().filter(|(_, outcome)| outcome.is_none()) {
            *outcome = end();
        }
    }

    /// Closes the endpoint.
    pub fn close(&mut self, how: Closing) {
        let how = match how {
            Closing::Flush => CloseMode::Flush(LONG),
            Closing::Force => CloseMode::Force,
        };
        self.closing = self.ep.take().map(|ep| ep.close(how));
    }

    /// Results of its operations; `None`: in flight.
    pub fn outcomes(&self) -> Vec<Option<Result<(), Error>>> {
        self.ends.iter().map(|(_, outcome)| *outcome).collect()
    }

    /// The progress since [`Side::start`].
    pub fn progress(&mut self) -> Progress {
        let now = self.worker.stats();
        let more = |now: &[u64; 256], before: &[u64; 256]| {
            let diff = (0..=255u8).map(|ty| (ty, now[usize::from(ty)] - before[usize::from(ty)]));
            diff.filter(|(_, n)| *n > 0).collect()
        };
        Progress {
            sent: more(&now.tx_pkts, &self.before.tx_pkts),
            got: more(&now.rx_pkts, &self.before.rx_pkts),
            reads: now.rare.reads - self.before.rare.reads,
            ended: self.ends.iter().map(|(_, outcome)| outcome.is_some()).collect(),
            closed: self.closing.as_ref().is_some_and(FlushRequest::is_done),
        }
    }
}
