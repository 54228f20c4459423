//! EAGER and DC_EAGER: a message in one packet. The shortest protocol, the one to read first. The sender
//! writes header and payload into the wire's slot; the receiver copies once, into the user's buffer. `short`
//! is the fast path.

mod short;

pub(in crate::rdm) use short::recv_matched;

use std::ops::Range;

use ucs::coll::slots::SlotId;

use crate::rdm::ids::PeerId;
use crate::rdm::io::Wire;
use crate::rdm::next::Next;
use crate::rdm::op::rx::Envelope;
use crate::rdm::peers::Peers;
use crate::rdm::pending::Pending;
use crate::rdm::protocol::{Arrival, HandlerKind, PacketHandler, Protocol, SendProgress};
use crate::rdm::recv::Recvs;
use crate::rdm::recv::packets::FirstPacket;
use crate::rdm::recv::sequence::MsgIdUse;
use crate::rdm::send::Sends;
use crate::rdm::send::message::{CommonFields, Message};
use crate::rdm::types::SendArgs;
use crate::wire::rtm::Eager;
use crate::wire::{MsgClass, Packet, PktType};

/// DC_EAGER_MSGRTM is listed by `close`, DC_EAGER_TAGRTM by `note`.
pub(in crate::rdm) const HANDLERS: [PacketHandler; 2] =
    [handler(PktType::EAGER_MSGRTM), handler(PktType::EAGER_TAGRTM)];

const fn handler(ty: PktType) -> PacketHandler {
    PacketHandler { ty, kind: HandlerKind::Eager, id_use: Some(MsgIdUse::Single) }
}

/// Sends in one packet at once: nothing is queued before it, and no receipt is wanted. False: it does not fit
/// one packet, or the wire has not taken it.
// HOT
// [M4.1] [M4.2]
#[inline]
pub(in crate::rdm) fn start<W: Wire>(
    peers: &mut Peers,
    w: &mut W,
    to: PeerId,
    class: MsgClass,
    s: &SendArgs,
) -> bool {
    let message = Message { to, tag: s.tag, class, cq_data: s.cq_data, buf: s.buf };
    let Some(parts) = parts(peers, w, &message, Protocol::Eager) else { return false };
    // A builder of its own: with that of `push` the compiler makes functions of both.
    let posted = message.post(peers, w, None, parts, |common| header(common, None));
    if posted.is_ok() {
        peers.counters.count_sent(to, Protocol::Eager, s.buf.len());
    }
    posted.is_ok()
}

/// Returns the length of the headers, and the bytes of the message. `None`: they do not fit one packet.
#[inline(always)]
fn parts<W: Wire>(
    peers: &Peers,
    w: &W,
    message: &Message,
    protocol: Protocol,
) -> Option<(usize, Range<usize>)> {
    let (header, len) = (message.header_len(peers, protocol), message.buf.len());
    (header + len <= w.mtu(message.to)).then_some((header, 0..len))
}

#[inline(always)]
fn header(CommonFields { msg_id, tag, opts }: CommonFields, receipt: Option<u32>) -> Eager {
    Eager { msg_id, tag, receipt, opts }
}

/// Sends the op at the head of its peer's queue.
// [M4.1] [M4.2]
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
    let message = op.message();
    let Some(parts) = parts(peers, w, &message, protocol) else {
        return SendProgress::Switch(Protocol::Medium.with(protocol.sync()));
    };
    match message.post(peers, w, None, parts, |common| header(common, receipt)) {
        Err(refused) => refused,
        Ok(_) => {
            if let Some(op) = sends.table.get_mut(id) {
                op.msg_id = peers.table[op.peer].next_tx.wrapping_sub(1);
            }
            sends.all_sent(peers, pending, w, id);
            SendProgress::Done
        }
    }
}

/// Receives a message in one packet.
// HOT
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
