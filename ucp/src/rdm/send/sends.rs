//! Sends: starting, cancelling, the queues of each peer, resuming and completion. Called by `api` and by
//! protocols.

use ucs::coll::slots::SlotId;
use ucs::time::Nanos;

use crate::rdm::Engine;
use crate::rdm::features::{ReqHdr, supports_classes};
use crate::rdm::flow::window;
use crate::rdm::ids::{OpId, is_rma_id};
use crate::rdm::ids::{PeerId, TxToken};
use crate::rdm::io::{NotPosted, Posted, Reg, Wire};
use crate::rdm::op::Payload;
use crate::rdm::peers::Peers;
use crate::rdm::peers::peer::PeerTable;
use crate::rdm::peers::wires::Wires;
use crate::rdm::pending::Pending;
use crate::rdm::send::Sends;

use crate::rdm::op::tx::{TxOp, TxState};
use crate::rdm::peers::peer::{Ctl, Peer, PeerFlags};
use crate::rdm::protocol::{Kind, Protocol, SendProgress, Sync};
use crate::rdm::protocols::{
    atomic, direct, eager, handshake, longcts, longread, medium, peer_error, read, read_nack, receipt,
    user_qp_send,
};
use crate::rdm::rails::failover;
use crate::rdm::rma::ops::is_rma_entry;
use crate::rdm::status::OpError;
use crate::rdm::status::PeerError;
use crate::rdm::types::{EngineEvent, FirstContact, SendArgs, Started};
use crate::wire::{Features, MsgClass, Opts, PktType, RawAddr};

/// Queued sends between two checks for room; a check without success costs as much as queueing.
const ROOM_CHECK_INTERVAL: u32 = 8;

/// Result of one step for a peer.
pub(in crate::rdm) enum Step {
    /// A packet was sent, or a send ended.
    Done,
    /// Nothing to do before the peer answers.
    Idle,
    Full,
}

impl Engine {
    /// Starts a send. An eager one that finds room is complete at once; others wait in the engine and go on
    /// in [`resume`](Self::resume). // HOT
    #[inline]
    pub fn send<W: Wire>(&mut self, w: &mut W, to: PeerId, s: SendArgs) -> Started<()> {
        self.send_class(w, to, MsgClass::Message, s)
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
        eager::start_short(&mut self.peers, w, to, (class, tag), body)
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
        if self.peers.send_now(w, to, class, &s) {
            Started::Done(())
        } else {
            self.send_queued(w, to, class, s)
        }
    }

    #[inline(never)]
    fn send_queued<W: Wire>(&mut self, w: &mut W, to: PeerId, class: MsgClass, s: SendArgs) -> Started<()> {
        let peer = &self.peers.table[to];
        if peer.flags.contains(PeerFlags::SENDS_QUEUED)
            && peer.outstanding.is_multiple_of(ROOM_CHECK_INTERVAL)
        {
            // There may be room by now: a sender that only queues would stay on the slow path for good.
            self.drive(w, to);
            if self.peers.send_now(w, to, class, &s) {
                return Started::Done(());
            }
        }
        let peer = &mut self.peers.table[to];
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
        let Ok(id) = self.sends.table.insert(op) else { return Started::Failed(OpError::NoResource) };
        peer.outstanding += 1;
        peer.queue_mut().sends.push_back(id);
        if peer.flags.contains(PeerFlags::SENDS_QUEUED) {
            self.pending.schedule(&mut self.peers, to);
            return Started::Pending(OpId(id));
        }
        peer.flags |= PeerFlags::SENDS_QUEUED;
        self.sends.in_call = Some((id, None));
        self.drive(w, to);
        match self.sends.in_call.take() {
            Some((_, Some(Ok(())))) => Started::Done(()),
            Some((_, Some(Err(error)))) => Started::Failed(error),
            _ => Started::Pending(OpId(id)),
        }
    }

    /// Cancels a send of which no packet has gone out; its event says `Cancelled`. False: too late, but see
    /// [`Engine::abort`].
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
        self.resume_listed(w, now)
    }

    #[inline(never)]
    fn resume_listed<W: Wire>(&mut self, w: &mut W, now: Nanos) -> usize {
        let mut steps = if self.pending.backed_off.is_empty() { 0 } else { self.resend_due(w, now) };
        for _ in 0..self.pending.scheduled.len() {
            let Some(peer) = self.pending.scheduled.pop_front() else { break };
            self.peers.table[peer].flags.remove(PeerFlags::SCHEDULED);
            steps += self.drive(w, peer);
        }
        if self.zcopy_recv.is_some() {
            self.forward_next(w);
        }
        steps
    }

    /// Reports the end of an RDMA operation that was accepted as pending with this token. // HOT
    #[inline]
    pub fn on_sent<W: Wire>(&mut self, w: &mut W, token: TxToken, result: Result<(), PeerError>) {
        match token {
            TxToken::RmaRead { id, part } => self.on_read(w, id, part, result),
            TxToken::RmaOp { id, part } => direct::on_end(self, w, id, part, result),
            TxToken::Packet => {}
        }
    }

    /// Does up to a burst of steps for `peer`, and schedules it again if there is more to do.
    pub(in crate::rdm) fn drive<W: Wire>(&mut self, w: &mut W, peer: PeerId) -> usize {
        self.in_memory(w, |e, w| e.drive_steps(w, peer))
    }

    fn drive_steps<W: Wire>(&mut self, w: &mut W, peer: PeerId) -> usize {
        for step in 0..self.peers.cfg.burst {
            match self.step(w, peer, step) {
                Step::Done => {}
                Step::Idle => return step as usize,
                Step::Full => {
                    self.pending.schedule(&mut self.peers, peer);
                    return step as usize;
                }
            }
        }
        self.pending.schedule(&mut self.peers, peer);
        self.peers.cfg.burst as usize
    }

    /// Does one step: while the peer is backed off, reads only, which need no receive of it. Otherwise our
    /// HANDSHAKE, then control packets, then new messages, granted data and reads in turn.
    fn step<W: Wire>(&mut self, w: &mut W, id: PeerId, round: u32) -> Step {
        let peer = &self.peers.table[id];
        if peer.flags.intersects(PeerFlags::FAILED | PeerFlags::REMOVED) {
            return self.step_failed(w, id);
        }
        if peer.flags.contains(PeerFlags::BACKED_OFF) {
            return self.step_reads(w, id);
        }
        if peer.flags.contains(PeerFlags::HANDSHAKE_QUEUED) {
            let sent = handshake::push(&mut self.peers, &self.zcopy_recv, w, id);
            return self.step_result(w, id, sent);
        }
        let Some(queue) = &peer.queue else { return Step::Idle };
        if let Some(&ctl) = queue.ctl.front() {
            let sent = self.push_ctl(w, id, ctl);
            if sent.is_ok()
                && let Some(queue) = &mut self.peers.table[id].queue
            {
                queue.ctl.pop_front();
            }
            return self.step_result(w, id, sent);
        }
        let kinds: [fn(&mut Self, &mut W, PeerId) -> Step; 3] =
            [Self::step_sends, Self::step_grants, Self::step_reads];
        for kind in 0..kinds.len() {
            match kinds[(round as usize + kind) % kinds.len()](self, w, id) {
                Step::Idle => {}
                step => return step,
            }
        }
        Step::Idle
    }

    /// Does one step for a failed peer: a peer closed by force still gets errors for its requests.
    // [M10.7]
    #[cold]
    fn step_failed<W: Wire>(&mut self, w: &mut W, id: PeerId) -> Step {
        let flags = self.peers.table[id].flags;
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
                Some(handshake::push(&mut self.peers, &self.zcopy_recv, w, id))
            }
            flags if flags.contains(PeerFlags::HANDSHAKE_RECEIVED) => self.peers.push_unsent_error(w, id),
            _ => None,
        };
        match sent {
            Some(Ok(())) => Step::Done,
            Some(Err(NotPosted::Full)) => Step::Full,
            Some(Err(NotPosted::Peer(_))) => {
                self.peers.table[id].flags.remove(PeerFlags::HANDSHAKE_QUEUED);
                Step::Idle
            }
            None => Step::Idle,
        }
    }

    fn step_reads<W: Wire>(&mut self, w: &mut W, id: PeerId) -> Step {
        let reads = |e: &mut Self| e.peers.table[id].queue.as_mut().and_then(|queue| queue.reads.pop_front());
        let Some(rma_read) = reads(self) else { return Step::Idle };
        let push = self.push_rma_read(w, id, rma_read);
        if let Some(queue) = &mut self.peers.table[id].queue {
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
                if let Some(rma_read) = self.reads.table.get_mut(rma_read) {
                    rma_read.queued = false;
                }
                Step::Done
            }
        }
    }

    fn step_sends<W: Wire>(&mut self, w: &mut W, id: PeerId) -> Step {
        let Some(queue) = &mut self.peers.table[id].queue else { return Step::Idle };
        let Some(&op) = queue.sends.front() else {
            self.peers.table[id].flags.remove(PeerFlags::SENDS_QUEUED);
            return Step::Idle;
        };
        if is_rma_entry(op) {
            return self.step_rma(w, id, op);
        }
        let Some((protocol, kind)) = self.sends.table.get(op).map(|tx| (tx.protocol, tx.kind())) else {
            // Cancelled.
            queue.sends.pop_front();
            return Step::Done;
        };
        let push = match self.peers.may_start(w, id, protocol, kind) {
            _ if self.peers.table[id].flags.contains(PeerFlags::USER_QP_ONLY) => {
                user_qp_send::push(self, w, op)
            }
            Some(push) => push,
            None => match protocol.plain() {
                Protocol::Eager => eager::push(&mut self.sends, &mut self.peers, &mut self.pending, w, op),
                Protocol::Medium => medium::push(&mut self.sends, &mut self.peers, &mut self.pending, w, op),
                Protocol::LongRead | Protocol::RuntRead => longread::push(self, w, op),
                _ => longcts::push(&mut self.sends, &mut self.peers, w, op),
            },
        };
        match push {
            SendProgress::Sent => Step::Done,
            SendProgress::Switch(protocol) => {
                if let Some(tx) = self.sends.table.get_mut(op) {
                    tx.protocol = protocol;
                }
                Step::Done
            }
            SendProgress::AwaitHandshake => Step::Idle,
            SendProgress::Full => Step::Full,
            SendProgress::PeerFailed(fault) if self.try_failover(w, id, fault) => Step::Done,
            SendProgress::Done | SendProgress::Fail(_) | SendProgress::PeerFailed(_) => {
                if let Some(queue) = &mut self.peers.table[id].queue {
                    queue.sends.pop_front();
                }
                self.send_left_queue(w, id, op, push)
            }
        }
    }

    fn step_grants<W: Wire>(&mut self, w: &mut W, id: PeerId) -> Step {
        let peer = &mut self.peers.table[id];
        if !peer.flags.contains(PeerFlags::HANDSHAKE_RECEIVED) {
            return Step::Idle;
        }
        let Some(op) = peer.queue.as_mut().and_then(|queue| queue.grants.pop_front()) else {
            return Step::Idle;
        };
        let (push, sent) = if is_rma_id(op) {
            (self.push_rma_data(w, op), self.rma_ops.table.get(op).map_or(0, |rma| rma.sent as usize))
        } else {
            (longcts::push_data(self, w, op), self.sends.table.get(op).map_or(0, |tx| tx.sent))
        };
        let quantum_ends = window::ends_quantum(sent, w.mtu(id));
        if let Some(queue) = &mut self.peers.table[id].queue {
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
            SendProgress::PeerFailed(fault) if self.try_failover(w, id, fault) => {
                self.peers.table[id].queue_mut().grants.push_front(op);
                Step::Done
            }
            push if is_rma_id(op) => self.rma_left_queue(w, id, op, push),
            push => self.send_left_queue(w, id, op, push),
        }
    }

    /// Ends a send that left its queue with a failure, and its peer if that is to blame.
    fn send_left_queue<W: Wire>(&mut self, w: &mut W, id: PeerId, op: SlotId, push: SendProgress) -> Step {
        match push {
            SendProgress::PeerFailed(fault) | SendProgress::Fail(OpError::Peer(_, fault)) => {
                self.fail_peer(w, id, fault)
            }
            SendProgress::Fail(error) => {
                self.sends.finish(&mut self.peers, &mut self.pending, w, op, Err(error))
            }
            _ => {}
        }
        Step::Done
    }

    fn step_result<W: Wire>(&mut self, w: &mut W, id: PeerId, sent: Result<(), NotPosted>) -> Step {
        match sent {
            Ok(()) => Step::Done,
            Err(NotPosted::Full) => Step::Full,
            Err(NotPosted::Peer(fault)) if self.try_failover(w, id, fault) => Step::Done,
            Err(NotPosted::Peer(fault)) => {
                self.fail_peer(w, id, fault);
                Step::Idle
            }
        }
    }

    /// Sends a control packet, or queues it behind others.
    pub(in crate::rdm) fn send_ctl<W: Wire>(&mut self, w: &mut W, id: PeerId, ctl: Ctl) {
        if self.peers.table[id].flags.intersects(PeerFlags::FAILED | PeerFlags::REMOVED) {
            return;
        }
        if self.peers.table.may_send_ctl(id) {
            match self.push_ctl(w, id, ctl) {
                Ok(()) => return,
                Err(NotPosted::Full) => {}
                Err(NotPosted::Peer(fault)) if self.try_failover(w, id, fault) => {}
                Err(NotPosted::Peer(fault)) => return self.fail_peer(w, id, fault),
            }
        }
        self.peers.table[id].queue_mut().ctl.push_back(ctl);
        self.pending.schedule(&mut self.peers, id);
    }

    fn push_ctl<W: Wire>(&mut self, w: &mut W, to: PeerId, ctl: Ctl) -> Result<(), NotPosted> {
        match ctl {
            Ctl::Cts(id) => window::push_cts(&mut self.recvs, &mut self.rma_ops, &mut self.peers, w, to, id),
            Ctl::ReadNack { send_id, recv_id, not_now } => {
                read_nack::push(&mut self.peers, w, to, (send_id, recv_id), not_now)
            }
            Ctl::AnnounceLane(other) => failover::push_announce_lane(&mut self.peers, w, to, other),
            Ctl::LaneFailed(other) => failover::push_lane_failed(&mut self.peers, w, to, other),
            Ctl::LaneChanged => failover::push_lane_changed(&mut self.peers, w, to),
            Ctl::Reannounce(id) => {
                read_nack::push_reannouncement(&mut self.sends, &mut self.peers, w, to, id)
            }
            Ctl::Eor { send_id, recv_id } => longread::push_eor(&mut self.peers, w, to, send_id, recv_id),
            Ctl::Error { what, code } => peer_error::push(&mut self.peers, w, to, what, code),
            Ctl::Receipt { send_id, msg_id } => receipt::push(&mut self.peers, w, to, send_id, msg_id),
            Ctl::ReadRsp(id) => {
                read::push_response(&mut self.rma_ops, &mut self.peers, &mut self.pending, w, to, id)
            }
            Ctl::AtomRsp(id) => {
                atomic::push_response(&mut self.rma_ops, &mut self.peers, &mut self.pending, w, to, id)
            }
        }
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

    /// True if an untagged message must wait for the peer's HANDSHAKE. // HOT
    #[inline(always)]
    pub(in crate::rdm) fn waits_for_handshake(&self, peer: &Peer) -> bool {
        self.cfg.first_contact == FirstContact::Wait && !peer.flags.contains(PeerFlags::HANDSHAKE_RECEIVED)
    }

    /// Checks what needs the peer's HANDSHAKE: delivery complete and our own classes need its consent, and
    /// untagged messages may wait for it. `None`: go on.
    // [M3.7] [M11.1]
    pub(in crate::rdm) fn may_start<W: Wire>(
        &mut self,
        w: &mut W,
        id: PeerId,
        protocol: Protocol,
        kind: Kind,
    ) -> Option<SendProgress> {
        let waits = kind == Kind::Untagged && self.waits_for_handshake(&self.table[id]);
        let needs = match (kind, protocol.sync()) {
            (Kind::Tagged | Kind::Untagged, Sync::No) if !waits => return None,
            (Kind::Tagged | Kind::Untagged, Sync::No) => Features::empty(),
            (Kind::Tagged | Kind::Untagged, Sync::Yes) => Features::DELIVERY_COMPLETE,
            (_, Sync::No) => Features::CLASSES,
            (_, Sync::Yes) => Features::CLASSES.union(Features::DELIVERY_COMPLETE),
        };
        let peer = &self.table[id];
        if !peer.flags.contains(PeerFlags::HANDSHAKE_RECEIVED) {
            return Some(match handshake::trigger(self, w, id) {
                Ok(()) => SendProgress::AwaitHandshake,
                Err(refused) => refused.into(),
            });
        }
        (!peer.features.contains(needs)).then_some(SendProgress::Fail(OpError::Unsupported))
    }

    /// Sends in one packet within the call, if possible. // HOT
    #[inline]
    pub(in crate::rdm) fn send_now<W: Wire>(
        &mut self,
        w: &mut W,
        to: PeerId,
        class: MsgClass,
        s: &SendArgs,
    ) -> bool {
        let peer = &self.table[to];
        let plain = s.protocol == Protocol::Eager && s.sync == Sync::No;
        let accepted = match class {
            MsgClass::Message => s.tag.is_some() || !self.waits_for_handshake(peer),
            _ => supports_classes(peer.features),
        };
        plain
            && accepted
            && !peer.flags.intersects(PeerFlags::BLOCKED)
            && matches!(eager::start(self, w, to, class, s), Some(Ok(())))
    }
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
