//! Progress of our one-sided operations: their start from a peer's queue, the features they need, their end.

use ucs::coll::slots::SlotId;

use crate::rdm::Engine;
use crate::rdm::features::{direct_read, direct_write};
use crate::rdm::ids::PeerId;
use crate::rdm::io::Wire;
use crate::rdm::op::rma_op::{Ack, Atomic, Job, RmaOp, RmaState};
use crate::rdm::peers::Peers;
use crate::rdm::peers::peer::PeerTable;
use crate::rdm::peers::state::PeerFlags;
use crate::rdm::pending::Pending;
use crate::rdm::protocol::SendProgress;
use crate::rdm::protocol::Step;
use crate::rdm::protocols::{atomic, direct, handshake, read, write, write_read};
use crate::rdm::rma::Reads;
use crate::rdm::rma::RmaOps;
use crate::rdm::rma::args::RmaProtocol;
use crate::rdm::rma::ops::FENCE;
use crate::rdm::status::OpError;
use crate::rdm::types::{Emulation, EngineEvent};
use crate::wire::Features;

/// Does one step for the operation or fence at the head of a peer's queue.
pub(in crate::rdm) fn step_rma<W: Wire>(e: &mut Engine, w: &mut W, id: PeerId, op: SlotId) -> Step {
    let Some(rma) = e.ops.rma_ops.table.get(op) else {
        let waits = op == FENCE && e.peers.table[id].queue.as_ref().is_some_and(|queue| queue.open_rma > 0);
        if waits {
            return Step::Idle;
        }
        e.peers.table.pop_send(id);
        return Step::Done;
    };
    // It might overtake the close, and belong to the conversation before. [M11.17]
    if e.peers.table[id].state.has(PeerFlags::CLOSE_UNCONFIRMED) {
        return Step::Idle;
    }
    let queued = rma.protocol;
    let push = match e.ops.rma_ops.may_start(&mut e.peers, w, id, op) {
        Some(push) => push,
        None => match e.ops.rma_ops.table.get(op).map_or(queued, |rma| rma.protocol) {
            RmaProtocol::EagerWrite | RmaProtocol::LongCtsWrite => {
                write::push(&mut e.ops.rma_ops, &mut e.peers, &mut e.pending, w, op)
            }
            RmaProtocol::ShortRead | RmaProtocol::LongCtsRead => {
                read::push(&mut e.ops.rma_ops, &mut e.peers, w, op)
            }
            RmaProtocol::WriteAtomic | RmaProtocol::FetchAtomic | RmaProtocol::CompareAtomic => {
                atomic::push(&mut e.ops.rma_ops, &mut e.peers, &mut e.pending, w, op)
            }
            RmaProtocol::DirectWrite | RmaProtocol::DirectRead => {
                direct::push(&mut e.ops.rma_ops, &mut e.peers, &mut e.pending, w, op)
            }
            RmaProtocol::LongReadWrite => write_read::push(&mut e.ops.rma_ops, &mut e.peers, w, op),
        },
    };
    match push {
        SendProgress::Sent | SendProgress::Switch(_) => Step::Done,
        SendProgress::AwaitHandshake => Step::Idle,
        SendProgress::Full => Step::Full,
        SendProgress::PeerFailed(fault) if e.try_failover(w, id, fault) => Step::Done,
        SendProgress::Done | SendProgress::Fail(_) | SendProgress::PeerFailed(_) => {
            e.peers.table.pop_send(id);
            if let Some(rma) = e.ops.rma_ops.table.get_mut(op)
                && !std::mem::replace(&mut rma.fence_counted, true)
            {
                e.peers.table[id].queue_mut().open_rma += 1;
            }
            rma_left_queue(e, w, id, op, push)
        }
    }
}

impl RmaOps {
    pub(in crate::rdm) fn report_end(
        &mut self,
        pending: &mut Pending,
        id: SlotId,
        user: u64,
        result: Result<(), OpError>,
    ) {
        match &mut self.in_call {
            Some((call_id, call_result)) if *call_id == id => *call_result = Some(result),
            _ => pending.events.push_back(EngineEvent::RmaDone { user, result }),
        }
    }

    /// Completes an operation for the caller; the acknowledgement is still to come.
    pub(in crate::rdm) fn complete_locally(&mut self, pending: &mut Pending, id: SlotId) {
        let Some(rma) = self.table.get_mut(id) else { return };
        if !std::mem::replace(&mut rma.notified, true) {
            let user = rma.user;
            self.report_end(pending, id, user, Ok(()));
        }
    }

    /// Drops a response that the peer does not wait for any more.
    pub(in crate::rdm) fn drop_response(&mut self, pending: &mut Pending, id: SlotId) {
        if let Some(RmaOp { job: Job::Response(bytes), .. }) = self.table.remove(id) {
            pending.held_packets.release(bytes);
        }
    }

    /// Checks what needs the peer's HANDSHAKE: acknowledged forms and RDMA. `None`: go on.
    // [M3.7] [M8.9]
    pub(in crate::rdm) fn may_start<W: Wire>(
        &mut self,
        peers: &mut Peers,
        w: &mut W,
        id: PeerId,
        op: SlotId,
    ) -> Option<SendProgress> {
        let rma = self.table.get(op).filter(|rma| rma.state == RmaState::Queued)?;
        if rma.len == 0 && rma.cq_data.is_none() && !rma.protocol.is_emulated() {
            return None;
        }
        let by_device = by_device(peers, w, rma);
        let refused = peers.cfg.emulation == Emulation::Refused;
        let peer = &peers.table[id];
        let rma = self.table.get_mut(op)?;
        // Flush writes are not emulation, nor are operations without bytes.
        if refused && !rma.notified && rma.len > 0 && (rma.protocol.is_emulated() || !by_device) {
            return Some(SendProgress::Fail(OpError::Emulated));
        }
        if !by_device {
            rma.go_by_packets();
            if rma.ack == Ack::No {
                return None;
            }
        }
        if peer.state.has(PeerFlags::HANDSHAKE_RECEIVED) {
            if by_device || peer.features.contains(Features::DELIVERY_COMPLETE) {
                return None;
            }
            if rma.ack == Ack::Wanted {
                return Some(SendProgress::Fail(OpError::Unsupported));
            }
            rma.ack = Ack::No;
            return None;
        }
        Some(match handshake::trigger(peers, w, id) {
            Ok(()) => SendProgress::AwaitHandshake,
            Err(refused) => refused.into(),
        })
    }

    /// Ends an operation. Its ids in queues become stale.
    pub(in crate::rdm) fn finish(
        &mut self,
        peers: &mut Peers,
        pending: &mut Pending,
        id: SlotId,
        result: Result<(), OpError>,
    ) {
        let Some(rma) = self.table.get_mut(id) else { return };
        // A peer may still read it.
        let ended = if result.is_ok() { &mut pending.unused_regs } else { &mut pending.revoked_regs };
        if !rma.compact {
            ended.extend(rma.regs.iter_mut().filter_map(Option::take));
            ended.extend(rma.rail_plan.iter_mut().flat_map(|rail_plan| rail_plan.take_regs()));
        }
        let (ours, detached, counted, notified) =
            (rma.is_ours(), rma.detached, rma.fence_counted, rma.notified);
        let (peer_id, user) = (rma.peer, rma.user);
        self.table.discard(id);
        if !ours {
            return;
        }
        if !detached {
            let peer = &mut peers.table[peer_id];
            peer.outstanding -= 1;
            if counted && let Some(queue) = &mut peer.queue {
                queue.open_rma -= 1;
                // A fence may be waiting for this.
                if peer.state.has(PeerFlags::SENDS_QUEUED) {
                    pending.schedule(peers, peer_id);
                }
            }
        }
        match result {
            _ if !notified => self.report_end(pending, id, user, result),
            // The caller was told that it is done: the next flush reports the refusal.
            Err(error) if error.is_refusal() => peers.refused_ops.note(peer_id, error),
            _ => {}
        }
    }

    /// Notes that the wire has taken the last byte of a write, or the request of an atomic.
    // HOT
    pub(in crate::rdm) fn all_sent(&mut self, peers: &mut Peers, pending: &mut Pending, id: SlotId) {
        let Some(rma) = self.table.get_mut(id) else { return };
        rma.state = RmaState::AllSent;
        let (protocol, len, ack, peer, notified) = (rma.protocol, rma.len, rma.ack, rma.peer, rma.notified);
        let waits = matches!(&rma.job, Job::Atomic(Atomic { result: Some(_), .. }));
        peers.counters.count_initiated(peer, protocol, len);
        match ack {
            _ if waits => {}
            Ack::Wanted => {}
            Ack::IfAble => self.complete_locally(pending, id),
            Ack::No => {
                // A write that only asked for an acknowledgement has none to ask for.
                if !notified {
                    peers.table[peer].state.insert(PeerFlags::UNACKED);
                }
                self.finish(peers, pending, id, Ok(()));
            }
        }
    }

    /// Ends all operations with a peer, at either end.
    pub(in crate::rdm) fn end_of_peer<W: Wire>(
        &mut self,
        reads: &mut Reads,
        peers: &mut Peers,
        pending: &mut Pending,
        w: &mut W,
        peer: PeerId,
        error: OpError,
    ) {
        let ids: Vec<_> = self.table.iter().filter(|(_, rma)| rma.peer == peer).map(|(id, _)| id).collect();
        self.end_all(reads, peers, pending, w, ids, error);
    }

    /// Ends these operations with an error.
    pub(in crate::rdm) fn end_all<W: Wire>(
        &mut self,
        reads: &mut Reads,
        peers: &mut Peers,
        pending: &mut Pending,
        w: &mut W,
        ids: Vec<SlotId>,
        error: OpError,
    ) {
        for id in ids {
            let Some(rma) = self.table.get_mut(id) else { continue };
            if rma.detached {
                continue;
            }
            if rma.in_flight > 0 {
                // The device still uses the caller's memory: the event follows later.
                rma.detached = true;
                rma.failed.get_or_insert(error);
                let (of, counted) = (rma.peer, rma.fence_counted);
                peers.table[of].outstanding -= 1;
                if counted && let Some(queue) = &mut peers.table[of].queue {
                    queue.open_rma -= 1;
                }
                continue;
            }
            let rma_read = rma.rma_read;
            if rma_read.is_some_and(|rma_read| !reads.stop(w, rma_read, error)) {
                // The device still writes to our memory: kept until that is withdrawn.
                if let Some(rma) = self.table.get_mut(id) {
                    rma.detached = true;
                }
                continue;
            }
            match self.table.get(id).map(|rma| &rma.job) {
                Some(Job::Response(_)) => self.drop_response(pending, id),
                _ => self.finish(peers, pending, id, Err(error)),
            }
        }
    }
}

impl Pending {
    /// Releases registrations of ended operations, before their events are taken.
    pub(in crate::rdm) fn release_regs<W: Wire>(&mut self, w: &mut W) {
        self.unused_regs.drain(..).for_each(|reg| w.release(reg));
        self.revoked_regs.drain(..).for_each(|reg| w.revoke(reg));
    }
}

/// True if a device is to carry the bytes, as far as the peer has said. Registration may still fail.
pub(in crate::rdm) fn by_device<W: Wire>(peers: &Peers, w: &W, rma: &RmaOp) -> bool {
    let (peer, rdma) = (&peers.table[rma.peer], peers.rdma(rma.peer));
    let features = peer.state.has(PeerFlags::HANDSHAKE_RECEIVED).then_some(peer.features);
    // The key is of the home device, unless one of the current device is known.
    let key_fits = !peers.table[rma.peer].has_failed_over()
        || rma.first_key.is_some()
        || rma.protocol == RmaProtocol::LongReadWrite;
    rma.len > 0
        && key_fits
        && match rma.protocol {
            RmaProtocol::DirectWrite => {
                (rma.cq_data.is_none() || direct::can_carry_cq_data(peers, w, rma))
                    && direct_write(rdma, features, rma.len, rma.cq_data).is_ok()
            }
            // The target reads, but announces the same bit as we do.
            RmaProtocol::DirectRead | RmaProtocol::LongReadWrite => direct_read(rdma, features).is_ok(),
            _ => false,
        }
}

impl PeerTable {
    pub(in crate::rdm) fn pop_send(&mut self, id: PeerId) {
        if let Some(queue) = &mut self[id].queue {
            queue.sends.pop_front();
        }
    }
}

/// Ends an operation that left its queue with a failure, and its peer if that is to blame.
pub(in crate::rdm) fn rma_left_queue<W: Wire>(
    e: &mut Engine,
    w: &mut W,
    id: PeerId,
    op: SlotId,
    push: SendProgress,
) -> Step {
    let is_unsent = |rma: &RmaOp| rma.state == RmaState::Queued && rma.in_flight == 0;
    match push {
        // Nothing of it has left: only it has failed.
        SendProgress::PeerFailed(fault)
            if fault.is_of_operation() && e.ops.rma_ops.table.get(op).is_some_and(is_unsent) =>
        {
            e.ops.rma_ops.finish(&mut e.peers, &mut e.pending, op, Err(fault.of_operation(id)))
        }
        SendProgress::Fail(OpError::Peer(_, fault)) if fault.is_of_operation() => {
            e.ops.rma_ops.finish(&mut e.peers, &mut e.pending, op, Err(fault.of_operation(id)))
        }
        SendProgress::PeerFailed(fault) | SendProgress::Fail(OpError::Peer(_, fault)) => {
            e.fail_peer(w, id, fault)
        }
        SendProgress::Fail(error) => e.ops.rma_ops.finish(&mut e.peers, &mut e.pending, op, Err(error)),
        _ => {}
    }
    Step::Done
}
