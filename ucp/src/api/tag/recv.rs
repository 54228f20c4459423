//! Receives and probes of tagged and untagged messages, from any peer or one. Stores no message.

#![allow(unsafe_code)]

use crate::api::core::error::Error;
use crate::api::core::requests::{Callback, OpStatus, RequestId, Role};
use crate::api::core::worker_core::WorkerCore;
use crate::api::data::params::{OpParams, check_mem};
use crate::api::data::view::{RecvData, RecvView};
use crate::api::ep::handle::Ep;
use crate::api::request::buf::InFlightBuf;
use crate::api::request::handles::RecvRequest;
use crate::api::worker::handle::{CoreMut, Worker};

use crate::rdm::io::PeerId;
use crate::rdm::{
    Discard, MsgHandle, OpError, OpId, ProbeRemove, Probed, RecvArgs, RecvBuf, RecvKind, RecvStatus,
    Started as EngineStarted, discard,
};

/// Mask that compares all bits of a tag.
pub const TAG_MASK_FULL: u64 = u64::MAX;
/// Mask that compares no bit: any tag matches.
pub const ANY_TAG: u64 = 0;

/// Messages that a receive or probe accepts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Match {
    /// Tagged with a mask, or untagged.
    pub kind: RecvKind,
    /// Sender; `None` accepts every peer.
    pub from: Option<PeerId>,
}

impl Match {
    /// Matches tags equal to `tag` in the bits of `mask`, from any peer.
    pub const fn tagged(tag: u64, mask: u64) -> Match {
        Match { kind: RecvKind::Tagged { tag, mask }, from: None }
    }

    /// Matches untagged messages from any peer.
    pub const fn untagged() -> Match {
        Match { kind: RecvKind::Untagged, from: None }
    }

    /// Restricts the match to the peer of `ep`.
    pub fn from(self, ep: &Ep) -> Match {
        Match { from: Some(ep.peer()), ..self }
    }
}

/// Length, tag, sender and completion data of a probed message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Envelope {
    /// Length in bytes.
    pub len: u64,
    /// Tag; 0 if untagged.
    pub tag: u64,
    /// Sender.
    pub from: PeerId,
    /// Data of the sender for the completion of its receive.
    pub cq_data: Option<u64>,
}

impl Envelope {
    fn of(found: &Probed) -> Envelope {
        Envelope { len: found.len, tag: found.tag, from: found.from, cq_data: found.cq_data }
    }
}

/// A message removed from the queue by [`Worker::mprobe`]. Dropping it discards the message.
#[must_use = "a probed message is lost unless it is received"]
pub struct Message {
    pub(crate) worker: Worker,
    handle: Option<MsgHandle>,
    envelope: Envelope,
}

impl Worker {
    /// Receives a message accepted by `matching` into `len` bytes at `buf`.
    /// # Safety
    /// Unless the call returns *done* or an error, until the operation ends `buf..buf + len` stays valid for
    /// writes, is used only by receives of this worker, and `params.done` may be called with its argument.
    // HOT
    #[inline]
    pub unsafe fn recv_raw(
        &self,
        buf: *mut u8,
        len: usize,
        matching: Match,
        params: &OpParams<'_>,
    ) -> Result<OpStatus<RecvStatus>, Error> {
        check_mem(params.mem, buf, len)?;
        let mut core = self.core_keep_idle();
        let user = core.reqs.next_token()?;
        // SAFETY: the caller vouches for the memory until the operation's end.
        let buf = unsafe { RecvBuf::new(buf, len) };
        let args = RecvArgs { buf, kind: matching.kind, from: matching.from, user };
        match post_recv(&mut core, args, params.done) {
            Ok(id) => Ok(OpStatus::InProgress(id)),
            Err(args) => CoreMut::new(self, core).recv(args, params),
        }
    }

    /// Receives a message accepted by `matching`. A longer message ends with [`Error::Truncated`].
    pub fn recv<B: RecvData>(&self, matching: Match, buf: B) -> RecvRequest<B> {
        let mut in_flight = InFlightBuf::new(buf);
        let started = match in_flight.recv_view() {
            // SAFETY: the request keeps the container until the end, and its memory does not move.
            Ok(RecvView::Bytes(at, len)) => unsafe { self.recv_raw(at, len, matching, &OpParams::default()) },
            // SAFETY: as above.
            Ok(list) => start_recv(self, unsafe { list.buf() }, matching, &OpParams::default()),
            Err(error) => Err(error),
        };
        RecvRequest::new(self, started, in_flight)
    }

    /// Receives a message with a tag equal to `tag` in the bits of `mask` ([`TAG_MASK_FULL`], [`ANY_TAG`]).
    pub fn tag_recv<B: RecvData>(&self, tag: u64, mask: u64, buf: B) -> RecvRequest<B> {
        self.recv(Match::tagged(tag, mask), buf)
    }

    /// Receives an untagged message.
    pub fn msg_recv<B: RecvData>(&self, buf: B) -> RecvRequest<B> {
        self.recv(Match::untagged(), buf)
    }

    /// Receives a tagged message into borrowed memory, making progress until it has arrived.
    pub fn tag_recv_blocking(&self, tag: u64, mask: u64, buf: &mut [u8]) -> Result<RecvStatus, Error> {
        // SAFETY: `wait_borrowed` returns after the operation's end, even if a callback panics.
        match unsafe {
            self.recv_raw(buf.as_mut_ptr(), buf.len(), Match::tagged(tag, mask), &OpParams::default())
        }? {
            OpStatus::Done(status) => Ok(status),
            OpStatus::InProgress(id) => self.wait_borrowed(id),
        }
    }

    /// Finds the oldest unexpected message that matches, and leaves it in the queue. Makes no progress.
    pub fn probe(&self, matching: Match) -> Option<Envelope> {
        let found = self.core().engine.receives().probe(matching.kind, matching.from, ProbeRemove::No)?;
        Some(Envelope::of(&found))
    }

    /// Discards the oldest unexpected message that matches; its send completes as if received.
    pub fn discard(&self, matching: Match) -> Option<Envelope> {
        self.mprobe(matching).map(|message| message.envelope())
    }

    /// Removes the oldest unexpected message that matches from the queue; [`Message::recv`] receives it.
    pub fn mprobe(&self, matching: Match) -> Option<Message> {
        let found = self.core().engine.receives().probe(matching.kind, matching.from, ProbeRemove::Yes)?;
        let envelope = Envelope::of(&found);
        Some(Message { worker: self.clone(), handle: Some(found.handle), envelope })
    }
}

impl Message {
    /// Length, tag and sender.
    pub fn envelope(&self) -> Envelope {
        self.envelope
    }

    /// Discards the message, as dropping it does; its send completes as if received.
    pub fn discard(self) {}

    /// Receives the message. A longer message than the buffer ends with [`Error::Truncated`].
    pub fn recv<B: RecvData>(mut self, buf: B) -> RecvRequest<B> {
        let mut in_flight = InFlightBuf::new(buf);
        // SAFETY: as in `Worker::recv`.
        let started = unsafe { in_flight.recv_buf() }.and_then(|buf| self.start(buf, &OpParams::default()));
        RecvRequest::new(&self.worker, started, in_flight)
    }

    /// Receives the message into `len` bytes at `buf`. After an error that
    /// [keeps it](Error::keeps_message) it may be received again.
    /// # Safety
    /// As for [`Worker::recv_raw`].
    pub unsafe fn recv_raw(
        &mut self,
        buf: *mut u8,
        len: usize,
        params: &OpParams<'_>,
    ) -> Result<OpStatus<RecvStatus>, Error> {
        check_mem(params.mem, buf, len)?;
        // SAFETY: the caller vouches for the memory until the operation's end.
        let buf = unsafe { RecvBuf::new(buf, len) };
        self.start(buf, params)
    }

    /// Starts the receive; `buf` stays valid until it ends. One that cannot begin ([`Error::Exhausted`])
    /// leaves the message as it was.
    pub(crate) fn start(
        &mut self,
        buf: RecvBuf,
        params: &OpParams<'_>,
    ) -> Result<OpStatus<RecvStatus>, Error> {
        let handle = self.handle.ok_or(Error::NoMessage)?;
        let mut core = self.worker.core();
        let (engine, mut wire, reqs) = core.split();
        let user = reqs.next_token()?;
        self.handle = None;
        match engine.recv_probed(&mut wire, handle, buf, user) {
            EngineStarted::Done(status) => Ok(OpStatus::Done(status)),
            EngineStarted::Pending(op) => {
                Ok(OpStatus::InProgress(reqs.start(user, Role::Recv(op), params.done)))
            }
            EngineStarted::Failed(e) => {
                if e == OpError::NoResource {
                    self.handle = Some(handle);
                }
                Err(failed_recv(e, params))
            }
        }
    }
}

/// Error of a receive that has failed within the call. Tells the caller which message was truncated.
#[cold]
fn failed_recv(error: OpError, params: &OpParams<'_>) -> Error {
    if let (OpError::Truncated { len, tag, from, .. }, Some(message)) = (error, params.truncated) {
        message.set(RecvStatus { len: len as usize, tag, from, cq_data: None });
    }
    error.into()
}

/// Starts a receive into any memory.
pub(crate) fn start_recv(
    worker: &Worker,
    buf: RecvBuf,
    matching: Match,
    params: &OpParams<'_>,
) -> Result<OpStatus<RecvStatus>, Error> {
    let mut core = worker.core();
    let user = core.reqs.next_token()?;
    core.recv(RecvArgs { buf, kind: matching.kind, from: matching.from, user }, params)
}

/// Posts a receive unless a message that matches is there.
// HOT
#[inline(always)]
pub(crate) fn post_recv(
    core: &mut WorkerCore,
    args: RecvArgs,
    done: Option<Callback>,
) -> Result<RequestId, RecvArgs> {
    let user = args.user;
    let op = core.engine.receives().post(args)?;
    Ok(core.reqs.start(user, Role::Recv(op), done))
}

impl WorkerCore {
    /// Cancels a receive. Active-message data is discarded, so that its send completes.
    pub(crate) fn cancel_recv(&mut self, op: OpId) -> bool {
        let awaited = self.engine.receives().awaits_data(op);
        if !self.engine.receives().cancel(op) {
            return false;
        }
        if let Some((from, number)) = awaited {
            let (engine, mut wire, _) = self.split();
            discard(engine, &mut wire, from, Discard::Announced(number));
        }
        true
    }

    #[inline(never)]
    fn recv(&mut self, args: RecvArgs, params: &OpParams<'_>) -> Result<OpStatus<RecvStatus>, Error> {
        self.idle = false;
        let user = args.user;
        let (engine, mut wire, reqs) = self.split();
        match engine.recv(&mut wire, args) {
            EngineStarted::Done(status) => Ok(OpStatus::Done(status)),
            EngineStarted::Pending(op) => {
                Ok(OpStatus::InProgress(reqs.start(user, Role::Recv(op), params.done)))
            }
            EngineStarted::Failed(e) => Err(failed_recv(e, params)),
        }
    }
}

impl Drop for Message {
    fn drop(&mut self) {
        let Some(handle) = self.handle.take() else { return };
        let mut core = self.worker.core();
        let (engine, mut wire, _) = core.split();
        discard(engine, &mut wire, self.envelope.from, Discard::Probed(handle));
    }
}
