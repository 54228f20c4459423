//! Peer lifecycle: failing, draining, closing and removing peers.

use crate::rdm::Engine;
use crate::rdm::ids::{LaneId, PeerId, WireId};
use crate::rdm::io::Wire;
use crate::rdm::operations::Operations;
use crate::rdm::peers::Peers;
use crate::rdm::peers::end_ops::{EndScope, end_ops};
use crate::rdm::peers::lanes;
use crate::rdm::peers::peer::Peer;
use crate::rdm::peers::state::{Accepted, Lifecycle, OwnHandshake, PeerFlags, PeerState};
use crate::rdm::pending::Pending;
use crate::rdm::protocols::{peer_error, zcopy_recv};
use crate::rdm::rails::announce;
use crate::rdm::rma::args::PacketOrder;
use crate::rdm::status::OpError;
use crate::rdm::status::PeerError;
use crate::rdm::trace::TraceEvent;
use crate::rdm::types::EngineEvent;

impl Engine {
    /// Fails a peer of which nothing more can arrive: all its operations end with the error. Whole messages
    /// of it can still be received.
    pub fn on_peer_error<W: Wire>(&mut self, w: &mut W, peer: PeerId, fault: PeerError) {
        if self.peers.table.get(peer).is_some() {
            self.pending.draining.retain(|&draining| draining != peer);
            end_drain(&mut self.ops, &mut self.peers, &mut self.pending, w, peer);
            fail(self, w, peer, fault, EndScope::All);
        }
    }

    /// Handles a lane that did not answer a keepalive: its peer moves to another, or fails. What needs an
    /// answer ends then, the rest when the wire has [drained](Engine::on_wire_drained). False: it failed.
    pub fn on_keepalive_error<W: Wire>(
        &mut self,
        w: &mut W,
        lane: impl Into<LaneId>,
        fault: PeerError,
    ) -> bool {
        let lane = lane.into();
        if self.peers.table.lane(lane).is_none() {
            return false;
        }
        let moved = lane.first_of().is_some_and(|peer| self.try_failover(w, peer, fault));
        if !moved {
            self.fail_peer(w, lane, fault);
        }
        moved
    }

    /// Handles a send error: fails the peer, of which more may arrive until the wire has
    /// [drained](Engine::on_wire_drained). If only our HANDSHAKE was sent to it and nothing waits for it, the
    /// error is ignored and the next packet of the peer makes us send a HANDSHAKE again.
    // [M10.2]
    pub fn on_send_error<W: Wire>(&mut self, w: &mut W, lane: impl Into<LaneId>, fault: PeerError) {
        let lane = lane.into();
        let Some(id) = lane.first_of() else {
            // Which bytes the peer has is unknown if a packet on the lane is lost for good. [M11.12]
            let lost = self.peers.table.lane(lane).is_some_and(|lane| lane.state.has(PeerFlags::UNCONFIRMED));
            let peer = self.peers.table.peer_of(lane).filter(|_| lost);
            self.on_lane_check_error(w, lane, fault);
            return peer.into_iter().for_each(|peer| self.fail_peer(w, peer, fault));
        };
        let Some(peer) = self.peers.table.get(id) else { return };
        // A write that nobody waits for was refused: the next flush that covers it reports it.
        if fault.is_of_rdma() {
            return self.peers.refused_ops.note(id, fault.of_operation(id));
        }
        // The message was longer than the user receive: truncated, not an error of the peer.
        if fault == PeerError::TOO_LONG && peer.state.has(PeerFlags::USER_QP_ONLY) {
            self.peers.counters.stats.rare.truncated += 1;
            return;
        }
        // A returned packet may be of a completed message. Ordered wires return nothing.
        let returns_packets = self.peers.wires[peer.wire].order == PacketOrder::None;
        if returns_packets && peer.state.has(PeerFlags::UNCONFIRMED) && !peer.state.refuses_packets() {
            self.peers.first_failed.get_or_insert((id, fault));
        }
        self.on_lane_check_error(w, id, fault);
    }

    /// Handles an error found by a probe, which says nothing about what was sent.
    pub fn on_lane_check_error<W: Wire>(&mut self, w: &mut W, lane: impl Into<LaneId>, fault: PeerError) {
        let id = lane.into();
        let Some(lane) = self.peers.table.lane(id) else { return };
        let only_handshake_sent =
            lane.state.accepted() == Accepted::Handshake && !lane.state.has(PeerFlags::AWAITED);
        let is_awaited = |id: PeerId| {
            self.peers.table[id].outstanding > 0
                || self.ops.recvs.is_awaited(&self.peers, &self.ops.rma_ops, id)
        };
        if only_handshake_sent && !id.first_of().is_some_and(is_awaited) {
            self.peers.counters.stats.rare.handshakes_lost += 1;
            if let Some(lane) = self.peers.table.lane_mut(id) {
                lane.state.set_own_handshake(OwnHandshake::NotDue);
            }
            return;
        }
        self.fail_peer(w, id, fault);
    }

    /// Ends the draining of failed peers on a wire that has nothing more to hand over: their incomplete
    /// messages end.
    #[cold]
    pub fn on_wire_drained<W: Wire>(&mut self, w: &mut W, wire: WireId) {
        let (drained, draining) = std::mem::take(&mut self.pending.draining)
            .into_iter()
            .partition(|&id| self.peers.table[id].wire == wire);
        self.pending.draining = draining;
        let drained: Vec<PeerId> = drained;
        drained
            .into_iter()
            .for_each(|id| end_drain(&mut self.ops, &mut self.peers, &mut self.pending, w, id));
    }

    /// Fails the lanes that were found lost on the way.
    #[inline]
    pub(in crate::rdm) fn fail_lost_lanes<W: Wire>(&mut self, w: &mut W) {
        if !self.peers.lost_lanes.is_empty() {
            for (lane, fault) in std::mem::take(&mut self.peers.lost_lanes) {
                self.fail_peer(w, lane, fault);
            }
        }
    }

    /// Fails a peer, or a further lane: nothing can be sent to it any more, packets of it may still arrive.
    #[cold]
    pub(in crate::rdm) fn fail_peer<W: Wire>(
        &mut self,
        w: &mut W,
        lane: impl Into<LaneId>,
        fault: PeerError,
    ) {
        let lane = lane.into();
        match lane.first_of() {
            Some(id) => fail(self, w, id, fault, EndScope::NeedsReply),
            None => lanes::fail(&mut self.peers, &mut self.pending, lane, fault),
        }
    }

    /// Removes a peer: its operations end as cancelled. Whole messages of it can still be received; its slot
    /// is reused once they are gone.
    pub fn remove_peer<W: Wire>(&mut self, w: &mut W, id: PeerId) {
        let Some(peer) = self.peers.table.get(id) else { return };
        let failed = peer.queue.as_ref().map(|queue| queue.failed_lanes.clone()).unwrap_or_default();
        let (wire, from, connid) = (peer.wire, peer.from(), peer.addr.connid);
        end_ops(&mut self.ops, &mut self.peers, &mut self.pending, w, id, OpError::Cancelled, EndScope::All);
        self.pending.draining.retain(|&draining| draining != id);
        let lane = LaneId::from(id);
        self.peers.lookup.remove(wire, from, connid, lane);
        failed.iter().for_each(|failed| self.peers.lookup.remove(failed.wire, failed.from, connid, lane));
        let further = self.peers.table.lanes.iter_mut().map(|(_, lane)| lane);
        further.filter(|lane| lane.peer == Some(id)).for_each(|lane| lane.peer = None);
        self.pending.scheduled.retain(|&listed| listed != lane);
        self.peers.refused_ops.forget(id);
        let peer = &mut self.peers.table[id];
        peer.state = PeerState::REMOVED;
        if peer.unexpected == 0 {
            self.peers.table.free(id);
        }
    }

    /// True when everything sent to `peer` (to all, if `None`) is acknowledged as far as its protocol asks,
    /// and no control packet is queued.
    // [M3.12]
    pub fn is_flushed(&self, peer: Option<PeerId>) -> bool {
        match peer {
            Some(id) => {
                self.peers.table.get(id).is_none_or(Peer::is_idle)
                    && !self.pending.is_backed_off(&self.peers, peer)
            }
            None => {
                self.ops.sends.table.is_empty()
                    && (self.ops.rma_ops.table.is_empty()
                        || !self.ops.rma_ops.table.iter().any(|(_, rma)| rma.is_ours()))
                    && !self.pending.is_any_backed_off(&self.peers)
                    && (self.pending.scheduled.is_empty()
                        || self.peers.table.iter().all(|(_, p)| p.is_idle()))
            }
        }
    }
}

// [M10.1]
fn fail<W: Wire>(e: &mut Engine, w: &mut W, id: PeerId, fault: PeerError, scope: EndScope) {
    let peer = &mut e.peers.table[id];
    peer.state.remove(PeerFlags::CLOSE_DUE | PeerFlags::CLOSE_UNCONFIRMED | PeerFlags::AWAITS_CLOSE);
    if !peer.state.is_up() {
        return fail_again(&mut e.peers, &mut e.pending, id, fault);
    }
    let unfinished = peer.outstanding > 0 || peer.state.has_any(PeerFlags::UNACKED | PeerFlags::BACKED_OFF);
    if unfinished {
        e.peers.first_failed.get_or_insert((id, fault));
    }
    peer.fault = Some(fault);
    match scope {
        EndScope::All => peer.state.set_life(Lifecycle::Drained),
        EndScope::NeedsReply => {
            peer.state.set_life(Lifecycle::Failed);
            e.pending.draining.push(id);
        }
    }
    let wire = peer.wire;
    e.peers.wires.mark_down(wire, fault);
    e.peers.counters.stats.rare.peers_failed += 1;
    e.peers.counters.trace.push(TraceEvent::PeerFailed(id, fault));
    if fault.is_lane_failure() {
        announce::announce_lane_failure(&mut e.peers, &mut e.pending, w, id);
    }
    end_ops(&mut e.ops, &mut e.peers, &mut e.pending, w, id, OpError::Peer(id, fault), scope);
    zcopy_recv::drop_forwards(&mut e.zcopy_recv, &mut e.peers, &mut e.pending, id);
    if e.peers.table[id].is_notifiable() {
        e.peers.lost_notices.push((id, peer_error::MAX_LOST_NOTICES));
    }
    e.pending.events.push_back(EngineEvent::PeerFailed { peer: id, fault });
}

/// Handles an error of a peer that has failed or was closed. If that means that it has died, nothing can be
/// said to it any more, and no conversation with it follows.
fn fail_again(peers: &mut Peers, pending: &mut Pending, id: PeerId, fault: PeerError) {
    pending.end_backoff(peers, id.into());
    let peer = &mut peers.table[id];
    if peer.may_reopen() {
        peer.state.remove(PeerFlags::REORDERING);
        if let Some(mut queue) = peer.queue.take() {
            queue.reorder.clear(&mut pending.held_packets);
        }
    } else if !(peer.is_notifiable() && fault.is_peer_failure()) {
        return;
    }
    peer.fault = Some(fault);
    pending.events.push_back(EngineEvent::PeerFailed { peer: id, fault });
}

fn end_drain<W: Wire>(ops: &mut Operations, peers: &mut Peers, pending: &mut Pending, w: &mut W, id: PeerId) {
    let peer = &mut peers.table[id];
    if let Some(fault) = peer.fault
        && !peer.state.is_drained()
    {
        peer.state.set_life(Lifecycle::Drained);
        end_ops(ops, peers, pending, w, id, OpError::Peer(id, fault), EndScope::All);
    }
}
