//! Requests that hold the caller's buffer while the operation runs. They can be polled, awaited, or given a
//! callback; all need `Worker::progress`. Dropping one never frees memory that the engine still uses.

#![allow(unsafe_code)]

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::api::core::error::Error;
use crate::api::core::requests::{EMPTY_STATUS, Ended, OpStatus, RequestId};
use crate::api::data::view::RecvData;
use crate::api::request::buf::{DetachedBuf, InFlightBuf, IoBufMut};
use crate::api::request::tracked::{SetFilled, TrackedOp, TrackedState};
use crate::api::worker::handle::Worker;

use crate::rdm::{Cancel, RecvStatus};

struct Op<B: 'static> {
    state: State,
    buf: Option<InFlightBuf<B>>,
}

enum State {
    Ended(Ended),
    Running(Worker, RequestId),
    /// The result has been taken.
    Taken,
}

impl State {
    fn of(worker: &Worker, started: Result<OpStatus<RecvStatus>, Error>) -> State {
        match started {
            Ok(OpStatus::Done(status)) => State::Ended(Ok(status)),
            Ok(OpStatus::InProgress(id)) => State::Running(worker.clone(), id),
            Err(error) => State::Ended(Err(error)),
        }
    }
}

impl State {
    /// The worker of an operation that has not ended.
    #[inline]
    fn running_at(&self) -> Option<&Worker> {
        match self {
            State::Running(worker, _) => Some(worker),
            State::Ended(_) | State::Taken => None,
        }
    }

    /// Takes it out of a request that is not used any more.
    #[inline]
    fn take(&mut self) -> TrackedState {
        match std::mem::replace(self, State::Taken) {
            State::Ended(ended) => TrackedState::Ended(ended),
            State::Running(_, id) => TrackedState::Running(id),
            State::Taken => panic!("request was used after its end"),
        }
    }
}

impl<B: 'static> Op<B> {
    /// Whether the operation has ended. The result stays: loading it behind its store would stall.
    // HOT
    #[inline]
    fn is_done(&self) -> bool {
        match &self.state {
            State::Ended(_) | State::Taken => true,
            State::Running(worker, id) => worker.core_keep_idle().reqs.is_complete(*id),
        }
    }

    /// Takes the result, once, if the operation has ended.
    // HOT
    #[inline]
    fn take(&mut self) -> Option<Ended> {
        let ended = match &self.state {
            State::Ended(ended) => *ended,
            State::Running(worker, id) => worker.core_keep_idle().reqs.take(*id)?,
            State::Taken => return None,
        };
        self.state = State::Taken;
        Some(ended)
    }

    fn take_buf(&mut self) -> B {
        self.buf.take().expect("request was polled after its end").into_inner()
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Ended> {
        if let Some(ended) = self.take() {
            return Poll::Ready(ended);
        }
        match &self.state {
            State::Running(worker, id) => {
                let before = worker.core().reqs.set_waker(*id, cx.waker());
                drop(before);
            }
            _ => panic!("request was polled after its end"),
        }
        Poll::Pending
    }

    fn wait(&mut self) -> Ended {
        let ended = match &self.state {
            State::Running(worker, id) => worker.run_until(|core| core.reqs.take(*id)),
            State::Ended(ended) => *ended,
            State::Taken => unreachable!("wait consumes the request, so its result is still there"),
        };
        self.state = State::Taken;
        ended
    }

    fn cancel(&self) -> bool {
        match &self.state {
            State::Running(worker, id) => worker.core().cancel(*id, Cancel::Unfinished),
            State::Ended(_) | State::Taken => false,
        }
    }

    fn then(mut self, then: impl FnOnce(Ended, B) + 'static) {
        if let Some(ended) = self.take() {
            let buf = self.take_buf();
            return then(ended, buf);
        }
        if let (State::Running(worker, id), Some(in_flight)) = (&self.state, self.buf.take()) {
            // Dropped with the worker if the operation does not end before.
            let buf = DetachedBuf::new(in_flight);
            let call = Box::new(move |ended: Ended| then(ended, buf.into_inner()));
            let before = worker.core().reqs.set_callback(*id, call);
            drop(before);
        }
        // The callback owns the slot now.
        self.state = State::Taken;
    }

    /// Moves the operation out, for a completion queue.
    #[inline]
    fn into_tracked(mut self, set_filled: Option<SetFilled<B>>) -> TrackedOp<B> {
        let state = self.state.take();
        TrackedOp { state, buf: self.buf.take(), set_filled }
    }

    fn detach(&mut self) {
        let State::Running(worker, id) = &self.state else { return };
        let buf =
            self.buf.take().map(|in_flight| Box::new(DetachedBuf::new(in_flight)) as Box<dyn std::any::Any>);
        let dropped = worker.core().reqs.detach(*id, buf);
        self.state = State::Taken;
        drop(dropped);
    }
}

impl<B: 'static> Drop for Op<B> {
    fn drop(&mut self) {
        if self.take().is_none() {
            self.detach();
        }
        if let Some(in_flight) = self.buf.take() {
            drop(in_flight.into_inner());
        }
    }
}

/// A send that owns its buffer. A future of the result and the buffer. Dropping it lets the send continue.
#[must_use = "a send may still be running: wait for it, await it, or detach it"]
pub struct SendRequest<B: 'static>(Op<B>);

/// A receive that owns its buffer. A future of the result and the buffer. Dropping it cancels it unless a
/// message has been matched, which then still arrives; [`RecvRequest::detach`] lets it wait instead.
#[must_use = "a receive does nothing for you unless you wait for it, await it, or give it a callback"]
pub struct RecvRequest<B: 'static> {
    op: Op<B>,
    set_filled: SetFilled<B>,
}

// The buffer is never pinned; it is only moved out.
impl<B> Unpin for SendRequest<B> {}
impl<B> Unpin for RecvRequest<B> {}

impl<B: 'static> SendRequest<B> {
    /// The request of a send that has been started.
    #[inline]
    pub(crate) fn new(worker: &Worker, started: Result<OpStatus<()>, Error>, buf: InFlightBuf<B>) -> Self {
        let state = State::of(worker, started.map(OpStatus::with_empty_status));
        SendRequest(Op { state, buf: Some(buf) })
    }

    /// Whether the operation has ended.
    pub fn is_done(&self) -> bool {
        self.0.is_done()
    }

    /// Returns the result and the buffer if the operation has ended, otherwise the request.
    pub fn test(mut self) -> Result<(Result<(), Error>, B), Self> {
        self.take().ok_or(self)
    }

    /// Takes the result and the buffer, once, if the operation has ended.
    // HOT
    #[inline]
    pub(crate) fn take(&mut self) -> Option<(Result<(), Error>, B)> {
        let ended = self.0.take()?;
        Some((ended.map(drop), self.0.take_buf()))
    }

    /// Makes progress until the operation ends.
    pub fn wait(mut self) -> (Result<(), Error>, B) {
        (self.0.wait().map(drop), self.0.take_buf())
    }

    /// Cancels the operation; true if it ends as cancelled. A message is withdrawn at any time before its
    /// end; if all of it has been sent, it may have been received. Stream sends, puts and atomics are
    /// cancelled if none of them has been sent.
    pub fn cancel(&self) -> bool {
        self.0.cancel()
    }

    /// Calls `then` from progress when the operation ends, or at once if it has ended. Allocates.
    pub fn then(self, then: impl FnOnce(Result<(), Error>, B) + 'static) {
        self.0.then(move |ended, buf| then(ended.map(drop), buf));
    }

    #[inline]
    pub(crate) fn running_at(&self) -> Option<&Worker> {
        self.0.state.running_at()
    }

    #[inline]
    pub(crate) fn into_tracked(self) -> TrackedOp<B> {
        self.0.into_tracked(None)
    }

    /// Lets the operation continue; its result is dropped.
    pub fn detach(mut self) {
        self.0.detach();
    }
}

impl<B: 'static> Future for SendRequest<B> {
    type Output = (Result<(), Error>, B);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll(cx).map(|ended| (ended.map(drop), self.0.take_buf()))
    }
}

impl<B: RecvData> RecvRequest<B> {
    /// The request of a receive that has been started.
    #[inline]
    pub(crate) fn new(
        worker: &Worker,
        started: Result<OpStatus<RecvStatus>, Error>,
        buf: InFlightBuf<B>,
    ) -> Self {
        let op = Op { state: State::of(worker, started), buf: Some(buf) };
        RecvRequest { op, set_filled: B::filled }
    }
}

impl<B: IoBufMut> RecvRequest<Vec<B>> {
    /// The request of a receive into a list of containers.
    pub(crate) fn new_list(
        worker: &Worker,
        started: Result<OpStatus<RecvStatus>, Error>,
        bufs: InFlightBuf<Vec<B>>,
    ) -> Self {
        let op = Op { state: State::of(worker, started), buf: Some(bufs) };
        RecvRequest { op, set_filled: set_filled_list }
    }
}

/// Safety: as for [`IoBufMut::set_filled`], with the containers' memory as one run.
unsafe fn set_filled_list<B: IoBufMut>(bufs: &mut Vec<B>, len: usize) {
    let mut left = len;
    for buf in bufs {
        let n = buf.memory().1.min(left);
        // SAFETY: `len` bytes of the run have been written, and these are the next `n` of them.
        unsafe { buf.set_filled(n) };
        left -= n;
    }
}

impl<B: 'static> RecvRequest<B> {
    /// Whether the operation has ended.
    pub fn is_done(&self) -> bool {
        self.op.is_done()
    }

    /// Returns the result and the buffer if the operation has ended, otherwise the request.
    pub fn test(mut self) -> Result<(Result<RecvStatus, Error>, B), Self> {
        self.take().ok_or(self)
    }

    /// Takes the result and the buffer, once, if the operation has ended.
    // HOT
    #[inline]
    pub(crate) fn take(&mut self) -> Option<(Result<RecvStatus, Error>, B)> {
        let ended = self.op.take()?;
        Some((ended, with_len_set(ended, self.op.take_buf(), self.set_filled)))
    }

    /// Makes progress until the operation ends.
    pub fn wait(mut self) -> (Result<RecvStatus, Error>, B) {
        let ended = self.op.wait();
        (ended, with_len_set(ended, self.op.take_buf(), self.set_filled))
    }

    /// Cancels the receive unless a message has been matched to it; true if it ends as cancelled.
    pub fn cancel(&self) -> bool {
        self.op.cancel()
    }

    /// Calls `then` from progress when the operation ends, or at once if it has ended. Allocates.
    pub fn then(mut self, then: impl FnOnce(Result<RecvStatus, Error>, B) + 'static) {
        let set_filled = self.set_filled;
        if let Some(op) = self.take_op() {
            op.then(move |ended, buf| then(ended, with_len_set(ended, buf, set_filled)));
        }
    }

    /// Lets the receive wait for its message; the result is dropped.
    pub fn detach(mut self) {
        self.op.detach();
    }

    #[inline]
    pub(crate) fn running_at(&self) -> Option<&Worker> {
        self.op.state.running_at()
    }

    #[inline]
    pub(crate) fn into_tracked(mut self) -> TrackedOp<B> {
        let state = self.op.state.take();
        TrackedOp { state, buf: self.op.buf.take(), set_filled: Some(self.set_filled) }
    }

    /// Moves the operation out, so that `drop` does not cancel it.
    fn take_op(&mut self) -> Option<Op<B>> {
        let state = std::mem::replace(&mut self.op.state, State::Taken);
        let buf = self.op.buf.take()?;
        Some(Op { state, buf: Some(buf) })
    }
}

impl<B: 'static> Drop for RecvRequest<B> {
    fn drop(&mut self) {
        self.op.cancel();
    }
}

impl<B: 'static> Future for RecvRequest<B> {
    type Output = (Result<RecvStatus, Error>, B);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let set_filled = self.set_filled;
        self.op.poll(cx).map(|ended| (ended, with_len_set(ended, self.op.take_buf(), set_filled)))
    }
}

/// A buffer whose length follows what has been received.
pub(crate) fn with_len_set<B>(ended: Ended, mut buf: B, set_filled: SetFilled<B>) -> B {
    let len = match ended {
        Ok(status) => status.len,
        // The receive has filled the buffer.
        Err(Error::Truncated { room, .. }) => room,
        Err(_) => return buf,
    };
    // SAFETY: the engine has written `len` bytes, and the memory is at least as long.
    unsafe { set_filled(&mut buf, len) };
    buf
}

/// A flush or close. A future of its result. Dropping it does not stop it.
#[must_use = "a flush ends later: wait for it or await it"]
pub struct FlushRequest(Op<()>);

impl FlushRequest {
    /// A flush that has been started, or has ended with `Ok(None)` or an error.
    pub(crate) fn new(worker: &Worker, started: Result<Option<RequestId>, Error>) -> Self {
        let started = started.map(|id| id.map_or(OpStatus::Done(EMPTY_STATUS), OpStatus::InProgress));
        FlushRequest(Op { state: State::of(worker, started), buf: Some(InFlightBuf::new(())) })
    }

    /// Whether the operation has ended.
    pub fn is_done(&self) -> bool {
        self.0.is_done()
    }

    /// Returns the result if the operation has ended, otherwise the request.
    pub fn test(mut self) -> Result<Result<(), Error>, Self> {
        self.take().ok_or(self)
    }

    /// Takes the result, once, if the operation has ended.
    pub(crate) fn take(&mut self) -> Option<Result<(), Error>> {
        self.0.take().map(|ended| ended.map(drop))
    }

    /// Makes progress until the operation ends.
    pub fn wait(mut self) -> Result<(), Error> {
        self.0.wait().map(drop)
    }

    /// Stops waiting; true if the request ends as cancelled. Operations continue, a closing endpoint stays
    /// closed.
    pub fn cancel(&self) -> bool {
        self.0.cancel()
    }

    /// Calls `then` from progress when the operation ends, or at once if it has ended. Allocates.
    pub fn then(self, then: impl FnOnce(Result<(), Error>) + 'static) {
        self.0.then(move |ended, ()| then(ended.map(drop)));
    }
}

impl FlushRequest {
    pub(crate) fn running_at(&self) -> Option<&Worker> {
        self.0.state.running_at()
    }

    pub(crate) fn into_state(mut self) -> TrackedState {
        self.0.state.take()
    }

    /// Lets the operation continue; its result is dropped.
    pub fn detach(mut self) {
        self.0.detach();
    }
}

impl Future for FlushRequest {
    type Output = Result<(), Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll(cx).map(|ended| ended.map(drop))
    }
}

/// A `*_raw` operation as a future. Dropping it lets the operation continue.
pub(crate) struct RawRequest(Op<()>);

impl RawRequest {
    pub(crate) fn running(worker: Worker, id: RequestId) -> Self {
        RawRequest(Op { state: State::Running(worker, id), buf: Some(InFlightBuf::new(())) })
    }

    pub(crate) fn is_done(&self) -> bool {
        self.0.is_done()
    }

    pub(crate) fn take(&mut self) -> Option<Ended> {
        self.0.take()
    }

    pub(crate) fn cancel(&self) -> bool {
        self.0.cancel()
    }

    pub(crate) fn then(self, then: impl FnOnce(Ended) + 'static) {
        self.0.then(move |ended, ()| then(ended));
    }

    pub(crate) fn detach(mut self) {
        self.0.detach();
    }
}

impl Future for RawRequest {
    type Output = Ended;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll(cx)
    }
}
