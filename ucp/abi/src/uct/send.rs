//! Active messages, and lists of local memory.

use std::ffi::{c_uint, c_void};

use ::ucs::Status;
use ::uct::any;
use ::uct::api::{self, Ep as _, Outcome};

use super::attr::MAX_IOV;
use super::ep::Ep;
use super::progress::comp_of;
use super::types::{AM_IDS, Completion, Iov, PackCallback};
use super::{answer, answer_length, bytes};
use crate::entry::{CStatus, invalid};
use crate::handle::given;

/// Pieces of local memory, as the crate has them.
type Piece<'m> = api::Iov<'m, any::Mem>;

/// Checks an active message id: UCX has 32. // HOT
#[inline(always)]
fn check_id(id: u8) -> Result<(), Status> {
    if usize::from(id) < AM_IDS { Ok(()) } else { Err(invalid("no such id of active messages")) }
}

/// A list of the caller. // HOT
#[inline(always)]
fn list_of<'a>(iov: *const Iov, count: usize) -> Result<&'a [Iov], Status> {
    match (iov.is_null(), count) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(invalid("the buffer is null")),
        (_, count) if count > MAX_IOV => Err(Status::ExceedsLimit),
        // SAFETY: the caller passes this many pieces.
        (false, _) => Ok(unsafe { std::slice::from_raw_parts(iov, count) }),
    }
}

// HOT
#[inline(always)]
fn piece_of<'m>(piece: &Iov) -> Result<Piece<'m>, Status> {
    let mem = if piece.memh.is_null() { None } else { Some(&given(piece.memh)?.mem) };
    let count = piece.count.max(1) as usize;
    let len = if piece.count == 0 { 0 } else { piece.length };
    Ok(api::Iov { addr: piece.buffer.cast(), len, stride: piece.stride, count, mem })
}

/// Starts an operation on a list of local memory: mostly it is one piece. // HOT
#[inline(always)]
pub(super) fn with_pieces(
    iov: *const Iov,
    count: usize,
    start: impl FnOnce(&[Piece<'_>]) -> Outcome,
) -> Result<(), Status> {
    match list_of(iov, count)? {
        [piece] => answer(start(&[piece_of(piece)?])),
        list => {
            let mut pieces = [Piece::new(std::ptr::null(), 0, None); MAX_IOV];
            for (to, from) in pieces.iter_mut().zip(list) {
                *to = piece_of(from)?;
            }
            answer(start(&pieces[..list.len()]))
        }
    }
}

/// Calls the caller's function to write into a buffer. Returns how much it says that it has written.
/// // HOT
#[inline(always)]
pub(super) fn pack(call: PackCallback, arg: *mut c_void, slot: &mut [u8]) -> usize {
    // SAFETY: the caller's function writes no more than the attributes allow, for which there is room.
    unsafe { call(slot.as_mut_ptr().cast(), arg) }
}

operation! {
    /// Sends a word and bytes. // HOT
    fn am_short(ep: *mut Ep, id: u8, header: u64, payload: *const c_void, length: c_uint) -> CStatus {
        check_id(id)?;
        answer(given(ep)?.inner.am_short(id, header, bytes(payload, length as usize)?))
    }

    /// Sends a list of bytes.
    fn am_short_iov(ep: *mut Ep, id: u8, iov: *const Iov, count: usize) -> CStatus {
        check_id(id)?;
        let list = list_of(iov, count)?;
        let mut pieces: [&[u8]; MAX_IOV] = [&[]; MAX_IOV];
        for (to, from) in pieces.iter_mut().zip(list) {
            let piece = piece_of(from)?;
            let (at, length) = piece.contiguous().ok_or_else(|| {
                tracing::error!("uct_ep_am_short_iov: pieces with a stride are not supported");
                Status::Unsupported
            })?;
            *to = bytes(at.cast_const().cast(), length)?;
        }
        answer(given(ep)?.inner.am_short_iov(id, &pieces[..list.len()]))
    }

    /// Sends what a function of the caller writes. // HOT
    fn am_bcopy(
        ep: *mut Ep, id: u8, call: Option<PackCallback>, arg: *mut c_void, _flags: c_uint,
    ) -> isize {
        check_id(id)?;
        let call = call.ok_or_else(|| invalid("the function that packs is null"))?;
        answer_length(given(ep)?.inner.am_bcopy(id, |slot| pack(call, arg, slot)))
    }

    /// Sends a header and memory of the caller, which is read in place.
    fn am_zcopy(
        ep: *mut Ep, id: u8, header: *const c_void, header_length: c_uint, iov: *const Iov, count: usize,
        _flags: c_uint, completion: *mut Completion,
    ) -> CStatus {
        check_id(id)?;
        let ep = given(ep)?;
        let header = bytes(header, header_length as usize)?;
        with_pieces(iov, count, |pieces| {
            // SAFETY: the caller keeps the memory until the operation has ended.
            unsafe { ep.inner.am_zcopy(id, header, pieces, comp_of(completion)) }
        })
    }
}
