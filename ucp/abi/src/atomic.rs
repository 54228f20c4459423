//! Atomic operations on 32- and 64-bit words.

use std::ffi::{c_int, c_void};

use ::ucs::Status;
use ucp::select::DeliveryComplete;
use ucp::{AtomicOp, AtomicParams, Datatype};

use crate::arg::OutPtr;
use crate::check::{argument, enter, is_on};
use crate::entry::{CStatus, StatusPtr, guard, invalid};
use crate::ep::Ep;
use crate::flush::wait;
use crate::handle::from_ptr;
use crate::op::{BYTES, Call, NoResult, SLOW_PATH_NOW, free_started, run, run_plain, target_now};
use crate::rkey::Rkey;
use crate::types::RequestParam;

/// `ucp_atomic_post_op_t`.
const POST_OPS: [AtomicOp; 4] = [AtomicOp::Sum, AtomicOp::BitAnd, AtomicOp::BitOr, AtomicOp::BitXor];
/// `ucp_atomic_fetch_op_t`.
const FETCH_OPS: [AtomicOp; 6] = [
    AtomicOp::Sum,
    AtomicOp::Write,
    AtomicOp::CompareSwap,
    AtomicOp::BitAnd,
    AtomicOp::BitOr,
    AtomicOp::BitXor,
];
/// `ucp_atomic_op_t`.
const OPS: [AtomicOp; 6] = FETCH_OPS;

/// Datatypes of words.
const WORD_32: u64 = 4 << 3;
const WORD_64: u64 = 8 << 3;

fn op_of(ops: &[AtomicOp], number: c_int) -> Result<AtomicOp, Status> {
    usize::try_from(number)
        .ok()
        .and_then(|at| ops.get(at))
        .copied()
        .ok_or_else(|| invalid("no such atomic operation"))
}

fn type_of(size: usize) -> Result<Datatype, Status> {
    match size {
        4 => Ok(Datatype::Uint32),
        8 => Ok(Datatype::Uint64),
        _ => {
            // Open MPI tries, and does without.
            tracing::debug!("atomic operations take words of 4 or 8 bytes, not {size}");
            Err(Status::InvalidParam)
        }
    }
}

/// A word of the caller, low bytes first in memory as the machine has them.
/// # Safety
/// `at` is null, or a word of this size can be read there.
unsafe fn word_at(at: *const c_void, size: usize) -> Result<u64, Status> {
    if at.is_null() {
        return Err(invalid("the operand is null"));
    }
    // SAFETY: this function's contract.
    Ok(unsafe {
        match size {
            4 => u64::from(at.cast::<u32>().read_unaligned()),
            _ => at.cast::<u64>().read_unaligned(),
        }
    })
}

/// Executes an operation on mapped memory, with an operand and a value compared with; `result` is null for
/// one without. False: nothing has happened.
/// # Safety
/// Operands can be read, and the result written, where the operation uses them, as words of the size.
// HOT
#[inline(always)]
unsafe fn now(
    (ep, rkey): (&ucp::Ep, &ucp::Rkey),
    op: (AtomicOp, usize),
    operands: [*const c_void; 2],
    result: *mut c_void,
    remote: u64,
) -> bool {
    // SAFETY: this function's contract.
    unsafe { ucp::atomic_now_raw(ep, op, operands.map(<*const c_void>::cast), result.cast(), remote, rkey) }
}

/// [`now`] in mode single. False: nothing was done; [`start`] carries the operation out or returns its error.
/// # Safety
/// As for [`now`]; `ep` and `rkey` are null or live.
// HOT
#[inline(always)]
unsafe fn is_done_now(
    ep: *mut Ep,
    op: (AtomicOp, usize),
    operands: [*const c_void; 2],
    result: *mut c_void,
    (remote, rkey): (u64, *mut Rkey),
) -> bool {
    // SAFETY: this function's contract.
    unsafe { target_now(ep, rkey).is_some_and(|target| now(target, op, operands, result, remote)) }
}

/// Starts an operation. Operands are copied by the call; `result` is null for one without.
/// # Safety
/// `ep` and `rkey` are null or live. `result` is null or can be written until the operation has ended.
#[inline(never)]
unsafe fn start(
    ep: *mut Ep,
    (op, size): (AtomicOp, usize),
    (operand, compare): (u64, u64),
    result: *mut c_void,
    (remote, rkey): (u64, *mut Rkey),
    call: &Call,
) -> Result<StatusPtr, Status> {
    let ty = type_of(size)?;
    let operands = [(&raw const operand).cast(), (&raw const compare).cast()];
    if call.mask() & SLOW_PATH_NOW == 0
        // SAFETY: this function's contract; operands are read in the call.
        && unsafe { is_done_now(ep, (op, size), operands, result, (remote, rkey)) }
    {
        return Ok(StatusPtr::OK);
    }
    if !remote.is_multiple_of(size as u64) {
        return Err(invalid("the remote address of an atomic operation is not aligned to its size"));
    }
    // SAFETY: this function's contract.
    let (ep, rkey) = unsafe { (from_ptr(ep)?, &from_ptr(rkey)?.rkey) };
    let worker = ep.worker();
    // SAFETY: as above.
    let is_done = || unsafe { now((&ep.ep, rkey), (op, size), operands, result, remote) };
    if call.mask() & SLOW_PATH_NOW == 0 && worker.locked(|_| is_done()) == Some(true) {
        return Ok(StatusPtr::OK);
    }
    let start = |done| {
        let params = AtomicParams {
            op,
            ty,
            count: 1,
            operand: (&raw const operand).cast(),
            compare: (&raw const compare).cast(),
            result: result.cast(),
            sync: DeliveryComplete::No,
            done,
            // Operands are copied by the call.
            mem: call.mem(),
        };
        // SAFETY: the operands are copied by the call; result and callback stay valid until the end.
        unsafe { ep.ep.atomic_raw(remote, rkey, &params) }
    };
    if call.is_fast_path()
        && let Some(plain) = worker.unlocked()
    {
        return run_plain::<NoResult, _>(worker, &plain, call, None, start);
    }
    // SAFETY: as above.
    worker.with_worker(|plain| unsafe { run::<NoResult, _>(worker, plain, call, None, start) })?
}

/// Starts an operation that returns the old value. For compare and swap, `value` is the value compared with,
/// and the word at `result` is the new one.
/// # Safety
/// As for [`start`].
unsafe fn fetch(
    ep: *mut Ep,
    (op, size): (AtomicOp, usize),
    value: u64,
    result: *mut c_void,
    target: (u64, *mut Rkey),
    call: &Call,
) -> Result<StatusPtr, Status> {
    // Before anything of the result is read.
    type_of(size)?;
    let operands = match op {
        // SAFETY: this function's contract.
        AtomicOp::CompareSwap => (unsafe { word_at(result, size) }?, value),
        _ => (value, 0),
    };
    if result.is_null() {
        return Err(invalid("result is null"));
    }
    // SAFETY: as above.
    unsafe { start(ep, (op, size), operands, result, target, call) }
}

/// Parameters of an operation on bytes with a callback.
const fn param(cb: *const c_void) -> RequestParam {
    RequestParam::old(cb, BYTES)
}

/// Parameters without a callback.
const NO_CALLBACK: RequestParam = param(std::ptr::null());

/// Runs an operation without a result; a flush completes it.
/// # Safety
/// `ep` and the key of the target are null or live.
unsafe fn post(
    ep: *mut Ep,
    op: (AtomicOp, usize),
    value: u64,
    target: (u64, *mut Rkey),
) -> Result<(), Status> {
    // SAFETY: this function's contract. There is no result and no callback.
    unsafe {
        let call = Call::of(&NO_CALLBACK);
        free_started(start(ep, op, (value, 0), std::ptr::null_mut(), target, &call)?).map(drop)
    }
}

/// Runs an operation and waits for the old value.
/// # Safety
/// As for [`start`].
unsafe fn fetch_and_wait(
    ep: *mut Ep,
    op: (AtomicOp, usize),
    value: u64,
    result: *mut c_void,
    target: (u64, *mut Rkey),
) -> Result<(), Status> {
    // SAFETY: this function's contract. There is no callback.
    unsafe {
        let started = fetch(ep, op, value, result, target, &Call::of(&NO_CALLBACK))?;
        wait(from_ptr(ep)?.worker(), started)
    }
}

/// Starts [`ucp_atomic_op_nbx`] on the general path.
/// # Safety
/// As for [`ucp_atomic_op_nbx`].
unsafe fn op_nbx(
    ep: *mut Ep,
    opcode: c_int,
    (buffer, count): (*const c_void, usize),
    target: (u64, *mut Rkey),
    param: *const RequestParam,
) -> Result<StatusPtr, Status> {
    // SAFETY: this function's contract.
    let call = unsafe { Call::read_general(param) }?;
    if call.must_complete_now() {
        let (remote, rkey) = target;
        // SAFETY: as above.
        let (ep, rkey) = unsafe { (from_ptr(ep)?, &from_ptr(rkey)?.rkey) };
        let size = match call.datatype() {
            WORD_32 => 4,
            WORD_64 => 8,
            _ => return Err(Status::NoResource),
        };
        return call.end_now(ep, || {
            on_word(opcode, (buffer, count), &call).is_some_and(|(op, operands, result)| {
                // SAFETY: as above.
                unsafe { now((&ep.ep, rkey), (op, size), operands, result, remote) }
            })
        });
    }
    let op = op_of(&OPS, opcode)?;
    let datatype = call.datatype();
    if count != 1 || datatype & 7 != 0 {
        tracing::error!("ucp_atomic_op_nbx takes one element of a contiguous datatype");
        return Err(Status::InvalidParam);
    }
    let size = (datatype >> 3) as usize;
    type_of(size)?;
    // SAFETY: this function's contract.
    let value = unsafe { word_at(buffer, size) }?;
    let reply_buffer = call.reply_buffer();
    if !reply_buffer.is_null() {
        // SAFETY: as above.
        return unsafe { fetch(ep, (op, size), value, reply_buffer, target, &call) };
    }
    if matches!(op, AtomicOp::Write | AtomicOp::CompareSwap) {
        return Err(invalid("ucp_atomic_op_nbx: swaps need a reply_buffer"));
    }
    // SAFETY: as above.
    unsafe { start(ep, (op, size), (value, 0), std::ptr::null_mut(), target, &call) }
}

/// General path of [`ucp_atomic_op_nbx`]. Its arguments stay in registers and it does not unwind, so the
/// caller needs no frame.
/// # Safety
/// As for [`ucp_atomic_op_nbx`].
#[inline(never)]
unsafe extern "C" fn op_nbx_general(
    ep: *mut Ep,
    opcode: c_int,
    buffer: *const c_void,
    count: usize,
    remote: u64,
    rkey: *mut Rkey,
    param: *const RequestParam,
) -> StatusPtr {
    guard("ucp_atomic_op_nbx", || {
        if is_on() {
            // SAFETY: this function's contract.
            unsafe {
                enter(
                    "ucp_atomic_op_nbx",
                    &[argument!(ep), argument!(buffer), argument!(rkey), argument!(param)],
                );
            }
        }
        // SAFETY: this function's contract.
        unsafe { op_nbx(ep, opcode, (buffer, count), (remote, rkey), param) }
    })
}

/// Operation, operands and place of the result of [`ucp_atomic_op_nbx`] on one word. `None`: there is no such
/// operation, or it is on several words.
// HOT
#[inline(always)]
fn on_word(
    opcode: c_int,
    (buffer, count): (*const c_void, usize),
    call: &Call,
) -> Option<(AtomicOp, [*const c_void; 2], *mut c_void)> {
    let result = call.reply_buffer();
    if count != 1 || buffer.is_null() {
        return None;
    }
    let op = usize::try_from(opcode).ok().and_then(|at| OPS.get(at)).copied()?;
    let operands = match (op, result.is_null()) {
        (AtomicOp::Write | AtomicOp::CompareSwap, true) => return None,
        // The new value is where the old one goes.
        (AtomicOp::CompareSwap, false) => [result.cast_const(), buffer],
        _ => [buffer, buffer],
    };
    Some((op, operands, result))
}

/// Executes [`ucp_atomic_op_nbx`] on mapped memory. False: nothing has happened, and [`op_nbx_general`] does
/// it, or tells the error.
/// # Safety
/// As for [`ucp_atomic_op_nbx`].
// HOT
#[inline(always)]
unsafe fn op_nbx_now(
    ep: *mut Ep,
    opcode: c_int,
    data: (*const c_void, usize),
    target: (u64, *mut Rkey),
    call: &Call,
) -> bool {
    let Some((op, operands, result)) = on_word(opcode, data, call) else { return false };
    // Each with the size as a constant.
    // SAFETY: this function's contract.
    unsafe {
        match call.datatype() {
            WORD_32 => is_done_now(ep, (op, 4), operands, result, target),
            WORD_64 => is_done_now(ep, (op, 8), operands, result, target),
            _ => false,
        }
    }
}

/// Starts an atomic operation on one word; the datatype says its size. It returns the old value if there is a
/// reply buffer.
/// # Safety
/// `ep` and `rkey` are null or live, and `param` is as for [`Call::fast`]. `buffer` is null or can be read
/// as a word, and the reply buffer can be written as one until the operation has ended.
// HOT
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ucp_atomic_op_nbx(
    ep: *mut Ep,
    opcode: c_int,
    buffer: *const c_void,
    count: usize,
    remote: u64,
    rkey: *mut Rkey,
    param: *const RequestParam,
) -> StatusPtr {
    guard("ucp_atomic_op_nbx", || {
        // SAFETY: this function's contract.
        if let Some(call) = unsafe { Call::now(param) }
            // SAFETY: as above.
            && unsafe { op_nbx_now(ep, opcode, (buffer, count), (remote, rkey), &call) }
        {
            return Ok(StatusPtr::OK);
        }
        // SAFETY: as above.
        Ok(unsafe { op_nbx_general(ep, opcode, buffer, count, remote, rkey, param) })
    })
}

entry! {
    /// Starts an atomic operation without a result.
    fn ucp_atomic_post(
        ep: *mut Ep, opcode: c_int, value: u64, size: usize, remote: u64, rkey: *mut Rkey,
    ) -> CStatus {
        // SAFETY: the caller's contract.
        unsafe { post(ep, (op_of(&POST_OPS, opcode)?, size), value, (remote, rkey)) }
    }

    /// Starts an atomic operation that returns the old value.
    fn ucp_atomic_fetch_nb(
        ep: *mut Ep,
        opcode: c_int,
        value: u64,
        result: *mut c_void,
        size: usize,
        remote: u64,
        rkey: *mut Rkey,
        cb: *const c_void,
    ) -> StatusPtr {
        let op = (op_of(&FETCH_OPS, opcode)?, size);
        // SAFETY: the caller's contract.
        unsafe { fetch(ep, op, value, result, (remote, rkey), &Call::of(&param(cb))) }
    }

    /// Adds to a word of 32 bits.
    fn ucp_atomic_add32(ep: *mut Ep, add: u32, remote: u64, rkey: *mut Rkey) -> CStatus {
        // SAFETY: the caller's contract.
        unsafe { post(ep, (AtomicOp::Sum, 4), add.into(), (remote, rkey)) }
    }

    /// Adds to a word of 64 bits.
    fn ucp_atomic_add64(ep: *mut Ep, add: u64, remote: u64, rkey: *mut Rkey) -> CStatus {
        // SAFETY: the caller's contract.
        unsafe { post(ep, (AtomicOp::Sum, 8), add, (remote, rkey)) }
    }

    /// Adds to a word of 32 bits, and waits for the old value.
    fn ucp_atomic_fadd32(ep: *mut Ep, add: u32, remote: u64, rkey: *mut Rkey, result: *mut u32) -> CStatus {
        // SAFETY: the caller's contract.
        unsafe { fetch_and_wait(ep, (AtomicOp::Sum, 4), add.into(), result.cast(), (remote, rkey)) }
    }

    /// Adds to a word of 64 bits, and waits for the old value.
    fn ucp_atomic_fadd64(ep: *mut Ep, add: u64, remote: u64, rkey: *mut Rkey, result: *mut u64) -> CStatus {
        // SAFETY: the caller's contract.
        unsafe { fetch_and_wait(ep, (AtomicOp::Sum, 8), add, result.cast(), (remote, rkey)) }
    }

    /// Swaps a word of 32 bits, and waits for the old value.
    fn ucp_atomic_swap32(ep: *mut Ep, swap: u32, remote: u64, rkey: *mut Rkey, result: *mut u32) -> CStatus {
        // SAFETY: the caller's contract.
        unsafe { fetch_and_wait(ep, (AtomicOp::Write, 4), swap.into(), result.cast(), (remote, rkey)) }
    }

    /// Swaps a word of 64 bits, and waits for the old value.
    fn ucp_atomic_swap64(ep: *mut Ep, swap: u64, remote: u64, rkey: *mut Rkey, result: *mut u64) -> CStatus {
        // SAFETY: the caller's contract.
        unsafe { fetch_and_wait(ep, (AtomicOp::Write, 8), swap, result.cast(), (remote, rkey)) }
    }

    /// Swaps a word of 32 bits that equals `compare`, and waits for the old value.
    fn ucp_atomic_cswap32(
        ep: *mut Ep, compare: u32, swap: u32, remote: u64, rkey: *mut Rkey, result: *mut u32,
    ) -> CStatus {
        // SAFETY: the caller's contract.
        unsafe {
            OutPtr::new(result).store(swap)?;
            fetch_and_wait(ep, (AtomicOp::CompareSwap, 4), compare.into(), result.cast(), (remote, rkey))
        }
    }

    /// Swaps a word of 64 bits that equals `compare`, and waits for the old value.
    fn ucp_atomic_cswap64(
        ep: *mut Ep, compare: u64, swap: u64, remote: u64, rkey: *mut Rkey, result: *mut u64,
    ) -> CStatus {
        // SAFETY: the caller's contract.
        unsafe {
            OutPtr::new(result).store(swap)?;
            fetch_and_wait(ep, (AtomicOp::CompareSwap, 8), compare, result.cast(), (remote, rkey))
        }
    }
}
