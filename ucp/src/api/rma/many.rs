//! Puts and gets of more pieces than one operation takes: several operations, and one request for all.

#![allow(unsafe_code)]

use std::cell::Cell;
use std::rc::{Rc, Weak};

use crate::api::core::error::Error;
use crate::api::core::requests::{Callback, EMPTY_STATUS, OpStatus, RequestId, Role};
use crate::api::data::iov::Iov;
use crate::api::ep::handle::Ep;
use crate::api::rma::params::{RemoteIov, RmaParams};
use crate::api::worker::handle::{Inner, Worker};

use crate::rdm::RecvStatus;
use crate::wire::MAX_IOV;

/// Operations that end one request.
struct Group {
    worker: Weak<Inner>,
    request: RequestId,
    /// Operations that run, and the call that starts them.
    left: Cell<usize>,
    result: Cell<Result<(), Error>>,
    /// Bytes of all.
    len: usize,
}

impl Group {
    /// Notes the end of an operation. The last one gives the result of all.
    fn end_one(&self, result: Result<(), Error>) -> Option<Result<RecvStatus, Error>> {
        self.result.set(self.result.get().and(result));
        self.left.set(self.left.get() - 1);
        (self.left.get() == 0)
            .then(|| self.result.get().map(|()| RecvStatus { len: self.len, ..EMPTY_STATUS }))
    }
}

/// Called by progress at the end of one operation of a group, which `arg` owns a count of.
unsafe fn on_end(arg: *mut (), id: RequestId, ended: Result<RecvStatus, Error>) {
    // SAFETY: `start_group` made the count for this call.
    let group = unsafe { Rc::from_raw(arg.cast_const().cast::<Group>()) };
    let Some(inner) = group.worker.upgrade() else { return };
    let worker = Worker { inner };
    worker.core().reqs.end_part(id);
    worker.free(id);
    if let Some(ended) = group.end_one(ended.map(drop)) {
        let action = worker.core().reqs.complete(group.request, ended);
        if let Some(action) = action {
            worker.inner.run(action);
        }
    }
}

/// Request of a part that runs.
pub(crate) fn running<T>(started: OpStatus<T>) -> Option<RequestId> {
    if let OpStatus::InProgress(id) = started { Some(id) } else { None }
}

/// Starts an operation by `start` for each part, which returns its request if it runs. One request ends with
/// the last of them, with the first error, and `len` is the bytes of all. An error stops the start of further
/// ones.
/// # Safety
/// As for [`Ep::put_raw`], for every part.
pub(crate) unsafe fn start_group<T>(
    ep: &Ep,
    len: usize,
    params: &RmaParams<'_>,
    parts: impl Iterator<Item = T>,
    start: impl Fn(T, &RmaParams<'_>) -> Result<Option<RequestId>, Error>,
) -> Result<OpStatus<RecvStatus>, Error> {
    let worker = ep.worker();
    let request = {
        let mut core = worker.core();
        let token = core.reqs.next_token()?;
        core.reqs.start(token, Role::Announced, params.done)
    };
    let (result, weak) = (Cell::new(Ok(())), Rc::downgrade(&worker.inner));
    let group = Rc::new(Group { worker: weak, request, left: Cell::new(1), result, len });
    for part in parts {
        let arg = Rc::into_raw(group.clone());
        group.left.set(group.left.get() + 1);
        let done = Some(Callback::new(on_end, arg.cast_mut().cast()));
        let started = start(part, &RmaParams { done, ..*params });
        if let Ok(Some(part)) = started {
            worker.core().reqs.set_part(part, request);
            continue;
        }
        // SAFETY: the callback is not called for what has ended in the call.
        drop(unsafe { Rc::from_raw(arg) });
        group.end_one(started.map(drop));
        if started.is_err() {
            break;
        }
    }
    match group.end_one(Ok(())) {
        None => Ok(OpStatus::InProgress(request)),
        Some(ended) => {
            worker.core().reqs.end_in_call(request);
            ended.map(OpStatus::Done)
        }
    }
}

/// Starts operations by `start`, each on a part of the pieces and on the part of the peer's memory that
/// belongs to it, as [`start_group`] does.
/// # Safety
/// As for [`Ep::put_raw`], for every piece.
pub(crate) unsafe fn start_many(
    ep: &Ep,
    local: &[Iov],
    remote: &RemoteIov<'_>,
    params: &RmaParams<'_>,
    start: impl Fn(&[Iov], &RemoteIov<'_>, &RmaParams<'_>) -> Result<Option<RequestId>, Error>,
) -> Result<OpStatus<RecvStatus>, Error> {
    if total(local) != Some(remote.len) {
        return Err(Error::Invalid);
    }
    let parts = local.chunks(MAX_IOV).scan(remote.addr, |at, part| {
        let piece = RemoteIov { addr: *at, len: total(part)?, ..*remote };
        *at = at.wrapping_add(piece.len as u64);
        Some((part, piece))
    });
    // SAFETY: this function's contract.
    unsafe { start_group(ep, remote.len, params, parts, |(part, at), params| start(part, &at, params)) }
}

/// Bytes of all pieces, if there is a number for them.
pub(crate) fn total(pieces: &[Iov]) -> Option<usize> {
    pieces.iter().try_fold(0_usize, |sum, piece| sum.checked_add(piece.len))
}
