//! Receives active messages (rdm-v4, chapter 11) and calls their handlers. Messages in one packet are copied
//! into the pool, others of up to 8 KiB go into posted buffers, longer ones into buffers of their own.

#![allow(unsafe_code)]

use crate::api::data::params::{OpParams, check_mem};
use crate::api::tag::recv::start_recv;
use crate::api::worker::handle::PostedRecv;
use std::cell::Cell;
use std::rc::Rc;

use crate::api::am::pool::AmBuf;
use crate::api::am::queue::ReceivedAm;
use crate::api::am::send::{EAGER_MAX, RTS_LEN};
use crate::api::am::tag::{AmKind, AmTag, POSTED_LEN};
use crate::api::core::ended::LOST;
use crate::api::core::ep_state::EpState;
use crate::api::core::error::Error;
use crate::api::core::requests::{Callback, Ended, OpStatus, RequestId};
use crate::api::core::worker_core::WorkerCore;
use crate::api::data::view::RecvData;
use crate::api::ep::connect::ep_to;
use crate::api::ep::handle::Ep;
use crate::api::request::buf::InFlightBuf;
use crate::api::request::handles::RecvRequest;
use crate::api::tag::recv::{Match, TAG_MASK_FULL};
use crate::api::worker::handle::{AmMessage, Worker};

use crate::rdm::io::PeerId;
use crate::rdm::{ABORTED, Discard, Kind, RecvBuf, RecvKind, RecvStatus, discard};
use crate::wire::MsgClass;

const POSTED_RECVS: usize = 32;

/// Matches eager messages: [`AmTag::EXCEEDS_POSTED`] ones or the others (0).
const fn eager_match(large: u64) -> Match {
    Match {
        kind: RecvKind::Class { class: MsgClass::Am, tag: large, mask: AmTag::EXCEEDS_POSTED },
        from: None,
    }
}

fn data_match(number: u64, from: PeerId) -> Match {
    Match {
        kind: RecvKind::Class { class: MsgClass::AmData, tag: number, mask: TAG_MASK_FULL },
        from: Some(from),
    }
}

#[derive(Clone, Copy)]
struct Rts {
    len: u64,
    number: u64,
}

impl AmMessage {
    /// Number of the handler.
    pub fn id(&self) -> u16 {
        AmTag::decode(self.tag).id
    }

    /// Whether the sender has asked for a reply ([`AmParams::reply`](crate::AmParams::reply)).
    pub fn wants_reply(&self) -> bool {
        AmTag::decode(self.tag).reply
    }

    /// Number at this worker of the connection that the message belongs to
    /// ([`SocketAddrs::connection`](crate::SocketAddrs::connection)); 0 if the sender's endpoint was made of
    /// an address.
    pub fn connection(&self) -> u32 {
        AmTag::decode(self.tag).connection
    }

    /// Sender.
    pub fn from(&self) -> PeerId {
        self.from
    }

    /// Splits the message into the header and the bytes behind it.
    // HOT
    #[inline]
    pub(crate) fn header_and_data(&self) -> (&[u8], &[u8]) {
        self.buf.bytes().split_at(usize::from(AmTag::decode(self.tag).header_len))
    }

    /// Header bytes.
    // HOT
    #[inline]
    pub fn header(&self) -> &[u8] {
        self.header_and_data().0
    }

    /// Data that came with the header; `None` if [`AmMessage::recv`] has to receive it. Its address is
    /// aligned as the context asks for ([`with_am_alignment`](crate::Context::with_am_alignment)).
    // HOT
    #[inline]
    pub fn data(&self) -> Option<&[u8]> {
        match self.kind {
            AmKind::Eager => Some(self.header_and_data().1),
            AmKind::Rendezvous => None,
        }
    }

    /// Header and data, if they lie in this value and move with it: those of a message of eight bytes. Those
    /// of other messages stay where they are until it is dropped.
    // HOT
    #[inline(always)]
    pub fn inline_word(&self) -> Option<[u8; 8]> {
        self.buf.inline_word()
    }

    /// Length of the data in bytes, received or not.
    pub fn data_len(&self) -> u64 {
        self.rts().map_or(self.header_and_data().1.len() as u64, |rts| rts.len)
    }

    fn rts(&self) -> Option<Rts> {
        if self.kind == AmKind::Eager {
            return None;
        }
        let (len, rest) = self.header_and_data().1.split_first_chunk()?;
        let number = rest.first_chunk()?;
        Some(Rts { len: u64::from_le_bytes(*len), number: u64::from_le_bytes(*number) })
    }

    /// Worker that has received the message.
    pub fn worker(&self) -> &Worker {
        &self.worker
    }

    /// Returns an endpoint to the sender: the end at this worker of the connection that the message belongs
    /// to, unless it has failed, else a new one. `None` if the peer has failed or its address is unknown.
    pub fn reply_ep(&self) -> Option<Ep> {
        // The peer may send before this worker has its address.
        let is_of = |ep: &Rc<EpState>| ep.failure().is_none() && (ep.is_pending() || ep.peer() == self.from);
        let of_connection = self.worker.core().cm.ep_of(self.connection()).filter(is_of);
        match of_connection {
            Some(state) => Some(Ep::from_state(self.worker.clone(), state)),
            None => ep_to(&self.worker, self.from),
        }
    }

    /// Discards the rendezvous data, so that the sender's operation completes.
    #[cold]
    fn discard(&mut self) {
        let Some(rts) = self.rts() else { return };
        let ended = std::mem::replace(&mut self.ended, LOST);
        let mut core = self.worker.core();
        if ended == core.ended.of(self.from) {
            let (engine, mut wire, _) = core.split();
            discard(engine, &mut wire, self.from, Discard::Announced(rts.number));
        }
    }

    /// Starts the receive of the data; `buf` stays valid until it ends. Data that is still to come stays to
    /// be received if that cannot begin ([`Error::Exhausted`]).
    pub(crate) fn start_recv(
        &mut self,
        buf: RecvBuf,
        params: &OpParams<'_>,
    ) -> Result<OpStatus<RecvStatus>, Error> {
        let Some(rts) = self.rts() else { return self.copy_data(buf).map(OpStatus::Done) };
        let ended = std::mem::replace(&mut self.ended, LOST);
        if ended == LOST || ended != self.worker.core_keep_idle().ended.of(self.from) {
            return Err(Error::Aborted(self.from, ABORTED));
        }
        let started = start_recv(&self.worker, buf, data_match(rts.number, self.from), params);
        if let Err(Error::Exhausted) = started {
            self.ended = ended;
        }
        started
    }

    /// Receives data that is already here.
    pub(crate) fn copy_data(&self, mut buf: RecvBuf) -> Ended {
        let data = self.header_and_data().1;
        let (room, len) = (buf.put(0, data), data.len());
        match buf.error() {
            _ if len > room => Err(Error::Truncated { len: len as u64, room }),
            Some(error) => Err(Error::Datatype(error)),
            None => Ok(RecvStatus { len, tag: 0, from: self.from, cq_data: None }),
        }
    }

    /// Receives the data into `buf`; longer data ends with [`Error::Truncated`]. Dropping the message
    /// instead, or cancelling the receive, discards the data.
    pub fn recv<B: RecvData>(mut self, buf: B) -> RecvRequest<B> {
        let mut in_flight = InFlightBuf::new(buf);
        // SAFETY: the request keeps the container until the end, and its memory does not move.
        let buf = unsafe { in_flight.recv_buf() };
        let started = buf.and_then(|buf| self.start_recv(buf, &OpParams::default()));
        RecvRequest::new(&self.worker, started, in_flight)
    }

    /// Receives the data into `len` bytes at `buf`; otherwise like [`AmMessage::recv`]. After an
    /// error that [keeps the message](Error::keeps_message) it may be received again.
    /// # Safety
    /// As for [`Worker::recv_raw`].
    pub unsafe fn recv_raw(
        &mut self,
        buf: *mut u8,
        len: usize,
        params: &OpParams<'_>,
    ) -> Result<OpStatus<RecvStatus>, Error> {
        check_mem(params.mem, buf, len)?;
        // SAFETY: this function's contract.
        self.start_recv(unsafe { RecvBuf::new(buf, len) }, params)
    }
}

impl Drop for AmMessage {
    #[inline]
    fn drop(&mut self) {
        if self.kind == AmKind::Rendezvous && self.ended != LOST {
            self.discard();
        }
    }
}

impl std::fmt::Debug for AmMessage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut f = f.debug_struct("AmMessage");
        f.field("id", &self.id()).field("from", &self.from).field("header_len", &self.header().len());
        f.field("data_len", &self.data_len()).finish_non_exhaustive()
    }
}

impl Worker {
    /// Sets the handler of number `id`, called from progress. Messages that arrive before the worker's first
    /// handler wait for it; later ones without a handler are dropped.
    ///
    /// A handler may use the worker, even make progress or wait, and is then called again for the next
    /// message before it has returned. Hence `Fn` and not `FnMut`: state that it changes belongs in a `Cell`
    /// or `RefCell`. What it holds lives in the worker: see [`Worker::close`] for one that holds the worker.
    pub fn set_am_handler(&self, id: u16, handler: impl Fn(AmMessage) + 'static) {
        self.inner.am_handlers.set_handler(id, Some(Rc::new(handler)));
        if !self.inner.am_handlers.queue.set_enabled(true) {
            for _ in 0..POSTED_RECVS {
                let posted = Rc::new(PostedRecv { worker: self.downgrade(), buf: Cell::new(None) });
                self.inner.am_handlers.posted.borrow_mut().push(posted.clone());
                post(self, posted);
            }
            // Progress takes the long messages that have come before.
            self.core().needs_poll = true;
        }
    }

    /// Removes handler number `id`.
    pub fn clear_am_handler(&self, id: u16) {
        self.inner.am_handlers.set_handler(id, None);
    }
}

/// Posts a receive after delivering what has arrived; false if too many operations are running.
fn post(worker: &Worker, posted: Rc<PostedRecv>) -> bool {
    loop {
        let mut buf = worker.inner.am_handlers.queue.reserve();
        let at = buf.as_mut_ptr();
        posted.buf.set(Some(buf));
        let done = Callback::new(on_posted_recv_done, Rc::as_ptr(&posted).cast_mut().cast());
        // SAFETY: `posted` keeps the buffer, and the worker keeps `posted`, until after the engine is
        // dropped. `done` is called from progress, with `posted`, while the worker lives.
        match unsafe { worker.recv_raw(at, POSTED_LEN, eager_match(0), &OpParams::with_callback(done)) } {
            Ok(OpStatus::Done(status)) => deliver_posted(worker, &posted, Ok(status)),
            Ok(OpStatus::InProgress(_)) => return true,
            Err(Error::Truncated { .. }) => {}
            Err(Error::Exhausted) => {
                posted.buf.take();
                worker.inner.am_handlers.idle.borrow_mut().push(posted);
                return false;
            }
            Err(_) => return true,
        }
    }
}

/// Posts the idle receives until one fails. By value: an escaping reference costs progress a register.
#[cold]
#[inline(never)]
fn post_idle(worker: Worker) {
    // Not a drain: a handler may call this function again.
    loop {
        let posted = worker.inner.am_handlers.idle.borrow_mut().pop();
        if !posted.is_some_and(|posted| post(&worker, posted)) {
            return;
        }
    }
}

fn deliver_posted(worker: &Worker, posted: &PostedRecv, ended: Ended) {
    if let (Some(buf), Ok(status)) = (posted.buf.take(), ended) {
        deliver_received(worker, &status, buf);
    }
}

/// Delivers a message that its buffer has received, in which its data is not aligned yet.
fn deliver_received(worker: &Worker, status: &RecvStatus, buf: AmBuf) {
    let mut message = ReceivedAm::of(status, buf);
    let align = worker.inner.am_handlers.queue.align();
    if align > 1 {
        let lead = usize::from(AmTag::header_len_of(message.tag)).min(message.buf.len());
        let len = message.buf.len();
        let Some(buf) = message.buf.aligned(lead, align) else {
            return tracing::error!("no memory to align an active message of {len} bytes: dropped");
        };
        message.buf = buf;
    }
    deliver(worker, message);
}

/// Calls the handler of a message. Inline: moving the freshly written message would stall.
// HOT
#[inline(always)]
fn deliver(worker: &Worker, ReceivedAm { from, tag, buf }: ReceivedAm) {
    let AmTag { id, header_len, kind, .. } = AmTag::decode(tag);
    let (trailer_len, ended) = match kind {
        AmKind::Eager => (0, 0),
        AmKind::Rendezvous => (RTS_LEN, worker.core_keep_idle().ended.of(from)),
    };
    if usize::from(header_len) + trailer_len > buf.len() {
        return log_dropped(from, id, "malformed");
    }
    match worker.inner.am_handlers.handler(id) {
        Some(handler) => handler(AmMessage { worker: worker.clone(), buf, tag, from, kind, ended }),
        None => {
            drop(AmMessage { worker: worker.clone(), buf, tag, from, kind, ended });
            tracing::warn!(peer = from.0, id, "dropped an active message: its id has no handler");
        }
    }
}

/// Calls the handlers of queued messages.
// HOT
#[inline]
pub(crate) fn handle_ams(worker: &Worker) {
    if worker.inner.am_handlers.queue.has_messages() {
        run_handlers(worker);
    }
}

#[inline(never)]
fn run_handlers(worker: &Worker) {
    // A handler may call `progress`, which then takes the next message.
    while let Some(message) = worker.inner.am_handlers.queue.next() {
        if worker.inner.am_handlers.queue.has_messages() {
            worker.inner.core_in_progress().idle = false;
        }
        deliver(worker, message);
    }
}

/// Receives eager messages longer than the posted buffers, and returns their number.
#[inline]
pub(crate) fn recv_large_ams(worker: &Worker) -> usize {
    match worker.inner.am_handlers.queue.is_enabled() {
        true => probe_large_ams(worker),
        false => 0,
    }
}

fn probe_large_ams(worker: &Worker) -> usize {
    if !worker.inner.am_handlers.idle.borrow().is_empty() {
        post_idle(worker.clone());
    }
    let mut found = 0;
    // Without a request for its receive, the message stays for a later call.
    let may_receive =
        |core: &mut WorkerCore| !core.engine.has_unexpected(Kind::Am) || core.reqs.next_token().is_ok();
    while may_receive(&mut worker.core_keep_idle())
        && let Some(message) = worker.mprobe(eager_match(AmTag::EXCEEDS_POSTED))
    {
        found += 1;
        let len = message.envelope().len;
        // Room to move the message within, for the alignment of its data.
        let spare = worker.inner.am_handlers.queue.align() - 1;
        let mut bytes: Vec<u8> = Vec::new();
        let room = (len as usize).saturating_add(spare);
        if len > EAGER_MAX as u64 || bytes.try_reserve_exact(room).is_err() {
            tracing::warn!(len, "dropped an active message: no memory for it");
            continue;
        }
        let worker = worker.downgrade();
        message.recv(bytes).then(move |ended, mut bytes| {
            if let (Some(worker), Ok(status)) = (worker.upgrade(), ended) {
                bytes.resize(bytes.len() + spare, 0);
                deliver_received(&worker, &status, AmBuf::from_box(bytes.into_boxed_slice()));
            }
        });
    }
    found
}

#[cold]
fn log_dropped(from: PeerId, id: u16, why: &str) {
    tracing::debug!(peer = from.0, id, "dropped an active message: {why}");
}

/// Handles the end of a posted receive. Safety: `arg` is a [`PostedRecv`] of a worker that is in progress.
unsafe fn on_posted_recv_done(arg: *mut (), request: RequestId, ended: Ended) {
    let posted: *const PostedRecv = arg.cast();
    // SAFETY: `arg` comes from `Rc::as_ptr`, and the worker keeps its posted receives until it is dropped.
    unsafe { Rc::increment_strong_count(posted) };
    // SAFETY: as above; the count was raised for this.
    let posted = unsafe { Rc::from_raw(posted) };
    let Some(worker) = posted.worker.upgrade() else { return };
    worker.free(request);
    deliver_posted(&worker, &posted, ended);
    if worker.inner.am_handlers.queue.is_enabled() {
        post(&worker, posted);
    } else {
        // The worker has been closed.
        worker.inner.am_handlers.posted.borrow_mut().retain(|other| !Rc::ptr_eq(other, &posted));
    }
}
