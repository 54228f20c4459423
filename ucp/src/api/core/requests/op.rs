//! Types of an operation in its worker: its status in a call, its role, and the notification of its end.

#![allow(unsafe_code)]

use std::any::Any;
use std::rc::Rc;
use std::task::Waker;

use crate::api::core::ep_state::EpState;
use crate::api::core::error::Error;

use crate::rdm::{OpId, RecvStatus};

use super::request_id::RequestId;

/// A callback to call, of an operation that has ended well, and its other arguments.
pub(crate) type ReadyCall = (Callback, RequestId, RecvStatus);

/// Result of an operation. The status of a send has no meaning.
pub(crate) type Ended = Result<RecvStatus, Error>;

pub(crate) const EMPTY_STATUS: RecvStatus = RecvStatus::EMPTY;

/// Status of an operation after a `*_raw` call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OpStatus<T> {
    /// The operation completed in the call: the buffer is free, no callback follows.
    Done(T),
    /// The operation is running. `Worker::test` and `wait_for` take its result and free the request; `free`
    /// and `abandon` let it go on without a request.
    InProgress(RequestId),
}

impl OpStatus<()> {
    /// Status of a send in the form of a receive's.
    pub(crate) fn with_empty_status(self) -> OpStatus<RecvStatus> {
        match self {
            OpStatus::Done(()) => OpStatus::Done(EMPTY_STATUS),
            OpStatus::InProgress(id) => OpStatus::InProgress(id),
        }
    }
}

/// C-style completion callback. Progress calls it once.
#[derive(Clone, Copy, Debug)]
pub struct Callback {
    /// Function, called with `arg`, the operation and its result (a send's [`RecvStatus`] is empty).
    pub fun: unsafe fn(arg: *mut (), request: RequestId, ended: Result<RecvStatus, Error>),
    /// First argument of `fun`.
    pub arg: *mut (),
    /// When `fun` is called.
    pub at: CallAt,
}

/// When a [`Callback`] is called.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum CallAt {
    /// By progress when the worker is not in use: the callback may use it, and frees the request.
    #[default]
    Progress,
    /// As soon as the operation ends, while the worker is in use: the cheapest way to fill a queue of
    /// completions. The callback uses neither worker nor endpoints, and does not panic. It may read the user
    /// memory of the request ([`RequestId::user_memory`]), and [`RequestId::info`]; the request is freed when
    /// it returns.
    End,
}

impl Callback {
    /// A callback that may use the worker.
    pub const fn new(
        fun: unsafe fn(arg: *mut (), request: RequestId, ended: Result<RecvStatus, Error>),
        arg: *mut (),
    ) -> Callback {
        Callback { fun, arg, at: CallAt::Progress }
    }

    /// Calls it, once, at the end of its operation.
    // HOT
    #[inline(always)]
    pub(crate) fn run(self, request: RequestId, ended: Ended) {
        // SAFETY: the contract of the unsafe `*_raw` calls permits one call with this argument.
        unsafe { (self.fun)(self.arg, request, ended) }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    /// None: no operation has used the block.
    Unstarted,
    Send(OpId),
    /// Send announced by an earlier message; cannot be cancelled.
    Announced,
    Recv(OpId),
    Rma(OpId),
    /// Receive from a stream; belongs to the worker, not the engine.
    Stream,
    /// Flush or close; belongs to the worker, not the engine.
    Flush,
    /// Operation that waits until the peer of its endpoint is known.
    Deferred,
    /// Deferred operation that another request carries out now.
    Forwarded,
    /// Operations that other requests carry out, its parts.
    Group,
}

#[derive(Default)]
pub(crate) enum Notify {
    #[default]
    None,
    Waker(Waker),
    Raw(Callback),
    Boxed(Box<dyn FnOnce(Ended)>),
    /// Nothing to call: the buffer of a dropped request.
    Kept(Box<dyn Any>),
}

impl Notify {
    pub(super) fn into_waker(self) -> Option<Waker> {
        if let Notify::Waker(waker) = self { Some(waker) } else { None }
    }
}

/// Buffer and waker that a dropped request no longer needs. Dropping them may use the worker.
pub(crate) type Leftovers = (Option<Box<dyn Any>>, Option<Waker>);

/// Action that the worker runs after completing an operation.
#[must_use]
pub(crate) enum Action {
    Wake(Waker),
    /// Wakes the waker of a future, and the watcher of the multi-receive, which stays.
    WakeMultiRecv(Option<Waker>, Rc<Waker>),
    Raw(Callback, RequestId, Ended),
    /// As [`Action::Raw`], of a request that was dropped before its operation ended. The worker frees it
    /// after the call, so that an operation that the callback starts gets another one.
    RawOfDropped(Callback, RequestId, Ended),
    Boxed(Box<dyn FnOnce(Ended)>, Ended),
    Failed(Vec<Rc<EpState>>, Error),
    /// Drops the buffer of a detached operation, whose destructor is user code.
    Free(#[allow(dead_code)] Box<dyn Any>),
}

impl Action {
    /// Runs user code: nothing of the worker may be borrowed.
    pub(crate) fn run(self) {
        match self {
            Action::Wake(waker) => waker.wake(),
            Action::WakeMultiRecv(waker, watcher) => {
                waker.into_iter().for_each(Waker::wake);
                watcher.wake_by_ref();
            }
            Action::Raw(call, id, ended) | Action::RawOfDropped(call, id, ended) => call.run(id, ended),
            Action::Boxed(call, ended) => call(ended),
            Action::Failed(eps, error) => eps.iter().for_each(|ep| ep.call_error_handler(error)),
            Action::Free(buf) => drop(buf),
        }
    }
}
