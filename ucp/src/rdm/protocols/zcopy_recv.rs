//! Zero-copy receive mode, receiving end: this worker takes untagged messages without a header, which the
//! device puts into posted receives (RDM v4 4.8; wire facts 11.3, as libfabric 1.22 to 2.5). Our HANDSHAKE
//! names the user receive QP. Messages that come in packets nevertheless are forwarded, one at a time, by a
//! send to ourselves if they fit one packet, and otherwise dropped with a PEER_ERROR.

use std::collections::VecDeque;
use std::time::Duration;

use ucs::coll::slots::{SlotId, Slots};
use ucs::time::Nanos;

use crate::rdm::Engine;
use crate::rdm::features::ours;
use crate::rdm::ids::OpId;
use crate::rdm::ids::WireId;
use crate::rdm::ids::{LaneId, PeerId, Source};
use crate::rdm::io::{NotPosted, Reg, RegAccess, RegError, Wire};
use crate::rdm::next::Next;
use crate::rdm::op::rx::{Envelope, RxOp, RxState};
use crate::rdm::peers::Peers;
use crate::rdm::peers::lane::Lane;
use crate::rdm::peers::limits::queue_ctl;
use crate::rdm::peers::peer::Peer;
use crate::rdm::peers::state::{OwnHandshake, PeerFlags};
use crate::rdm::pending::Pending;
use crate::rdm::protocol::{Arrival, DeliveryComplete, Kind, Protocol};
use crate::rdm::recv::Recvs;
use crate::rdm::recv::held_bytes::HeldBytes;
use crate::rdm::recv::sequence::MsgOrder;
use crate::rdm::stats::Counters;
use crate::rdm::status::{ABORTED, OpError, PeerError, RecvStatus};
use crate::rdm::trace::DropReason;
use crate::rdm::types::{EngineEvent, RecvArgs, RecvKind, Started};
use crate::wire::ctl::ErrorRef;
use crate::wire::rtm::{Rtm, RtmBody};
use crate::wire::{Features, MsgClass, Packet, UserRecvQp};

/// State of the mode.
#[derive(Debug)]
pub(in crate::rdm) struct ZcopyRecv {
    wire: WireId,
    /// User receive QP of this worker.
    pub qp: UserRecvQp,
    /// This worker as a peer of itself.
    me: PeerId,
    regs: Slots<Reg>,
    /// Receives that wait for room in the device.
    waiting: VecDeque<SlotId>,
    /// Number of receives that the device has.
    posted: u32,
    /// Messages to forward, oldest first.
    forwards: VecDeque<(Envelope, HeldBytes)>,
    /// The oldest forward is in flight.
    forwarding: bool,
    /// The oldest forward came back and waits for its delay.
    forward_backed_off: bool,
    /// Last delay of a forward.
    forward_delay: Duration,
}

impl ZcopyRecv {
    /// True if the peer is this worker.
    pub fn is_self(&self, peers: &Peers, to: PeerId) -> bool {
        peers[self.me].from() == peers[to].from()
    }
}

/// Completion of a receive that the device had.
#[derive(Clone, Copy, Debug)]
pub struct UserRecvEnd {
    /// Source of the message.
    pub from: Source,
    /// Bytes of the message, as far as the device says.
    pub len: usize,
    /// Immediate data of the message.
    pub imm: Option<u32>,
    /// Result. [`PeerError::TOO_LONG`]: the message was longer than its receive.
    pub result: Result<(), PeerError>,
}

impl Engine {
    /// Enters zero-copy receive mode, before the first packet: receives are posted to the device of `wire`,
    /// the only one. Returns this worker as a peer of itself, over which messages in packets are forwarded.
    // [M5.12]
    pub fn enable_zcopy_recv(&mut self, wire: WireId, qp: UserRecvQp, from: Source) -> PeerId {
        let own = &self.peers.wires[wire];
        let features = ours(own.rdma).difference(self.peers.cfg.withhold) | Features::USER_RECV_QP;
        let own = own.me;
        let worker = self.peers.table.new_worker();
        let (me, before) = self.peers.table.add(Peer::new(Lane::new(wire, own, from), (own.connid, worker)));
        self.peers.counters.forget(me, before);
        let peer = &mut self.peers.table[me];
        peer.state.set_own_handshake(OwnHandshake::Sent);
        peer.set_features(features);
        peer.state.insert(PeerFlags::USER_QP_ONLY);
        peer.queue_mut().user_qp = Some(qp);
        self.zcopy_recv = Some(Box::new(ZcopyRecv {
            wire,
            qp,
            me,
            regs: Slots::new(),
            waiting: VecDeque::new(),
            posted: 0,
            forwards: VecDeque::new(),
            forwarding: false,
            forward_backed_off: false,
            forward_delay: Duration::ZERO,
        }));
        me
    }

    /// Handles the completion of a receive that the device had.
    // [M5.12]
    pub fn on_user_recv<W: Wire>(&mut self, w: &mut W, wire: WireId, receive: u32, end: UserRecvEnd) {
        let id = SlotId::from_raw(receive);
        let (Some(mode), Some(op)) = (&mut self.zcopy_recv, self.ops.recvs.table.get(id)) else { return };
        mode.posted -= 1;
        mode.forward_delay = Duration::ZERO;
        if std::mem::take(&mut mode.forward_backed_off) {
            let me = mode.me;
            self.pending.backed_off.retain(|&lane| lane != me.into());
        }
        let room = op.buf.len();
        // Messages from our own queue pair are forwarded ones.
        let is_forwarded = end.from == self.peers.table[mode.me].from();
        let forwarded = if is_forwarded { mode.forwards.pop_front() } else { None };
        mode.forwarding &= forwarded.is_none();
        let from = match &forwarded {
            Some((envelope, _)) => envelope.from,
            None => self.peers.at(wire, end.from).unwrap_or(PeerId::NONE),
        };
        let result = match (end.result, &forwarded) {
            (Ok(()) | Err(PeerError::TOO_LONG), Some((envelope, _))) => envelope.status(room),
            (Ok(()), None) => {
                Ok(RecvStatus { len: end.len.min(room), tag: 0, from, cq_data: end.imm.map(u64::from) })
            }
            // The device may not report by how much.
            (Err(PeerError::TOO_LONG), None) => {
                Err(OpError::Truncated { len: end.len.max(room + 1) as u64, room, tag: 0, from })
            }
            (Err(fault), _) => Err(OpError::Peer(from, fault)),
        };
        match forwarded {
            Some((envelope, held)) => {
                self.pending.held_packets.release_unexpected(held);
                self.peers.forget_unexpected(&mut self.pending, envelope.from);
                self.peers.counters.count_received(&envelope, result.is_err());
                self.follow(w, envelope.from, Next::receipt(&envelope));
            }
            None => self.peers.counters.count_user_recv(from, end.len, result.is_err()),
        }
        end_user_recv(&mut self.zcopy_recv, &mut self.ops.recvs, &mut self.pending, w, id, result);
        post_waiting(&mut self.zcopy_recv, &mut self.ops.recvs, &mut self.pending, w);
        if let (Err(fault), Some(mode)) = (end.result, &self.zcopy_recv)
            && fault.is_local_lane()
        {
            // No message reaches the user receive queue pair any more.
            let me = mode.me;
            self.on_peer_error(w, me, fault);
        }
        forward_next(self, w);
    }

    /// Keeps a message until it can be forwarded.
    pub(in crate::rdm) fn queue_forward<W: Wire>(&mut self, w: &mut W, envelope: Envelope, bytes: &[u8]) {
        let Some(mode) = &mut self.zcopy_recv else { return };
        if self.peers.table[mode.me].fault.is_some() {
            return refuse_forward(&mut self.peers, &mut self.pending, &envelope);
        }
        mode.forwards.push_back((envelope, self.pending.held_packets.copy_unexpected(bytes)));
        self.peers.table[envelope.from].unexpected += 1;
        self.pending.held_packets.add_unexpected();
        self.peers.counters.stats.rare.over_limit += u64::from(self.pending.is_over_limit());
        forward_next(self, w);
    }
}

/// Forwards again if the delay of a forwarded message is over.
pub(in crate::rdm) fn forward_now<W: Wire>(e: &mut Engine, w: &mut W, to: LaneId) -> bool {
    let Some(mode) = e.zcopy_recv.as_mut().filter(|mode| to == mode.me.into()) else { return false };
    mode.forward_backed_off = false;
    e.pending.backed_off.retain(|&lane| lane != to);
    forward_next(e, w);
    true
}

/// Handles a forwarded message that came back: another message took the receive. It is sent again after
/// the next receive or a delay.
pub(in crate::rdm) fn forward_again(
    zcopy_recv: &mut Option<Box<ZcopyRecv>>,
    peers: &mut Peers,
    pending: &mut Pending,
    now: Nanos,
    to: PeerId,
) -> bool {
    let Some(mode) = zcopy_recv.as_mut().filter(|mode| mode.me == to) else { return false };
    (mode.forwarding, mode.forward_delay) =
        (false, peers.cfg.retry.after(mode.forward_delay, &mut pending.rng));
    peers.table[to].queue_mut().backoff.until = now + mode.forward_delay;
    if !std::mem::replace(&mut mode.forward_backed_off, true) {
        pending.backed_off.push(to.into());
    }
    true
}

/// Tells the sender of a message that cannot be forwarded, if it waits for an answer.
fn refuse_forward(peers: &mut Peers, pending: &mut Pending, envelope: &Envelope) {
    let from = envelope.from;
    if envelope.protocol.sync() == DeliveryComplete::No || !peers.table.is_up(from) {
        return;
    }
    let next = peers.error_to(from, ErrorRef::Op(envelope.send_id), OpError::Aborted(from, ABORTED));
    if let Next::Ctl(ctl) = next {
        queue_ctl(peers, pending, from, ctl);
    }
}

/// Drops messages to be forwarded when our own queue pair has failed.
#[cold]
pub(in crate::rdm) fn drop_forwards(
    zcopy_recv: &mut Option<Box<ZcopyRecv>>,
    peers: &mut Peers,
    pending: &mut Pending,
    failed: PeerId,
) {
    let Some(mode) = zcopy_recv.as_mut().filter(|mode| mode.me == failed) else { return };
    while let Some((envelope, held)) = mode.forwards.pop_front() {
        pending.held_packets.release_unexpected(held);
        peers.forget_unexpected(pending, envelope.from);
        refuse_forward(peers, pending, &envelope);
    }
}

/// Forwards the oldest message that came in packets to ourselves, if the device has a receive for it.
// [M5.13]
pub(in crate::rdm) fn forward_next<W: Wire>(e: &mut Engine, w: &mut W) {
    let Some(mode) = &mut e.zcopy_recv else { return };
    if mode.forwarding || mode.posted == 0 || mode.forward_backed_off {
        return;
    }
    let Some((_, held)) = mode.forwards.front() else { return };
    let (me, bytes) = (mode.me, held.bytes());
    let sent = w.send_to_user_qp(me, mode.qp, bytes.len(), None, |slot| {
        slot[..bytes.len()].copy_from_slice(bytes);
        bytes.len()
    });
    match sent {
        Ok(_) => mode.forwarding = true,
        Err(NotPosted::Full) => e.pending.schedule(&mut e.peers, me),
        Err(NotPosted::Peer(fault)) => e.on_peer_error(w, me, fault),
    }
}

/// Ends a receive and its registration.
fn end_user_recv<W: Wire>(
    zcopy_recv: &mut Option<Box<ZcopyRecv>>,
    recvs: &mut Recvs,
    pending: &mut Pending,
    w: &mut W,
    id: SlotId,
    result: Result<RecvStatus, OpError>,
) {
    let Some(op) = recvs.table.remove(id) else { return };
    if let (RxState::OnDevice(reg), Some(mode)) = (op.state, zcopy_recv)
        && let Some(reg) = mode.regs.remove(reg)
    {
        w.release(reg);
    }
    match result {
        Ok(status) if w.received(op.user, status, pending.events.is_empty()) => {}
        result => pending.events.push_back(EngineEvent::RecvDone { user: op.user, result }),
    }
}

/// Posts as many waiting receives to the device as it has room for.
fn post_waiting<W: Wire>(
    zcopy_recv: &mut Option<Box<ZcopyRecv>>,
    recvs: &mut Recvs,
    pending: &mut Pending,
    w: &mut W,
) {
    while let Some(mode) = zcopy_recv
        && let Some(&id) = mode.waiting.front()
    {
        let receive = recvs.table.get(id).and_then(|op| match op.state {
            RxState::OnDevice(reg) => Some((op.buf.piece()?, mode.regs.get(reg)?)),
            _ => None,
        });
        let posted = match receive {
            Some((piece, reg)) => w.post_user_recv(mode.wire, piece, reg, id.raw()),
            None => Err(NotPosted::Peer(PeerError::NO_RDMA)),
        };
        match posted {
            Err(NotPosted::Full) => return,
            Ok(()) => {
                mode.waiting.pop_front();
                mode.posted += 1;
            }
            Err(NotPosted::Peer(fault)) => {
                mode.waiting.pop_front();
                let me = mode.me;
                end_user_recv(zcopy_recv, recvs, pending, w, id, Err(OpError::Peer(me, fault)));
            }
        }
    }
}

/// Posts a receive to the device. It cannot be cancelled and selects neither tag nor sender.
// [M5.12] [M5.13]
pub(in crate::rdm) fn post_user_recv<W: Wire>(e: &mut Engine, w: &mut W, r: RecvArgs) -> Started<RecvStatus> {
    let Some(mode) = &mut e.zcopy_recv else { return Started::Failed(OpError::Unsupported) };
    if r.kind != RecvKind::Untagged || r.from.is_some() {
        return Started::Failed(OpError::Unsupported);
    }
    if r.buf.is_empty() {
        return Started::Failed(OpError::Invalid);
    }
    let Some(piece) = r.buf.piece() else { return Started::Failed(OpError::Unsupported) };
    if e.ops.recvs.table.is_full() {
        return Started::Failed(OpError::NoResource);
    }
    let reg = match w.register(mode.wire, piece, RegAccess::LOCAL_WRITE) {
        Ok(reg) => mode.regs.insert(reg),
        Err(RegError::Full) => return Started::Failed(OpError::NoResource),
        Err(RegError::Refused) => return Started::Failed(OpError::Invalid),
    };
    let reg = match reg {
        Ok(reg) => reg,
        Err(reg) => {
            w.release(reg);
            return Started::Failed(OpError::NoResource);
        }
    };
    let op = RxOp::begun(r.buf, r.user, Kind::Untagged);
    let Ok(id) = e.ops.recvs.table.insert(RxOp { state: RxState::OnDevice(reg), ..op }) else {
        return Started::Failed(OpError::NoResource);
    };
    mode.waiting.push_back(id);
    post_waiting(&mut e.zcopy_recv, &mut e.ops.recvs, &mut e.pending, w);
    forward_next(e, w);
    Started::Pending(OpId(id))
}

impl Counters {
    pub(in crate::rdm) fn count_user_recv(&mut self, from: PeerId, len: usize, failed: bool) {
        self.stats.count_received(Protocol::UserQp, len);
        self.stats.rare.truncated += u64::from(failed);
        if from != PeerId::NONE {
            let counters = self.by_peer.of(from);
            (counters.rx_pkts, counters.rx_bytes) = (counters.rx_pkts + 1, counters.rx_bytes + len as u64);
        }
    }
}

/// Handles a message that came in packets.
// [M5.13]
#[cold]
pub(in crate::rdm) fn on_packet<W: Wire>(e: &mut Engine, w: &mut W, a: &Arrival<'_>) -> Next {
    let Packet::Rtm(rtm) = a.packet else { return Next::Nothing };
    let whole =
        matches!(rtm.body, RtmBody::Eager) && rtm.tag.is_none() && rtm.opts.class == MsgClass::Message;
    if !whole {
        e.peers.drop_packet(a, DropReason::Unsupported);
        // Once per message.
        return match sender_id(rtm).filter(|_| a.order != MsgOrder::Past) {
            Some(id) => e.peers.error_to(a.peer, ErrorRef::Op(id), OpError::Unsupported),
            None => Next::Nothing,
        };
    }
    if !e.peers.reserve_unexpected(&mut e.pending, a, rtm) {
        return Next::Nothing;
    }
    let envelope = Envelope {
        len: rtm.payload.len() as u64,
        tag: 0,
        from: a.peer,
        msg_id: rtm.msg_id,
        protocol: if rtm.receipt.is_some() { Protocol::DcEager } else { Protocol::Eager },
        cq_data: rtm.opts.cq_data,
        send_id: rtm.receipt.unwrap_or(0),
    };
    e.peers.counters.stats.rare.forwarded += 1;
    e.queue_forward(w, envelope, rtm.payload);
    Next::Nothing
}

/// Returns the sender's id of the message, if the sender waits for an answer.
fn sender_id(rtm: &Rtm<'_>) -> Option<u32> {
    match rtm.body {
        RtmBody::LongCts { send_id, .. }
        | RtmBody::LongRead { send_id, .. }
        | RtmBody::RuntRead { send_id, .. } => Some(send_id),
        RtmBody::Eager | RtmBody::Medium { .. } => rtm.receipt,
    }
}
