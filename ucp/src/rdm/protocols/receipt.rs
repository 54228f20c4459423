//! RECEIPT: the end of a delivery complete message. `recv` sends it when the last byte is in the
//! user's buffer; it is queued when there is no room.

use ucs::coll::slots::SlotId;

use crate::rdm::ids::{PeerId, Source};
use crate::rdm::ids::{WireId, is_rma_id};
use crate::rdm::io::{NotPosted, Wire};
use crate::rdm::next::Next;
use crate::rdm::peers::Peers;
use crate::rdm::pending::Pending;
use crate::rdm::rma::RmaOps;
use crate::rdm::send::Sends;

use crate::rdm::op::tx::TxState;
use crate::rdm::protocol::{Arrival, DeliveryComplete, HandlerKind, PacketHandler};
use crate::rdm::trace::DropReason;
use crate::wire::ctl::Receipt;
use crate::wire::rtm::Close;
use crate::wire::{Packet, PktType};

pub(in crate::rdm) const HANDLERS: [PacketHandler; 1] =
    [PacketHandler { ty: PktType::RECEIPT, kind: HandlerKind::Receipt, id_use: None }];

/// Sends a RECEIPT.
pub(in crate::rdm) fn push<W: Wire>(
    peers: &mut Peers,
    w: &mut W,
    to: PeerId,
    send_id: u32,
    msg_id: u32,
) -> Result<(), NotPosted> {
    let hdr = Receipt { send_id, msg_id, connid: Some(peers.wires.own_addr(&peers.table[to]).connid) };
    peers.post(w, to, PktType::RECEIPT, Receipt::LEN, |slot| hdr.write(slot))
}

/// Fast path: takes the RECEIPT of a write or atomic of ours. False: it is another packet, and nothing has
/// happened.
// HOT
#[inline]
pub(in crate::rdm) fn recv_short(
    rma_ops: &mut RmaOps,
    peers: &mut Peers,
    pending: &mut Pending,
    wire: WireId,
    from: Source,
    packet: &[u8],
) -> bool {
    let Some(hdr) = Receipt::read(packet) else { return false };
    let id = SlotId::from_raw(hdr.send_id);
    if !is_rma_id(id) {
        return false;
    }
    let Some(peer) = peers.fast_path_sender(wire, from, hdr.connid) else { return false };
    if !rma_ops.on_ack(peers, pending, peer, id) {
        return false;
    }
    peers.counters.count_fast_path(peer, PktType::RECEIPT);
    true
}

/// Ends a send that the receiver has acknowledged. A RECEIPT before the last byte is sent is refused.
// [M6.2]
pub(in crate::rdm) fn on_recv<W: Wire>(
    sends: &mut Sends,
    rma_ops: &mut RmaOps,
    peers: &mut Peers,
    pending: &mut Pending,
    w: &mut W,
    a: &Arrival<'_>,
) -> Next {
    let Packet::Receipt(receipt) = a.packet else { return Next::Nothing };
    let id = SlotId::from_raw(receipt.send_id);
    if is_rma_id(id) {
        return match rma_ops.on_ack(peers, pending, a.peer, id) {
            true => Next::Nothing,
            false => peers.drop_packet(a, DropReason::BadId),
        };
    }
    match sends.table.get(id) {
        None if receipt.send_id == Close::ID => Next::CloseConfirmed,
        Some(op)
            if op.peer == a.peer
                && op.state == TxState::AllSent
                && op.protocol.sync() == DeliveryComplete::Yes =>
        {
            sends.finish(peers, pending, w, id, Ok(()));
            Next::Nothing
        }
        _ => peers.drop_packet(a, DropReason::BadId),
    }
}
