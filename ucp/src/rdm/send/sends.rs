//! Sends: starting, cancelling and completion. Called by `api` and by protocols; `drive` continues others.

use ucs::coll::slots::SlotId;

use crate::rdm::Engine;
use crate::rdm::features::{ReqHdr, supports_classes};
use crate::rdm::ids::OpId;
use crate::rdm::ids::{LaneId, PeerId, TxToken};
use crate::rdm::io::{NotPosted, Posted, Reg, Wire};
use crate::rdm::peers::Peers;
use crate::rdm::peers::lane::Lane;
use crate::rdm::peers::peer::PeerTable;
use crate::rdm::peers::wires::Wires;
use crate::rdm::pending::Pending;
use crate::rdm::send::Sends;

use crate::rdm::op::tx::{TxOp, TxState};
use crate::rdm::peers::peer::Peer;
use crate::rdm::peers::state::{Accepted, PeerFlags};
use crate::rdm::protocol::{DeliveryComplete, Kind, Protocol, SendProgress};
use crate::rdm::protocols::{direct, eager, handshake, longread};
use crate::rdm::status::OpError;
use crate::rdm::status::PeerError;
use crate::rdm::types::{EngineEvent, FirstContact, SendArgs, Started};
use crate::wire::{Features, MsgClass, Opts, PktType, RawAddr};

/// Queued sends between two checks for room; a check without success costs as much as queueing.
const ROOM_CHECK_INTERVAL: u32 = 8;

impl Engine {
    /// Starts a send of this class. An eager one that finds room is complete at once; others wait in the
    /// engine and go on in [`resume`](Self::resume). Classes other than [`MsgClass::Message`] are tagged and
    /// wait for the peer's HANDSHAKE.
    // HOT
    #[inline]
    pub fn send_class<W: Wire>(
        &mut self,
        w: &mut W,
        to: PeerId,
        class: MsgClass,
        s: SendArgs,
    ) -> Started<()> {
        if self.peers.table.get(to).is_none() {
            return Started::Failed(OpError::Unknown);
        }
        if send_now(&mut self.peers, w, to, class, &s) {
            Started::Done(())
        } else {
            send_queued(self, w, to, class, s)
        }
    }

    /// Number of sends that may begin before one ends.
    #[inline]
    pub fn room_for_sends(&self) -> usize {
        self.ops.sends.table.room()
    }

    /// Reports the end of an RDMA operation that was accepted as pending with this token.
    // HOT
    #[inline]
    pub fn on_sent<W: Wire>(&mut self, w: &mut W, token: TxToken, result: Result<(), PeerError>) {
        match token {
            TxToken::RmaRead { id, part } => longread::on_read(self, w, id, part, result),
            TxToken::RmaOp { id, part } => {
                let next = direct::on_end(
                    &mut self.ops.rma_ops,
                    &mut self.peers,
                    &mut self.pending,
                    w,
                    id,
                    part,
                    result,
                );
                self.fail_lost_lanes(w);
                if let Some((peer, next)) = next {
                    self.follow(w, peer, next);
                }
                self.pending.release_regs(w);
            }
            TxToken::Packet => {}
        }
    }
}

#[inline(never)]
fn send_queued<W: Wire>(e: &mut Engine, w: &mut W, to: PeerId, class: MsgClass, s: SendArgs) -> Started<()> {
    let peer = &e.peers.table[to];
    if peer.state.has(PeerFlags::SENDS_QUEUED) && peer.outstanding.is_multiple_of(ROOM_CHECK_INTERVAL) {
        // There may be room by now: a sender that only queues would stay on the slow path for good.
        e.drive(w, to);
        if send_now(&mut e.peers, w, to, class, &s) {
            return Started::Done(());
        }
    }
    let peer = &mut e.peers.table[to];
    if let Some(fault) = peer.fault {
        return Started::Failed(OpError::Peer(to, fault));
    }
    let met = peer.state.has(PeerFlags::HANDSHAKE_RECEIVED);
    let refused = match class {
        MsgClass::Message => false,
        _ => s.tag.is_none() || met && !supports_classes(peer.features),
    };
    if refused {
        return Started::Failed(OpError::Unsupported);
    }
    let protocol = match (s.protocol, s.sync) {
        (protocol, DeliveryComplete::No) if protocol != Protocol::UserQp => protocol,
        (protocol, sync) => protocol.with(sync),
    };
    let op = TxOp {
        buf: s.buf,
        user: s.user,
        tag: s.tag,
        class,
        cq_data: s.cq_data,
        sent: 0,
        window: 0,
        peer: to,
        msg_id: 0,
        recv_id: None,
        protocol,
        sync: s.sync,
        reg: None,
        rails: None,
        state: TxState::Queued,
        in_data_queue: false,
    };
    let Ok(id) = e.ops.sends.table.insert(op) else { return Started::Failed(OpError::NoResource) };
    peer.outstanding += 1;
    peer.queue_mut().sends.push_back(id);
    if peer.state.has(PeerFlags::SENDS_QUEUED) {
        e.pending.schedule(&mut e.peers, to);
        return Started::Pending(OpId(id));
    }
    peer.state.insert(PeerFlags::SENDS_QUEUED);
    e.ops.sends.in_call = Some((id, None));
    e.drive(w, to);
    match e.ops.sends.in_call.take() {
        Some((_, Some(Ok(())))) => Started::Done(()),
        Some((_, Some(Err(error)))) => Started::Failed(error),
        _ => Started::Pending(OpId(id)),
    }
}

impl Sends {
    /// Ends the peer's right to read a message, by [`Wire::release`] or [`Wire::revoke`].
    pub(in crate::rdm) fn revoke_regs<W: Wire>(
        &mut self,
        peers: &mut Peers,
        w: &mut W,
        id: SlotId,
        end: fn(&mut W, Reg),
    ) {
        let Some(op) = self.table.get_mut(id) else { return };
        let Some(reg) = op.reg.take() else { return };
        end(w, reg);
        op.rails.take().into_iter().flat_map(|rails| *rails).for_each(|(_, reg)| end(w, reg));
        if let Some(queue) = &mut peers.table[op.peer].queue {
            queue.exposed -= 1;
        }
    }

    /// Ends a send. Its ids in queues become stale.
    // [M7.3]
    pub(in crate::rdm) fn finish<W: Wire>(
        &mut self,
        peers: &mut Peers,
        pending: &mut Pending,
        w: &mut W,
        id: SlotId,
        result: Result<(), OpError>,
    ) {
        match result {
            Ok(()) => self.revoke_regs(peers, w, id, W::release),
            // The peer may still read it.
            Err(_) => self.revoke_regs(peers, w, id, W::revoke),
        }
        let Some(op) = self.table.remove(id) else { return };
        let result = result.and_then(|()| match op.buf.error() {
            None => Ok(()),
            Some(error) => Err(OpError::Datatype(error)),
        });
        peers.table[op.peer].outstanding -= 1;
        match &mut self.in_call {
            Some((call_id, call_result)) if *call_id == id => *call_result = Some(result),
            _ => pending.events.push_back(EngineEvent::SendDone { user: op.user, result }),
        }
    }

    /// Notes that the wire has taken the last byte of a send: it is complete unless it waits for a RECEIPT.
    pub(in crate::rdm) fn all_sent<W: Wire>(
        &mut self,
        peers: &mut Peers,
        pending: &mut Pending,
        w: &mut W,
        id: SlotId,
    ) {
        let Some(op) = self.table.get_mut(id) else { return };
        op.state = TxState::AllSent;
        op.sent = op.buf.len();
        let (protocol, len, to) = (op.protocol, op.buf.len(), op.peer);
        peers.counters.count_sent(to, protocol, len);
        if protocol.sync() == DeliveryComplete::No {
            self.finish(peers, pending, w, id, Ok(()));
        }
    }
}

impl Pending {
    /// Schedules a peer, or what is to be sent on a further lane, for [`resume`](Self::resume).
    #[inline]
    pub(in crate::rdm) fn schedule(&mut self, peers: &mut Peers, id: impl Into<LaneId>) {
        let id = id.into();
        if let Some(lane) = peers.table.lane_mut(id).filter(|lane| !lane.state.has(PeerFlags::SCHEDULED)) {
            lane.state.insert(PeerFlags::SCHEDULED);
            self.scheduled.push_back(id);
        }
    }
}

impl Peers {
    /// Counts a posted packet and updates the peer's flags.
    // HOT
    #[inline(always)]
    pub(in crate::rdm) fn posted(
        &mut self,
        to: PeerId,
        ty: PktType,
        sent: Result<Posted, NotPosted>,
    ) -> Result<(), NotPosted> {
        match sent {
            Ok(_) => {
                self.counters.stats.tx_pkts[usize::from(ty.0)] += 1;
                self.counters.by_peer.of(to).tx_pkts += 1;
                note_posted(&mut self.table[to], ty);
                Ok(())
            }
            Err(refused) => {
                self.counters.stats.rare.full += u64::from(refused == NotPosted::Full);
                Err(refused)
            }
        }
    }

    /// Counts a packet posted on a lane, and updates the lane's state.
    pub(in crate::rdm) fn posted_on(
        &mut self,
        id: LaneId,
        ty: PktType,
        sent: Result<Posted, NotPosted>,
    ) -> Result<(), NotPosted> {
        if let Some(peer) = id.first_of() {
            return self.posted(peer, ty, sent);
        }
        let Some(lane) = self.table.lanes.get_mut(id) else { return Ok(()) };
        match sent {
            Ok(_) => {
                note_posted(lane, ty);
                self.counters.stats.tx_pkts[usize::from(ty.0)] += 1;
                if let Some(peer) = lane.peer {
                    self.counters.by_peer.of(peer).tx_pkts += 1;
                }
                Ok(())
            }
            Err(refused) => {
                self.counters.stats.rare.full += u64::from(refused == NotPosted::Full);
                Err(refused)
            }
        }
    }

    /// Posts one packet on a lane.
    pub(in crate::rdm) fn post_on<W: Wire, F: FnOnce(&mut [u8]) -> usize>(
        &mut self,
        w: &mut W,
        id: LaneId,
        ty: PktType,
        max: usize,
        fill: F,
    ) -> Result<(), NotPosted> {
        let sent = w.send(id, max, TxToken::Packet, fill);
        self.posted_on(id, ty, sent)
    }

    /// Posts one packet.
    // HOT
    #[inline(always)]
    pub(in crate::rdm) fn post<W: Wire, F: FnOnce(&mut [u8]) -> usize>(
        &mut self,
        w: &mut W,
        to: PeerId,
        ty: PktType,
        max: usize,
        fill: F,
    ) -> Result<(), NotPosted> {
        let sent = w.send(to.into(), max, TxToken::Packet, fill);
        self.posted(to, ty, sent)
    }
}

/// Notes a packet that the wire has accepted.
// HOT
// [M10.2]
#[inline(always)]
fn note_posted(lane: &mut Lane, ty: PktType) {
    let is_data = ty >= PktType::EAGER_MSGRTM || ty == PktType::CTSDATA;
    let accepted = if ty == PktType::HANDSHAKE { Accepted::Handshake } else { Accepted::Packets };
    lane.state.note_posted(accepted, is_data);
}

/// True if an untagged message must wait for the peer's HANDSHAKE.
// HOT
#[inline(always)]
pub(in crate::rdm) fn waits_for_handshake(peers: &Peers, peer: &Peer) -> bool {
    peers.cfg.first_contact == FirstContact::Wait && !peer.state.has(PeerFlags::HANDSHAKE_RECEIVED)
}

/// Sends in one packet within the call, if possible.
// HOT
#[inline]
pub(in crate::rdm) fn send_now<W: Wire>(
    peers: &mut Peers,
    w: &mut W,
    to: PeerId,
    class: MsgClass,
    s: &SendArgs,
) -> bool {
    let peer = &peers.table[to];
    let plain = s.protocol == Protocol::Eager && s.sync == DeliveryComplete::No;
    let accepted = match class {
        MsgClass::Message => s.tag.is_some() || !waits_for_handshake(peers, peer),
        _ => supports_classes(peer.features),
    };
    plain && accepted && !peer.state.is_blocked() && eager::start(peers, w, to, class, s)
}

/// Checks what needs the peer's HANDSHAKE: delivery complete and our own classes need its consent, and
/// untagged messages may wait for it. `None`: go on.
// [M3.7] [M6.4] [M11.1]
pub(in crate::rdm) fn may_start<W: Wire>(
    peers: &mut Peers,
    w: &mut W,
    id: PeerId,
    protocol: Protocol,
    kind: Kind,
) -> Option<SendProgress> {
    let waits = kind == Kind::Untagged && waits_for_handshake(peers, &peers.table[id]);
    let needs = match (kind, protocol.sync()) {
        (Kind::Tagged | Kind::Untagged, DeliveryComplete::No) if !waits => return None,
        (Kind::Tagged | Kind::Untagged, DeliveryComplete::No) => Features::empty(),
        (Kind::Tagged | Kind::Untagged, DeliveryComplete::Yes) => Features::DELIVERY_COMPLETE,
        (_, DeliveryComplete::No) => Features::CLASSES,
        (_, DeliveryComplete::Yes) => Features::CLASSES.union(Features::DELIVERY_COMPLETE),
    };
    let peer = &peers.table[id];
    if !peer.state.has(PeerFlags::HANDSHAKE_RECEIVED) {
        return Some(match handshake::trigger(peers, w, id) {
            Ok(()) => SendProgress::AwaitHandshake,
            Err(refused) => refused.into(),
        });
    }
    (!peer.features.contains(needs)).then_some(SendProgress::Fail(OpError::Unsupported))
}

impl PeerTable {
    /// True if a control packet may be sent to the peer now.
    // HOT
    #[inline]
    pub(in crate::rdm) fn may_send_ctl(&self, id: PeerId) -> bool {
        let peer = &self[id];
        let first = peer.queue.as_ref().is_none_or(|queue| queue.ctl.is_empty());
        first && peer.state.takes_ctl()
    }
}

impl Wires {
    /// Returns our address on the home wire of this peer.
    #[inline]
    pub(in crate::rdm) fn own_addr(&self, peer: &Peer) -> &RawAddr {
        &self[peer.home].me
    }

    /// Returns the optional headers of a REQ packet (rule R5 of the wire facts).
    // HOT
    #[inline]
    pub(in crate::rdm) fn req_opts(&self, peer: &Peer, cq_data: Option<u64>) -> Opts {
        let own = self.own_addr(peer);
        match peer.hdr() {
            ReqHdr::RawAddr => Opts { raw_addr: Some(*own), cq_data, ..Opts::NONE },
            ReqHdr::Connid => Opts { cq_data, connid: Some(own.connid), ..Opts::NONE },
            ReqHdr::Bare => Opts { cq_data, ..Opts::NONE },
        }
    }
}

#[cfg(test)]
impl Engine {
    /// Starts a send of a message of the program.
    pub fn send<W: Wire>(&mut self, w: &mut W, to: PeerId, s: SendArgs) -> Started<()> {
        self.send_class(w, to, MsgClass::Message, s)
    }
}
