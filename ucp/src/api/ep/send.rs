//! Sends. Each message goes one of two ways: as one packet within the call, or by the protocol of its length
//! and memory. Either borrows the worker once.

#![allow(unsafe_code)]

use crate::api::am::tag::AmTag;
use crate::api::core::ep_config::table_index;
use crate::api::core::ep_state::EpState;
use crate::api::core::error::Error;
use crate::api::core::requests::{Callback, OpStatus, ReadyCall, Role};
use crate::api::core::sink::{CompletionSink, SelfSink};
use crate::api::core::worker_core::WorkerCore;
use crate::api::data::params::check_mem;
use crate::api::data::start::send_generic;
use crate::api::data::view::{SendData, SendView};
use crate::api::ep::deferred::defer;
use crate::api::ep::handle::Ep;
use crate::api::ep::protocols::choose_protocol;
use crate::api::mem::memory::Mem;
use crate::api::request::buf::InFlightBuf;
use crate::api::request::handles::SendRequest;
use crate::api::worker::handle::{CoreMut, Worker};

use crate::rdm::io::PeerId;
use crate::rdm::{ContigBuf, Payload, RecvStatus, SendArgs, SendBuf, Started as EngineStarted};
use crate::select::{CqData, DeliveryComplete, Kind, Protocol};
use crate::wire::MsgClass;

/// Parameters of a `*_raw` send.
#[derive(Clone, Copy, Debug, Default)]
pub struct SendParams<'a> {
    /// Tag; `None` for an untagged message.
    pub tag: Option<u64>,
    /// When the send is complete.
    pub sync: DeliveryComplete,
    /// 64 bits for the receiver's status.
    pub cq_data: Option<u64>,
    /// Called at completion, unless the send completes in the call.
    pub done: Option<Callback>,
    /// Registered memory that holds the data, as in [`OpParams::mem`](crate::OpParams::mem).
    pub mem: Option<&'a Mem>,
}

impl SendParams<'_> {
    /// Parameters of a send that is deferred: its callback and memory are kept and checked apart.
    pub(crate) fn without_borrows(&self) -> SendParams<'static> {
        let SendParams { tag, sync, cq_data, .. } = *self;
        SendParams { tag, sync, cq_data, done: None, mem: None }
    }
}

impl SendParams<'_> {
    /// Parameters of a message of an internal class.
    #[inline(always)]
    pub(crate) fn of_class(tag: u64, done: Option<Callback>) -> SendParams<'static> {
        SendParams { tag: Some(tag), done, ..SendParams::default() }
    }

    /// Tag of a message that has nothing but a tag.
    // HOT
    #[inline(always)]
    pub(crate) fn plain_tag(&self) -> Option<u64> {
        match *self {
            SendParams { tag, sync: DeliveryComplete::No, cq_data: None, .. } => tag,
            _ => None,
        }
    }

    /// Index of the protocol table.
    pub(crate) fn table_index(&self) -> usize {
        let kind = if self.tag.is_some() { Kind::Tagged } else { Kind::Untagged };
        let cq_data = if self.cq_data.is_some() { CqData::Yes } else { CqData::No };
        table_index(kind, self.sync, cq_data)
    }
}

impl Ep {
    /// Sends `len` bytes at `buf`.
    /// # Safety
    /// Unless the call returns *done* or an error, `buf..buf + len` stays valid and unchanged until
    /// completion, and `params.done` may be called with its argument.
    // HOT
    #[inline]
    pub unsafe fn send_raw(
        &self,
        buf: *const u8,
        len: usize,
        params: &SendParams<'_>,
    ) -> Result<OpStatus<()>, Error> {
        check_mem(params.mem, buf, len)?;
        if let Some(tag) = params.plain_tag() {
            // SAFETY: the caller keeps the bytes valid until completion.
            let whole = unsafe { ContigBuf::new(buf, len) };
            if self.send_short(MsgClass::Message, tag, whole) {
                return Ok(OpStatus::Done(()));
            }
        }
        // SAFETY: as above.
        let buf = unsafe { SendBuf::new(buf, len) };
        // SAFETY: as above.
        unsafe { self.start_send(MsgClass::Message, buf, params) }
    }

    /// Tries to send a short message within the call. Returns false if nothing was sent.
    // HOT
    #[inline(always)]
    pub(crate) fn send_short<B: Payload>(&self, class: MsgClass, tag: u64, body: B) -> bool {
        let state = self.state();
        if body.size() < state.short_below.get() {
            return send_packet_now(&mut self.worker().core_keep_idle(), state.peer(), (class, tag), body);
        }
        body.size() < state.short_to_self_below.get() && send_short_to_self(self, class, tag, body)
    }

    /// Tries to send a short message that is not contiguous, as [`Ep::send_short`].
    #[inline(never)]
    pub(crate) fn send_short_list(&self, class: MsgClass, tag: u64, list: SendBuf) -> bool {
        self.send_short(class, tag, list)
    }

    /// Sends a message of any class and layout.
    /// # Safety
    /// `buf` stays valid until completion, and `params.done` may be called with its argument.
    // HOT
    #[inline]
    pub(crate) unsafe fn send_buf(
        &self,
        class: MsgClass,
        buf: SendBuf,
        params: &SendParams<'_>,
    ) -> Result<OpStatus<()>, Error> {
        if let Some(tag) = params.plain_tag() {
            let sent = match buf.whole() {
                Some(whole) => self.send_short(class, tag, whole),
                None => self.send_short_list(class, tag, buf),
            };
            if sent {
                return Ok(OpStatus::Done(()));
            }
        }
        // SAFETY: this function's contract.
        unsafe { self.start_send(class, buf, params) }
    }

    /// Starts the send of a message that does not go as one packet within the call, or has not been tried.
    /// # Safety
    /// As for [`Ep::send_buf`].
    #[inline(never)]
    pub(crate) unsafe fn start_send(
        &self,
        class: MsgClass,
        buf: SendBuf,
        params: &SendParams<'_>,
    ) -> Result<OpStatus<()>, Error> {
        let state = self.state();
        if let Some(refusal) = state.refusal.get() {
            let (params, done) = (params.without_borrows(), params.done);
            let start = move |ep: &Ep| {
                // The peer's number of the connection was not known.
                let connection = ep.state().peer_connection();
                let tag = params.tag.map(|tag| tag | connection_bits(class, connection));
                // SAFETY: the caller keeps the bytes valid until completion, which comes after this.
                let started = unsafe { ep.start_send(class, buf, &SendParams { tag, ..params }) };
                end_deferred_send(&buf, started)
            };
            return defer(self, refusal, done, Box::new(start));
        }
        let mut core = self.worker().core_keep_idle();
        if class == MsgClass::Message
            && state.is_over_loopback()
            && send_to_self(self.worker(), &mut core, state.peer(), (&buf, params))
        {
            return Ok(OpStatus::Done(()));
        }
        let protocol = choose_protocol(&core, state, params.table_index(), &buf);
        if protocol == Protocol::Eager
            && let Some(tag) = params.plain_tag()
            // Shorter messages have already tried this.
            && buf.len() >= state.short_below.get()
            && let Some(whole) = buf.whole()
            && send_packet_now(&mut core, state.peer(), (class, tag), whole)
        {
            return Ok(OpStatus::Done(()));
        }
        send_by(&mut CoreMut::new(self.worker(), core), state, protocol, (class, buf), params)
    }

    /// Sends a message as `params` specify. Ignores `params.done`: the request reports completion.
    pub fn send<B: SendData>(&self, buf: B, params: &SendParams) -> SendRequest<B> {
        let params = &SendParams { done: None, ..*params };
        let mut in_flight = InFlightBuf::new(buf);
        let started = match in_flight.send_view() {
            // SAFETY: the request keeps the container until completion; its data does not move or change.
            Ok(SendView::Bytes(at, len)) => unsafe { self.send_raw(at, len, params) },
            Ok(SendView::Generic(data)) => {
                // SAFETY: as above.
                let start = |buf| unsafe { self.send_buf(MsgClass::Message, buf, params) };
                // SAFETY: as above.
                unsafe { send_generic(data, start) }
            }
            Err(error) => Err(error),
        };
        SendRequest::new(self.worker(), started, in_flight)
    }

    /// Sends a tagged message. Completes when the buffer may be reused. Messages to one peer are matched in
    /// the order in which they were sent.
    pub fn tag_send<B: SendData>(&self, tag: u64, buf: B) -> SendRequest<B> {
        self.send(buf, &SendParams { tag: Some(tag), ..SendParams::default() })
    }

    /// Sends a tagged message. Completes when it was matched and is in the receiver's buffer.
    pub fn tag_send_sync<B: SendData>(&self, tag: u64, buf: B) -> SendRequest<B> {
        self.send(buf, &SendParams { tag: Some(tag), sync: DeliveryComplete::Yes, ..SendParams::default() })
    }

    /// Sends an untagged message. [`Worker::msg_recv`](crate::Worker::msg_recv) matches those of one peer in
    /// the order in which they were sent.
    pub fn msg_send<B: SendData>(&self, buf: B) -> SendRequest<B> {
        self.send(buf, &SendParams::default())
    }

    /// Sends borrowed bytes. If they cannot go out within the call, returns a request that owns a copy.
    pub fn tag_inject(&self, tag: u64, bytes: &[u8]) -> Result<(), SendRequest<Box<[u8]>>> {
        let params = SendParams { tag: Some(tag), ..SendParams::default() };
        if bytes.len() <= self.protocols().table(Kind::Tagged, DeliveryComplete::No).eager_max() {
            // SAFETY: a send that does not complete here is one waiting packet, and is cancelled below.
            match unsafe { send_packet(self, tag, bytes, &params) } {
                Ok(OpStatus::Done(())) => return Ok(()),
                Ok(OpStatus::InProgress(id)) => {
                    let cancelled = self.worker().cancel(id);
                    assert!(cancelled, "a one-packet send that waits can be cancelled");
                    self.worker().free(id);
                }
                Err(Error::NotConnected) => {}
                Err(e) => {
                    return Err(SendRequest::new(self.worker(), Err(e), InFlightBuf::new(bytes.into())));
                }
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
            OpStatus::InProgress(id) => self.worker().wait_borrowed(id).map(drop),
        }
    }
}

/// Sends a message as one packet now, if that is possible.
// HOT
#[inline(always)]
fn send_packet_now<B: Payload>(
    core: &mut WorkerCore,
    peer: PeerId,
    (class, tag): (MsgClass, u64),
    body: B,
) -> bool {
    let (engine, mut wire, _) = core.split();
    engine.peers_mut().send_short(&mut wire, peer, (class, tag), body)
}

/// Sends a tagged message in one packet, now or later. Unsafe: as for [`Ep::send_buf`].
unsafe fn send_packet(ep: &Ep, tag: u64, bytes: &[u8], params: &SendParams) -> Result<OpStatus<()>, Error> {
    ep.state().usable()?;
    // SAFETY: the caller keeps the bytes valid until completion.
    let buf = unsafe { SendBuf::new(bytes.as_ptr(), bytes.len()) };
    if let Some(whole) = buf.whole()
        && (ep.send_short(MsgClass::Message, tag, whole)
            || send_packet_now(&mut ep.worker().core_keep_idle(), ep.peer(), (MsgClass::Message, tag), whole))
    {
        return Ok(OpStatus::Done(()));
    }
    let core = ep.worker().core_keep_idle();
    let core = &mut CoreMut::new(ep.worker(), core);
    send_by(core, ep.state(), Protocol::Eager, (MsgClass::Message, buf), params)
}

/// Tries to send a short message to this worker itself within the call: into a posted receive, or as one
/// packet.
// HOT
#[inline(never)]
fn send_short_to_self<B: Payload>(ep: &Ep, class: MsgClass, tag: u64, body: B) -> bool {
    let core = &mut ep.worker().core_keep_idle();
    let peer = ep.state().peer();
    if class == MsgClass::Message
        && let Some(message) = body.contiguous()
        && copy_to_receive(ep.worker(), core, peer, (tag, message), false).is_some()
    {
        return true;
    }
    send_packet_to_self(core, peer, (class, tag), body)
}

/// Sends a short message to this worker itself as one packet, if that is possible.
// HOT
#[inline(never)]
pub(crate) fn send_packet_to_self<B: Payload>(
    core: &mut WorkerCore,
    own: PeerId,
    (class, tag): (MsgClass, u64),
    body: B,
) -> bool {
    send_packet_now(core, own, (class, tag), body)
}

/// Copies a message to a posted receive of this worker. Returns false if there is none.
fn send_to_self(
    worker: &Worker,
    core: &mut WorkerCore,
    peer: PeerId,
    (buf, params): (&SendBuf, &SendParams<'_>),
) -> bool {
    let (Some(tag), None, Some(message)) = (params.tag, params.cq_data, buf.whole()) else {
        return false;
    };
    copy_to_receive(worker, core, peer, (tag, message), false).is_some()
}

/// Copies a tagged message to a posted receive of this worker. `None`: there is none, and nothing has
/// happened. Returns the callback that the caller is to call in place of progress, if it `calls` and there is
/// one that can be called at once.
// HOT
#[inline(always)]
pub(crate) fn copy_to_receive(
    worker: &Worker,
    core: &mut WorkerCore,
    peer: PeerId,
    (tag, message): (u64, ContigBuf),
    calls: bool,
) -> Option<Option<ReadyCall>> {
    let am_queue = &worker.inner.am_handlers.queue;
    let sink = CompletionSink { reqs: &mut core.reqs, streams: &mut core.streams, am_queue };
    let mut sink = SelfSink { sink, calls, call: None };
    if !core.engine.receives().recv_from_self(&mut sink, peer, tag, message) {
        return None;
    }
    let call = sink.call;
    core.idle &= !core.engine.pending().has_events() && !core.reqs.has_ready();
    if core.is_armed {
        worker.inner.wake_armed(core);
    }
    Some(call)
}

/// Sends a message by a protocol. The message is as [`Ep::send_buf`] asks for it.
fn send_by(
    core: &mut WorkerCore,
    ep: &EpState,
    protocol: Protocol,
    (class, buf): (MsgClass, SendBuf),
    params: &SendParams,
) -> Result<OpStatus<()>, Error> {
    core.idle = false;
    let (engine, mut wire, reqs) = core.split();
    let user = reqs.next_token()?;
    let args = SendArgs { buf, tag: params.tag, sync: params.sync, cq_data: params.cq_data, protocol, user };
    match engine.send_class(&mut wire, ep.peer(), class, args) {
        EngineStarted::Done(()) => Ok(OpStatus::Done(())),
        EngineStarted::Pending(op) => {
            let id = reqs.start(user, Role::Send(op), params.done);
            reqs.set_ep(id, ep.number());
            Ok(OpStatus::InProgress(id))
        }
        EngineStarted::Failed(e) => Err(e.into()),
    }
}

/// The peer's number of a connection in tags of this class.
fn connection_bits(class: MsgClass, connection: u32) -> u64 {
    match class {
        MsgClass::Am => AmTag::connection_bits(connection),
        MsgClass::Stream => u64::from(connection),
        MsgClass::Message | MsgClass::AmData => 0,
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
