//! Lane announcements: each side states over both of two lanes that they belong to one worker, and reports a
//! lost or changed lane (RDM v4 chapter 11). Also the packets other than data that a further lane carries.

use crate::rdm::Engine;
use crate::rdm::features::{supports_failover, wants_user_qp};
use crate::rdm::ids::{LaneId, PeerId, Source, WireId};
use crate::rdm::io::{NotPosted, Wire};
use crate::rdm::peers::Peers;
use crate::rdm::peers::lane::FurtherLane;
use crate::rdm::peers::lanes;
use crate::rdm::peers::limits::queue_ctl;
use crate::rdm::peers::peer::Ctl;
use crate::rdm::peers::state::{OwnHandshake, PeerFlags};
use crate::rdm::pending::Pending;
use crate::rdm::protocols::handshake;
use crate::rdm::rails::rail_plan::RailList;
use crate::rdm::status::PeerError;
use crate::rdm::trace::DropReason;
use crate::wire::rtw;
use crate::wire::{Features, Packet, PktType, RawAddr};

/// Relations between two lanes of one worker, as announced on the wire.
pub(in crate::rdm) mod role {
    /// The named lane is the worker's first.
    pub const FIRST: u64 = 0;
    /// The named lane is a further one.
    pub const FURTHER: u64 = 1;
    /// The named lane is the worker's first, on which it has lost the peer.
    pub const LOST: u64 = 2;
}

/// Handles a packet on a further lane. Returns the peer that it is for: granted data are for the lane's peer,
/// and with a request the other side opens a conversation of its own.
// [M11.11]
pub(in crate::rdm) fn on_packet<W: Wire>(
    peers: &mut Peers,
    pending: &mut Pending,
    w: &mut W,
    id: LaneId,
    (ty, packet): (PktType, &Packet<'_>),
) -> Option<PeerId> {
    let lane = peers.table.lanes.get_mut(id)?;
    if lane.state.owes_handshake() {
        lane.state.set_own_handshake(OwnHandshake::Queued);
        drive(peers, pending, w, id);
    }
    let lane = peers.table.lanes.get_mut(id)?;
    match packet {
        Packet::CtsData(..) if lane.peer.is_none() => {
            let from = lane.from();
            peers.counters.count_drop(DropReason::BadId, ty.0, from);
            None
        }
        Packet::CtsData(..) => lane.peer,
        // A worker in zero-copy receive mode has one NIC: it is a peer.
        Packet::Handshake(shake) if !wants_user_qp(shake.features()) => {
            lane.set_features(shake.features());
            announce_lanes(peers, pending, w, id);
            None
        }
        Packet::Rtw(rtw) if rtw.is_trigger() => None,
        _ => {
            let from = lane.from();
            let peer = lanes::promote(peers, pending, w, id);
            if peer.is_none() {
                peers.counters.count_drop(DropReason::NoPath, ty.0, from);
            }
            peer
        }
    }
}

/// Sends what waits on a further lane: our HANDSHAKE, then announcements.
pub(in crate::rdm) fn drive<W: Wire>(
    peers: &mut Peers,
    pending: &mut Pending,
    w: &mut W,
    id: LaneId,
) -> usize {
    let mut done = 0;
    while let Some(lane) = peers.table.lanes.get(id).filter(|lane| lane.state.is_up()) {
        let sent = if lane.state.has(PeerFlags::BACKED_OFF) {
            break;
        } else if lane.state.is_handshake_queued() {
            handshake::push(peers, None, w, id)
        } else if lane.announces_first || lane.announces_loss {
            push_on_lane(peers, w, id)
        } else {
            break;
        };
        match sent {
            Ok(()) => done += 1,
            Err(NotPosted::Full) => {
                pending.schedule(peers, id);
                break;
            }
            Err(NotPosted::Peer(fault)) => lanes::fail(peers, pending, id, fault),
        }
    }
    done
}

/// Returns what was announced over a lane.
fn announced(peers: &Peers, id: LaneId) -> &[RawAddr] {
    match id.first_of() {
        Some(peer) => peers.table[peer].queue.as_ref().map_or(&[], |queue| &queue.announced),
        None => peers.table.lanes.get(id).map_or(&[], |lane| &lane.announced),
    }
}

/// Notes an address that was announced over a lane. False: there are too many.
pub(in crate::rdm) fn note_announced(peers: &mut Peers, id: LaneId, addr: RawAddr) -> bool {
    let list = match id.first_of() {
        Some(peer) => &mut peers.table[peer].queue_mut().announced,
        None => match peers.table.lanes.get_mut(id) {
            Some(lane) => &mut lane.announced,
            None => return false,
        },
    };
    list.contains(&addr) || list.try_push(addr).is_ok()
}

/// Handles a lane's claim that another lane is of the same worker. It counts once both have made it.
pub(in crate::rdm) fn on_lane_announced<W: Wire>(
    e: &mut Engine,
    w: &mut W,
    (wire, lane): (WireId, LaneId),
    addr: RawAddr,
    role: u64,
) {
    if !note_announced(&mut e.peers, lane, addr) {
        return;
    }
    let peer = e.peers.table.lanes.get(lane).and_then(|lane| lane.peer);
    let peer = peer.filter(|peer| e.peers.table[*peer].addr == addr);
    if let (role::LOST, Some(peer)) = (role, peer) {
        return e.on_send_error(w, peer, PeerError::Gone);
    }
    let rail_wires = &e.peers.wires[wire].rail_wires;
    let other = rail_wires.iter().find_map(|wire| e.peers.lookup.known(*wire, Source::from(&addr)));
    let known = |id: LaneId| e.peers.table.lane(id).map(|lane| lane.addr);
    let Some(other) = other.filter(|other| known(*other) == Some(addr)) else { return };
    if known(lane).is_none_or(|me| !announced(&e.peers, other).contains(&me)) {
        return;
    }
    let (first, further) = match role {
        role::FIRST => (other, lane),
        role::FURTHER => (lane, other),
        _ => return,
    };
    // The other end has begun a conversation there, whose first request may still be on its way.
    let is_free = e.peers.table.lanes.get(first).is_some_and(|lane| lane.peer.is_none());
    let peer = match is_free {
        true => lanes::promote(&mut e.peers, &mut e.pending, w, first),
        false => first.first_of(),
    };
    if let Some(peer) = peer.filter(|_| further.is_further())
        && e.peers.attach(peer, further)
    {
        announce_lanes(&mut e.peers, &mut e.pending, w, further);
    }
}

/// Tells a lane's worker, over both lanes of each pair, that our other lane is of the same worker.
// [M11.8]
pub(in crate::rdm) fn announce_lanes<W: Wire>(
    peers: &mut Peers,
    pending: &mut Pending,
    w: &mut W,
    lane: LaneId,
) {
    let Some(id) = peers.table.peer_of(lane) else { return };
    let Some(peer) = peers.table.get(id).filter(|peer| peer.state.has(PeerFlags::HANDSHAKE_RECEIVED)) else {
        return;
    };
    let ours = Features::CONNID.difference(peers.cfg.withhold);
    if !supports_failover(ours, peer.features) || peer.has_failed_over() || peer.state.is_failed() {
        return;
    }
    let lanes: RailList<LaneId> = match lane.is_further() {
        true => [lane].into_iter().collect(),
        false => peer.lanes().iter().copied().collect(),
    };
    for lane in lanes {
        if peers.table.own_lane(id, lane).is_some_and(|lane| lane.state.has(PeerFlags::HANDSHAKE_RECEIVED)) {
            if !peers.table.may_send_ctl(id) || push_announce_lane(peers, w, id, lane).is_err() {
                queue_ctl(peers, pending, id, Ctl::AnnounceLane(lane));
            }
            announce_on(peers, pending, w, lane, |lane| &mut lane.announces_first);
        }
    }
}

/// Announces something over a further lane.
pub(in crate::rdm) fn announce_on<W: Wire>(
    peers: &mut Peers,
    pending: &mut Pending,
    w: &mut W,
    id: LaneId,
    what: fn(&mut FurtherLane) -> &mut bool,
) {
    if let Some(lane) = peers.table.lanes.get_mut(id).filter(|lane| lane.state.is_up()) {
        *what(lane) = true;
        drive(peers, pending, w, id);
    }
}

/// Tells a peer over its further lanes that we lost the way to it and have no other.
// [M11.9]
pub(in crate::rdm) fn announce_lane_failure<W: Wire>(
    peers: &mut Peers,
    pending: &mut Pending,
    w: &mut W,
    id: PeerId,
) {
    let lanes: RailList<LaneId> = peers.table[id].lanes().iter().copied().collect();
    for lane in lanes {
        if peers.table.own_lane(id, lane).is_some_and(|lane| lane.state.is_met()) {
            announce_on(peers, pending, w, lane, |lane| &mut lane.announces_loss);
        }
    }
}

/// Tells a peer over its first lane of our end of a further one.
// [M11.8]
pub(in crate::rdm) fn push_announce_lane<W: Wire>(
    peers: &mut Peers,
    w: &mut W,
    to: PeerId,
    lane: LaneId,
) -> Result<(), NotPosted> {
    push_announcement(peers, w, to.into(), lane, Some(role::FURTHER))
}

/// Tells a peer over a further lane of our end of the first one, or that we have lost that.
// [M11.8] [M11.9]
pub(in crate::rdm) fn push_on_lane<W: Wire>(
    peers: &mut Peers,
    w: &mut W,
    id: LaneId,
) -> Result<(), NotPosted> {
    let Some(lane) = peers.table.lanes.get(id) else { return Ok(()) };
    let (first, role) = (lane.announces_first, if lane.announces_first { role::FIRST } else { role::LOST });
    if let Some(peer) = lane.peer {
        push_announcement(peers, w, id, peer.into(), Some(role))?;
    }
    if let Some(lane) = peers.table.lanes.get_mut(id) {
        *(if first { &mut lane.announces_first } else { &mut lane.announces_loss }) = false;
    }
    Ok(())
}

/// Writes the first packet to a peer over its new lane, which lets it follow or report a loss.
// [M11.9]
pub(in crate::rdm) fn push_lane_changed<W: Wire>(
    peers: &mut Peers,
    w: &mut W,
    to: PeerId,
) -> Result<(), NotPosted> {
    push_announcement(peers, w, to.into(), to.into(), None)
}

/// Writes a trigger with the address of our end of the lane `named`, and its role.
fn push_announcement<W: Wire>(
    peers: &mut Peers,
    w: &mut W,
    to: LaneId,
    named: LaneId,
    role: Option<u64>,
) -> Result<(), NotPosted> {
    let Some(own) = lanes::own_addr(peers, named) else { return Ok(()) };
    let mut hdr = rtw::Eager::trigger(*own);
    hdr.opts.cq_data = role;
    handshake::push_harmless(peers, w, to, &hdr)
}
