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
use crate::handle::from_ptr;

/// Pieces of local memory, as the crate has them.
type Piece<'m> = api::Iov<'m, any::Mem>;

/// Checks an active message id: UCX has 32.
// HOT
#[inline(always)]
fn check_id(id: u8) -> Result<(), Status> {
    if usize::from(id) < AM_IDS { Ok(()) } else { Err(invalid("no such id of active messages")) }
}

/// A list of the caller.
/// # Safety
/// `iov` is null or has this many pieces, while the result is used.
// HOT
#[inline(always)]
unsafe fn list_of<'a>(iov: *const Iov, count: usize) -> Result<&'a [Iov], Status> {
    match (iov.is_null(), count) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(invalid("the buffer is null")),
        (_, count) if count > MAX_IOV => Err(Status::ExceedsLimit),
        // SAFETY: this function's contract.
        (false, _) => Ok(unsafe { std::slice::from_raw_parts(iov, count) }),
    }
}

/// A piece of local memory.
/// # Safety
/// Its memory handle is null or live while the result is used.
// HOT
#[inline(always)]
unsafe fn piece_of<'m>(piece: &Iov) -> Result<Piece<'m>, Status> {
    // SAFETY: this function's contract.
    let mem = if piece.memh.is_null() { None } else { Some(&unsafe { from_ptr(piece.memh) }?.mem) };
    let count = piece.count.max(1) as usize;
    let len = if piece.count == 0 { 0 } else { piece.length };
    Ok(api::Iov { addr: piece.buffer.cast(), len, stride: piece.stride, count, mem })
}

/// Starts an operation on a list of local memory: mostly it is one piece.
/// # Safety
/// As for [`list_of`] and [`piece_of`], during the call.
// HOT
#[inline(always)]
pub(super) unsafe fn with_pieces(
    iov: *const Iov,
    count: usize,
    start: impl FnOnce(&[Piece<'_>]) -> Outcome,
) -> Result<(), Status> {
    // SAFETY: this function's contract.
    match unsafe { list_of(iov, count) }? {
        // SAFETY: as above.
        [piece] => answer(start(&[unsafe { piece_of(piece) }?])),
        list => {
            let mut pieces = [Piece::new(std::ptr::null(), 0, None); MAX_IOV];
            for (to, from) in pieces.iter_mut().zip(list) {
                // SAFETY: as above.
                *to = unsafe { piece_of(from) }?;
            }
            answer(start(&pieces[..list.len()]))
        }
    }
}

/// Calls the caller's function to write into a buffer. Returns how much it says that it has written.
/// # Safety
/// The function may be called with `arg`, and writes no more than `slot` has room for.
// HOT
#[inline(always)]
pub(super) unsafe fn pack(call: PackCallback, arg: *mut c_void, slot: &mut [u8]) -> usize {
    // SAFETY: this function's contract.
    unsafe { call(slot.as_mut_ptr().cast(), arg) }
}

operation! {
    /// Sends a word and bytes.
    // HOT
    fn am_short(ep: *mut Ep, id: u8, header: u64, payload: *const c_void, length: c_uint) -> CStatus {
        check_id(id)?;
        // SAFETY: the caller's contract.
        let (ep, payload) = unsafe { (from_ptr(ep)?, bytes(payload, length as usize)?) };
        answer(ep.inner.am_short(id, header, payload))
    }

    /// Sends a list of bytes.
    fn am_short_iov(ep: *mut Ep, id: u8, iov: *const Iov, count: usize) -> CStatus {
        check_id(id)?;
        // SAFETY: the caller's contract.
        let list = unsafe { list_of(iov, count) }?;
        let mut pieces: [&[u8]; MAX_IOV] = [&[]; MAX_IOV];
        for (to, from) in pieces.iter_mut().zip(list) {
            // SAFETY: as above.
            let piece = unsafe { piece_of(from) }?;
            let (at, length) = piece.contiguous().ok_or_else(|| {
                tracing::error!("uct_ep_am_short_iov: pieces with a stride are not supported");
                Status::Unsupported
            })?;
            // SAFETY: as above.
            *to = unsafe { bytes(at.cast_const().cast(), length) }?;
        }
        // SAFETY: as above.
        answer(unsafe { from_ptr(ep) }?.inner.am_short_iov(id, &pieces[..list.len()]))
    }

    /// Sends what a function of the caller writes.
    // HOT
    fn am_bcopy(
        ep: *mut Ep, id: u8, call: Option<PackCallback>, arg: *mut c_void, _flags: c_uint,
    ) -> isize {
        check_id(id)?;
        let call = call.ok_or_else(|| invalid("the function that packs is null"))?;
        // SAFETY: the caller's contract: its function writes no more than the attributes allow, for which a
        // slot has room.
        answer_length(unsafe { from_ptr(ep)?.inner.am_bcopy(id, |slot| pack(call, arg, slot)) })
    }

    /// Sends a header and memory of the caller, which is read in place.
    fn am_zcopy(
        ep: *mut Ep, id: u8, header: *const c_void, header_length: c_uint, iov: *const Iov, count: usize,
        _flags: c_uint, completion: *mut Completion,
    ) -> CStatus {
        check_id(id)?;
        // SAFETY: the caller's contract.
        unsafe {
            let (ep, header) = (from_ptr(ep)?, bytes(header, header_length as usize)?);
            with_pieces(iov, count, |pieces| ep.inner.am_zcopy(id, header, pieces, comp_of(completion)))
        }
    }
}
