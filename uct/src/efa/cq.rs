//! Polling: arrivals go to the sink, completions to whoever waits for them, buffers back to the device.
//! Called by `Iface::poll` and nobody else. Never sends by itself; pending operations do.

use super::dev::{Cqe, CqeOp, Dev, DevCq, DevStatus};
use super::iface::{Inner, Stats};
use super::tx::{CompletedSlot, EpIdx, OpKind, PacketLocation};
use super::user_recv_qp::{USER_RECV_BIT, user_recv_completion};
use crate::api::{Am, Comp, Error, Imm, Sink, Source};
use crate::base::pending::Room;

impl<D: Dev> Inner<D> {
    /// Takes up to `max` events; answers how many there were. A handler that polls gets 0. // HOT
    #[inline]
    pub(super) fn poll<S: Sink>(&self, max: usize, sink: &mut S) -> usize {
        let Ok(mut batch) = self.cqe_batch.try_borrow_mut() else { return 0 };
        let mut events = 0;
        while events < max {
            let want = batch.len().min(max - events);
            let got = self.cq.poll(&mut batch[..want]);
            for cqe in &batch[..got] {
                match cqe.op {
                    CqeOp::Recv if cqe.wr_id & USER_RECV_BIT != 0 => on_user_recv(cqe, sink),
                    CqeOp::Recv | CqeOp::RecvWriteImm => self.on_recv(cqe, sink),
                    CqeOp::Send | CqeOp::Write => self.on_sent(cqe, sink),
                    CqeOp::Read => self.on_read(cqe, sink),
                }
            }
            if got > 0 {
                self.rx.refill_batch(&self.qp);
            } else if events == 0 {
                // Nobody waits for anything: the time to post what is not a batch yet.
                self.rx.refill(&self.qp);
            }
            events += got;
            if got < want {
                break;
            }
        }
        if self.pending.waiting() > 0 {
            // One at least: arrivals that fill each poll must not keep it waiting for ever.
            events += self.dispatch_pending((max - events.min(max)).max(1));
        }
        // Flushes may also end outside a poll, by an operation that was claimed and not posted.
        if self.tx.borrow().has_done_flush() {
            events += self.complete_flushes(max.saturating_sub(events).max(1), sink);
        }
        events
    }

    /// Whether a poll would find nothing; if so, it has been polled. // HOT
    #[inline]
    pub(super) fn is_quiet(&self) -> bool {
        self.pending.waiting() == 0
            && !self.rx.needs_refill()
            && !self.tx.borrow().has_done_flush()
            && self.cq.is_quiet()
    }

    /// A message arrived. // HOT
    #[inline]
    fn on_recv<S: Sink>(&self, cqe: &Cqe, sink: &mut S) {
        let buffer = self.rx.take(cqe.wr_id);
        if cqe.status != DevStatus::Ok || cqe.len == 0 || cqe.op != CqeOp::Recv {
            // The buffer goes back first: the sink may keep messages.
            drop(buffer);
            return self.on_recv_slow(cqe, sink);
        }
        let source = Source { node: cqe.src_gid.iid(), port: u32::from(cqe.src_qpn) };
        sink.on_am(Am::new(buffer.bytes(cqe.len as usize), source, &buffer));
    }

    /// An arrival that is no message: counted; a word that came with a write is told.
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
            let source = Source { node: cqe.src_gid.iid(), port: u32::from(cqe.src_qpn) };
            sink.on_imm(Imm { value, len: cqe.len as usize, source });
        }
    }

    /// A read is done; if it went into the row's buffer, somebody takes it from there before the row is free. // HOT
    #[inline]
    fn on_read<S: Sink>(&self, cqe: &Cqe, sink: &mut S) {
        let slot = cqe.wr_id as u32;
        let kind = self.tx.borrow().kind(slot);
        if kind == OpKind::GetBcopy {
            let unpack = self.unpacks.borrow_mut()[slot as usize].take();
            if let (Some((len, unpack)), DevStatus::Ok) = (unpack, cqe.status) {
                // SAFETY: the row is taken until `on_sent`, and the device is done with it.
                unpack.call(unsafe { self.bounce.bytes(slot, len) });
            }
        }
        self.on_sent(cqe, sink);
    }

    /// An operation is done. // HOT
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
            return self.on_sent_slow(status, done, sink);
        }
        done.comp.fire(Ok(()), |token, result| sink.on_comp(token, result));
    }

    /// A packet came back. The row is still taken, so that what the sink sends does not end up in its buffer.
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
            // SAFETY: the row is taken until `finish`, and the device is done with it.
            PacketLocation::Buffer => unsafe { self.bounce.bytes(slot, len) },
        };
        let (kind, imm) = {
            let tx = self.tx.borrow();
            (tx.kind(slot), tx.imm(slot))
        };
        match kind {
            OpKind::ToUserQp if status == DevStatus::Rnr => sink.on_unsent_bare(tag, packet, imm),
            // The word that goes along would be lost.
            OpKind::ToUserQp => return false,
            _ if status == DevStatus::Rnr => sink.on_unsent(tag, packet),
            _ => sink.on_lost(tag, status_error(status), packet),
        }
        true
    }

    /// An operation failed, or its endpoint is gone, or it is a part of another.
    #[cold]
    fn on_sent_slow<S: Sink>(&self, status: DevStatus, done: CompletedSlot, sink: &mut S) {
        let tag = self.tx.borrow().tag(done.ep);
        if done.ep_dropped {
            self.retire(done.ep);
        }
        let result = op_result(done.kind, status);
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

    /// An operation of a dropped endpoint is over: the address handle goes back if it was the last.
    pub(super) fn retire(&self, ep: EpIdx) {
        let retired = self.tx.borrow_mut().retire(ep);
        if retired {
            self.ahs.borrow_mut().ep_idle(ep);
        }
    }

    /// Whether a poll has something to do although the device may have nothing to say.
    pub(super) fn needs_poll(&self) -> bool {
        let tx = self.tx.borrow();
        tx.has_done_flush() || (self.pending.waiting() > 0 && tx.has_free_slot())
    }

    #[cold]
    fn dispatch_pending(&self, max: usize) -> usize {
        // A fence may hold one endpoint back and not the others: ask each that waits, if there is room at all.
        if !self.tx.borrow_mut().begin_dispatch() {
            return 0;
        }
        let mut done = self.pending.dispatch(max, Room::PerEp);
        if done < max && self.tx.borrow_mut().release_unused() {
            done += self.pending.dispatch(max - done, Room::PerEp);
        }
        self.tx.borrow_mut().end_dispatch(self.pending.waiting() > 0);
        done
    }

    #[cold]
    fn complete_flushes<S: Sink>(&self, max: usize, sink: &mut S) -> usize {
        for completed in 0..max {
            // The borrow ends before the callback starts: it may send.
            let Some(comp) = self.tx.borrow_mut().take_done_flush() else { return completed };
            comp.fire(Ok(()), |token, result| sink.on_comp(token, result));
        }
        max
    }
}

/// A receive of the program's own memory is over.
fn on_user_recv<S: Sink>(cqe: &Cqe, sink: &mut S) {
    let (token, bare) = user_recv_completion(cqe, status_error);
    sink.on_bare(token, bare);
}

/// Whether a packet with this status may be sent once more: nobody took it, or nobody can say who did.
#[inline]
fn is_resendable(status: DevStatus) -> bool {
    use DevStatus::{Flushed, Rnr, Unreachable, Unresponsive};
    matches!(status, Rnr | Flushed | Unresponsive | Unreachable)
}

/// What a completion status means for an operation.
fn op_result(kind: OpKind, status: DevStatus) -> Result<(), Error> {
    match (kind, status) {
        (_, DevStatus::Ok) => Ok(()),
        // The peer's device answered, so the peer's queue pair is there.
        (OpKind::Check, DevStatus::RemoteBadAddress | DevStatus::UnknownPeer) => Ok(()),
        _ => Err(status_error(status)),
    }
}

/// The error behind a completion status (RDM v4 device status codes, wire facts).
fn status_error(status: DevStatus) -> Error {
    match status {
        DevStatus::Flushed => Error::Cancelled,
        DevStatus::InvalidLkey => Error::BadLocalKey,
        DevStatus::RemoteBadAddress => Error::RemoteAccess,
        DevStatus::BadDestQpn => Error::PeerDead,
        DevStatus::Rnr => Error::NotReady,
        DevStatus::RemoteBadLength => Error::RemoteLength,
        DevStatus::Unresponsive | DevStatus::Unreachable => Error::Unreachable,
        other => Error::Device(other.into()),
    }
}
