//! Atomics on 32 and 64 bits.

use std::ffi::c_uint;
use std::ptr::NonNull;

use ::ucs::Status;
use ::uct::api::{AtomicOp, Ep as _, Word};

use super::answer;
use super::ep::Ep;
use super::progress::comp_of;
use super::rkey::rkey_of;
use super::types::Completion;
use crate::entry::{CStatus, invalid};
use crate::handle::from_ptr;

/// The operation with one operand that has a number of `uct_atomic_op_t`.
// HOT
#[inline(always)]
fn op_of(number: c_uint) -> Result<AtomicOp, Status> {
    const OPS: [AtomicOp; 5] = [AtomicOp::Add, AtomicOp::And, AtomicOp::Or, AtomicOp::Xor, AtomicOp::Swap];
    OPS.get(number as usize).copied().ok_or_else(|| no_operation(number))
}

#[cold]
#[inline(never)]
fn no_operation(number: c_uint) -> Status {
    tracing::error!("atomic operation {number} is not supported");
    Status::Unsupported
}

/// Changes a word.
/// # Safety
/// `ep` is null or live, and `rkey` is as for [`rkey_of`].
// HOT
#[inline(always)]
unsafe fn post<W: Word>(ep: *mut Ep, op: c_uint, value: W, remote: u64, rkey: usize) -> Result<(), Status> {
    // SAFETY: this function's contract.
    let ep = unsafe { from_ptr(ep) }?;
    let op = op_of(op)?;
    // SAFETY: as above.
    let rkey = unsafe { rkey_of(rkey, ep.iface()) }?;
    answer(ep.inner.atomic_post(op, value, remote, rkey))
}

/// Changes a word and gets what it was.
/// # Safety
/// `ep` is null or live, and `rkey` is as for [`rkey_of`]. The result can be written, and the completion is
/// valid, until the operation has ended.
// HOT
#[inline(always)]
unsafe fn fetch<W: Word>(
    ep: *mut Ep,
    op: c_uint,
    value: W,
    result: *mut W,
    remote: u64,
    rkey: usize,
    completion: *mut Completion,
) -> Result<(), Status> {
    // SAFETY: this function's contract.
    let ep = unsafe { from_ptr(ep) }?;
    let (op, result) = (
        op_of(op)?,
        NonNull::new(result).ok_or_else(|| invalid("the result of an atomic operation is null"))?,
    );
    // SAFETY: this function's contract.
    let rkey = unsafe { rkey_of(rkey, ep.iface()) }?;
    // SAFETY: as above: the room for the result is there until the operation has ended.
    answer(unsafe { ep.inner.atomic_fetch(op, value, result, remote, rkey, comp_of(completion)) })
}

/// Compares and swaps a word.
/// # Safety
/// `ep` is null or live, and `rkey` is as for [`rkey_of`]. The result can be written, and the completion is
/// valid, until the operation has ended.
// HOT
#[inline(always)]
unsafe fn cswap<W: Word>(
    ep: *mut Ep,
    words: (W, W),
    remote: u64,
    rkey: usize,
    result: *mut W,
    completion: *mut Completion,
) -> Result<(), Status> {
    // SAFETY: this function's contract.
    let ep = unsafe { from_ptr(ep) }?;
    let result = NonNull::new(result).ok_or_else(|| invalid("the result of an atomic operation is null"))?;
    // SAFETY: this function's contract.
    let rkey = unsafe { rkey_of(rkey, ep.iface()) }?;
    let (compare, swap) = words;
    // SAFETY: as above: the room for the result is there until the operation has ended.
    answer(unsafe { ep.inner.atomic_cswap(compare, swap, result, remote, rkey, comp_of(completion)) })
}

operation! {
    /// Compares and swaps 64 bits.
    fn cswap64(
        ep: *mut Ep, compare: u64, swap: u64, remote: u64, rkey: usize, result: *mut u64,
        completion: *mut Completion,
    ) -> CStatus {
        // SAFETY: the caller's contract.
        unsafe { cswap(ep, (compare, swap), remote, rkey, result, completion) }
    }

    /// Compares and swaps 32 bits.
    fn cswap32(
        ep: *mut Ep, compare: u32, swap: u32, remote: u64, rkey: usize, result: *mut u32,
        completion: *mut Completion,
    ) -> CStatus {
        // SAFETY: the caller's contract.
        unsafe { cswap(ep, (compare, swap), remote, rkey, result, completion) }
    }

    /// Changes 32 bits.
    fn post32(ep: *mut Ep, op: c_uint, value: u32, remote: u64, rkey: usize) -> CStatus {
        // SAFETY: the caller's contract.
        unsafe { post(ep, op, value, remote, rkey) }
    }

    /// Changes 64 bits.
    fn post64(ep: *mut Ep, op: c_uint, value: u64, remote: u64, rkey: usize) -> CStatus {
        // SAFETY: the caller's contract.
        unsafe { post(ep, op, value, remote, rkey) }
    }

    /// Changes 32 bits and gets what they were.
    fn fetch32(
        ep: *mut Ep, op: c_uint, value: u32, result: *mut u32, remote: u64, rkey: usize,
        completion: *mut Completion,
    ) -> CStatus {
        // SAFETY: the caller's contract.
        unsafe { fetch(ep, op, value, result, remote, rkey, completion) }
    }

    /// Changes 64 bits and gets what they were.
    fn fetch64(
        ep: *mut Ep, op: c_uint, value: u64, result: *mut u64, remote: u64, rkey: usize,
        completion: *mut Completion,
    ) -> CStatus {
        // SAFETY: the caller's contract.
        unsafe { fetch(ep, op, value, result, remote, rkey, completion) }
    }
}
