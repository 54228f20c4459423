//! RECEIPT: the end of a delivery complete message. Owed by `recv` when the last byte is in the user's
//! buffer, queued by `send` when there is no room.

use ucs::coll::slots::SlotId;

use crate::rdm::Engine;
use crate::rdm::ids::{PeerId, Source};
use crate::rdm::ids::{WireId, is_rma_id};
use crate::rdm::io::{NotPosted, Wire};

use crate::rdm::op::tx::TxState;
use crate::rdm::protocol::{Arrival, HandlerKind, PacketHandler, Sync};
use crate::rdm::trace::DropReason;
use crate::wire::ctl::Receipt;
use crate::wire::{Packet, PktType};

pub(in crate::rdm) const HANDLERS: [PacketHandler; 1] =
    [PacketHandler { ty: PktType::RECEIPT, kind: HandlerKind::Receipt, order: None }];

/// Sends one.
pub(in crate::rdm) fn push<W: Wire>(
    e: &mut Engine,
    w: &mut W,
    to: PeerId,
    send_id: u32,
    msg_id: u32,
) -> Result<(), NotPosted> {
    let hdr = Receipt { send_id, msg_id, connid: Some(e.own(&e.peers[to]).connid) };
    e.post(w, to, PktType::RECEIPT, Receipt::LEN, |slot| hdr.write(slot))
}

/// The RECEIPT of a write or an atomic of ours that waits for it. False, and nothing has happened: it is
/// another. // HOT
#[inline]
pub(in crate::rdm) fn take(e: &mut Engine, wire: WireId, from: Source, packet: &[u8]) -> bool {
    let Some(hdr) = Receipt::read(packet) else { return false };
    let id = SlotId::from_raw(hdr.send_id);
    if !is_rma_id(id) {
        return false;
    }
    let Some(peer) = e.short_sender(wire, from, hdr.connid) else { return false };
    if !e.acknowledged(peer, id) {
        return false;
    }
    e.count_taken(peer, PktType::RECEIPT);
    true
}

/// The message has arrived. A receiver cannot know that before all is out.
// [M6.2]
pub(in crate::rdm) fn on_recv<W: Wire>(e: &mut Engine, w: &mut W, a: &Arrival<'_>) {
    let Packet::Receipt(receipt) = a.packet else { return };
    let id = SlotId::from_raw(receipt.send_id);
    if is_rma_id(id) {
        if !e.acknowledged(a.peer, id) {
            e.drop_packet(a, DropReason::BadId);
        }
        return;
    }
    match e.tx.get(id) {
        Some(op) if op.peer == a.peer && op.state == TxState::AllOut && op.protocol.sync() == Sync::Yes => {
            e.finish_tx(w, id, Ok(()));
        }
        _ => e.drop_packet(a, DropReason::BadId),
    }
}
