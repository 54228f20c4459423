//! Progress of the queues of a peer: control packets first, then sends, granted data and reads in turn, a
//! bounded number of packets each.

use ucs::coll::slots::SlotId;
use ucs::time::Nanos;

use crate::rdm::Engine;
use crate::rdm::close_peers_over_limit;
use crate::rdm::flow::backoff;
use crate::rdm::flow::window;
use crate::rdm::ids::PeerId;
use crate::rdm::ids::is_rma_id;
use crate::rdm::io::{NotPosted, Wire};
use crate::rdm::op::tx::TxState;
use crate::rdm::operations::Operations;
use crate::rdm::peers::Peers;
use crate::rdm::pending::Pending;
use crate::rdm::protocols::zcopy_recv;
use crate::rdm::rma::data;
use crate::rdm::rma::progress;
use crate::rdm::send::cancel;
use crate::rdm::send::sends::may_start;

use crate::rdm::peers::conversation;
use crate::rdm::peers::limits;
use crate::rdm::peers::peer::Ctl;
use crate::rdm::peers::state::PeerFlags;
use crate::rdm::protocol::{Protocol, SendProgress, Step};
use crate::rdm::protocols::{
    atomic, close, eager, handshake, longcts, longread, medium, peer_error, read, read_nack, receipt,
    user_qp_send,
};
use crate::rdm::rails::announce;
use crate::rdm::recv::discards;
use crate::rdm::rma::ops::{self, is_rma_entry};
use crate::rdm::status::{ABORTED, OpError};

impl Engine {
    /// Continues what waited for room: each peer in turn, a bounded number of packets each. Returns the
    /// number of steps done.
    // HOT
    #[inline]
    pub fn resume<W: Wire>(&mut self, w: &mut W, now: Nanos) -> usize {
        if !self.pending.unused_regs.is_empty() || !self.pending.revoked_regs.is_empty() {
            self.pending.release_regs(w);
        }
        if self.pending.scheduled.is_empty() && self.pending.backed_off.is_empty() {
            return 0;
        }
        resume_listed(self, w, now)
    }

    /// Does up to a burst of steps for `peer`, and schedules it again if there is more to do.
    pub(in crate::rdm) fn drive<W: Wire>(&mut self, w: &mut W, peer: PeerId) -> usize {
        ops::in_memory(self, w, |e, w| drive_steps(e, w, peer))
    }

    /// Sends a control packet, or queues it behind others.
    pub(in crate::rdm) fn send_ctl<W: Wire>(&mut self, w: &mut W, id: PeerId, ctl: Ctl) {
        if !self.peers.table[id].state.is_up() {
            // Of all that it could be told it needs this only.
            return peer_error::notify_lost(&mut self.peers, w, id);
        }
        if self.peers.table.may_send_ctl(id) {
            match push_ctl(&mut self.ops, &mut self.peers, &mut self.pending, w, id, ctl) {
                Ok(()) => return,
                Err(NotPosted::Full) => {}
                Err(NotPosted::Peer(fault)) if self.try_failover(w, id, fault) => {}
                Err(NotPosted::Peer(fault)) => return self.fail_peer(w, id, fault),
            }
        }
        limits::queue_ctl(&mut self.peers, &mut self.pending, id, ctl);
    }
}

fn push_ctl<W: Wire>(
    ops: &mut Operations,
    peers: &mut Peers,
    pending: &mut Pending,
    w: &mut W,
    to: PeerId,
    ctl: Ctl,
) -> Result<(), NotPosted> {
    match ctl {
        Ctl::Cts(id) => window::push_cts(&mut ops.recvs, &mut ops.rma_ops, peers, w, to, id),
        Ctl::ReadNack { send_id, recv_id, not_now } => {
            read_nack::push(peers, w, to, (send_id, recv_id), not_now)
        }
        Ctl::AnnounceLane(other) => announce::push_announce_lane(peers, w, to, other),
        Ctl::LaneChanged => announce::push_lane_changed(peers, w, to),
        Ctl::Reannounce(id) => read_nack::push_reannouncement(&mut ops.sends, peers, w, to, id),
        Ctl::Eor { send_id, recv_id } => longread::push_eor(peers, w, to, send_id, recv_id),
        Ctl::Error { what, code } => peer_error::push(peers, w, to, what, code),
        Ctl::Receipt { send_id, msg_id } => receipt::push(peers, w, to, send_id, msg_id),
        Ctl::ReadRsp(id) => read::push_response(&mut ops.rma_ops, peers, pending, w, to, id),
        Ctl::AtomRsp(id) => atomic::push_response(&mut ops.rma_ops, peers, pending, w, to, id),
    }
}

fn step_result<W: Wire>(e: &mut Engine, w: &mut W, id: PeerId, sent: Result<(), NotPosted>) -> Step {
    match sent {
        Ok(()) => Step::Done,
        Err(NotPosted::Full) => Step::Full,
        Err(NotPosted::Peer(fault)) if e.try_failover(w, id, fault) => Step::Done,
        Err(NotPosted::Peer(fault)) => {
            e.fail_peer(w, id, fault);
            Step::Idle
        }
    }
}

/// Ends a send that left its queue with a failure, and its peer if that is to blame.
fn send_left_queue<W: Wire>(e: &mut Engine, w: &mut W, id: PeerId, op: SlotId, push: SendProgress) -> Step {
    match push {
        SendProgress::PeerFailed(fault) if fault.is_of_operation() => {
            // Only it has failed, unless the peer has a part of the message and cannot be told.
            let is_unsent = e.ops.sends.table.get(op).is_some_and(|send| send.state == TxState::Queued);
            if !cancel::end_send(e, w, op, fault.of_operation(id), is_unsent) && !is_unsent {
                e.fail_peer(w, id, fault);
            }
        }
        SendProgress::PeerFailed(fault) | SendProgress::Fail(OpError::Peer(_, fault)) => {
            e.fail_peer(w, id, fault)
        }
        SendProgress::Fail(error) => _ = cancel::end_send(e, w, op, error, true),
        _ => {}
    }
    Step::Done
}

fn step_grants<W: Wire>(e: &mut Engine, w: &mut W, id: PeerId) -> Step {
    let peer = &mut e.peers.table[id];
    if !peer.state.has(PeerFlags::HANDSHAKE_RECEIVED) {
        return Step::Idle;
    }
    let Some(op) = peer.queue.as_mut().and_then(|queue| queue.grants.pop_front()) else {
        return Step::Idle;
    };
    let (push, sent) = if is_rma_id(op) {
        (
            data::push_rma_data(&mut e.ops.rma_ops, &mut e.peers, &mut e.pending, w, op),
            e.ops.rma_ops.table.get(op).map_or(0, |rma| rma.sent as usize),
        )
    } else {
        (
            longcts::push_data(&mut e.ops.sends, &mut e.peers, &mut e.pending, w, op),
            e.ops.sends.table.get(op).map_or(0, |tx| tx.sent),
        )
    };
    let quantum_ends = window::ends_quantum(sent, w.mtu(id));
    if let Some(queue) = &mut e.peers.table[id].queue {
        match push {
            // Round robin, but not packet by packet: caches prefer one message.
            SendProgress::Sent if quantum_ends => queue.grants.push_back(op),
            SendProgress::Sent => queue.grants.push_front(op),
            SendProgress::Full => queue.grants.push_front(op),
            _ => {}
        }
    }
    match push {
        SendProgress::Full => Step::Full,
        SendProgress::PeerFailed(fault) if e.try_failover(w, id, fault) => {
            e.peers.table[id].queue_mut().grants.push_front(op);
            Step::Done
        }
        push if is_rma_id(op) => progress::rma_left_queue(e, w, id, op, push),
        push => send_left_queue(e, w, id, op, push),
    }
}

fn step_sends<W: Wire>(e: &mut Engine, w: &mut W, id: PeerId) -> Step {
    let Some(queue) = &mut e.peers.table[id].queue else { return Step::Idle };
    let Some(&op) = queue.sends.front() else {
        e.peers.table[id].state.remove(PeerFlags::SENDS_QUEUED);
        return Step::Idle;
    };
    if is_rma_entry(op) {
        return progress::step_rma(e, w, id, op);
    }
    let Some((protocol, kind)) = e.ops.sends.table.get(op).map(|tx| (tx.protocol, tx.kind())) else {
        // Cancelled.
        queue.sends.pop_front();
        return Step::Done;
    };
    let push = match may_start(&mut e.peers, w, id, protocol, kind) {
        _ if e.peers.table[id].state.has(PeerFlags::USER_QP_ONLY) => user_qp_send::push(e, w, op),
        Some(push) => push,
        None => match protocol.plain() {
            Protocol::Eager => eager::push(&mut e.ops.sends, &mut e.peers, &mut e.pending, w, op),
            Protocol::Medium => medium::push(&mut e.ops.sends, &mut e.peers, &mut e.pending, w, op),
            Protocol::LongRead | Protocol::RuntRead => {
                longread::push(&mut e.ops.sends, &mut e.peers, &mut e.pending, w, op)
            }
            _ => longcts::push(&mut e.ops.sends, &mut e.peers, w, op),
        },
    };
    match push {
        SendProgress::Sent => Step::Done,
        SendProgress::Switch(protocol) => {
            if let Some(tx) = e.ops.sends.table.get_mut(op) {
                tx.protocol = protocol;
            }
            Step::Done
        }
        SendProgress::AwaitHandshake => Step::Idle,
        SendProgress::Full => Step::Full,
        SendProgress::PeerFailed(fault) if e.try_failover(w, id, fault) => Step::Done,
        SendProgress::Done | SendProgress::Fail(_) | SendProgress::PeerFailed(_) => {
            if let Some(queue) = &mut e.peers.table[id].queue {
                queue.sends.pop_front();
            }
            send_left_queue(e, w, id, op, push)
        }
    }
}

fn step_reads<W: Wire>(e: &mut Engine, w: &mut W, id: PeerId) -> Step {
    let reads = |e: &mut Engine| e.peers.table[id].queue.as_mut().and_then(|queue| queue.reads.pop_front());
    let Some(rma_read) = reads(e) else { return Step::Idle };
    let push = longread::push_rma_read(e, w, id, rma_read);
    if let Some(queue) = &mut e.peers.table[id].queue {
        match push {
            SendProgress::Sent => queue.reads.push_back(rma_read),
            SendProgress::Full | SendProgress::AwaitHandshake => queue.reads.push_front(rma_read),
            _ => {}
        }
    }
    match push {
        SendProgress::Full => Step::Full,
        SendProgress::AwaitHandshake => Step::Idle,
        SendProgress::Sent => Step::Done,
        _ => {
            if let Some(rma_read) = e.ops.reads.table.get_mut(rma_read) {
                rma_read.queued = false;
            }
            Step::Done
        }
    }
}

/// Sends the control packet at the head of the queue, or a close that is due. `None`: there is neither.
fn step_ctl<W: Wire>(e: &mut Engine, w: &mut W, id: PeerId) -> Option<Step> {
    let peer = &e.peers.table[id];
    let is_met = peer.state.has(PeerFlags::HANDSHAKE_RECEIVED);
    let ctl = peer.queue.as_ref().and_then(|queue| queue.ctl.front().copied());
    let sent = match ctl {
        Some(ctl) => push_ctl(&mut e.ops, &mut e.peers, &mut e.pending, w, id, ctl).inspect(|()| {
            e.peers.table[id].queue.as_mut().and_then(|queue| queue.ctl.pop_front());
        }),
        None if !peer.state.has(PeerFlags::CLOSE_DUE) => return None,
        None if !is_met => match handshake::trigger(&mut e.peers, w, id) {
            Ok(()) => return Some(Step::Idle),
            refused => refused,
        },
        None => match conversation::knows_closes(&mut e.peers, id) {
            true => close::push(&mut e.peers, w, id, ABORTED),
            false => Ok(()),
        },
    };
    Some(step_result(e, w, id, sent))
}

/// Does one step for a failed peer: a peer closed by force still gets errors for its requests.
// [M10.7]
#[cold]
fn step_failed<W: Wire>(e: &mut Engine, w: &mut W, id: PeerId) -> Step {
    let state = e.peers.table[id].state;
    if state.has(PeerFlags::BACKED_OFF) || !state.is_closed() {
        return Step::Idle;
    }
    let sent = if state.is_handshake_queued() {
        Some(handshake::push(&mut e.peers, e.zcopy_recv.as_ref().map(|mode| mode.qp), w, id.into()))
    } else if state.has(PeerFlags::HANDSHAKE_RECEIVED) {
        if let Some(step) = step_ctl(e, w, id) {
            return step;
        }
        e.peers.push_unsent_error(w, id)
    } else {
        None
    };
    match sent {
        Some(Ok(())) => Step::Done,
        Some(Err(NotPosted::Full)) => Step::Full,
        Some(Err(NotPosted::Peer(_))) => {
            e.peers.table[id].state.drop_queued_handshake();
            Step::Idle
        }
        None => Step::Idle,
    }
}

/// Does one step: while the peer is backed off, reads only, which need no receive of it. Otherwise our
/// HANDSHAKE, then control packets, then new messages, granted data and reads in turn.
fn step<W: Wire>(e: &mut Engine, w: &mut W, id: PeerId, round: u32) -> Step {
    let peer = &e.peers.table[id];
    if !peer.state.is_up() {
        return step_failed(e, w, id);
    }
    if peer.state.has(PeerFlags::BACKED_OFF) {
        return step_reads(e, w, id);
    }
    if peer.state.is_handshake_queued() {
        let sent = handshake::push(&mut e.peers, e.zcopy_recv.as_ref().map(|mode| mode.qp), w, id.into());
        return step_result(e, w, id, sent);
    }
    let Some(queue) = &peer.queue else { return Step::Idle };
    if (!queue.ctl.is_empty() || peer.state.has(PeerFlags::CLOSE_DUE))
        && let Some(step) = step_ctl(e, w, id)
    {
        return step;
    }
    let kinds: [fn(&mut Engine, &mut W, PeerId) -> Step; 3] = [step_sends, step_grants, step_reads];
    for kind in 0..kinds.len() {
        match kinds[(round as usize + kind) % kinds.len()](e, w, id) {
            Step::Idle => {}
            step => return step,
        }
    }
    discards::step_discards(e, w, id)
}

fn drive_steps<W: Wire>(e: &mut Engine, w: &mut W, peer: PeerId) -> usize {
    for done in 0..e.peers.cfg.burst {
        let step = step(e, w, peer, done);
        e.fail_lost_lanes(w);
        match step {
            Step::Done => {}
            Step::Idle => return done as usize,
            Step::Full => {
                e.pending.schedule(&mut e.peers, peer);
                return done as usize;
            }
        }
    }
    e.pending.schedule(&mut e.peers, peer);
    e.peers.cfg.burst as usize
}

#[inline(never)]
fn resume_listed<W: Wire>(e: &mut Engine, w: &mut W, now: Nanos) -> usize {
    let mut steps = if e.pending.backed_off.is_empty() { 0 } else { backoff::resend_due(e, w, now) };
    for _ in 0..e.pending.scheduled.len() {
        let Some(id) = e.pending.scheduled.pop_front() else { break };
        let Some(lane) = e.peers.table.lane_mut(id) else { continue };
        lane.state.remove(PeerFlags::SCHEDULED);
        steps += match id.first_of() {
            Some(peer) => e.drive(w, peer),
            None => announce::drive(&mut e.peers, &mut e.pending, w, id),
        };
    }
    if e.zcopy_recv.is_some() {
        zcopy_recv::forward_next(e, w);
    }
    if !e.peers.over_limit.is_empty() {
        close_peers_over_limit(e, w);
    }
    steps
}
