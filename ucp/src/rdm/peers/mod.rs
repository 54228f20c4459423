//! Peers: how a packet's source is resolved to one, its state and queues, how it comes, fails and goes, its
//! counters, and our wires to them.

pub(super) mod conversation;
pub(super) mod counters;
pub(super) mod end_ops;
pub(super) mod end_ops_where;
pub(super) mod identify;
pub(super) mod lane;
pub(super) mod lanes;
pub(super) mod lifecycle;
pub(super) mod limits;
pub(super) mod lookup;
pub(super) mod peer;
pub(super) mod refused_ops;
pub(super) mod state;
pub(super) mod unknown_peers;
pub(super) mod wires;
pub(super) mod workers;

use crate::rdm::ids::{LaneId, PeerId};
use crate::rdm::recv::streams::ConnectionStreams;
use crate::rdm::stats::Counters;
use crate::rdm::status::{OpError, PeerError};
use crate::rdm::trace::TraceEvent;
use crate::rdm::types::{EngineConfig, PeerView};
use lookup::PeerLookup;
use peer::{Peer, PeerTable};
use refused_ops::RefusedOps;
use state::PeerFlags;
use unknown_peers::UnknownPeers;
use wires::Wires;

/// The peers of an engine, our wires to them, and the counters of the traffic with them.
///
/// Field order in memory: a short message reads the first two.
#[derive(Debug)]
#[repr(C)]
pub struct Peers {
    pub(in crate::rdm) lookup: PeerLookup,
    pub(in crate::rdm) table: PeerTable,
    /// Apart, since they are many cache lines that a short message does not touch.
    pub(in crate::rdm) counters: Box<Counters>,
    pub(in crate::rdm) wires: Wires,
    /// The first peer that failed with something unfinished since [`Peers::take_failed_peer`].
    pub(in crate::rdm) first_failed: Option<(PeerId, PeerError)>,
    /// Refused operations that nobody waits for, until a flush reports them.
    pub(crate) refused_ops: RefusedOps,
    /// Peers over a limit, until they are closed.
    pub(in crate::rdm) over_limit: Vec<PeerId>,
    /// Lanes found lost while something else was under way, until they have failed.
    pub(in crate::rdm) lost_lanes: Vec<(LaneId, PeerError)>,
    /// Peers lost for good that are to be told so, and how many times still.
    pub(in crate::rdm) lost_notices: Vec<(PeerId, u8)>,
    /// Room of one packet, for bytes that callbacks pack.
    pub(in crate::rdm) packed: Vec<u8>,
    /// Streams of connections.
    pub(crate) streams: ConnectionStreams,
    /// Senders that have not answered.
    pub(in crate::rdm) unknown_peers: UnknownPeers,
    /// The engine's limits.
    pub(in crate::rdm) cfg: EngineConfig,
}

impl Peers {
    pub(in crate::rdm) fn new(cfg: EngineConfig) -> Peers {
        Peers {
            lookup: PeerLookup::new(),
            table: PeerTable::default(),
            counters: Box::default(),
            wires: Wires::default(),
            first_failed: None,
            refused_ops: RefusedOps::default(),
            over_limit: Vec::new(),
            lost_lanes: Vec::new(),
            lost_notices: Vec::new(),
            packed: Vec::new(),
            streams: ConnectionStreams::default(),
            unknown_peers: UnknownPeers::default(),
            cfg: EngineConfig { burst: cfg.burst.max(2), ..cfg },
        }
    }

    /// Returns the engine's limits.
    pub fn config(&self) -> &EngineConfig {
        &self.cfg
    }

    /// Returns the error after which nothing of this peer can arrive any more.
    #[cold]
    pub fn drain_error(&self, id: PeerId) -> Option<OpError> {
        let peer = self.table.get(id)?;
        peer.fault.filter(|_| peer.state.is_drained()).map(|fault| OpError::Peer(id, fault))
    }

    /// Notes that the caller waits for this peer in a way that the engine does not see, so that its loss is
    /// reported.
    pub fn mark_awaited(&mut self, id: PeerId) {
        if self.table.get(id).is_some() {
            self.table[id].state.insert(PeerFlags::AWAITED);
        }
    }

    /// Returns the error of a failed peer.
    pub fn peer_error(&self, peer: PeerId) -> Option<PeerError> {
        self.table.get(peer)?.fault
    }

    /// Returns the public view of a peer.
    pub fn info(&self, peer: PeerId) -> Option<PeerView> {
        self.table.get(peer).map(|peer| peer.view(self.wires[peer.wire].rdma, peer.outstanding))
    }

    /// Takes the first peer that failed with unfinished or unacknowledged operations since the last call.
    /// Peers closed by force do not count.
    pub fn take_failed(&mut self) -> Option<(PeerId, PeerError)> {
        self.first_failed.take()
    }

    /// Takes the oldest trace event.
    pub fn take_trace_event(&mut self) -> Option<TraceEvent> {
        self.counters.trace.take()
    }
}

/// Indexes slots that the engine has looked up, perhaps of removed peers.
impl std::ops::Index<PeerId> for Peers {
    type Output = Peer;
    #[inline]
    fn index(&self, id: PeerId) -> &Peer {
        &self.table[id]
    }
}

impl std::ops::IndexMut<PeerId> for Peers {
    #[inline]
    fn index_mut(&mut self, id: PeerId) -> &mut Peer {
        &mut self.table[id]
    }
}
