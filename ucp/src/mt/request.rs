//! Requests that any thread may wait for, poll, cancel or drop.

#![allow(unsafe_code)]

use std::convert::identity;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::queue::SharedTracked;
use super::shared::{Inside, Locked, OfWorker, Shared};
use crate::api::RawRequest;
use crate::{
    AmSend, AtomicType, Error, FetchRequest, FlushRequest, RecvRequest, RecvStatus, SendRequest, TrackedOp,
};

/// A request of a plain worker that a [`SharedRequest`] can hold.
///
/// The future's output says how the operation ended; [`Operation::Ended`] also says whether the thread may
/// use the worker.
pub trait Operation: Future<Output: Send> + Unpin + Sized + OfWorker {
    /// Result of waiting: [`Error::Thread`] if the calling thread may not use the worker.
    type Ended;
    #[doc(hidden)]
    fn ended(output: Self::Output) -> Self::Ended;
    #[doc(hidden)]
    fn refused(error: Error) -> Self::Ended;
    #[doc(hidden)]
    fn has_ended(&self) -> bool;
    #[doc(hidden)]
    fn take_ended(&mut self) -> Option<Self::Output>;
    #[doc(hidden)]
    fn cancel_it(&self) -> bool;
    #[doc(hidden)]
    fn detach_it(self);
    #[doc(hidden)]
    fn set_callback(self, then: impl FnOnce(Self::Output) + 'static);
}

/// Implements [`Operation`]: the type, its [`Operation::Ended`], how that is made of the output, the output's
/// parts.
macro_rules! operation {
    ([$($generics:tt)*] $Request:ty, $Ended:ty, $ended:expr, ($($part:ident),+)) => {
        // SAFETY: of the user's it holds a buffer, which is `Send`; all else is its worker's.
        unsafe impl<$($generics)*> OfWorker for $Request {}

        impl<$($generics)*> Operation for $Request {
            type Ended = $Ended;

            #[inline]
            fn ended(output: Self::Output) -> Self::Ended {
                $ended(output)
            }

            fn refused(error: Error) -> Self::Ended {
                Err(error)
            }

            #[inline]
            fn has_ended(&self) -> bool {
                self.is_done()
            }

            #[inline]
            fn take_ended(&mut self) -> Option<Self::Output> {
                self.take()
            }

            fn cancel_it(&self) -> bool {
                self.cancel()
            }

            fn detach_it(self) {
                self.detach();
            }

            fn set_callback(self, then: impl FnOnce(Self::Output) + 'static) {
                self.then(move |$($part),+| then(($($part),+)));
            }
        }
    };
}

operation!([B: Send + 'static] SendRequest<B>, Result<(Result<(), Error>, B), Error>, Ok, (ended, buf));
operation!([B: Send + 'static] RecvRequest<B>, Result<(Result<RecvStatus, Error>, B), Error>, Ok, (ended, buf));
operation!([B: Send + 'static] AmSend<B>, Result<(Result<(), Error>, B), Error>, Ok, (ended, buf));
operation!([] FlushRequest, Result<(), Error>, identity, (ended));
operation!([] RawRequest, Result<RecvStatus, Error>, identity, (ended));
operation!([T: AtomicType + Send] FetchRequest<T>, Result<T, Error>, identity, (ended));

/// An operation of a [`SharedWorker`](super::SharedWorker): a [`SendRequest`], [`RecvRequest`] and so on that
/// any thread may use. A future of the operation's end; somebody has to progress the worker meanwhile.
///
/// Dropping it does what dropping the plain request does. In mode single, the worker's own thread does so for
/// another one.
#[must_use = "the operation may still be running: wait for it, await it, or detach it"]
pub struct SharedRequest<R: Operation>(State<R>);

enum State<R: Operation> {
    Running(Locked<R>),
    /// `None`: the result has been taken.
    Ended(Option<R::Output>),
}

const TAKEN: &str = "request was used after its end";

impl<R: Operation> Unpin for SharedRequest<R> {}

impl<R: Operation> SharedRequest<R> {
    /// A request that has just been started.
    // HOT
    #[inline]
    pub(super) fn new(mut request: R, inside: &Inside<'_>) -> Self {
        match request.take_ended() {
            Some(output) => SharedRequest::ended(output),
            None => SharedRequest(State::Running(Locked::new(request, inside))),
        }
    }

    pub(super) fn ended(output: R::Output) -> Self {
        SharedRequest(State::Ended(Some(output)))
    }

    /// Whether the operation has ended.
    pub fn is_done(&self) -> Result<bool, Error> {
        match &self.0 {
            State::Running(running) => Ok(running.look(R::has_ended)?),
            State::Ended(_) => Ok(true),
        }
    }

    /// Returns the result and the buffer, once, if the operation has ended. Makes no progress.
    pub fn test(&mut self) -> Result<Option<R::Output>, Error> {
        match &mut self.0 {
            State::Running(running) => {
                let output = running.look_mut(R::take_ended)?;
                Ok(output.map(|output| self.end(output)))
            }
            State::Ended(output) => Ok(Some(output.take().expect(TAKEN))),
        }
    }

    /// Makes progress until the operation ends, and returns the result and the buffer, once. If threads wait
    /// for several operations of a worker, one progresses, and the others sleep until theirs has ended.
    ///
    /// [`Error::Thread`]: the thread may not use the worker; the operation goes on.
    pub fn wait(&mut self) -> R::Ended {
        let running = match &mut self.0 {
            State::Running(running) => running,
            State::Ended(output) => return R::ended(output.take().expect(TAKEN)),
        };
        match wait(running) {
            Ok(output) => R::ended(self.end(output)),
            Err(error) => R::refused(error),
        }
    }

    /// Waits until the operation ends, even while the worker is in use elsewhere; for borrowed buffers.
    pub(super) fn wait_for_end(&mut self) -> R::Output {
        let running = match &mut self.0 {
            State::Running(running) => running,
            State::Ended(output) => return output.take().expect(TAKEN),
        };
        let shared = running.shared().clone();
        let output = shared.block_on(|cx| {
            let polled = running.with_mut_waiting(|request| Pin::new(request).poll(cx));
            polled.expect("the thread that has started the operation may go in")
        });
        self.end(output)
    }

    /// Cancels the operation, as [`SendRequest::cancel`] and [`RecvRequest::cancel`] do; true if it ends as
    /// cancelled.
    pub fn cancel(&self) -> Result<bool, Error> {
        match &self.0 {
            State::Running(running) => Ok(running.with(|request, _| request.cancel_it())?),
            State::Ended(_) => Ok(false),
        }
    }

    /// Calls `then` when the operation ends, inside the lock of the thread that progresses; at once, outside,
    /// if it has ended. On an error the request is dropped.
    pub fn then(self, then: impl FnOnce(R::Output) + Send + 'static) -> Result<(), Error> {
        match self.0 {
            State::Running(running) => Ok(running.consume(|request, _| request.set_callback(then))?),
            State::Ended(output) => {
                then(output.expect(TAKEN));
                Ok(())
            }
        }
    }

    /// Lets the operation continue; the result is dropped. On an error the request is dropped.
    pub fn detach(self) -> Result<(), Error> {
        match self.0 {
            State::Running(running) => Ok(running.consume(|request, _| request.detach_it())?),
            State::Ended(_) => Ok(()),
        }
    }

    /// Frees the plain request, whose result is `output`.
    fn end(&mut self, output: R::Output) -> R::Output {
        self.0 = State::Ended(None);
        output
    }
}

impl<R: Operation> SharedRequest<R> {
    /// The worker at which the operation runs.
    pub(super) fn running_at(&self) -> Option<&Arc<Shared>> {
        match &self.0 {
            State::Running(running) => Some(running.shared()),
            State::Ended(_) => None,
        }
    }

    /// Operation of the request, for a completion queue of the worker that the thread is inside.
    pub(super) fn into_tracked<B: 'static>(self) -> TrackedOp<B>
    where
        R: SharedTracked<B>,
    {
        match self.0 {
            State::Running(running) => {
                let taken = running.consume(|request, _| request.into_tracked());
                taken.expect("a thread that is inside may go in")
            }
            State::Ended(output) => R::ended_op(output.expect(TAKEN)),
        }
    }
}

/// Most progress calls with events of a waiting thread before it lets others in.
const PROGRESS_PER_LOCK: u32 = 16;

/// Waits for a running request: at first by progress, then as one of the waiting threads.
fn wait<R: Operation>(running: &mut Locked<R>) -> Result<R::Output, Error> {
    let mut idle = 0;
    while idle < running.shared().spin() {
        idle += 1;
        let Some((inside, request)) = running.enter_to_progress()? else {
            std::hint::spin_loop();
            continue;
        };
        // One lock for several progress calls, and for the request's end.
        for _ in 0..PROGRESS_PER_LOCK {
            if let Some(output) = request.as_mut().and_then(R::take_ended) {
                drop(request.take());
                return Ok(output);
            }
            if inside.progress() == 0 {
                break;
            }
            idle = 0;
            if inside.has_waiters() {
                break;
            }
        }
    }
    let shared: Arc<Shared> = running.shared().clone();
    shared.block_on(|cx| match running.with_mut(|request| Pin::new(request).poll(cx)) {
        Ok(polled) => polled.map(Ok),
        Err(error) => Poll::Ready(Err(error.into())),
    })
}

impl<R: Operation> Future for SharedRequest<R> {
    type Output = R::Ended;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<R::Ended> {
        let running = match &mut self.0 {
            State::Running(running) => running,
            State::Ended(output) => return Poll::Ready(R::ended(output.take().expect(TAKEN))),
        };
        match running.with_mut(|request| Pin::new(request).poll(cx)) {
            Ok(Poll::Ready(output)) => Poll::Ready(R::ended(self.end(output))),
            Ok(Poll::Pending) => Poll::Pending,
            Err(error) => Poll::Ready(R::refused(error.into())),
        }
    }
}
