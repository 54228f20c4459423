//! Raw forms of flush and close, requests that have ended when they are made, and sends and cancels that end
//! in their call: for runtimes that hand out a request for every operation.

#![allow(unsafe_code)]

use ucs::time::Nanos;

use crate::api::am::send::send_header_now;
use crate::api::am::tag::{AM_MAX_HEADER, AmKind, AmTag, POSTED_LEN};
use crate::api::core::ep_state::ErrorMode;
use crate::api::core::error::Error;
use crate::api::core::flushes::OnTimeout;
use crate::api::core::requests::{Callback, OpStatus, RequestId};
use crate::api::ep::close::{CloseMode, cancel_stream_recvs};
use crate::api::ep::end_ops::abort_ep_ops;
use crate::api::ep::handle::Ep;
use crate::api::ep::send::{copy_to_receive, send_packet_to_self};
use crate::api::tag::recv::{Match, post_recv};
use crate::api::worker::dispatch::run_ready;
use crate::api::worker::handle::Worker;

use crate::rdm::io::PeerId;
use crate::rdm::{Cancel, ContigBuf, OpError, ProbeRemove, RecvArgs, RecvBuf, RecvStatus, SendBuf};
use crate::wire::MsgClass;

/// Flushes a worker as [`Worker::flush`]. Progress calls `done` at the end.
/// # Safety
/// `done` may be called with its argument.
pub unsafe fn flush_worker_raw(worker: &Worker, done: Option<Callback>) -> Result<RequestId, Error> {
    worker.core().start_flush(None, (Nanos::NEVER, OnTimeout::EndFlush), done)
}

/// Flushes an endpoint as [`Ep::flush`]. Progress calls `done` at the end.
/// # Safety
/// `done` may be called with its argument.
pub unsafe fn flush_ep_raw(ep: &Ep, done: Option<Callback>) -> Result<RequestId, Error> {
    let of = Some(ep.state().clone());
    ep.worker().core().start_flush(of, (Nanos::NEVER, OnTimeout::EndFlush), done)
}

/// Cancels an operation as [`Worker::cancel`], but a send only if nothing of it has gone out: a message that
/// is cancelled is received by nobody, and any other one as if there had been no cancel. So UCX, MPI and
/// libfabric have it.
pub fn cancel_unsent(worker: &Worker, request: RequestId) -> bool {
    worker.core().cancel(request, Cancel::Unsent)
}

/// Cancels an operation as [`cancel_unsent`]. The callback of a send or receive is called, or its waker
/// woken, before this returns.
pub fn cancel_now(worker: &Worker, request: RequestId) -> bool {
    let mut core = worker.core();
    let token = core.reqs.token(request);
    if !core.cancel(request, Cancel::Unsent) {
        return false;
    }
    let ended = token.filter(|token| core.engine.pending_mut().take_cancelled(*token));
    let action = ended.and_then(|token| core.reqs.complete_token(token, Err(OpError::Cancelled)));
    drop(core);
    if let Some(action) = action {
        worker.inner.run(action);
    }
    true
}

/// The request whose [user memory](RequestId::user_memory) is at an address, which may be any number: one of
/// this worker, free or not, or one in memory of the caller whose operation has not ended. No memory is read
/// that is no request's. Searches all requests of the worker's memory.
pub fn request_at(worker: &Worker, user_memory: usize) -> Option<RequestId> {
    worker.core_keep_idle().reqs.at(user_memory.checked_sub(RequestId::SIZE)?)
}

/// Sends `len` bytes at `buf` with a tag within the call, or not at all. Returns whether it sent: short
/// messages to a peer that is ready.
/// # Safety
/// `buf..buf + len` can be read.
// HOT
#[inline(always)]
pub unsafe fn send_now_raw(ep: &Ep, tag: u64, buf: *const u8, len: usize) -> bool {
    // SAFETY: this function's contract.
    let whole = unsafe { ContigBuf::new(buf, len) };
    ep.send_short(MsgClass::Message, tag, whole)
}

/// Sends as [`send_now_raw`]. A message to the worker itself also ends its receive: callbacks of this
/// receive, and of what has ended before, are called before the call returns, unless one of them makes this
/// call.
/// # Safety
/// As for [`send_now_raw`]. `ep`, of this worker, is valid when the call begins; a callback may free it.
// HOT
#[inline(always)]
pub unsafe fn send_now_calling(worker: &Worker, ep: *const Ep, tag: u64, buf: *const u8, len: usize) -> bool {
    // SAFETY: this function's contract.
    let whole = unsafe { ContigBuf::new(buf, len) };
    // SAFETY: as above; it is not used behind a callback.
    let of = unsafe { &*ep };
    if len < of.state().short_below.get() {
        return of.send_short(MsgClass::Message, tag, whole);
    }
    // SAFETY: as above.
    len < of.state().short_to_self_below.get() && send_to_self_calling(worker, of.peer(), tag, whole)
}

/// [`send_now_calling`] of a short message to the worker itself.
// HOT
#[inline(never)]
fn send_to_self_calling(worker: &Worker, own: PeerId, tag: u64, whole: ContigBuf) -> bool {
    let mut core = worker.core_keep_idle();
    let is_calling = &worker.inner.is_calling;
    let call = match copy_to_receive(worker, &mut core, own, (tag, whole), !is_calling.get()) {
        Some(call) => call,
        None if send_packet_to_self(&mut core, own, (MsgClass::Message, tag), whole) => None,
        None => return false,
    };
    if is_calling.get() || call.is_none() && !core.reqs.has_ready() {
        return true;
    }
    drop(core);
    is_calling.set(true);
    if let Some((call, id, message)) = call {
        call.run(id, Ok(message));
    }
    if worker.core_keep_idle().reqs.has_ready() {
        run_ready(worker);
    }
    is_calling.set(false);
    true
}

/// Frees the request of an operation that has ended well, in memory of the worker. False: nothing has
/// happened, and [`Worker::free`] frees it, or the worker is in use.
// HOT
#[inline(always)]
pub fn free_ended(worker: &Worker, request: RequestId) -> bool {
    worker.inner.core.try_borrow_mut().is_ok_and(|mut core| core.reqs.free_ended(request))
}

/// Posts a receive of a message that `matching` accepts into `len` bytes at `buf`, unless such a message is
/// there. `None`: nothing has been done, and [`Worker::recv_raw`] receives it, or tells the error.
/// # Safety
/// As for [`Worker::recv_raw`].
// HOT
#[inline(always)]
pub unsafe fn post_recv_raw(
    worker: &Worker,
    buf: *mut u8,
    len: usize,
    matching: Match,
    done: Option<Callback>,
) -> Option<RequestId> {
    let mut core = worker.core_keep_idle();
    let user = core.reqs.next_token().ok()?;
    // SAFETY: the caller vouches for the memory until the operation's end.
    let buf = unsafe { RecvBuf::new(buf, len) };
    post_recv(&mut core, RecvArgs { buf, kind: matching.kind, from: matching.from, user }, done).ok()
}

/// Receives the oldest message that `matching` accepts into `len` bytes at `buf`, if it has arrived, in one
/// packet, and fits. `None`: nothing has been done, and [`Worker::recv_raw`] posts a receive, or receives the
/// message and tells the error.
/// # Safety
/// `len` bytes at `buf` are valid for writes.
// HOT
#[inline]
pub unsafe fn recv_arrived_raw(
    worker: &Worker,
    buf: *mut u8,
    len: usize,
    matching: Match,
) -> Option<RecvStatus> {
    // SAFETY: the memory is used within the call only, for which the caller vouches.
    let buf = unsafe { RecvBuf::new(buf, len) };
    worker.core_keep_idle().engine.receives().take_arrived(matching.kind, matching.from, &buf)
}

/// Error with which an endpoint refuses operations, once it or its peer has failed.
pub fn failure_of(ep: &Ep) -> Option<Error> {
    ep.state().failure()
}

/// Sets the handling of a failure of the peer for an endpoint without a callback, as one of
/// [`AmMessage::reply_ep`](crate::AmMessage::reply_ep) is. An endpoint with a callback keeps it.
pub fn set_default_error_mode(ep: &Ep, errors: ErrorMode) {
    drop(ep.state().set_default_error_mode(errors));
}

/// Whether the message that a receive with `matching` would get has come as a whole: [`Worker::recv_raw`]
/// ends in its call then.
pub fn has_whole_message(worker: &Worker, matching: Match) -> bool {
    let found = worker.core().engine.receives().probe(matching.kind, matching.from, ProbeRemove::No);
    found.is_some_and(|found| found.is_whole)
}

/// Sends `header` and `len` bytes at `data` to handler `id` within the call, or not at all. Returns whether
/// it sent: short messages to a peer that is ready. `reply` is [`AmParams::reply`](crate::AmParams::reply).
/// # Safety
/// `data..data + len` can be read.
// HOT
#[inline(always)]
pub unsafe fn am_send_now_raw(
    ep: &Ep,
    (id, reply): (u16, bool),
    header: &[u8],
    data: *const u8,
    len: usize,
) -> bool {
    if !header.is_empty() {
        // SAFETY: this function's contract.
        return unsafe { am_send_header_now(ep, (id, reply), header, data, len) };
    }
    let connection = ep.state().peer_connection();
    let am_tag = AmTag { id, header_len: 0, kind: AmKind::Eager, reply, connection };
    // SAFETY: this function's contract.
    len <= POSTED_LEN && ep.send_short(MsgClass::Am, am_tag.encode(len), unsafe { ContigBuf::new(data, len) })
}

/// [`am_send_now_raw`] with a header.
// HOT
#[inline(never)]
unsafe fn am_send_header_now(
    ep: &Ep,
    (id, reply): (u16, bool),
    header: &[u8],
    data: *const u8,
    len: usize,
) -> bool {
    let total = header.len().saturating_add(len);
    if total > POSTED_LEN || header.len() > AM_MAX_HEADER {
        return false;
    }
    let connection = ep.state().peer_connection();
    let am_tag = AmTag { id, header_len: header.len() as u16, kind: AmKind::Eager, reply, connection };
    // SAFETY: this function's contract.
    let data = unsafe { SendBuf::new(data, len) };
    // SAFETY: as above.
    let sent = unsafe { send_header_now(ep, am_tag.encode(total), header, data) };
    sent.unwrap_or(false)
}

impl Ep {
    /// Closes as [`Ep::close`], and keeps the handle: its operations fail. Progress calls `done` at the end,
    /// unless the endpoint is closed within the call.
    /// # Safety
    /// `done` may be called with its argument.
    pub unsafe fn close_raw(&self, how: CloseMode, done: Option<Callback>) -> Result<OpStatus<()>, Error> {
        cancel_stream_recvs(self);
        let failure = self.state().failure();
        if let (CloseMode::Flush(within), None) = (how, failure) {
            let mut core = self.worker().core();
            let deadline = core.now() + within;
            let started = core.start_flush(Some(self.state().clone()), (deadline, OnTimeout::AbortOps), done);
            drop(core);
            self.state().refuse(Error::Closed);
            return started.map(OpStatus::InProgress);
        }
        self.state().refuse(Error::Closed);
        abort_ep_ops(&mut self.worker().core(), self.state(), Error::Cancelled);
        failure.map_or(Ok(OpStatus::Done(())), Err)
    }
}

impl RequestId {
    /// A request of `worker` that has ended, with a message, and with an error if there is one: for callers
    /// that need one although their operation has completed in the call. It is tested and freed as any other,
    /// and has no callback.
    pub fn ended(worker: &Worker, message: RecvStatus, error: Option<Error>) -> Result<RequestId, Error> {
        worker.core_keep_idle().reqs.start_ended(message, error)
    }

    /// As [`RequestId::ended`], with a callback that the next progress calls.
    /// # Safety
    /// `done` may be called with its argument.
    pub unsafe fn ending(
        worker: &Worker,
        message: RecvStatus,
        error: Option<Error>,
        done: Option<Callback>,
    ) -> Result<RequestId, Error> {
        worker.core().reqs.start_ending(message, error, done)
    }
}
