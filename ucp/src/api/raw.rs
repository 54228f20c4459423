//! Raw forms of flush and close, and requests that have ended when they are made: for runtimes that hand out
//! a request for every operation.

#![allow(unsafe_code)]

use ucs::time::Nanos;

use crate::api::core::error::Error;
use crate::api::core::flushes::OnTimeout;
use crate::api::core::requests::{Callback, OpStatus, RequestId};
use crate::api::ep::close::CloseMode;
use crate::api::ep::deferred::abort_ep_ops;
use crate::api::ep::handle::Ep;
use crate::api::worker::handle::Worker;

use crate::rdm::RecvStatus;

/// Flushes a worker as [`Worker::flush`]. Progress calls `done` at the end.
/// # Safety
/// `done` may be called with its argument.
pub unsafe fn flush_worker_raw(worker: &Worker, done: Option<Callback>) -> Result<RequestId, Error> {
    worker.core().start_flush(None, (Nanos::NEVER, OnTimeout::EndFlush), done)
}

/// Flushes an endpoint as [`Ep::flush`]. Progress calls `done` at the end.
/// # Safety
/// `done` may be called with its argument.
pub unsafe fn flush_ep_raw(ep: &Ep, done: Option<Callback>) -> Result<RequestId, Error> {
    let of = Some(ep.state().clone());
    ep.worker().core().start_flush(of, (Nanos::NEVER, OnTimeout::EndFlush), done)
}

impl Ep {
    /// Closes as [`Ep::close`], and keeps the handle: its operations fail. Progress calls `done` at the end,
    /// unless the endpoint is closed within the call.
    /// # Safety
    /// `done` may be called with its argument.
    pub unsafe fn close_raw(&self, how: CloseMode, done: Option<Callback>) -> Result<OpStatus<()>, Error> {
        let failure = self.state().failure();
        if let (CloseMode::Flush(within), None) = (how, failure) {
            let mut core = self.worker().core();
            let deadline = core.now() + within;
            let started = core.start_flush(Some(self.state().clone()), (deadline, OnTimeout::AbortOps), done);
            drop(core);
            self.state().refuse(Error::Closed);
            return started.map(OpStatus::InProgress);
        }
        self.state().refuse(Error::Closed);
        abort_ep_ops(&mut self.worker().core(), self.state(), Error::Cancelled);
        failure.map_or(Ok(OpStatus::Done(())), Err)
    }
}

impl RequestId {
    /// A request of `worker` that has ended, with a message, and with an error if there is one: for callers
    /// that need one although their operation has completed in the call. It is tested and freed as any other,
    /// and has no callback.
    pub fn ended(worker: &Worker, message: RecvStatus, error: Option<Error>) -> Result<RequestId, Error> {
        worker.core_keep_idle().reqs.start_ended(message, error)
    }
}
