//! Operations: the caller's parameters, and the status pointer that the start of a raw operation becomes.
//!
//! A request that the caller sees is the address behind a request block and two words of this library: the
//! caller's callback and the worker. The caller's own memory begins there.

use std::cell::Cell;
use std::ffi::c_void;
use std::ptr::NonNull;

use ::ucs::Status;
use ucp::{Callback, Error, OpStatus, RecvStatus, RequestId};

use crate::datatype::{Data, Use};
use crate::entry::StatusPtr;
use crate::mem::Mem;
use crate::types::{RequestParam, TagInfo, op_attr};
use crate::worker::Worker;

/// Frees the request of a started operation, which a flush completes. Returns whether it still runs.
pub(crate) fn let_run(started: StatusPtr) -> Result<bool, Status> {
    if started == StatusPtr::OK {
        return Ok(false);
    }
    let id = id_of(started.0)?;
    worker_of(id)?.inside(|plain| plain.free(id)).map(|()| true)
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

/// Our words of a request. // HOT
#[inline(always)]
fn private(id: RequestId) -> NonNull<Private> {
    id.user_memory().cast()
}

/// The address that the caller sees. // HOT
#[inline(always)]
pub(crate) fn handle_of(id: RequestId) -> *mut c_void {
    private(id).as_ptr().wrapping_add(1).cast()
}

/// The request at an address that the caller sees. // HOT
#[inline(always)]
pub(crate) fn id_of(handle: *mut c_void) -> Result<RequestId, Status> {
    let at = NonNull::new(handle.cast::<u8>().wrapping_sub(PRIVATE_SIZE)).filter(|_| !handle.is_null());
    // SAFETY: requests that the caller holds have not been freed.
    at.map(|at| unsafe { RequestId::from_user_memory(at) }).ok_or(Status::InvalidParam)
}

/// The worker of a request.
pub(crate) fn worker_of<'a>(id: RequestId) -> Result<&'a Worker, Status> {
    // SAFETY: `finish` has written the words of every request that is handed out.
    let worker = unsafe { private(id).as_ref() }.worker;
    crate::handle::given(worker)
}

/// Writes our words of a request. Returns the address that the caller sees. // HOT
#[inline(always)]
pub(crate) fn set_words(id: RequestId, worker: &Worker, callback: *const c_void) -> *mut c_void {
    // SAFETY: the two words behind the block are this library's.
    unsafe { private(id).write(Private { worker, callback }) };
    let handle = handle_of(id);
    if crate::check::is_on() {
        crate::check::add_request(handle, worker);
    }
    handle
}

/// Parameters of an operation, as far as the caller has set them.
#[derive(Clone, Copy)]
pub(crate) struct Call {
    /// Callback; null: none.
    pub callback: *const c_void,
    pub user_data: *mut c_void,
    /// Memory of the caller for the request, as the caller sees it.
    pub request: *mut c_void,
    /// A request is returned, and the callback called, even if the operation ends in the call.
    pub always_request: bool,
    pub flags: u32,
    pub datatype: u64,
    /// Where the result of a receive goes, if it ends in the call.
    pub recv_info: *mut c_void,
    pub memh: *const Mem,
    pub reply_buffer: *mut c_void,
}

/// `ucp_dt_make_contig(1)`.
pub(crate) const BYTES: u64 = 1 << 3;

impl Call {
    /// An operation with a callback of the old interface, which gets two or three arguments.
    pub(crate) fn with_callback(callback: *const c_void, datatype: u64) -> Call {
        Call {
            callback,
            user_data: std::ptr::null_mut(),
            request: std::ptr::null_mut(),
            always_request: false,
            flags: 0,
            datatype,
            recv_info: std::ptr::null_mut(),
            memh: std::ptr::null(),
            reply_buffer: std::ptr::null_mut(),
        }
    }

    /// An operation whose request is in memory of the caller.
    pub(crate) fn in_request(request: *mut c_void, datatype: u64) -> Call {
        Call { request, always_request: true, ..Call::with_callback(std::ptr::null(), datatype) }
    }

    /// Reads the fields that are set. // HOT
    #[inline(always)]
    pub(crate) fn read(param: *const RequestParam) -> Result<Call, Status> {
        if param.is_null() {
            return Err(Status::InvalidParam);
        }
        // SAFETY: every such structure begins with its mask.
        let mask = unsafe { (&raw const (*param).op_attr_mask).read() };
        let mut call = Call::with_callback(std::ptr::null(), BYTES);
        if mask == 0 {
            return Ok(call);
        }
        if let Some(callback) = field!(param, mask, op_attr::CALLBACK, cb) {
            call.callback = callback;
        }
        if let Some(user_data) = field!(param, mask, op_attr::USER_DATA, user_data) {
            call.user_data = user_data;
        }
        if let Some(datatype) = field!(param, mask, op_attr::DATATYPE, datatype) {
            call.datatype = datatype;
        }
        const COMMON: u32 = op_attr::CALLBACK | op_attr::USER_DATA | op_attr::DATATYPE;
        if mask & !COMMON != 0 {
            call.read_rest(param, mask)?;
        }
        Ok(call)
    }

    fn read_rest(&mut self, param: *const RequestParam, mask: u32) -> Result<(), Status> {
        if let Some(request) = field!(param, mask, op_attr::REQUEST, request) {
            self.request = request;
        }
        if let Some(flags) = field!(param, mask, op_attr::FLAGS, flags) {
            self.flags = flags;
        }
        if let Some(reply_buffer) = field!(param, mask, op_attr::REPLY_BUFFER, reply_buffer) {
            self.reply_buffer = reply_buffer;
        }
        if let Some(recv_info) = field!(param, mask, op_attr::RECV_INFO, recv_info) {
            self.recv_info = recv_info;
        }
        if let Some(memh) = field!(param, mask, op_attr::MEMH, memh) {
            self.memh = memh;
        }
        if mask & (op_attr::REMOTE | op_attr::REMOTE_DATATYPE) != 0 {
            tracing::error!("remote lists of operations (UCP_OP_ATTR_FIELD_REMOTE) are not supported");
            return Err(Status::Unsupported);
        }
        if mask & op_attr::FORCE_IMM_CMPL != 0 {
            // Nothing is started. Short messages are then tried (`send_now`).
            return Err(Status::NoResource);
        }
        self.always_request = mask & op_attr::NO_IMM_CMPL != 0;
        Ok(())
    }

    /// Registered memory that the caller names.
    #[inline(always)]
    pub(crate) fn mem<'a>(&self) -> Option<&'a ucp::Mem> {
        if self.memh.is_null() { None } else { self.named_mem() }
    }

    #[cold]
    fn named_mem<'a>(&self) -> Option<&'a ucp::Mem> {
        crate::handle::given(self.memh).ok().and_then(|mem| mem.mem.as_ref())
    }
}

/// Parameters of an operation that ends in its call or fails (`UCP_OP_ATTR_FLAG_FORCE_IMM_CMPL`).
pub(crate) struct Forced {
    datatype: u64,
    pub flags: u32,
}

impl Forced {
    /// Reads the parameters, if `status` is what [`Call::read`] says of such an operation.
    #[cold]
    pub(crate) fn of(param: *const RequestParam, status: Status) -> Result<Forced, Status> {
        if status != Status::NoResource {
            return Err(status);
        }
        // SAFETY: every such structure begins with its mask, and `Call::read` has refused null.
        let mask = unsafe { (&raw const (*param).op_attr_mask).read() };
        let datatype = field!(param, mask, op_attr::DATATYPE, datatype).unwrap_or(BYTES);
        Ok(Forced { datatype, flags: field!(param, mask, op_attr::FLAGS, flags).unwrap_or(0) })
    }

    /// Contiguous data of the caller; other data cannot be sent so.
    pub(crate) fn data(&self, buffer: *const c_void, count: usize) -> Result<Data, Status> {
        if self.datatype & 7 != 0 {
            return Err(Status::NoResource);
        }
        Data::new(buffer, count, self.datatype, Use::Pack)
    }
}

/// Kind of an operation: the arguments that its callback gets, and where its result is stored.
pub(crate) trait Kind {
    /// Whether a request in memory of the caller tells the result even if the operation ends in the call: MPI
    /// libraries ignore what a receive returns, and test the request.
    const ENDS_IN_REQUEST: bool;
    /// Calls the caller's callback.
    unsafe fn call(
        callback: *const c_void,
        handle: *mut c_void,
        status: Status,
        message: RecvStatus,
        arg: *mut c_void,
    );
    /// Stores the result of an operation that ended in the call where the caller wants it.
    fn store(_info: *mut c_void, _message: RecvStatus) {}
}

/// The status of an operation that received nothing.
pub(crate) const NOTHING: RecvStatus =
    RecvStatus { len: 0, tag: 0, from: ucp::PeerId(u32::MAX), cq_data: None };

/// Result of a raw operation.
pub(crate) trait Message: Copy {
    /// The message received, if there is one.
    fn received(self) -> RecvStatus;
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

    fn store(info: *mut c_void, message: RecvStatus) {
        if let Some(info) = NonNull::new(info.cast::<TagInfo>()) {
            // SAFETY: the caller passed memory for the result.
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

    fn store(info: *mut c_void, message: RecvStatus) {
        if let Some(length) = NonNull::new(info.cast::<usize>()) {
            // SAFETY: the caller passed memory for the result.
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
/// caller's contract. // HOT
#[inline(always)]
pub(crate) unsafe fn run<K: Kind, M: Message>(
    worker: &Worker,
    plain: &ucp::Worker,
    call: &Call,
    truncated: Option<&Cell<RecvStatus>>,
    start: impl FnOnce(Option<Callback>) -> Result<OpStatus<M>, Error>,
) -> Result<StatusPtr, Status> {
    let done =
        (!call.callback.is_null()).then_some(Callback { fun: on_end::<K>, arg: call.user_data.cast() });
    if call.request.is_null() {
        let started = start(done);
        if let (Ok(OpStatus::Done(message)), false) = (&started, call.always_request) {
            K::store(call.recv_info, message.received());
            return Ok(StatusPtr::OK);
        }
        return finish::<K, M>(worker, plain, call, truncated, started);
    }
    let memory =
        NonNull::new(call.request.cast::<u8>().wrapping_sub(REQUEST_SIZE)).ok_or(Status::InvalidParam)?;
    let in_memory = || finish::<K, M>(worker, plain, call, truncated, start(done));
    // SAFETY: the caller has `REQUEST_SIZE` bytes there for this operation.
    unsafe { plain.with_request_memory(memory, in_memory) }
}

/// Makes the start of an operation what the caller gets.
fn finish<K: Kind, M: Message>(
    worker: &Worker,
    plain: &ucp::Worker,
    call: &Call,
    truncated: Option<&Cell<RecvStatus>>,
    started: Result<OpStatus<M>, Error>,
) -> Result<StatusPtr, Status> {
    let set_words = |id: RequestId| set_words(id, worker, call.callback);
    let in_callers_request = K::ENDS_IN_REQUEST && !call.request.is_null();
    let (message, error, began) = match started {
        Ok(OpStatus::InProgress(id)) => return Ok(StatusPtr(set_words(id))),
        Ok(OpStatus::Done(message)) => (message.received(), None, true),
        Err(error @ Error::Truncated { .. }) => (truncated.map_or(NOTHING, Cell::get), Some(error), true),
        Err(error) => (NOTHING, Some(error), false),
    };
    let returned = error.map_or(Ok(StatusPtr::OK), |error| Err(error.status()));
    if began {
        K::store(call.recv_info, message);
    }
    let is_called = call.always_request && began;
    if !is_called && !in_callers_request {
        return returned;
    }
    let id = RequestId::ended(plain, message, error).map_err(Error::status)?;
    let handle = set_words(id);
    if !is_called {
        return returned;
    }
    if !call.callback.is_null() {
        let status = error.map_or(Status::Ok, Error::status);
        // SAFETY: the caller's contract.
        unsafe { K::call(call.callback, handle, status, message, call.user_data) };
    }
    Ok(StatusPtr(handle))
}
