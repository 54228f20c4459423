//! Deferral of operations on an endpoint whose peer is not known yet. Each has a request at once, and starts
//! when the peer is known. Then a second request carries it out; its end ends the first.

use std::rc::Rc;

use crate::api::core::deferred::{DeferredOp, StartOp};
use crate::api::core::ep_state::EpState;
use crate::api::core::error::Error;
use crate::api::core::requests::{Callback, OpStatus, RequestId, Role};
use crate::api::core::worker_core::WorkerCore;
use crate::api::ep::handle::Ep;
use crate::api::worker::handle::Worker;

use crate::rdm::RecvStatus;

/// Starts an operation on an endpoint that has its peer.
pub(crate) type StartOnEp = Box<dyn FnMut(&Ep) -> Result<OpStatus<RecvStatus>, Error>>;

/// Defers an operation that the endpoint refuses with `refusal`, if that says that there is no peer yet; else
/// returns it.
#[cold]
#[inline(never)]
pub(crate) fn defer<T>(
    ep: &Ep,
    refusal: Error,
    done: Option<Callback>,
    start: StartOnEp,
) -> Result<OpStatus<T>, Error> {
    if refusal != Error::NotConnected {
        return Err(refusal);
    }
    let mut core = ep.worker().core();
    let token = core.reqs.next_token()?;
    let id = core.reqs.start(token, Role::Deferred, done);
    core.deferred.push(deferred_op(ep, Some(id), start));
    Ok(OpStatus::InProgress(id))
}

/// Defers an operation without a request.
#[cold]
pub(crate) fn defer_without_request(ep: &Ep, start: StartOnEp) {
    ep.worker().core().deferred.push(deferred_op(ep, None, start));
}

fn deferred_op(ep: &Ep, id: Option<RequestId>, mut start: StartOnEp) -> DeferredOp {
    let (worker, state) = (ep.worker().downgrade(), ep.state().clone());
    let of = state.clone();
    let start = Box::new(move || {
        let worker = worker.upgrade().ok_or(Error::Closed)?;
        start(&Ep::from_state(worker, of.clone()))
    });
    DeferredOp { id, ep: state, start }
}

/// Starts the deferred operations of an endpoint that has its peer now. Calls no user code.
pub(crate) fn start_deferred(worker: &Worker, ep: &Rc<EpState>) {
    // An endpoint that is being closed refuses new operations only.
    let refusal = ep.refusal.replace(None);
    loop {
        let Some(op) = worker.core().deferred.take_oldest(ep) else { break };
        let DeferredOp { id, mut start, .. } = op;
        let started = start();
        let Some(id) = id else { continue };
        let mut core = worker.core();
        match started {
            Ok(OpStatus::Done(status)) => core.reqs.end(id, Ok(status)),
            Err(error) => core.reqs.end(id, Err(error)),
            Ok(OpStatus::InProgress(inner)) => forward_end(worker, &mut core, id, (inner, start)),
        }
    }
    ep.refusal.set(refusal);
}

/// Ends the request of a deferred operation with the request that carries it out, and keeps what the
/// operation uses until then.
fn forward_end(worker: &Worker, core: &mut WorkerCore, id: RequestId, (inner, start): (RequestId, StartOp)) {
    // Data that was there before the peer was known.
    if let Some(ended) = core.reqs.take(inner) {
        return core.reqs.end(id, ended);
    }
    core.reqs.set_forwarded(id, inner);
    core.reqs.set_part(inner, id);
    let worker = worker.downgrade();
    let end = move |ended| {
        drop(start);
        if let Some(worker) = worker.upgrade() {
            let mut core = worker.core();
            core.reqs.end_part(inner);
            core.reqs.end(id, ended);
        }
    };
    let waker = core.reqs.set_callback(inner, Box::new(end));
    debug_assert!(waker.is_none(), "nobody has polled it");
}
