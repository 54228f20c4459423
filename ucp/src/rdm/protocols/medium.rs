//! MEDIUM and DC_MEDIUM: a message in several packets that are sent without asking. All carry the same
//! `msg_id`; any of them may come first.

use ucs::coll::slots::SlotId;

use crate::rdm::io::Wire;
use crate::rdm::next::Next;
use crate::rdm::op::rx::Envelope;
use crate::rdm::op::tx::TxState;
use crate::rdm::peers::Peers;
use crate::rdm::peers::peer::PartialMsg;
use crate::rdm::pending::Pending;
use crate::rdm::protocol::{Arrival, HandlerKind, PacketHandler, Protocol, SendProgress};
use crate::rdm::recv::Recvs;
use crate::rdm::recv::packets::FirstPacket;
use crate::rdm::recv::sequence::{MsgIdUse, MsgOrder};
use crate::rdm::send::Sends;
use crate::rdm::status::OpError;
use crate::rdm::trace::DropReason;
use crate::wire::rtm::{Medium, Rtm, RtmBody};
use crate::wire::{Packet, PktType};

pub(in crate::rdm) const HANDLERS: [PacketHandler; 4] = [
    handler(PktType::MEDIUM_MSGRTM),
    handler(PktType::MEDIUM_TAGRTM),
    handler(PktType::DC_MEDIUM_MSGRTM),
    handler(PktType::DC_MEDIUM_TAGRTM),
];

const fn handler(ty: PktType) -> PacketHandler {
    PacketHandler { ty, kind: HandlerKind::Medium, id_use: Some(MsgIdUse::Segments) }
}

/// Bytes of the next packet: what is left is spread evenly over the packets it needs, in multiples of 8.
fn segment(left: usize, capacity: usize) -> usize {
    let packets = left.div_ceil(capacity).max(1);
    let even = left.div_ceil(packets).next_multiple_of(8);
    even.min(capacity).min(left)
}

/// Sends the next packet of the op at the head of its peer's queue, where it stays until the last one is out.
// [M5.15]
pub(in crate::rdm) fn push<W: Wire>(
    sends: &mut Sends,
    peers: &mut Peers,
    pending: &mut Pending,
    w: &mut W,
    id: SlotId,
) -> SendProgress {
    let Some(op) = sends.table.get(id) else { return SendProgress::Done };
    let (message, protocol, at_byte) = (op.message(), op.protocol, op.sent);
    let msg_id = (op.state != TxState::Queued).then_some(op.msg_id);
    let (header, msg_length) = (message.header_len(peers, protocol), message.buf.len());
    let capacity = w.mtu(message.to).saturating_sub(header);
    if capacity == 0 {
        return SendProgress::Fail(OpError::Unsupported);
    }
    let len = segment(msg_length - at_byte, capacity);
    let part = (header, at_byte..at_byte + len);
    let posted = message.post(peers, w, msg_id, part, |common| Medium {
        msg_id: common.msg_id,
        tag: common.tag,
        receipt: (protocol == Protocol::DcMedium).then_some(id.raw()),
        msg_length: msg_length as u64,
        seg_offset: at_byte as u64,
        opts: common.opts,
    });
    let msg_id = match posted {
        Ok(msg_id) => msg_id,
        Err(refused) => return refused,
    };
    let Some(op) = sends.table.get_mut(id) else { return SendProgress::Done };
    op.msg_id = msg_id;
    op.state = TxState::Sending;
    op.sent += len;
    if op.sent < msg_length {
        return SendProgress::Sent;
    }
    sends.all_sent(peers, pending, w, id);
    SendProgress::Done
}

/// One packet of a message, the first to come or a further one.
// [M5.2]
pub(in crate::rdm) fn on_recv(
    recvs: &mut Recvs,
    peers: &mut Peers,
    pending: &mut Pending,
    a: &Arrival<'_>,
) -> Next {
    let Packet::Rtm(rtm) = a.packet else { return Next::Nothing };
    let RtmBody::Medium { msg_length, seg_offset } = rtm.body else { return Next::Nothing };
    match a.order {
        MsgOrder::Next => on_first(recvs, peers, pending, a, rtm, seg_offset),
        _ => on_further(recvs, peers, pending, a, rtm, msg_length, seg_offset),
    }
}

fn on_first(
    recvs: &mut Recvs,
    peers: &mut Peers,
    pending: &mut Pending,
    a: &Arrival<'_>,
    rtm: &Rtm<'_>,
    seg_offset: u64,
) -> Next {
    let protocol = if rtm.receipt.is_some() { Protocol::DcMedium } else { Protocol::Medium };
    let envelope = Envelope::of_rtm(a, rtm, protocol, rtm.receipt.unwrap_or(0));
    let whole = rtm.payload.len() as u64 == envelope.len;
    let part = match recvs.on_first(peers, pending, a, rtm, envelope, (seg_offset, false)) {
        FirstPacket::Ended(next) => return next,
        FirstPacket::Begun(id) => PartialMsg::Rx(id),
        FirstPacket::Held(id) if !whole => PartialMsg::Unexpected(id),
        FirstPacket::Held(_) | FirstPacket::Dropped => return Next::Nothing,
    };
    peers.table.begin_msg(a, rtm, part);
    Next::Nothing
}

// [M5.3]
fn on_further(
    recvs: &mut Recvs,
    peers: &mut Peers,
    pending: &mut Pending,
    a: &Arrival<'_>,
    rtm: &Rtm<'_>,
    msg_length: u64,
    seg_offset: u64,
) -> Next {
    // A message of another protocol has bytes that the device, or other packets, bring.
    let fits =
        |envelope: &Envelope| envelope.protocol.plain() == Protocol::Medium && envelope.len == msg_length;
    let mut next = Next::Nothing;
    let arrived = match peers.table.begun_msg(a, rtm) {
        None if peers.table[a.peer].state.is_failed() => return peers.drop_of_failed(a),
        None => return peers.drop_packet(a, DropReason::Duplicate),
        // Kept, it would cost memory that no length bounds.
        Some(_) if rtm.payload.is_empty() => return peers.drop_packet(a, DropReason::BadSegment),
        Some(PartialMsg::Rx(id)) => match recvs.recv_further(peers, a, rtm, (id, seg_offset), fits) {
            Ok((envelope, arrived)) => {
                if arrived == msg_length {
                    next = recvs.finish(peers, pending, id, &envelope);
                }
                arrived
            }
            Err(next) => return next,
        },
        Some(PartialMsg::Unexpected(id)) => {
            match recvs.hold_further(peers, pending, a, rtm, (id, seg_offset), fits) {
                Ok(arrived) => arrived,
                Err(next) => return next,
            }
        }
    };
    if arrived == msg_length {
        peers.table.end_msg(a, rtm);
    }
    next
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_cover_message_in_fewest_packets() {
        for capacity in [1, 7, 8, 100, 8192] {
            for len in [0usize, 1, 8, 99, 100, 101, 8193, 65536] {
                let (mut left, mut packets) = (len, 0);
                while left > 0 {
                    let n = segment(left, capacity);
                    assert!(n > 0 && n <= capacity && n <= left);
                    left -= n;
                    packets += 1;
                }
                assert!(packets <= len.div_ceil(capacity), "{len} by {capacity}: {packets}");
            }
        }
    }
}
