//! Flush and fence.

use std::ffi::{c_uint, c_void};

use ::ucs::Status;
use ucp::{Error, OpStatus};

use crate::entry::{CStatus, StatusPtr};
use crate::ep::Ep;
use crate::handle::checked;
use crate::op::{BYTES, Call, NoResult, id_of, run};
use crate::types::RequestParam;
use crate::worker::Worker;

fn flush_ep(ep: *mut Ep, call: &Call) -> Result<StatusPtr, Status> {
    let ep = checked(ep)?;
    let worker = ep.worker();
    worker.inside(|plain| {
        // SAFETY: the caller keeps the callback valid until the end.
        unsafe {
            run::<NoResult, ()>(worker, plain, call, None, |done| {
                ucp::flush_ep_raw(&ep.ep, done).map(OpStatus::InProgress)
            })
        }
    })?
}

fn flush_worker(worker: *mut Worker, call: &Call) -> Result<StatusPtr, Status> {
    let worker = checked(worker)?;
    worker.inside(|plain| {
        // SAFETY: the caller keeps the callback valid until the end.
        unsafe {
            run::<NoResult, ()>(worker, plain, call, None, |done| {
                ucp::flush_worker_raw(plain, done).map(OpStatus::InProgress)
            })
        }
    })?
}

/// Makes progress until a started operation has ended, and frees its request.
pub(crate) fn wait(worker: &Worker, started: StatusPtr) -> Result<(), Status> {
    if started == StatusPtr::OK {
        return Ok(());
    }
    let id = id_of(started.0)?;
    let ended =
        worker.run_until(|| worker.inside(|plain| plain.test(id)).unwrap_or(Some(Err(Error::Cancelled))))?;
    ended.map(drop).map_err(Error::status)
}

fn plain_param() -> RequestParam {
    RequestParam::old(std::ptr::null(), BYTES)
}

entry! {
    /// Completes when all earlier operations of an endpoint have.
    fn ucp_ep_flush_nbx(ep: *mut Ep, param: *const RequestParam) -> StatusPtr {
        flush_ep(ep, &Call::read(param)?)
    }

    /// Flushes an endpoint; old form.
    fn ucp_ep_flush_nb(ep: *mut Ep, _flags: c_uint, cb: *const c_void) -> StatusPtr {
        flush_ep(ep, &Call::of(&RequestParam::old(cb, BYTES)))
    }

    /// Flushes an endpoint and waits.
    fn ucp_ep_flush(ep: *mut Ep) -> CStatus {
        let started = flush_ep(ep, &Call::of(&plain_param()))?;
        wait(checked(ep)?.worker(), started)
    }

    /// Completes when all earlier operations of a worker have.
    fn ucp_worker_flush_nbx(worker: *mut Worker, param: *const RequestParam) -> StatusPtr {
        flush_worker(worker, &Call::read(param)?)
    }

    /// Flushes a worker; old form.
    fn ucp_worker_flush_nb(worker: *mut Worker, _flags: c_uint, cb: *const c_void) -> StatusPtr {
        flush_worker(worker, &Call::of(&RequestParam::old(cb, BYTES)))
    }

    /// Flushes a worker and waits.
    fn ucp_worker_flush(worker: *mut Worker) -> CStatus {
        let started = flush_worker(worker, &Call::of(&plain_param()))?;
        wait(checked(worker)?, started)
    }

    /// Orders one-sided operations: later ones take effect after earlier ones to the same peer.
    fn ucp_worker_fence(worker: *mut Worker) -> CStatus {
        checked(worker)?.inside(ucp::Worker::fence)
    }
}
