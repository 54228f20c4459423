//! Sends to a user receive QP: untagged messages without a header to peers in zero-copy receive mode
//! (libfabric 1.22 to 2.5; RDM v4 4.8; wire facts 11.3). They have no id, order or acknowledgement.
//! `zcopy_recv` is the other end.

use ucs::coll::slots::SlotId;

use crate::rdm::Engine;
use crate::rdm::ids::PeerId;
use crate::rdm::io::{NotPosted, Wire};
use crate::rdm::op::rx::Envelope;
use crate::rdm::op::tx::{TxOp, TxState};
use crate::rdm::peers::Peers;
use crate::rdm::peers::state::Accepted;
use crate::rdm::pending::Pending;
use crate::rdm::protocol::{DeliveryComplete, Kind, Protocol, SendProgress};
use crate::rdm::send::Sends;
use crate::rdm::send::message::{copy_packed, with_packed};
use crate::rdm::status::OpError;
use crate::rdm::status::PeerError;

/// Sends the message at the head of its peer's queue, or fails if the peer does not take it.
// [M5.10] [M5.11]
pub(in crate::rdm) fn push<W: Wire>(e: &mut Engine, w: &mut W, id: SlotId) -> SendProgress {
    let Some(op) = e.ops.sends.table.get_mut(id) else { return SendProgress::Done };
    let (to, buf) = (op.peer, op.buf);
    let max = w.mtu(to);
    if let Err(error) = fits(op, max) {
        return SendProgress::Fail(error);
    }
    op.protocol = Protocol::UserQp;
    let imm = op.cq_data.map(u32::try_from).transpose();
    if e.zcopy_recv.as_ref().is_some_and(|mode| mode.is_self(&e.peers, to)) {
        return to_self(e, w, id);
    }
    let Ok(imm) = imm else { return SendProgress::Fail(OpError::Unsupported) };
    let Some(qp) = e.peers.table[to].queue.as_ref().and_then(|queue| queue.user_qp) else {
        return SendProgress::Fail(OpError::Unsupported);
    };
    let sent = if buf.has_callbacks() {
        let sent = with_packed(&mut e.peers, to, &buf, 0..buf.len(), true, |_, bytes| {
            w.send_to_user_qp(to, qp, bytes.len(), imm, |slot| copy_packed(bytes, slot))
        });
        match sent {
            Ok(sent) => sent,
            Err(error) => return SendProgress::Fail(error),
        }
    } else {
        w.send_to_user_qp(to, qp, buf.len(), imm, |slot| buf.copy_to(0, slot))
    };
    match sent {
        Ok(_) => {
            e.peers.table[to].state.note_posted(Accepted::Packets, true);
            e.peers.counters.by_peer.of(to).tx_pkts += 1;
            e.ops.sends.all_sent(&mut e.peers, &mut e.pending, w, id);
            SendProgress::Done
        }
        Err(NotPosted::Full) => {
            e.peers.counters.stats.rare.full += 1;
            SendProgress::Full
        }
        Err(NotPosted::Peer(PeerError::NO_RDMA)) => SendProgress::Fail(OpError::Unsupported),
        Err(refused) => refused.into(),
    }
}

impl Sends {
    /// Ends announced messages to a peer that turned out to be in zero-copy receive mode: it will neither
    /// grant nor read them.
    // [M5.11]
    #[cold]
    pub(in crate::rdm) fn refuse_announced<W: Wire>(
        &mut self,
        peers: &mut Peers,
        pending: &mut Pending,
        w: &mut W,
        to: PeerId,
    ) {
        let max = w.mtu(to);
        let long = |op: &TxOp| {
            matches!(op.protocol.plain(), Protocol::LongCts | Protocol::LongRead | Protocol::RuntRead)
        };
        let announced =
            self.table.iter().filter(|(_, op)| op.peer == to && op.state != TxState::Queued && long(op));
        for (id, len) in announced.map(|(id, op)| (id, op.buf.len())).collect::<Vec<_>>() {
            self.finish(peers, pending, w, id, Err(OpError::TooLong { len, max }));
        }
    }
}

/// Sends a message to this worker itself through the queue of arrived packets: two sources for one receive
/// could not be told apart.
fn to_self<W: Wire>(e: &mut Engine, w: &mut W, id: SlotId) -> SendProgress {
    let Some(op) = e.ops.sends.table.get(id) else { return SendProgress::Done };
    let (from, cq_data, buf) = (op.peer, op.cq_data, op.buf);
    // The limit of unexpected messages applies.
    if !e.pending.held_packets.has_unexpected_room(buf.len(), e.peers.cfg.unexpected_hard_max) {
        return SendProgress::Full;
    }
    let len = buf.len() as u64;
    let envelope = Envelope { len, tag: 0, from, msg_id: 0, protocol: Protocol::UserQp, cq_data, send_id: 0 };
    let mut bytes = vec![0; buf.len()];
    buf.copy_to(0, &mut bytes);
    if let Some(error) = buf.error() {
        return SendProgress::Fail(OpError::Datatype(error));
    }
    e.queue_forward(w, envelope, &bytes);
    e.ops.sends.all_sent(&mut e.peers, &mut e.pending, w, id);
    SendProgress::Done
}

/// Checks that the message is untagged, fits one packet and wants no RECEIPT.
fn fits(op: &TxOp, max: usize) -> Result<(), OpError> {
    let begun = op.state != TxState::Queued;
    let sync = op.sync == DeliveryComplete::Yes || op.protocol.sync() == DeliveryComplete::Yes;
    if begun || sync || op.kind() != Kind::Untagged {
        return Err(OpError::Unsupported);
    }
    match op.buf.len() {
        len if len > max => Err(OpError::TooLong { len, max }),
        _ => Ok(()),
    }
}
