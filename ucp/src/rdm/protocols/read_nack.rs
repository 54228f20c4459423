//! READ_NACK: a receiver that cannot read asks the sender for packets (RDM v4 9.2). The sender answers with a
//! LONGCTS that carries the ids of the first request and no data, then continues as long-CTS. For writes see
//! `write_read`.

use ucs::coll::slots::SlotId;

use crate::rdm::ids::{PeerId, is_rma_id};
use crate::rdm::io::{NotPosted, Wire};
use crate::rdm::next::Next;
use crate::rdm::peers::Peers;
use crate::rdm::pending::Pending;
use crate::rdm::recv::Recvs;
use crate::rdm::rma::RmaOps;
use crate::rdm::send::Sends;

use crate::rdm::op::tx::TxState;
use crate::rdm::peers::peer::{Ctl, PartialMsg};
use crate::rdm::peers::state::PeerFlags;
use crate::rdm::protocol::{Arrival, HandlerKind, PacketHandler, Protocol};
use crate::rdm::trace::DropReason;
use crate::wire::ctl::ReadNack;
use crate::wire::rtm::Rtm;
use crate::wire::{Packet, PktType};

pub(in crate::rdm) const HANDLERS: [PacketHandler; 1] =
    [PacketHandler { ty: PktType::READ_NACK, kind: HandlerKind::ReadNack, id_use: None }];

/// Sends a READ_NACK.
pub(in crate::rdm) fn push<W: Wire>(
    peers: &mut Peers,
    w: &mut W,
    to: PeerId,
    (send_id, recv_id): (u32, u32),
    not_now: bool,
) -> Result<(), NotPosted> {
    let hdr =
        ReadNack { send_id, recv_id, not_now, connid: Some(peers.wires.own_addr(&peers.table[to]).connid) };
    peers.post(w, to, PktType::READ_NACK, ReadNack::LEN, |slot| hdr.write(slot))?;
    peers.counters.stats.rare.nacks_sent += 1;
    peers.counters.stats.rare.nacks_by_choice += u64::from(not_now);
    Ok(())
}

/// The receiver of one of our messages, or the target of one of our writes, cannot read it.
// [M7.6]
pub(in crate::rdm) fn on_recv<W: Wire>(
    sends: &mut Sends,
    rma_ops: &mut RmaOps,
    peers: &mut Peers,
    pending: &mut Pending,
    w: &mut W,
    a: &Arrival<'_>,
) -> Next {
    let Packet::ReadNack(nack) = a.packet else { return Next::Nothing };
    let id = SlotId::from_raw(nack.send_id);
    if is_rma_id(id) {
        return rma_ops.on_nack(peers, pending, w, a, id);
    }
    let op = match sends.table.get_mut(id) {
        Some(op) if op.peer == a.peer && op.state == TxState::Exposed => op,
        _ => return peers.drop_packet(a, DropReason::BadId),
    };
    op.state = TxState::Nacked;
    op.protocol = Protocol::LongCts.with(op.sync);
    // A device may read other memory, so it is asked each time. The system denies the RMA-only lane for good.
    // [M11.13] [M11.14]
    if let Some(reg) = &op.reg
        && w.rma_address(reg).is_some()
    {
        match nack.not_now {
            true => w.on_offer_result(a.peer, reg, op.buf.len(), false),
            false => peers.table[a.peer].state.insert(PeerFlags::READ_DENIED),
        }
    }
    peers.counters.stats.rare.nacks_received += 1;
    sends.revoke_regs(peers, w, id, W::release);
    Next::Ctl(Ctl::Reannounce(id))
}

/// Announces a message once more, to be sent.
pub(in crate::rdm) fn push_reannouncement<W: Wire>(
    sends: &mut Sends,
    peers: &mut Peers,
    w: &mut W,
    to: PeerId,
    id: SlotId,
) -> Result<(), NotPosted> {
    let op = match sends.table.get(id) {
        Some(op) if op.peer == to && op.state == TxState::Nacked => op,
        _ => return Ok(()),
    };
    op.message().post_reannouncement(peers, w, op.protocol, (id.raw(), op.msg_id))?;
    if let Some(op) = sends.table.get_mut(id) {
        op.state = TxState::Granted;
    }
    Ok(())
}

impl Recvs {
    /// The answer to our READ_NACK: from here on the message is a long-CTS one, of which the head may have
    /// come.
    // [M7.6]
    pub(in crate::rdm) fn on_reannouncement(
        &mut self,
        peers: &mut Peers,
        a: &Arrival<'_>,
        rtm: &Rtm<'_>,
        len: u64,
        send_id: u32,
    ) -> Next {
        let Some(PartialMsg::Rx(rx)) = peers.table.begun_msg(a, rtm) else {
            return peers.drop_packet(a, DropReason::BadId);
        };
        match self.rxe(rx) {
            Some((_, rxe)) if rxe.nack && rxe.envelope.len == len && rtm.payload.is_empty() => {
                rxe.nack = false;
                rxe.envelope.send_id = send_id;
                let protocol = if rtm.receipt.is_some() { Protocol::DcLongCts } else { Protocol::LongCts };
                rxe.envelope.protocol = protocol;
            }
            _ => return peers.drop_packet(a, DropReason::BadSegment),
        }
        peers.table.end_msg(a, rtm);
        Next::Ctl(Ctl::Cts(rx))
    }
}
