//! The operations with a peer that end with one of several endpoints to it.

use ucs::coll::slots::SlotId;

use crate::rdm::Engine;
use crate::rdm::ids::PeerId;
use crate::rdm::io::Wire;
use crate::rdm::op::rma_op::RmaOp;
use crate::rdm::op::send_buf::SendBuf;
use crate::rdm::op::tx::TxState;
use crate::rdm::send::cancel;
use crate::rdm::status::OpError;
use crate::wire::MsgClass;

/// A send that has ended before the peer had all of its message.
#[derive(Clone, Copy, Debug)]
pub struct EndedSend {
    /// Class of the message.
    pub class: MsgClass,
    /// Tag of the message; 0 for an untagged one.
    pub tag: u64,
    /// Bytes of the message; valid during the call.
    pub buf: SendBuf,
    /// Whether the peer has nothing of it, and does not know of it.
    pub is_unsent: bool,
}

/// Ends those of our operations with a peer whose user value `is_one` accepts, and calls `ended` for each
/// send among them. The peer drops what it has of their messages, except for announced data: the caller
/// sends a note for these, and for a stream that lacks an unsent piece. Operations that a device carries
/// out end when it lets go of the caller's memory.
pub fn end_ops_where<W: Wire>(
    e: &mut Engine,
    w: &mut W,
    (peer, error): (PeerId, OpError),
    is_one: impl Fn(u64) -> bool,
    mut ended: impl FnMut(EndedSend),
) {
    let sends = e.ops.sends.table.iter().filter(|(_, op)| op.peer == peer && is_one(op.user));
    for id in sends.map(|(id, _)| id).collect::<Vec<_>>() {
        let Some(op) = e.ops.sends.table.get(id) else { continue };
        let class = op.class;
        let is_unsent = op.state == TxState::Queued;
        if op.state != TxState::AllSent {
            ended(EndedSend { class, tag: op.tag.unwrap_or(0), buf: op.buf, is_unsent });
        }
        match class {
            MsgClass::AmData => e.ops.sends.finish(&mut e.peers, &mut e.pending, w, id, Err(error)),
            _ => _ = cancel::end_send(e, w, id, error, true),
        }
    }
    let is_ours = |rma: &RmaOp| rma.peer == peer && rma.is_ours() && !rma.notified && is_one(rma.user);
    let rma_ops = e.ops.rma_ops.table.iter().filter(|(_, rma)| is_ours(rma));
    let rma_ops: Vec<SlotId> = rma_ops.map(|(id, _)| id).collect();
    for &id in &rma_ops {
        cancel::abort_rma(e, w, id, error);
    }
    e.ops.rma_ops.end_all(&mut e.ops.reads, &mut e.peers, &mut e.pending, w, rma_ops, error);
    e.pending.schedule(&mut e.peers, peer);
}
