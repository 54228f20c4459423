//! Options that are texts, and functions for options of any type.

use std::ffi::{CStr, c_char, c_int, c_void};

use ::ucs::Status;

use super::super::global::LogComponent;
use super::value::{PlacePtr, TextPtr, ValuePtr, load, show, show_text, store};
use super::{bytes_of, string};
use crate::entry::CStatus;

/// A copy of a text, in memory of `malloc`.
pub(super) fn duplicate(text: &CStr) -> Result<*mut c_char, Status> {
    // SAFETY: the text ends with a zero.
    let copy = unsafe { libc::strdup(text.as_ptr()) };
    if copy.is_null() { Err(Status::NoMemory) } else { Ok(copy) }
}

entry! {
    /// Reads a text: a copy of it.
    fn ucs_config_sscanf_string(text: *const c_char, to: PlacePtr, _arg: *const c_void) -> c_int {
        // SAFETY: the caller passes a string or null.
        let text = unsafe { string(text, "the text of an option") }?;
        store(to, Some(duplicate(text)?))
    }

    /// Prints a text.
    fn ucs_config_sprintf_string(to: TextPtr, size: usize, from: ValuePtr, _arg: *const c_void) -> c_int {
        // SAFETY: the caller's contract.
        show_text(to, size, unsafe { bytes_of(load::<*const c_char>(from)?) })
    }

    /// Copies a text.
    fn ucs_config_clone_string(from: ValuePtr, to: PlacePtr, _arg: *const c_void) -> CStatus {
        let text = load::<*const c_char>(from)?;
        // SAFETY: the option is a string or null.
        let copy = if text.is_null() { std::ptr::null_mut() } else { duplicate(unsafe { CStr::from_ptr(text) })? };
        store(to, Some(copy)).map(|_| ())
    }

    /// Frees a text.
    fn ucs_config_release_string(value: ValuePtr, _arg: *const c_void) {
        let text = load::<*mut c_char>(value)?;
        // SAFETY: the option has its text from `malloc`, or is null.
        unsafe { libc::free(text.cast()) };
        Ok(())
    }

    /// Releases nothing.
    fn ucs_config_release_nop(_value: ValuePtr, _arg: *const c_void) {
        Ok(())
    }

    /// Prints the form of values, which is the argument.
    fn ucs_config_help_generic(to: TextPtr, size: usize, arg: *const c_void) {
        // SAFETY: the caller's contract.
        show(to, size, unsafe { bytes_of(arg.cast()) }).map(|_| ())
    }
}

entry! {
    /// Copies level and name of a component of the log. Its filter of files stays what it was.
    fn ucs_config_clone_log_comp(from: ValuePtr, to: PlacePtr, _arg: *const c_void) -> CStatus {
        let (from, to) = (from.get().cast::<LogComponent>(), to.get().cast::<LogComponent>());
        if from.is_null() || to.is_null() {
            return Err(Status::InvalidParam);
        }
        // SAFETY: both are components of the caller, of which a program without filters has as many bytes.
        unsafe {
            (&raw mut (*to).level).write_unaligned((&raw const (*from).level).read_unaligned());
            (&raw mut (*to).name).write_unaligned((&raw const (*from).name).read_unaligned());
        }
        Ok(())
    }
}
