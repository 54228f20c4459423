//! Operations: the caller's parameters, and the status pointer that the start of a raw operation becomes.
//!
//! A request that the caller sees is the address behind a request block and two words of this library: the
//! caller's callback and the worker. The caller's own memory begins there.

use std::cell::Cell;
use std::ffi::c_void;
use std::marker::PhantomData;
use std::ptr::NonNull;

use ::ucs::Status;
use ucp::{Callback, Error, OpStatus, RecvStatus, RequestId};

use crate::check::is_on;
use crate::entry::{StatusPtr, invalid};
use crate::ep::Ep;
use crate::rkey::Rkey;
use crate::sgl::RemoteSgl;
use crate::types::{RequestParam, TagInfo, op_attr};
use crate::worker::Worker;

/// Frees the request of a started operation, which a flush completes. Returns whether it still runs.
/// # Safety
/// `started` is no error, and nobody else has its request.
pub(crate) unsafe fn free_started(started: StatusPtr) -> Result<bool, Status> {
    if started == StatusPtr::OK {
        return Ok(false);
    }
    // SAFETY: this function's contract.
    let id = unsafe { id_of(started.0) }?;
    worker_of(id)?.with_worker(|plain| plain.free(id)).map(|()| true)
}

/// Words of this library behind the block of a request.
#[repr(C)]
pub(crate) struct Private {
    pub worker: *const Worker,
    /// Callback of the caller; null: none.
    pub callback: *const c_void,
}

/// Bytes of [`Private`].
pub(crate) const PRIVATE_SIZE: usize = size_of::<Private>();
/// Bytes of a request below the address that the caller sees: `ucp_context_attr_t::request_size`.
pub(crate) const REQUEST_SIZE: usize = RequestId::SIZE + PRIVATE_SIZE;

/// Our words of a request.
// HOT
#[inline(always)]
fn private(id: RequestId) -> NonNull<Private> {
    id.user_memory().cast()
}

/// The address that the caller sees.
// HOT
#[inline(always)]
pub(crate) fn handle_of(id: RequestId) -> *mut c_void {
    private(id).as_ptr().wrapping_add(1).cast()
}

/// Our words of the request at an address that the caller sees.
/// # Safety
/// `handle` is null or a request that has not been freed.
// HOT
#[inline(always)]
unsafe fn priv_at(handle: *mut c_void) -> Result<NonNull<u8>, Status> {
    let handle = NonNull::new(handle.cast::<u8>()).ok_or_else(|| invalid("the request is null"))?;
    // SAFETY: this function's contract; the words lie before the address of a request.
    Ok(unsafe { handle.sub(PRIVATE_SIZE) })
}

/// The request at an address that the caller sees.
/// # Safety
/// As for [`priv_at`].
// HOT
#[inline(always)]
pub(crate) unsafe fn id_of(handle: *mut c_void) -> Result<RequestId, Status> {
    // SAFETY: this function's contract.
    let at = unsafe { priv_at(handle) }?;
    // SAFETY: as above.
    Ok(unsafe { RequestId::from_user_memory(at) })
}

/// The request of a worker at an address that the caller sees, which may be any number.
pub(crate) fn request_at(plain: &ucp::Worker, handle: *mut c_void) -> Option<RequestId> {
    ucp::request_at(plain, handle.addr().checked_sub(PRIVATE_SIZE)?)
}

/// Status of the request at an address that the caller sees.
/// # Safety
/// As for [`priv_at`].
// HOT
#[inline(always)]
pub(crate) unsafe fn status_at(handle: *mut c_void) -> Result<Status, Status> {
    // SAFETY: this function's contract.
    let at = unsafe { priv_at(handle) }?;
    // SAFETY: as above.
    Ok(unsafe { RequestId::status_at(at) })
}

/// The worker of a request.
// HOT
#[inline(always)]
pub(crate) fn worker_of<'a>(id: RequestId) -> Result<&'a Worker, Status> {
    // SAFETY: `finish` has written the words of every request that is handed out.
    let worker = unsafe { private(id).as_ref() }.worker;
    // SAFETY: a worker frees its requests before it is freed.
    unsafe { crate::handle::from_ptr(worker) }
}

/// Writes our words of a request. Returns the address that the caller sees.
// HOT
#[inline(always)]
pub(crate) fn set_priv(id: RequestId, worker: &Worker, callback: *const c_void) -> *mut c_void {
    let handle = set_words_unchecked(id, worker, callback);
    if is_on() {
        crate::check::add_request(handle, worker);
    }
    handle
}

/// [`set_priv`], where nothing is checked: [`is_on`] was false.
// HOT
#[inline(always)]
pub(crate) fn set_words_unchecked(id: RequestId, worker: &Worker, callback: *const c_void) -> *mut c_void {
    // SAFETY: the two words behind the block are this library's.
    unsafe { private(id).write(Private { worker, callback }) };
    handle_of(id)
}

/// Replaces the callback of a request by one that does nothing: the program has freed it.
pub(crate) fn clear_callback(id: RequestId) {
    extern "C" fn nothing() {}
    // SAFETY: `set_priv` has written the words of every request that is handed out. The convention of calls
    // lets a function ignore its arguments.
    unsafe { (&raw mut (*private(id).as_ptr()).callback).write(nothing as extern "C" fn() as *const c_void) };
}

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
    /// The parameters of a function of the old interface.
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

/// Kind of an operation: the arguments that its callback gets, and where its result is stored.
pub(crate) trait Kind {
    /// Whether a request in memory of the caller tells the result even if the operation ends in the call: MPI
    /// libraries ignore what a receive returns, and test the request.
    const ENDS_IN_REQUEST: bool;
    /// Calls the caller's callback.
    /// # Safety
    /// `callback` is a function of the type of this kind, which may be called with the other arguments.
    unsafe fn call(
        callback: *const c_void,
        handle: *mut c_void,
        status: Status,
        message: RecvStatus,
        arg: *mut c_void,
    );
    /// Stores the result of an operation that ended in the call where the caller wants it.
    /// # Safety
    /// `info` is null or can be written as this kind's result.
    unsafe fn store(_info: *mut c_void, _message: RecvStatus) {}
}

/// The status of an operation that received nothing.
pub(crate) const NOTHING: RecvStatus = RecvStatus::EMPTY;

/// Result of a raw operation.
pub(crate) trait Message: Copy {
    /// The message received, if there is one.
    fn received(self) -> RecvStatus;

    /// Result of an operation that has ended in its call; one in progress has none.
    #[inline(always)]
    fn ended(status: OpStatus<Self>) -> RecvStatus {
        if let OpStatus::Done(message) = status { message.received() } else { NOTHING }
    }
}

impl Message for () {
    #[inline(always)]
    fn received(self) -> RecvStatus {
        NOTHING
    }
}

impl Message for RecvStatus {
    #[inline(always)]
    fn received(self) -> RecvStatus {
        self
    }
}

/// Sends, gets, flushes and all else whose callback gets no result.
pub(crate) struct NoResult;
/// Receives of tagged messages.
pub(crate) struct TagRecv;
/// Receives of streams and active messages' data: the callback gets the length.
pub(crate) struct LengthRecv;

type SendCb = unsafe extern "C" fn(*mut c_void, i8, *mut c_void);
type TagRecvCb = unsafe extern "C" fn(*mut c_void, i8, *const TagInfo, *mut c_void);
type LengthCb = unsafe extern "C" fn(*mut c_void, i8, usize, *mut c_void);

impl Kind for NoResult {
    const ENDS_IN_REQUEST: bool = false;

    unsafe fn call(
        callback: *const c_void,
        handle: *mut c_void,
        status: Status,
        _: RecvStatus,
        arg: *mut c_void,
    ) {
        // SAFETY: the caller passed a function of this type, or of the one without the last argument.
        let call: SendCb = unsafe { std::mem::transmute(callback) };
        // SAFETY: as above.
        unsafe { call(handle, status as i8, arg) };
    }
}

impl Kind for TagRecv {
    const ENDS_IN_REQUEST: bool = true;

    unsafe fn call(
        callback: *const c_void,
        handle: *mut c_void,
        status: Status,
        message: RecvStatus,
        arg: *mut c_void,
    ) {
        // SAFETY: the caller passed a function of this type, or of the one without the last argument.
        let call: TagRecvCb = unsafe { std::mem::transmute(callback) };
        let info = TagInfo { sender_tag: message.tag, length: message.len };
        // SAFETY: as above.
        unsafe { call(handle, status as i8, &info, arg) };
    }

    unsafe fn store(info: *mut c_void, message: RecvStatus) {
        if let Some(info) = NonNull::new(info.cast::<TagInfo>()) {
            // SAFETY: this function's contract.
            unsafe { info.write(TagInfo { sender_tag: message.tag, length: message.len }) };
        }
    }
}

impl Kind for LengthRecv {
    const ENDS_IN_REQUEST: bool = true;

    unsafe fn call(
        callback: *const c_void,
        handle: *mut c_void,
        status: Status,
        message: RecvStatus,
        arg: *mut c_void,
    ) {
        // SAFETY: the caller passed a function of this type, or of the one without the last argument.
        let call: LengthCb = unsafe { std::mem::transmute(callback) };
        // SAFETY: as above.
        unsafe { call(handle, status as i8, message.len, arg) };
    }

    unsafe fn store(info: *mut c_void, message: RecvStatus) {
        if let Some(length) = NonNull::new(info.cast::<usize>()) {
            // SAFETY: this function's contract.
            unsafe { length.write(message.len) };
        }
    }
}

/// Called by progress when an operation with a callback has ended.
unsafe fn on_end<K: Kind>(arg: *mut (), id: RequestId, ended: Result<RecvStatus, Error>) {
    // SAFETY: `finish` has written the words before progress could run.
    let callback = unsafe { private(id).as_ref() }.callback;
    let status = ended.map_or_else(Error::status, |_| Status::Ok);
    // A truncated message keeps its tag in the request.
    let message = ended.ok().or_else(|| id.info()).unwrap_or(NOTHING);
    // SAFETY: the caller's contract.
    unsafe { K::call(callback, handle_of(id), status, message, arg.cast()) };
}

/// Starts an operation with `start`, inside the worker's lock, and makes its outcome what the caller gets.
/// `truncated` has the message of [`Error::Truncated`].
/// # Safety
/// `start` starts at most one operation. What the operation uses stays valid until it has ended, by the
/// caller's contract.
pub(crate) unsafe fn run<K: Kind, M: Message>(
    worker: &Worker,
    plain: &ucp::Worker,
    call: &Call,
    truncated: Option<&Cell<RecvStatus>>,
    start: impl FnOnce(Option<Callback>) -> Result<OpStatus<M>, Error>,
) -> Result<StatusPtr, Status> {
    if call.mask & op_attr::REQUEST == 0 {
        return run_plain::<K, M>(worker, plain, call, truncated, start);
    }
    let memory = call.request_memory().ok_or_else(|| invalid("the request of the program is null"))?;
    let callback = call.callback();
    let in_memory = || match start(call.done::<K>(callback)) {
        Ok(OpStatus::InProgress(id)) => Ok(Ended::silent(StatusPtr(set_priv(id, worker, callback)))),
        ended => finish::<K>(worker, plain, call, truncated, ended.map(Message::ended)),
    };
    // SAFETY: the caller has `REQUEST_SIZE` bytes there for this operation.
    let ended = unsafe { plain.with_request_memory(memory, in_memory) }?;
    // The callback may free the memory, or start another operation in it.
    Ok(ended.notify::<K>(call))
}

/// [`run`] with a request of the library.
// HOT
#[inline(always)]
pub(crate) fn run_plain<K: Kind, M: Message>(
    worker: &Worker,
    plain: &ucp::Worker,
    call: &Call,
    truncated: Option<&Cell<RecvStatus>>,
    start: impl FnOnce(Option<Callback>) -> Result<OpStatus<M>, Error>,
) -> Result<StatusPtr, Status> {
    let callback = call.callback();
    match start(call.done::<K>(callback)) {
        Ok(OpStatus::InProgress(id)) => Ok(StatusPtr(set_priv(id, worker, callback))),
        Ok(OpStatus::Done(_)) if !call.reports_immediate_completion() => Ok(StatusPtr::OK),
        ended => finish_and_call::<K>(worker, plain, call, truncated, ended.map(Message::ended)),
    }
}

/// Outcome of a start: the value to return, and the callback to call before.
struct Ended {
    returned: StatusPtr,
    /// Arguments of the callback if it is called within the call.
    called: Option<(Status, RecvStatus)>,
}

impl Ended {
    /// No callback is called.
    fn silent(returned: StatusPtr) -> Ended {
        Ended { returned, called: None }
    }

    /// Calls the callback, if it is to be called. It may do anything with the request.
    fn notify<K: Kind>(self, call: &Call) -> StatusPtr {
        if let Some((status, message)) = self.called {
            // SAFETY: the parameters of an operation of this kind have such a callback.
            unsafe { K::call(call.callback(), self.returned.0, status, message, call.user_data()) };
        }
        self.returned
    }
}

/// [`finish`] of an operation whose request is the library's, and the callback.
#[inline(never)]
fn finish_and_call<K: Kind>(
    worker: &Worker,
    plain: &ucp::Worker,
    call: &Call,
    truncated: Option<&Cell<RecvStatus>>,
    ended: Result<RecvStatus, Error>,
) -> Result<StatusPtr, Status> {
    finish::<K>(worker, plain, call, truncated, ended).map(|ended| ended.notify::<K>(call))
}

/// Makes an operation that has ended in its call, or has not begun, what the caller gets.
fn finish<K: Kind>(
    worker: &Worker,
    plain: &ucp::Worker,
    call: &Call,
    truncated: Option<&Cell<RecvStatus>>,
    ended: Result<RecvStatus, Error>,
) -> Result<Ended, Status> {
    let in_callers_request = K::ENDS_IN_REQUEST && !call.request().is_null();
    let (message, error, began) = match ended {
        Ok(message) => (message, None, true),
        Err(error @ Error::Truncated { .. }) => (truncated.map_or(NOTHING, Cell::get), Some(error), true),
        Err(error) => (NOTHING, Some(error), false),
    };
    let returned = error.map_or(Ok(StatusPtr::OK), |error| Err(error.status()));
    if began {
        // SAFETY: the parameters of an operation of this kind name such memory, or none.
        unsafe { K::store(call.recv_info(), message) };
    }
    let is_called = call.always_request() && began;
    if !is_called && !in_callers_request {
        return returned.map(Ended::silent);
    }
    let callback = call.callback();
    let id = RequestId::ended(plain, message, error).map_err(Error::status)?;
    let handle = set_priv(id, worker, callback);
    if !is_called {
        return returned.map(Ended::silent);
    }
    let status = error.map_or(Status::Ok, Error::status);
    let called = (!callback.is_null()).then_some((status, message));
    Ok(Ended { returned: StatusPtr(handle), called })
}
