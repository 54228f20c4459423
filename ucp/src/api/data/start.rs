//! How operations on data of a [`Layout`] start, and what is kept until they end.

#![allow(unsafe_code)]

use std::ptr::NonNull;

use crate::api::core::error::Error;
use crate::api::core::requests::{Callback, OpStatus};
use crate::api::core::staging::Staged;
use crate::api::data::iov::Iov;
use crate::api::data::ops::{DataOp, DataState};
use crate::api::data::params::OpParams;
use crate::api::data::raw::{CallbackData, Data, Generic, Layout};
use crate::api::data::strided::StridedIov;
use crate::api::data::view::RecvView;
use crate::api::worker::handle::Worker;

use crate::rdm::{GenericData, RecvBuf, RecvList, SendBuf};

/// Piece of data to be sent. Safety: as for [`SendBuf::new`].
pub(crate) unsafe fn send_buf_of(piece: &Iov) -> SendBuf {
    // SAFETY: this function's contract.
    unsafe { SendBuf::new(piece.addr, piece.len) }
}

/// Starts a send of `data`, and keeps what the engine needs until it ends. [`Error::Invalid`] if the sum of
/// lengths overflows.
/// # Safety
/// Unless `start` returns *done* or an error, the bytes of every piece stay valid and unchanged until the
/// operation ends, callbacks may be called with their state as long, and `params.done` may be called with its
/// argument.
pub(crate) unsafe fn with_send_data(
    worker: &Worker,
    data: Layout<'_>,
    params: &OpParams<'_>,
    start: impl FnOnce(SendBuf, Option<Callback>) -> Result<OpStatus<()>, Error>,
) -> Result<OpStatus<()>, Error> {
    match data.data_in(params.mem)? {
        // SAFETY: this function's contract.
        Data::Bytes(at, len) => start(unsafe { SendBuf::new(at, len) }, params.done),
        // SAFETY: as above.
        Data::Pieces(pieces) => unsafe { with_send_list(worker, pieces, |buf| start(buf, params.done)) },
        Data::Callbacks(data) => {
            let start = |op: &DataOp, done| {
                // SAFETY: `with_callbacks` keeps the data until the operation ends.
                unsafe { send_generic(op.bound.data(), |buf| start(buf, Some(done))) }
            };
            // SAFETY: as above.
            unsafe { with_callbacks(worker, data, params.done, start) }
        }
    }
}

/// Starts an operation that reads `pieces`, and keeps their list until it ends. [`Error::Invalid`] if the sum
/// of lengths overflows.
/// # Safety
/// As for [`with_send_data`], of every piece.
pub(crate) unsafe fn with_send_list<T>(
    worker: &Worker,
    pieces: &[Iov],
    start: impl FnOnce(SendBuf) -> Result<OpStatus<T>, Error>,
) -> Result<OpStatus<T>, Error> {
    // SAFETY: this function's contract.
    let list = pieces.iter().map(|piece| unsafe { send_buf_of(piece) });
    // SAFETY: as above.
    let staged = unsafe { worker.inner.staging.stage(&[], list) };
    with_staged(worker, staged, start)
}

/// Starts a send of data that callbacks pack. A failed callback fails what has ended within the call.
/// # Safety
/// Unless `start` returns *done* or an error, `data` stays valid until the operation ends.
#[inline(never)]
pub(crate) unsafe fn send_generic(
    data: NonNull<GenericData>,
    start: impl FnOnce(SendBuf) -> Result<OpStatus<()>, Error>,
) -> Result<OpStatus<()>, Error> {
    // SAFETY: this function's contract.
    let data = unsafe { data.as_ref() };
    // SAFETY: as above.
    let started = start(unsafe { SendBuf::of_generic(data) });
    match (started, data.error()) {
        (Ok(OpStatus::Done(())), Some(error)) => Err(Error::Datatype(error)),
        (started, _) => started,
    }
}

/// Starts a send of a copy of `header`, then `data`.
/// # Safety
/// Unless `start` returns *done* or an error, `data` stays valid until the operation ends.
#[inline(never)]
pub(crate) unsafe fn with_header(
    worker: &Worker,
    header: &[u8],
    data: SendBuf,
    start: impl FnOnce(SendBuf) -> Result<OpStatus<()>, Error>,
) -> Result<OpStatus<()>, Error> {
    // SAFETY: this function's contract.
    let staged = unsafe { worker.inner.staging.stage(header, [data].into_iter()) };
    with_staged(worker, staged, start)
}

/// Starts an operation that reads `staged`, and keeps `staged` until it ends.
fn with_staged<T>(
    worker: &Worker,
    staged: Staged,
    start: impl FnOnce(SendBuf) -> Result<OpStatus<T>, Error>,
) -> Result<OpStatus<T>, Error> {
    let started = staged.buf().ok_or(Error::Invalid).and_then(start);
    match started {
        Ok(OpStatus::InProgress(id)) => {
            let core = worker.core();
            worker.inner.staging.keep(id, staged, |id| core.reqs.is_running(id));
        }
        _ => worker.inner.staging.recycle(staged),
    }
    started
}

/// Starts a receive into `data`, and keeps what the engine needs until it ends.
/// # Safety
/// Unless `start` returns *done* or an error, the memory of every piece stays valid for writes until the
/// operation ends, is used only by receives of this worker, callbacks may be called with their state as long,
/// and `params.done` may be called with its argument.
pub(crate) unsafe fn with_recv_data<T>(
    worker: &Worker,
    data: Layout<'_>,
    params: &OpParams<'_>,
    start: impl FnOnce(RecvBuf, Option<Callback>) -> Result<OpStatus<T>, Error>,
) -> Result<OpStatus<T>, Error> {
    match data.data_in(params.mem)? {
        // SAFETY: this function's contract.
        Data::Bytes(at, len) => start(unsafe { RecvBuf::new(at, len) }, params.done),
        // SAFETY: as above.
        Data::Pieces(pieces) => unsafe { with_recv_list(worker, pieces, |buf| start(buf, params.done)) },
        Data::Callbacks(data) => {
            // SAFETY: as above.
            let list = |op: &DataOp| unsafe { RecvView::List(op.bound.list()).buf() };
            // SAFETY: as above.
            unsafe { with_callbacks(worker, data, params.done, |op, done| start(list(op), Some(done))) }
        }
    }
}

/// Starts an operation that writes to `pieces`, and keeps their list until it ends.
/// # Safety
/// As for [`with_recv_data`], of every piece.
pub(crate) unsafe fn with_recv_list<T>(
    worker: &Worker,
    pieces: &[Iov],
    start: impl FnOnce(RecvBuf) -> Result<OpStatus<T>, Error>,
) -> Result<OpStatus<T>, Error> {
    let lists = &worker.inner.recv_lists;
    let mut list = lists.take();
    // SAFETY: this function's contract.
    let built = unsafe { build_list(&mut list, pieces) };
    // SAFETY: as above; the list is boxed and kept until the operation's end.
    let started = built.and_then(|()| start(unsafe { RecvBuf::of_list(&list) }));
    match started {
        Ok(OpStatus::InProgress(id)) => {
            let core = worker.core();
            lists.keep(id, list, |id| core.reqs.is_running(id));
        }
        _ => lists.recycle(list),
    }
    started
}

/// Sets `list` to `pieces`, if the sum of their lengths does not overflow. Safety: as for [`RecvBuf::new`].
pub(crate) unsafe fn build_list(list: &mut RecvList, pieces: &[Iov]) -> Result<(), Error> {
    // SAFETY: this function's contract.
    let bufs = pieces.iter().map(|piece| unsafe { RecvBuf::new(piece.addr, piece.len) });
    if list.fill(bufs) { Ok(()) } else { Err(Error::Invalid) }
}

/// Starts an operation on data with callbacks, and finishes the data when it ends.
/// # Safety
/// Unless the call returns *done* or an error, the callbacks may be called with the state, or the blocks be
/// accessed, until the operation ends, and `done` may be called with its argument.
unsafe fn with_callbacks<T>(
    worker: &Worker,
    data: CallbackData,
    done: Option<Callback>,
    start: impl FnOnce(&DataOp, Callback) -> Result<OpStatus<T>, Error>,
) -> Result<OpStatus<T>, Error> {
    let (ops, state, len) = match data {
        CallbackData::Generic(Generic { ops, state, len }) => (ops, DataState::Generic(state), len),
        CallbackData::Strided(blocks) => (StridedIov::OPS, DataState::Strided(blocks), blocks.packed_size()?),
    };
    let data_ops = &worker.inner.data_ops;
    // SAFETY: this function's contract; the worker drops its data after the engine.
    let (op, done): (NonNull<DataOp>, Callback) = unsafe { data_ops.begin(ops, state, len, done) };
    // SAFETY: it has just begun, and is not ended before `start` returns.
    let started = start(unsafe { op.as_ref() }, done);
    if let Ok(OpStatus::InProgress(_)) = started {
        return started;
    }
    // SAFETY: the operation has ended within the call, or not begun.
    unsafe { data_ops.end(op) };
    started
}
