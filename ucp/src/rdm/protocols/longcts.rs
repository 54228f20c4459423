//! LONGCTS and DC_LONGCTS: the first packet asks, CTS grants a window of bytes, CTSDATA fills it, and so on.
//! The window is counted in bytes at both ends; `flow` says how large it is.

use ucs::coll::slots::SlotId;

use crate::rdm::flow::window;
use crate::rdm::ids::is_rma_id;
use crate::rdm::io::Wire;
use crate::rdm::next::Next;
use crate::rdm::peers::Peers;
use crate::rdm::pending::Pending;
use crate::rdm::recv::Recvs;
use crate::rdm::recv::packets::FirstPacket;
use crate::rdm::rma::RmaOps;
use crate::rdm::send::Sends;
use crate::rdm::send::message::{copy_packed, with_packed};

use crate::rdm::op::rx::Envelope;
use crate::rdm::op::tx::TxState;
use crate::rdm::peers::peer::Ctl;
use crate::rdm::protocol::{Arrival, HandlerKind, PacketHandler, Protocol, SendProgress};
use crate::rdm::rails::striping::{self, Granted, TransferKind};
use crate::rdm::recv::sequence::{MsgIdUse, MsgOrder};
use crate::rdm::status::OpError;
use crate::rdm::trace::DropReason;
use crate::wire::ctl::{Cts, CtsData, CtsFor};
use crate::wire::rtm::{Rtm, RtmBody};
use crate::wire::{Cause, Packet, PktType};

pub(in crate::rdm) const HANDLERS: [PacketHandler; 6] = [
    rtm(PktType::LONGCTS_MSGRTM),
    rtm(PktType::LONGCTS_TAGRTM),
    rtm(PktType::DC_LONGCTS_MSGRTM),
    rtm(PktType::DC_LONGCTS_TAGRTM),
    ctl(PktType::CTS),
    ctl(PktType::CTSDATA),
];

const fn rtm(ty: PktType) -> PacketHandler {
    PacketHandler { ty, kind: HandlerKind::LongCts, id_use: Some(MsgIdUse::Repeatable) }
}

const fn ctl(ty: PktType) -> PacketHandler {
    PacketHandler { ty, kind: HandlerKind::LongCts, id_use: None }
}

/// Sends the first packet of the op at the head of its peer's queue.
// [M5.4]
pub(in crate::rdm) fn push<W: Wire>(
    sends: &mut Sends,
    peers: &mut Peers,
    w: &mut W,
    id: SlotId,
) -> SendProgress {
    let Some(op) = sends.table.get(id) else { return SendProgress::Done };
    let (message, protocol) = (op.message(), op.protocol);
    let mtu = w.mtu(message.to);
    let capacity = mtu.saturating_sub(message.header_len(peers, protocol));
    if message.buf.len() <= capacity {
        // The first packet must not be the whole message; an eager one holds at least as much.
        return SendProgress::Switch(Protocol::Eager.with(protocol.sync()));
    }
    if capacity == 0 || window::data_per_packet(mtu) == 0 {
        return SendProgress::Fail(OpError::Unsupported);
    }
    let msg_id = match message.post_long_cts(peers, w, protocol, id.raw(), capacity) {
        Ok(msg_id) => msg_id,
        Err(refused) => return refused,
    };
    if let Some(op) = sends.table.get_mut(id) {
        op.msg_id = msg_id;
        op.sent = capacity;
        op.state = TxState::Granted;
    }
    SendProgress::Done
}

/// Sends one packet of the grant of `id`. Only called once the peer's HANDSHAKE has arrived.
// [M3.6]
pub(in crate::rdm) fn push_data<W: Wire>(
    sends: &mut Sends,
    peers: &mut Peers,
    pending: &mut Pending,
    w: &mut W,
    id: SlotId,
) -> SendProgress {
    let Some(op) = sends.table.get(id) else { return SendProgress::Done };
    let (to, buf, at_byte) = (op.peer, op.buf, op.sent);
    let granted = Granted {
        to,
        recv_id: op.recv_id.unwrap_or(0),
        at: at_byte as u64,
        window: op.window as u64,
        total: buf.len() as u64,
        kind: TransferKind::Message,
    };
    let sent = if buf.has_callbacks() {
        let end = buf.len().min(at_byte + op.window.min(window::data_per_packet(w.mtu(to))));
        let sent = with_packed(peers, to, &buf, at_byte..end, false, |peers, bytes| {
            peers.post_granted(w, granted, |slot| copy_packed(bytes, slot))
        });
        match sent {
            Ok(sent) => sent,
            Err(error) => return SendProgress::Fail(error),
        }
    } else {
        peers.post_granted(w, granted, |slot| buf.copy_to(at_byte, slot))
    };
    let Some(sent) = sent else { return SendProgress::Fail(OpError::Unsupported) };
    let len = match striping::count_granted(peers, to, sent) {
        Ok(len) => len,
        Err(push) => return push,
    };
    let Some(op) = sends.table.get_mut(id) else { return SendProgress::Done };
    op.sent += len;
    op.window -= len;
    if op.window > 0 {
        return SendProgress::Sent;
    }
    op.in_data_queue = false;
    if op.sent == buf.len() {
        sends.all_sent(peers, pending, w, id);
    }
    SendProgress::Done
}

/// Handles a packet of this protocol.
pub(in crate::rdm) fn on_recv(
    sends: &mut Sends,
    recvs: &mut Recvs,
    rma_ops: &mut RmaOps,
    peers: &mut Peers,
    pending: &mut Pending,
    a: &Arrival<'_>,
) -> Next {
    match a.packet {
        Packet::Rtm(rtm) => on_rtm(recvs, peers, pending, a, rtm),
        Packet::Cts(cts) => on_cts(sends, rma_ops, peers, a, cts),
        Packet::CtsData(hdr, payload) => on_data(recvs, rma_ops, peers, pending, a, hdr, payload),
        _ => Next::Nothing,
    }
}

// [M5.5]
fn on_rtm(
    recvs: &mut Recvs,
    peers: &mut Peers,
    pending: &mut Pending,
    a: &Arrival<'_>,
    rtm: &Rtm<'_>,
) -> Next {
    let RtmBody::LongCts { msg_length, send_id, cause, .. } = rtm.body else { return Next::Nothing };
    match (cause, a.order) {
        (Cause::Fresh, MsgOrder::Past) => return peers.drop_packet(a, DropReason::Duplicate),
        (Cause::Fresh, _) => {}
        (Cause::ReadNack, _) => return recvs.on_reannouncement(peers, a, rtm, msg_length, send_id),
    }
    let protocol = if rtm.receipt.is_some() { Protocol::DcLongCts } else { Protocol::LongCts };
    let envelope = Envelope::of_rtm(a, rtm, protocol, send_id);
    match recvs.on_first(peers, pending, a, rtm, envelope, (0, false)) {
        FirstPacket::Ended(next) => next,
        FirstPacket::Begun(id) => Next::Ctl(Ctl::Cts(id)),
        FirstPacket::Held(_) | FirstPacket::Dropped => Next::Nothing,
    }
}

/// The receiver of one of our sends grants a window.
// [M1.6]
fn on_cts(sends: &mut Sends, rma_ops: &mut RmaOps, peers: &mut Peers, a: &Arrival<'_>, cts: &Cts) -> Next {
    let id = SlotId::from_raw(cts.send_id);
    if is_rma_id(id) {
        return rma_ops.on_cts(peers, a, cts);
    }
    let op = match sends.table.get_mut(id) {
        Some(op) if op.peer == a.peer && op.state == TxState::Granted && cts.of == CtsFor::Send => op,
        _ => return peers.drop_packet(a, DropReason::BadId),
    };
    // [M5.14]
    if cts.recv_length == 0 {
        return peers.drop_packet(a, DropReason::BadWindow);
    }
    // Replaces what was left, of which there is none from a peer that keeps to the rules.
    op.window = (op.buf.len() - op.sent).min(usize::try_from(cts.recv_length).unwrap_or(usize::MAX));
    op.recv_id = Some(cts.recv_id);
    if !std::mem::replace(&mut op.in_data_queue, true) {
        peers.table[a.peer].queue_mut().grants.push_back(id);
    }
    Next::DriveRails
}

/// Bytes within a window that we granted.
// HOT
fn on_data(
    recvs: &mut Recvs,
    rma_ops: &mut RmaOps,
    peers: &mut Peers,
    pending: &mut Pending,
    a: &Arrival<'_>,
    hdr: &CtsData,
    payload: &[u8],
) -> Next {
    let id = SlotId::from_raw(hdr.recv_id);
    if is_rma_id(id) {
        return rma_ops.on_data(peers, pending, a, id, hdr.seg_offset, payload);
    }
    let moved = peers.table[a.peer].has_failed_over();
    let (op, rxe) = match recvs.rxe(id) {
        Some((op, rxe)) if rxe.envelope.from == a.peer => (op, rxe),
        _ => return peers.drop_packet(a, DropReason::BadId),
    };
    let (at, len, total) = (hdr.seg_offset, payload.len() as u64, rxe.envelope.len);
    if rxe.envelope.protocol.plain() != Protocol::LongCts {
        return peers.drop_packet(a, DropReason::BadId);
    }
    if let Err(why) = window::admit(&mut rxe.received, &mut rxe.window, total, at, len, moved) {
        return peers.drop_packet(a, why);
    }
    op.buf.put(at, payload);
    if rxe.received.bytes() == total {
        let envelope = rxe.envelope;
        recvs.finish(peers, pending, id, &envelope)
    } else if rxe.window == 0 && len > 0 {
        Next::Ctl(Ctl::Cts(id))
    } else {
        Next::Nothing
    }
}
