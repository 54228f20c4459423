//! Operations: the caller's parameters, and the status pointer that the start of a raw operation becomes.
//!
//! A request that the caller sees is the address behind a request block and two words of this library: the
//! caller's callback and the worker. The caller's own memory begins there.

use std::cell::Cell;
use std::ffi::c_void;
use std::ptr::NonNull;

use ::ucs::Status;
use ucp::{Callback, Error, OpStatus, RecvStatus, RequestId};

use crate::entry::StatusPtr;
use crate::mem::Mem;
use crate::types::{RequestParam, TagInfo, op_attr};
use crate::worker::Worker;

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
    /// The operation ends in the call, or does not begin.
    pub only_now: bool,
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
            only_now: false,
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
        self.always_request = mask & op_attr::NO_IMM_CMPL != 0;
        self.only_now = mask & op_attr::FORCE_IMM_CMPL != 0;
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

/// Kind of an operation: which arguments its callback gets, and how its result is told in the call.
pub(crate) trait Kind {
    /// Result of the raw operation.
    type Message: Copy + Into<Told>;
    /// Calls the caller's callback.
    unsafe fn call(
        callback: *const c_void,
        handle: *mut c_void,
        status: Status,
        told: Told,
        arg: *mut c_void,
    );
    /// Stores the result of an operation that ended in the call where the caller wants it.
    fn store(_info: *mut c_void, _told: Told) {}
}

/// Message of an ended operation.
#[derive(Clone, Copy)]
pub(crate) struct Told(pub RecvStatus);

/// The status of an operation that received nothing.
pub(crate) const NOTHING: RecvStatus =
    RecvStatus { len: 0, tag: 0, from: ucp::PeerId(u32::MAX), cq_data: None };

impl From<()> for Told {
    fn from((): ()) -> Told {
        Told(NOTHING)
    }
}

impl From<RecvStatus> for Told {
    fn from(status: RecvStatus) -> Told {
        Told(status)
    }
}

/// Sends, flushes and all else whose callback gets no result.
pub(crate) struct Send;
/// Operations of the engine with a result that the callback does not get: gets and atomics.
pub(crate) struct Fetch;
/// Receives of tagged messages.
pub(crate) struct TagRecv;
/// Receives of streams and active messages' data: the callback gets the length.
pub(crate) struct LengthRecv;

type SendCb = unsafe extern "C" fn(*mut c_void, i8, *mut c_void);
type TagRecvCb = unsafe extern "C" fn(*mut c_void, i8, *const TagInfo, *mut c_void);
type LengthCb = unsafe extern "C" fn(*mut c_void, i8, usize, *mut c_void);

unsafe fn call_send(callback: *const c_void, handle: *mut c_void, status: Status, arg: *mut c_void) {
    // SAFETY: the caller passed a function of this type, or of the one without the last argument.
    let call: SendCb = unsafe { std::mem::transmute(callback) };
    // SAFETY: as above.
    unsafe { call(handle, status as i8, arg) };
}

impl Kind for Send {
    type Message = ();
    unsafe fn call(callback: *const c_void, handle: *mut c_void, status: Status, _: Told, arg: *mut c_void) {
        // SAFETY: this function's contract.
        unsafe { call_send(callback, handle, status, arg) };
    }
}

impl Kind for Fetch {
    type Message = RecvStatus;
    unsafe fn call(callback: *const c_void, handle: *mut c_void, status: Status, _: Told, arg: *mut c_void) {
        // SAFETY: this function's contract.
        unsafe { call_send(callback, handle, status, arg) };
    }
}

impl Kind for TagRecv {
    type Message = RecvStatus;
    unsafe fn call(
        callback: *const c_void,
        handle: *mut c_void,
        status: Status,
        told: Told,
        arg: *mut c_void,
    ) {
        // SAFETY: the caller passed a function of this type, or of the one without the last argument.
        let call: TagRecvCb = unsafe { std::mem::transmute(callback) };
        let info = TagInfo { sender_tag: told.0.tag, length: told.0.len };
        // SAFETY: as above.
        unsafe { call(handle, status as i8, &info, arg) };
    }

    fn store(info: *mut c_void, told: Told) {
        if let Some(info) = NonNull::new(info.cast::<TagInfo>()) {
            // SAFETY: the caller passed memory for the result.
            unsafe { info.write(TagInfo { sender_tag: told.0.tag, length: told.0.len }) };
        }
    }
}

impl Kind for LengthRecv {
    type Message = RecvStatus;
    unsafe fn call(
        callback: *const c_void,
        handle: *mut c_void,
        status: Status,
        told: Told,
        arg: *mut c_void,
    ) {
        // SAFETY: the caller passed a function of this type, or of the one without the last argument.
        let call: LengthCb = unsafe { std::mem::transmute(callback) };
        // SAFETY: as above.
        unsafe { call(handle, status as i8, told.0.len, arg) };
    }

    fn store(info: *mut c_void, told: Told) {
        if let Some(length) = NonNull::new(info.cast::<usize>()) {
            // SAFETY: the caller passed memory for the result.
            unsafe { length.write(told.0.len) };
        }
    }
}

/// Called by progress when an operation with a callback has ended.
unsafe fn on_end<K: Kind>(arg: *mut (), id: RequestId, ended: Result<RecvStatus, Error>) {
    // SAFETY: `finish` has written the words before progress could run.
    let callback = unsafe { private(id).as_ref() }.callback;
    let status = ended.map_or_else(Error::status, |_| Status::Ok);
    // A truncated message keeps its tag in the request.
    let told = ended.ok().or_else(|| id.info()).unwrap_or(NOTHING);
    // SAFETY: the caller's contract.
    unsafe { K::call(callback, handle_of(id), status, Told(told), arg.cast()) };
}

/// Tells where a receive that is truncated within the call leaves the message's tag and length.
pub(crate) type Truncated = Cell<RecvStatus>;

/// Starts an operation with `start`, inside the worker's lock, and makes its outcome what the caller gets.
/// `truncated` has the message of [`Error::Truncated`].
/// # Safety
/// `start` starts at most one operation. What the operation uses stays valid until it has ended, by the
/// caller's contract. // HOT
#[inline(always)]
pub(crate) unsafe fn run<K: Kind>(
    worker: &Worker,
    plain: &ucp::Worker,
    call: &Call,
    truncated: Option<&Truncated>,
    start: impl FnOnce(Option<Callback>) -> Result<OpStatus<K::Message>, Error>,
) -> Result<StatusPtr, Status> {
    let done =
        (!call.callback.is_null()).then_some(Callback { fun: on_end::<K>, arg: call.user_data.cast() });
    if call.request.is_null() {
        let started = start(done);
        if let (Ok(OpStatus::Done(message)), false) = (&started, call.always_request) {
            if !call.recv_info.is_null() {
                K::store(call.recv_info, (*message).into());
            }
            return Ok(StatusPtr::OK);
        }
        return finish::<K>(worker, plain, call, truncated, started);
    }
    let memory =
        NonNull::new(call.request.cast::<u8>().wrapping_sub(REQUEST_SIZE)).ok_or(Status::InvalidParam)?;
    let in_memory = || finish::<K>(worker, plain, call, truncated, start(done));
    // SAFETY: the caller has `REQUEST_SIZE` bytes there for this operation.
    unsafe { plain.with_request_memory(memory, in_memory) }
}

/// Makes the start of an operation what the caller gets.
fn finish<K: Kind>(
    worker: &Worker,
    plain: &ucp::Worker,
    call: &Call,
    truncated: Option<&Truncated>,
    started: Result<OpStatus<K::Message>, Error>,
) -> Result<StatusPtr, Status> {
    let set_words = |id: RequestId| {
        let words = Private { worker, callback: call.callback };
        // SAFETY: the two words behind the block are this library's.
        unsafe { private(id).write(words) };
    };
    let ended = match started {
        Ok(OpStatus::InProgress(id)) => {
            set_words(id);
            if call.only_now && plain.cancel(id) {
                plain.free(id);
                return Err(Status::NoResource);
            }
            return Ok(StatusPtr(handle_of(id)));
        }
        Ok(OpStatus::Done(message)) => Ok(message.into()),
        Err(error) => Err(error),
    };
    let told = match ended {
        Ok(told) => told,
        Err(Error::Truncated { .. }) => Told(truncated.map_or(NOTHING, Cell::get)),
        Err(_) => Told(NOTHING),
    };
    let status = ended.as_ref().map_or_else(|error| error.status(), |_| Status::Ok);
    if !call.recv_info.is_null() {
        K::store(call.recv_info, told);
    }
    // The operation never began: there is no request to tell it by.
    let never_began = matches!(&ended, Err(error) if !matches!(error, Error::Truncated { .. }));
    if never_began || !call.always_request {
        return if status == Status::Ok { Ok(StatusPtr::OK) } else { Err(status) };
    }
    let id = RequestId::ended(plain, told.0, ended.err()).map_err(Error::status)?;
    set_words(id);
    if !call.callback.is_null() {
        // SAFETY: the caller's contract.
        unsafe { K::call(call.callback, handle_of(id), status, told, call.user_data) };
    }
    Ok(StatusPtr(handle_of(id)))
}
