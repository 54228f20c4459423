//! Puts and gets of lists: each piece has a place of its own in the peer's memory, and one request ends with
//! the last of them.

#![allow(unsafe_code)]

use crate::api::core::error::Error;
use crate::api::core::requests::{EMPTY_STATUS, OpStatus};
use crate::api::data::params::check_mem;
use crate::api::ep::handle::Ep;
use crate::api::rma::many::{running, start_group};
use crate::api::rma::now::{RmaPiece, get_list_now_raw, put_list_now_raw};
use crate::api::rma::params::RmaParams;

use crate::rdm::{Access, RecvStatus};

/// Checks all pieces before the first one begins. Returns the bytes of all.
fn check<'a>(ep: &Ep, mut pieces: impl Iterator<Item = RmaPiece<'a>>, need: Access) -> Result<usize, Error> {
    pieces.try_fold(0_usize, |sum, piece| {
        check_mem(piece.mem, piece.local.addr, piece.local.len)?;
        if !piece.rkey.covers(piece.remote, piece.local.len as u64, need) {
            return Err(Error::RemoteAccess(ep.peer()));
        }
        sum.checked_add(piece.local.len).ok_or(Error::Invalid)
    })
}

/// Writes the pieces of a list, each to its own place in the peer's memory, in any order. The request ends
/// when all buffers may be reused, or with the first error. `params.mem` is not used. `cq_data` is refused
/// ([`Error::Invalid`]).
///
/// Keys, ranges and memory handles are checked before the first piece begins; a packet key
/// ([`Rkey::from_key`](crate::Rkey::from_key)) is checked by the peer. Any other error, also one of the call,
/// leaves open which pieces were written. A cancel of the request cancels the pieces of which nothing has
/// gone out, and the request ends when the others have. The iterator is cloned.
/// # Safety
/// As for [`Ep::put_raw`], for every piece.
pub unsafe fn put_list_raw<'a>(
    ep: &Ep,
    pieces: impl Iterator<Item = RmaPiece<'a>> + Clone,
    params: &RmaParams,
) -> Result<OpStatus<()>, Error> {
    if params.cq_data.is_some() {
        return Err(Error::Invalid);
    }
    let len = check(ep, pieces.clone(), Access::WRITE)?;
    // SAFETY: the caller passes readable bytes.
    if unsafe { put_list_now_raw(ep, pieces.clone()) } {
        return Ok(OpStatus::Done(()));
    }
    let start = |of: RmaPiece<'a>, params: &RmaParams<'_>| {
        let params = RmaParams { mem: of.mem, ..*params };
        // SAFETY: this function's contract.
        let started = unsafe { ep.put_raw(of.local.addr, of.local.len, of.remote, of.rkey, &params) };
        started.map(running)
    };
    // SAFETY: this function's contract.
    Ok(match unsafe { start_group(ep, len, params, pieces, start) }? {
        OpStatus::Done(_) => OpStatus::Done(()),
        OpStatus::InProgress(id) => OpStatus::InProgress(id),
    })
}

/// Reads the pieces of a list, each from its own place in the peer's memory, in any order. The request ends
/// when all have arrived, or with the first error, and its status has the bytes of all. `params.mem` is not
/// used. Errors and cancels are as those of [`put_list_raw`].
/// # Safety
/// As for [`Ep::get_raw`], for every piece.
pub unsafe fn get_list_raw<'a>(
    ep: &Ep,
    pieces: impl Iterator<Item = RmaPiece<'a>> + Clone,
    params: &RmaParams,
) -> Result<OpStatus<RecvStatus>, Error> {
    let len = check(ep, pieces.clone(), Access::READ)?;
    // SAFETY: the caller passes writable bytes.
    if unsafe { get_list_now_raw(ep, pieces.clone()) } {
        return Ok(OpStatus::Done(RecvStatus { len, ..EMPTY_STATUS }));
    }
    let start = |of: RmaPiece<'a>, params: &RmaParams<'_>| {
        let params = RmaParams { mem: of.mem, ..*params };
        // SAFETY: this function's contract.
        let started = unsafe { ep.get_raw(of.local.addr, of.local.len, of.remote, of.rkey, &params) };
        started.map(running)
    };
    // SAFETY: this function's contract.
    unsafe { start_group(ep, len, params, pieces, start) }
}
