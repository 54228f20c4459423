//! Sender: sends the address and key of its memory in LONGREAD or RUNTREAD packets, and completes when EOR
//! has come.

use ucs::coll::slots::SlotId;

use crate::rdm::ids::{PeerId, is_rma_id};
use crate::rdm::io::{RegAccess, Wire};
use crate::rdm::next::Next;
use crate::rdm::op::tx::TxState;
use crate::rdm::peers::Peers;
use crate::rdm::pending::Pending;
use crate::rdm::protocol::{Arrival, DeliveryComplete, Protocol, SendProgress};
use crate::rdm::rails::rail_set;
use crate::rdm::rma::RmaOps;
use crate::rdm::send::Sends;
use crate::rdm::trace::DropReason;
use crate::wire::ctl::Eor;
use crate::wire::rtm::{LongRead, RuntRead};
use crate::wire::{Iovs, MAX_IOV, RmaIov};

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
    let message = op.message();
    let posted = message.post(peers, w, None, (max, 0..0), |common| LongRead {
        msg_id: common.msg_id,
        tag: common.tag,
        msg_length: message.buf.len() as u64,
        send_id: id.raw(),
        read_iov,
        opts: common.opts,
    });
    let msg_id = match posted {
        Ok(msg_id) => msg_id,
        Err(refused) => return refused,
    };
    if let Some(op) = sends.table.get_mut(id) {
        op.msg_id = msg_id;
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
    let (message, at_byte, first) = (op.message(), op.sent, op.state == TxState::Queued);
    let len = (runt - at_byte).min(capacity);
    let (part, msg_id) = ((header, at_byte..at_byte + len), (!first).then_some(op.msg_id));
    let posted = message.post(peers, w, msg_id, part, |common| RuntRead {
        msg_id: common.msg_id,
        tag: common.tag,
        msg_length: message.buf.len() as u64,
        send_id: id.raw(),
        seg_offset: at_byte as u64,
        runt_length: runt as u64,
        read_iov,
        opts: common.opts,
    });
    let msg_id = match posted {
        Ok(msg_id) => msg_id,
        Err(refused) => return refused,
    };
    let Some(op) = sends.table.get_mut(id) else { return SendProgress::Done };
    op.msg_id = msg_id;
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
        debug_assert!(protocol.sync() == DeliveryComplete::No);
        peers.counters.count_sent(to, protocol, len);
        self.finish(peers, pending, w, id, Ok(()));
    }
}
