//! Profiles of UCX's macros, which programs that were built with them could record: refused.

use std::ffi::{c_char, c_int, c_uint, c_void};

use super::global::Global;
use crate::entry::{CStatus, invalid};

/// Names of the modes, with a null at the end.
#[allow(non_upper_case_globals)]
#[unsafe(no_mangle)]
pub(crate) static ucs_profile_mode_names: Global<[*const c_char; 3]> =
    Global::new([c"accum".as_ptr(), c"log".as_ptr(), std::ptr::null()]);

/// The profile of UCX's libraries: none.
#[allow(non_upper_case_globals)]
#[unsafe(no_mangle)]
pub(crate) static ucs_profile_default_ctx: Global<*mut c_void> = Global::new(std::ptr::null_mut());

entry! {
    /// Begins a profile. Without a mode there is nothing to record; modes are refused.
    fn ucs_profile_init(
        mode: c_uint,
        _file: *const c_char,
        _size: usize,
        profile: *mut *mut c_void,
    ) -> CStatus {
        if profile.is_null() {
            return Err(invalid("ucs_profile_init: the result is null"));
        }
        // SAFETY: the caller has room for the result.
        unsafe { profile.write(std::ptr::null_mut()) };
        if mode != 0 {
            crate::log::init_from_env();
            tracing::error!("ucs_profile_init: profiles are not recorded");
            return Err(::ucs::Status::Unsupported);
        }
        Ok(())
    }

    /// Ends a profile.
    fn ucs_profile_cleanup(_profile: *mut c_void) {
        Ok(())
    }

    /// Says that nothing is recorded of a place of the program, so that its macro does not call again.
    fn ucs_profile_record(
        _profile: *mut c_void,
        _kind: c_uint,
        _name: *const c_char,
        _param32: u32,
        _param64: u64,
        _file: *const c_char,
        _line: c_int,
        _function: *const c_char,
        place: *mut i16,
    ) {
        if !place.is_null() {
            // SAFETY: the caller's number of a place, which other threads write in the same way. Programs for
            // UCX 1.13 have one of 32 bits, whose other half stays as it is: their macros call again.
            unsafe { place.write_volatile(0) };
        }
        Ok(())
    }

    /// Writes a profile, of which there is none.
    fn ucs_profile_dump(_profile: *mut c_void) {
        Ok(())
    }
}
