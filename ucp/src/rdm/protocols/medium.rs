//! MEDIUM and DC_MEDIUM: a message in several packets that are sent without asking. All carry the same
//! `msg_id`; any of them may come first.

use ucs::coll::slots::SlotId;

use crate::rdm::ids::PeerId;
use crate::rdm::io::Wire;
use crate::rdm::next::Next;
use crate::rdm::op::received_ranges::ReceivedRanges;
use crate::rdm::op::rx::Envelope;
use crate::rdm::op::tx::TxState;
use crate::rdm::peers::Peers;
use crate::rdm::peers::peer::PartialMsg;
use crate::rdm::pending::Pending;
use crate::rdm::protocol::{Arrival, HandlerKind, PacketHandler, Protocol, SendProgress};
use crate::rdm::recv::Recvs;
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

/// Sends the next packet of the op at the head of its peer's queue.
pub(in crate::rdm) fn push<W: Wire>(
    sends: &mut Sends,
    peers: &mut Peers,
    pending: &mut Pending,
    w: &mut W,
    id: SlotId,
) -> SendProgress {
    let Some(op) = sends.table.get(id) else { return SendProgress::Done };
    let (to, protocol, tag, buf, at_byte) = (op.peer, op.protocol, op.tag, op.buf, op.sent);
    let peer = &peers.table[to];
    let header = protocol.header_len(op.kind(), peer.hdr(), op.cq_data.is_some());
    let capacity = w.mtu(to).saturating_sub(header);
    if capacity == 0 {
        return SendProgress::Fail(OpError::Unsupported);
    }
    let len = segment(buf.len() - at_byte, capacity);
    let first = op.state == TxState::Queued;
    let msg_id = if first { peer.next_tx } else { op.msg_id };
    let receipt = (protocol == Protocol::DcMedium).then_some(id.raw());
    let hdr = Medium {
        msg_id,
        tag,
        receipt,
        msg_length: buf.len() as u64,
        seg_offset: at_byte as u64,
        opts: peers.wires.req_opts(peer, op.cq_data).of_class(op.class),
    };
    let plain = if receipt.is_some() { PktType::DC_MEDIUM_MSGRTM } else { PktType::MEDIUM_MSGRTM };
    let ty = PktType(plain.0 + tag.is_some() as u8);
    let posted = peers.post(w, to, ty, header + len, |slot| {
        let at = hdr.write(slot);
        at + buf.copy_to(at_byte, &mut slot[at..at + len])
    });
    if let Err(refused) = posted {
        return refused.into();
    }
    if first {
        peers.table[to].next_tx = msg_id.wrapping_add(1);
    }
    let Some(op) = sends.table.get_mut(id) else { return SendProgress::Done };
    op.msg_id = msg_id;
    op.state = TxState::Sending;
    op.sent += len;
    if op.sent < buf.len() {
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
        MsgOrder::Next => {
            on_first(recvs, peers, pending, a, rtm, envelope(a.peer, rtm, msg_length), seg_offset)
        }
        _ => on_further(recvs, peers, pending, a, rtm, msg_length, seg_offset),
    }
}

fn on_first(
    recvs: &mut Recvs,
    peers: &mut Peers,
    pending: &mut Pending,
    a: &Arrival<'_>,
    rtm: &Rtm<'_>,
    envelope: Envelope,
    seg_offset: u64,
) -> Next {
    let mut received = ReceivedRanges::new();
    received.add(seg_offset, rtm.payload.len() as u64);
    let whole = received.bytes() == envelope.len;
    let part = match recvs.take_expected(peers, pending, rtm, a.peer) {
        Some(id) => {
            if let Some(op) = recvs.table.get_mut(id) {
                op.buf.put(seg_offset, rtm.payload);
            }
            if whole {
                return recvs.finish(peers, pending, id, &envelope);
            }
            recvs.begin(id, envelope, received);
            PartialMsg::Rx(id)
        }
        None => match recvs.hold_unexpected(peers, pending, a, rtm, envelope, (seg_offset, received)) {
            Some(id) if !whole => PartialMsg::Unexpected(id),
            _ => return Next::Nothing,
        },
    };
    peers.table[a.peer].queue_mut().partial_msgs.insert(rtm.msg_id, part);
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
    let part =
        peers.table[a.peer].queue.as_ref().and_then(|queue| queue.partial_msgs.get(&rtm.msg_id).copied());
    let len = rtm.payload.len() as u64;
    let mut next = Next::Nothing;
    let whole = match part {
        None if peers.table[a.peer].state.is_failed() => return peers.drop_of_failed(a),
        None => return peers.drop_packet(a, DropReason::Duplicate),
        // Kept, it would cost memory that no length bounds.
        Some(_) if len == 0 => return peers.drop_packet(a, DropReason::BadSegment),
        Some(PartialMsg::Rx(id)) => {
            let Some((op, rxe)) = recvs.rxe(id) else {
                return peers.drop_packet(a, DropReason::BadSegment);
            };
            if rxe.envelope.len != msg_length || !rxe.received.add(seg_offset, len) {
                return peers.drop_packet(a, DropReason::BadSegment);
            }
            op.buf.put(seg_offset, rtm.payload);
            let (whole, envelope) = (rxe.received.bytes() == msg_length, rxe.envelope);
            if whole {
                next = recvs.finish(peers, pending, id, &envelope);
            }
            whole
        }
        Some(PartialMsg::Unexpected(_)) if !peers.reserve_unexpected(pending, a, rtm) => {
            return Next::Nothing;
        }
        Some(PartialMsg::Unexpected(id)) => {
            let Some(held) = recvs.unexpected.get_mut(id) else {
                return peers.drop_packet(a, DropReason::BadSegment);
            };
            if held.envelope.len != msg_length || !held.received.add(seg_offset, len) {
                return peers.drop_packet(a, DropReason::BadSegment);
            }
            held.segments.push(seg_offset, pending.held_packets.copy_unexpected(rtm.payload));
            held.received.bytes() == msg_length
        }
    };
    if whole && let Some(queue) = &mut peers.table[a.peer].queue {
        queue.partial_msgs.remove(&rtm.msg_id);
    }
    next
}

fn envelope(from: PeerId, rtm: &Rtm<'_>, len: u64) -> Envelope {
    Envelope {
        len,
        tag: rtm.tag.unwrap_or(0),
        from,
        msg_id: rtm.msg_id,
        protocol: if rtm.receipt.is_some() { Protocol::DcMedium } else { Protocol::Medium },
        cq_data: rtm.opts.cq_data,
        send_id: rtm.receipt.unwrap_or(0),
    }
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
