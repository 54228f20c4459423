//! Receives of many messages into one buffer, which the engine uses until the last of them has ended.

#![allow(unsafe_code)]

use crate::api::core::multi_recvs::MultiRecvState;
use std::future::Future;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use ucs::coll::slots::SlotId;

use crate::api::core::error::Error;
use crate::api::core::requests::Action;
use crate::api::core::worker_core::WorkerCore;
use crate::api::data::params::check_mem;
use crate::api::mem::memory::Mem;
use crate::api::request::buf::{DetachedBuf, InFlightBuf, IoBufMut};
use crate::api::tag::recv::Match;
use crate::api::worker::handle::Worker;

use crate::rdm::{OpError, OpId, RecvArgs, RecvBuf, RecvStatus};

/// One message of a [`MultiRecv`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct MultiRecvMessage {
    recv_id: SlotId,
    offset: usize,
    status: Result<RecvStatus, Error>,
}

impl MultiRecvMessage {
    /// Offset of the first byte in the buffer, bytes.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Length, tag and sender; [`Error::Truncated`] if the message was longer than the rest of the buffer.
    pub fn status(&self) -> Result<RecvStatus, Error> {
        self.status
    }

    fn len(&self) -> usize {
        match self.status {
            Ok(status) => status.len,
            Err(Error::Truncated { room, .. }) => room,
            Err(_) => 0,
        }
    }
}

/// A receive of many messages. Dropping it cancels it; the buffer lives until matched messages have arrived.
#[must_use = "messages are lost unless they are taken out"]
pub struct MultiRecv<B: IoBufMut> {
    worker: Worker,
    id: SlotId,
    op: Option<OpId>,
    addr: *const u8,
    buf: Option<InFlightBuf<B>>,
}

/// Parameters of [`Worker::recv_multi`].
#[derive(Clone, Copy, Debug, Default)]
pub struct MultiRecvParams<'a> {
    /// The receive ends when fewer bytes than this are left.
    pub min_room: usize,
    /// Registered memory that holds the buffer, as in [`OpParams::mem`](crate::OpParams::mem).
    pub mem: Option<&'a Mem>,
    /// Woken by progress at every message that ends, and at the end of the receive. A waker may be made from
    /// a function and its argument (`std::task::RawWaker`).
    pub watcher: Option<&'a Waker>,
}

impl From<usize> for MultiRecvParams<'_> {
    fn from(min_room: usize) -> Self {
        MultiRecvParams { min_room, ..MultiRecvParams::default() }
    }
}

impl Worker {
    /// Receives messages accepted by `matching` into `buf`, one after another, until fewer than `min_room`
    /// bytes are left (`FI_OPT_MIN_MULTI_RECV` of libfabric). None is truncated if `min_room` is the longest
    /// length. Messages are returned in the order they end. `params`: `min_room`, or [`MultiRecvParams`].
    pub fn recv_multi<'a, B: IoBufMut>(
        &self,
        matching: Match,
        buf: B,
        params: impl Into<MultiRecvParams<'a>>,
    ) -> Result<MultiRecv<B>, (Error, B)> {
        let MultiRecvParams { min_room, mem, watcher } = params.into();
        let mut in_flight = InFlightBuf::new(buf);
        let (addr, len) = in_flight.memory();
        if let Err(error) = check_mem(mem, addr, len) {
            return Err((error, in_flight.into_inner()));
        }
        // Cloning it is user code.
        let state = MultiRecvState::watched(watcher.cloned().map(Rc::new));
        let mut core = self.core();
        let id = match core.multi_recvs.insert(state) {
            Ok(id) => id,
            Err(state) => {
                drop(core);
                drop(state);
                return Err((Error::Exhausted, in_flight.into_inner()));
            }
        };
        let (engine, mut wire, _) = core.split();
        // SAFETY: the handle, then `Drop`, keep the container to the end; ended messages are only read.
        let buf = unsafe { RecvBuf::new(addr, len) };
        let args = RecvArgs { buf, kind: matching.kind, from: matching.from, user: u64::from(id.raw()) };
        match engine.recv_multi(&mut wire, args, min_room) {
            Ok(op) => {
                if let Some(state) = core.multi_recvs.get_mut(id) {
                    state.op = Some(op);
                }
                Ok(MultiRecv {
                    worker: self.clone(),
                    id,
                    op: Some(op),
                    addr: addr.cast_const(),
                    buf: Some(in_flight),
                })
            }
            Err(e) => {
                let state = core.multi_recvs.remove(id);
                drop(core);
                drop(state);
                Err((e.into(), in_flight.into_inner()))
            }
        }
    }
}

impl<B: IoBufMut> MultiRecv<B> {
    /// Returns the next message that has ended. Makes no progress.
    pub fn try_next(&mut self) -> Option<MultiRecvMessage> {
        let (offset, status) = self.worker.core().multi_recvs.get_mut(self.id)?.messages.pop_front()?;
        Some(MultiRecvMessage { recv_id: self.id, offset, status })
    }

    /// Makes progress until it can return a message; `None` if no more come.
    pub fn wait_next(&mut self) -> Option<MultiRecvMessage> {
        let id = self.id;
        self.worker.run_until(|core| {
            let state = core.multi_recvs.get(id)?;
            (!state.messages.is_empty() || state.result.is_some()).then_some(())
        });
        self.try_next()
    }

    /// Returns a future of the result of [`MultiRecv::wait_next`].
    pub fn next_message(&mut self) -> impl Future<Output = Option<MultiRecvMessage>> {
        std::future::poll_fn(|cx| self.poll_next(cx))
    }

    pub(crate) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<MultiRecvMessage>> {
        if let Some(message) = self.try_next() {
            return Poll::Ready(Some(message));
        }
        let before = match self.worker.core().multi_recvs.get_mut(self.id) {
            Some(state) if state.result.is_none() => state.waker.replace(cx.waker().clone()),
            _ => return Poll::Ready(None),
        };
        // Dropping it may use the worker.
        drop(before);
        Poll::Pending
    }

    /// Returns the bytes of a message; none if `message` belongs to another buffer.
    pub fn bytes(&self, message: &MultiRecvMessage) -> &[u8] {
        if message.recv_id != self.id || message.len() == 0 {
            return &[];
        }
        // SAFETY: `message` lies within the buffer.
        let at = unsafe { self.addr.add(message.offset) };
        // SAFETY: the engine has written `len` bytes there and will not again; `self` keeps the container.
        unsafe { std::slice::from_raw_parts(at, message.len()) }
    }

    /// Whether no more messages arrive; [`MultiRecv::try_next`] may still return some.
    pub fn is_done(&self) -> bool {
        self.worker.core().multi_recvs.get(self.id).is_none_or(|state| state.result.is_some())
    }

    /// Stops matching messages; those already matched still arrive. False if it had already stopped.
    pub fn cancel(&mut self) -> bool {
        self.op.take().is_some_and(|op| self.worker.core().engine.receives().cancel(op))
    }

    /// Ends the receive, waits for matched messages, and returns the buffer, and how the receive had ended
    /// before: `Ok` if it was open or out of room, [`Error::Cancelled`] after [`MultiRecv::cancel`]. Messages
    /// not taken before are lost, but their bytes are there: a `Vec` is as long as it was, or as the bytes
    /// that were received into it without a gap, if that is longer.
    pub fn finish(mut self) -> (Result<(), Error>, B) {
        let was_open = self.cancel();
        let id = self.id;
        self.worker.run_until(|core| {
            core.multi_recvs.get(id).is_none_or(|state| state.result.is_some()).then_some(())
        });
        let state = self.worker.core().multi_recvs.remove(id).unwrap_or_default();
        let mut buf = self.buf.take().expect("given back once").into_inner();
        if state.filled > buf.current_len() {
            // SAFETY: so many bytes of the memory, which is at least as long, have been written.
            unsafe { buf.set_filled(state.filled) };
        }
        (if was_open { Ok(()) } else { state.result.unwrap_or(Ok(())) }, buf)
    }
}

impl<B: IoBufMut> Drop for MultiRecv<B> {
    fn drop(&mut self) {
        let Some(in_flight) = self.buf.take() else { return };
        self.cancel();
        let mut core = self.worker.core();
        // Progress reports the end; until then the entry keeps the buffer.
        match core.multi_recvs.get_mut(self.id) {
            Some(state) if state.result.is_none() => {
                state.kept_buf = Some(Box::new(DetachedBuf::new(in_flight)))
            }
            _ => {
                let state = core.multi_recvs.remove(self.id);
                drop(core);
                drop((state, in_flight.into_inner()));
            }
        }
    }
}

impl WorkerCore {
    /// Ends the multi-receives of a worker that is being closed.
    pub(crate) fn cancel_multi_recvs(&mut self) {
        let ops: Vec<OpId> = self.multi_recvs.iter().filter_map(|(_, state)| state.op).collect();
        ops.into_iter().for_each(|op| _ = self.engine.receives().cancel(op));
    }

    pub(crate) fn on_multi_recv_message(
        &mut self,
        user: u64,
        at: usize,
        result: Result<RecvStatus, OpError>,
    ) -> Option<Action> {
        let state = self.multi_recvs.get_mut(SlotId::from_raw(user as u32))?;
        state.add(at, result.map_err(Error::from));
        state.wake()
    }

    pub(crate) fn on_multi_recv_done(&mut self, user: u64, result: Result<usize, OpError>) -> Option<Action> {
        let id = SlotId::from_raw(user as u32);
        let state = self.multi_recvs.get_mut(id)?;
        if state.kept_buf.is_some() {
            // Buffer and waker are user code, dropped with nothing borrowed.
            let MultiRecvState { kept_buf, waker, watcher, .. } = self.multi_recvs.remove(id)?;
            return match (&waker, &watcher) {
                (None, None) => kept_buf.map(Action::Free),
                _ => Some(Action::Free(Box::new((kept_buf, waker, watcher)))),
            };
        }
        state.result = Some(result.map(drop).map_err(Error::from));
        state.wake()
    }
}
