//! The receiver's half, as far as packets go: matches the message, and takes in its head.

use crate::rdm::io::Wire;
use crate::rdm::next::Next;
use crate::rdm::op::received_ranges::ReceivedRanges;
use crate::rdm::op::rma_read::RmaRead;
use crate::rdm::op::rx::Envelope;
use crate::rdm::peers::Peers;
use crate::rdm::peers::peer::{Ctl, PartialMsg};
use crate::rdm::pending::Pending;
use crate::rdm::protocol::{Arrival, Protocol};
use crate::rdm::recv::Recvs;
use crate::rdm::recv::sequence::MsgOrder;
use crate::rdm::rma::Reads;
use crate::rdm::trace::DropReason;
use crate::wire::rtm::{Rtm, RtmBody};

/// Handles the first or a further packet of a message.
pub(in crate::rdm) fn on_rtm<W: Wire>(
    recvs: &mut Recvs,
    reads: &mut Reads,
    peers: &mut Peers,
    pending: &mut Pending,
    w: &mut W,
    a: &Arrival<'_>,
    rtm: &Rtm<'_>,
) -> Next {
    let (protocol, len, send_id, at, runt, iov) = match rtm.body {
        RtmBody::LongRead { msg_length, send_id, read_iov } => {
            (Protocol::LongRead, msg_length, send_id, 0, 0, read_iov)
        }
        RtmBody::RuntRead { msg_length, send_id, seg_offset, runt_length, read_iov } => {
            (Protocol::RuntRead, msg_length, send_id, seg_offset, runt_length, read_iov)
        }
        _ => return Next::Nothing,
    };
    if a.order == MsgOrder::Past {
        return on_further(recvs, reads, peers, pending, a, rtm, (len, runt, at));
    }
    // [M7.10]
    if iov.total().is_none_or(|total| total < len) {
        return peers.drop_packet(a, DropReason::BadSegment);
    }
    let envelope = Envelope {
        len,
        tag: rtm.tag.unwrap_or(0),
        from: a.peer,
        msg_id: rtm.msg_id,
        protocol,
        cq_data: rtm.opts.cq_data,
        send_id,
    };
    let mut received = ReceivedRanges::new();
    received.add(at, rtm.payload.len() as u64);
    // A message that is all head is not read.
    let rma_read = match runt == len && protocol == Protocol::RuntRead {
        true => None,
        false => match reads.table.insert(RmaRead::new(a.peer, iov, runt)) {
            Ok(rma_read) => Some(rma_read),
            Err(_) => return peers.drop_packet(a, DropReason::NoRoom),
        },
    };
    let (missing, whole) = (received.bytes() < runt, rma_read.is_none() && received.bytes() == len);
    match recvs.take_expected(peers, pending, rtm, a.peer) {
        Some(id) => {
            if let Some(op) = recvs.table.get_mut(id) {
                op.buf.put(at, rtm.payload);
            }
            if whole {
                return recvs.finish(peers, pending, id, &envelope);
            }
            recvs.begin(id, envelope, received);
            if missing {
                peers.table[a.peer].queue_mut().partial_msgs.insert(rtm.msg_id, PartialMsg::Rx(id));
            }
            if let Some(rma_read) = rma_read {
                return reads.start(recvs, peers, w, rma_read, id);
            }
        }
        None => match recvs.hold_unexpected(peers, pending, a, rtm, envelope, (at, received)) {
            Some(id) => {
                if let Some(held) = recvs.unexpected.get_mut(id) {
                    held.rma_read = rma_read;
                }
                if missing {
                    peers.table[a.peer]
                        .queue_mut()
                        .partial_msgs
                        .insert(rtm.msg_id, PartialMsg::Unexpected(id));
                }
            }
            None => drop(rma_read.and_then(|rma_read| reads.table.remove(rma_read))),
        },
    }
    Next::Nothing
}

/// Handles a further packet of a message's head.
fn on_further(
    recvs: &mut Recvs,
    reads: &mut Reads,
    peers: &mut Peers,
    pending: &mut Pending,
    a: &Arrival<'_>,
    rtm: &Rtm<'_>,
    (msg_length, runt, at): (u64, u64, u64),
) -> Next {
    let len = rtm.payload.len() as u64;
    let part =
        peers.table[a.peer].queue.as_ref().and_then(|queue| queue.partial_msgs.get(&rtm.msg_id).copied());
    if !runt_agrees(recvs, reads, part, runt) {
        return peers.drop_packet(a, DropReason::BadSegment);
    }
    let mut next = Next::Nothing;
    let head_complete = match part {
        None => return peers.drop_packet(a, DropReason::Duplicate),
        Some(_) if len == 0 => return peers.drop_packet(a, DropReason::BadSegment),
        Some(PartialMsg::Rx(id)) => {
            let fits = match recvs.rxe(id) {
                Some((op, rxe)) => {
                    let fits = rxe.envelope.protocol == Protocol::RuntRead && rxe.envelope.len == msg_length;
                    let fits = fits && rxe.received.add(at, len);
                    if fits {
                        op.buf.put(at, rtm.payload);
                    }
                    fits.then_some((rxe.received.bytes(), rxe.envelope, rxe.rma_read, rxe.nack))
                }
                None => None,
            };
            let Some((arrived, envelope, rma_read, nack)) = fits else {
                return peers.drop_packet(a, DropReason::BadSegment);
            };
            if arrived == msg_length {
                next = recvs.finish(peers, pending, id, &envelope);
            } else if nack && arrived == runt {
                // The entry is kept for the LONGCTS that follows.
                let (send_id, recv_id) = (envelope.send_id, id.raw());
                let nack = Ctl::ReadNack { send_id, recv_id, not_now: false };
                return Next::Ctl(nack);
            }
            // During the read the head has arrived; after it, everything.
            arrived == msg_length || rma_read.is_some() && arrived == runt
        }
        Some(PartialMsg::Unexpected(_)) if !peers.reserve_unexpected(pending, a, rtm) => {
            return Next::Nothing;
        }
        Some(PartialMsg::Unexpected(id)) => {
            let Some(held) = recvs.unexpected.get_mut(id) else {
                return peers.drop_packet(a, DropReason::BadSegment);
            };
            let fits = held.envelope.protocol == Protocol::RuntRead && held.envelope.len == msg_length;
            if !fits || !held.received.add(at, len) {
                return peers.drop_packet(a, DropReason::BadSegment);
            }
            held.segments.push(at, pending.held_packets.copy_unexpected(rtm.payload));
            held.received.bytes() == runt
        }
    };
    if head_complete && let Some(queue) = &mut peers.table[a.peer].queue {
        queue.partial_msgs.remove(&rtm.msg_id);
    }
    next
}

/// True if the head ends where the first packet said.
fn runt_agrees(recvs: &mut Recvs, reads: &Reads, part: Option<PartialMsg>, runt: u64) -> bool {
    let rma_read = match part {
        Some(PartialMsg::Rx(id)) => recvs.rxe(id).and_then(|(_, rxe)| rxe.rma_read),
        Some(PartialMsg::Unexpected(id)) => recvs.unexpected.get(id).and_then(|held| held.rma_read),
        None => None,
    };
    rma_read.and_then(|rma_read| reads.table.get(rma_read)).is_none_or(|rma_read| rma_read.from == runt)
}
