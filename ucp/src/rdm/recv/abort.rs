//! Ends of messages that have begun to arrive: their senders have given them up, or nobody will receive them.

use ucs::coll::slots::SlotId;

use crate::rdm::Engine;
use crate::rdm::ids::PeerId;
use crate::rdm::io::Wire;
use crate::rdm::next::Next;
use crate::rdm::op::rx::Unexpected;
use crate::rdm::peers::Peers;
use crate::rdm::peers::limits::queue_ctl;
use crate::rdm::peers::peer::PartialMsg;
use crate::rdm::pending::Pending;
use crate::rdm::protocol::{DeliveryComplete, Kind};
use crate::rdm::recv::Recvs;
use crate::rdm::recv::streams::{StreamPiece, break_streams};
use crate::rdm::rma::Reads;
use crate::rdm::status::{ABORTED, OpError};
use crate::wire::ctl::ErrorRef;

impl Engine {
    /// Ends a stream of a peer: what has arrived of it and arrives later is dropped. No peer: the stream
    /// of a connection, from which nobody receives any more.
    // [M11.7]
    pub fn end_stream<W: Wire>(&mut self, w: &mut W, from: Option<PeerId>, tag: u64) {
        let is_of = |held: &Unexpected| {
            let of = &held.envelope;
            held.kind == Kind::Stream && of.tag == tag && from.is_none_or(|from| of.from == from)
        };
        self.ops.recvs.notify_senders(&mut self.peers, &mut self.pending, is_of);
        self.ops.recvs.drop_unexpected_of(&mut self.ops.reads, &mut self.peers, &mut self.pending, w, is_of);
        match from {
            None => self.peers.streams.close(tag),
            Some(from) if self.peers.table.get(from).is_some() => {
                break_streams(&mut self.peers, from, Some(tag));
            }
            Some(_) => {}
        }
    }
}

impl Recvs {
    /// Finds a message of this peer that is incomplete, or whose sender still waits for its receipt.
    pub(in crate::rdm) fn find_message(
        &self,
        peers: &Peers,
        from: PeerId,
        msg_id: u32,
    ) -> Option<PartialMsg> {
        let parts =
            peers.table[from].queue.as_ref().and_then(|queue| queue.partial_msgs.get(&msg_id).copied());
        let matched = || {
            let of = |id| self.entries.get(id).map(|rxe| (rxe.envelope.from, rxe.envelope.msg_id));
            let mut all = self.table.iter().filter(|(_, op)| op.rxe().and_then(of) == Some((from, msg_id)));
            all.next().map(|(id, _)| PartialMsg::Rx(id))
        };
        let held = || {
            let mut all = self.unexpected.iter().filter(|(_, held)| {
                let envelope = &held.envelope;
                let missing = held.received.bytes() < envelope.len || held.rma_read.is_some();
                let is_open = missing || envelope.protocol.sync() == DeliveryComplete::Yes;
                envelope.from == from && envelope.msg_id == msg_id && is_open
            });
            all.next().map(|(id, _)| PartialMsg::Unexpected(id))
        };
        parts.or_else(matched).or_else(held)
    }

    /// Drops an unexpected message that is aborted.
    pub(in crate::rdm) fn drop_unexpected<W: Wire>(
        &mut self,
        reads: &mut Reads,
        peers: &mut Peers,
        pending: &mut Pending,
        w: &mut W,
        id: SlotId,
        error: OpError,
    ) {
        let Some(held) = self.unexpected.remove(id) else { return };
        let (from, msg_id) = (held.envelope.from, held.envelope.msg_id);
        if let Some(index) = held.queued {
            self.match_queues[held.kind as usize].unexpected.remove(index);
        }
        held.segments.drain(|_, bytes| pending.held_packets.release_unexpected(bytes));
        if let Some(rma_read) = held.rma_read {
            reads.stop(w, rma_read, error);
        }
        peers.table.forget_partial_msg(from, msg_id, PartialMsg::Unexpected(id));
        peers.forget_unexpected(pending, from);
    }

    /// Drops a peer's unexpected messages of one kind.
    pub(in crate::rdm) fn drop_all_unexpected<W: Wire>(
        &mut self,
        reads: &mut Reads,
        peers: &mut Peers,
        pending: &mut Pending,
        w: &mut W,
        from: PeerId,
        kind: Kind,
    ) {
        let is_one = |held: &Unexpected| held.kind == kind && held.envelope.from == from;
        self.drop_unexpected_of(reads, peers, pending, w, is_one);
    }

    /// Drops these unexpected messages.
    fn drop_unexpected_of<W: Wire>(
        &mut self,
        reads: &mut Reads,
        peers: &mut Peers,
        pending: &mut Pending,
        w: &mut W,
        is_one: impl Fn(&Unexpected) -> bool,
    ) {
        let all: Vec<_> = self.unexpected.iter().filter(|(_, held)| is_one(held)).map(|(id, _)| id).collect();
        all.into_iter().for_each(|id| self.drop_unexpected(reads, peers, pending, w, id, OpError::Cancelled));
    }

    /// Tells the senders of these unexpected messages that nobody will receive them.
    fn notify_senders(&self, peers: &mut Peers, pending: &mut Pending, is_one: impl Fn(&Unexpected) -> bool) {
        let all = self.unexpected.iter().map(|(_, held)| held).filter(|held| is_one(held));
        all.for_each(|held| notify_sender(peers, pending, held));
    }

    /// Breaks a stream of a peer before a message that is, or may be, a piece of it.
    // [M11.7]
    pub(in crate::rdm) fn end_stream_before<W: Wire>(
        &mut self,
        reads: &mut Reads,
        peers: &mut Peers,
        pending: &mut Pending,
        w: &mut W,
        from: PeerId,
        piece: StreamPiece,
    ) {
        let mut behind = Vec::new();
        self.break_streams(peers, from, vec![piece], &mut behind);
        for held in behind.iter().filter_map(|&id| self.unexpected.get(id)) {
            notify_sender(peers, pending, held);
        }
        behind.into_iter().for_each(|id| {
            self.drop_unexpected(reads, peers, pending, w, id, OpError::Aborted(from, ABORTED))
        });
    }

    /// Ends a matched receive whose message is aborted.
    pub(in crate::rdm) fn fail_matched<W: Wire>(
        &mut self,
        reads: &mut Reads,
        peers: &mut Peers,
        pending: &mut Pending,
        w: &mut W,
        rx: SlotId,
        error: OpError,
    ) {
        let Some((_, rxe)) = self.rxe(rx) else { return };
        let (from, msg_id, rma_read) = (rxe.envelope.from, rxe.envelope.msg_id, rxe.rma_read);
        peers.table.forget_partial_msg(from, msg_id, PartialMsg::Rx(rx));
        if rma_read.is_some_and(|rma_read| !reads.stop(w, rma_read, error)) {
            return;
        }
        self.fail(pending, rx, error);
    }
}

/// Tells the sender of an unexpected message that nobody will receive it, if it waits for an answer.
// [M10.3]
fn notify_sender(peers: &mut Peers, pending: &mut Pending, held: &Unexpected) {
    let from = held.envelope.from;
    let Some(send_id) = held.waiting_send().filter(|_| peers.table.is_up(from)) else { return };
    let error = OpError::Aborted(from, ABORTED);
    if let Next::Ctl(ctl) = peers.error_to(from, ErrorRef::Op(send_id), error) {
        queue_ctl(peers, pending, from, ctl);
    }
}
