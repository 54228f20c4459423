//! LONGREAD and RUNTREAD: the receiver reads the sender's memory, of a RUNTREAD all but the head, which comes
//! in packets. EOR ends both, and writes that are read (`write_read`).

use ucs::coll::slots::SlotId;

use crate::rdm::ids::{PeerId, is_rma_id};
use crate::rdm::io::{NotPosted, RegAccess, Wire};
use crate::rdm::next::Next;
use crate::rdm::op::received_ranges::ReceivedRanges;
use crate::rdm::peers::Peers;
use crate::rdm::pending::Pending;
use crate::rdm::rails::rail_set;
use crate::rdm::recv::Recvs;
use crate::rdm::rma::Reads;
use crate::rdm::rma::RmaOps;
use crate::rdm::send::Sends;

use crate::rdm::op::rma_read::RmaRead;
use crate::rdm::op::rx::Envelope;
use crate::rdm::op::tx::TxState;
use crate::rdm::peers::peer::{Ctl, PartialMsg};
use crate::rdm::protocol::{Arrival, HandlerKind, PacketHandler, Protocol, SendProgress, Sync};
use crate::rdm::recv::sequence::{MsgIdUse, MsgOrder};
use crate::rdm::trace::DropReason;
use crate::wire::ctl::Eor;
use crate::wire::rtm::{LongRead, Rtm, RtmBody, RuntRead};
use crate::wire::{Iovs, MAX_IOV, PktType, RmaIov};

pub(in crate::rdm) const HANDLERS: [PacketHandler; 5] = [
    handler(PktType::LONGREAD_MSGRTM, Some(MsgIdUse::Single)),
    handler(PktType::LONGREAD_TAGRTM, Some(MsgIdUse::Single)),
    handler(PktType::RUNTREAD_MSGRTM, Some(MsgIdUse::Segments)),
    handler(PktType::RUNTREAD_TAGRTM, Some(MsgIdUse::Segments)),
    handler(PktType::EOR, None),
];

const fn handler(ty: PktType, id_use: Option<MsgIdUse>) -> PacketHandler {
    PacketHandler { ty, kind: HandlerKind::LongRead, id_use }
}

/// Sends the next packet of the send at the head of its peer's queue.
// [M3.7]
pub(in crate::rdm) fn push<W: Wire>(
    sends: &mut Sends,
    peers: &mut Peers,
    pending: &mut Pending,
    w: &mut W,
    id: SlotId,
) -> SendProgress {
    let Some(op) = sends.table.get(id) else { return SendProgress::Done };
    let (to, protocol, buf, state, sync) = (op.peer, op.protocol, op.buf, op.state, op.sync);
    let eager = Protocol::Eager.with(sync);
    let fits_eager =
        eager.header_len(op.kind(), peers.table[to].hdr(), op.cq_data.is_some()) + buf.len() <= w.mtu(to);
    let fallback = SendProgress::Switch(if fits_eager { eager } else { Protocol::LongCts.with(sync) });
    if state == TxState::Queued {
        if !peers.may_be_read(to, Protocol::LongRead) || buf.is_empty() {
            return fallback;
        }
        if protocol == Protocol::RuntRead
            && !(peers.may_be_read(to, protocol) && may_runt(sends, peers, to, id, buf.len()))
        {
            return SendProgress::Switch(Protocol::LongRead);
        }
    }
    let header = protocol.header_len(op.kind(), peers.table[to].hdr(), op.cq_data.is_some());
    // Room for the memory's name and one byte.
    let iov_capacity = w.mtu(to).saturating_sub(header + 1) / RmaIov::LEN;
    if iov_capacity == 0 {
        return fallback;
    }
    // Several pieces are sent in packets, which gather them.
    let Some(piece) = buf.piece() else { return fallback };
    let wire = peers.table[to].wire;
    let Some(op) = sends.table.get_mut(id) else { return SendProgress::Done };
    let key = match &op.reg {
        Some(reg) => reg.key,
        // [M7.8]
        None => match w.register(wire, piece, RegAccess::REMOTE_READ) {
            Ok(reg) => {
                let key = reg.key;
                op.reg = Some(reg);
                peers.table[to].queue_mut().exposed += 1;
                key
            }
            Err(_) => return fallback,
        },
    };
    let address = sends.table.get(id).and_then(|op| w.rma_address(op.reg.as_ref()?));
    let iov = RmaIov { addr: piece.ptr() as u64, len: piece.len() as u64, key };
    let iov = match address {
        Some(_) if iov_capacity < MAX_IOV => return fallback,
        Some(address) => Iovs::with(iov, &address),
        None if iov_capacity < MAX_IOV => Iovs::one(iov),
        None => rail_set::offer_rails(sends, peers, w, id, iov),
    };
    let header = header + iov.wire_len();
    match protocol {
        Protocol::RuntRead => push_runt(sends, peers, pending, w, id, iov, (header, w.mtu(to) - header)),
        _ => push_whole(sends, peers, w, id, iov, header),
    }
}

/// One runting message to a peer at a time, with a head shorter than the message.
// [M7.9]
fn may_runt(sends: &Sends, peers: &Peers, to: PeerId, id: SlotId, len: usize) -> bool {
    let own = u32::from(sends.table.get(id).is_some_and(|op| op.reg.is_some()));
    let exposed = peers.table[to].queue.as_ref().map_or(0, |queue| queue.exposed);
    exposed == own && peers.cfg.runt_size > 0 && peers.cfg.runt_size < len
}

fn push_whole<W: Wire>(
    sends: &mut Sends,
    peers: &mut Peers,
    w: &mut W,
    id: SlotId,
    read_iov: Iovs,
    max: usize,
) -> SendProgress {
    let Some(op) = sends.table.get(id) else { return SendProgress::Done };
    let (to, tag) = (op.peer, op.tag);
    let peer = &peers.table[to];
    let hdr = LongRead {
        msg_id: peer.next_tx,
        tag,
        msg_length: op.buf.len() as u64,
        send_id: id.raw(),
        read_iov,
        opts: peers.wires.req_opts(peer, op.cq_data).of_class(op.class),
    };
    let ty = PktType(PktType::LONGREAD_MSGRTM.0 + tag.is_some() as u8);
    if let Err(refused) = peers.post(w, to, ty, max, |slot| hdr.write(slot)) {
        return refused.into();
    }
    peers.table[to].next_tx = hdr.msg_id.wrapping_add(1);
    if let Some(op) = sends.table.get_mut(id) {
        op.msg_id = hdr.msg_id;
        op.state = TxState::Exposed;
    }
    SendProgress::Done
}

fn push_runt<W: Wire>(
    sends: &mut Sends,
    peers: &mut Peers,
    pending: &mut Pending,
    w: &mut W,
    id: SlotId,
    read_iov: Iovs,
    (header, capacity): (usize, usize),
) -> SendProgress {
    let runt = peers.cfg.runt_size;
    let Some(op) = sends.table.get(id) else { return SendProgress::Done };
    let (to, tag, buf, at_byte, first) = (op.peer, op.tag, op.buf, op.sent, op.state == TxState::Queued);
    let peer = &peers.table[to];
    let len = (runt - at_byte).min(capacity);
    let hdr = RuntRead {
        msg_id: if first { peer.next_tx } else { op.msg_id },
        tag,
        msg_length: buf.len() as u64,
        send_id: id.raw(),
        seg_offset: at_byte as u64,
        runt_length: runt as u64,
        read_iov,
        opts: peers.wires.req_opts(peer, op.cq_data).of_class(op.class),
    };
    let ty = PktType(PktType::RUNTREAD_MSGRTM.0 + tag.is_some() as u8);
    let posted = peers.post(w, to, ty, header + len, |slot| {
        let at = hdr.write(slot);
        at + buf.copy_to(at_byte, &mut slot[at..at + len])
    });
    if let Err(refused) = posted {
        return refused.into();
    }
    if first {
        peers.table[to].next_tx = hdr.msg_id.wrapping_add(1);
    }
    let Some(op) = sends.table.get_mut(id) else { return SendProgress::Done };
    op.msg_id = hdr.msg_id;
    op.sent += len;
    if first {
        op.state = TxState::Sending;
    }
    if op.sent < runt {
        return SendProgress::Sent;
    }
    match op.state {
        TxState::Ended => sends.finish_read(peers, pending, w, id),
        _ => op.state = TxState::Exposed,
    }
    SendProgress::Done
}

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

/// Ends a message or write that the peer has read.
// [M7.2]
pub(in crate::rdm) fn on_eor<W: Wire>(
    sends: &mut Sends,
    rma_ops: &mut RmaOps,
    peers: &mut Peers,
    pending: &mut Pending,
    w: &mut W,
    a: &Arrival<'_>,
    eor: &Eor,
) -> Next {
    let id = SlotId::from_raw(eor.send_id);
    if is_rma_id(id) {
        return rma_ops.on_eor(peers, pending, a, id);
    }
    match sends.table.get_mut(id) {
        Some(op) if op.peer == a.peer && op.state == TxState::Exposed => {
            if let Some(reg) = &op.reg {
                w.on_offer_result(a.peer, reg, op.buf.len(), true);
            }
            sends.finish_read(peers, pending, w, id);
            Next::Nothing
        }
        // Packets of the head still wait for room: the read has overtaken them.
        Some(op)
            if op.peer == a.peer && op.protocol == Protocol::RuntRead && op.state == TxState::Sending =>
        {
            op.state = TxState::Ended;
            Next::Nothing
        }
        _ => peers.drop_packet(a, DropReason::BadId),
    }
}

/// Sends an EOR.
pub(in crate::rdm) fn push_eor<W: Wire>(
    peers: &mut Peers,
    w: &mut W,
    to: PeerId,
    send_id: u32,
    recv_id: u32,
) -> Result<(), NotPosted> {
    let hdr = Eor { send_id, recv_id, connid: Some(peers.wires.own_addr(&peers.table[to]).connid) };
    peers.post(w, to, PktType::EOR, Eor::LEN, |slot| hdr.write(slot))
}

impl Sends {
    /// Completes a message that was read.
    pub(in crate::rdm) fn finish_read<W: Wire>(
        &mut self,
        peers: &mut Peers,
        pending: &mut Pending,
        w: &mut W,
        id: SlotId,
    ) {
        let Some(op) = self.table.get(id) else { return };
        let (protocol, len, to) = (op.protocol, op.buf.len(), op.peer);
        debug_assert!(protocol.sync() == Sync::No);
        peers.counters.stats.count_sent(protocol, len);
        peers.counters.by_peer.of(to).tx_bytes += len as u64;
        self.finish(peers, pending, w, id, Ok(()));
    }
}
