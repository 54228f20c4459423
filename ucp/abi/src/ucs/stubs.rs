//! Stub functions that programs put into function tables (`ucs_empty_function_*`), and `ucs_load_modules`,
//! which loads nothing.

use std::ffi::{c_int, c_uint};

use ::ucs::Status;

use crate::arg::StrPtr;
use crate::entry::{CStatus, StatusPtr};

/// Functions without an effect, which return a value.
macro_rules! constant {
    ($($(#[$meta:meta])* fn $name:ident -> $Ret:ty = $value:expr;)+) => {$(
        $(#[$meta])*
        #[unsafe(no_mangle)]
        pub(crate) extern "C" fn $name() -> $Ret {
            $value
        }
    )+};
}

constant! {
    /// Does nothing.
    fn ucs_empty_function -> () = ();
    /// Returns `UCS_OK`.
    fn ucs_empty_function_return_success -> CStatus = CStatus(0);
    /// Returns 0.
    fn ucs_empty_function_return_zero -> c_uint = 0;
    /// Returns 0.
    fn ucs_empty_function_return_zero_int -> c_int = 0;
    /// Returns 0.
    fn ucs_empty_function_return_zero_int64 -> i64 = 0;
    /// Returns 0.
    fn ucs_empty_function_return_zero_size_t -> usize = 0;
    /// Returns 1.
    fn ucs_empty_function_return_one -> c_uint = 1;
    /// Returns 1.
    fn ucs_empty_function_return_one_int -> c_int = 1;
    /// Refuses.
    fn ucs_empty_function_return_unsupported -> CStatus = Status::Unsupported.into();
    /// Returns `UCS_INPROGRESS`.
    fn ucs_empty_function_return_inprogress -> CStatus = Status::InProgress.into();
    /// Returns `UCS_ERR_NO_RESOURCE`.
    fn ucs_empty_function_return_no_resource -> CStatus = Status::NoResource.into();
    /// Returns `UCS_ERR_INVALID_PARAM`.
    fn ucs_empty_function_return_invalid_param -> CStatus = Status::InvalidParam.into();
    /// Returns `UCS_ERR_BUSY`.
    fn ucs_empty_function_return_busy -> CStatus = Status::Busy.into();
    /// Returns `UCS_ERR_ENDPOINT_TIMEOUT`.
    fn ucs_empty_function_return_ep_timeout -> CStatus = Status::EndpointTimeout.into();
    /// Returns `UCS_ERR_ENDPOINT_TIMEOUT` as a length.
    fn ucs_empty_function_return_bc_ep_timeout -> isize = Status::EndpointTimeout.code() as isize;
    /// Returns `UCS_ERR_NO_RESOURCE` as a status pointer.
    fn ucs_empty_function_return_ptr_no_resource -> StatusPtr = StatusPtr::error(Status::NoResource);
}

entry! {
    /// Logs an error: the table slot of a removed function was called.
    fn ucs_empty_function_do_assert() -> c_int {
        Ok(log_stub_call())
    }

    /// Logs an error: the table slot of a removed function was called.
    fn ucs_empty_function_do_assert_void() {
        log_stub_call();
        Ok(())
    }
}

/// Reports the call of a function that stands for none.
fn log_stub_call() -> c_int {
    crate::log::init_from_env();
    tracing::error!("a stub for a missing function was called (ucs_empty_function_do_assert)");
    0
}

/// `ucs_init_once_t`.
#[repr(C)]
pub(crate) struct InitOnce {
    lock: libc::pthread_mutex_t,
    initialized: c_int,
}

entry! {
    /// Loads the modules of a framework, once. They are parts of UCX for memory of devices, and link with
    /// its libraries: none is loaded.
    fn ucs_load_modules(framework: StrPtr, modules: StrPtr, once: *mut InitOnce, _flags: c_uint) {
        if once.is_null() {
            return Err(Status::InvalidParam);
        }
        // SAFETY: the caller passes a lock and a flag, for this use.
        unsafe {
            libc::pthread_mutex_lock(&raw mut (*once).lock);
            (*once).initialized = 1;
            libc::pthread_mutex_unlock(&raw mut (*once).lock);
        }
        let (framework, modules) = (framework.text(), modules.text());
        tracing::debug!("modules of {framework} are not loaded: {modules:?}");
        Ok(())
    }
}
