//! Further lanes: how a lane becomes known, is attached to a peer or becomes a peer of its own, and fails. A
//! lane on which the other side opens a conversation has its own message order, so it is a peer.

use ucs::time::Nanos;

use crate::rdm::ids::{LaneId, PeerId, Source, WireId};
use crate::rdm::io::{Flushed, Wire};
use crate::rdm::peers::Peers;
use crate::rdm::peers::lane::{FurtherLane, Lane};
use crate::rdm::peers::peer::Peer;
use crate::rdm::peers::state::{Lifecycle, PeerFlags};
use crate::rdm::peers::workers;
use crate::rdm::pending::Pending;
use crate::rdm::status::PeerError;
use crate::rdm::trace::TraceEvent;
use crate::rdm::types::{EngineEvent, PeerView};
use crate::wire::RawAddr;

/// Fails a further lane: data that it was to carry go over the first one.
#[cold]
pub(in crate::rdm) fn fail(peers: &mut Peers, pending: &mut Pending, id: LaneId, fault: PeerError) {
    let Some(lane) = peers.table.lanes.get_mut(id) else { return };
    if lane.state.is_up() {
        lane.state.set_life(Lifecycle::Drained);
        lane.state.drop_queued_handshake();
        lane.fault = Some(fault);
        (lane.announces_first, lane.announces_loss) = (false, false);
        let wire = lane.wire;
        peers.wires.mark_down(wire, fault);
    }
    pending.end_backoff(peers, id);
}

/// Makes a further lane a peer of its own.
#[cold]
pub(in crate::rdm) fn promote<W: Wire>(
    peers: &mut Peers,
    pending: &mut Pending,
    w: &mut W,
    id: LaneId,
) -> Option<PeerId> {
    let peer = make_peer(peers, id)?;
    w.promote(id, peer);
    let listed = pending.scheduled.iter_mut().chain(pending.backed_off.iter_mut());
    { listed }.filter(|listed| **listed == id).for_each(|listed| *listed = peer.into());
    let queue = peers.table[peer].queue.as_ref();
    // The end of the retry would be reported for the lane.
    if queue.is_some_and(|queue| queue.backoff.is_retrying()) && w.flush_lane(peer.into()) == Flushed::Now {
        pending.on_flushed(peers, Nanos(0), peer.into());
    }
    peers.counters.stats.rare.peers_found += 1;
    peers.counters.trace.push(TraceEvent::PeerFound(peer));
    if let Some(fault) = peers.table[peer].fault {
        pending.events.push_back(EngineEvent::PeerFailed { peer, fault });
    }
    Some(peer)
}

/// Makes a further lane the first one of a new peer.
fn make_peer(peers: &mut Peers, id: LaneId) -> Option<PeerId> {
    if peers.table.len() >= peers.cfg.max_peers as usize {
        return None;
    }
    let lane = peers.table.lanes.remove(id)?;
    let worker = match lane.peer {
        Some(of) => peers.table[of].worker,
        None => workers::worker_at(peers, lane.wire, &lane.addr),
    };
    let (lane, announced, backoff) = lane.into_first();
    let (wire, addr, from) = (lane.wire, lane.addr, lane.from());
    let mut peer = Peer::new(lane, (peers.wires[wire].me.connid, worker));
    if !announced.is_empty() || peer.state.has(PeerFlags::BACKED_OFF) {
        let queue = peer.queue_mut();
        (queue.announced, queue.backoff) = (announced, backoff);
    }
    let (new, before) = peers.table.add(peer);
    peers.counters.forget(new, before);
    peers.lookup.rename(wire, from, addr.connid, (id, new.into()));
    Some(new)
}

/// Returns our address at our end of a lane: that of the home wire if it is the first.
#[inline]
pub(in crate::rdm) fn own_addr(peers: &Peers, id: LaneId) -> Option<&RawAddr> {
    let wire = match id.first_of() {
        Some(peer) => peers.table[peer].home,
        None => peers.table.lanes.get(id)?.home,
    };
    Some(&peers.wires[wire].me)
}

impl Peers {
    /// Adds a further lane of the worker of `to`. `None`: it is a peer of its own, or of another peer.
    pub fn add_lane(&mut self, to: PeerId, wire: WireId, addr: RawAddr, from: Source) -> Option<LaneId> {
        self.table.get(to)?;
        // A peer that has failed over to the lane has its source now.
        let known = [self.lookup.known(wire, from), self.lookup.previous(wire, from, addr.connid)];
        let has_addr = |id: &LaneId| self.table.lane(*id).is_some_and(|lane| lane.addr == addr);
        if let Some(known) = known.into_iter().flatten().find(has_addr) {
            let lane = self.table.lanes.get(known)?;
            let is_free = lane.peer.is_none_or(|of| of == to || !self.table.is_up(of));
            return is_free.then_some(known);
        }
        let id = self.table.lanes.add(FurtherLane::new(Lane::new(wire, addr, from), None))?;
        self.add_source(id, wire, from);
        Some(id)
    }

    /// Returns the public view of a lane.
    pub fn lane_info(&self, id: LaneId) -> Option<PeerView> {
        self.table.lane(id).map(|lane| lane.view(self.wires[lane.wire].rdma, 0))
    }

    /// Attributes packets of this source to the lane, unless their connid names another.
    pub(in crate::rdm) fn add_source(&mut self, id: LaneId, wire: WireId, from: Source) -> Option<LaneId> {
        let table = &self.table;
        self.lookup.insert(wire, from, id, |old| match old.first_of() {
            Some(old) => table[old].addr.connid,
            None => table.lanes.get(old).map_or(0, |lane| lane.addr.connid),
        })
    }
}
