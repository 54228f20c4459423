//! Receiver, packets: matches the message and receives its head.

use crate::rdm::io::Wire;
use crate::rdm::next::Next;
use crate::rdm::op::rma_read::RmaRead;
use crate::rdm::op::rx::Envelope;
use crate::rdm::peers::Peers;
use crate::rdm::peers::peer::{Ctl, PartialMsg};
use crate::rdm::pending::Pending;
use crate::rdm::protocol::{Arrival, Protocol};
use crate::rdm::recv::Recvs;
use crate::rdm::recv::packets::FirstPacket;
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
    let envelope = Envelope::of_rtm(a, rtm, protocol, send_id);
    // A message that is all head is not read.
    let rma_read = match runt == len && protocol == Protocol::RuntRead {
        true => None,
        false => match reads.table.insert(RmaRead::new(a.peer, iov, runt)) {
            Ok(rma_read) => Some(rma_read),
            Err(_) => {
                peers.refuse_over_limit(a);
                return Next::Nothing;
            }
        },
    };
    let missing = (rtm.payload.len() as u64) < runt;
    match recvs.on_first(peers, pending, a, rtm, envelope, (at, rma_read.is_some())) {
        FirstPacket::Ended(next) => next,
        FirstPacket::Begun(id) => {
            if missing {
                peers.table.begin_msg(a, rtm, PartialMsg::Rx(id));
            }
            rma_read.map_or(Next::Nothing, |rma_read| reads.start(recvs, peers, w, rma_read, id))
        }
        FirstPacket::Held(id) => {
            if let Some(held) = recvs.unexpected.get_mut(id) {
                held.rma_read = rma_read;
            }
            if missing {
                peers.table.begin_msg(a, rtm, PartialMsg::Unexpected(id));
            }
            Next::Nothing
        }
        FirstPacket::Dropped => {
            drop(rma_read.and_then(|rma_read| reads.table.remove(rma_read)));
            Next::Nothing
        }
    }
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
    let part = peers.table.begun_msg(a, rtm);
    if !runt_agrees(recvs, reads, part, runt) {
        return peers.drop_packet(a, DropReason::BadSegment);
    }
    let fits = |envelope: &Envelope| envelope.protocol == Protocol::RuntRead && envelope.len == msg_length;
    let mut next = Next::Nothing;
    let head_complete = match part {
        None => return peers.drop_packet(a, DropReason::Duplicate),
        Some(_) if rtm.payload.is_empty() => return peers.drop_packet(a, DropReason::BadSegment),
        Some(PartialMsg::Rx(id)) => {
            let (envelope, arrived) = match recvs.recv_further(peers, a, rtm, (id, at), fits) {
                Ok(received) => received,
                Err(next) => return next,
            };
            let (is_read, nack) =
                recvs.rxe(id).map_or((false, false), |(_, rxe)| (rxe.rma_read.is_some(), rxe.nack));
            if arrived == msg_length {
                next = recvs.finish(peers, pending, id, &envelope);
            } else if nack && arrived == runt {
                // The entry is kept for the LONGCTS that follows.
                let (send_id, recv_id) = (envelope.send_id, id.raw());
                let nack = Ctl::ReadNack { send_id, recv_id, not_now: false };
                return Next::Ctl(nack);
            }
            // During the read the head has arrived; after it, everything.
            arrived == msg_length || is_read && arrived == runt
        }
        Some(PartialMsg::Unexpected(id)) => {
            match recvs.hold_further(peers, pending, a, rtm, (id, at), fits) {
                Ok(arrived) => arrived == runt,
                Err(next) => return next,
            }
        }
    };
    if head_complete {
        peers.table.end_msg(a, rtm);
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
