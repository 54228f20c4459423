//! Local pieces of one-sided operations, any number of them.

#![allow(unsafe_code)]

use crate::api::core::error::Error;
use crate::api::core::requests::OpStatus;
use crate::api::data::iov::Iov;
use crate::api::data::start::{send_buf_of, with_recv_list, with_send_list};
use crate::api::worker::handle::Worker;

use crate::rdm::{Gather, RecvBuf, Scatter};
use crate::wire::MAX_IOV;

/// Starts an operation that reads `pieces`. A device takes up to [`MAX_IOV`] of them; more are a list, which
/// is kept until the operation ends.
/// # Safety
/// Unless `start` returns *done* or an error, every piece stays valid and unchanged until the operation ends.
pub(crate) unsafe fn with_gather<T>(
    worker: &Worker,
    pieces: &[Iov],
    start: impl FnOnce(Gather) -> Result<OpStatus<T>, Error>,
) -> Result<OpStatus<T>, Error> {
    if pieces.len() > MAX_IOV {
        // SAFETY: this function's contract.
        return unsafe { with_send_list(worker, pieces, |list| start(Gather::one(list))) };
    }
    let mut all = Gather::EMPTY;
    // SAFETY: this function's contract.
    let fits = pieces.iter().all(|piece| all.push(unsafe { send_buf_of(piece) }));
    if fits { start(all) } else { Err(Error::Invalid) }
}

/// Starts an operation that writes to `pieces`, as [`with_gather`] does.
/// # Safety
/// Unless `start` returns *done* or an error, every piece stays valid for writes, accessed by nobody else,
/// until the operation ends.
pub(crate) unsafe fn with_scatter<T>(
    worker: &Worker,
    pieces: &[Iov],
    start: impl FnOnce(Scatter) -> Result<OpStatus<T>, Error>,
) -> Result<OpStatus<T>, Error> {
    if pieces.len() > MAX_IOV {
        // SAFETY: this function's contract.
        return unsafe { with_recv_list(worker, pieces, |list| start(Scatter::one(list))) };
    }
    let mut all = Scatter::EMPTY;
    // SAFETY: this function's contract.
    let fits = pieces.iter().all(|piece| all.push(unsafe { RecvBuf::new(piece.addr, piece.len) }));
    if fits { start(all) } else { Err(Error::Invalid) }
}
