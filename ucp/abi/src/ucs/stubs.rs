//! Functions that programs put into tables of functions where nothing is to be done, and loaded modules, of
//! which there are none.

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
    /// Does nothing, well.
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
    /// Goes on, for ever.
    fn ucs_empty_function_return_inprogress -> CStatus = Status::InProgress.into();
    /// Has no resources.
    fn ucs_empty_function_return_no_resource -> CStatus = Status::NoResource.into();
    /// Refuses a parameter.
    fn ucs_empty_function_return_invalid_param -> CStatus = Status::InvalidParam.into();
    /// Is busy.
    fn ucs_empty_function_return_busy -> CStatus = Status::Busy.into();
    /// Has failed for lack of an answer.
    fn ucs_empty_function_return_ep_timeout -> CStatus = Status::EndpointTimeout.into();
    /// Has failed for lack of an answer, as a length.
    fn ucs_empty_function_return_bc_ep_timeout -> isize = Status::EndpointTimeout.code() as isize;
    /// Has no resources, in place of a request.
    fn ucs_empty_function_return_ptr_no_resource -> StatusPtr = StatusPtr::error(Status::NoResource);
}

entry! {
    /// Is not meant to be called: reports that. Tables have it for options that are no longer there.
    fn ucs_empty_function_do_assert() -> c_int {
        Ok(not_meant())
    }

    /// Is not meant to be called: reports that.
    fn ucs_empty_function_do_assert_void() {
        not_meant();
        Ok(())
    }
}

/// Reports the call of a function that stands for none.
fn not_meant() -> c_int {
    crate::log::init_from_env();
    tracing::error!("a function was called that stands for one that there is not");
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
