//! Operations: the caller's parameters (`ucp_request_param_t`). `run.rs` starts them, `kind.rs` calls their
//! callbacks, `handle.rs` is about their requests.

mod handle;
mod kind;
mod run;

use std::ffi::c_void;
use std::marker::PhantomData;
use std::ptr::NonNull;

use ::ucs::Status;
use ucp::Callback;

use crate::check::is_on;
use crate::entry::{StatusPtr, invalid};
use crate::ep::Ep;
use crate::rkey::Rkey;
use crate::sgl::RemoteSgl;
use crate::types::{RequestParam, op_attr};

pub(crate) use handle::{
    PRIV_SIZE, REQUEST_SIZE, clear_callback, id_of, request_at, set_priv, set_priv_unchecked, status_at,
    worker_of,
};
pub(crate) use kind::{Kind, LengthRecv, Message, NoResult, TagRecv};
pub(crate) use run::{free_started, run, run_plain};

use run::on_end;

/// `ucp_dt_make_contig(1)`.
pub(crate) const BYTES: u64 = 1 << 3;

/// Parameters of an operation. The fields that the caller's mask names are read where they are needed: they
/// are there during `'a`, and what they name stays valid until the operation has ended.
#[derive(Clone, Copy)]
pub(crate) struct Call<'a> {
    param: *const RequestParam,
    mask: u32,
    /// Where a stream's receive has its length; null: the field of the parameters.
    length: *mut usize,
    during: PhantomData<&'a RequestParam>,
}

/// The value of a field of the parameters of a [`Call`], if its bit is set in the mask; else `None`.
macro_rules! param {
    ($call:ident, $bit:expr, $field:ident) => {
        if $call.mask & $bit == 0 {
            None
        } else {
            // SAFETY: the parameters have the fields that their mask names, which is an invariant of `Call`.
            Some(unsafe { (&raw const (*$call.param).$field).read_unaligned() })
        }
    };
}

/// Parameters of remote lists, which only puts and gets have.
pub(crate) const REMOTE_LIST: u32 = op_attr::REMOTE | op_attr::REMOTE_DATATYPE | op_attr::REMOTE_COUNT;

impl<'a> Call<'a> {
    /// The parameters of a function of the deprecated interface.
    /// # Safety
    /// What they name stays valid until the operation has ended.
    #[inline(always)]
    pub(crate) unsafe fn of(param: &'a RequestParam) -> Call<'a> {
        Call { param, mask: param.op_attr_mask, length: std::ptr::null_mut(), during: PhantomData }
    }

    /// The parameters of the caller for a fast path, which refuses what [`Call::read`] refuses by its bits.
    /// `None`: there are none.
    /// # Safety
    /// `param` is null or begins with its mask, and has the fields that the mask names during `'a`.
    // HOT
    #[inline(always)]
    pub(crate) unsafe fn fast(param: *const RequestParam) -> Option<Call<'a>> {
        if param.is_null() {
            return None;
        }
        // SAFETY: this function's contract.
        let mask = unsafe { (&raw const (*param).op_attr_mask).read() };
        Some(Call { param, mask, length: std::ptr::null_mut(), during: PhantomData })
    }

    /// The parameters of the caller for a one-sided operation that may end in its call on mapped memory.
    /// `None`: handles are checked, or what the parameters name needs the general path.
    /// # Safety
    /// As for [`Call::fast`].
    // HOT
    #[inline(always)]
    pub(crate) unsafe fn now(param: *const RequestParam) -> Option<Call<'a>> {
        if param.is_null() || is_on() {
            return None;
        }
        // SAFETY: this function's contract.
        unsafe { Call::fast(param) }.filter(|call| call.mask & SLOW_PATH_NOW == 0)
    }

    /// The parameters of the caller, for an operation that may be told to end in its call
    /// ([`Call::must_complete_now`]).
    /// # Safety
    /// As for [`Call::fast`].
    // HOT
    #[inline(always)]
    pub(crate) unsafe fn read_general(param: *const RequestParam) -> Result<Call<'a>, Status> {
        // SAFETY: this function's contract.
        let call = unsafe { Call::fast(param) }.ok_or_else(|| invalid("param is null"))?;
        if call.mask & REMOTE_LIST != 0 {
            return Err(refused());
        }
        call.checked()
    }

    /// Reads the parameters of a put or get. Remote lists are permitted.
    /// # Safety
    /// As for [`Call::fast`].
    // HOT
    #[inline(always)]
    pub(crate) unsafe fn read_with_lists(param: *const RequestParam) -> Result<Call<'a>, Status> {
        // SAFETY: this function's contract.
        unsafe { Call::fast(param) }.ok_or_else(|| invalid("param is null"))?.checked()
    }

    /// Refuses memory of devices.
    // HOT
    #[inline(always)]
    fn checked(self) -> Result<Call<'a>, Status> {
        if let Some(memory_type) = param!(self, op_attr::MEMORY_TYPE, memory_type) {
            crate::mem::check_type(memory_type)?;
        }
        Ok(self)
    }

    /// The parameters of the caller. An operation that has to end in its call is not started.
    /// # Safety
    /// As for [`Call::fast`].
    // HOT
    #[inline(always)]
    pub(crate) unsafe fn read(param: *const RequestParam) -> Result<Call<'a>, Status> {
        // SAFETY: this function's contract.
        let call = unsafe { Call::read_general(param) }?;
        if call.must_complete_now() { Err(Status::NoResource) } else { Ok(call) }
    }

    /// Stores the length of a stream's receive that ends in its call, and nothing if `length` is null.
    /// # Safety
    /// `length` is null or can be written during `'a`.
    pub(crate) unsafe fn with_length(self, length: *mut usize) -> Call<'a> {
        let others = self.mask & !op_attr::RECV_INFO;
        let mask = if length.is_null() { others } else { others | op_attr::RECV_INFO };
        Call { mask, length, ..self }
    }

    /// Fields that the caller has set.
    // HOT
    #[inline(always)]
    pub(crate) fn mask(&self) -> u32 {
        self.mask
    }

    /// The operation ends in its call, or is not started.
    // HOT
    #[inline(always)]
    pub(crate) fn must_complete_now(&self) -> bool {
        self.mask & op_attr::FORCE_IMM_CMPL != 0
    }

    /// Does an operation of an endpoint that has to end in its call by `now`, which tells whether it has. It
    /// runs inside the lock of the worker.
    pub(crate) fn end_now(&self, ep: &Ep, now: impl FnOnce() -> bool) -> Result<StatusPtr, Status> {
        let has_ended = !self.always_request() && ep.worker().with_worker(|_| now())?;
        if has_ended { Ok(StatusPtr::OK) } else { Err(Status::NoResource) }
    }

    /// A request is returned, and the callback called, even if the operation ends in the call.
    // HOT
    #[inline(always)]
    pub(crate) fn always_request(&self) -> bool {
        self.mask & op_attr::NO_IMM_CMPL != 0
    }

    /// An operation that ends in its call has more to do than to return.
    // HOT
    #[inline(always)]
    pub(crate) fn reports_immediate_completion(&self) -> bool {
        self.mask & (op_attr::NO_IMM_CMPL | op_attr::RECV_INFO | op_attr::REQUEST) != 0
    }

    /// Callback; null: none.
    // HOT
    #[inline(always)]
    pub(crate) fn callback(&self) -> *const c_void {
        param!(self, op_attr::CALLBACK, cb).unwrap_or(std::ptr::null())
    }

    #[inline(always)]
    fn user_data(&self) -> *mut c_void {
        param!(self, op_attr::USER_DATA, user_data).unwrap_or(std::ptr::null_mut())
    }

    /// Memory of the caller for the request, as the caller sees it; null: none.
    #[inline(always)]
    pub(crate) fn request(&self) -> *mut c_void {
        param!(self, op_attr::REQUEST, request).unwrap_or(std::ptr::null_mut())
    }

    /// Memory of the caller for the block of the request; `None` for null.
    pub(crate) fn request_memory(&self) -> Option<NonNull<u8>> {
        let request = NonNull::new(self.request().cast::<u8>())?;
        NonNull::new(request.as_ptr().wrapping_sub(REQUEST_SIZE))
    }

    /// Registered memory that the caller names; null: none.
    pub(crate) fn memh(&self) -> *const crate::mem::Mem {
        param!(self, op_attr::MEMH, memh).unwrap_or(std::ptr::null())
    }

    #[inline(always)]
    pub(crate) fn flags(&self) -> u32 {
        param!(self, op_attr::FLAGS, flags).unwrap_or(0)
    }

    #[inline(always)]
    pub(crate) fn datatype(&self) -> u64 {
        param!(self, op_attr::DATATYPE, datatype).unwrap_or(BYTES)
    }

    #[inline(always)]
    pub(crate) fn reply_buffer(&self) -> *mut c_void {
        param!(self, op_attr::REPLY_BUFFER, reply_buffer).unwrap_or(std::ptr::null_mut())
    }

    /// Whether a parameter of remote lists is there.
    pub(crate) fn has_remote_list(&self) -> bool {
        self.mask & REMOTE_LIST != 0
    }

    pub(crate) fn remote_datatype(&self) -> Option<u64> {
        param!(self, op_attr::REMOTE_DATATYPE, remote_datatype)
    }

    /// List of remote memory; null: none.
    pub(crate) fn remote(&self) -> *const RemoteSgl {
        param!(self, op_attr::REMOTE, remote).unwrap_or(std::ptr::null()).cast()
    }

    pub(crate) fn remote_count(&self) -> Option<usize> {
        param!(self, op_attr::REMOTE_COUNT, remote_count)
    }

    /// Where the result of a receive goes, if it ends in the call; null: nowhere.
    fn recv_info(&self) -> *mut c_void {
        if !self.length.is_null() {
            return self.length.cast();
        }
        param!(self, op_attr::RECV_INFO, recv_info).unwrap_or(std::ptr::null_mut())
    }

    /// Registered memory that the caller names.
    #[inline(always)]
    pub(crate) fn mem(&self) -> Option<&'a ucp::Mem> {
        if self.mask & op_attr::MEMH == 0 { None } else { self.named_mem() }
    }

    #[cold]
    fn named_mem(&self) -> Option<&'a ucp::Mem> {
        let memh = self.memh();
        // SAFETY: the parameters name memory that is mapped until the operation has ended, or null.
        unsafe { crate::handle::from_ptr(memh) }.ok().and_then(|mem| mem.mem.as_ref())
    }

    /// Length of contiguous data in an operation without parameters of these bits. `None` is no error: the
    /// general path of the operation carries it out, or tells what is wrong.
    // HOT
    #[inline(always)]
    pub(crate) fn plain_len(&self, buffer: *const c_void, count: usize, unusual: u32) -> Option<usize> {
        if self.mask & unusual != 0 {
            return None;
        }
        let len = match param!(self, op_attr::DATATYPE, datatype) {
            None | Some(BYTES) => count,
            Some(datatype) => contiguous_len(datatype, count)?,
        };
        // One compare refuses a null buffer with a length. A buffer that begins at an address below its
        // length is refused, too, and goes the general path.
        (len <= buffer.addr()).then_some(len)
    }

    /// Whether no parameter keeps the operation from the fast path.
    // HOT
    #[inline(always)]
    pub(crate) fn is_fast_path(&self) -> bool {
        self.mask & SLOW_PATH == 0
    }

    /// The function for progress to call at the end. It calls `callback`, which is [`Call::callback`].
    // HOT
    #[inline(always)]
    pub(crate) fn done<K: Kind>(&self, callback: *const c_void) -> Option<Callback> {
        (!callback.is_null()).then(|| Callback::new(on_end::<K>, self.user_data().cast()))
    }
}

/// Bits that keep a send, which may end in its call, from the fast path.
pub(crate) const SLOW_PATH_SEND: u32 = op_attr::NO_IMM_CMPL | op_attr::MEMH | op_attr::MEMORY_TYPE;
/// Bits that keep a receive, which gets a request, from the fast path.
pub(crate) const SLOW_PATH_RECV: u32 = op_attr::REQUEST | op_attr::MEMH | op_attr::MEMORY_TYPE;
/// Bits that keep an operation of either outcome from the fast path.
pub(crate) const SLOW_PATH: u32 = SLOW_PATH_SEND | SLOW_PATH_RECV;

/// Bits that keep an operation on mapped memory, which ends in its call, from the fast path.
pub(crate) const SLOW_PATH_NOW: u32 = SLOW_PATH_SEND | REMOTE_LIST | op_attr::FORCE_IMM_CMPL;

/// Endpoint and key of a one-sided operation that may end in its call on mapped memory: its worker is one of
/// mode single.
/// # Safety
/// Both are null or live, and are not freed while the result is used.
// HOT
#[inline(always)]
pub(crate) unsafe fn target_now<'a>(ep: *mut Ep, rkey: *mut Rkey) -> Option<(&'a ucp::Ep, &'a ucp::Rkey)> {
    // SAFETY: this function's contract.
    let (ep, rkey) = (unsafe { ep.as_ref() }?, unsafe { rkey.as_ref() }?);
    ep.worker().plain().is_some().then_some((&ep.ep, &rkey.rkey))
}

/// Bytes of `count` elements of a datatype, if it is contiguous.
#[inline(always)]
fn contiguous_len(datatype: u64, count: usize) -> Option<usize> {
    if datatype & 7 != 0 { None } else { count.checked_mul((datatype >> 3) as usize) }
}

#[cold]
#[inline(never)]
fn refused() -> Status {
    tracing::error!("only puts and gets take remote lists (UCP_OP_ATTR_FIELD_REMOTE)");
    Status::Unsupported
}
