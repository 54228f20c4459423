//! EAGER and DC_EAGER: a message in one packet. The shortest protocol, the one to read first. The sender
//! writes header and payload into the wire's slot; the receiver copies once, into the user's buffer. `short`
//! is the fast path.

mod short;

pub(in crate::rdm) use short::recv_matched;

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
use crate::rdm::send::message::Message;
use crate::rdm::types::SendArgs;
use crate::wire::rtm::Eager;
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

/// Sends in one packet at once: nothing is queued before it, and no receipt is wanted. `None`: it does not
/// fit one packet. // HOT
#[inline]
pub(in crate::rdm) fn start<W: Wire>(
    peers: &mut Peers,
    w: &mut W,
    to: PeerId,
    class: MsgClass,
    s: &SendArgs,
) -> Option<Result<(), SendProgress>> {
    let message = Message { to, tag: s.tag, class, cq_data: s.cq_data, buf: s.buf };
    let posted = post(peers, w, &message, None)?;
    if posted.is_ok() {
        peers.counters.count_sent(to, Protocol::Eager, s.buf.len());
    }
    Some(posted)
}

/// Posts a message as one packet. `None`: it does not fit one.
// [M4.1] [M4.2]
#[inline(always)]
fn post<W: Wire>(
    peers: &mut Peers,
    w: &mut W,
    message: &Message,
    receipt: Option<u32>,
) -> Option<Result<(), SendProgress>> {
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
        Some(Err(refused)) => refused,
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
