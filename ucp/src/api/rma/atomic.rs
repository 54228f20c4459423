//! Typed atomic operations on a peer's memory. The local processor executes them on mapped words where it
//! can, else the peer by packets. Both use the same instructions, so they agree.

#![allow(unsafe_code)]

use std::ptr::NonNull;

use uct::api::{AtomicOp as WordOp, Word};
use uct::word;

use crate::api::core::ep_state::EpState;
use crate::api::core::error::Error;
use crate::api::core::requests::{Callback, EMPTY_STATUS, OpStatus};
use crate::api::core::worker_core::WorkerCore;
use crate::api::ep::handle::Ep;
use crate::api::ep::protocols::EpProtocols;
use crate::api::request::buf::InFlightBuf;
use crate::api::request::handles::RecvRequest;
use crate::api::rma::atomic_params::AtomicParams;
use crate::api::rma::atomic_type::{AtomicType, MAX};
use crate::api::rma::deferred::defer_atomic;
use crate::api::rma::fetch::{FetchRequest, take_buf};
use crate::api::rma::query::RmaMethod;
use crate::api::rma::rkey::Rkey;
use crate::api::rma::start::{mapped_now, may_access, with_own};

use crate::rdm::amo::{Form, has_form, has_type};
use crate::rdm::{
    Access, AtomicArgs, Gather, OwnAtomic, RecvBuf, RecvStatus, Scatter, SendBuf, Started as EngineStarted,
};
use crate::select::{AtomicVerdict, DeliveryComplete, explain_atomic};
use crate::wire::{AtomicOp, Datatype, Iovs, RmaIov};

impl EpProtocols<'_> {
    /// Method for `op` on elements of type `ty` in the memory of `rkey`; `None`: no such operation.
    pub fn atomic_method(&self, rkey: &Rkey, op: AtomicOp, ty: Datatype) -> Option<RmaMethod> {
        let is_here = is_native(op, ty)? && may_access(self.ep, rkey, Access::ATOMIC);
        Some(if is_here { RmaMethod::Mapped } else { RmaMethod::Emulated })
    }

    /// Verdicts on mapped memory, device and packets, in this order. `UCX_EMULATION=n` may exclude all.
    pub fn explain_atomic(&self, rkey: &Rkey, op: AtomicOp, ty: Datatype) -> Option<[AtomicVerdict; 3]> {
        let (is_native, is_mapped) = (is_native(op, ty)?, may_access(self.ep, rkey, Access::ATOMIC));
        let emulation = self.ep.worker().core().engine.peers().emulation();
        Some(explain_atomic(is_mapped, is_native, emulation))
    }
}

/// Whether `op` on an element of type `ty`, in one of its forms, is a single instruction; `None`: no such
/// operation.
fn is_native(op: AtomicOp, ty: Datatype) -> Option<bool> {
    let form = [Form::Write, Form::Fetch, Form::Compare].into_iter().find(|form| has_form(op, *form))?;
    has_type(op, ty).then(|| is_instruction(op, ty, form))
}

impl Ep {
    /// Executes `params.op` on `params.count` elements of the peer's memory at `remote`.
    /// # Safety
    /// `operand` and `compare` are readable, `result` is writable, where the operation uses them. Unless the
    /// call returns *done* or an error, they stay so until completion and nobody else accesses them.
    /// `params.done` may be called with its argument.
    // HOT
    pub unsafe fn atomic_raw(
        &self,
        remote: u64,
        rkey: &Rkey,
        params: &AtomicParams<'_>,
    ) -> Result<OpStatus<RecvStatus>, Error> {
        params.check_mem()?;
        // SAFETY: this function's contract.
        if params.count == 1 && unsafe { is_executed_natively(self, remote, rkey, params) } {
            return Ok(OpStatus::Done(RecvStatus { len: params.ty.size(), ..EMPTY_STATUS }));
        }
        // SAFETY: this function's contract.
        unsafe { start_emulated(self, (remote, rkey), params) }
    }

    /// Starts `op` on the peer's element at `remote`, without result. A flush completes it.
    pub fn atomic_post<T: AtomicType>(
        &self,
        op: AtomicOp,
        value: T,
        remote: u64,
        rkey: &Rkey,
    ) -> Result<(), Error> {
        let bytes = value.to_bytes();
        let params = AtomicParams { operand: bytes.as_ptr(), ..single_op::<T>(op) };
        // SAFETY: the call copies short operands, and there is no result.
        let started = unsafe { self.atomic_raw(remote, rkey, &params) }?;
        if let OpStatus::InProgress(id) = started {
            self.worker().free(id);
        }
        Ok(())
    }

    /// Executes `op` on the peer's element at `remote` and returns the old value.
    pub fn atomic_fetch<T: AtomicType>(
        &self,
        op: AtomicOp,
        value: T,
        remote: u64,
        rkey: &Rkey,
    ) -> FetchRequest<T> {
        fetch(self, op, (value, value), (remote, rkey))
    }

    /// Executes a compare operation on the peer's element at `remote` and returns the old value.
    /// [`AtomicOp::CompareSwap`] stores `value` if the element equals `compare`.
    pub fn atomic_compare<T: AtomicType>(
        &self,
        op: AtomicOp,
        compare: T,
        value: T,
        remote: u64,
        rkey: &Rkey,
    ) -> FetchRequest<T> {
        fetch(self, op, (value, compare), (remote, rkey))
    }

    /// Executes `op` as [`Ep::atomic_fetch`] and makes progress until the old value has arrived.
    pub fn atomic_fetch_blocking<T: AtomicType>(
        &self,
        op: AtomicOp,
        value: T,
        remote: u64,
        rkey: &Rkey,
    ) -> Result<T, Error> {
        self.atomic_compare_blocking(op, value, value, remote, rkey)
    }

    /// Executes `op` as [`Ep::atomic_compare`] and makes progress until the old value has arrived.
    pub fn atomic_compare_blocking<T: AtomicType>(
        &self,
        op: AtomicOp,
        compare: T,
        value: T,
        remote: u64,
        rkey: &Rkey,
    ) -> Result<T, Error> {
        let mut old = [0; MAX];
        let (operand, expected) = (value.to_bytes(), compare.to_bytes());
        let params = AtomicParams {
            operand: operand.as_ptr(),
            compare: expected.as_ptr(),
            result: old.as_mut_ptr(),
            ..single_op::<T>(op)
        };
        // SAFETY: all buffers are in this frame.
        if unsafe { is_executed_natively(self, remote, rkey, &params) } {
            return Ok(T::from_bytes(old));
        }
        wait_for_atomic(self, op, (compare, value), (remote, rkey))
    }
}

/// Executes an operation on one element by an instruction, or returns false. What callers know when they are
/// compiled, such as the type, costs nothing. Unsafe: as for [`Ep::atomic_raw`], until this returns.
// HOT
#[inline(always)]
unsafe fn is_executed_natively(ep: &Ep, remote: u64, rkey: &Rkey, params: &AtomicParams<'_>) -> bool {
    let form = params.form();
    has_form(params.op, form)
        && has_type(params.op, params.ty)
        // SAFETY: this function's contract.
        && unsafe { native(ep, (remote, rkey), params, form) }
}

/// Starts an operation in the engine and makes progress until the old value has arrived.
#[inline(never)]
fn wait_for_atomic<T: AtomicType>(
    ep: &Ep,
    op: AtomicOp,
    (compare, value): (T, T),
    (remote, rkey): (u64, &Rkey),
) -> Result<T, Error> {
    let mut old = [0; MAX];
    let (value, compare) = (value.to_bytes(), compare.to_bytes());
    let params = AtomicParams {
        operand: value.as_ptr(),
        compare: compare.as_ptr(),
        result: old.as_mut_ptr(),
        ..single_op::<T>(op)
    };
    // SAFETY: all buffers are in this frame, and `wait_borrowed` ends only after completion.
    if let OpStatus::InProgress(id) = unsafe { start_emulated(ep, (remote, rkey), &params) }? {
        ep.worker().wait_borrowed(id)?;
    }
    Ok(T::from_bytes(old))
}

/// Executes the operation by an instruction, or returns false. Unsafe: as for [`Ep::atomic_raw`].
#[inline(always)]
unsafe fn native(ep: &Ep, (remote, rkey): (u64, &Rkey), p: &AtomicParams<'_>, form: Form) -> bool {
    is_instruction(p.op, p.ty, form)
        // SAFETY: this function's contract.
        && unsafe { atomic_now_raw(ep, (p.op, p.ty.size()), [p.operand, p.compare], p.result, remote, rkey) }
}

/// Executes `op` on the word of `size` 4 or 8 at `remote` within the call, if the memory is mapped. The
/// operand, the value compared with and the old value are words, of any alignment. False: nothing has
/// happened, and [`Ep::atomic_raw`] does it, or tells the error.
/// # Safety
/// `operand` can be read unless `op` is [`AtomicOp::Read`], `compare` if it is [`AtomicOp::CompareSwap`].
/// `result` can be written, or is null.
// HOT
#[inline(always)]
pub unsafe fn atomic_now_raw(
    ep: &Ep,
    (op, size): (AtomicOp, usize),
    [operand, compare]: [*const u8; 2],
    result: *mut u8,
    remote: u64,
    rkey: &Rkey,
) -> bool {
    if size != 4 && size != 8 {
        return false;
    }
    let Some(at) = mapped_now(ep, (remote, size), rkey, Access::ATOMIC) else { return false };
    // SAFETY: the word is mapped while the key lives; whoever gives a key for atomics accesses it by atomics
    // alone. The rest is this function's contract.
    remote as usize & (size - 1) == 0 && unsafe { execute_at(at, (op, size), [operand, compare], result) }
}

/// Executes an operation on one element within the call, if it is a single instruction and `remote` is memory
/// of the worker's own context, named as for [`put_self_raw`](crate::put_self_raw). The operands are as for
/// [`atomic_now_raw`]. False: nothing has happened, and [`Ep::atomic_raw`] does it, or tells the error.
/// # Safety
/// As for [`atomic_now_raw`].
// HOT
#[inline]
pub unsafe fn atomic_self_raw(
    ep: &Ep,
    (op, ty, form): (AtomicOp, Datatype, Form),
    [operand, compare]: [*const u8; 2],
    result: *mut u8,
    remote: u64,
    key: u64,
) -> bool {
    let size = ty.size();
    if !is_instruction(op, ty, form) {
        return false;
    }
    let iov = RmaIov { addr: remote, len: size as u64, key };
    with_own(ep, |own| {
        // SAFETY: the word is there while this runs; others use it by atomics, or agree with peers on when
        // (`Region::new`). The rest is this function's contract.
        own.with_word(&iov, |at| unsafe { execute_at(at, (op, size), [operand, compare], result) })
    })
}

/// Executes `op` on the word of `size` 4 or 8 at `at`. False: it is not aligned, or no instruction.
/// # Safety
/// The word can be accessed by atomics. The rest is as for [`atomic_now_raw`].
// HOT
#[inline(always)]
unsafe fn execute_at(
    at: *mut u8,
    (op, size): (AtomicOp, usize),
    [operand, compare]: [*const u8; 2],
    result: *mut u8,
) -> bool {
    if at.addr() & (size - 1) != 0 {
        return false;
    }
    if size == 4 {
        let operands = [operand, compare].map(<*const u8>::cast::<u32>);
        // SAFETY: this function's contract.
        return unsafe { execute(at.cast(), op, operands, result.cast()) };
    }
    let operands = [operand, compare].map(<*const u8>::cast::<u64>);
    // SAFETY: as above.
    unsafe { execute(at.cast(), op, operands, result.cast()) }
}

/// Executes `op` on the word at `at`. False: it is no instruction.
/// # Safety
/// As for [`word::fetch`], and as for [`atomic_now_raw`].
// HOT
#[inline(always)]
unsafe fn execute<W: Word>(
    at: *mut W,
    op: AtomicOp,
    [operand, compare]: [*const W; 2],
    result: *mut W,
) -> bool {
    // SAFETY: this function's contract: the operation uses the word.
    let read = |word: *const W| unsafe { word.read_unaligned() };
    // SAFETY: this function's contract.
    let fetch = |op, value| unsafe { word::fetch(at, op, value) };
    let old = match op {
        AtomicOp::Sum => fetch(WordOp::Add, read(operand)),
        AtomicOp::BitAnd => fetch(WordOp::And, read(operand)),
        AtomicOp::BitOr => fetch(WordOp::Or, read(operand)),
        AtomicOp::BitXor => fetch(WordOp::Xor, read(operand)),
        AtomicOp::Write => fetch(WordOp::Swap, read(operand)),
        AtomicOp::Read => fetch(WordOp::Or, W::from_u64(0)),
        AtomicOp::CompareSwap => {
            let (compare, swap) = (read(compare), read(operand));
            // SAFETY: this function's contract.
            unsafe { word::cswap(at, compare, swap) }
        }
        _ => None,
    };
    let Some(old) = old else { return false };
    if !result.is_null() {
        // SAFETY: this function's contract.
        unsafe { result.write_unaligned(old) };
    }
    true
}

/// Starts an operation with a result, in memory that the worker keeps between operations.
fn fetch<T: AtomicType>(
    ep: &Ep,
    op: AtomicOp,
    (value, compare): (T, T),
    (remote, rkey): (u64, &Rkey),
) -> FetchRequest<T> {
    let mut in_flight = InFlightBuf::new(take_buf(ep.worker()));
    let (result, _) = in_flight.memory();
    let (value, compare) = (value.to_bytes(), compare.to_bytes());
    let params =
        AtomicParams { operand: value.as_ptr(), compare: compare.as_ptr(), result, ..single_op::<T>(op) };
    // SAFETY: the call copies short operands, and the request keeps the result buffer.
    let started = unsafe { ep.atomic_raw(remote, rkey, &params) };
    FetchRequest::new(ep.worker(), RecvRequest::new(ep.worker(), started, in_flight))
}

/// Executes an operation on memory of the worker's own context, or returns false.
/// # Safety
/// As for [`Ep::atomic_raw`], until this returns.
#[inline]
unsafe fn is_executed_here(ep: &Ep, iov: &RmaIov, p: &AtomicParams<'_>) -> bool {
    let AtomicParams { op, ty, count, operand, compare, result, .. } = *p;
    let form = p.form();
    if count == 1
        // SAFETY: this function's contract.
        && unsafe { atomic_self_raw(ep, (op, ty, form), [operand, compare], result, iov.addr, iov.key) }
    {
        return true;
    }
    let atomic = OwnAtomic { op, ty, form, operand, compare, result };
    // SAFETY: as above.
    with_own(ep, |own| unsafe { own.atomic(iov, &atomic) })
}

/// Has the engine execute the operation, which checks operation, type and lengths. Unsafe: as for
/// [`Ep::atomic_raw`].
#[inline(never)]
unsafe fn start_emulated(
    ep: &Ep,
    (remote, rkey): (u64, &Rkey),
    params: &AtomicParams<'_>,
) -> Result<OpStatus<RecvStatus>, Error> {
    let state = ep.state();
    if let Some(refusal) = state.refusal.get() {
        // SAFETY: this function's contract.
        return unsafe { defer_atomic(ep, refusal, (remote, rkey), params) };
    }
    let peer = state.peer();
    let len = params.count.checked_mul(params.ty.size()).ok_or(Error::Invalid)?;
    if !rkey.covers(remote, len as u64, Access::ATOMIC) {
        return Err(Error::RemoteAccess(peer));
    }
    if rkey.is_key_only {
        let iov = RmaIov { addr: remote, len: len as u64, key: rkey.key };
        // SAFETY: this function's contract.
        if unsafe { is_executed_here(ep, &iov, params) } {
            return Ok(OpStatus::Done(RecvStatus { len, ..EMPTY_STATUS }));
        }
    }
    let len_if = |wanted: bool| if wanted { len } else { 0 };
    // SAFETY: the caller keeps the bytes valid until completion.
    let operand = unsafe { SendBuf::new(params.operand, len_if(params.op != AtomicOp::Read)) };
    let compare = (params.form() == Form::Compare).then(|| {
        // SAFETY: as above.
        Gather::one(unsafe { SendBuf::new(params.compare, len) })
    });
    // SAFETY: as above.
    let result = unsafe { RecvBuf::new(params.result, len_if(!params.result.is_null())) };
    let args = AtomicArgs {
        op: params.op,
        ty: params.ty,
        remote: Iovs::one(RmaIov { addr: remote, len: len as u64, key: rkey.key }),
        operand: Gather::one(operand),
        compare,
        result: (!params.result.is_null()).then(|| Scatter::one(result)),
        sync: params.sync,
        user: 0,
    };
    start_atomic(&mut ep.worker().core(), ep.state(), args, len, params.done)
}

/// Starts an atomic operation in the engine.
pub(crate) fn start_atomic(
    core: &mut WorkerCore,
    ep: &EpState,
    mut args: AtomicArgs,
    len: usize,
    done: Option<Callback>,
) -> Result<OpStatus<RecvStatus>, Error> {
    let (engine, mut wire, reqs) = core.split();
    args.user = reqs.next_token()?;
    let user = args.user;
    match engine.atomic(&mut wire, ep.peer(), args) {
        EngineStarted::Done(()) => Ok(OpStatus::Done(RecvStatus { len, ..EMPTY_STATUS })),
        EngineStarted::Pending(op) => {
            Ok(OpStatus::InProgress(reqs.start_rma(user, (op, ep.number()), len, done)))
        }
        EngineStarted::Failed(e) => Err(e.into()),
    }
}

const DANGLING: *mut u8 = NonNull::dangling().as_ptr();

const fn single_op<T: AtomicType>(op: AtomicOp) -> AtomicParams<'static> {
    AtomicParams {
        op,
        ty: T::TYPE,
        count: 1,
        operand: DANGLING,
        compare: DANGLING,
        result: std::ptr::null_mut(),
        sync: DeliveryComplete::No,
        done: None,
        mem: None,
    }
}

/// Whether an operation on one word is a single instruction.
// HOT
#[inline(always)]
fn is_instruction(op: AtomicOp, ty: Datatype, form: Form) -> bool {
    use AtomicOp::{BitAnd, BitOr, BitXor, CompareSwap, Read, Sum, Write};
    use Datatype::{Int32, Int64, Uint32, Uint64};
    let is_word = matches!(ty, Int32 | Uint32 | Int64 | Uint64);
    is_word
        && match op {
            Sum | BitAnd | BitOr | BitXor | Write | CompareSwap => true,
            Read => form == Form::Fetch,
            _ => false,
        }
}
