//! Puts and gets of more pieces than one operation takes: several operations, and one request for all.

#![allow(unsafe_code)]

use std::rc::Rc;

use crate::api::core::error::Error;
use crate::api::core::groups::Group;
use crate::api::core::requests::{Callback, OpStatus, RequestId, Role};
use crate::api::data::iov::Iov;
use crate::api::ep::handle::Ep;
use crate::api::rma::params::{RemoteIov, RmaParams};
use crate::api::worker::handle::WeakWorker;

use crate::rdm::RecvStatus;
use crate::wire::MAX_IOV;

/// Called by progress at the end of one operation of a group, which `arg` is.
unsafe fn on_end(arg: *mut (), id: RequestId, ended: Result<RecvStatus, Error>) {
    // SAFETY: progress of the worker calls this, which owns the group.
    let group = unsafe { &*arg.cast_const().cast::<Group<WeakWorker>>() };
    let Some(worker) = group.worker.upgrade() else { return };
    worker.core().reqs.end_part(id);
    worker.free(id);
    if let Some((request, ended)) = worker.inner.groups.end_one(group, ended.map(drop)) {
        let action = worker.core().reqs.complete(request, ended);
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
/// ones. A cancel of the request cancels those of which nothing has gone out.
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
        core.reqs.start(token, Role::Group, params.done)
    };
    let groups = &worker.inner.groups;
    let group = groups.take(request, len, || worker.downgrade());
    let done = Some(Callback::new(on_end, Rc::as_ptr(&group).cast_mut().cast()));
    for part in parts {
        group.begin_one();
        let started = start(part, &RmaParams { done, ..*params });
        if let Ok(Some(part)) = started {
            worker.core().reqs.set_part(part, request);
            continue;
        }
        groups.end_one(&group, started.map(drop));
        if started.is_err() {
            break;
        }
    }
    match groups.end_one(&group, Ok(())) {
        None => Ok(OpStatus::InProgress(request)),
        Some((_, ended)) => {
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
