//! How the source of a packet is resolved to a lane, and how peers are added. Only [`identify`] is on the hot
//! path.

use crate::rdm::Engine;
use crate::rdm::ids::{LaneId, PeerId, Source, WireId};
use crate::rdm::io::Wire;
use crate::rdm::peers::Peers;
use crate::rdm::peers::lane::{FurtherLane, Lane};
use crate::rdm::peers::peer::Peer;
use crate::rdm::peers::unknown_peers::Admission;
use crate::rdm::peers::workers;
use crate::rdm::rails::failover;
use crate::rdm::status::PeerError;
use crate::rdm::trace::{DropReason, TraceEvent};
use crate::rdm::types::EngineEvent;
use crate::wire::{Packet, RawAddr};

impl Peers {
    // [M2.5]
    pub(in crate::rdm) fn add_new(&mut self, wire: WireId, addr: RawAddr, from: Source) -> PeerId {
        let own_connid = self.wires[wire].me.connid;
        let worker = workers::worker_at(self, wire, &addr);
        let mut peer = Peer::new(Lane::new(wire, addr, from), (own_connid, worker));
        peer.next_rx = self.unknown_peers.next_rx(wire, from, addr.connid);
        let (new, before) = self.table.add(peer);
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
}

/// Whether a packet with this source may be of the worker at an address. A device may not know the GID of the
/// source, and gives none then.
// [M2.6]
fn may_be_of(addr: &RawAddr, from: Source) -> bool {
    let named = Source::from(addr);
    named.port == from.port && (named.node == from.node || from.node == 0)
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
    if !may_be_of(&addr, from) {
        return Err(DropReason::WrongAddress);
    }
    if e.peers.table.len() + e.peers.table.lanes.len() >= e.peers.cfg.max_peers as usize {
        return Err(DropReason::NoPath);
    }
    match e.peers.unknown_peers.admit(&e.peers.table, e.peers.cfg.max_unknown_peers as usize) {
        Admission::Granted => {}
        Admission::Refused => return Err(DropReason::NoPath),
        Admission::RefusedAnew => {
            let limit = e.peers.cfg.max_unknown_peers;
            e.pending.events.push_back(EngineEvent::UnknownPeersRefused { limit });
            return Err(DropReason::NoPath);
        }
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
        e.peers.unknown_peers.note(lane);
        return Ok(lane);
    }
    let peer = e.peers.add_new(wire, addr, from);
    let connected = w.connect(peer.into(), from, &addr);
    if connected == Err(PeerError::Unreachable) {
        e.remove_peer(w, peer);
        return Err(DropReason::NoPath);
    }
    e.peers.unknown_peers.note(peer.into());
    e.peers.counters.stats.rare.peers_found += 1;
    e.peers.counters.trace.push(TraceEvent::PeerFound(peer));
    // It may have sent, flushed and exited: its messages have arrived.
    if let Err(fault) = connected {
        e.fail_peer(w, peer, fault);
    }
    Ok(peer.into())
}

/// Resolves the lane of a packet. Unknown senders that bring their address become peers.
// HOT
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
