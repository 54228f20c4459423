//! Conversations: what happens between two workers from their first message until one of them closes its
//! endpoint by force. Each side ends a conversation by one close, a message with its place in the order of
//! messages, so that both know what belongs to the next one (RDM v4 chapter 11, decision 0028).

use crate::rdm::Engine;
use crate::rdm::features::{supports_close, supports_peer_error};
use crate::rdm::ids::{PeerId, Source, WireId};
use crate::rdm::io::Wire;
use crate::rdm::op::rx::Unexpected;
use crate::rdm::peers::Peers;
use crate::rdm::peers::end_ops::EndScope;
use crate::rdm::peers::lanes;
use crate::rdm::peers::peer::{Ctl, PartialMsg, Peer, PeerQueue};
use crate::rdm::peers::state::{Accepted, Lifecycle, OwnHandshake, PeerFlags};
use crate::rdm::peers::unknown_peers::mark_connected;
use crate::rdm::peers::workers;
use crate::rdm::pending::Pending;
use crate::rdm::protocol::{DeliveryComplete, Kind};
use crate::rdm::protocols::zcopy_recv;
use crate::rdm::recv::Recvs;
use crate::rdm::recv::discard_queue::drop_discards;
use crate::rdm::recv::held_packets::HeldPackets;
use crate::rdm::rma::Reads;
use crate::rdm::send::cancel;
use crate::rdm::status::{OpError, PeerError};
use crate::rdm::trace::TraceEvent;
use crate::rdm::types::EngineEvent;
use crate::wire::RawAddr;

/// State of the conversation with a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Conversation {
    /// The number; 0 for the first.
    pub number: u32,
    /// Neither side has closed it.
    pub is_open: bool,
    /// It was closed by force, and another may follow: packets can still go to the peer.
    pub may_follow: bool,
    /// The peer failed here but may be alive: a packet of it is answered by an error.
    pub is_notifiable: bool,
    /// The peer's answer to our close is outstanding.
    pub awaits_close: bool,
}

impl Engine {
    /// Adds a peer, as [`Peers::add`] does. A further lane at this address becomes a peer of its own. With a
    /// peer that was closed by force, another conversation begins.
    pub fn add_peer<W: Wire>(&mut self, w: &mut W, wire: WireId, addr: RawAddr, from: Source) -> PeerId {
        let lane = self.peers.lookup.current(wire, from);
        let lane =
            lane.filter(|lane| self.peers.table.lanes.get(*lane).is_some_and(|lane| lane.addr == addr));
        let peer = match lane.and_then(|lane| lanes::promote(&mut self.peers, &mut self.pending, w, lane)) {
            Some(peer) => peer,
            None => self.peers.add(wire, addr, from),
        };
        if self.peers.table[peer].may_reopen() {
            reopen(&mut self.ops.recvs, &mut self.ops.reads, &mut self.peers, &mut self.pending, w, peer);
        }
        mark_connected(&mut self.peers, peer);
        peer
    }

    /// Closes all peers of a worker: operations end, and the peer is told, so that its own end, too. Its
    /// further packets are dropped until another conversation begins. Messages and stream data that have
    /// arrived can still be received until then, bodies of active messages cannot.
    pub fn force_close<W: Wire>(&mut self, w: &mut W, id: PeerId) {
        let lost = self.peers.first_failed;
        let others = workers::others_of_worker(&self.peers, id);
        force_close_with(self, w, id, PeerError::Gone);
        others.into_iter().for_each(|other| force_close_with(self, w, other, PeerError::Gone));
        // Operations aborted here do not count as lost.
        self.peers.first_failed = lost;
    }
}

/// Closes a peer by force, or because it is over its limit.
pub(in crate::rdm) fn force_close_with<W: Wire>(e: &mut Engine, w: &mut W, id: PeerId, fault: PeerError) {
    if e.peers.table.get(id).is_none_or(Peer::may_reopen) {
        return;
    }
    cancel::abort_all(e, w, id);
    let Some(peer) = e.peers.table.get(id) else { return };
    // After too many messages some are missing: their order is lost.
    let orderly = peer.state.is_up() && fault != PeerError::OverLimit;
    // Refusals go out behind the close.
    let mut unsent_errors = Vec::new();
    if orderly {
        close_up(e, w, id, fault);
    } else {
        // One that has failed before did so for its own reason.
        let before = peer.fault.filter(|_| !peer.state.is_up());
        let queue = e.peers.table[id].queue.as_mut();
        unsent_errors = queue.map(|queue| std::mem::take(&mut queue.unsent_errors)).unwrap_or_default();
        e.on_peer_error(w, id, before.unwrap_or(fault));
    }
    if e.peers.table.get(id).is_some() {
        if !unsent_errors.is_empty() {
            e.peers.table[id].queue_mut().unsent_errors = unsent_errors;
        }
        let state = &mut e.peers.table[id].state;
        if !orderly {
            state.remove(PeerFlags::CLOSE_DUE | PeerFlags::CLOSE_UNCONFIRMED | PeerFlags::AWAITS_CLOSE);
        }
        state.set_life(Lifecycle::Closed);
        e.ops.recvs.drop_all_unexpected(&mut e.ops.reads, &mut e.peers, &mut e.pending, w, id, Kind::AmData);
    }
}

/// Closes a peer that is in use; the order of messages goes on.
fn close_up<W: Wire>(e: &mut Engine, w: &mut W, id: PeerId, fault: PeerError) {
    end(e, w, id, fault, OpError::Peer(id, fault));
    let peer = &mut e.peers.table[id];
    let state = peer.state;
    let met = state.has(PeerFlags::HANDSHAKE_RECEIVED);
    // A peer that has not said what it knows is told once it has.
    let is_told = !met || supports_close(peer.features);
    let has_spoken =
        met || state.accepted() != Accepted::Nothing || state.own_handshake() != OwnHandshake::NotDue;
    let taken = peer.next_rx;
    let closes = &mut peer.queue_mut().closes;
    // Nothing was sent or taken since a close of ours that is still to be sent.
    let is_repeated = closes.due > 0 && closes.awaited > 0;
    if is_told && has_spoken && !is_repeated {
        closes.taken = taken;
        (closes.due, closes.awaited) = (closes.due + 1, closes.awaited + 1);
        peer.state.insert(PeerFlags::CLOSE_DUE | PeerFlags::AWAITS_CLOSE);
    }
    e.pending.schedule(&mut e.peers, id);
}

/// Ends the conversation with a peer that is in use: its operations, here, and what is left of its messages.
fn end<W: Wire>(e: &mut Engine, w: &mut W, id: PeerId, fault: PeerError, error: OpError) {
    let sends: Vec<_> = e.ops.sends.table.iter().filter(|(_, op)| op.peer == id).map(|(op, _)| op).collect();
    sends.into_iter().for_each(|op| e.ops.sends.finish(&mut e.peers, &mut e.pending, w, op, Err(error)));
    drop_discards(&mut e.ops.recvs, &mut e.ops.reads, &mut e.peers, &mut e.pending, w, id);
    e.ops.rma_ops.end_of_peer(&mut e.ops.reads, &mut e.peers, &mut e.pending, w, id, error);
    e.ops.recvs.end_of_peer(&mut e.ops.reads, &mut e.peers, &mut e.pending, w, (id, EndScope::All), error);
    // Their senders are told that they were not received.
    let is_synced = |held: &Unexpected| {
        held.envelope.from == id && held.envelope.protocol.sync() == DeliveryComplete::Yes
    };
    let synced = e.ops.recvs.unexpected.iter().filter(|(_, held)| is_synced(held)).map(|(held, _)| held);
    for held in synced.collect::<Vec<_>>() {
        e.ops.recvs.drop_unexpected(&mut e.ops.reads, &mut e.peers, &mut e.pending, w, held, error);
    }
    zcopy_recv::drop_forwards(&mut e.zcopy_recv, &mut e.peers, &mut e.pending, id);
    let peer = &mut e.peers.table[id];
    peer.state.remove(PeerFlags::SENDS_QUEUED | PeerFlags::UNACKED);
    peer.state.set_life(Lifecycle::Closed);
    peer.fault = Some(fault);
    let queue = peer.queue_mut();
    queue.closes.orderly = true;
    queue.forget_ops(&e.ops.recvs);
    // The other end may wait for these, also to end an operation that is over here.
    let is_kept = |ctl: &Ctl| !matches!(ctl, Ctl::Cts(_) | Ctl::ReadRsp(_) | Ctl::AtomRsp(_));
    queue.ctl.retain(is_kept);
    e.peers.counters.stats.rare.peers_failed += 1;
    e.peers.counters.trace.push(TraceEvent::PeerFailed(id, fault));
    e.pending.events.push_back(EngineEvent::PeerFailed { peer: id, fault });
}

/// Handles a close of the peer, which has come in its place: `taken` is the first of our messages that the
/// peer has not taken. It answers ours, or ends the conversation here.
// [M11.16]
pub(in crate::rdm) fn on_close<W: Wire>(e: &mut Engine, w: &mut W, id: PeerId, (code, taken): (u32, u32)) {
    let peer = &mut e.peers.table[id];
    let closes = &mut peer.queue_mut().closes;
    if let Some(awaited) = closes.awaited.checked_sub(1) {
        closes.awaited = awaited;
        peer.state.set(PeerFlags::AWAITS_CLOSE, awaited > 0);
    } else {
        closes.due += 1;
        peer.state.insert(PeerFlags::CLOSE_DUE);
        if peer.state.is_up() {
            let unfinished =
                peer.outstanding > 0 || peer.state.has(PeerFlags::UNACKED) || peer.next_tx != taken;
            if unfinished {
                e.peers.first_failed.get_or_insert((id, PeerError::Closed));
            }
            end(e, w, id, PeerError::Closed, OpError::Aborted(id, code));
        }
    }
    e.pending.schedule(&mut e.peers, id);
}

/// Begins another conversation with a closed peer.
pub(in crate::rdm) fn reopen<W: Wire>(
    recvs: &mut Recvs,
    reads: &mut Reads,
    peers: &mut Peers,
    pending: &mut Pending,
    w: &mut W,
    id: PeerId,
) {
    for kind in [Kind::Stream, Kind::AmData] {
        recvs.drop_all_unexpected(reads, peers, pending, w, id, kind);
    }
    let peer = &mut peers.table[id];
    peer.state.set_life(Lifecycle::Up);
    peer.state.remove(PeerFlags::STREAM_BROKEN | PeerFlags::AWAITED);
    peer.fault = None;
    let closes = &mut peer.queue_mut().closes;
    closes.conversation = closes.conversation.wrapping_add(1);
    // Connections are of the conversation that is over.
    peers.streams.break_all(id);
    pending.schedule(peers, id);
}

/// Whether a peer whose HANDSHAKE has arrived supports close messages. If not, closes due to it are dropped.
pub(in crate::rdm) fn knows_closes(peers: &mut Peers, id: PeerId) -> bool {
    let peer = &mut peers.table[id];
    let knows = supports_close(peer.features);
    if !knows && let Some(queue) = &mut peer.queue {
        (queue.closes.due, queue.closes.awaited) = (0, 0);
        peer.state.remove(PeerFlags::CLOSE_DUE | PeerFlags::AWAITS_CLOSE);
    }
    knows
}

impl PeerQueue {
    /// Forgets operations that have ended, and where packets of ended messages went.
    pub(in crate::rdm) fn forget_ops(&mut self, recvs: &Recvs) {
        self.sends.clear();
        self.grants.clear();
        self.reads.clear();
        self.partial_msgs.retain(|_, part| match *part {
            PartialMsg::Rx(rx) => recvs.table.get(rx).is_some(),
            PartialMsg::Unexpected(held) => recvs.unexpected.get(held).is_some(),
        });
    }
}

impl Peer {
    /// Gives up the order of messages of a closed peer: no other conversation begins.
    #[cold]
    pub(in crate::rdm) fn lose_order(&mut self, held_packets: &mut HeldPackets) {
        let queue = self.queue_mut();
        queue.closes.orderly = false;
        queue.reorder.clear(held_packets);
    }

    /// Whether another conversation may begin, at the wish of this side.
    pub(in crate::rdm) fn may_reopen(&self) -> bool {
        let orderly = self.queue.as_ref().is_some_and(|queue| queue.closes.orderly);
        self.state.is_closed() && orderly
    }

    /// Whether the peer, with which nothing goes on here, may live, be reached and understand that.
    pub(in crate::rdm) fn is_notifiable(&self) -> bool {
        let is_over =
            self.state.is_failed() && self.state.has(PeerFlags::HANDSHAKE_RECEIVED) && !self.may_reopen();
        let understands = supports_close(self.features) && supports_peer_error(self.features);
        let lives = match self.fault {
            Some(PeerError::OverLimit) => true,
            Some(fault @ PeerError::Device(_)) => !fault.is_lane_failure(),
            _ => false,
        };
        is_over && understands && lives
    }

    /// Whether a message or request of the peer begins another conversation. One that does not know closes
    /// cannot tell an old message from a new one.
    pub(in crate::rdm) fn may_be_reopened_by_peer(&self) -> bool {
        self.may_reopen() && self.keeps_order() && !self.state.has(PeerFlags::AWAITS_CLOSE)
    }

    /// Whether early messages of a peer whose packets are refused are kept until they are in order: a close
    /// may follow.
    pub(in crate::rdm) fn keeps_order(&self) -> bool {
        let may_close = !self.state.has(PeerFlags::HANDSHAKE_RECEIVED) || supports_close(self.features);
        may_close && !self.state.has(PeerFlags::OVER_LIMIT) && (self.state.is_up() || self.may_reopen())
    }
}

impl Conversation {
    /// Returns the conversation with a peer.
    pub fn with(peers: &Peers, id: PeerId) -> Conversation {
        let peer = peers.table.get(id);
        let closes = peer.and_then(|peer| peer.queue.as_ref()).map(|queue| queue.closes);
        Conversation {
            number: closes.map_or(0, |closes| closes.conversation),
            is_open: peer.is_some_and(|peer| peer.state.is_up()),
            may_follow: peer.is_some_and(Peer::may_reopen),
            is_notifiable: peer.is_some_and(Peer::is_notifiable),
            awaits_close: peer.is_some_and(|peer| {
                peer.state.has_any(PeerFlags::AWAITS_CLOSE | PeerFlags::CLOSE_UNCONFIRMED)
            }),
        }
    }
}
