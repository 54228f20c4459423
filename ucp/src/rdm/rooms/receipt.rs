//! RECEIPT: the end of a delivery complete message. Owed by `incoming` when the last byte is in the user's buffer,
//! queued by `outgoing` when there is no room.

use ucs::coll::slots::SlotId;

use crate::rdm::Engine;
use crate::rdm::event::Reason;
use crate::rdm::io::{PeerId, Refused, Wire};
use crate::rdm::op::one::is_one;
use crate::rdm::op::tx::TxState;
use crate::rdm::room::{Arrival, PktRow, Room, Sync};
use crate::wire::ctl::Receipt;
use crate::wire::{Packet, PktType};

pub(in crate::rdm) const ROWS: [PktRow; 1] =
    [PktRow { ty: PktType::RECEIPT, room: Room::Receipt, order: None }];

/// Sends one.
pub(in crate::rdm) fn push<W: Wire>(
    e: &mut Engine,
    w: &mut W,
    to: PeerId,
    send_id: u32,
    msg_id: u32,
) -> Result<(), Refused> {
    let hdr = Receipt { send_id, msg_id, connid: Some(e.own(&e.peers[to]).connid) };
    e.post(w, to, PktType::RECEIPT, Receipt::LEN, |slot| hdr.write(slot))
}

/// The message has arrived. A receiver cannot know that before all is out.
// [M6.2]
pub(in crate::rdm) fn on_recv<W: Wire>(e: &mut Engine, w: &mut W, a: &Arrival<'_>) {
    let Packet::Receipt(receipt) = a.packet else { return };
    let id = SlotId::from_raw(receipt.send_id);
    if is_one(id) {
        return e.on_one_receipt(a, id);
    }
    match e.tx.get(id) {
        Some(op) if op.peer == a.peer && op.state == TxState::AllOut && op.row.sync() == Sync::Yes => {
            e.finish_tx(w, id, Ok(()));
        }
        _ => e.drop_packet(a, Reason::BadId),
    }
}
