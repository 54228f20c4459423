//! Starts of operations: the outcome of each becomes what the caller gets.

use std::cell::Cell;

use ::ucs::Status;
use ucp::{Callback, Error, OpStatus, RecvStatus, RequestId};

use super::Call;
use super::handle::{callback_of, handle_of, id_of, set_priv, worker_of};
use super::kind::{Kind, Message};
use crate::entry::{StatusPtr, invalid};
use crate::types::op_attr;
use crate::worker::Worker;

/// Called by progress when an operation with a callback has ended.
pub(super) unsafe fn on_end<K: Kind>(arg: *mut (), id: RequestId, ended: Result<RecvStatus, Error>) {
    let callback = callback_of(id);
    let status = ended.map_or_else(Error::status, |_| Status::Ok);
    // A truncated message keeps its tag in the request.
    let message = ended.ok().or_else(|| id.info()).unwrap_or(RecvStatus::EMPTY);
    // SAFETY: the caller's contract.
    unsafe { K::call(callback, handle_of(id), status, message, arg.cast()) };
}

/// Starts an operation with `start`, inside the worker's lock, and makes its outcome what the caller gets.
/// `truncated` has the message of [`Error::Truncated`].
/// # Safety
/// `start` starts at most one operation. What the operation uses stays valid until it has ended, by the
/// caller's contract.
pub(crate) unsafe fn run<K: Kind, M: Message>(
    worker: &Worker,
    plain: &ucp::Worker,
    call: &Call,
    truncated: Option<&Cell<RecvStatus>>,
    start: impl FnOnce(Option<Callback>) -> Result<OpStatus<M>, Error>,
) -> Result<StatusPtr, Status> {
    if call.mask & op_attr::REQUEST == 0 {
        return run_plain::<K, M>(worker, plain, call, truncated, start);
    }
    let memory = call.request_memory().ok_or_else(|| invalid("the request of the program is null"))?;
    let callback = call.callback();
    let in_memory = || match start(call.done::<K>(callback)) {
        Ok(OpStatus::InProgress(id)) => Ok(Ended::silent(StatusPtr(set_priv(id, worker, callback)))),
        ended => finish::<K>(worker, plain, call, truncated, ended.map(Message::ended)),
    };
    // SAFETY: the caller has `REQUEST_SIZE` bytes there for this operation.
    let ended = unsafe { plain.with_request_memory(memory, in_memory) }?;
    // The callback may free the memory, or start another operation in it.
    Ok(ended.notify::<K>(call))
}

/// [`run`] with a request of the library.
// HOT
#[inline(always)]
pub(crate) fn run_plain<K: Kind, M: Message>(
    worker: &Worker,
    plain: &ucp::Worker,
    call: &Call,
    truncated: Option<&Cell<RecvStatus>>,
    start: impl FnOnce(Option<Callback>) -> Result<OpStatus<M>, Error>,
) -> Result<StatusPtr, Status> {
    let callback = call.callback();
    match start(call.done::<K>(callback)) {
        Ok(OpStatus::InProgress(id)) => Ok(StatusPtr(set_priv(id, worker, callback))),
        Ok(OpStatus::Done(_)) if !call.reports_immediate_completion() => Ok(StatusPtr::OK),
        ended => finish_and_call::<K>(worker, plain, call, truncated, ended.map(Message::ended)),
    }
}

/// Outcome of a start: the value to return, and the callback to call before.
struct Ended {
    returned: StatusPtr,
    /// Arguments of the callback if it is called within the call.
    called: Option<(Status, RecvStatus)>,
}

impl Ended {
    /// No callback is called.
    fn silent(returned: StatusPtr) -> Ended {
        Ended { returned, called: None }
    }

    /// Calls the callback, if it is to be called. It may do anything with the request.
    fn notify<K: Kind>(self, call: &Call) -> StatusPtr {
        if let Some((status, message)) = self.called {
            // SAFETY: the parameters of an operation of this kind have such a callback.
            unsafe { K::call(call.callback(), self.returned.0, status, message, call.user_data()) };
        }
        self.returned
    }
}

/// [`finish`] of an operation whose request is the library's, and the callback.
#[inline(never)]
fn finish_and_call<K: Kind>(
    worker: &Worker,
    plain: &ucp::Worker,
    call: &Call,
    truncated: Option<&Cell<RecvStatus>>,
    ended: Result<RecvStatus, Error>,
) -> Result<StatusPtr, Status> {
    finish::<K>(worker, plain, call, truncated, ended).map(|ended| ended.notify::<K>(call))
}

/// Makes an operation that has ended in its call, or has not begun, what the caller gets.
fn finish<K: Kind>(
    worker: &Worker,
    plain: &ucp::Worker,
    call: &Call,
    truncated: Option<&Cell<RecvStatus>>,
    ended: Result<RecvStatus, Error>,
) -> Result<Ended, Status> {
    let in_callers_request = K::ENDS_IN_REQUEST && !call.request().is_null();
    let (message, error, began) = match ended {
        Ok(message) => (message, None, true),
        Err(error @ Error::Truncated { .. }) => {
            (truncated.map_or(RecvStatus::EMPTY, Cell::get), Some(error), true)
        }
        Err(error) => (RecvStatus::EMPTY, Some(error), false),
    };
    let returned = error.map_or(Ok(StatusPtr::OK), |error| Err(error.status()));
    if began {
        // SAFETY: the parameters of an operation of this kind name such memory, or none.
        unsafe { K::store(call.recv_info(), message) };
    }
    let is_called = call.always_request() && began;
    if !is_called && !in_callers_request {
        return returned.map(Ended::silent);
    }
    let callback = call.callback();
    let id = RequestId::ended(plain, message, error).map_err(Error::status)?;
    let handle = set_priv(id, worker, callback);
    if !is_called {
        return returned.map(Ended::silent);
    }
    let status = error.map_or(Status::Ok, Error::status);
    let called = (!callback.is_null()).then_some((status, message));
    Ok(Ended { returned: StatusPtr(handle), called })
}

/// Frees the request of a started operation, which a flush completes. Returns whether it still runs.
/// # Safety
/// `started` is no error, and nobody else has its request.
pub(crate) unsafe fn free_started(started: StatusPtr) -> Result<bool, Status> {
    if started == StatusPtr::OK {
        return Ok(false);
    }
    // SAFETY: this function's contract.
    let id = unsafe { id_of(started.0) }?;
    worker_of(id)?.with_worker(|plain| plain.free(id)).map(|()| true)
}
