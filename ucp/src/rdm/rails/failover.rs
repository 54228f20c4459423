//! Failover: when a NIC on the path to a peer is lost, the peer continues over another pair of NICs of the
//! same two workers (RDM v4 chapter 11), with its connid, message ids and operation ids. Nothing that would
//! take effect twice is sent again, since an unacknowledged packet may have arrived.

use ucs::coll::slots::SlotId;

use crate::rdm::Engine;
use crate::rdm::ids::{LaneId, PeerId, Source, WireId, is_rma_id};
use crate::rdm::io::Wire;
use crate::rdm::next::Next;
use crate::rdm::op::rma_op::RmaOp;
use crate::rdm::peers::Peers;
use crate::rdm::peers::lanes;
use crate::rdm::peers::peer::{Ctl, FailedLane, Peer};
use crate::rdm::peers::wires::Wires;
use crate::rdm::peers::workers;
use crate::rdm::pending::Pending;
use crate::rdm::protocol::Arrival;
use crate::rdm::rails::announce::{self, role};
use crate::rdm::rma::RmaOps;
use crate::rdm::status::OpError;
use crate::rdm::status::PeerError;
use crate::rdm::trace::{DropReason, TraceEvent};
use crate::wire::ctl::ErrorRef;
use crate::wire::rtr::ReadKind;
use crate::wire::rtw::RtwBody;
use crate::wire::{self, Opts, Packet};

/// Whether an unacknowledged packet may be sent again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Resend {
    /// A duplicate does no harm: the packet has a message id, or the id of the operation it answers.
    Safe,
    /// Not needed any more.
    Unneeded,
    /// A duplicate would take effect twice: this operation of ours ends instead.
    EndOp(u32),
    /// A duplicate would take effect twice, and no operation waits for it any more.
    Unsafe,
}

impl Resend {
    // [M11.10]
    fn of(packet: &[u8]) -> Resend {
        match wire::parse(packet) {
            Ok(Packet::Rtw(rtw)) if rtw.is_trigger() => Resend::Unneeded,
            Ok(Packet::Rtw(rtw)) => match (rtw.body, rtw.receipt) {
                (RtwBody::LongCts { send_id, .. } | RtwBody::LongRead { send_id, .. }, _) => {
                    Resend::EndOp(send_id)
                }
                (RtwBody::Eager, Some(send_id)) => Resend::EndOp(send_id),
                (RtwBody::Eager, None) => Resend::Unsafe,
            },
            Ok(Packet::Rtr(rtr)) if rtr.kind == ReadKind::LongCts => Resend::EndOp(rtr.recv_id),
            Ok(_) => Resend::Safe,
            Err(_) => Resend::Unneeded,
        }
    }
}

impl Engine {
    /// Handles the loss of the lane to a peer by `wire`, which may be one it has left already. The peer moves
    /// to another lane, or fails if there is none.
    #[cold]
    pub fn on_lane_error<W: Wire>(&mut self, w: &mut W, peer: PeerId, wire: WireId, fault: PeerError) {
        self.peers.wires.mark_down(wire, fault);
        let Some(known) = self.peers.table.get(peer) else { return };
        if known.wire == wire && !self.try_failover(w, peer, fault) {
            self.on_send_error(w, peer, fault);
        }
    }

    /// Handles a packet that was not acknowledged because the lane by `wire` was lost. Sends it over another
    /// lane if a duplicate does no harm; otherwise its operation ends with the error.
    // [M11.9] [M11.10]
    #[cold]
    pub fn on_packet_lost<W: Wire>(
        &mut self,
        w: &mut W,
        lane: impl Into<LaneId>,
        (wire, fault): (WireId, PeerError),
        packet: &[u8],
    ) {
        let lane = lane.into();
        let Some(peer) = lane.first_of() else {
            if let Some(peer) = self.peers.table.peer_of(lane) {
                self.on_lane_error(w, peer, wire, fault);
            }
            // Packets of a lost further lane are sent elsewhere.
            self.peers.wires.mark_down(wire, fault);
            self.on_lane_check_error(w, lane, fault);
            self.pending.resend_on_main_lane(&mut self.peers, lane, packet);
            return;
        };
        self.on_lane_error(w, peer, wire, fault);
        let moved = |known: &Peer| known.wire != wire && !known.state.is_failed();
        if !self.peers.table.get(peer).is_some_and(moved) {
            return;
        }
        match Resend::of(packet) {
            Resend::Safe => self.pending.resend_on_lane(&mut self.peers, peer, packet),
            Resend::Unneeded => {}
            Resend::EndOp(id) => self.ops.rma_ops.end_uncertain(
                &mut self.peers,
                &mut self.pending,
                w,
                peer,
                SlotId::from_raw(id),
                fault,
            ),
            Resend::Unsafe => self.on_send_error(w, peer, fault),
        }
    }

    /// Fails a peer over if it still uses `wire`. True if it uses another lane afterwards.
    pub fn fail_over_from<W: Wire>(
        &mut self,
        w: &mut W,
        peer: PeerId,
        wire: WireId,
        fault: PeerError,
    ) -> bool {
        let Some(known) = self.peers.table.get(peer) else { return false };
        known.wire != wire || self.try_failover(w, peer, fault)
    }

    /// Fails over to another lane; false if there is none.
    pub(in crate::rdm) fn try_failover<W: Wire>(&mut self, w: &mut W, id: PeerId, fault: PeerError) -> bool {
        if !fault.is_lane_failure() {
            return false;
        }
        while let Some(rail) = self.peers.next_lane(id) {
            if move_to_lane(self, w, id, rail, fault) {
                return true;
            }
        }
        false
    }
}

/// Identifies the sender of a packet whose connid is not that of its source's lane: it announces another
/// lane of its worker, or belongs to a peer that has failed over to this lane.
// [M11.8] [M11.9]
pub(in crate::rdm) fn identify_by_lane<W: Wire>(
    e: &mut Engine,
    w: &mut W,
    wire: WireId,
    from: Source,
    packet: &Packet<'_>,
) -> Option<LaneId> {
    let lane = e.peers.lookup.known(wire, from)?;
    if let Packet::Rtw(rtw) = packet
        && rtw.is_trigger()
        && let (Some(addr), Some(role)) = (rtw.opts.raw_addr, rtw.opts.cq_data)
    {
        announce::on_lane_announced(e, w, (wire, lane), addr, role);
        return e.peers.lookup.known(wire, from);
    }
    let peer = e.peers.table.lanes.get(lane)?.peer?;
    if e.peers.table.get(peer)?.addr.connid != packet.sender_connid()? {
        return None;
    }
    if e.peers.table[peer].state.is_failed() {
        // We cannot follow, and the peer does not know that.
        announce::announce_on(&mut e.peers, &mut e.pending, w, lane, |lane| &mut lane.announces_loss);
        return Some(peer.into());
    }
    // The peer has failed over, so it knows both lanes; we need not detect the loss ourselves.
    let addr = e.peers.table[peer].addr;
    announce::note_announced(&mut e.peers, lane, addr);
    if e.peers.table.lanes.get(lane)?.state.is_met()
        && !e.peers.table[peer].has_failed_over()
        && e.peers.next_lane(peer).is_some()
    {
        move_to_lane(e, w, peer, lane, PeerError::Unreachable);
    } else {
        e.peers.add_source(peer.into(), wire, from);
    }
    Some(peer.into())
}

/// Moves the peer to a further lane. False if it cannot be reached; then that has failed.
fn move_to_lane<W: Wire>(e: &mut Engine, w: &mut W, id: PeerId, onto: LaneId, fault: PeerError) -> bool {
    let Some(lane) = e.peers.table.lanes.get(onto) else { return false };
    let (wire, from, addr) = (lane.wire, lane.from(), lane.addr);
    if let Err(fault) = w.reroute(id, onto, &addr) {
        lanes::fail(&mut e.peers, &mut e.pending, onto, fault);
        return false;
    }
    let peer = &e.peers.table[id];
    let addr_now = e.peers.table.current_addr(peer);
    let failed = FailedLane { wire: peer.wire, addr: addr_now, from: peer.from(), fault };
    let peer = &mut e.peers.table[id];
    let _ = peer.queue_mut().failed_lanes.try_push(failed);
    peer.wire = wire;
    peer.set_from(from);
    e.peers.add_source(id.into(), wire, from);
    e.peers.counters.stats.rare.failovers += 1;
    e.peers.counters.trace.push(TraceEvent::PeerMoved(id, fault));
    e.send_ctl(w, id, Ctl::LaneChanged);
    e.pending.schedule(&mut e.peers, id);
    true
}

impl Wires {
    /// Marks a wire unusable if the error is one of our NIC.
    pub(in crate::rdm) fn mark_down(&mut self, wire: WireId, fault: PeerError) {
        self[wire].down |= fault.is_local_lane();
    }
}

impl RmaOps {
    pub(in crate::rdm) fn finish_uncertain(
        &mut self,
        peers: &mut Peers,
        pending: &mut Pending,
        id: SlotId,
        peer: PeerId,
        fault: PeerError,
    ) {
        peers.counters.stats.rare.outcome_unknown += 1;
        peers.counters.trace.push(TraceEvent::Uncertain(peer, fault));
        self.finish(peers, pending, id, Err(OpError::Peer(peer, fault)));
    }

    /// Ends an operation of ours that may have taken effect. One that the target has answered goes on.
    pub(in crate::rdm) fn end_uncertain<W: Wire>(
        &mut self,
        peers: &mut Peers,
        pending: &mut Pending,
        w: &mut W,
        peer: PeerId,
        id: SlotId,
        fault: PeerError,
    ) {
        let is_uncertain = |rma: &RmaOp| rma.peer == peer && rma.is_ours() && rma.remote_id.is_none();
        if is_rma_id(id) && self.table.get(id).is_some_and(is_uncertain) {
            peers.table[peer].queue_mut().uncertain_ops.push(id);
            self.finish_uncertain(peers, pending, id, peer, fault);
            pending.release_regs(w);
        }
    }
}

impl Peers {
    /// Returns the abandoned lanes of a peer, oldest first.
    pub fn failed_lanes(&self, peer: PeerId) -> &[FailedLane] {
        self.table.get(peer).and_then(|peer| peer.queue.as_ref()).map_or(&[], |queue| &queue.failed_lanes)
    }

    /// Further lanes over which the peer knows us, without failed ones and the one in use.
    pub(in crate::rdm) fn usable_lanes(&self, id: PeerId) -> impl Iterator<Item = LaneId> + '_ {
        let known = self.table.get(id).filter(|peer| peer.state.is_met());
        let known = known.and_then(|peer| Some((peer, peer.queue.as_deref()?)));
        known.into_iter().flat_map(move |(peer, queue)| {
            queue.lanes.iter().copied().filter(move |&lane| {
                let Some(lane) = self.table.own_lane(id, lane) else { return false };
                // The peer identifies us there only if one of the two lanes was announced on the other.
                let knows = lane.announced.contains(&peer.addr) || queue.announced.contains(&lane.addr);
                let is_untried = lane.wire != peer.wire
                    && queue.failed_lanes.iter().all(|failed| failed.wire != lane.wire);
                knows && is_untried && lane.state.is_met() && !self.wires[lane.wire].down
            })
        })
    }

    /// Returns the further lane that a peer would fail over to.
    pub(in crate::rdm) fn next_lane(&self, id: PeerId) -> Option<LaneId> {
        self.usable_lanes(id).next()
    }

    /// Makes a lane a further one of a peer. False if it is one already, or is another's.
    pub(in crate::rdm) fn attach(&mut self, peer: PeerId, id: LaneId) -> bool {
        let Some(lane) = self.table.lanes.get(id) else { return false };
        let (wire, addr, of) = (lane.wire, lane.addr, lane.peer);
        if of.is_some_and(|of| of != peer && self.table.is_up(of)) || self.table.get(peer).is_none() {
            return false;
        }
        let table = &mut self.table;
        let mut list = std::mem::take(&mut table[peer].queue_mut().lanes);
        let mut found = list.contains(&id) || list.try_push(id).is_ok();
        // Keys of memory go by the position, so only a stale one is replaced.
        if !found && let Some(stale) = list.iter_mut().find(|lane| table.lanes.get(**lane).is_none()) {
            (*stale, found) = (id, true);
        }
        table[peer].queue_mut().lanes = list;
        let Some(lane) = table.lanes.get_mut(id).filter(|_| found) else { return false };
        lane.peer = Some(peer);
        workers::join_worker(self, wire, addr, peer);
        of != Some(peer)
    }

    /// Whether a peer continues after this error, over another lane or because it has moved already.
    pub(in crate::rdm) fn survives(&self, peer: PeerId, fault: PeerError) -> bool {
        let moved = self.table.get(peer).is_some() && self.table[peer].has_failed_over();
        fault.is_lane_failure() && (moved || self.next_lane(peer).is_some())
    }

    /// Handles a peer's answer to an operation of ours that expects none or is over. If the operation ended
    /// as uncertain, the peer's part `remote_id` ends too. Otherwise the answer is a duplicate, and the data
    /// of the first may be in flight.
    #[cold]
    pub(in crate::rdm) fn on_late_answer(&mut self, a: &Arrival<'_>, ours: SlotId, remote_id: u32) -> Next {
        self.drop_packet(a, DropReason::BadId);
        let queue = self.table[a.peer].queue.as_ref();
        if queue.is_some_and(|queue| queue.uncertain_ops.contains(&ours)) {
            return self.error_to(a.peer, ErrorRef::Op(remote_id), OpError::Cancelled);
        }
        Next::Nothing
    }

    /// Handles a trigger of a peer that has failed over to this lane, which may report that it could not.
    // [M11.9]
    pub(in crate::rdm) fn on_trigger(&mut self, from: PeerId, opts: &Opts) -> Next {
        let is_own_lane = opts.raw_addr == Some(self.table[from].addr);
        if is_own_lane && opts.cq_data == Some(role::LOST) && self.table[from].has_failed_over() {
            return Next::LaneLost;
        }
        Next::Nothing
    }
}
