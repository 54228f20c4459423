//! The fast path of short tagged messages, both ends of it: of known peers, in order, in one packet with the
//! usual headers. Everything else takes the general path, untouched.

use crate::rdm::features::supports_classes;
use crate::rdm::ids::{PeerId, Source, WireId};
use crate::rdm::io::{ReceiveSink, Wire};
use crate::rdm::op::Payload;
use crate::rdm::op::received_ranges::ReceivedRanges;
use crate::rdm::op::rx::{Envelope, RecvRole};
use crate::rdm::peers::Peers;
use crate::rdm::peers::workers::WorkerSender;
use crate::rdm::pending::Pending;
use crate::rdm::protocol::{Kind, Protocol};
use crate::rdm::recv::Recvs;
use crate::rdm::recv::receives::Receives;
use crate::rdm::send::message::{CommonFields, MessagePacket};
use crate::rdm::status::{OpError, RecvStatus};
use crate::rdm::types::EngineEvent;
use crate::wire::rtm::Short;
use crate::wire::{MsgClass, Opts, PktType};

use super::header;

impl Peers {
    /// Sends a short tagged message without a receipt to a peer that is known, has not failed and has nothing
    /// queued. False: that is not possible at once, and nothing has happened.
    // HOT
    // [M4.1] [M4.2]
    #[inline(always)]
    pub fn send_short<W: Wire, B: Payload>(
        &mut self,
        w: &mut W,
        to: PeerId,
        (class, tag): (MsgClass, u64),
        body: B,
    ) -> bool {
        let Some(peer) = self.table.get_mut(to) else { return false };
        // The general path sends the first request to a peer and sets its flags.
        if !peer.state.is_ready_for_short() || class != MsgClass::Message && !supports_classes(peer.features)
        {
            return false;
        }
        let max = Short::wire_len() + body.size();
        // Reads the peer when the packet is written, so that fewer values are kept until then.
        let fields = || {
            let opts = Opts::connid(peer.own_connid).of_class(class);
            header(CommonFields { msg_id: peer.next_tx, tag: Some(tag), opts }, None)
        };
        if body.has_callbacks()
            || max > w.mtu(to)
            || w.send_short(to, max, MessagePacket { hdr: fields, body }).is_err()
        {
            return false;
        }
        peer.next_tx = peer.next_tx.wrapping_add(1);
        if let Some(sum) = peer.short.sent.count(body.size()) {
            self.counters.carry_sent(to, sum);
        }
        true
    }
}

impl Receives<'_> {
    /// Receives a short tagged message in order, of a known peer, with a posted receive. False: it is another
    /// packet, and nothing has happened.
    // HOT
    #[inline(always)]
    pub fn recv_short<I: ReceiveSink>(
        &mut self,
        to: &mut I,
        wire: WireId,
        from: Source,
        packet: &[u8],
    ) -> bool {
        let Some((hdr, payload)) = Short::read(packet) else { return false };
        let Some(lane) = self.peers.lookup.current(wire, from) else { return false };
        let Some((peer, sender)) = self.peers.table.by_first_lane(lane) else { return false };
        if !sender.state.takes_short() || hdr.connid != sender.addr.connid || hdr.msg_id != sender.next_rx {
            return false;
        }
        sender.next_rx = hdr.msg_id.wrapping_add(1);
        let carry = sender.short.received.count(payload.len());
        if !recv_matched(self.recvs, self.peers, self.pending, to, peer, &hdr, payload) {
            return self.hold_short(peer, &hdr, payload);
        }
        if let Some(sum) = carry {
            self.peers.counters.carry_received(peer, sum);
        }
        true
    }

    /// Keeps a short tagged message in order that no receive waits for. False: nothing has happened, and the
    /// general path handles it: also what exceeds the limit from which on the worker polls less, as that path
    /// makes the next call of progress a whole one.
    // [M5.9]
    #[inline(never)]
    fn hold_short(&mut self, from: PeerId, hdr: &Short, payload: &[u8]) -> bool {
        let sender = &mut self.peers.table[from];
        // It counts as received when a receive takes it.
        sender.short.received.undo(payload.len());
        let most = self.peers.cfg.unexpected_max.min(self.peers.cfg.unexpected_hard_max);
        let is_plain = hdr.class == MsgClass::Message && self.recvs.multi_recvs.is_empty() && !self.zcopy;
        if !is_plain
            || self.recvs.unexpected.is_full()
            || !self.pending.held_packets.has_unexpected_room(payload.len(), most)
        {
            sender.next_rx = hdr.msg_id;
            return false;
        }
        self.peers.counters.count_fast_path(from, PktType::EAGER_TAGRTM);
        let len = payload.len() as u64;
        let mut received = ReceivedRanges::new();
        received.add(0, len);
        let &Short { tag, msg_id, .. } = hdr;
        let envelope =
            Envelope { len, tag, from, msg_id, protocol: Protocol::Eager, cq_data: None, send_id: 0 };
        let (recvs, at) = (&mut *self.recvs, (0, received));
        recvs.keep_unexpected(self.peers, self.pending, Kind::Tagged, envelope, payload, at).is_some()
    }
}

/// Receives a short tagged message that is in order, or delivers it if its class needs no receive.
/// False: no receive is posted for it, or there are multi-receives, and nothing has happened.
// HOT
// [M5.1] [M11.2]
#[inline(always)]
pub(in crate::rdm) fn recv_matched<I: ReceiveSink>(
    recvs: &mut Recvs,
    peers: &mut Peers,
    pending: &mut Pending,
    to: &mut I,
    from: PeerId,
    hdr: &Short,
    payload: &[u8],
) -> bool {
    let (tag, len) = (hdr.tag, payload.len());
    let first = if hdr.class == MsgClass::Message {
        if !recvs.multi_recvs.is_empty() {
            return false;
        }
        take_first_expected(recvs, tag, from, payload)
    } else {
        let kind = Kind::of(Some(tag), hdr.class);
        if pending.events.is_empty()
            && recvs.match_queues[kind as usize].unexpected.is_empty()
            && to.deliver(hdr.class, from, tag, payload)
        {
            return true;
        }
        if !recvs.multi_recvs.is_empty() {
            return false;
        }
        None
    };
    let user = match first {
        Some(user) => user,
        None => match take_expected_short(recvs, peers, pending, (hdr.class, tag), from, payload) {
            Some(Some(user)) => user,
            Some(None) => return true,
            None => return false,
        },
    };
    let status = RecvStatus { len, tag, from, cq_data: None };
    // A caller that polls its request finds the status there.
    if !to.received(user, status, pending.events.is_empty()) {
        pending.events.push_back(EngineEvent::RecvDone { user, result: Ok(status) });
    }
    true
}

/// Receives a tagged message into the first receive of its list, if that matches and is contiguous and long
/// enough. Returns the user value of the receive.
// HOT
#[inline(always)]
fn take_first_expected(recvs: &mut Recvs, tag: u64, from: PeerId, payload: &[u8]) -> Option<u64> {
    let first = recvs.match_queues[Kind::Tagged as usize].expected.first(tag)?;
    let mut receive = recvs.table.occupied(first.at as usize)?;
    let op = receive.element();
    let target = op.buf.contig_target(payload.len())?;
    first.take(&op.entry, tag, from)?;
    target.fill(payload);
    let user = op.user;
    receive.end();
    Some(user)
}

/// Receives a tagged message whose receive is not the first of its list, is not contiguous, or is too short.
/// Returns the user value of the receive, or `Some(None)` if it has ended with an error.
#[inline(never)]
fn take_expected_short(
    recvs: &mut Recvs,
    peers: &mut Peers,
    pending: &mut Pending,
    (class, tag): (MsgClass, u64),
    from: PeerId,
    payload: &[u8],
) -> Option<Option<u64>> {
    let kind = Kind::of(Some(tag), class);
    let sender = WorkerSender::new(peers, kind, from);
    let at = recvs.match_queues[kind as usize].expected.take(&mut recvs.table, tag, sender)?;
    let mut receive = recvs.table.occupied(at as usize)?;
    let op = receive.element();
    let (room, user, role) = (op.buf.put(0, payload), op.user, op.role);
    let error = op.buf.error();
    receive.end();
    if role == RecvRole::Discarded {
        return Some(None);
    }
    if payload.len() <= room && error.is_none() {
        return Some(Some(user));
    }
    let truncated = OpError::Truncated { len: payload.len() as u64, room, tag, from };
    peers.counters.stats.rare.truncated += u64::from(payload.len() > room);
    let error = error.filter(|_| payload.len() <= room).map_or(truncated, OpError::Datatype);
    pending.events.push_back(EngineEvent::RecvDone { user, result: Err(error) });
    Some(None)
}
