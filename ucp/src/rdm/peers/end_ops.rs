//! The operations and incomplete messages that end with a peer.

use crate::rdm::ids::PeerId;
use crate::rdm::io::Wire;
use crate::rdm::op::rx::{RecvRole, RxOp, RxState, Unexpected};
use crate::rdm::op::table::index_of;
use crate::rdm::operations::Operations;
use crate::rdm::peers::Peers;
use crate::rdm::peers::state::PeerFlags;
use crate::rdm::pending::Pending;
use crate::rdm::protocol::{Kind, Protocol};
use crate::rdm::recv::Recvs;
use crate::rdm::recv::discard_queue::drop_discards;
use crate::rdm::recv::streams::{StreamPiece, break_streams};
use crate::rdm::rma::Reads;
use crate::rdm::rma::RmaOps;
use crate::rdm::status::OpError;
use ucs::coll::slots::SlotId;
use ucs::coll::window::seq_diff;

/// Operations that end with a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::rdm) enum EndScope {
    /// Those that need to send to it.
    NeedsReply,
    All,
}

/// Ends the operations that need this peer, and drops its incomplete messages and its queues.
pub(super) fn end_ops<W: Wire>(
    ops: &mut Operations,
    peers: &mut Peers,
    pending: &mut Pending,
    w: &mut W,
    id: PeerId,
    error: OpError,
    scope: EndScope,
) {
    let sends: Vec<_> = ops.sends.table.iter().filter(|(_, op)| op.peer == id).map(|(op, _)| op).collect();
    sends.into_iter().for_each(|op| ops.sends.finish(peers, pending, w, op, Err(error)));
    drop_discards(&mut ops.recvs, &mut ops.reads, peers, pending, w, id);
    ops.rma_ops.end_of_peer(&mut ops.reads, peers, pending, w, id, error);
    ops.recvs.end_of_peer(&mut ops.reads, peers, pending, w, (id, scope), error);
    pending.end_backoff(peers, id.into());
    let peer = &mut peers.table[id];
    peer.state.remove(PeerFlags::SENDS_QUEUED | PeerFlags::UNACKED);
    peer.state.drop_queued_handshake();
    if scope == EndScope::NeedsReply {
        if let Some(queue) = &mut peer.queue {
            queue.ctl.clear();
            queue.unsent_errors.clear();
            queue.forget_ops(&ops.recvs);
        }
        return;
    }
    peer.state.remove(PeerFlags::REORDERING);
    if let Some(mut queue) = peer.queue.take() {
        queue.reorder.clear(&mut pending.held_packets);
    }
}

impl Recvs {
    /// Ends the receives that need this peer, and drops its incomplete messages.
    pub(super) fn end_of_peer<W: Wire>(
        &mut self,
        reads: &mut Reads,
        peers: &mut Peers,
        pending: &mut Pending,
        w: &mut W,
        (id, scope): (PeerId, EndScope),
        error: OpError,
    ) {
        let needs_it = |op: &RxOp| match op.state {
            RxState::Posted => scope == EndScope::All && op.entry.source() == Some(id),
            RxState::Matched(rxe) => self
                .entries
                .get(rxe)
                .is_some_and(|rxe| rxe.envelope.from == id && (scope == EndScope::All || !rxe.is_all_sent())),
            RxState::OnDevice(_) => false,
        };
        let receives: Vec<_> = self.table.iter().filter(|(_, op)| needs_it(op)).map(|(op, _)| op).collect();
        let lost = self.stream_pieces(&receives);
        for receive in receives {
            let rma_read = self.rxe(receive).and_then(|(_, rxe)| rxe.rma_read);
            if rma_read.is_some_and(|rma_read| !reads.stop(w, rma_read, error)) {
                continue;
            }
            if let Some(&RxOp { role: RecvRole::Multi(multi), .. }) = self.table.get(receive) {
                self.close_multi(pending, multi, Err(error));
                continue;
            }
            let Some(&RxOp { state, kind, .. }) = self.table.get(receive) else { continue };
            match state {
                RxState::Posted => {
                    self.match_queues[kind as usize].expected.remove(&mut self.table, index_of(receive))
                }
                RxState::Matched(rxe) => drop(self.entries.remove(rxe)),
                RxState::OnDevice(_) => {}
            }
            let Some(op) = self.table.remove(receive) else { continue };
            self.notify_end(pending, &op, Err(error));
        }
        self.drop_incomplete(reads, peers, pending, w, (id, scope, lost), error);
    }

    /// Drops incomplete messages of a peer, and with them what follows in its stream; `lost` are pieces of it
    /// that receives had matched.
    fn drop_incomplete<W: Wire>(
        &mut self,
        reads: &mut Reads,
        peers: &mut Peers,
        pending: &mut Pending,
        w: &mut W,
        (id, scope, lost): (PeerId, EndScope, Vec<StreamPiece>),
        error: OpError,
    ) {
        let is_ended = |protocol: Protocol| {
            scope == EndScope::All || !matches!(protocol, Protocol::Medium | Protocol::DcMedium)
        };
        let is_incomplete = |held: &Unexpected| {
            let missing = held.received.bytes() < held.envelope.len || held.rma_read.is_some();
            held.envelope.from == id && missing && is_ended(held.envelope.protocol)
        };
        let incomplete = self.unexpected.iter().filter(|(_, held)| is_incomplete(held));
        let mut incomplete: Vec<_> = incomplete.map(|(held, _)| held).collect();
        self.break_streams(peers, id, lost, &mut incomplete);
        for held in incomplete {
            let Some(held) = self.unexpected.remove(held) else { continue };
            if let Some(index) = held.queued {
                self.match_queues[held.kind as usize].unexpected.remove(index);
            }
            held.segments.drain(|_, bytes| pending.held_packets.release_unexpected(bytes));
            pending.held_packets.remove_unexpected();
            if let Some(rma_read) = held.rma_read {
                reads.stop(w, rma_read, error);
            }
            peers.table[id].unexpected -= 1;
        }
    }

    /// Returns the pieces of streams among these receives.
    pub(in crate::rdm) fn stream_pieces(&mut self, receives: &[SlotId]) -> Vec<StreamPiece> {
        let mut pieces = Vec::new();
        for &id in receives {
            if let Some((op, rxe)) = self.rxe(id)
                && op.kind == Kind::Stream
            {
                pieces.push(StreamPiece { tag: Some(rxe.envelope.tag), msg_id: rxe.envelope.msg_id });
            }
        }
        pieces
    }

    /// Breaks streams where a piece is lost, matched (`lost`) or not: the messages behind it are added to
    /// `incomplete`.
    // [M11.7]
    pub(in crate::rdm) fn break_streams(
        &mut self,
        peers: &mut Peers,
        id: PeerId,
        mut lost: Vec<StreamPiece>,
        incomplete: &mut Vec<SlotId>,
    ) {
        let of_stream = |held: &Unexpected| held.kind == Kind::Stream && held.envelope.from == id;
        let held =
            incomplete.iter().filter_map(|&held| self.unexpected.get(held)).filter(|held| of_stream(held));
        lost.extend(
            held.map(|held| StreamPiece { tag: Some(held.envelope.tag), msg_id: held.envelope.msg_id }),
        );
        lost.iter().for_each(|piece| break_streams(peers, id, piece.tag));
        let behind = |held: &Unexpected| {
            let (tag, msg_id) = (held.envelope.tag, held.envelope.msg_id);
            let is_before = |piece: &StreamPiece| {
                piece.tag.is_none_or(|of| of == tag) && seq_diff(msg_id, piece.msg_id) > 0
            };
            of_stream(held) && lost.iter().any(is_before)
        };
        let all = self.unexpected.iter().filter(|(_, held)| behind(held)).map(|(held, _)| held);
        let more: Vec<_> = all.filter(|held| !incomplete.contains(held)).collect();
        incomplete.extend(more);
    }

    /// True if a receive, or an operation of the peer, waits for its packets; packets in its reorder window
    /// count.
    pub(in crate::rdm) fn is_awaited(&self, peers: &Peers, rma_ops: &RmaOps, id: PeerId) -> bool {
        let needs_it = |op: &RxOp| match op.state {
            RxState::Posted => op.entry.source() == Some(id),
            RxState::Matched(rxe) => self.entries.get(rxe).is_some_and(|i| i.envelope.from == id),
            RxState::OnDevice(_) => false,
        };
        let is_incomplete = |held: &Unexpected| {
            let missing = held.received.bytes() < held.envelope.len || held.rma_read.is_some();
            held.envelope.from == id && missing
        };
        peers.table[id].state.has(PeerFlags::REORDERING)
            || self.table.iter().any(|(_, op)| needs_it(op))
            || self.unexpected.iter().any(|(_, held)| is_incomplete(held))
            || rma_ops.table.iter().any(|(_, rma)| rma.peer == id)
    }
}
