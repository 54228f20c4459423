//! EAGER and DC_EAGER: a message in one packet. The short room, the one to read first.
//! The sender writes header and payload into the wire's slot; the receiver copies once, into the user's buffer.

use ucs::coll::slots::SlotId;

use crate::rdm::Engine;
use crate::rdm::ask::SendArgs;
use crate::rdm::io::{PeerId, Refused, Wire};
use crate::rdm::op::cover::Cover;
use crate::rdm::op::rx::Envelope;
use crate::rdm::order::Share;
use crate::rdm::room::{Arrival, Kind, PktRow, Push, Room, Row};
use crate::wire::rtm::{Eager, Rtm};
use crate::wire::{Class, Packet, PktType};

pub(in crate::rdm) const ROWS: [PktRow; 4] = [
    row(PktType::EAGER_MSGRTM),
    row(PktType::EAGER_TAGRTM),
    row(PktType::DC_EAGER_MSGRTM),
    row(PktType::DC_EAGER_TAGRTM),
];

const fn row(ty: PktType) -> PktRow {
    PktRow { ty, room: Room::Eager, order: Some(Share::Alone) }
}

/// Sends now, if it can be done in one go: nothing waits before it, and no receipt is wanted. `None`: it does not fit
/// one packet. // HOT
// [M4.1] [M4.2]
#[inline]
pub(in crate::rdm) fn start<W: Wire>(
    e: &mut Engine,
    w: &mut W,
    to: PeerId,
    class: Class,
    s: &SendArgs,
) -> Option<Result<(), Refused>> {
    let peer = &e.peers[to];
    let kind = Kind::of(s.tag, class);
    let max = Row::Eager.header_len(kind, peer.hdr, s.cq_data.is_some()) + s.buf.len();
    if max > w.mtu(to) {
        return None;
    }
    let hdr = Eager {
        msg_id: peer.next_tx,
        tag: s.tag,
        receipt: None,
        opts: e.opts(peer, s.cq_data).of_class(class),
    };
    let ty = if s.tag.is_some() { PktType::EAGER_TAGRTM } else { PktType::EAGER_MSGRTM };
    let buf = s.buf;
    let posted = e.post(w, to, ty, max, |slot| {
        let at = hdr.write(slot);
        at + buf.copy_to(0, &mut slot[at..])
    });
    if posted.is_ok() {
        let peer = &mut e.peers[to];
        peer.next_tx = peer.next_tx.wrapping_add(1);
        e.stats.count_sent(Row::Eager, buf.len());
        e.by_peer.of(to).tx_bytes += buf.len() as u64;
    }
    Some(posted)
}

/// Sends the op at the head of its peer's queue.
pub(in crate::rdm) fn push<W: Wire>(e: &mut Engine, w: &mut W, id: SlotId) -> Push {
    let Some(op) = e.tx.get(id) else { return Push::Out };
    let (to, row, tag, buf) = (op.peer, op.row, op.tag, op.buf);
    let peer = &e.peers[to];
    let max = row.header_len(op.kind(), peer.hdr, op.cq_data.is_some()) + buf.len();
    if max > w.mtu(to) {
        return Push::Switch(Row::Medium.with(row.sync()));
    }
    let receipt = (row == Row::DcEager).then_some(id.raw());
    let msg_id = peer.next_tx;
    let hdr = Eager { msg_id, tag, receipt, opts: e.opts(peer, op.cq_data).of_class(op.class) };
    let plain = if receipt.is_some() { PktType::DC_EAGER_MSGRTM } else { PktType::EAGER_MSGRTM };
    let ty = PktType(plain.0 + tag.is_some() as u8);
    let posted = e.post(w, to, ty, max, |slot| {
        let at = hdr.write(slot);
        at + buf.copy_to(0, &mut slot[at..])
    });
    if let Err(refused) = posted {
        return refused.into();
    }
    e.peers[to].next_tx = msg_id.wrapping_add(1);
    e.all_out(w, id);
    Push::Out
}

/// A whole message. // HOT
// [M5.1]
#[inline]
pub(in crate::rdm) fn on_recv<W: Wire>(e: &mut Engine, w: &mut W, a: &Arrival<'_>) {
    let Packet::Rtm(rtm) = a.packet else { return };
    let envelope = envelope(a.peer, rtm);
    match e.take_expected(rtm, a.peer) {
        Some(id) => {
            let Some(mut op) = e.rx.remove(id) else { return };
            op.buf.put(0, rtm.payload);
            e.end_rx(w, op, &envelope);
        }
        None => {
            let mut cover = Cover::new();
            cover.add(0, envelope.len);
            e.hold_unexpected(a, rtm, envelope, 0, cover);
        }
    }
}

#[inline]
fn envelope(from: PeerId, rtm: &Rtm<'_>) -> Envelope {
    Envelope {
        len: rtm.payload.len() as u64,
        tag: rtm.tag.unwrap_or(0),
        from,
        msg_id: rtm.msg_id,
        row: if rtm.receipt.is_some() { Row::DcEager } else { Row::Eager },
        cq_data: rtm.opts.cq_data,
        send_id: rtm.receipt.unwrap_or(0),
    }
}
