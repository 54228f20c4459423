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

/// Starts a flush of an endpoint.
fn flush_ep(ep: *mut Ep, call: &Call) -> Result<StatusPtr, Status> {
    let ep = checked(ep)?;
    let worker = ep.worker();
    worker.with_worker(|plain| {
        // SAFETY: the callback of a call is valid until the end.
        unsafe {
            run::<NoResult, ()>(worker, plain, call, None, |done| {
                ucp::flush_ep_raw(&ep.ep, done).map(OpStatus::InProgress)
            })
        }
    })?
}

/// Starts a flush of a worker.
fn flush_worker(worker: *mut Worker, call: &Call) -> Result<StatusPtr, Status> {
    let worker = checked(worker)?;
    worker.with_worker(|plain| {
        // SAFETY: the callback of a call is valid until the end.
        unsafe {
            run::<NoResult, ()>(worker, plain, call, None, |done| {
                ucp::flush_worker_raw(plain, done).map(OpStatus::InProgress)
            })
        }
    })?
}

/// Makes progress until a started operation has ended, and frees its request.
/// # Safety
/// `started` is no error, and nobody else has its request.
pub(crate) unsafe fn wait(worker: &Worker, started: StatusPtr) -> Result<(), Status> {
    if started == StatusPtr::OK {
        return Ok(());
    }
    // SAFETY: this function's contract.
    let id = unsafe { id_of(started.0) }?;
    let ended = worker
        .run_until(|| worker.with_worker(|plain| plain.test(id)).unwrap_or(Some(Err(Error::Cancelled))))?;
    ended.map(drop).map_err(Error::status)
}

/// Parameters without a callback.
const NO_CALLBACK: RequestParam = RequestParam::old(std::ptr::null(), BYTES);

entry! {
    /// Completes when all earlier operations of an endpoint have.
    fn ucp_ep_flush_nbx(ep: *mut Ep, param: *const RequestParam) -> StatusPtr {
        // SAFETY: the caller's contract.
        flush_ep(ep, &unsafe { Call::read(param) }?)
    }

    /// Flushes an endpoint; deprecated (`ucp_compat.h`).
    fn ucp_ep_flush_nb(ep: *mut Ep, _flags: c_uint, cb: *const c_void) -> StatusPtr {
        let param = RequestParam::old(cb, BYTES);
        // SAFETY: the caller's contract.
        flush_ep(ep, &unsafe { Call::of(&param) })
    }

    /// Flushes an endpoint and waits.
    fn ucp_ep_flush(ep: *mut Ep) -> CStatus {
        // SAFETY: the parameters name nothing.
        let started = flush_ep(ep, &unsafe { Call::of(&NO_CALLBACK) })?;
        // SAFETY: the flush has just been started.
        unsafe { wait(checked(ep)?.worker(), started) }
    }

    /// Completes when all earlier operations of a worker have.
    fn ucp_worker_flush_nbx(worker: *mut Worker, param: *const RequestParam) -> StatusPtr {
        // SAFETY: the caller's contract.
        flush_worker(worker, &unsafe { Call::read(param) }?)
    }

    /// Flushes a worker; deprecated (`ucp_compat.h`).
    fn ucp_worker_flush_nb(worker: *mut Worker, _flags: c_uint, cb: *const c_void) -> StatusPtr {
        let param = RequestParam::old(cb, BYTES);
        // SAFETY: the caller's contract.
        flush_worker(worker, &unsafe { Call::of(&param) })
    }

    /// Flushes a worker and waits.
    fn ucp_worker_flush(worker: *mut Worker) -> CStatus {
        // SAFETY: the parameters name nothing.
        let started = flush_worker(worker, &unsafe { Call::of(&NO_CALLBACK) })?;
        // SAFETY: the flush has just been started.
        unsafe { wait(checked(worker)?, started) }
    }

    /// Orders one-sided operations: later ones take effect after earlier ones to the same peer.
    fn ucp_worker_fence(worker: *mut Worker) -> CStatus {
        checked(worker)?.with_worker(ucp::Worker::fence)
    }
}
