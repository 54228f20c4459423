//! Endpoints and sending. Checks arguments, looks up the protocol, calls the engine; stores no message.

#![allow(unsafe_code)]

use std::rc::Rc;
use std::time::Duration;

use ucs::time::Nanos;

use crate::api::core::ep_config::{EpConfig, table_index};
use crate::api::core::ep_state::{EpState, ErrorMode, Rails};
use crate::api::core::error::Error;
use crate::api::core::flushes::OnTimeout;
use crate::api::core::requests::{Callback, OpStatus, Role};
use crate::api::core::sink::CompletionSink;
use crate::api::core::worker_core::WorkerCore;
use crate::api::data::params::check_mem;
use crate::api::data::view::{SendData, SendView};
use crate::api::mem::memory::Mem;
use crate::api::request::buf::LentBuf;
use crate::api::request::handles::{FlushRequest, SendRequest};
use crate::api::worker::handle::Worker;

use crate::lane::LaneIdx;
use crate::rdm::io::PeerId;
use crate::rdm::{ContigBuf, Payload, PeerView, RecvStatus, SendArgs, SendBuf, Started as EngineStarted};
use crate::select::{CqData, Kind, Protocol, RmaTables, Sync};
use crate::wire::MsgClass;

/// Parameters of [`Worker::connect`].
#[derive(Default)]
pub struct EpParams {
    /// Handling of a failure of the peer.
    pub errors: ErrorMode,
}

/// Mode of closing an endpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum CloseMode {
    /// Flushes for at most this long, then forces.
    Flush(Duration),
    /// Aborts at once. All operations with the peer, on any endpoint of the worker, end with an error.
    Force,
}

/// Parameters of a `*_raw` send.
#[derive(Clone, Copy, Debug, Default)]
pub struct SendParams<'a> {
    /// Tag; `None` for an untagged message.
    pub tag: Option<u64>,
    /// When the send is complete.
    pub sync: Sync,
    /// 64 bits for the receiver's status.
    pub cq_data: Option<u64>,
    /// Called at completion, unless the send completes in the call.
    pub done: Option<Callback>,
    /// Registered memory that holds the data, as in [`OpParams::mem`](crate::OpParams::mem).
    pub mem: Option<&'a Mem>,
}

impl SendParams<'_> {
    /// Parameters of a send that is deferred: its callback and memory are kept and checked apart.
    fn without_borrows(&self) -> SendParams<'static> {
        let SendParams { tag, sync, cq_data, .. } = *self;
        SendParams { tag, sync, cq_data, done: None, mem: None }
    }
}

/// Endpoint to one peer. Dropping it does not cancel sends.
pub struct Ep {
    worker: Worker,
    state: Rc<EpState>,
}

impl Ep {
    /// Worker of the endpoint.
    pub fn worker(&self) -> &Worker {
        &self.worker
    }

    pub(crate) fn from_state(worker: Worker, state: Rc<EpState>) -> Ep {
        Ep { worker, state }
    }

    pub(crate) fn state(&self) -> &Rc<EpState> {
        &self.state
    }

    /// Number of the peer at this worker, as in [`crate::rdm::RecvStatus::from`]. `u32::MAX` before the peer
    /// is known.
    #[inline]
    pub fn peer(&self) -> PeerId {
        self.state.peer()
    }

    /// Kernel access to the peer's memory.
    pub(crate) fn rma_only_ep(&self, core: &WorkerCore) -> Option<&crate::lane::Ep> {
        self.state.rma_only_ep()?.get(core.rma_only.as_ref())
    }

    pub(crate) fn further_lanes(&self) -> &Rails {
        self.state.rails()
    }

    #[inline]
    pub(crate) fn lane(&self) -> Option<LaneIdx> {
        self.state.lanes().first().copied()
    }

    /// Error with which the endpoint refuses operations. // HOT
    #[inline]
    pub(crate) fn usable(&self) -> Result<(), Error> {
        self.state.refusal.get().map_or(Ok(()), Err)
    }

    pub(crate) fn lanes(&self) -> &[LaneIdx] {
        self.state.lanes()
    }

    /// Engine's view of the peer: handshake, features, outstanding operations. `None` once it is removed.
    pub fn peer_view(&self) -> Option<PeerView> {
        self.worker.core().engine.peers().info(self.state.peer())
    }

    // HOT
    #[inline]
    pub(crate) fn tables(&self) -> &EpConfig {
        self.state.tables()
    }

    // HOT
    #[inline]
    pub(crate) fn rma_tables(&self) -> &RmaTables {
        &self.state.tables().rma
    }

    /// Longest tagged message sent in one packet, bytes. // HOT
    #[inline]
    pub(crate) fn eager_max(&self) -> usize {
        self.state.tables().send[table_index(Kind::Tagged, Sync::No, CqData::No)].eager_max()
    }

    /// Sends `len` bytes at `buf`. // HOT
    /// # Safety
    /// Unless the call returns *done* or an error, `buf..buf + len` stays valid and unchanged until
    /// completion, and `params.done` may be called with its argument.
    #[inline]
    pub unsafe fn send_raw(
        &self,
        buf: *const u8,
        len: usize,
        params: &SendParams<'_>,
    ) -> Result<OpStatus<()>, Error> {
        check_mem(params.mem, buf, len)?;
        if let SendParams { tag: Some(tag), sync: Sync::No, cq_data: None, .. } = *params {
            // SAFETY: the caller keeps the bytes valid until completion.
            let whole = unsafe { ContigBuf::new(buf, len) };
            if self.send_short(MsgClass::Message, tag, whole) {
                return Ok(OpStatus::Done(()));
            }
        }
        // SAFETY: as above.
        let buf = unsafe { SendBuf::new(buf, len) };
        // SAFETY: as above.
        unsafe { self.send_any(buf, params) }
    }

    /// Tries to send a short message within the call. Returns false if nothing was sent. // HOT
    #[inline(always)]
    pub(crate) fn send_short<B: Payload>(&self, class: MsgClass, tag: u64, body: B) -> bool {
        body.size() < self.state.short_below.get() && self.send_immediate(class, tag, body)
    }

    // HOT
    #[inline(always)]
    fn send_immediate<B: Payload>(&self, class: MsgClass, tag: u64, body: B) -> bool {
        let mut core = self.worker.core_keep_idle();
        let (engine, mut wire, _) = core.split();
        engine.peers_mut().send_short(&mut wire, self.state.peer(), (class, tag), body)
    }

    #[inline(never)]
    pub(crate) fn send_short_list(&self, class: MsgClass, tag: u64, list: SendBuf) -> bool {
        self.send_short(class, tag, list)
    }

    /// Unsafe: as for [`Ep::start_send`].
    #[inline(never)]
    pub(crate) unsafe fn send_any(&self, buf: SendBuf, params: &SendParams) -> Result<OpStatus<()>, Error> {
        if let Some(error) = self.state.refusal.get() {
            let (params, done) = (params.without_borrows(), params.done);
            // SAFETY: the caller keeps the bytes valid until completion, which comes after this.
            let start = move |ep: &Ep| unsafe { ep.send_any(buf, &params) };
            return self.defer(error, done, Box::new(move |ep| end_deferred_send(&buf, start(ep))));
        }
        if self.state.is_to_self() && self.send_to_self(&buf, params) {
            return Ok(OpStatus::Done(()));
        }
        let (kind, cq) = (
            if params.tag.is_some() { Kind::Tagged } else { Kind::Untagged },
            if params.cq_data.is_some() { CqData::Yes } else { CqData::No },
        );
        let at = table_index(kind, params.sync, cq);
        // SAFETY: the caller's contract.
        unsafe { self.start_send(buf, at, MsgClass::Message, params) }
    }

    /// Copies a message to a posted receive of this worker. Returns false if there is none.
    #[inline(never)]
    fn send_to_self(&self, buf: &SendBuf, params: &SendParams) -> bool {
        let (Some(tag), None, Some(message)) = (params.tag, params.cq_data, buf.whole()) else {
            return false;
        };
        let mut core = self.worker.core_keep_idle();
        let core = &mut *core;
        let mut sink = CompletionSink {
            reqs: &mut core.reqs,
            streams: &mut core.streams,
            am_queue: &self.worker.am_handlers().queue,
        };
        let delivered = core.engine.receives().recv_from_self(&mut sink, self.state.peer(), tag, message);
        core.idle &= !core.engine.pending().has_events() && !core.reqs.has_ready();
        delivered
    }

    /// Sends a tagged message in one packet. Unsafe: as for [`Ep::start_send`].
    unsafe fn send_packet(&self, tag: u64, bytes: &[u8], params: &SendParams) -> Result<OpStatus<()>, Error> {
        // SAFETY: the caller keeps the bytes valid until completion.
        let buf = unsafe { SendBuf::new(bytes.as_ptr(), bytes.len()) };
        self.usable()?;
        if let Some(whole) = buf.whole()
            && self.send_immediate(MsgClass::Message, tag, whole)
        {
            return Ok(OpStatus::Done(()));
        }
        // SAFETY: as above.
        unsafe { self.start_with_protocol(Protocol::Eager, buf, MsgClass::Message, params) }
    }

    /// Unsafe: `buf` stays valid until completion, and `params.done` may be called with its argument.
    unsafe fn start_send(
        &self,
        buf: SendBuf,
        at: usize,
        class: MsgClass,
        params: &SendParams,
    ) -> Result<OpStatus<()>, Error> {
        let (is_allocated, is_kernel_readable) =
            (|| self.is_allocated(&buf), || self.is_kernel_readable(&buf));
        let protocol =
            self.state.tables().protocol(at, buf.len(), is_allocated, is_kernel_readable, |estimate| {
                self.choose_copy_method(buf.len(), estimate)
            });
        if let SendParams { tag: Some(tag), sync: Sync::No, cq_data: None, .. } = *params
            && protocol == Protocol::Eager
            // Shorter messages have already tried this.
            && buf.len() >= self.state.short_below.get()
            && let Some(whole) = buf.whole()
            && self.send_immediate(class, tag, whole)
        {
            return Ok(OpStatus::Done(()));
        }
        // SAFETY: the caller's contract.
        unsafe { self.start_with_protocol(protocol, buf, class, params) }
    }

    /// Unsafe: as for [`Ep::start_send`].
    unsafe fn start_with_protocol(
        &self,
        protocol: Protocol,
        buf: SendBuf,
        class: MsgClass,
        params: &SendParams,
    ) -> Result<OpStatus<()>, Error> {
        let mut core = self.worker.core();
        let (engine, mut wire, reqs) = core.split();
        let user = reqs.next_token()?;
        let args =
            SendArgs { buf, tag: params.tag, sync: params.sync, cq_data: params.cq_data, protocol, user };
        match engine.send_class(&mut wire, self.state.peer(), class, args) {
            EngineStarted::Done(()) => Ok(OpStatus::Done(())),
            EngineStarted::Pending(op) => {
                let role = if class == MsgClass::AmData { Role::Announced } else { Role::Send(op) };
                Ok(OpStatus::InProgress(reqs.start(user, role, params.done)))
            }
            EngineStarted::Failed(e) => Err(e.into()),
        }
    }

    /// Sends a message as `params` specify. Ignores `params.done`: the request reports completion.
    pub fn send<B: SendData>(&self, buf: B, params: &SendParams) -> SendRequest<B> {
        let params = &SendParams { done: None, ..*params };
        let mut lent = LentBuf::new(buf);
        let started = match lent.send_view() {
            // SAFETY: the request keeps the container until completion; its data does not move or change.
            Ok(SendView::Bytes(at, len)) => unsafe { self.send_raw(at, len, params) },
            // SAFETY: as above.
            Ok(SendView::Generic(data)) => unsafe { self.send_generic(data, params) },
            Err(error) => Err(error),
        };
        self.make_request(started, lent)
    }

    /// Sends a message of an internal class. Unsafe: as for [`Ep::start_send`]. // HOT
    #[inline]
    pub(crate) unsafe fn send_class_raw(
        &self,
        class: MsgClass,
        tag: u64,
        buf: SendBuf,
        done: Option<Callback>,
    ) -> Result<OpStatus<()>, Error> {
        let sent = match buf.whole() {
            Some(whole) => self.send_short(class, tag, whole),
            None => self.send_short_list(class, tag, buf),
        };
        if sent {
            return Ok(OpStatus::Done(()));
        }
        // SAFETY: the caller's contract.
        unsafe { self.send_class_any(class, tag, buf, done) }
    }

    /// Unsafe: as for [`Ep::start_send`].
    #[inline(never)]
    unsafe fn send_class_any(
        &self,
        class: MsgClass,
        tag: u64,
        buf: SendBuf,
        done: Option<Callback>,
    ) -> Result<OpStatus<()>, Error> {
        if let Some(error) = self.state.refusal.get() {
            // SAFETY: as in `send_any`.
            let start = move |ep: &Ep| unsafe { ep.send_class_any(class, tag, buf, None) };
            return self.defer(error, done, Box::new(move |ep| end_deferred_send(&buf, start(ep))));
        }
        let at = table_index(Kind::Tagged, Sync::No, CqData::No);
        let params = SendParams { tag: Some(tag), done, ..SendParams::default() };
        // SAFETY: the caller's contract.
        unsafe { self.start_send(buf, at, class, &params) }
    }

    pub(crate) fn make_request<B>(
        &self,
        started: Result<OpStatus<()>, Error>,
        lent: LentBuf<B>,
    ) -> SendRequest<B> {
        match started {
            Ok(OpStatus::Done(())) => SendRequest::ended(Ok(()), lent),
            Ok(OpStatus::InProgress(id)) => SendRequest::running(self.worker.clone(), id, lent),
            Err(e) => SendRequest::ended(Err(e), lent),
        }
    }

    /// Sends a tagged message. Completes when the buffer may be reused.
    pub fn tag_send<B: SendData>(&self, tag: u64, buf: B) -> SendRequest<B> {
        self.send(buf, &SendParams { tag: Some(tag), ..SendParams::default() })
    }

    /// Sends a tagged message. Completes when it was matched and is in the receiver's buffer.
    pub fn tag_send_sync<B: SendData>(&self, tag: u64, buf: B) -> SendRequest<B> {
        self.send(buf, &SendParams { tag: Some(tag), sync: Sync::Yes, ..SendParams::default() })
    }

    /// Sends an untagged message. [`Worker::msg_recv`] matches in order of arrival.
    pub fn msg_send<B: SendData>(&self, buf: B) -> SendRequest<B> {
        self.send(buf, &SendParams::default())
    }

    /// Sends borrowed bytes. If they cannot go out within the call, returns a request that owns a copy.
    pub fn tag_inject(&self, tag: u64, bytes: &[u8]) -> Result<(), SendRequest<Box<[u8]>>> {
        let params = SendParams { tag: Some(tag), ..SendParams::default() };
        if bytes.len() <= self.protocols().table(Kind::Tagged, Sync::No).eager_max() {
            // SAFETY: a send that does not complete here is one waiting packet, and is cancelled below.
            match unsafe { self.send_packet(tag, bytes, &params) } {
                Ok(OpStatus::Done(())) => return Ok(()),
                Ok(OpStatus::InProgress(id)) => {
                    let cancelled = self.worker.cancel(id);
                    assert!(cancelled, "a one-packet send that waits can be cancelled");
                    self.worker.free(id);
                }
                Err(Error::NotConnected) => {}
                Err(e) => return Err(SendRequest::ended(Err(e), LentBuf::new(bytes.into()))),
            }
        }
        Err(self.send(bytes.into(), &params))
    }

    /// Sends borrowed bytes and makes progress until they may be reused.
    pub fn tag_send_blocking(&self, tag: u64, bytes: &[u8]) -> Result<(), Error> {
        let params = SendParams { tag: Some(tag), ..SendParams::default() };
        // SAFETY: `bytes` is borrowed until `wait_borrowed` returns or unwinds, both only after completion.
        match unsafe { self.send_raw(bytes.as_ptr(), bytes.len(), &params) }? {
            OpStatus::Done(()) => Ok(()),
            OpStatus::InProgress(id) => self.worker.wait_borrowed(id).map(drop),
        }
    }

    /// Completes when everything sent to this peer was handed over and acknowledged as its protocol requires.
    /// Fails with [`Error::PeerGone`] or [`Error::Unreachable`] if the peer is or gets lost.
    pub fn flush(&self) -> FlushRequest {
        self.flush_until(Nanos::NEVER, OnTimeout::EndFlush)
    }

    /// Flushes within the time limit. [`Error::TimedOut`]: data is still in flight.
    pub fn flush_within(&self, limit: Duration) -> FlushRequest {
        let now = self.worker.core().now();
        self.flush_until(now + limit, OnTimeout::EndFlush)
    }

    fn flush_until(&self, deadline: Nanos, on_timeout: OnTimeout) -> FlushRequest {
        let started = self.worker.core().start_flush(Some(self.state.clone()), deadline, on_timeout);
        match started {
            Ok(id) => FlushRequest::running(self.worker.clone(), id),
            Err(e) => FlushRequest::ended(Err(e)),
        }
    }

    /// Closes the endpoint: further sends fail. [`Error::TimedOut`]: not everything arrived in time.
    pub fn close(self, how: CloseMode) -> FlushRequest {
        match how {
            CloseMode::Flush(within) if self.state.failure().is_none() => {
                let now = self.worker.core().now();
                let request = self.flush_until(now + within, OnTimeout::AbortOps);
                self.state.refuse(Error::Closed);
                request
            }
            _ => {
                let ended = self.state.failure().map_or(Ok(()), Err);
                self.state.refuse(Error::Closed);
                self.worker.core().abort_ep_ops(&self.state, Error::Cancelled);
                FlushRequest::ended(ended)
            }
        }
    }
}

/// Result of a deferred send that has started: a failed callback fails what has ended within the call.
#[cold]
fn end_deferred_send(
    buf: &SendBuf,
    started: Result<OpStatus<()>, Error>,
) -> Result<OpStatus<RecvStatus>, Error> {
    match (started?, buf.error()) {
        (OpStatus::Done(()), Some(error)) => Err(Error::Datatype(error)),
        (started, _) => Ok(started.with_empty_status()),
    }
}

impl crate::api::core::worker_core::WorkerCore {
    /// Aborts the operations of an endpoint; `deferred` is the error of those that have not begun.
    pub(crate) fn abort_ep_ops(&mut self, ep: &Rc<EpState>, deferred: Error) {
        if ep.is_pending() {
            ep.fail_link(deferred);
            return self.end_deferred(ep, deferred);
        }
        let (engine, mut wire, _) = self.split();
        engine.force_close(&mut wire, ep.peer());
    }
}
