//! Receives: posting, cancelling, matching, unexpected messages and completion. Called by `api` and by
//! protocols.

use ucs::coll::slots::SlotId;

use crate::rdm::Engine;
use crate::rdm::ids::MsgHandle;
use crate::rdm::ids::OpId;
use crate::rdm::ids::PeerId;
use crate::rdm::io::Wire;
use crate::rdm::next::Next;
use crate::rdm::op::RecvBuf;
use crate::rdm::op::received_ranges::ReceivedRanges;
use crate::rdm::op::rx::{Envelope, RecvRole, RxEntry, RxOp, RxState, Segments, Unexpected};
use crate::rdm::op::table::index_of;
use crate::rdm::peers::Peers;
use crate::rdm::peers::peer::PeerTable;
use crate::rdm::peers::peer::{Ctl, PartialMsg};
use crate::rdm::peers::workers::WorkerSender;
use crate::rdm::pending::Pending;
use crate::rdm::protocol::{Arrival, Kind, Protocol};
use crate::rdm::protocols::note::withdrawn;
use crate::rdm::protocols::zcopy_recv;
use crate::rdm::recv::Recvs;
use crate::rdm::recv::matching::{ExpectedQueue, MatchEntry, Pattern, UnexpectedQueue};
use crate::rdm::recv::streams::{refuse_piece, stream_error, takes_stream};
use crate::rdm::stats::Counters;
use crate::rdm::status::{OpError, RecvStatus};
use crate::rdm::types::{EngineEvent, ProbeRemove, Probed, RecvArgs, RecvKind, Started};
use crate::wire::rtm::Rtm;

/// Queues of one kind of message.
#[derive(Debug, Default)]
#[repr(C)]
pub(in crate::rdm) struct MatchQueues {
    pub expected: ExpectedQueue,
    pub unexpected: UnexpectedQueue,
}

/// The receives of an engine, with the parts that posting, cancelling and finding messages need.
pub struct Receives<'a> {
    pub(in crate::rdm) recvs: &'a mut Recvs,
    pub(in crate::rdm) peers: &'a mut Peers,
    pub(in crate::rdm) pending: &'a mut Pending,
    /// The engine is in zero-copy receive mode.
    pub(in crate::rdm) zcopy: bool,
}

impl Receives<'_> {
    /// Posts a receive if no message of its kind waits for one. Otherwise returns it, and nothing has
    /// happened: call [`Engine::recv`].
    // HOT
    #[inline(always)]
    pub fn post(&mut self, r: RecvArgs) -> Result<OpId, RecvArgs> {
        let kind = r.kind.kind();
        let is_open = |from| self.peers.table.get(from).is_none_or(|peer| !peer.state.is_drained());
        let can_arrive = kind != Kind::Stream && r.from.is_none_or(is_open);
        if !can_arrive
            || self.zcopy
            || !self.recvs.match_queues[kind as usize].unexpected.is_empty()
            || self.recvs.table.is_full()
        {
            return Err(r);
        }
        let RecvArgs { buf, user, .. } = r;
        let posted = self
            .recvs
            .post_expected(kind, r.kind.pattern(r.from), |entry| RxOp::posted(buf, user, entry, kind));
        Ok(OpId(posted.expect("the table is not full")))
    }

    /// Cancels a receive that no message has matched; its event says `Cancelled`. False: a message has
    /// matched, so that a cancel never loses one (the rule of MPI and UCP), or the receive is complete. A
    /// multi-receive takes no more messages; those it has matched go on.
    // [M5.8]
    pub fn cancel(&mut self, op: OpId) -> bool {
        let Some(rx) = self.recvs.table.get(op.0) else { return false };
        let RxState::Posted = rx.state else { return false };
        if let RecvRole::Multi(multi) = rx.role {
            self.recvs.close_multi(self.pending, multi, Err(OpError::Cancelled));
            return true;
        }
        let (user, kind) = (rx.user, rx.kind);
        self.recvs.match_queues[kind as usize].expected.remove(&mut self.recvs.table, index_of(op.0));
        self.recvs.table.remove(op.0);
        self.pending.events.push_back(EngineEvent::RecvDone { user, result: Err(OpError::Cancelled) });
        true
    }

    /// Ends the receives of announced data that name this peer: those of a conversation that is over, if no
    /// announcement of the next one has been handled yet.
    pub fn end_announced(&mut self, from: PeerId, error: OpError) {
        let needs_it = |op: &RxOp| {
            op.kind == Kind::AmData && op.state == RxState::Posted && op.entry.source() == Some(from)
        };
        let ended = self.recvs.table.iter().filter(|(_, op)| needs_it(op)).map(|(id, _)| id);
        for id in ended.collect::<Vec<_>>() {
            self.recvs.end_posted(self.pending, id, error);
        }
    }

    /// Finds the oldest message that has arrived and that a receive with these arguments would get.
    pub fn probe(&mut self, kind: RecvKind, from: Option<PeerId>, take: ProbeRemove) -> Option<Probed> {
        let Some(id) = self.recvs.find_unexpected(self.peers, kind.kind(), &kind.pattern(from)) else {
            self.recvs.arrivals_wanted = true;
            return None;
        };
        let held = self.recvs.unexpected.get_mut(id)?;
        if take == ProbeRemove::Yes
            && let Some(index) = held.queued.take()
        {
            self.recvs.match_queues[kind.kind() as usize].unexpected.remove(index);
        }
        let Envelope { len, tag, from, cq_data, .. } = held.envelope;
        let is_whole = held.is_whole();
        Some(Probed { handle: MsgHandle(id), len, tag, from, cq_data, is_whole })
    }

    /// Receives the oldest message that matches, if it has arrived as a whole in one packet, its sender waits
    /// for nothing, and it fits contiguous memory. `None`: nothing has happened, and [`Engine::recv`]
    /// receives it.
    // HOT
    pub fn take_arrived(
        &mut self,
        kind: RecvKind,
        from: Option<PeerId>,
        buf: &RecvBuf,
    ) -> Option<RecvStatus> {
        let id = self.recvs.find_unexpected(self.peers, kind.kind(), &kind.pattern(from))?;
        self.take_found(id, buf)
    }

    /// [`Receives::take_arrived`] of the message that was found.
    // HOT
    #[inline]
    fn take_found(&mut self, id: SlotId, buf: &RecvBuf) -> Option<RecvStatus> {
        let held = self.recvs.unexpected.get_mut(id)?;
        let Envelope { len, tag, from, cq_data, protocol, .. } = held.envelope;
        let (Protocol::Eager, Some(queued), Segments::One(_, bytes)) =
            (protocol, held.queued, &mut held.segments)
        else {
            return None;
        };
        if held.kind == Kind::AmData {
            return None;
        }
        buf.contig_target(bytes.bytes().len())?.fill(bytes.bytes());
        self.pending.held_packets.release_unexpected(std::mem::take(bytes));
        self.recvs.match_queues[held.kind as usize].unexpected.remove(queued);
        self.peers.counters.count_received(&held.envelope, false);
        self.recvs.unexpected.discard(id);
        self.peers.forget_unexpected(self.pending, from);
        Some(RecvStatus { len: len as usize, tag, from, cq_data })
    }

    /// Returns the sender and the number of the announced data that a receive waits for, if it does.
    pub fn awaits_data(&self, op: OpId) -> Option<(PeerId, u64)> {
        let posted = |rx: &&RxOp| rx.kind == Kind::AmData && rx.state == RxState::Posted;
        let entry = self.recvs.table.get(op.0).filter(posted)?.entry;
        let pattern = entry.pattern();
        Some((pattern.from?, pattern.tag))
    }

    /// Gives memory of unexpected messages back that is not needed any more. Called now and then.
    #[inline]
    pub fn trim(&mut self) {
        if self.recvs.needs_trim() {
            self.recvs.trim(&mut self.pending.held_packets);
        }
    }

    /// Notes that the caller waits for packets: the wires keep being polled.
    pub fn expect_arrivals(&mut self) {
        self.recvs.arrivals_wanted = true;
    }
}

impl Engine {
    /// Returns the receives, to post or cancel one or to look for a message.
    #[inline(always)]
    pub fn receives(&mut self) -> Receives<'_> {
        let zcopy = self.zcopy_recv.is_some();
        Receives { recvs: &mut self.ops.recvs, peers: &mut self.peers, pending: &mut self.pending, zcopy }
    }

    /// Posts a receive. A message that has arrived as a whole completes it at once.
    pub fn recv<W: Wire>(&mut self, w: &mut W, r: RecvArgs) -> Started<RecvStatus> {
        if self.zcopy_recv.is_some() {
            return zcopy_recv::post_user_recv(self, w, r);
        }
        let pattern = r.kind.pattern(r.from);
        if let Some(id) = self.ops.recvs.find_unexpected(&self.peers, r.kind.kind(), &pattern) {
            return match self.receives().take_found(id, &r.buf) {
                Some(status) => Started::Done(status),
                None => recv_unexpected(self, w, id, r.buf, r.user, RecvRole::Single),
            };
        }
        let kind = r.kind.kind();
        let error = r.from.and_then(|from| match kind {
            Kind::Stream => stream_error(&mut self.peers, from, pattern.tag),
            _ => self.peers.drain_error(from),
        });
        if let Some(error) = error {
            return Started::Failed(error);
        }
        match self.ops.recvs.post_expected(kind, pattern, |entry| RxOp::posted(r.buf, r.user, entry, kind)) {
            Some(id) => Started::Pending(OpId(id)),
            None => Started::Failed(OpError::NoResource),
        }
    }

    /// Receives a message that a probe has removed from the queue.
    pub fn recv_probed<W: Wire>(
        &mut self,
        w: &mut W,
        msg: MsgHandle,
        buf: RecvBuf,
        user: u64,
    ) -> Started<RecvStatus> {
        match self.ops.recvs.unexpected.get(msg.0) {
            Some(Unexpected { queued: None, .. }) => {
                recv_unexpected(self, w, msg.0, buf, user, RecvRole::Single)
            }
            _ => Started::Failed(OpError::Unknown),
        }
    }

    /// True if the wires may be left unpolled, so that they hold senders back: unexpected messages use more
    /// than their limit, no operation is under way, no memory is offered, and nobody has called
    /// `expect_arrivals` or probed in vain since the last call.
    #[cold]
    pub fn may_stop_polling(&mut self) -> bool {
        let wanted = std::mem::take(&mut self.ops.recvs.arrivals_wanted);
        let busy = !self.ops.recvs.table.is_empty()
            || !self.ops.sends.table.is_empty()
            || !self.ops.rma_ops.table.is_empty()
            || !self.memory().is_empty();
        let pending = !self.pending.backed_off.is_empty() || !self.pending.draining.is_empty();
        let pending = pending || !self.pending.scheduled.is_empty() || !self.pending.events.is_empty();
        let stop = self.pending.is_over_limit() && !wanted && !busy && !pending;
        self.peers.counters.stats.rare.poll_stops += u64::from(stop);
        stop
    }
}

/// Receives a message that arrived before its receive.
pub(in crate::rdm) fn recv_unexpected<W: Wire>(
    e: &mut Engine,
    w: &mut W,
    id: SlotId,
    mut buf: RecvBuf,
    user: u64,
    role: RecvRole,
) -> Started<RecvStatus> {
    let Some(held) = e.ops.recvs.unexpected.get(id) else { return Started::Failed(OpError::Unknown) };
    if !held.is_whole() && e.ops.recvs.table.is_full() {
        return Started::Failed(OpError::NoResource);
    }
    let Some(held) = e.ops.recvs.unexpected.remove(id) else { return Started::Failed(OpError::Unknown) };
    let is_whole = held.is_whole();
    let envelope = held.envelope;
    let kind = held.kind;
    if let Some(index) = held.queued {
        e.ops.recvs.match_queues[kind as usize].unexpected.remove(index);
    }
    held.segments.drain(|at, bytes| {
        buf.put(at, bytes.bytes());
        e.pending.held_packets.release_unexpected(bytes);
    });
    e.peers.forget_unexpected(&mut e.pending, envelope.from);
    if let Some(error) = withdrawn(kind, &envelope) {
        return Started::Failed(error);
    }
    if is_whole {
        let status = envelope.result(&buf);
        e.peers.counters.count_received(&envelope, is_truncated(&status));
        e.follow(w, envelope.from, Next::receipt(&envelope));
        return match status {
            Ok(status) => Started::Done(status),
            Err(error) => Started::Failed(error),
        };
    }
    let op = RxOp { role, ..RxOp::begun(buf, user, kind) };
    let Ok(rx) = e.ops.recvs.table.insert(op) else { return Started::Failed(OpError::NoResource) };
    e.ops.recvs.begin(rx, envelope, held.received);
    if envelope.protocol.plain() == Protocol::LongCts {
        e.send_ctl(w, envelope.from, Ctl::Cts(rx));
    } else if let Some(part) = e.peers.table.partial_msg(&envelope) {
        *part = PartialMsg::Rx(rx);
    }
    if let Some(rma_read) = held.rma_read {
        let next = e.ops.reads.start(&mut e.ops.recvs, &mut e.peers, w, rma_read, rx);
        e.follow(w, envelope.from, next);
    }
    Started::Pending(OpId(rx))
}

impl Recvs {
    /// Returns a matched receive and its receive entry.
    // HOT
    #[inline]
    pub(in crate::rdm) fn rxe(&mut self, id: SlotId) -> Option<(&mut RxOp, &mut RxEntry)> {
        let op = self.table.get_mut(id)?;
        let rxe = self.entries.get_mut(op.rxe()?)?;
        Some((op, rxe))
    }

    /// Makes a receive entry for receive `id`, which has matched a message with more packets to come.
    pub(in crate::rdm) fn begin(&mut self, id: SlotId, envelope: Envelope, received: ReceivedRanges) {
        // It fits: each entry belongs to one receive, and both tables hold as many.
        let Ok(rxe) =
            self.entries.insert(RxEntry { envelope, received, window: 0, rma_read: None, nack: false })
        else {
            return;
        };
        if let Some(op) = self.table.get_mut(id) {
            op.state = RxState::Matched(rxe);
        }
    }

    /// Inserts a receive into its table and queue. `None`: the table is full.
    // HOT
    #[inline(always)]
    pub(in crate::rdm) fn post_expected(
        &mut self,
        kind: Kind,
        pattern: Pattern,
        make: impl FnOnce(MatchEntry) -> RxOp,
    ) -> Option<SlotId> {
        let place = self.match_queues[kind as usize].expected.place(&mut self.table, pattern);
        let id = self.table.insert_with(|_| make(place.entry()))?;
        place.fill(&mut self.table, index_of(id));
        Some(id)
    }

    /// True while a receive waits for a message.
    #[cfg(test)]
    pub fn is_posted(&self, op: OpId) -> bool {
        self.table.get(op.0).is_some_and(|rx| matches!(rx.state, RxState::Posted))
    }

    /// Reports the end of a receive that has left its table.
    // HOT
    #[inline]
    pub(in crate::rdm) fn notify_end(
        &mut self,
        pending: &mut Pending,
        op: &RxOp,
        result: Result<RecvStatus, OpError>,
    ) {
        match op.role {
            RecvRole::Single => pending.events.push_back(EngineEvent::RecvDone { user: op.user, result }),
            RecvRole::Discarded => {}
            role => self.end_multi_message(pending, role, result),
        }
    }

    /// Ends a receive that has matched nothing.
    pub(in crate::rdm) fn end_posted(&mut self, pending: &mut Pending, id: SlotId, error: OpError) {
        let Some(kind) = self.table.get(id).map(|op| op.kind) else { return };
        self.match_queues[kind as usize].expected.remove(&mut self.table, index_of(id));
        let Some(op) = self.table.remove(id) else { return };
        self.notify_end(pending, &op, Err(error));
    }

    /// Ends a matched receive with an error.
    pub(in crate::rdm) fn fail(&mut self, pending: &mut Pending, id: SlotId, error: OpError) {
        let Some(op) = self.table.remove(id) else { return };
        if let Some(rxe) = op.rxe() {
            self.entries.remove(rxe);
        }
        self.notify_end(pending, &op, Err(error));
    }

    /// Takes the receive that matches this message out of its queue; it stays in the table.
    // HOT
    // [M11.2]
    #[inline]
    pub(in crate::rdm) fn take_expected(
        &mut self,
        peers: &Peers,
        pending: &mut Pending,
        rtm: &Rtm<'_>,
        from: PeerId,
    ) -> Option<SlotId> {
        let kind = Kind::of(rtm.tag, rtm.opts.class);
        if !self.multi_recvs.is_empty() {
            return self.take_expected_multi(peers, pending, kind, rtm, from);
        }
        let from = WorkerSender::new(peers, kind, from);
        let at =
            self.match_queues[kind as usize].expected.take(&mut self.table, rtm.tag.unwrap_or(0), from)?;
        self.table.id_at(at as usize)
    }

    /// Finds the oldest unexpected message that fits.
    #[inline]
    pub(in crate::rdm) fn find_unexpected(
        &self,
        peers: &Peers,
        kind: Kind,
        pattern: &Pattern,
    ) -> Option<SlotId> {
        let unexpected = &self.match_queues[kind as usize].unexpected;
        unexpected.find(pattern, |from| WorkerSender::new(peers, kind, from))
    }

    /// Keeps the first packet of an unexpected message.
    // [M5.9]
    pub(in crate::rdm) fn hold_unexpected(
        &mut self,
        peers: &mut Peers,
        pending: &mut Pending,
        a: &Arrival<'_>,
        rtm: &Rtm<'_>,
        envelope: Envelope,
        (at, received): (u64, ReceivedRanges),
    ) -> Option<SlotId> {
        if self.unexpected.is_full() {
            peers.refuse_over_limit(a);
            return None;
        }
        if !peers.reserve_unexpected(pending, a, rtm) {
            return None;
        }
        let kind = Kind::of(rtm.tag, rtm.opts.class);
        if kind == Kind::Stream && !takes_stream(peers, a.peer, envelope.tag) {
            refuse_piece(peers, pending, a);
            return None;
        }
        self.keep_unexpected(peers, pending, kind, envelope, rtm.payload, (at, received))
    }

    /// Keeps the first packet of an unexpected message, for which there is room.
    // HOT
    // [M5.9]
    #[inline(always)]
    pub(in crate::rdm) fn keep_unexpected(
        &mut self,
        peers: &mut Peers,
        pending: &mut Pending,
        kind: Kind,
        envelope: Envelope,
        payload: &[u8],
        (at, received): (u64, ReceivedRanges),
    ) -> Option<SlotId> {
        let segments = Segments::One(at, pending.held_packets.copy_unexpected(payload));
        let queue = &mut self.match_queues[kind as usize].unexpected;
        let id = self.unexpected.insert_with(|id| {
            let queued = Some(queue.push(envelope.tag, envelope.from, id));
            Unexpected { envelope, kind, queued, segments, received, rma_read: None }
        })?;
        peers.table[envelope.from].unexpected += 1;
        peers.counters.stats.rare.unexpected += 1;
        pending.held_packets.add_unexpected();
        peers.counters.stats.rare.over_limit += u64::from(pending.is_over_limit());
        Some(id)
    }

    /// Ends a receive that has left its table with this message.
    // HOT
    #[inline]
    pub(in crate::rdm) fn end(
        &mut self,
        peers: &mut Peers,
        pending: &mut Pending,
        op: RxOp,
        envelope: &Envelope,
    ) -> Next {
        let result = envelope.result(&op.buf);
        self.notify_end(pending, &op, result);
        peers.counters.count_received(envelope, is_truncated(&result));
        Next::receipt(envelope)
    }

    /// Completes receive `id`: all bytes have arrived.
    // HOT
    #[inline]
    pub(in crate::rdm) fn finish(
        &mut self,
        peers: &mut Peers,
        pending: &mut Pending,
        id: SlotId,
        envelope: &Envelope,
    ) -> Next {
        let Some(op) = self.table.remove(id) else { return Next::Nothing };
        if let Some(rxe) = op.rxe() {
            self.entries.remove(rxe);
        }
        self.end(peers, pending, op, envelope)
    }
}

impl Pending {
    /// True if unexpected messages use more memory than their limit.
    // HOT
    #[inline(always)]
    pub fn is_over_limit(&self) -> bool {
        self.held_packets.is_over_limit()
    }

    /// Returns the memory of unexpected messages, bytes.
    pub fn unexpected_bytes(&self) -> usize {
        self.held_packets.unexpected()
    }
}

impl Peers {
    /// Notes that an unexpected message of this peer is gone.
    pub(in crate::rdm) fn forget_unexpected(&mut self, pending: &mut Pending, from: PeerId) {
        pending.held_packets.remove_unexpected();
        let peer = &mut self.table[from];
        peer.unexpected -= 1;
        if peer.unexpected == 0 && peer.state.is_removed() {
            self.table.free(from);
        }
    }

    /// Checks the memory limit for one more packet of unexpected messages. If it is reached, the sender is
    /// closed, as its next message would overtake the dropped one.
    pub(in crate::rdm) fn reserve_unexpected(
        &mut self,
        pending: &mut Pending,
        a: &Arrival<'_>,
        rtm: &Rtm<'_>,
    ) -> bool {
        let fits = pending.held_packets.has_unexpected_room(rtm.payload.len(), self.cfg.unexpected_hard_max);
        if !fits {
            self.refuse_over_limit(a);
        }
        fits
    }
}

impl PeerTable {
    /// Returns the entry for further packets of a message.
    pub(in crate::rdm) fn partial_msg(&mut self, envelope: &Envelope) -> Option<&mut PartialMsg> {
        self[envelope.from].queue.as_mut()?.partial_msgs.get_mut(&envelope.msg_id)
    }
}

impl Counters {
    #[inline]
    pub(in crate::rdm) fn count_received(&mut self, envelope: &Envelope, truncated: bool) {
        self.stats.count_received(envelope.protocol, envelope.len as usize);
        self.by_peer.of(envelope.from).rx_bytes += envelope.len;
        self.stats.rare.truncated += u64::from(truncated);
    }
}

#[inline]
fn is_truncated(result: &Result<RecvStatus, OpError>) -> bool {
    matches!(result, Err(OpError::Truncated { .. }))
}
