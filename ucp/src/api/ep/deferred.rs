//! Deferral of operations on an endpoint whose peer is not known yet. Each has a request at once, and starts
//! when the peer is known. Then a second request carries it out; its end ends the first.

use std::rc::Rc;

use crate::api::core::deferred::DeferredOp;
use crate::api::core::ep_state::EpState;
use crate::api::core::error::Error;
use crate::api::core::requests::{Callback, OpStatus, RequestId, Role};
use crate::api::core::worker_core::WorkerCore;
use crate::api::ep::handle::Ep;
use crate::api::worker::handle::Worker;

use crate::rdm::RecvStatus;

/// Starts an operation on an endpoint that has its peer.
pub(crate) type StartOnEp = Box<dyn FnMut(&Ep) -> Result<OpStatus<RecvStatus>, Error>>;

impl Ep {
    /// Defers an operation that the endpoint refuses with `refusal`, if that says that there is no peer yet;
    /// else returns it.
    #[cold]
    #[inline(never)]
    pub(crate) fn defer<T>(
        &self,
        refusal: Error,
        done: Option<Callback>,
        start: StartOnEp,
    ) -> Result<OpStatus<T>, Error> {
        if refusal != Error::NotConnected {
            return Err(refusal);
        }
        let mut core = self.worker().core();
        let token = core.reqs.next_token()?;
        let id = core.reqs.start(token, Role::Deferred, done);
        let op = self.deferred_op(Some(id), start);
        core.deferred.push(op);
        Ok(OpStatus::InProgress(id))
    }

    /// Defers an operation without a request.
    #[cold]
    pub(crate) fn defer_without_request(&self, start: StartOnEp) {
        let op = self.deferred_op(None, start);
        self.worker().core().deferred.push(op);
    }

    fn deferred_op(&self, id: Option<RequestId>, mut start: StartOnEp) -> DeferredOp {
        let (worker, ep) = (self.worker().downgrade(), self.state().clone());
        let state = ep.clone();
        let start = Box::new(move || {
            let worker = worker.upgrade().ok_or(Error::Closed)?;
            start(&Ep::from_state(worker, state.clone()))
        });
        DeferredOp { id, ep, start }
    }
}

impl Worker {
    /// Starts the deferred operations of an endpoint that has its peer now. Calls no user code.
    pub(crate) fn start_deferred(&self, ep: &Rc<EpState>) {
        // An endpoint that is being closed refuses new operations only.
        let refusal = ep.refusal.replace(None);
        loop {
            let Some(op) = self.core().deferred.take_oldest(ep) else { break };
            let DeferredOp { id, mut start, .. } = op;
            let started = start();
            let Some(id) = id else { continue };
            let mut core = self.core();
            match started {
                Ok(OpStatus::Done(status)) => core.reqs.end(id, Ok(status)),
                Err(error) => core.reqs.end(id, Err(error)),
                Ok(OpStatus::InProgress(inner)) => {
                    core.reqs.set_forwarded(id, inner);
                    let worker = self.downgrade();
                    let end = move |ended| {
                        drop(start);
                        if let Some(worker) = worker.upgrade() {
                            worker.core().reqs.end(id, ended);
                        }
                    };
                    let waker = core.reqs.set_callback(inner, Box::new(end));
                    debug_assert!(waker.is_none(), "nobody has polled it");
                }
            }
        }
        ep.refusal.set(refusal);
    }
}

impl WorkerCore {
    /// Ends every deferred operation of an endpoint with `error`.
    pub(crate) fn end_deferred(&mut self, ep: &Rc<EpState>, error: Error) {
        while let Some(op) = self.deferred.take_oldest(ep) {
            if let Some(id) = op.id {
                self.reqs.end(id, Err(error));
            }
        }
    }

    /// Cancels an operation that has not started.
    pub(crate) fn cancel_deferred(&mut self, id: RequestId) -> bool {
        let is_deferred = self.deferred.take(id).is_some();
        if is_deferred {
            self.reqs.end(id, Err(Error::Cancelled));
        }
        is_deferred
    }
}
