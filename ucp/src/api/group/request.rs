//! A collective operation that runs.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use crate::api::core::error::Error;
use crate::api::worker::handle::Worker;

type Then = Box<dyn FnOnce(Result<Vec<u8>, Error>)>;

#[derive(Default)]
struct State {
    result: Option<Result<Vec<u8>, Error>>,
    then: Option<Then>,
    waker: Option<Waker>,
}

/// Where the result of an operation goes.
#[derive(Clone, Default)]
pub(super) struct Outcome(Rc<RefCell<State>>);

impl Outcome {
    /// Ends the operation.
    pub(super) fn set(&self, result: Result<Vec<u8>, Error>) {
        let mut state = self.0.borrow_mut();
        let (then, waker) = (state.then.take(), state.waker.take());
        if let Some(then) = then {
            drop(state);
            return then(result);
        }
        state.result = Some(result);
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// A collective operation of a [`Group`](crate::Group) that has been started. A future of its result: the
/// bytes that this member gets, which are none of operations that give it nothing. Dropping it lets the
/// operation continue.
#[must_use = "a collective operation may still be under way: wait for it, await it, or detach it"]
pub struct GroupRequest {
    worker: Worker,
    outcome: Outcome,
}

impl GroupRequest {
    pub(super) fn new(worker: Worker, outcome: Outcome) -> GroupRequest {
        GroupRequest { worker, outcome }
    }

    /// Whether the operation has ended.
    pub fn is_done(&self) -> bool {
        self.outcome.0.borrow().result.is_some()
    }

    /// Returns the result if the operation has ended, otherwise the request.
    pub fn test(self) -> Result<Result<Vec<u8>, Error>, Self> {
        let result = self.outcome.0.borrow_mut().result.take();
        result.ok_or(self)
    }

    /// Makes progress until the operation ends. Other members have to make progress, too.
    pub fn wait(self) -> Result<Vec<u8>, Error> {
        self.worker.run_until(|_| self.outcome.0.borrow_mut().result.take())
    }

    /// Calls `then` from progress when the operation ends, or at once if it has ended. Allocates.
    pub fn then(self, then: impl FnOnce(Result<Vec<u8>, Error>) + 'static) {
        let mut state = self.outcome.0.borrow_mut();
        match state.result.take() {
            Some(result) => {
                drop(state);
                then(result);
            }
            None => state.then = Some(Box::new(then)),
        }
    }

    /// Lets the operation continue; its result is dropped.
    pub fn detach(self) {}
}

impl Future for GroupRequest {
    type Output = Result<Vec<u8>, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.outcome.0.borrow_mut();
        match state.result.take() {
            Some(result) => Poll::Ready(result),
            None => {
                state.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}
