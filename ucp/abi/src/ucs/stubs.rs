//! Functions that programs put into tables of functions where nothing is to be done, and loaded modules, of
//! which there are none.

use std::ffi::{c_char, c_int, c_uint};

use crate::entry::CStatus;

/// Does nothing.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ucs_empty_function() {}

/// Does nothing, well.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ucs_empty_function_return_success() -> CStatus {
    CStatus(0)
}

/// Returns 0.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ucs_empty_function_return_zero() -> c_uint {
    0
}

/// Refuses.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ucs_empty_function_return_unsupported() -> CStatus {
    ::ucs::Status::Unsupported.into()
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
    fn ucs_load_modules(framework: *const c_char, modules: *const c_char, once: *mut InitOnce, _flags: c_uint) {
        if once.is_null() {
            return Err(::ucs::Status::InvalidParam);
        }
        // SAFETY: the caller passes a lock and a flag, for this use.
        unsafe {
            libc::pthread_mutex_lock(&raw mut (*once).lock);
            (*once).initialized = 1;
            libc::pthread_mutex_unlock(&raw mut (*once).lock);
        }
        let (framework, modules) = (crate::context::text_of(framework), crate::context::text_of(modules));
        tracing::debug!("modules of {framework} are not loaded: {modules:?}");
        Ok(())
    }
}
