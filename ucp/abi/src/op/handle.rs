//! Requests as the caller sees them. A request is the address behind a request block and two words of this
//! library: the caller's callback and the worker. The caller's own memory begins there.

use std::ffi::c_void;
use std::ptr::NonNull;

use ::ucs::Status;
use ucp::RequestId;

use crate::check::is_on;
use crate::entry::invalid;
use crate::worker::Worker;

/// Words of this library behind the block of a request.
#[repr(C)]
pub(crate) struct RequestPriv {
    pub worker: *const Worker,
    /// Callback of the caller; null: none.
    pub callback: *const c_void,
}

/// Bytes of [`RequestPriv`].
pub(crate) const PRIV_SIZE: usize = size_of::<RequestPriv>();

/// Bytes of a request below the address that the caller sees: `ucp_context_attr_t::request_size`.
pub(crate) const REQUEST_SIZE: usize = RequestId::SIZE + PRIV_SIZE;

/// Our words of a request.
// HOT
#[inline(always)]
fn priv_of(id: RequestId) -> NonNull<RequestPriv> {
    id.user_memory().cast()
}

/// The address that the caller sees.
// HOT
#[inline(always)]
pub(crate) fn handle_of(id: RequestId) -> *mut c_void {
    priv_of(id).as_ptr().wrapping_add(1).cast()
}

/// Our words of the request at an address that the caller sees.
/// # Safety
/// `handle` is null or a request that has not been freed.
// HOT
#[inline(always)]
unsafe fn priv_at(handle: *mut c_void) -> Result<NonNull<u8>, Status> {
    let handle = NonNull::new(handle.cast::<u8>()).ok_or_else(|| invalid("the request is null"))?;
    // SAFETY: this function's contract; the words lie before the address of a request.
    Ok(unsafe { handle.sub(PRIV_SIZE) })
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
    ucp::request_at(plain, handle.addr().checked_sub(PRIV_SIZE)?)
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
    // SAFETY: `set_priv` has written the words of every request that is handed out.
    let worker = unsafe { priv_of(id).as_ref() }.worker;
    // SAFETY: a worker frees its requests before it is freed.
    unsafe { crate::handle::from_ptr(worker) }
}

/// The caller's callback of a request; null: none.
// HOT
#[inline(always)]
pub(super) fn callback_of(id: RequestId) -> *const c_void {
    // SAFETY: `set_priv` has written the words of every request that is handed out.
    unsafe { priv_of(id).as_ref() }.callback
}

/// Writes our words of a request. Returns the address that the caller sees.
// HOT
#[inline(always)]
pub(crate) fn set_priv(id: RequestId, worker: &Worker, callback: *const c_void) -> *mut c_void {
    let handle = set_priv_unchecked(id, worker, callback);
    if is_on() {
        crate::check::add_request(handle, worker);
    }
    handle
}

/// [`set_priv`], where nothing is checked: [`is_on`] was false.
// HOT
#[inline(always)]
pub(crate) fn set_priv_unchecked(id: RequestId, worker: &Worker, callback: *const c_void) -> *mut c_void {
    // SAFETY: the two words behind the block are this library's.
    unsafe { priv_of(id).write(RequestPriv { worker, callback }) };
    handle_of(id)
}

/// Replaces the callback of a request by one that does nothing: the program has freed it.
pub(crate) fn clear_callback(id: RequestId) {
    extern "C" fn nothing() {}
    // SAFETY: `set_priv` has written the words of every request that is handed out. The convention of calls
    // lets a function ignore its arguments.
    unsafe { (&raw mut (*priv_of(id).as_ptr()).callback).write(nothing as extern "C" fn() as *const c_void) };
}
