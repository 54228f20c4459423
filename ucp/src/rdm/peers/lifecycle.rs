//! Peer lifecycle: adding, identifying, failing, draining, closing and removing peers. Only `identify` is on
//! the hot path.

use crate::rdm::Engine;
use crate::rdm::ids::{LaneId, PeerId, Source, WireId};
use crate::rdm::io::Wire;
use crate::rdm::op::rx::{RecvRole, RxOp, RxState, Unexpected};
use crate::rdm::op::table::index_of;
use crate::rdm::peers::Peers;
use crate::rdm::peers::lane::{FurtherLane, Lane};
use crate::rdm::peers::lanes;
use crate::rdm::peers::peer::{PartialMsg, Peer};
use crate::rdm::peers::state::{Accepted, Lifecycle, OwnHandshake, PeerFlags, PeerState};
use crate::rdm::peers::workers;
use crate::rdm::pending::Pending;
use crate::rdm::protocol::{Kind, Protocol};
use crate::rdm::protocols::peer_error::{self, ABORTED};
use crate::rdm::protocols::zcopy_recv;
use crate::rdm::rails::{announce, failover};
use crate::rdm::recv::Recvs;
use crate::rdm::rma::Reads;
use crate::rdm::rma::RmaOps;
use crate::rdm::rma::args::PacketOrder;
use crate::rdm::status::OpError;
use crate::rdm::status::PeerError;
use crate::rdm::trace::{DropReason, TraceEvent};
use crate::rdm::types::{EngineEvent, PeerView};
use crate::wire::{Packet, RawAddr};
use ucs::coll::slots::SlotId;
use ucs::coll::window::seq_diff;

/// Operations that end with a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum EndScope {
    /// Those that need to send to it.
    NeedsReply,
    All,
}

impl Engine {
    /// Fails a peer of which nothing more can arrive: all its operations end with the error. Whole messages
    /// of it can still be received.
    pub fn on_peer_error<W: Wire>(&mut self, w: &mut W, peer: PeerId, fault: PeerError) {
        if self.peers.table.get(peer).is_some() {
            self.pending.draining.retain(|&draining| draining != peer);
            end_drain(self, w, peer);
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
            self.on_probe_error(w, lane, fault);
            return peer.into_iter().for_each(|peer| self.fail_peer(w, peer, fault));
        };
        let Some(peer) = self.peers.table.get(id) else { return };
        // A write that nobody waits for was refused: the next flush that covers it reports it.
        if fault.is_of_rdma() {
            return self.peers.refused_ops.note(id, fault);
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
        self.on_probe_error(w, id, fault);
    }

    /// Handles an error found by a probe, which says nothing about what was sent.
    pub fn on_probe_error<W: Wire>(&mut self, w: &mut W, lane: impl Into<LaneId>, fault: PeerError) {
        let id = lane.into();
        let Some(lane) = self.peers.table.lane(id) else { return };
        let only_handshake_sent =
            lane.state.accepted() == Accepted::Handshake && !lane.state.has(PeerFlags::AWAITED);
        let is_awaited = |id: PeerId| {
            self.peers.table[id].outstanding > 0 || self.recvs.is_awaited(&self.peers, &self.rma_ops, id)
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

    /// Closes all peers of a worker: operations end, the peer is notified as far as possible, its
    /// further packets are dropped. Messages and stream data that have arrived can still be received, bodies
    /// of active messages cannot.
    pub fn force_close<W: Wire>(&mut self, w: &mut W, id: PeerId) {
        let lost = self.peers.first_failed;
        let others = workers::others_of_worker(&self.peers, id);
        force_close_with(self, w, id, PeerError::Gone);
        others.into_iter().for_each(|other| force_close_with(self, w, other, PeerError::Gone));
        // Operations aborted here do not count as lost.
        self.peers.first_failed = lost;
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
        drained.into_iter().for_each(|id| end_drain(self, w, id));
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
        end_ops(self, w, id, OpError::Cancelled, EndScope::All);
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
                self.sends.table.is_empty()
                    && (self.rma_ops.table.is_empty()
                        || !self.rma_ops.table.iter().any(|(_, rma)| rma.is_ours()))
                    && !self.pending.is_any_backed_off(&self.peers)
                    && (self.pending.scheduled.is_empty()
                        || self.peers.table.iter().all(|(_, p)| p.is_idle()))
            }
        }
    }
}

impl Recvs {
    /// Ends the receives that need this peer, and drops its incomplete messages.
    fn end_of_peer<W: Wire>(
        &mut self,
        reads: &mut Reads,
        peers: &mut Peers,
        pending: &mut Pending,
        w: &mut W,
        (id, scope): (PeerId, EndScope),
        error: OpError,
    ) {
        let needs_it = |op: &RxOp| match op.state {
            RxState::Posted => scope == EndScope::All && op.entry.source() == Some(id),
            RxState::Matched(rxe) => self
                .entries
                .get(rxe)
                .is_some_and(|rxe| rxe.envelope.from == id && (scope == EndScope::All || !rxe.is_all_sent())),
            RxState::OnDevice(_) => false,
        };
        let receives: Vec<_> = self.table.iter().filter(|(_, op)| needs_it(op)).map(|(op, _)| op).collect();
        let lost = self.stream_msg_ids(&receives);
        for receive in receives {
            let rma_read = self.rxe(receive).and_then(|(_, rxe)| rxe.rma_read);
            if rma_read.is_some_and(|rma_read| !reads.stop(w, rma_read, error)) {
                continue;
            }
            if let Some(&RxOp { role: RecvRole::Multi(multi), .. }) = self.table.get(receive) {
                self.close_multi(pending, multi, Err(error));
                continue;
            }
            let Some(&RxOp { state, kind, .. }) = self.table.get(receive) else { continue };
            match state {
                RxState::Posted => {
                    self.match_queues[kind as usize].expected.remove(&mut self.table, index_of(receive))
                }
                RxState::Matched(rxe) => drop(self.entries.remove(rxe)),
                RxState::OnDevice(_) => {}
            }
            let Some(op) = self.table.remove(receive) else { continue };
            self.notify_end(pending, &op, Err(error));
        }
        self.drop_incomplete(reads, peers, pending, w, (id, scope, lost), error);
    }

    /// Drops incomplete messages of a peer, and with them what follows in its stream; `lost` are pieces of it
    /// that receives had matched.
    fn drop_incomplete<W: Wire>(
        &mut self,
        reads: &mut Reads,
        peers: &mut Peers,
        pending: &mut Pending,
        w: &mut W,
        (id, scope, lost): (PeerId, EndScope, Vec<u32>),
        error: OpError,
    ) {
        let is_ended = |protocol: Protocol| {
            scope == EndScope::All || !matches!(protocol, Protocol::Medium | Protocol::DcMedium)
        };
        let is_incomplete = |held: &Unexpected| {
            let missing = held.received.bytes() < held.envelope.len || held.rma_read.is_some();
            held.envelope.from == id && missing && is_ended(held.envelope.protocol)
        };
        let incomplete = self.unexpected.iter().filter(|(_, held)| is_incomplete(held));
        let mut incomplete: Vec<_> = incomplete.map(|(held, _)| held).collect();
        self.break_stream(peers, id, lost, &mut incomplete);
        for held in incomplete {
            let Some(held) = self.unexpected.remove(held) else { continue };
            if let Some(index) = held.queued {
                self.match_queues[held.kind as usize].unexpected.remove(index);
            }
            held.segments.drain(|_, bytes| pending.held_packets.release_unexpected(bytes));
            pending.held_packets.remove_unexpected();
            if let Some(rma_read) = held.rma_read {
                reads.stop(w, rma_read, error);
            }
            peers.table[id].unexpected -= 1;
        }
    }
}

/// Ends the operations that need this peer, and drops its incomplete messages and its queues.
fn end_ops<W: Wire>(e: &mut Engine, w: &mut W, id: PeerId, error: OpError, scope: EndScope) {
    let sends: Vec<_> = e.sends.table.iter().filter(|(_, op)| op.peer == id).map(|(op, _)| op).collect();
    sends.into_iter().for_each(|op| e.sends.finish(&mut e.peers, &mut e.pending, w, op, Err(error)));
    e.rma_ops.end_of_peer(&mut e.reads, &mut e.peers, &mut e.pending, w, id, error);
    e.recvs.end_of_peer(&mut e.reads, &mut e.peers, &mut e.pending, w, (id, scope), error);
    e.pending.end_backoff(&mut e.peers, id.into());
    let peer = &mut e.peers.table[id];
    peer.state.remove(PeerFlags::SENDS_QUEUED | PeerFlags::UNACKED);
    peer.state.drop_queued_handshake();
    if scope == EndScope::NeedsReply {
        if let Some(queue) = &mut peer.queue {
            queue.ctl.clear();
            queue.unsent_errors.clear();
            queue.sends.clear();
            queue.grants.clear();
            queue.reads.clear();
            // Packets of ended messages are dropped.
            queue.partial_msgs.retain(|_, part| match *part {
                PartialMsg::Rx(rx) => e.recvs.table.get(rx).is_some(),
                PartialMsg::Unexpected(held) => e.recvs.unexpected.get(held).is_some(),
            });
        }
        return;
    }
    peer.state.remove(PeerFlags::REORDERING);
    if let Some(mut queue) = peer.queue.take() {
        queue.reorder.clear(&mut e.pending.held_packets);
    }
}

// [M10.1]
fn fail<W: Wire>(e: &mut Engine, w: &mut W, id: PeerId, fault: PeerError, scope: EndScope) {
    let peer = &mut e.peers.table[id];
    if !peer.state.is_up() {
        return e.pending.end_backoff(&mut e.peers, id.into());
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
    end_ops(e, w, id, OpError::Peer(id, fault), scope);
    zcopy_recv::drop_forwards(e, id);
    e.pending.events.push_back(EngineEvent::PeerFailed { peer: id, fault });
}

fn end_drain<W: Wire>(e: &mut Engine, w: &mut W, id: PeerId) {
    let peer = &mut e.peers.table[id];
    if let Some(fault) = peer.fault
        && !peer.state.is_drained()
    {
        peer.state.set_life(Lifecycle::Drained);
        end_ops(e, w, id, OpError::Peer(id, fault), EndScope::All);
    }
}

pub(in crate::rdm) fn force_close_with<W: Wire>(e: &mut Engine, w: &mut W, id: PeerId, fault: PeerError) {
    peer_error::abort_all(e, w, id);
    e.on_peer_error(w, id, fault);
    if e.peers.table.get(id).is_some() {
        e.peers.table[id].state.set_life(Lifecycle::Closed);
        e.recvs.drop_all_unexpected(&mut e.reads, &mut e.peers, &mut e.pending, w, id, Kind::AmData);
    }
}

// [M2.2]
#[cold]
fn identify_other<W: Wire>(
    e: &mut Engine,
    w: &mut W,
    wire: WireId,
    from: Source,
    packet: &Packet<'_>,
) -> Result<LaneId, DropReason> {
    if let Some(connid) = packet.sender_connid()
        && let Some(lane) = e.peers.lookup.previous(wire, from, connid)
    {
        return Ok(lane);
    }
    if let Some(lane) = failover::identify_by_lane(e, w, wire, from, packet) {
        return Ok(lane);
    }
    // [M2.4]
    let Some(addr) = packet.opts().and_then(|opts| opts.raw_addr) else {
        return Err(DropReason::UnknownSender);
    };
    if e.peers.table.len() + e.peers.table.lanes.len() >= e.peers.cfg.max_peers as usize {
        return Err(DropReason::NoPath);
    }
    // A trigger says nothing but that the other end exists: perhaps as a further lane of some peer.
    if matches!(packet, Packet::Rtw(rtw) if rtw.is_trigger()) && !e.peers.wires[wire].rail_wires.is_empty() {
        let lane = e.peers.table.lanes.add(FurtherLane::new(Lane::new(wire, addr, from), None));
        let lane = lane.ok_or(DropReason::NoPath)?;
        if w.connect(lane, from, &addr).is_err() {
            e.peers.table.lanes.remove(lane);
            return Err(DropReason::NoPath);
        }
        e.peers.add_source(lane, wire, from);
        return Ok(lane);
    }
    let peer = e.peers.add_new(wire, addr, from);
    let connected = w.connect(peer.into(), from, &addr);
    if connected == Err(PeerError::Unreachable) {
        e.remove_peer(w, peer);
        return Err(DropReason::NoPath);
    }
    e.peers.counters.stats.rare.peers_found += 1;
    e.peers.counters.trace.push(TraceEvent::PeerFound(peer));
    // It may have sent, flushed and exited: its messages have arrived.
    if let Err(fault) = connected {
        e.fail_peer(w, peer, fault);
    }
    Ok(peer.into())
}

/// Resolves the lane of a packet. Unknown senders that bring their address become peers. // HOT
// [M2.3]
#[inline]
pub(in crate::rdm) fn identify<W: Wire>(
    e: &mut Engine,
    w: &mut W,
    wire: WireId,
    from: Source,
    packet: &Packet<'_>,
) -> Result<LaneId, DropReason> {
    if let Some(lane) = e.peers.lookup.current(wire, from)
        && packet.sender_connid().is_none_or(|connid| e.peers.table.has_connid(lane, connid))
    {
        return Ok(lane);
    }
    identify_other(e, w, wire, from, packet)
}

impl Recvs {
    /// Returns the `msg_id`s of the stream pieces among these receives.
    pub(in crate::rdm) fn stream_msg_ids(&mut self, receives: &[SlotId]) -> Vec<u32> {
        let mut ids = Vec::new();
        for &id in receives {
            if let Some((op, rxe)) = self.rxe(id)
                && op.kind == Kind::Stream
            {
                ids.push(rxe.envelope.msg_id);
            }
        }
        ids
    }

    /// Breaks a stream where a piece is lost, matched (`lost`) or not: the messages behind it are added to
    /// `incomplete`.
    // [M11.7]
    pub(in crate::rdm) fn break_stream(
        &mut self,
        peers: &mut Peers,
        id: PeerId,
        mut lost: Vec<u32>,
        incomplete: &mut Vec<SlotId>,
    ) {
        let of_stream = |held: &Unexpected| held.kind == Kind::Stream && held.envelope.from == id;
        let held =
            incomplete.iter().filter_map(|&held| self.unexpected.get(held)).filter(|held| of_stream(held));
        lost.extend(held.map(|held| held.envelope.msg_id));
        let Some(first) = lost.into_iter().reduce(|a, b| if seq_diff(a, b) < 0 { a } else { b }) else {
            return;
        };
        peers.table[id].state.insert(PeerFlags::STREAM_BROKEN);
        let behind = |held: &Unexpected| of_stream(held) && seq_diff(held.envelope.msg_id, first) > 0;
        let all = self.unexpected.iter().filter(|(_, held)| behind(held)).map(|(held, _)| held);
        let more: Vec<_> = all.filter(|held| !incomplete.contains(held)).collect();
        incomplete.extend(more);
    }

    /// True if a receive, or an operation of the peer, waits for its packets; packets in its reorder window
    /// count.
    pub(in crate::rdm) fn is_awaited(&self, peers: &Peers, rma_ops: &RmaOps, id: PeerId) -> bool {
        let needs_it = |op: &RxOp| match op.state {
            RxState::Posted => op.entry.source() == Some(id),
            RxState::Matched(rxe) => self.entries.get(rxe).is_some_and(|i| i.envelope.from == id),
            RxState::OnDevice(_) => false,
        };
        let is_incomplete = |held: &Unexpected| {
            let missing = held.received.bytes() < held.envelope.len || held.rma_read.is_some();
            held.envelope.from == id && missing
        };
        peers.table[id].state.has(PeerFlags::REORDERING)
            || self.table.iter().any(|(_, op)| needs_it(op))
            || self.unexpected.iter().any(|(_, held)| is_incomplete(held))
            || rma_ops.table.iter().any(|(_, rma)| rma.peer == id)
    }
}

impl Pending {
    /// True if [`Engine::on_wire_drained`] has anything to do. // HOT
    #[inline(always)]
    pub fn is_draining(&self) -> bool {
        !self.draining.is_empty()
    }
}

impl Peers {
    // [M2.5]
    pub(in crate::rdm) fn add_new(&mut self, wire: WireId, addr: RawAddr, from: Source) -> PeerId {
        let own_connid = self.wires[wire].me.connid;
        let worker = workers::worker_at(self, wire, &addr);
        let (new, before) = self.table.add(Peer::new(Lane::new(wire, addr, from), (own_connid, worker)));
        self.counters.forget(new, before);
        if let Some(old) = self.add_source(new.into(), wire, from).and_then(LaneId::first_of) {
            self.counters.stats.rare.peers_displaced += 1;
            self.counters.trace.push(TraceEvent::PeerDisplaced { old, new });
        }
        new
    }

    /// Adds a peer: its wire, address, and the source of its packets. The same address on the same wire is
    /// the same peer, also if it introduced itself before. A peer takes over the source of one with another
    /// connid (its queue pair number was reused); the old one stays usable until removed.
    // [M2.1]
    pub fn add(&mut self, wire: WireId, addr: RawAddr, from: Source) -> PeerId {
        let known = [self.lookup.current(wire, from), self.lookup.previous(wire, from, addr.connid)];
        let known = known.into_iter().flatten().filter_map(LaneId::first_of);
        if let Some(known) = { known }.find(|known| self.table[*known].addr == addr) {
            return known;
        }
        self.add_new(wire, addr, from)
    }

    /// Returns the error after which nothing of this peer can arrive any more.
    #[cold]
    pub fn drain_error(&self, id: PeerId) -> Option<OpError> {
        let peer = self.table.get(id)?;
        match peer.fault {
            Some(fault) => peer.state.is_drained().then_some(OpError::Peer(id, fault)),
            // Alive, but it has aborted a part of its stream.
            None => peer.state.has(PeerFlags::STREAM_BROKEN).then_some(OpError::Aborted(id, ABORTED)),
        }
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
}
