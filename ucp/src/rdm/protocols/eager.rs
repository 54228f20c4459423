//! EAGER and DC_EAGER: a message in one packet. The shortest protocol, the one to read first. The sender
//! writes header and payload into the wire's slot; the receiver copies once, into the user's buffer.

use ucs::coll::slots::SlotId;

use crate::rdm::features::supports_classes;
use crate::rdm::ids::PeerId;
use crate::rdm::io::{NotPosted, PacketWriter, ReceiveSink, Wire};
use crate::rdm::next::Next;
use crate::rdm::op::Payload;
use crate::rdm::op::rx::Envelope;
use crate::rdm::peers::Peers;
use crate::rdm::peers::peer::Peer;
use crate::rdm::peers::workers::WorkerSender;
use crate::rdm::pending::Pending;
use crate::rdm::protocol::{Arrival, HandlerKind, Kind, PacketHandler, Protocol, SendProgress};
use crate::rdm::recv::Recvs;
use crate::rdm::recv::packets::FirstPacket;
use crate::rdm::recv::sequence::MsgIdUse;
use crate::rdm::send::Sends;
use crate::rdm::send::message::Message;
use crate::rdm::status::{OpError, RecvStatus};
use crate::rdm::types::{EngineEvent, SendArgs};
use crate::wire::rtm::{Eager, Short};
use crate::wire::{MsgClass, Packet, PktType};

pub(in crate::rdm) const HANDLERS: [PacketHandler; 4] = [
    handler(PktType::EAGER_MSGRTM),
    handler(PktType::EAGER_TAGRTM),
    handler(PktType::DC_EAGER_MSGRTM),
    handler(PktType::DC_EAGER_TAGRTM),
];

const fn handler(ty: PktType) -> PacketHandler {
    PacketHandler { ty, kind: HandlerKind::Eager, id_use: Some(MsgIdUse::Single) }
}

/// A short tagged message to write. Refers to the peer instead of copying header fields, which keeps fewer
/// values live until the packet is written.
#[derive(Clone, Copy)]
struct ShortMessage<'a, B> {
    to: &'a Peer,
    class: MsgClass,
    tag: u64,
    body: B,
}

impl<B: Payload> PacketWriter for ShortMessage<'_, B> {
    // HOT
    #[inline(always)]
    fn fill(self, slot: &mut [u8]) -> usize {
        let ShortMessage { to, class, tag, body } = self;
        let at = Short { msg_id: to.next_tx, tag, connid: to.own_connid, class }.write(slot);
        at + body.copy_all(&mut slot[at..])
    }
}

/// Fast path: sends a tagged message to a peer that is known, has not failed and has nothing queued. False:
/// not possible, or no room, and nothing has happened. // HOT
// [M4.1] [M4.2]
#[inline(always)]
pub(in crate::rdm) fn start_short<W: Wire, B: Payload>(
    peers: &mut Peers,
    w: &mut W,
    to: PeerId,
    (class, tag): (MsgClass, u64),
    body: B,
) -> bool {
    let Some(peer) = peers.table.get_mut(to) else { return false };
    // The general path sends the first request to a peer and sets its flags.
    if !peer.state.is_ready_for_short() || class != MsgClass::Message && !supports_classes(peer.features) {
        return false;
    }
    let max = Short::wire_len() + body.size();
    if max > w.mtu(to) || w.send_short(to, max, ShortMessage { to: peer, class, tag, body }).is_err() {
        return false;
    }
    peer.next_tx = peer.next_tx.wrapping_add(1);
    if let Some(sum) = peer.short.sent.count(body.size()) {
        peers.counters.carry_sent(to, sum);
    }
    true
}

/// Sends in one packet at once: nothing is queued before it, and no receipt is wanted. `None`: it does not
/// fit one packet. // HOT
#[inline]
pub(in crate::rdm) fn start<W: Wire>(
    peers: &mut Peers,
    w: &mut W,
    to: PeerId,
    class: MsgClass,
    s: &SendArgs,
) -> Option<Result<(), NotPosted>> {
    let message = Message { to, tag: s.tag, class, cq_data: s.cq_data, buf: s.buf };
    let posted = post(peers, w, &message, None)?;
    if posted.is_ok() {
        peers.counters.count_sent(to, Protocol::Eager, s.buf.len());
    }
    Some(posted)
}

/// Posts a message as one packet. `None`: it does not fit one.
// [M4.1] [M4.2]
#[inline]
fn post<W: Wire>(
    peers: &mut Peers,
    w: &mut W,
    message: &Message,
    receipt: Option<u32>,
) -> Option<Result<(), NotPosted>> {
    let protocol = if receipt.is_some() { Protocol::DcEager } else { Protocol::Eager };
    let (header, len) = (message.header_len(peers, protocol), message.buf.len());
    if header + len > w.mtu(message.to) {
        return None;
    }
    let posted = message.post(peers, w, None, (header, 0..len), |common| Eager {
        msg_id: common.msg_id,
        tag: common.tag,
        receipt,
        opts: common.opts,
    });
    Some(posted.map(drop))
}

/// Sends the op at the head of its peer's queue.
pub(in crate::rdm) fn push<W: Wire>(
    sends: &mut Sends,
    peers: &mut Peers,
    pending: &mut Pending,
    w: &mut W,
    id: SlotId,
) -> SendProgress {
    let Some(op) = sends.table.get(id) else { return SendProgress::Done };
    let protocol = op.protocol;
    let receipt = (protocol == Protocol::DcEager).then_some(id.raw());
    match post(peers, w, &op.message(), receipt) {
        None => SendProgress::Switch(Protocol::Medium.with(protocol.sync())),
        Some(Err(refused)) => refused.into(),
        Some(Ok(())) => {
            sends.all_sent(peers, pending, w, id);
            SendProgress::Done
        }
    }
}

/// Receives a message in one packet. // HOT
// [M5.1]
#[inline]
pub(in crate::rdm) fn on_recv(
    recvs: &mut Recvs,
    peers: &mut Peers,
    pending: &mut Pending,
    a: &Arrival<'_>,
) -> Next {
    let Packet::Rtm(rtm) = a.packet else { return Next::Nothing };
    let protocol = if rtm.receipt.is_some() { Protocol::DcEager } else { Protocol::Eager };
    let envelope = Envelope::of_rtm(a, rtm, protocol, rtm.receipt.unwrap_or(0));
    match recvs.on_first(peers, pending, a, rtm, envelope, (0, false)) {
        FirstPacket::Ended(next) => next,
        _ => Next::Nothing,
    }
}

/// Fast path: receives a short tagged message that is in order, or delivers it if its class needs no receive.
/// False: no receive is posted for it, or there are multi-receives, and nothing has happened. // HOT
// [M5.1] [M11.2]
#[inline(always)]
pub(in crate::rdm) fn recv_short<I: ReceiveSink>(
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
/// enough. Returns the user value of the receive. // HOT
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
    let (room, user) = (op.buf.put(0, payload), op.user);
    let error = op.buf.error();
    receive.end();
    if payload.len() <= room && error.is_none() {
        return Some(Some(user));
    }
    let truncated = OpError::Truncated { len: payload.len() as u64, room, tag, from };
    peers.counters.stats.rare.truncated += u64::from(payload.len() > room);
    let error = error.filter(|_| payload.len() <= room).map_or(truncated, OpError::Datatype);
    pending.events.push_back(EngineEvent::RecvDone { user, result: Err(error) });
    Some(None)
}
