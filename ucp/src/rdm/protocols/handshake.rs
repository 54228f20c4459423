//! HANDSHAKE, and the trigger that requests it (RDM v4, wire facts 3). It is sent once, on the first packet
//! of a peer and before that is handled, or as soon as there is room. If it is lost, the peer's next packet
//! counts as the first.

use crate::rdm::Engine;
use crate::rdm::features::{ours, wants_user_qp};
use crate::rdm::ids::{LaneId, PeerId};
use crate::rdm::io::{Flushed, NotPosted, Wire};
use crate::rdm::next::Next;
use crate::rdm::peers::Peers;
use crate::rdm::peers::lanes;
use crate::rdm::peers::peer::Peer;
use crate::rdm::peers::state::{Accepted, OwnHandshake, PeerFlags};
use crate::rdm::pending::Pending;
use crate::rdm::protocol::{Arrival, HandlerKind, PacketHandler};
use crate::rdm::send::Sends;
use crate::rdm::trace::{DropReason, TraceEvent};
use crate::rdm::types::ReqLen;
use crate::wire::{Features, Handshake, Packet, PktType, UserRecvQp, rtw};

pub(in crate::rdm) const HANDLERS: [PacketHandler; 1] = [handler(PktType::HANDSHAKE)];

const fn handler(ty: PktType) -> PacketHandler {
    PacketHandler { ty, kind: HandlerKind::Handshake, id_use: None }
}

/// Queues our HANDSHAKE on a lane's first packet, or on the first since ours was lost.
// [M3.1]
#[cold]
pub(in crate::rdm) fn queue_handshake<W: Wire>(e: &mut Engine, w: &mut W, id: LaneId) {
    let Some(lane) = e.peers.table.lane_mut(id) else { return };
    lane.state.set_own_handshake(OwnHandshake::Queued);
    if lane.state.has(PeerFlags::BACKED_OFF) {
        return;
    }
    match push(&mut e.peers, e.zcopy_recv.as_ref().map(|mode| mode.qp), w, id) {
        Ok(()) => {}
        Err(NotPosted::Full) => e.pending.schedule(&mut e.peers, id),
        // A peer that left may have sent more: the HANDSHAKE counts as lost.
        Err(NotPosted::Peer(fault)) => e.on_send_error(w, id, fault),
    }
}

/// Sends the queued HANDSHAKE.
pub(in crate::rdm) fn push<W: Wire>(
    peers: &mut Peers,
    user_qp: Option<UserRecvQp>,
    w: &mut W,
    id: LaneId,
) -> Result<(), NotPosted> {
    let (Some(lane), Some(own)) = (peers.table.lane(id), lanes::own_addr(peers, id)) else { return Ok(()) };
    let wire = &peers.wires[lane.wire];
    let mut word = ours(wire.rdma);
    // [M11.3]
    word.set(Features::RAILS, !wire.rail_wires.is_empty());
    // [M5.12]
    word.set(Features::USER_RECV_QP, user_qp.is_some());
    // [M3.11]
    word.set(Features::CONST_HDR_LEN, peers.cfg.req_len == ReqLen::Constant);
    word.remove(peers.cfg.withhold);
    let mut hdr = Handshake::new(word, own.connid, peers.cfg.device_version);
    hdr.user_recv_qp = user_qp.filter(|_| word.contains(Features::USER_RECV_QP));
    peers.post_on(w, id, PktType::HANDSHAKE, hdr.wire_len(), |slot| hdr.write(slot))?;
    if let Some(lane) = peers.table.lane_mut(id) {
        lane.state.drop_queued_handshake();
    }
    Ok(())
}

/// Requests the HANDSHAKE of a lane with an empty write, unless a packet was sent that brings it anyway.
// [M3.8]
pub(in crate::rdm) fn trigger<W: Wire>(
    peers: &mut Peers,
    w: &mut W,
    id: impl Into<LaneId>,
) -> Result<(), NotPosted> {
    let id = id.into();
    match peers.table.lane(id) {
        Some(lane) if lane.state.accepted() == Accepted::Nothing => push_trigger(peers, w, id),
        _ => Ok(()),
    }
}

fn push_trigger<W: Wire>(peers: &mut Peers, w: &mut W, id: LaneId) -> Result<(), NotPosted> {
    let Some(own) = lanes::own_addr(peers, id) else { return Ok(()) };
    let hdr = rtw::Eager::trigger(*own);
    push_harmless(peers, w, id, &hdr)?;
    peers.counters.stats.rare.triggers += 1;
    Ok(())
}

/// True if packets of ours may be in flight on this lane.
fn is_unflushed<W: Wire>(peers: &Peers, w: &mut W, id: LaneId) -> bool {
    let Some(lane) = peers.table.lane(id) else { return false };
    let outstanding = id.first_of().map_or(0, |peer| peers.table[peer].outstanding);
    let ended = outstanding == 0 && !lane.state.has(PeerFlags::BACKED_OFF);
    lane.state.has(PeerFlags::UNCONFIRMED) && !(ended && w.flush_lane(id) == Flushed::Now)
}

/// Sends an empty write. The loss of it is no error; the loss of earlier packets is.
pub(in crate::rdm) fn push_harmless<W: Wire>(
    peers: &mut Peers,
    w: &mut W,
    id: LaneId,
    hdr: &rtw::Eager,
) -> Result<(), NotPosted> {
    let len = crate::wire::header_len(PktType::EAGER_RTW, 0, &hdr.opts);
    let unconfirmed = is_unflushed(peers, w, id);
    peers.post_on(w, id, PktType::EAGER_RTW, len, |slot| hdr.write(slot))?;
    if let Some(lane) = peers.table.lane_mut(id) {
        lane.state.set(PeerFlags::UNCONFIRMED, unconfirmed);
    }
    Ok(())
}

impl Engine {
    /// Iterates over peers whose HANDSHAKE operations wait for, once per operation.
    pub fn awaited_handshakes(&self) -> impl Iterator<Item = PeerId> + '_ {
        let of_sends = self.ops.sends.table.iter().map(|(_, op)| op.peer);
        let of_others = self.ops.rma_ops.table.iter().map(|(_, rma)| rma.peer);
        of_sends.chain(of_others).filter(|&peer| self.peers.awaits_handshake(peer))
    }

    /// Sends an empty write: the wire reports an error if the peer is dead. False: no room.
    pub fn send_keepalive<W: Wire>(&mut self, w: &mut W, lane: impl Into<LaneId>) -> bool {
        let lane = lane.into();
        // A peer closed by force is asked, too: its close may be missing.
        let is_closed = lane.first_of().and_then(|id| self.peers.table.get(id)).is_some_and(Peer::may_reopen);
        if self.peers.table.lane(lane).is_none_or(|lane| lane.state.is_failed() && !is_closed) {
            return true;
        }
        match push_trigger(&mut self.peers, w, lane) {
            Ok(()) => {}
            Err(NotPosted::Full) => return false,
            Err(NotPosted::Peer(fault)) => _ = self.on_keepalive_error(w, lane, fault),
        }
        true
    }
}

impl Peers {
    /// True if an operation waits for a HANDSHAKE of this peer that may have been lost:
    /// [`send_keepalive`](Engine::send_keepalive) brings another.
    pub fn awaits_handshake(&self, peer: PeerId) -> bool {
        let asked = |peer: &Peer| {
            let state = peer.state;
            state.accepted() != Accepted::Nothing
                && !state.has(PeerFlags::HANDSHAKE_RECEIVED)
                && !state.is_failed()
        };
        let unsent_errors =
            |peer: &Peer| peer.queue.as_ref().is_some_and(|queue| !queue.unsent_errors.is_empty());
        self.table.get(peer).is_some_and(|peer| asked(peer) && (peer.outstanding > 0 || unsent_errors(peer)))
    }
}

/// Handles a HANDSHAKE. (`write` handles triggers.)
pub(in crate::rdm) fn on_recv<W: Wire>(
    sends: &mut Sends,
    peers: &mut Peers,
    pending: &mut Pending,
    w: &mut W,
    a: &Arrival<'_>,
) -> Next {
    match a.packet {
        Packet::Handshake(shake) => {
            let peer = &mut peers.table[a.peer];
            peer.set_features(shake.features());
            learn_user_qp(peer, shake);
            if peer.state.has(PeerFlags::USER_QP_ONLY) {
                sends.refuse_announced(peers, pending, w, a.peer);
            }
            peers.counters.trace.push(TraceEvent::Handshake(a.peer));
            Next::HandshakeReceived
        }
        _ => peers.drop_packet(a, DropReason::Unsupported),
    }
}

/// Notes the user receive QP of a peer in zero-copy receive mode. Without one, nothing can be sent to it.
// [M5.10]
fn learn_user_qp(peer: &mut Peer, shake: &Handshake) {
    let wanted = wants_user_qp(peer.features);
    peer.state.set(PeerFlags::USER_QP_ONLY, wanted);
    if wanted {
        peer.queue_mut().user_qp = shake.user_recv_qp;
    }
}
