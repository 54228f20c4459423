//! Receives of many messages into one buffer, which the engine uses until the last of them has ended.

#![allow(unsafe_code)]

use crate::api::core::multi_recvs::MultiRecvState;
use std::future::Future;
use std::task::{Context, Poll};

use ucs::coll::slots::SlotId;

use crate::api::core::error::Error;
use crate::api::core::requests::Action;
use crate::api::core::worker_core::WorkerCore;
use crate::api::request::buf::{DetachedBuf, IoBufMut, LentBuf};
use crate::api::tag::recv::Match;
use crate::api::worker::handle::Worker;

use crate::rdm::{OpError, OpId, RecvArgs, RecvBuf, RecvStatus};

/// One message of a [`MultiRecv`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    of: SlotId,
    at: usize,
    status: Result<RecvStatus, Error>,
}

impl Part {
    /// Offset of the first byte in the buffer, bytes.
    pub fn offset(&self) -> usize {
        self.at
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
    at: *const u8,
    buf: Option<LentBuf<B>>,
}

impl Worker {
    /// Receives messages that match `what` into `buf`, one after another, until fewer than `least` bytes are
    /// left; none is truncated if `least` is the longest length. Messages are returned in the order they end.
    pub fn recv_multi<B: IoBufMut>(
        &self,
        what: Match,
        buf: B,
        least: usize,
    ) -> Result<MultiRecv<B>, (Error, B)> {
        let mut lent = LentBuf::new(buf);
        let (at, len) = lent.room();
        let mut core = self.core();
        let Ok(id) = core.multi_recvs.insert(MultiRecvState::default()) else {
            return Err((Error::Exhausted, lent.into_inner()));
        };
        let (engine, mut wire, _) = core.split();
        // SAFETY: the handle, then `Drop`, keep the container to the end; ended messages are only read.
        let buf = unsafe { RecvBuf::new(at, len) };
        let args = RecvArgs { buf, kind: what.kind, from: what.from, user: u64::from(id.raw()) };
        match engine.recv_multi(&mut wire, args, least) {
            Ok(op) => {
                Ok(MultiRecv { worker: self.clone(), id, op: Some(op), at: at.cast_const(), buf: Some(lent) })
            }
            Err(e) => {
                core.multi_recvs.remove(id);
                Err((e.into(), lent.into_inner()))
            }
        }
    }
}

impl<B: IoBufMut> MultiRecv<B> {
    /// Returns the next message that has ended. Makes no progress.
    pub fn try_next(&mut self) -> Option<Part> {
        let (at, status) = self.worker.core().multi_recvs.get_mut(self.id)?.ended.pop_front()?;
        Some(Part { of: self.id, at, status })
    }

    /// Makes progress until it can return a message; `None` if no more come.
    pub fn wait_next(&mut self) -> Option<Part> {
        let id = self.id;
        self.worker.run_until(|core| {
            let parts = core.multi_recvs.get(id)?;
            (!parts.ended.is_empty() || parts.end.is_some()).then_some(())
        });
        self.try_next()
    }

    /// Returns a future of the result of [`MultiRecv::wait_next`].
    pub fn next_message(&mut self) -> impl Future<Output = Option<Part>> {
        std::future::poll_fn(|cx| self.poll_next(cx))
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Part>> {
        if let Some(part) = self.try_next() {
            return Poll::Ready(Some(part));
        }
        match self.worker.core().multi_recvs.get_mut(self.id) {
            Some(parts) if parts.end.is_none() => parts.waker = Some(cx.waker().clone()),
            _ => return Poll::Ready(None),
        }
        Poll::Pending
    }

    /// Returns the bytes of a message; none if `part` belongs to another buffer.
    pub fn bytes(&self, part: &Part) -> &[u8] {
        if part.of != self.id || part.len() == 0 {
            return &[];
        }
        // SAFETY: `part` lies within the buffer.
        let at = unsafe { self.at.add(part.at) };
        // SAFETY: the engine has written `len` bytes there and will not again; `self` keeps the container.
        unsafe { std::slice::from_raw_parts(at, part.len()) }
    }

    /// Whether no more messages arrive; [`MultiRecv::try_next`] may still return some.
    pub fn is_done(&self) -> bool {
        self.worker.core().multi_recvs.get(self.id).is_none_or(|parts| parts.end.is_some())
    }

    /// Stops matching messages; those already matched still arrive. False if it had already stopped.
    pub fn cancel(&mut self) -> bool {
        self.op.take().is_some_and(|op| self.worker.core().engine.cancel_recv(op))
    }

    /// Cancels, waits for matched messages, and returns the buffer with its whole length, and the error that
    /// ended the receive, if any. Messages not returned before are lost.
    pub fn finish(mut self) -> (Result<(), Error>, B) {
        let cancelled = self.cancel();
        let id = self.id;
        self.worker.run_until(|core| core.multi_recvs.get(id).is_none_or(|p| p.end.is_some()).then_some(()));
        let end = self.worker.core().multi_recvs.remove(id).and_then(|parts| parts.end).unwrap_or(Ok(()));
        let buf = self.buf.take().expect("given back once").into_inner();
        (if cancelled { Ok(()) } else { end }, buf)
    }
}

impl<B: IoBufMut> Drop for MultiRecv<B> {
    fn drop(&mut self) {
        let Some(lent) = self.buf.take() else { return };
        self.cancel();
        let mut core = self.worker.core();
        // Progress reports the end; until then the entry keeps the buffer.
        match core.multi_recvs.get_mut(self.id) {
            Some(parts) if parts.end.is_none() => parts.kept_buf = Some(Box::new(DetachedBuf::new(lent))),
            _ => {
                core.multi_recvs.remove(self.id);
                drop(core);
                drop(lent.into_inner());
            }
        }
    }
}

impl WorkerCore {
    pub(crate) fn part_ended(
        &mut self,
        user: u64,
        at: usize,
        result: Result<RecvStatus, OpError>,
    ) -> Option<Action> {
        let parts = self.multi_recvs.get_mut(SlotId::from_raw(user as u32))?;
        parts.ended.push_back((at, result.map_err(Error::from)));
        parts.waker.take().map(Action::Wake)
    }

    pub(crate) fn multi_ended(&mut self, user: u64, result: Result<usize, OpError>) -> Option<Action> {
        let id = SlotId::from_raw(user as u32);
        let parts = self.multi_recvs.get_mut(id)?;
        if parts.kept_buf.is_some() {
            return self.multi_recvs.remove(id)?.kept_buf.map(Action::Free);
        }
        parts.end = Some(result.map(drop).map_err(Error::from));
        parts.waker.take().map(Action::Wake)
    }
}
