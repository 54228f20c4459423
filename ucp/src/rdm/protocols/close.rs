//! The close: a message that ends a conversation, between two that know it (bit 61). The receiver ends its
//! operations with the sender, acknowledges the close by a RECEIPT, and sends a close of its own. What comes
//! behind belongs to the next conversation (RDM v4 chapter 11).

use crate::rdm::ids::PeerId;
use crate::rdm::io::{NotPosted, Wire};
use crate::rdm::next::Next;
use crate::rdm::peers::Peers;
use crate::rdm::peers::limits::queue_ctl;
use crate::rdm::peers::peer::Ctl;
use crate::rdm::peers::state::PeerFlags;
use crate::rdm::pending::Pending;
use crate::rdm::protocol::{Arrival, HandlerKind, PacketHandler};
use crate::rdm::recv::sequence::MsgIdUse;
use crate::wire::rtm::Close;
use crate::wire::{Packet, PktType};

/// DC_EAGER_MSGRTM that is no close is handled as the others of its kind.
pub(in crate::rdm) const HANDLERS: [PacketHandler; 1] = [PacketHandler {
    ty: PktType::DC_EAGER_MSGRTM,
    kind: HandlerKind::Close,
    id_use: Some(MsgIdUse::Single),
}];

/// Whether a packet is a close.
pub(in crate::rdm) fn is_close(packet: &Packet<'_>) -> bool {
    matches!(packet, Packet::Rtm(rtm) if rtm.close().is_some())
}

/// Acknowledges a close, which is in order.
// [M11.16]
pub(in crate::rdm) fn on_recv(peers: &mut Peers, pending: &mut Pending, a: &Arrival<'_>) -> Next {
    let Packet::Rtm(rtm) = a.packet else { return Next::Nothing };
    let Some((code, taken)) = rtm.close() else { return Next::Nothing };
    let ctl = Ctl::Receipt { send_id: Close::ID, msg_id: rtm.msg_id };
    queue_ctl(peers, pending, a.peer, ctl);
    Next::Closed { code, taken }
}

/// Notes that a close of ours has arrived, if that is what a RECEIPT says.
pub(in crate::rdm) fn on_receipt(peers: &mut Peers, id: PeerId) -> Next {
    let peer = &mut peers.table[id];
    let Some(queue) = &mut peer.queue else { return Next::Nothing };
    queue.closes.unconfirmed = queue.closes.unconfirmed.saturating_sub(1);
    let waits = queue.closes.unconfirmed > 0 && peer.state.has(PeerFlags::CLOSE_UNCONFIRMED);
    peer.state.set(PeerFlags::CLOSE_UNCONFIRMED, waits);
    Next::Drive
}

/// Sends a close that is due to a peer that knows it.
// [M11.15] [M11.17]
pub(in crate::rdm) fn push<W: Wire>(
    peers: &mut Peers,
    w: &mut W,
    to: PeerId,
    code: u32,
) -> Result<(), NotPosted> {
    let peer = &peers.table[to];
    let taken = peer.queue.as_ref().map_or(0, |queue| queue.closes.taken);
    let opts = peers.wires.req_opts(peer, None);
    let hdr = Close { msg_id: peer.next_tx, code, taken, opts };
    peers.post(w, to, PktType::DC_EAGER_MSGRTM, hdr.wire_len(), |slot| hdr.write(slot))?;
    let ordered = peers.keeps_order(to);
    let peer = &mut peers.table[to];
    peer.next_tx = peer.next_tx.wrapping_add(1);
    let closes = &mut peer.queue_mut().closes;
    closes.due = closes.due.saturating_sub(1);
    closes.unconfirmed += 1;
    let due = closes.due > 0;
    peer.state.set(PeerFlags::CLOSE_DUE, due);
    if !ordered {
        peer.state.insert(PeerFlags::CLOSE_UNCONFIRMED);
    }
    Ok(())
}
