//! Sends: starting, cancelling, the queues of each peer, resuming and completion. Called by `api` and by
//! protocols.

use ucs::coll::slots::SlotId;
use ucs::time::Nanos;

use crate::rdm::Engine;
use crate::rdm::features::{ReqHdr, supports_classes};
use crate::rdm::flow::backoff;
use crate::rdm::flow::window;
use crate::rdm::ids::{OpId, is_rma_id};
use crate::rdm::ids::{PeerId, TxToken};
use crate::rdm::io::{NotPosted, Posted, Reg, Wire};
use crate::rdm::op::Payload;
use crate::rdm::peers::Peers;
use crate::rdm::peers::peer::PeerTable;
use crate::rdm::peers::wires::Wires;
use crate::rdm::pending::Pending;
use crate::rdm::protocols::zcopy_recv;
use crate::rdm::rma::data;
use crate::rdm::rma::progress;
use crate::rdm::rma::remote_read;
use crate::rdm::send::Sends;

use crate::rdm::op::tx::{TxOp, TxState};
use crate::rdm::peers::peer::{Ctl, Peer, PeerFlags};
use crate::rdm::protocol::{Kind, Protocol, SendProgress, Step, Sync};
use crate::rdm::protocols::{
    atomic, direct, eager, handshake, longcts, longread, medium, peer_error, read, read_nack, receipt,
    user_qp_send,
};
use crate::rdm::rails::failover;
use crate::rdm::rma::ops::{self, is_rma_entry};
use crate::rdm::status::OpError;
use crate::rdm::status::PeerError;
use crate::rdm::types::{EngineEvent, FirstContact, SendArgs, Started};
use crate::wire::{Features, MsgClass, Opts, PktType, RawAddr};

/// Queued sends between two checks for room; a check without success costs as much as queueing.
const ROOM_CHECK_INTERVAL: u32 = 8;

impl Engine {
    /// Starts a send. An eager one that finds room is complete at once; others wait in the engine and go on
    /// in [`resume`](Self::resume). // HOT
    #[inline]
    pub fn send<W: Wire>(&mut self, w: &mut W, to: PeerId, s: SendArgs) -> Started<()> {
        self.send_class(w, to, MsgClass::Message, s)
    }

    /// Starts a send of this class; classes other than [`MsgClass::Message`] are tagged and wait for the
    /// peer's HANDSHAKE. // HOT
    #[inline]
    pub fn send_class<W: Wire>(
        &mut self,
        w: &mut W,
        to: PeerId,
        class: MsgClass,
        s: SendArgs,
    ) -> Started<()> {
        if self.peers.table.get(to).is_none() {
            return Started::Failed(OpError::Unknown);
        }
        if send_now(&mut self.peers, w, to, class, &s) {
            Started::Done(())
        } else {
            send_queued(self, w, to, class, s)
        }
    }

    /// Cancels a send of which no packet has gone out; its event says `Cancelled`. False: too late.
    pub fn cancel_send<W: Wire>(&mut self, w: &mut W, op: OpId) -> bool {
        match self.sends.table.get(op.0) {
            Some(tx) if tx.state == TxState::Queued => {
                self.sends.finish(&mut self.peers, &mut self.pending, w, op.0, Err(OpError::Cancelled));
                true
            }
            _ => false,
        }
    }

    /// Continues what waited for room: each peer in turn, a bounded number of packets each. Returns the
    /// number of steps done. // HOT
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

    /// Reports the end of an RDMA operation that was accepted as pending with this token. // HOT
    #[inline]
    pub fn on_sent<W: Wire>(&mut self, w: &mut W, token: TxToken, result: Result<(), PeerError>) {
        match token {
            TxToken::RmaRead { id, part } => remote_read::on_read(self, w, id, part, result),
            TxToken::RmaOp { id, part } => {
                let next = direct::on_end(
                    &mut self.rma_ops,
                    &mut self.peers,
                    &mut self.pending,
                    w,
                    id,
                    part,
                    result,
                );
                self.fail_lost_lanes(w);
                if let Some((peer, next)) = next {
                    self.follow(w, peer, next);
                }
                self.pending.release_regs(w);
            }
            TxToken::Packet => {}
        }
    }

    /// Does up to a burst of steps for `peer`, and schedules it again if there is more to do.
    pub(in crate::rdm) fn drive<W: Wire>(&mut self, w: &mut W, peer: PeerId) -> usize {
        ops::in_memory(self, w, |e, w| drive_steps(e, w, peer))
    }

    /// Sends a control packet, or queues it behind others.
    pub(in crate::rdm) fn send_ctl<W: Wire>(&mut self, w: &mut W, id: PeerId, ctl: Ctl) {
        if self.peers.table[id].flags.intersects(PeerFlags::FAILED | PeerFlags::REMOVED) {
            return;
        }
        if self.peers.table.may_send_ctl(id) {
            match push_ctl(self, w, id, ctl) {
                Ok(()) => return,
                Err(NotPosted::Full) => {}
                Err(NotPosted::Peer(fault)) if self.try_failover(w, id, fault) => {}
                Err(NotPosted::Peer(fault)) => return self.fail_peer(w, id, fault),
            }
        }
        self.peers.table[id].queue_mut().ctl.push_back(ctl);
        self.pending.schedule(&mut self.peers, id);
    }
}

fn push_ctl<W: Wire>(e: &mut Engine, w: &mut W, to: PeerId, ctl: Ctl) -> Result<(), NotPosted> {
    match ctl {
        Ctl::Cts(id) => window::push_cts(&mut e.recvs, &mut e.rma_ops, &mut e.peers, w, to, id),
        Ctl::ReadNack { send_id, recv_id, not_now } => {
            read_nack::push(&mut e.peers, w, to, (send_id, recv_id), not_now)
        }
        Ctl::AnnounceLane(other) => failover::push_announce_lane(&mut e.peers, w, to, other),
        Ctl::LaneFailed(other) => failover::push_lane_failed(&mut e.peers, w, to, other),
        Ctl::LaneChanged => failover::push_lane_changed(&mut e.peers, w, to),
        Ctl::Reannounce(id) => read_nack::push_reannouncement(&mut e.sends, &mut e.peers, w, to, id),
        Ctl::Eor { send_id, recv_id } => longread::push_eor(&mut e.peers, w, to, send_id, recv_id),
        Ctl::Error { what, code } => peer_error::push(&mut e.peers, w, to, what, code),
        Ctl::Receipt { send_id, msg_id } => receipt::push(&mut e.peers, w, to, send_id, msg_id),
        Ctl::ReadRsp(id) => read::push_response(&mut e.rma_ops, &mut e.peers, &mut e.pending, w, to, id),
        Ctl::AtomRsp(id) => atomic::push_response(&mut e.rma_ops, &mut e.peers, &mut e.pending, w, to, id),
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
        SendProgress::PeerFailed(fault) | SendProgress::Fail(OpError::Peer(_, fault)) => {
            e.fail_peer(w, id, fault)
        }
        SendProgress::Fail(error) => e.sends.finish(&mut e.peers, &mut e.pending, w, op, Err(error)),
        _ => {}
    }
    Step::Done
}

fn step_grants<W: Wire>(e: &mut Engine, w: &mut W, id: PeerId) -> Step {
    let peer = &mut e.peers.table[id];
    if !peer.flags.contains(PeerFlags::HANDSHAKE_RECEIVED) {
        return Step::Idle;
    }
    let Some(op) = peer.queue.as_mut().and_then(|queue| queue.grants.pop_front()) else {
        return Step::Idle;
    };
    let (push, sent) = if is_rma_id(op) {
        (
            data::push_rma_data(&mut e.rma_ops, &mut e.peers, &mut e.pending, w, op),
            e.rma_ops.table.get(op).map_or(0, |rma| rma.sent as usize),
        )
    } else {
        (
            longcts::push_data(&mut e.sends, &mut e.peers, &mut e.pending, w, op),
            e.sends.table.get(op).map_or(0, |tx| tx.sent),
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
        e.peers.table[id].flags.remove(PeerFlags::SENDS_QUEUED);
        return Step::Idle;
    };
    if is_rma_entry(op) {
        return progress::step_rma(e, w, id, op);
    }
    let Some((protocol, kind)) = e.sends.table.get(op).map(|tx| (tx.protocol, tx.kind())) else {
        // Cancelled.
        queue.sends.pop_front();
        return Step::Done;
    };
    let push = match may_start(&mut e.peers, w, id, protocol, kind) {
        _ if e.peers.table[id].flags.contains(PeerFlags::USER_QP_ONLY) => user_qp_send::push(e, w, op),
        Some(push) => push,
        None => match protocol.plain() {
            Protocol::Eager => eager::push(&mut e.sends, &mut e.peers, &mut e.pending, w, op),
            Protocol::Medium => medium::push(&mut e.sends, &mut e.peers, &mut e.pending, w, op),
            Protocol::LongRead | Protocol::RuntRead => {
                longread::push(&mut e.sends, &mut e.peers, &mut e.pending, w, op)
            }
            _ => longcts::push(&mut e.sends, &mut e.peers, w, op),
        },
    };
    match push {
        SendProgress::Sent => Step::Done,
        SendProgress::Switch(protocol) => {
            if let Some(tx) = e.sends.table.get_mut(op) {
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
    let push = remote_read::push_rma_read(e, w, id, rma_read);
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
            if let Some(rma_read) = e.reads.table.get_mut(rma_read) {
                rma_read.queued = false;
            }
            Step::Done
        }
    }
}

/// Does one step for a failed peer: a peer closed by force still gets errors for its requests.
// [M10.7]
#[cold]
fn step_failed<W: Wire>(e: &mut Engine, w: &mut W, id: PeerId) -> Step {
    let flags = e.peers.table[id].flags;
    if flags.contains(PeerFlags::BACKED_OFF) {
        return Step::Idle;
    }
    let sent = match flags
        & (PeerFlags::REMOVED
            | PeerFlags::FORCE_CLOSED
            | PeerFlags::HANDSHAKE_QUEUED
            | PeerFlags::HANDSHAKE_RECEIVED)
    {
        flags if flags.contains(PeerFlags::REMOVED) || !flags.contains(PeerFlags::FORCE_CLOSED) => None,
        flags if flags.contains(PeerFlags::HANDSHAKE_QUEUED) => {
            Some(handshake::push(&mut e.peers, e.zcopy_recv.as_ref().map(|mode| mode.qp), w, id))
        }
        flags if flags.contains(PeerFlags::HANDSHAKE_RECEIVED) => e.peers.push_unsent_error(w, id),
        _ => None,
    };
    match sent {
        Some(Ok(())) => Step::Done,
        Some(Err(NotPosted::Full)) => Step::Full,
        Some(Err(NotPosted::Peer(_))) => {
            e.peers.table[id].flags.remove(PeerFlags::HANDSHAKE_QUEUED);
            Step::Idle
        }
        None => Step::Idle,
    }
}

/// Does one step: while the peer is backed off, reads only, which need no receive of it. Otherwise our
/// HANDSHAKE, then control packets, then new messages, granted data and reads in turn.
fn step<W: Wire>(e: &mut Engine, w: &mut W, id: PeerId, round: u32) -> Step {
    let peer = &e.peers.table[id];
    if peer.flags.intersects(PeerFlags::FAILED | PeerFlags::REMOVED) {
        return step_failed(e, w, id);
    }
    if peer.flags.contains(PeerFlags::BACKED_OFF) {
        return step_reads(e, w, id);
    }
    if peer.flags.contains(PeerFlags::HANDSHAKE_QUEUED) {
        let sent = handshake::push(&mut e.peers, e.zcopy_recv.as_ref().map(|mode| mode.qp), w, id);
        return step_result(e, w, id, sent);
    }
    let Some(queue) = &peer.queue else { return Step::Idle };
    if let Some(&ctl) = queue.ctl.front() {
        let sent = push_ctl(e, w, id, ctl);
        if sent.is_ok()
            && let Some(queue) = &mut e.peers.table[id].queue
        {
            queue.ctl.pop_front();
        }
        return step_result(e, w, id, sent);
    }
    let kinds: [fn(&mut Engine, &mut W, PeerId) -> Step; 3] = [step_sends, step_grants, step_reads];
    for kind in 0..kinds.len() {
        match kinds[(round as usize + kind) % kinds.len()](e, w, id) {
            Step::Idle => {}
            step => return step,
        }
    }
    Step::Idle
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
        let Some(peer) = e.pending.scheduled.pop_front() else { break };
        e.peers.table[peer].flags.remove(PeerFlags::SCHEDULED);
        steps += e.drive(w, peer);
    }
    if e.zcopy_recv.is_some() {
        zcopy_recv::forward_next(e, w);
    }
    steps
}

#[inline(never)]
fn send_queued<W: Wire>(e: &mut Engine, w: &mut W, to: PeerId, class: MsgClass, s: SendArgs) -> Started<()> {
    let peer = &e.peers.table[to];
    if peer.flags.contains(PeerFlags::SENDS_QUEUED) && peer.outstanding.is_multiple_of(ROOM_CHECK_INTERVAL) {
        // There may be room by now: a sender that only queues would stay on the slow path for good.
        e.drive(w, to);
        if send_now(&mut e.peers, w, to, class, &s) {
            return Started::Done(());
        }
    }
    let peer = &mut e.peers.table[to];
    if let Some(fault) = peer.fault {
        return Started::Failed(OpError::Peer(to, fault));
    }
    let met = peer.flags.contains(PeerFlags::HANDSHAKE_RECEIVED);
    let refused = match class {
        MsgClass::Message => false,
        _ => s.tag.is_none() || met && !supports_classes(peer.features),
    };
    if refused {
        return Started::Failed(OpError::Unsupported);
    }
    let protocol = match (s.protocol, s.sync) {
        (protocol, Sync::No) if protocol != Protocol::UserQp => protocol,
        (protocol, sync) => protocol.with(sync),
    };
    let op = TxOp {
        buf: s.buf,
        user: s.user,
        tag: s.tag,
        class,
        cq_data: s.cq_data,
        sent: 0,
        window: 0,
        peer: to,
        msg_id: 0,
        recv_id: None,
        protocol,
        sync: s.sync,
        reg: None,
        rails: None,
        state: TxState::Queued,
        in_data_queue: false,
    };
    let Ok(id) = e.sends.table.insert(op) else { return Started::Failed(OpError::NoResource) };
    peer.outstanding += 1;
    peer.queue_mut().sends.push_back(id);
    if peer.flags.contains(PeerFlags::SENDS_QUEUED) {
        e.pending.schedule(&mut e.peers, to);
        return Started::Pending(OpId(id));
    }
    peer.flags |= PeerFlags::SENDS_QUEUED;
    e.sends.in_call = Some((id, None));
    e.drive(w, to);
    match e.sends.in_call.take() {
        Some((_, Some(Ok(())))) => Started::Done(()),
        Some((_, Some(Err(error)))) => Started::Failed(error),
        _ => Started::Pending(OpId(id)),
    }
}

impl Sends {
    /// Ends the peer's right to read a message, by [`Wire::release`] or [`Wire::revoke`].
    pub(in crate::rdm) fn revoke_regs<W: Wire>(
        &mut self,
        peers: &mut Peers,
        w: &mut W,
        id: SlotId,
        end: fn(&mut W, Reg),
    ) {
        let Some(op) = self.table.get_mut(id) else { return };
        let Some(reg) = op.reg.take() else { return };
        end(w, reg);
        op.rails.take().into_iter().flat_map(|rails| *rails).for_each(|(_, reg)| end(w, reg));
        if let Some(queue) = &mut peers.table[op.peer].queue {
            queue.exposed -= 1;
        }
    }

    /// Ends a send. Its ids in queues become stale.
    // [M7.3]
    pub(in crate::rdm) fn finish<W: Wire>(
        &mut self,
        peers: &mut Peers,
        pending: &mut Pending,
        w: &mut W,
        id: SlotId,
        result: Result<(), OpError>,
    ) {
        match result {
            Ok(()) => self.revoke_regs(peers, w, id, W::release),
            // The peer may still read it.
            Err(_) => self.revoke_regs(peers, w, id, W::revoke),
        }
        let Some(op) = self.table.remove(id) else { return };
        let result = result.and_then(|()| match op.buf.error() {
            None => Ok(()),
            Some(error) => Err(OpError::Datatype(error)),
        });
        peers.table[op.peer].outstanding -= 1;
        match &mut self.in_call {
            Some((call_id, call_result)) if *call_id == id => *call_result = Some(result),
            _ => pending.events.push_back(EngineEvent::SendDone { user: op.user, result }),
        }
    }

    /// Notes that the wire has taken the last byte of a send: it is complete unless it waits for a RECEIPT.
    pub(in crate::rdm) fn all_sent<W: Wire>(
        &mut self,
        peers: &mut Peers,
        pending: &mut Pending,
        w: &mut W,
        id: SlotId,
    ) {
        let Some(op) = self.table.get_mut(id) else { return };
        op.state = TxState::AllSent;
        op.sent = op.buf.len();
        let (protocol, len, to) = (op.protocol, op.buf.len(), op.peer);
        peers.counters.stats.count_sent(protocol, len);
        peers.counters.by_peer.of(to).tx_bytes += len as u64;
        if protocol.sync() == Sync::No {
            self.finish(peers, pending, w, id, Ok(()));
        }
    }
}

impl Pending {
    /// Schedules a peer for [`resume`](Self::resume).
    #[inline]
    pub(in crate::rdm) fn schedule(&mut self, peers: &mut Peers, id: PeerId) {
        let flags = &mut peers.table[id].flags;
        if !flags.contains(PeerFlags::SCHEDULED) {
            *flags |= PeerFlags::SCHEDULED;
            self.scheduled.push_back(id);
        }
    }
}

impl Peers {
    /// Counts a posted packet and updates the peer's flags. // HOT
    #[inline]
    pub(in crate::rdm) fn posted(
        &mut self,
        to: PeerId,
        ty: PktType,
        sent: Result<Posted, NotPosted>,
    ) -> Result<(), NotPosted> {
        match sent {
            Ok(_) => {
                self.counters.stats.tx_pkts[usize::from(ty.0)] += 1;
                self.counters.by_peer.of(to).tx_pkts += 1;
                // [M10.2]
                let flags = match ty {
                    PktType::HANDSHAKE => PeerFlags::POSTED,
                    _ if ty >= PktType::EAGER_MSGRTM || ty == PktType::CTSDATA => {
                        PeerFlags::POSTED.union(PeerFlags::REQUESTED).union(PeerFlags::UNCONFIRMED)
                    }
                    _ => PeerFlags::POSTED.union(PeerFlags::REQUESTED),
                };
                self.table[to].flags |= flags;
                Ok(())
            }
            Err(refused) => {
                self.counters.stats.rare.full += u64::from(refused == NotPosted::Full);
                Err(refused)
            }
        }
    }

    /// Posts one packet. // HOT
    #[inline]
    pub(in crate::rdm) fn post<W: Wire, F: FnOnce(&mut [u8]) -> usize>(
        &mut self,
        w: &mut W,
        to: PeerId,
        ty: PktType,
        max: usize,
        fill: F,
    ) -> Result<(), NotPosted> {
        let sent = w.send(to, max, TxToken::Packet, fill);
        self.posted(to, ty, sent)
    }

    /// Sends a short tagged message without a receipt, if that can be done at once. False: nothing has
    /// happened, call [`Engine::send_class`]. // HOT
    #[inline(always)]
    pub fn send_short<W: Wire, B: Payload>(
        &mut self,
        w: &mut W,
        to: PeerId,
        (class, tag): (MsgClass, u64),
        body: B,
    ) -> bool {
        eager::start_short(self, w, to, (class, tag), body)
    }
}

/// True if an untagged message must wait for the peer's HANDSHAKE. // HOT
#[inline(always)]
pub(in crate::rdm) fn waits_for_handshake(peers: &Peers, peer: &Peer) -> bool {
    peers.cfg.first_contact == FirstContact::Wait && !peer.flags.contains(PeerFlags::HANDSHAKE_RECEIVED)
}

/// Sends in one packet within the call, if possible. // HOT
#[inline]
pub(in crate::rdm) fn send_now<W: Wire>(
    peers: &mut Peers,
    w: &mut W,
    to: PeerId,
    class: MsgClass,
    s: &SendArgs,
) -> bool {
    let peer = &peers.table[to];
    let plain = s.protocol == Protocol::Eager && s.sync == Sync::No;
    let accepted = match class {
        MsgClass::Message => s.tag.is_some() || !waits_for_handshake(peers, peer),
        _ => supports_classes(peer.features),
    };
    plain
        && accepted
        && !peer.flags.intersects(PeerFlags::BLOCKED)
        && matches!(eager::start(peers, w, to, class, s), Some(Ok(())))
}

/// Checks what needs the peer's HANDSHAKE: delivery complete and our own classes need its consent, and
/// untagged messages may wait for it. `None`: go on.
// [M3.7] [M11.1]
pub(in crate::rdm) fn may_start<W: Wire>(
    peers: &mut Peers,
    w: &mut W,
    id: PeerId,
    protocol: Protocol,
    kind: Kind,
) -> Option<SendProgress> {
    let waits = kind == Kind::Untagged && waits_for_handshake(peers, &peers.table[id]);
    let needs = match (kind, protocol.sync()) {
        (Kind::Tagged | Kind::Untagged, Sync::No) if !waits => return None,
        (Kind::Tagged | Kind::Untagged, Sync::No) => Features::empty(),
        (Kind::Tagged | Kind::Untagged, Sync::Yes) => Features::DELIVERY_COMPLETE,
        (_, Sync::No) => Features::CLASSES,
        (_, Sync::Yes) => Features::CLASSES.union(Features::DELIVERY_COMPLETE),
    };
    let peer = &peers.table[id];
    if !peer.flags.contains(PeerFlags::HANDSHAKE_RECEIVED) {
        return Some(match handshake::trigger(peers, w, id) {
            Ok(()) => SendProgress::AwaitHandshake,
            Err(refused) => refused.into(),
        });
    }
    (!peer.features.contains(needs)).then_some(SendProgress::Fail(OpError::Unsupported))
}

impl PeerTable {
    /// True if a control packet may be sent to the peer now. // HOT
    #[inline]
    pub(in crate::rdm) fn may_send_ctl(&self, id: PeerId) -> bool {
        let peer = &self[id];
        let first = peer.queue.as_ref().is_none_or(|queue| queue.ctl.is_empty());
        first
            && !peer.flags.intersects(
                PeerFlags::HANDSHAKE_QUEUED | PeerFlags::BACKED_OFF | PeerFlags::FAILED | PeerFlags::REMOVED,
            )
    }
}

impl Wires {
    /// Returns our address on the home wire of this peer.
    #[inline]
    pub(in crate::rdm) fn own_addr(&self, peer: &Peer) -> &RawAddr {
        &self[peer.home].me
    }

    /// Returns the optional headers of a REQ packet (rule R5 of the wire facts). // HOT
    #[inline]
    pub(in crate::rdm) fn req_opts(&self, peer: &Peer, cq_data: Option<u64>) -> Opts {
        let own = self.own_addr(peer);
        match peer.hdr() {
            ReqHdr::RawAddr => Opts { raw_addr: Some(*own), cq_data, ..Opts::NONE },
            ReqHdr::Connid => Opts { cq_data, connid: Some(own.connid), ..Opts::NONE },
            ReqHdr::Bare => Opts { cq_data, ..Opts::NONE },
        }
    }
}
