//! Failover: when a NIC on the path to a peer is lost, the peer continues over another pair of NICs of the
//! same two workers (RDM v4 chapter 11), with its connid, message ids and operation ids. Nothing that would
//! take effect twice is sent again, since an unacknowledged packet may have arrived.

use ucs::coll::slots::SlotId;

use crate::rdm::Engine;
use crate::rdm::features::supports_failover;
use crate::rdm::ids::{PeerId, Source};
use crate::rdm::ids::{WireId, is_rma_id};
use crate::rdm::io::{NotPosted, Wire};
use crate::rdm::next::Next;
use crate::rdm::op::rma_op::RmaOp;
use crate::rdm::peers::Peers;
use crate::rdm::peers::peer::PeerTable;
use crate::rdm::peers::peer::{Ctl, FailedLane, Peer, PeerQueue};
use crate::rdm::peers::state::PeerFlags;
use crate::rdm::peers::wires::Wires;
use crate::rdm::pending::Pending;
use crate::rdm::protocol::Arrival;
use crate::rdm::rails::rail_plan::RailList;
use crate::rdm::rma::RmaOps;
use crate::rdm::status::OpError;
use crate::rdm::status::PeerError;
use crate::rdm::trace::{DropReason, TraceEvent};
use crate::wire::ctl::ErrorRef;
use crate::wire::rtw::{self, RtwBody};
use crate::wire::{self, Features, Opts, Packet, PktType, RawAddr, header_len};

/// Relations between two lanes of one worker, as announced on the wire.
mod role {
    /// The named lane is the worker's first.
    pub const FIRST: u64 = 0;
    /// The named lane is a further one.
    pub const FURTHER: u64 = 1;
    /// The named lane is the worker's first, on which it has lost the peer.
    pub const LOST: u64 = 2;
}

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
            Ok(Packet::Rtr(rtr)) if packet[0] == PktType::LONGCTS_RTR.0 => Resend::EndOp(rtr.recv_id),
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
            // Packets of a lost further lane come back and are sent elsewhere.
            match self.peers.table.main_of(peer) {
                Some(_) => self.on_probe_error(w, peer, fault),
                None => self.on_send_error(w, peer, fault),
            }
        }
    }

    /// Handles a packet to `peer` that was not acknowledged because the lane by `wire` was lost. Sends it
    /// over another lane if a duplicate does no harm; otherwise its operation ends with the error.
    // [M11.9] [M11.10]
    #[cold]
    pub fn on_packet_lost<W: Wire>(
        &mut self,
        w: &mut W,
        peer: PeerId,
        (wire, fault): (WireId, PeerError),
        packet: &[u8],
    ) {
        if self.peers.table.get(peer).is_some()
            && let Some(main) = self.peers.table.main_of(peer)
        {
            self.on_lane_error(w, main, wire, fault);
        }
        self.on_lane_error(w, peer, wire, fault);
        if self.pending.resend_on_main_lane(&mut self.peers, peer, packet) {
            return;
        }
        let moved = |known: &Peer| known.wire != wire && !known.state.is_failed();
        if !self.peers.table.get(peer).is_some_and(moved) {
            return;
        }
        match Resend::of(packet) {
            Resend::Safe => self.pending.resend_on_lane(&mut self.peers, peer, packet),
            Resend::Unneeded => {}
            Resend::EndOp(id) => self.rma_ops.end_uncertain(
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

/// Handles a lane's claim that another lane is of the same worker. It counts once both have made it.
fn on_lane_announced<W: Wire>(
    e: &mut Engine,
    w: &mut W,
    (wire, lane): (WireId, PeerId),
    addr: RawAddr,
    role: u64,
) {
    let source = Source::from(&addr);
    let named = &mut e.peers.table[lane].queue_mut().announced;
    if !named.contains(&addr) && named.try_push(addr).is_err() {
        return;
    }
    let main =
        e.peers.table[lane].queue_mut().further_lane_of.filter(|main| e.peers.table[*main].addr == addr);
    if let (role::LOST, Some(main)) = (role, main) {
        return e.on_send_error(w, main, PeerError::Gone);
    }
    let rail_wires = e.peers.wires[wire].rail_wires.clone();
    let other = rail_wires.iter().find_map(|wire| e.peers.lookup.known(*wire, source));
    let Some(other) = other.filter(|other| e.peers.table[*other].addr == addr) else { return };
    let me = e.peers.table[lane].addr;
    if !e.peers.table[other].queue.as_ref().is_some_and(|queue| queue.announced.contains(&me)) {
        return;
    }
    let (main, rail) = match role {
        role::FIRST => (other, lane),
        role::FURTHER => (lane, other),
        _ => return,
    };
    if e.peers.attach(main, rail) {
        announce_lanes(e, w, rail);
    }
}

/// Identifies the sender of a packet whose connid is not that of its source's peer: it announces another
/// lane of its worker, or belongs to a peer that has failed over to this lane.
// [M11.8] [M11.9]
pub(in crate::rdm) fn identify_by_lane<W: Wire>(
    e: &mut Engine,
    w: &mut W,
    wire: WireId,
    from: Source,
    packet: &Packet<'_>,
) -> Option<PeerId> {
    let lane = e.peers.lookup.known(wire, from)?;
    if let Packet::Rtw(rtw) = packet
        && rtw.is_trigger()
        && let (Some(addr), Some(role)) = (rtw.opts.raw_addr, rtw.opts.cq_data)
    {
        on_lane_announced(e, w, (wire, lane), addr, role);
        return Some(lane);
    }
    let main = e.peers.table[lane].queue.as_ref()?.further_lane_of?;
    if e.peers.table.get(main)?.addr.connid != packet.sender_connid()? {
        return None;
    }
    if e.peers.table[main].state.is_failed() {
        // We cannot follow, and the peer does not know that.
        e.send_ctl(w, lane, Ctl::LaneFailed(main));
        return Some(main);
    }
    // The peer has failed over, so it knows both lanes; we need not detect the loss ourselves.
    let (addr, named) = (e.peers.table[main].addr, &mut e.peers.table[lane].queue_mut().announced);
    if !named.contains(&addr) {
        let _ = named.try_push(addr);
    }
    if e.peers.table[lane].state.is_met()
        && !e.peers.table.has_failed_over(main)
        && e.peers.next_lane(main).is_some()
    {
        move_to_lane(e, w, main, lane, PeerError::Unreachable);
    } else {
        e.peers.add_source(main, wire, from);
    }
    Some(main)
}

/// Tells a lane's worker, over both lanes of each pair, that our other lane is of the same worker.
// [M11.8]
pub(in crate::rdm) fn announce_lanes<W: Wire>(e: &mut Engine, w: &mut W, lane: PeerId) {
    let Some(queue) = &e.peers.table[lane].queue else { return };
    let pairs: RailList<_> = match queue.further_lane_of {
        Some(main) => [(main, lane)].into_iter().collect(),
        None => queue.rails.iter().map(|&rail| (lane, rail)).collect(),
    };
    for (main, rail) in pairs {
        let met = |id: PeerId| e.peers.table.get(id).is_some_and(|peer| peer.state.has(PeerFlags::MET));
        let is_own_lane =
            e.peers.table[rail].queue.as_ref().is_some_and(|queue| queue.further_lane_of == Some(main));
        let ours = Features::CONNID.difference(e.peers.cfg.withhold);
        let knows =
            supports_failover(ours, e.peers.table[main].features) && !e.peers.table.has_failed_over(main);
        if is_own_lane && knows && met(main) && met(rail) {
            e.send_ctl(w, main, Ctl::AnnounceLane(rail));
            e.send_ctl(w, rail, Ctl::AnnounceLane(main));
        }
    }
}

/// Tells a peer over its further lanes that we lost the way to it and have no other.
// [M11.9]
pub(in crate::rdm) fn announce_lane_failure<W: Wire>(e: &mut Engine, w: &mut W, id: PeerId) {
    let Some(queue) = &e.peers.table[id].queue else { return };
    for rail in queue.rails.clone() {
        let Some(lane) = e.peers.table.get(rail) else { continue };
        let is_own_lane = lane.queue.as_ref().is_some_and(|queue| queue.further_lane_of == Some(id));
        if is_own_lane && lane.state.is_met() {
            e.send_ctl(w, rail, Ctl::LaneFailed(id));
        }
    }
}

/// Moves the peer to the lane of `rail`. False if it cannot be reached; then it is no rail any more.
fn move_to_lane<W: Wire>(e: &mut Engine, w: &mut W, id: PeerId, rail: PeerId, fault: PeerError) -> bool {
    let (wire, from, addr) = {
        let lane = &e.peers.table[rail];
        (lane.wire, lane.from(), lane.addr)
    };
    if let Err(fault) = w.reroute(id, rail, &addr) {
        e.fail_peer(w, rail, fault);
        return false;
    }
    let peer = &e.peers.table[id];
    let addr_now = e.peers.table.current_lane(peer);
    let failed = FailedLane { wire: peer.wire, addr: addr_now, from: peer.from(), fault };
    let peer = &mut e.peers.table[id];
    let _ = peer.queue_mut().failed_lanes.try_push(failed);
    peer.wire = wire;
    peer.set_from(from);
    e.peers.add_source(id, wire, from);
    e.peers.counters.stats.rare.peers_moved += 1;
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
        peers.counters.stats.rare.unsure += 1;
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
    /// Attributes packets of this source to the peer, unless their connid names another.
    pub(in crate::rdm) fn add_source(&mut self, id: PeerId, wire: WireId, from: Source) {
        let peers = &self.table;
        self.lookup.insert(wire, from, id, |old| peers[old].addr.connid);
    }

    /// Returns the abandoned lanes of a peer, oldest first.
    pub fn failed_lanes(&self, peer: PeerId) -> &[FailedLane] {
        self.table.get(peer).and_then(|peer| peer.queue.as_ref()).map_or(&[], |queue| &queue.failed_lanes)
    }

    /// Further lanes over which the peer knows us, without failed ones and the one in use.
    pub(in crate::rdm) fn usable_lanes(&self, id: PeerId) -> impl Iterator<Item = PeerId> + '_ {
        let is_up = |peer: &&Peer| peer.state.is_met();
        let known = self.table.get(id).filter(is_up);
        let known = known.and_then(|peer| Some((peer, peer.queue.as_deref()?)));
        known.into_iter().flat_map(move |(peer, queue)| {
            queue.rails.iter().copied().filter(move |&rail| {
                let Some(lane) = self.table.get(rail) else { return false };
                // The peer identifies us there only if one of the two lanes was announced on the other.
                let knows = |of: &PeerQueue| {
                    of.announced.contains(&peer.addr) || queue.announced.contains(&lane.addr)
                };
                let is_own_lane =
                    lane.queue.as_ref().is_some_and(|of| of.further_lane_of == Some(id) && knows(of));
                let is_untried = lane.wire != peer.wire
                    && queue.failed_lanes.iter().all(|failed| failed.wire != lane.wire);
                is_own_lane && is_untried && is_up(&lane) && !self.wires[lane.wire].down
            })
        })
    }

    /// Records `rail` as a further lane of the worker of `main`. False if known already, or impossible.
    pub(in crate::rdm) fn attach(&mut self, main: PeerId, rail: PeerId) -> bool {
        let (Some(first), Some(lane)) = (self.table.get(main), self.table.get(rail)) else {
            return false;
        };
        let of = |peer: &Peer| peer.queue.as_ref().and_then(|queue| queue.further_lane_of);
        let is_up = |id: PeerId| self.table.get(id).is_some_and(|peer| !peer.state.is_failed());
        let known = of(lane) == Some(main);
        if main == rail || known || of(first).is_some_and(is_up) || of(lane).is_some_and(is_up) {
            return false;
        }
        let rails = &mut self.table[main].queue_mut().rails;
        if !rails.contains(&rail) && rails.try_push(rail).is_err() {
            return false;
        }
        self.table[main].queue_mut().further_lane_of = None;
        self.table[rail].queue_mut().further_lane_of = Some(main);
        self.join_worker(rail, main);
        true
    }

    /// Returns the further lane that a peer would fail over to.
    pub(in crate::rdm) fn next_lane(&self, id: PeerId) -> Option<PeerId> {
        self.usable_lanes(id).next()
    }

    /// Whether a peer continues after this error, over another lane or because it has moved already.
    pub(in crate::rdm) fn survives(&self, peer: PeerId, fault: PeerError) -> bool {
        let moved = self.table.get(peer).is_some() && self.table.has_failed_over(peer);
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
        if is_own_lane && opts.cq_data == Some(role::LOST) && self.table.has_failed_over(from) {
            return Next::LaneLost;
        }
        Next::Nothing
    }
}

impl PeerTable {
    /// Whether a peer has left the pair of NICs on which it was met.
    #[inline]
    pub(in crate::rdm) fn has_failed_over(&self, peer: PeerId) -> bool {
        self[peer].wire != self[peer].home
    }

    /// Returns the lane of its worker that a peer uses now.
    pub(in crate::rdm) fn current_lane(&self, peer: &Peer) -> RawAddr {
        if peer.wire == peer.home {
            return peer.addr;
        }
        let rails = peer.queue.as_ref().map_or(&[][..], |queue| &queue.rails);
        let lanes = rails.iter().map(|&rail| &self[rail]);
        lanes.filter(|lane| lane.wire == peer.wire).map(|lane| lane.addr).next().unwrap_or(peer.addr)
    }
}

/// Tells the peer `to` that our lane on which `other` was met is of the same worker as its own.
// [M11.8]
pub(in crate::rdm) fn push_announce_lane<W: Wire>(
    peers: &mut Peers,
    w: &mut W,
    to: PeerId,
    other: PeerId,
) -> Result<(), NotPosted> {
    let is_further = peers.table.get(other).and_then(|peer| peer.queue.as_ref()?.further_lane_of) == Some(to);
    push_announcement(peers, w, to, other, Some(if is_further { role::FURTHER } else { role::FIRST }))
}

/// Tells the peer `to` that we have lost the lane to `other`, the first lane of its worker.
// [M11.9]
pub(in crate::rdm) fn push_lane_failed<W: Wire>(
    peers: &mut Peers,
    w: &mut W,
    to: PeerId,
    other: PeerId,
) -> Result<(), NotPosted> {
    push_announcement(peers, w, to, other, Some(role::LOST))
}

/// Writes the first packet to a peer over its new lane, which lets it follow or report a loss.
// [M11.9]
pub(in crate::rdm) fn push_lane_changed<W: Wire>(
    peers: &mut Peers,
    w: &mut W,
    to: PeerId,
) -> Result<(), NotPosted> {
    push_announcement(peers, w, to, to, None)
}

/// Writes a trigger with the address of our lane on which `other` was met, and its role.
fn push_announcement<W: Wire>(
    peers: &mut Peers,
    w: &mut W,
    to: PeerId,
    other: PeerId,
    role: Option<u64>,
) -> Result<(), NotPosted> {
    let Some(peer) = peers.table.get(other) else { return Ok(()) };
    let mut hdr = rtw::Eager::trigger(*peers.wires.own_addr(peer));
    hdr.opts.cq_data = role;
    let len = header_len(PktType::EAGER_RTW, 0, &hdr.opts);
    // The loss of a trigger does no harm.
    let sent = peers.table.is_unflushed(w, to);
    peers.post(w, to, PktType::EAGER_RTW, len, |slot| hdr.write(slot))?;
    peers.table[to].state.set(PeerFlags::UNCONFIRMED, sent);
    Ok(())
}
