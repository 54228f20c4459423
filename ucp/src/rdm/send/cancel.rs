//! Ends of sends, puts and gets before they are complete: on request, or with an error.

use ucs::coll::slots::SlotId;

use crate::rdm::Engine;
use crate::rdm::ids::{OpId, PeerId, is_rma_id};
use crate::rdm::io::Wire;
use crate::rdm::op::rma_op::RmaState;
use crate::rdm::op::tx::TxState;
use crate::rdm::peers::peer::Ctl;
use crate::rdm::protocols::peer_error::defer_error;
use crate::rdm::status::OpError;
use crate::wire::MsgClass;
use crate::wire::ctl::ErrorRef;

/// Which sends a cancel ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cancel {
    /// Those of which nothing has gone out: nobody receives the message.
    Unsent,
    /// All that have not ended: the message is withdrawn, and may have been received.
    Unfinished,
}

impl Engine {
    /// Cancels a send, if it is one of `which`; its event says `Cancelled`. A message that has begun is
    /// withdrawn: the peer drops it, or its receive ends with [`OpError::Aborted`]. One that has left as a
    /// whole and waits for its receipt may have been received. False: too late, the peer does not support
    /// PEER_ERROR, or the message belongs to a stream or an active message, of which nothing may be missing.
    // [M10.8]
    pub fn cancel_send<W: Wire>(&mut self, w: &mut W, op: OpId, which: Cancel) -> bool {
        let Some(tx) = self.ops.sends.table.get(op.0) else { return false };
        let (to, msg_id, state) = (tx.peer, tx.msg_id, tx.state);
        match state {
            TxState::Queued => {}
            _ if which == Cancel::Unsent => return false,
            _ if tx.class != MsgClass::Message => return false,
            TxState::AllSent => {
                if self.peers.table.can_send_error(to) {
                    let code = self.peers.abort_code(to, MsgClass::Message, OpError::Cancelled);
                    self.send_ctl(w, to, Ctl::Error { what: ErrorRef::Msg(msg_id), code });
                }
            }
            _ => return end_send(self, w, op.0, OpError::Cancelled, false),
        }
        self.ops.sends.finish(&mut self.peers, &mut self.pending, w, op.0, Err(OpError::Cancelled));
        true
    }
}

/// Aborts a send, put or get that is partly sent: the peer's receive ends with [`OpError::Aborted`], ours
/// with `Cancelled`. False, and nothing happens: nothing or everything is sent, or the peer does not
/// support PEER_ERROR.
// [M10.3]
pub fn abort<W: Wire>(e: &mut Engine, w: &mut W, op: OpId) -> bool {
    if is_rma_id(op.0) {
        abort_rma(e, w, op.0, OpError::Cancelled)
    } else {
        end_send(e, w, op.0, OpError::Cancelled, false)
    }
}

/// Aborts all operations of ours with a peer, as far as it supports PEER_ERROR.
pub fn abort_all<W: Wire>(e: &mut Engine, w: &mut W, peer: PeerId) {
    let sends = e.ops.sends.table.iter().filter(|(_, op)| op.peer == peer).map(|(id, _)| id);
    let rma_ops = e.ops.rma_ops.table.iter().filter(|(_, rma)| rma.peer == peer).map(|(id, _)| id);
    for id in sends.chain(rma_ops).collect::<Vec<_>>() {
        abort(e, w, OpId(id));
    }
}

/// Aborts a put or get of which the peer has told its id, as [`abort`].
pub(in crate::rdm) fn abort_rma<W: Wire>(e: &mut Engine, w: &mut W, id: SlotId, error: OpError) -> bool {
    let Some(rma) = e.ops.rma_ops.table.get(id) else { return false };
    let in_progress = rma.state == RmaState::Moving && rma.is_ours() && !rma.notified && rma.in_flight == 0;
    let (Some(remote_id), true) = (rma.remote_id, in_progress) else { return false };
    let to = rma.peer;
    if !e.peers.table.can_send_error(to) {
        return false;
    }
    let next = e.peers.error_to(to, ErrorRef::Op(remote_id), OpError::Cancelled);
    e.follow(w, to, next);
    e.ops.rma_ops.finish(&mut e.peers, &mut e.pending, id, Err(error));
    true
}

/// Ends a send with an error, and tells the peer that has a part of the message. False: nothing or everything
/// is sent, or the peer does not support PEER_ERROR; then nothing happens unless the send `must_end`.
// [M10.3]
pub(in crate::rdm) fn end_send<W: Wire>(
    e: &mut Engine,
    w: &mut W,
    id: SlotId,
    error: OpError,
    must_end: bool,
) -> bool {
    let Some(op) = e.ops.sends.table.get(id) else { return false };
    let (to, msg_id, class) = (op.peer, op.msg_id, op.class);
    let what = match (op.state, op.recv_id) {
        (TxState::Queued | TxState::AllSent | TxState::Ended, _) => None,
        (TxState::Granted, Some(recv_id)) => Some(ErrorRef::Op(recv_id)),
        (TxState::Granted, None) => Some(ErrorRef::Skip(msg_id)),
        (TxState::Sending | TxState::Exposed | TxState::Nacked, _) => Some(ErrorRef::Msg(msg_id)),
    };
    if let (Some(what), true) = (what, must_end) {
        defer_error(&mut e.peers, to, what, class);
    }
    let what = what.filter(|_| e.peers.table.can_send_error(to));
    if let Some(what) = what {
        let code = e.peers.abort_code(to, class, error);
        e.send_ctl(w, to, Ctl::Error { what, code });
    }
    if what.is_some() || must_end {
        e.ops.sends.finish(&mut e.peers, &mut e.pending, w, id, Err(error));
    }
    what.is_some()
}
