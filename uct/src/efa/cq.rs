//! Polling: delivers arrivals to the sink and completions to their owners, and reposts receive buffers. A
//! poll for one message delivers that alone, and keeps what else it has read for the next poll.

#![allow(unsafe_code)]

use super::dev::{Cqe, CqeOp, Dev, DevCq, DevStatus};
use super::iface::{Inner, Stats};
use super::tx::{CompletedSlot, EpIdx, OpKind, PacketLocation};
use super::user_recv_qp::{USER_RECV_BIT, user_recv_completion};
use crate::api::{Am, Comp, Error, Imm, PollOne, RecvCallback, Sink, SrcAddr};
use crate::base::pending::TxRoom;
use std::cell::{Cell, RefCell};

/// Completions read at a time.
const POLL_BATCH: usize = 16;

/// Completions read from the device, of which those from `next` on are not delivered yet.
pub(super) struct CqeBatch {
    /// Borrowed during a poll.
    cqes: RefCell<[Cqe; POLL_BATCH]>,
    next: Cell<usize>,
    end: Cell<usize>,
}

impl Default for CqeBatch {
    fn default() -> Self {
        CqeBatch { cqes: RefCell::new([Cqe::EMPTY; POLL_BATCH]), next: Cell::new(0), end: Cell::new(0) }
    }
}

impl CqeBatch {
    /// Completions that are not delivered yet.
    // HOT
    #[inline]
    fn left(&self) -> usize {
        self.end.get() - self.next.get()
    }

    /// Reads completions unless some are left. Returns how many there are, at most `max`, and whether the
    /// device may have more.
    // HOT
    #[inline]
    fn fill<Q: DevCq>(&self, cqes: &mut [Cqe; POLL_BATCH], cq: &Q, max: usize) -> (usize, bool) {
        if self.left() > 0 {
            return (self.left().min(max), true);
        }
        let want = POLL_BATCH.min(max);
        let got = cq.poll(&mut cqes[..want]);
        self.next.set(0);
        self.end.set(got);
        (got, got == want)
    }

    /// Takes the next completion out: a handler that panics does not get it again.
    // HOT
    #[inline]
    fn take<'a>(&self, cqes: &'a [Cqe; POLL_BATCH]) -> &'a Cqe {
        let next = self.next.get();
        self.next.set(next + 1);
        &cqes[next]
    }

    /// Puts the completion taken last back.
    // HOT
    #[inline]
    fn put_back(&self) {
        self.next.set(self.next.get() - 1);
    }
}

impl<D: Dev> Inner<D> {
    /// Polls up to `max` events and returns their number; returns 0 when called from a handler.
    // HOT
    #[inline]
    pub(super) fn poll<S: Sink>(&self, max: usize, sink: &mut S) -> usize {
        let batch = &self.cqe_batch;
        let Ok(mut cqes) = batch.cqes.try_borrow_mut() else { return 0 };
        let mut events = 0;
        while events < max {
            let (got, has_more) = batch.fill(&mut cqes, &self.cq, max - events);
            for _ in 0..got {
                let cqe = batch.take(&cqes);
                match cqe.op {
                    CqeOp::Recv | CqeOp::RecvWriteImm if cqe.wr_id & USER_RECV_BIT != 0 => {
                        self.on_side_recv(cqe, sink);
                    }
                    CqeOp::Recv | CqeOp::RecvWriteImm => self.on_recv(cqe, sink),
                    CqeOp::Send | CqeOp::Write => self.on_sent(cqe, sink),
                    CqeOp::Read => self.on_read(cqe, sink),
                }
            }
            if got > 0 {
                self.rx.refill_batch(&self.qp);
            } else if events == 0 {
                // Idle: post what does not fill a batch yet.
                self.rx.refill(&self.qp);
            }
            events += got;
            if !has_more {
                break;
            }
        }
        if self.pending.waiting() > 0 {
            // At least one, or arrivals that fill each poll would starve pending operations.
            events += self.dispatch_pending((max - events.min(max)).max(1));
        }
        // A flush may also end outside a poll, when a claimed slot is not posted.
        if self.tx.borrow().has_done_flush() {
            events += self.complete_flushes(max.saturating_sub(events).max(1), sink);
        }
        events
    }

    /// Polls for one packet: see [`crate::api::Iface::poll_one`]. Completions of sends that nobody waits for
    /// end on the way to it.
    // HOT
    #[inline]
    pub(super) fn poll_one<T: RecvCallback>(&self, callback: T) -> PollOne {
        if self.is_idle() {
            return PollOne::Empty;
        }
        let batch = &self.cqe_batch;
        let Ok(mut cqes) = batch.cqes.try_borrow_mut() else { return PollOne::Empty };
        if self.pending.waiting() > 0 {
            return PollOne::NeedsPoll;
        }
        loop {
            let (got, has_more) = batch.fill(&mut cqes, &self.cq, POLL_BATCH);
            for _ in 0..got {
                if self.tx.borrow().has_done_flush() {
                    return PollOne::NeedsPoll;
                }
                let cqe = batch.take(&cqes);
                match cqe.op {
                    CqeOp::Send | CqeOp::Write if self.ends_silently(cqe) => {
                        drop(self.tx.borrow_mut().finish(cqe.wr_id as u32));
                    }
                    CqeOp::Recv if is_message(cqe) => {
                        if !self.recv_one(cqe, callback) {
                            batch.put_back();
                            return PollOne::NeedsPoll;
                        }
                        self.rx.refill_batch(&self.qp);
                        return PollOne::Received { more: batch.left() > 0 };
                    }
                    _ => {
                        batch.put_back();
                        return PollOne::NeedsPoll;
                    }
                }
            }
            if !has_more {
                // Idle: post what does not fill a batch yet.
                self.rx.refill(&self.qp);
                return if self.tx.borrow().has_done_flush() { PollOne::NeedsPoll } else { PollOne::Empty };
            }
        }
    }

    /// Takes a receive of a queue pair beside the main one.
    #[inline]
    fn on_side_recv<S: Sink>(&self, cqe: &Cqe, sink: &mut S) {
        match self.amo.get() {
            Some(amo) if amo.has_received(cqe) => self.on_amo_recv(amo, cqe, sink),
            _ => on_user_recv(cqe, sink),
        }
    }

    /// Whether all there is to do for a completion is to free its slot.
    // HOT
    #[inline]
    fn ends_silently(&self, cqe: &Cqe) -> bool {
        cqe.status == DevStatus::Ok && self.tx.borrow().is_silent(cqe.wr_id as u32)
    }

    /// Gives a message to `callback`. False: it is not wanted, and stays received.
    // HOT
    #[inline]
    fn recv_one<T: RecvCallback>(&self, cqe: &Cqe, callback: T) -> bool {
        let buffer = self.rx.take(cqe.wr_id);
        let taken = callback.on_packet(buffer.bytes(cqe.len as usize), source_of(cqe));
        if !taken {
            self.rx.put_back(buffer);
        }
        taken
    }

    /// Returns whether a poll would find nothing; `true` counts as a poll.
    // HOT
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.pending.waiting() == 0
            && self.cqe_batch.left() == 0
            && !self.rx.needs_refill()
            && !self.tx.borrow().has_done_flush()
            && self.cq.is_idle()
    }

    // HOT
    #[inline]
    fn on_recv<S: Sink>(&self, cqe: &Cqe, sink: &mut S) {
        let buffer = self.rx.take(cqe.wr_id);
        if !is_message(cqe) {
            drop(buffer);
            return self.on_recv_slow(cqe, sink);
        }
        sink.on_am(Am::new(buffer.bytes(cqe.len as usize), source_of(cqe), &buffer));
    }

    /// Counts an arrival that is no message; delivers the immediate of a write.
    #[cold]
    fn on_recv_slow<S: Sink>(&self, cqe: &Cqe, sink: &mut S) {
        let mut s: Stats = self.stats.get();
        let mut imm = None;
        match (cqe.status, cqe.op) {
            (DevStatus::Ok, CqeOp::RecvWriteImm) => {
                s.write_imm += 1;
                imm = cqe.imm;
            }
            (DevStatus::Ok, _) => s.empty += 1,
            (status, _) => {
                if status == DevStatus::Flushed {
                    self.rx.close();
                }
                s.rx_errors += 1;
                tracing::debug!(?status, "receive failed");
            }
        }
        self.stats.set(s);
        if let Some(value) = imm {
            sink.on_imm(Imm { value, len: cqe.len as usize, source: source_of(cqe) });
        }
    }

    /// Completes a read; a bcopy get unpacks its bytes before the slot is free.
    // HOT
    #[inline]
    fn on_read<S: Sink>(&self, cqe: &Cqe, sink: &mut S) {
        let slot = cqe.wr_id as u32;
        let kind = self.tx.borrow().kind(slot);
        if kind == OpKind::GetBcopy {
            let unpack = self.unpacks.borrow_mut()[slot as usize].take();
            if let (Some((len, unpack)), DevStatus::Ok) = (unpack, cqe.status) {
                // SAFETY: the slot is taken until `on_sent`, and the device is done with it.
                unpack.call(unsafe { self.bounce.bytes(slot, len) });
            }
        }
        self.on_sent(cqe, sink);
    }

    // HOT
    #[inline]
    fn on_sent<S: Sink>(&self, cqe: &Cqe, sink: &mut S) {
        let mut status = cqe.status;
        if status != DevStatus::Ok
            && is_resendable(status)
            && self.return_packet(cqe.wr_id as u32, status, sink)
        {
            status = DevStatus::Ok;
        }
        let done = self.tx.borrow_mut().finish(cqe.wr_id as u32);
        if status != DevStatus::Ok || done.ep_dropped || done.group.is_some() {
            return self.on_sent_slow(cqe.wr_id as u32, status, done, sink);
        }
        done.comp.fire(Ok(()), |token, result| sink.on_comp(token, result));
    }

    /// Returns an undelivered packet to the sink, whose sends cannot overwrite it: the slot stays taken.
    #[cold]
    fn return_packet<S: Sink>(&self, slot: u32, status: DevStatus, sink: &mut S) -> bool {
        let Some((tag, location, len)) = self.tx.borrow().packet(slot) else { return false };
        let inline;
        let packet = match location {
            PacketLocation::None => return false,
            PacketLocation::Inline => {
                inline = self.tx.borrow().inline_copy(slot);
                &inline[..len]
            }
            // SAFETY: the slot is taken until `finish`, and the device is done with it.
            PacketLocation::Buffer => unsafe { self.bounce.bytes(slot, len) },
        };
        let (kind, imm) = {
            let tx = self.tx.borrow();
            (tx.kind(slot), tx.imm(slot))
        };
        match kind {
            OpKind::ToUserQp if status == DevStatus::Rnr => sink.on_user_rnr(tag, packet, imm),
            // The sink could not resend the immediate.
            OpKind::ToUserQp => return false,
            _ if status == DevStatus::Rnr => sink.on_rnr(tag, packet),
            _ => sink.on_lost(tag, status_error(status), packet),
        }
        true
    }

    /// Completes an operation that failed, whose endpoint is dropped, or that is one of a group.
    #[cold]
    fn on_sent_slow<S: Sink>(&self, slot: u32, status: DevStatus, done: CompletedSlot, sink: &mut S) {
        let result = op_result(done.kind, status);
        if done.group.is_some() {
            self.amo_request_done(slot, result);
        }
        self.end_slot(result, done, sink);
    }

    /// Reports the end of an operation whose slot is free again.
    pub(super) fn end_slot<S: Sink>(&self, result: Result<(), Error>, done: CompletedSlot, sink: &mut S) {
        let tag = self.tx.borrow().tag(done.ep);
        if done.ep_dropped {
            self.retire(done.ep);
        }
        let (comp, result) = match done.group {
            None => (done.comp, result),
            Some(group) => match self.group_member_done(group, result) {
                Some(ended) => ended,
                None => return,
            },
        };
        match (comp, result) {
            (Comp::None, Ok(())) => {}
            (Comp::None, Err(status_error)) => sink.on_ep_error(tag, status_error),
            (comp, result) => comp.fire(result, |token, result| sink.on_comp(token, result)),
        }
    }

    /// Frees a dropped endpoint, and its address handle, once its last operation has completed.
    pub(super) fn retire(&self, ep: EpIdx) {
        let retired = self.tx.borrow_mut().retire(ep);
        if retired {
            self.ahs.borrow_mut().ep_idle(&self.qp, ep);
        }
    }

    /// Whether a poll has work that the device does not signal.
    pub(super) fn needs_poll(&self) -> bool {
        let tx = self.tx.borrow();
        tx.has_done_flush() || self.cqe_batch.left() > 0 || (self.pending.waiting() > 0 && tx.has_free_slot())
    }

    #[cold]
    fn dispatch_pending(&self, max: usize) -> usize {
        // A fence may block one endpoint and not the others: ask each that waits if a slot is free.
        if !self.tx.borrow_mut().begin_dispatch() {
            return 0;
        }
        let mut done = self.pending.dispatch(max, TxRoom::PerEp);
        if done < max && self.tx.borrow_mut().release_unused() {
            done += self.pending.dispatch(max - done, TxRoom::PerEp);
        }
        self.tx.borrow_mut().end_dispatch(self.pending.waiting() > 0);
        done
    }

    #[cold]
    fn complete_flushes<S: Sink>(&self, max: usize, sink: &mut S) -> usize {
        for completed in 0..max {
            // The borrow ends before the callback, which may send.
            let Some(comp) = self.tx.borrow_mut().take_done_flush() else { return completed };
            comp.fire(Ok(()), |token, result| sink.on_comp(token, result));
        }
        max
    }
}

/// Whether a receive is a message with an id, in one of our buffers.
// HOT
#[inline]
fn is_message(cqe: &Cqe) -> bool {
    cqe.op == CqeOp::Recv && cqe.status == DevStatus::Ok && cqe.len > 0 && cqe.wr_id & USER_RECV_BIT == 0
}

// HOT
#[inline]
fn source_of(cqe: &Cqe) -> SrcAddr {
    SrcAddr { node: cqe.src_gid.iid(), port: u32::from(cqe.src_qpn) }
}

#[inline]
fn on_user_recv<S: Sink>(cqe: &Cqe, sink: &mut S) {
    let (token, recv) = user_recv_completion(cqe, status_error);
    sink.on_user_recv(token, recv);
}

/// Whether a packet with this status may be resent: nobody received it, or nobody can say who did.
#[inline]
fn is_resendable(status: DevStatus) -> bool {
    use DevStatus::{Flushed, Rnr, Unreachable, Unresponsive};
    matches!(status, Rnr | Flushed | Unresponsive | Unreachable)
}

fn op_result(kind: OpKind, status: DevStatus) -> Result<(), Error> {
    match (kind, status) {
        (_, DevStatus::Ok) => Ok(()),
        // The peer's device answered, so the peer is alive.
        (OpKind::Check, DevStatus::RemoteBadAddress | DevStatus::UnknownPeer) => Ok(()),
        _ => Err(status_error(status)),
    }
}

/// Maps a completion status to an error (RDM v4 device status codes, wire facts).
fn status_error(status: DevStatus) -> Error {
    match status {
        DevStatus::Flushed => Error::Cancelled,
        DevStatus::InvalidLkey => Error::BadLocalKey,
        DevStatus::RemoteBadAddress => Error::RemoteAccess,
        DevStatus::BadDestQpn => Error::PeerDead,
        DevStatus::Rnr => Error::NotReady,
        DevStatus::RemoteBadLength => Error::RemoteLength,
        DevStatus::Unresponsive => Error::Unresponsive,
        DevStatus::Unreachable => Error::Unreachable,
        other => Error::Device(other.into()),
    }
}
