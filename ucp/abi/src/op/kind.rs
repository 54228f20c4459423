//! Kinds of operations: the arguments of their callbacks, and where their results are stored.

use std::ffi::c_void;
use std::ptr::NonNull;

use ::ucs::Status;
use ucp::{OpStatus, RecvStatus};

use crate::types::TagInfo;

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

/// Result of a raw operation.
pub(crate) trait Message: Copy {
    /// The message received, if there is one.
    fn received(self) -> RecvStatus;

    /// Result of an operation that has ended in its call; one in progress has none.
    #[inline(always)]
    fn ended(status: OpStatus<Self>) -> RecvStatus {
        if let OpStatus::Done(message) = status { message.received() } else { RecvStatus::EMPTY }
    }
}

impl Message for () {
    #[inline(always)]
    fn received(self) -> RecvStatus {
        RecvStatus::EMPTY
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
