//! PEER_ERROR: reports to the other end that an operation has ended here, if it supports the packet (bit 9).
//! A receiver names the sender's operation; a sender names the receiver's, or its message before it knows
//! that (RDM v4, wire facts 9.3).

use ucs::coll::slots::SlotId;

use crate::rdm::Engine;
use crate::rdm::features::{supports_classes, supports_close, supports_peer_error};
use crate::rdm::ids::PeerId;
use crate::rdm::ids::is_rma_id;
use crate::rdm::io::{NotPosted, Wire};
use crate::rdm::next::Next;
use crate::rdm::op::rma_op::{Job, RmaState};
use crate::rdm::op::tx::TxState;
use crate::rdm::operations::Operations;
use crate::rdm::peers::Peers;
use crate::rdm::peers::limits::note_over_limit;
use crate::rdm::peers::peer::{Ctl, PartialMsg, Peer, PeerTable};
use crate::rdm::peers::state::{OwnHandshake, PeerFlags};
use crate::rdm::pending::Pending;
use crate::rdm::protocol::{Arrival, HandlerKind, Kind, PacketHandler, requester_id};
use crate::rdm::recv::Recvs;
use crate::rdm::recv::sequence::{MsgOrder, msg_order};
use crate::rdm::recv::streams::StreamPiece;
use crate::rdm::rma::Reads;
use crate::rdm::rma::RmaOps;
use crate::rdm::status::{ABORTED, OpError, PeerError};
use crate::rdm::trace::DropReason;
use crate::wire::ctl::{self, ErrorRef};
use crate::wire::rtm::Close;
use crate::wire::{Features, MsgClass, Packet, PktType};

pub(in crate::rdm) const HANDLERS: [PacketHandler; 1] =
    [PacketHandler { ty: PktType::PEER_ERROR, kind: HandlerKind::PeerError, id_use: None }];

/// libfabric's code for an access violation.
const NO_ACCESS: u32 = 4111;

/// Bit of a code, for peers that know our classes: the message is no piece of a stream.
const NO_STREAM: u32 = 1 << 30;

/// libfabric's code for a message without a receive entry.
const NO_ROOM: u32 = 4108;

/// Most errors kept for a peer whose HANDSHAKE is missing. Our HANDSHAKE brings it, so only a hostile peer
/// has more.
const MAX_UNSENT_ERRORS: usize = 4096;

/// How often a peer that was lost is told so unasked.
pub(in crate::rdm) const MAX_LOST_NOTICES: u8 = 4;

/// Sends a PEER_ERROR.
pub(in crate::rdm) fn push<W: Wire>(
    peers: &mut Peers,
    w: &mut W,
    to: PeerId,
    what: ErrorRef,
    code: u32,
) -> Result<(), NotPosted> {
    let hdr = ctl::PeerError {
        what,
        prov_errno: code,
        connid: Some(peers.wires.own_addr(&peers.table[to]).connid),
    };
    peers.post(w, to, PktType::PEER_ERROR, ctl::PeerError::LEN, |slot| hdr.write(slot))?;
    peers.counters.stats.rare.errors_sent += 1;
    Ok(())
}

/// Notifies a peer that is alive but has failed here, or was closed here without an orderly end of its
/// messages: sends a PEER_ERROR that names no operation. Without room it is dropped; the peer's next packet
/// causes another.
// [M11.19]
pub(in crate::rdm) fn notify_lost<W: Wire>(peers: &mut Peers, w: &mut W, id: PeerId) {
    if peers.table[id].is_notifiable() {
        let _ = push(peers, w, id, ErrorRef::Op(Close::ID), ABORTED);
    }
}

/// Notifies peers that failed here but are alive; a silent one would wait for ever. Called at each keepalive.
/// Each is notified four times, since the device may lose a PEER_ERROR.
// [M11.20]
pub fn notify_lost_peers<W: Wire>(peers: &mut Peers, w: &mut W) {
    let mut lost = std::mem::take(&mut peers.lost_notices);
    lost.retain_mut(|(id, left)| {
        if !peers.table.get(*id).is_some_and(Peer::is_notifiable) {
            return false;
        }
        if push(peers, w, *id, ErrorRef::Op(Close::ID), ABORTED).is_ok() {
            *left -= 1;
        }
        *left > 0
    });
    peers.lost_notices = lost;
}

/// Ends the operation or message that a PEER_ERROR names.
// [M10.4]
pub(in crate::rdm) fn on_recv<W: Wire>(
    ops: &mut Operations,
    peers: &mut Peers,
    pending: &mut Pending,
    w: &mut W,
    a: &Arrival<'_>,
) -> Next {
    let Packet::PeerError(hdr) = a.packet else { return Next::Nothing };
    let may_be_stream = hdr.prov_errno & NO_STREAM == 0 && !peers.cfg.withhold.contains(Features::CLASSES);
    let error = match hdr.prov_errno & !NO_STREAM {
        NO_ACCESS => OpError::Access(a.peer),
        code => OpError::Aborted(a.peer, code),
    };
    let known = match hdr.what {
        // The peer has lost us, and will for good.
        ErrorRef::Op(Close::ID) if supports_close(peers.table[a.peer].features) => {
            Some(Next::Fail(PeerError::Gone))
        }
        ErrorRef::Op(id) => {
            let named = (a.peer, SlotId::from_raw(id));
            end_named(ops, peers, pending, w, named, error).then_some(Next::Nothing)
        }
        ErrorRef::Msg(id) | ErrorRef::Skip(id) => {
            if may_be_stream && msg_order(peers.table[a.peer].next_rx, id) != MsgOrder::Past {
                let piece = StreamPiece { tag: None, msg_id: id };
                ops.recvs.end_stream_before(&mut ops.reads, peers, pending, w, a.peer, piece);
            }
            end_message(&mut ops.recvs, &mut ops.reads, peers, pending, w, (a.peer, id), error)
        }
    };
    peers.counters.stats.rare.errors_received += u64::from(known.is_some());
    known.unwrap_or_else(|| peers.drop_packet(a, DropReason::BadId))
}

/// Ends a message, however much of it has arrived; one that has not is skipped. `None`: there is none.
fn end_message<W: Wire>(
    recvs: &mut Recvs,
    reads: &mut Reads,
    peers: &mut Peers,
    pending: &mut Pending,
    w: &mut W,
    (from, msg_id): (PeerId, u32),
    error: OpError,
) -> Option<Next> {
    let order = msg_order(peers.table[from].next_rx, msg_id);
    let peer = &mut peers.table[from];
    match order {
        MsgOrder::Next => {
            peer.next_rx = msg_id.wrapping_add(1);
            let reordering = peer.state.has(PeerFlags::REORDERING);
            return Some(if reordering { Next::InOrder } else { Next::Nothing });
        }
        // A skipped number takes memory, too.
        MsgOrder::Early if !pending.held_packets.has_reorder_room(0, peers.cfg.unexpected_hard_max) => {
            note_over_limit(peers, from);
            return None;
        }
        MsgOrder::Early => {
            peer.state.insert(PeerFlags::REORDERING);
            peer.queue_mut().reorder.skip(&mut pending.held_packets, msg_id);
            return Some(Next::Nothing);
        }
        MsgOrder::Past => {}
    }
    match recvs.find_message(peers, from, msg_id) {
        Some(PartialMsg::Rx(rx)) => recvs.fail_matched(reads, peers, pending, w, rx, error),
        Some(PartialMsg::Unexpected(held)) => {
            let of_stream = recvs.unexpected.get(held).filter(|held| held.kind == Kind::Stream);
            if let Some(tag) = of_stream.map(|held| held.envelope.tag) {
                let piece = StreamPiece { tag: Some(tag), msg_id };
                recvs.end_stream_before(reads, peers, pending, w, from, piece);
            }
            recvs.drop_unexpected(reads, peers, pending, w, held, error);
        }
        None => return None,
    }
    Some(Next::Nothing)
}

/// Ends our operation `id`, if the peer takes part in it and may know the id.
fn end_named<W: Wire>(
    ops: &mut Operations,
    peers: &mut Peers,
    pending: &mut Pending,
    w: &mut W,
    (from, id): (PeerId, SlotId),
    error: OpError,
) -> bool {
    if is_rma_id(id) {
        return ops.rma_ops.end_named(&mut ops.reads, peers, pending, w, (from, id), error);
    }
    if ops.sends.table.get(id).is_some_and(|op| op.peer == from && op.state != TxState::Queued) {
        ops.sends.finish(peers, pending, w, id, Err(error));
        return true;
    }
    let matched = ops.recvs.rxe(id).is_some_and(|(_, rxe)| rxe.envelope.from == from);
    if matched {
        ops.recvs.fail_matched(&mut ops.reads, peers, pending, w, id, error);
    }
    matched
}

/// Tells a peer that has not said what it knows of a message that has ended, once it has.
pub(in crate::rdm) fn defer_error(peers: &mut Peers, to: PeerId, what: ErrorRef, class: MsgClass) {
    let peer = &mut peers.table[to];
    if peer.state.has(PeerFlags::HANDSHAKE_RECEIVED) || !peer.state.is_up() {
        return;
    }
    let code = if class == MsgClass::Stream { ABORTED } else { ABORTED | NO_STREAM };
    let unsent_errors = &mut peer.queue_mut().unsent_errors;
    if unsent_errors.len() < MAX_UNSENT_ERRORS {
        unsent_errors.push((what, code));
    }
}

/// Sends the errors that waited for the peer's HANDSHAKE.
// [M10.3]
pub(in crate::rdm) fn send_unsent_errors<W: Wire>(e: &mut Engine, w: &mut W, to: PeerId) {
    let Some(queue) = &mut e.peers.table[to].queue else { return };
    let unsent_errors = std::mem::take(&mut queue.unsent_errors);
    if supports_peer_error(e.peers.table[to].features) {
        let mask = if supports_classes(e.peers.table[to].features) { !0 } else { !NO_STREAM };
        for (what, code) in unsent_errors {
            e.send_ctl(w, to, Ctl::Error { what, code: code & mask });
        }
    }
}

impl RmaOps {
    pub(in crate::rdm) fn end_named<W: Wire>(
        &mut self,
        reads: &mut Reads,
        peers: &mut Peers,
        pending: &mut Pending,
        w: &mut W,
        (from, id): (PeerId, SlotId),
        error: OpError,
    ) -> bool {
        let Some(rma) = self.table.get(id) else { return false };
        // The peer cannot know of RDMA operations, of unsent ones, or of the id of a response.
        let unknown = rma.in_flight > 0 || rma.detached || rma.state == RmaState::Queued;
        if rma.peer != from || unknown || matches!(rma.job, Job::Response(_)) {
            return false;
        }
        let rma_read = rma.rma_read;
        if rma_read.is_some_and(|rma_read| !reads.stop(w, rma_read, error)) {
            if let Some(rma) = self.table.get_mut(id) {
                rma.detached = true;
            }
            return true;
        }
        self.finish(peers, pending, id, Err(error));
        true
    }
}

impl Peers {
    /// Sends the next waiting error of a peer closed by force.
    pub(in crate::rdm) fn push_unsent_error<W: Wire>(
        &mut self,
        w: &mut W,
        id: PeerId,
    ) -> Option<Result<(), NotPosted>> {
        let supported = supports_peer_error(self.table[id].features);
        let unsent_errors = &mut self.table[id].queue.as_mut()?.unsent_errors;
        if !supported {
            unsent_errors.clear();
        }
        let (what, code) = *unsent_errors.last()?;
        let sent = push(self, w, id, what, code);
        if sent != Err(NotPosted::Full)
            && let Some(queue) = &mut self.table[id].queue
        {
            queue.unsent_errors.pop();
        }
        Some(sent)
    }

    /// Drops a packet that exceeds the memory limit, and closes its sender, which gets an error.
    #[cold]
    pub(in crate::rdm) fn refuse_over_limit(&mut self, a: &Arrival<'_>) {
        note_over_limit(self, a.peer);
        self.drop_packet(a, DropReason::NoRoom);
        self.table.queue_refusal(a, NO_ROOM);
    }

    /// Refuses a packet of a peer closed by force: an error if it waits for an answer, after our HANDSHAKE if
    /// it has not got that.
    // [M10.7]
    #[cold]
    pub(in crate::rdm) fn refuse_closed(&mut self, pending: &mut Pending, a: &Arrival<'_>) {
        if let Packet::Handshake(shake) = a.packet {
            let peer = &mut self.table[a.peer];
            peer.set_features(shake.features());
            if peer.state.own_handshake() == OwnHandshake::NotDue {
                peer.state.set_own_handshake(OwnHandshake::Queued);
            }
        } else {
            self.drop_packet(a, DropReason::PeerFailed);
            let over_limit = self.table[a.peer].fault == Some(PeerError::OverLimit);
            self.table.queue_refusal(a, if over_limit { NO_ROOM } else { ABORTED });
            let peer = &mut self.table[a.peer];
            // Also after a repeated trigger.
            if !peer.state.has(PeerFlags::HANDSHAKE_RECEIVED) {
                peer.state.set_own_handshake(OwnHandshake::Queued);
            }
        }
        pending.schedule(self, a.peer);
    }

    /// Sends PEER_ERROR, if the peer supports it.
    // [M10.3]
    pub(in crate::rdm) fn error_to(&mut self, to: PeerId, what: ErrorRef, why: OpError) -> Next {
        let code = if matches!(why, OpError::Access(_)) { NO_ACCESS } else { ABORTED };
        let peer = &mut self.table[to];
        if !peer.state.has(PeerFlags::HANDSHAKE_RECEIVED) {
            // A request may overtake its sender's HANDSHAKE.
            let waits = peer.state.is_up() && peer.queue_mut().unsent_errors.len() < MAX_UNSENT_ERRORS;
            if waits {
                peer.queue_mut().unsent_errors.push((what, code));
            }
        } else if supports_peer_error(peer.features) {
            return Next::Ctl(Ctl::Error { what, code });
        }
        Next::Nothing
    }

    /// Returns the code that tells a peer why a message of this class is given up.
    pub(in crate::rdm) fn abort_code(&self, to: PeerId, class: MsgClass, why: OpError) -> u32 {
        let code = if matches!(why, OpError::Access(_)) { NO_ACCESS } else { ABORTED };
        let is_told = class != MsgClass::Stream && supports_classes(self.table[to].features);
        if is_told { code | NO_STREAM } else { code }
    }

    /// Refuses a request of a peer: counted here, and reported to a peer that supports PEER_ERROR.
    // [M8.1]
    #[cold]
    pub(in crate::rdm) fn refuse_request(&mut self, a: &Arrival<'_>, why: DropReason) -> Next {
        self.drop_packet(a, why);
        let error = if why == DropReason::BadAccess { OpError::Access(a.peer) } else { OpError::NoResource };
        let Some(id) = requester_id(a.packet) else {
            self.table[a.peer].state.insert(PeerFlags::UNREPORTED_REFUSAL);
            return Next::Nothing;
        };
        self.error_to(a.peer, ErrorRef::Op(id), error)
    }
}

impl PeerTable {
    pub(in crate::rdm) fn forget_partial_msg(&mut self, from: PeerId, msg_id: u32, part: PartialMsg) {
        if let Some(queue) = &mut self[from].queue
            && queue.partial_msgs.get(&msg_id) == Some(&part)
        {
            queue.partial_msgs.remove(&msg_id);
        }
    }

    pub(in crate::rdm) fn queue_refusal(&mut self, a: &Arrival<'_>, code: u32) {
        let Some(id) = requester_id(a.packet).filter(|_| a.order != MsgOrder::Past) else { return };
        let unsent_errors = &mut self[a.peer].queue_mut().unsent_errors;
        if unsent_errors.len() < MAX_UNSENT_ERRORS {
            unsent_errors.push((ErrorRef::Op(id), code));
        }
    }

    pub(in crate::rdm) fn can_send_error(&self, to: PeerId) -> bool {
        let peer = &self[to];
        peer.state.has(PeerFlags::HANDSHAKE_RECEIVED) && supports_peer_error(peer.features)
    }
}
