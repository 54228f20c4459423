//! Requests: status, result, cancel, free.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::ptr::NonNull;

use ::ucs::Status;
use ucp::{Error, RecvStatus, RequestId};

use crate::arg::{AttrPtr, OutPtr};
use crate::check::{HELD_REQUESTS, argument, enter, is_on};
use crate::context::RequestUserArea;
use crate::entry::{CStatus, guard, invalid};
use crate::handle::checked;
use crate::op::{REQUEST_SIZE, clear_callback, id_of, request_at, set_priv, status_at, worker_of};
use crate::types::{RequestAttr, TagInfo};
use crate::worker::Worker;

/// Status of a request that the caller holds, and what it has received if it has ended.
/// # Safety
/// `request` is null or a request that has not been freed.
// HOT
#[inline(always)]
unsafe fn tested(request: *mut c_void) -> Result<(Status, Option<RecvStatus>), Status> {
    // SAFETY: this function's contract.
    match unsafe { status_at(request) }? {
        Status::InProgress => Ok((Status::InProgress, None)),
        // SAFETY: as above.
        status => Ok((status, unsafe { id_of(request) }?.info())),
    }
}

/// A status as the result of an entry point that returns one.
#[inline(always)]
pub(crate) fn as_result(status: Status) -> Result<(), Status> {
    if status == Status::Ok { Ok(()) } else { Err(status) }
}

/// The status of an entry point as the result of another.
pub(crate) fn as_result_of(status: CStatus) -> Result<(), Status> {
    match status {
        CStatus(0) => Ok(()),
        CStatus(code) => Err(Status::from_code(code.into()).unwrap_or(Status::IoError)),
    }
}

/// Whether a callback is called whose request the program frees before the operation has ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Free {
    /// It is not called: `ucp_request_free`.
    Silently,
    /// It is called: `ucp_request_release`.
    Called,
}

impl Free {
    #[inline(always)]
    fn run(self, plain: &ucp::Worker, id: RequestId) {
        match self {
            Free::Silently => plain.abandon(id),
            Free::Called => plain.free(id),
        }
    }
}

/// Frees a request of the library that has ended, of a worker of mode single; nothing is checked. False:
/// nothing has happened.
/// # Safety
/// `request` is null or a request that has not been freed.
// HOT
#[inline(always)]
unsafe fn free_ended(request: *mut c_void) -> bool {
    // SAFETY: this function's contract.
    if !is_on()
        && !request.is_null()
        // SAFETY: this function's contract.
        && let Ok(id) = unsafe { id_of(request) }
        && let Ok(worker) = worker_of(id)
        && let Some(plain) = worker.plain()
    {
        return !worker.allocated.is_used.get() && ucp::free_ended(plain, id);
    }
    false
}

/// Frees a request, or takes back one of `ucp_request_alloc`. It does not unwind, so that nothing is kept for
/// it. `CALLED`: a callback is called that has not been ([`Free`]).
/// # Safety
/// `request` is null or a request that has not been freed.
#[inline(never)]
unsafe extern "C" fn free<const CALLED: bool>(request: *mut c_void) {
    let (name, how) = match CALLED {
        false => ("ucp_request_free", Free::Silently),
        true => ("ucp_request_release", Free::Called),
    };
    if is_on() {
        // SAFETY: this function's contract.
        unsafe { enter(name, &[argument!(request)]) };
    }
    guard(name, || {
        // SAFETY: as above.
        let id = unsafe { id_of(request) }?;
        let worker = worker_of(id)?;
        worker.with_worker(|plain| {
            if !worker.allocated.is_used.get() {
                return how.run(plain, id);
            }
            if worker.allocated.put_back(request) {
                let is_running = id.status() == Some(Status::InProgress);
                if is_running {
                    how.run(plain, id);
                }
                return;
            }
            match crate::check::checks() {
                true => worker.allocated.hold_back(plain, (id, how)),
                false => how.run(plain, id),
            }
        })
    })
}

/// Frees a request, now or when its operation ends. Its callback is not called any more.
/// # Safety
/// `request` is null or a request that has not been freed.
// HOT
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ucp_request_free(request: *mut c_void) {
    // SAFETY: this function's contract.
    if !unsafe { free_ended(request) } {
        // SAFETY: as above.
        unsafe { free::<false>(request) };
    }
}

/// Frees a request, now or when its operation ends. Its callback is still called.
/// # Safety
/// As for [`ucp_request_free`].
// HOT
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ucp_request_release(request: *mut c_void) {
    // SAFETY: this function's contract.
    if !unsafe { free_ended(request) } {
        // SAFETY: as above.
        unsafe { free::<true>(request) };
    }
}

/// Requests of `ucp_request_alloc`, and those that `UCX_CHECK=y` holds back, used inside the worker's lock.
pub(crate) struct Allocated {
    /// Whether a request that is freed may be one of these.
    is_used: Cell<bool>,
    /// Freed requests of the library that serve no other operation, the oldest first.
    held: RefCell<VecDeque<(RequestId, Free)>>,
    room: RequestUserArea,
    all: RefCell<Vec<Box<[u128]>>>,
    /// Those that the program has given back. An operation may still run in one.
    free: RefCell<Vec<*mut c_void>>,
}

impl Allocated {
    pub(crate) fn new(room: RequestUserArea) -> Allocated {
        Allocated {
            is_used: Cell::new(crate::check::checks()),
            held: RefCell::default(),
            room,
            all: RefCell::default(),
            free: RefCell::default(),
        }
    }

    /// Frees a request when many more have been freed. Its callback is not called if it is not to be.
    fn hold_back(&self, plain: &ucp::Worker, (id, how): (RequestId, Free)) {
        if how == Free::Silently {
            clear_callback(id);
        }
        let oldest = {
            let mut held = self.held.borrow_mut();
            held.push_back((id, how));
            if held.len() > HELD_REQUESTS { held.pop_front() } else { None }
        };
        if let Some((id, how)) = oldest {
            how.run(plain, id);
        }
    }

    /// Frees the requests that have been held back.
    pub(crate) fn release_held(&self, plain: &ucp::Worker) {
        let held = std::mem::take(&mut *self.held.borrow_mut());
        for (id, how) in held {
            how.run(plain, id);
        }
    }

    /// Address of a request, as the program sees it.
    fn handle(memory: &[u128]) -> *mut c_void {
        memory.as_ptr().cast::<u8>().wrapping_add(REQUEST_SIZE).cast_mut().cast()
    }

    fn take(&self, worker: &Worker, plain: &ucp::Worker) -> Result<*mut c_void, Status> {
        let mut free = self.free.borrow_mut();
        // SAFETY: the memory of these requests is this object's.
        let status = |request: &*mut c_void| unsafe { status_at(*request) };
        let has_ended = |request: &*mut c_void| status(request).is_ok_and(|is| is != Status::InProgress);
        let reused = if crate::check::checks() { None } else { free.iter().position(has_ended) };
        if let Some(at) = reused {
            let handle = free.swap_remove(at);
            crate::check::add_allocated(handle, worker);
            return Ok(handle);
        }
        let mut memory = vec![0_u128; (REQUEST_SIZE + self.room.size).div_ceil(16)].into_boxed_slice();
        let start = NonNull::new(memory.as_mut_ptr().cast::<u8>()).ok_or(Status::NoMemory)?;
        let ended = || RequestId::ended(plain, RecvStatus::EMPTY, None);
        // SAFETY: the memory is this object's, long enough, and outlives the engine.
        let id = unsafe { plain.with_request_memory(start, ended) }.map_err(Error::status)?;
        let handle = set_priv(id, worker, std::ptr::null());
        crate::check::add_allocated(handle, worker);
        if let Some(init) = self.room.init {
            // SAFETY: the program's function, with memory of the length that it asked for.
            unsafe { init(handle) };
        }
        self.all.borrow_mut().push(memory);
        self.is_used.set(true);
        Ok(handle)
    }

    /// Takes a request back. `false`: it is none of these.
    #[cold]
    fn put_back(&self, request: *mut c_void) -> bool {
        let is_one = self.all.borrow().iter().any(|memory| Allocated::handle(memory) == request);
        if is_one && !self.free.borrow().contains(&request) {
            self.free.borrow_mut().push(request);
        }
        is_one
    }
}

impl Drop for Allocated {
    fn drop(&mut self) {
        let Some(cleanup) = self.room.cleanup else { return };
        for memory in self.all.get_mut() {
            // SAFETY: the program's function, called once for each.
            unsafe { cleanup(Allocated::handle(memory)) };
        }
    }
}

/// Status of a request: in progress, well, or the error it has ended with.
/// # Safety
/// `request` is null or a request that has not been freed.
// HOT
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ucp_request_check_status(request: *mut c_void) -> CStatus {
    if is_on() || request.is_null() {
        // SAFETY: this function's contract.
        return unsafe { check_status(request) };
    }
    // SAFETY: this function's contract.
    unsafe { status_at(request) }.unwrap_or_else(|error| error).into()
}

/// [`ucp_request_check_status`] of a request that is null, or is checked.
/// # Safety
/// As for [`ucp_request_check_status`].
#[cold]
#[inline(never)]
unsafe extern "C" fn check_status(request: *mut c_void) -> CStatus {
    // SAFETY: this function's contract.
    unsafe { enter("ucp_request_check_status", &[argument!(request)]) };
    // SAFETY: as above.
    guard("ucp_request_check_status", || as_result(unsafe { status_at(request) }?))
}

entry! {
    /// Status of a receive, and what it has received.
    fn ucp_tag_recv_request_test(request: *mut c_void, info: OutPtr<TagInfo>) -> CStatus {
        // SAFETY: the caller's contract.
        let (status, message) = unsafe { tested(request) }?;
        if let Some(message) = message {
            info.store(TagInfo { sender_tag: message.tag, length: message.len })?;
        }
        as_result(status)
    }

    /// Old name of [`ucp_tag_recv_request_test`].
    fn ucp_request_test(request: *mut c_void, info: OutPtr<TagInfo>) -> CStatus {
        // SAFETY: the caller's contract.
        let (status, message) = unsafe { tested(request) }?;
        if let Some(message) = message.filter(|_| !info.is_null()) {
            info.store(TagInfo { sender_tag: message.tag, length: message.len })?;
        }
        as_result(status)
    }

    /// Status of a stream's receive, and its length.
    fn ucp_stream_recv_request_test(request: *mut c_void, length: OutPtr<usize>) -> CStatus {
        // SAFETY: the caller's contract.
        let (status, message) = unsafe { tested(request) }?;
        if let Some(message) = message {
            length.store(message.len)?;
        }
        as_result(status)
    }

    /// Whether a request has ended.
    fn ucp_request_is_completed(request: *mut c_void) -> c_int {
        // SAFETY: the caller's contract.
        Ok(c_int::from(unsafe { status_at(request) }? != Status::InProgress))
    }

    /// Cancels an operation, if that is still possible: a receive until it has matched, a send until
    /// something of it has gone out. Its callback is called with the status, within this call if it is a send
    /// or a receive. Anything but a request of this worker is not looked at.
    fn ucp_request_cancel(worker: *mut Worker, request: *mut c_void) {
        let worker = checked(worker)?;
        if request.is_null() {
            return Err(invalid("the request is null"));
        }
        worker.with_worker(|plain| match request_at(plain, request) {
            Some(id) => {
                let _ = ucp::cancel_now(plain, id);
            }
            None => tracing::debug!("ucp_request_cancel: no operation of the worker runs at {request:p}"),
        })
    }

    /// Makes a request for [`UCP_OP_ATTR_FIELD_REQUEST`](crate::types::op_attr::REQUEST), one operation at a
    /// time. `ucp_request_free` takes it back.
    fn ucp_request_alloc(worker: *mut Worker) -> *mut c_void {
        let worker = checked(worker)?;
        worker.with_worker(|plain| worker.allocated.take(worker, plain))?
    }

    /// Status, memory type and description of a request.
    fn ucp_request_query(request: *mut c_void, attr: AttrPtr<RequestAttr>) -> CStatus {
        // SAFETY: the caller's contract.
        let status = unsafe { status_at(request) }?;
        let attr = attr.fields("ucp_request_query")?;
        answer!(attr, 1 << 2, status = status.into());
        answer!(attr, 1 << 3, mem_type = 0);
        let text = field!(attr, 1 << 0, debug_string);
        let size = field!(attr, 1 << 1, debug_string_size);
        if let (Some(text), Some(size)) = (text, size) {
            // SAFETY: the caller's contract.
            unsafe { crate::info::fill_string(text, size, &format!("request {request:p}: {status}")) };
        }
        Ok(())
    }
}
