//! Puts and gets.

use std::ffi::{c_uint, c_void};

use ::ucs::Status;
use ::uct::api::{Ep as _, Iface as _, Rkey as _};

use super::attr::MAX_BCOPY;
use super::ep::Ep;
use super::progress::comp_of;
use super::rkey::rkey_of;
use super::send::{pack, with_pieces};
use super::types::{Completion, Iov, PackCallback, UnpackCallback};
use super::{answer, answer_length, bytes};
use crate::entry::{CStatus, invalid};
use crate::handle::from_ptr;

operation! {
    /// Writes bytes.
    // HOT
    fn put_short(ep: *mut Ep, buffer: *const c_void, length: c_uint, remote: u64, rkey: usize) -> CStatus {
        // SAFETY: the caller's contract.
        let ep = unsafe { from_ptr(ep) }?;
        // SAFETY: as above.
        let rkey = unsafe { rkey_of(rkey, ep.iface()) }?;
        // SAFETY: as above.
        answer(ep.inner.put_short(unsafe { bytes(buffer, length as usize) }?, remote, rkey))
    }

    /// Writes what a function of the caller writes. It does not say how long that will be: if the key covers
    /// less than the limit, it writes beside, and what fits is copied.
    fn put_bcopy(
        ep: *mut Ep, call: Option<PackCallback>, arg: *mut c_void, remote: u64, rkey: usize,
    ) -> isize {
        // SAFETY: the caller's contract.
        let ep = unsafe { from_ptr(ep) }?;
        let call = call.ok_or_else(|| invalid("the function that packs or unpacks is null"))?;
        let iface = ep.iface();
        // SAFETY: as above.
        let rkey = unsafe { rkey_of(rkey, iface) }?;
        let max = iface.inner.attr().put.max_bcopy.min(MAX_BCOPY);
        let (start, len) = rkey.range();
        let left = remote.checked_sub(start).and_then(|offset| (len as u64).checked_sub(offset));
        let left = left.filter(|left| *left > 0).ok_or(Status::Rejected)?;
        if left >= max as u64 {
            // SAFETY: the caller's function writes no more than the attributes allow: there is room.
            let packed = |slot: &mut [u8]| unsafe { pack(call, arg, slot) };
            return answer_length(ep.inner.put_bcopy(max, packed, remote, rkey));
        }
        let beside = |slot: &mut [u8]| {
            let mut scratch = iface.scratch.take();
            scratch.resize(MAX_BCOPY, 0);
            // SAFETY: as above.
            let length = unsafe { pack(call, arg, &mut scratch) };
            if let (Some(to), Some(from)) = (slot.get_mut(..length), scratch.get(..length)) {
                to.copy_from_slice(from);
            }
            iface.scratch.replace(scratch);
            length
        };
        answer_length(ep.inner.put_bcopy(left as usize, beside, remote, rkey))
    }

    /// Writes memory of the caller.
    fn put_zcopy(
        ep: *mut Ep, iov: *const Iov, count: usize, remote: u64, rkey: usize, completion: *mut Completion,
    ) -> CStatus {
        // SAFETY: the caller's contract.
        let ep = unsafe { from_ptr(ep) }?;
        // SAFETY: as above.
        let rkey = unsafe { rkey_of(rkey, ep.iface()) }?;
        // SAFETY: as above: the caller keeps the memory until the operation has ended.
        unsafe {
            with_pieces(iov, count, |pieces| ep.inner.put_zcopy(pieces, remote, rkey, comp_of(completion)))
        }
    }

    /// Reads bytes within the call.
    fn get_short(ep: *mut Ep, buffer: *mut c_void, length: c_uint, remote: u64, rkey: usize) -> CStatus {
        // SAFETY: the caller's contract.
        let ep = unsafe { from_ptr(ep) }?;
        // SAFETY: as above.
        let rkey = unsafe { rkey_of(rkey, ep.iface()) }?;
        if buffer.is_null() && length > 0 {
            return Err(invalid("uct_ep_get_short: the buffer is null"));
        }
        let out = if length == 0 {
            &mut []
        } else {
            // SAFETY: the caller passes this many bytes, which nobody else uses during the call.
            unsafe { std::slice::from_raw_parts_mut(buffer.cast::<u8>(), length as usize) }
        };
        answer(ep.inner.get_short(out, remote, rkey))
    }

    /// Reads bytes, and hands them to a function of the caller, now or from progress.
    fn get_bcopy(
        ep: *mut Ep, call: Option<UnpackCallback>, arg: *mut c_void, length: usize, remote: u64, rkey: usize,
        completion: *mut Completion,
    ) -> CStatus {
        // SAFETY: the caller's contract.
        let ep = unsafe { from_ptr(ep) }?;
        let call = call.ok_or_else(|| invalid("the function that packs or unpacks is null"))?;
        // SAFETY: as above.
        let rkey = unsafe { rkey_of(rkey, ep.iface()) }?;
        // SAFETY: the function and its argument are the caller's, and valid until the operation has ended.
        let unpack = move |data: &[u8]| unsafe { call(arg, data.as_ptr().cast(), data.len()) };
        // SAFETY: as above.
        answer(ep.inner.get_bcopy(length, unpack, remote, rkey, unsafe { comp_of(completion) }))
    }

    /// Reads into memory of the caller.
    fn get_zcopy(
        ep: *mut Ep, iov: *const Iov, count: usize, remote: u64, rkey: usize, completion: *mut Completion,
    ) -> CStatus {
        // SAFETY: the caller's contract.
        let ep = unsafe { from_ptr(ep) }?;
        // SAFETY: as above.
        let rkey = unsafe { rkey_of(rkey, ep.iface()) }?;
        // SAFETY: as above: the caller keeps the memory for this operation alone until it ends.
        unsafe {
            with_pieces(iov, count, |pieces| ep.inner.get_zcopy(pieces, remote, rkey, comp_of(completion)))
        }
    }
}
