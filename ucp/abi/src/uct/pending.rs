//! Operations that wait for room: the program's request is kept beside the closure that tries it.

use std::ffi::{c_uint, c_void};

use ::ucs::Status;
use ::uct::api::{Ep as _, PendingQueued, Retry};

use super::ep::{Ep, checked_ep};
use super::types::{PendingReq, PurgeCallback};
use crate::entry::{CStatus, invalid};

operation! {
    /// Queues an operation. Busy: there is room now, and it was not queued.
    fn pending_add(ep: *mut Ep, request: *mut PendingReq, _flags: c_uint) -> CStatus {
        let ep = checked_ep(ep)?;
        // SAFETY: the caller passes a request, or null.
        let func = unsafe { request.as_ref() }.and_then(|request| request.func);
        let func = func.ok_or_else(|| invalid("uct_ep_pending_add: the request or its function is null"))?;
        let waiting = ep.pending.clone();
        let attempt = move || {
            // Anything but success keeps the request.
            // SAFETY: the program keeps the request until its function answers that it is done, or purges it.
            if unsafe { func(request) } != CStatus(0) {
                return Retry::NoResource;
            }
            let mut waiting = waiting.borrow_mut();
            if let Some(at) = waiting.iter().position(|queued| *queued == request) {
                waiting.remove(at);
            }
            Retry::Done
        };
        match ep.inner.pending_add(Box::new(attempt)) {
            Ok(PendingQueued::Queued) => {
                ep.pending.borrow_mut().push_back(request);
                Ok(())
            }
            Ok(PendingQueued::Busy) => Err(Status::Busy),
            Err(error) => Err(error.status()),
        }
    }

    /// Takes all waiting operations off the queue, in order, and hands each to the caller.
    fn pending_purge(ep: *mut Ep, call: Option<PurgeCallback>, arg: *mut c_void) {
        let ep = checked_ep(ep)?;
        ep.inner.pending_purge(&mut drop);
        let waiting = std::mem::take(&mut *ep.pending.borrow_mut());
        for request in waiting {
            if let Some(call) = call {
                // SAFETY: the function is the caller's, and the request was waiting.
                unsafe { call(request, arg) };
            }
        }
        Ok(())
    }
}
