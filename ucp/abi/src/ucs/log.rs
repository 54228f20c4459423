//! Messages of programs: they go to the log of this library.

use std::ffi::{c_char, c_int, c_void};

use super::global::{LogComponent, abort_level, log_level};
use super::variadic::Args;
use crate::arg::StrPtr;

/// `UCS_LOG_LEVEL_PRINT`: a message that no level hides.
const LEVEL_PRINT: c_int = 13;

variadic! {
    /// Logs a message: file, line, function, level, component, format.
    fn ucs_log_dispatch: fixed 6, body log_dispatch;
    /// Prints a message before the program ends: format.
    fn ucs_log_fatal_error: fixed 1, body log_fatal_error;
    /// Ends the program with a message: file, line, function, format.
    fn ucs_fatal_error_format: fixed 4, body fatal_error_format;
}

/// A text of the program, for people.
/// # Safety
/// `at` is null or a C string.
unsafe fn text(at: *const c_char) -> String {
    // SAFETY: this function's contract.
    unsafe { StrPtr::new(at) }.text()
}

unsafe extern "C" fn log_dispatch(args: *const Args) {
    crate::entry::guard::<()>("ucs_log_dispatch", || {
        // SAFETY: the caller of the variadic function passes these arguments.
        let (file, line, level, message, component) = unsafe {
            let args = &*args;
            let message = args.text(args.pointer(5));
            let component = args.pointer::<LogComponent>(4);
            (text(args.pointer(0)), args.fixed(1) as u32, args.fixed(3) as c_int, message, component)
        };
        // SAFETY: a component is the program's, or that of the options.
        match unsafe { component.as_ref() }.filter(|of| !is_name_of_library(&of.name)) {
            Some(component) => log_of(component, level, &file, line, &message),
            None => log(level, &file, line, &message),
        }
        Ok(())
    });
}

/// Whether a component has the name of UCX's own messages.
fn is_name_of_library(name: &[u8; 16]) -> bool {
    name.starts_with(b"UCX\0")
}

/// Logs a message of a component of the program, which has a level of its own.
fn log_of(component: &LogComponent, level: c_int, file: &str, line: u32, message: &str) {
    if level > component.level && level != LEVEL_PRINT {
        return;
    }
    let name = std::ffi::CStr::from_bytes_until_nul(&component.name).unwrap_or_default().to_string_lossy();
    let kind = usize::try_from(level).ok().and_then(|level| LEVELS.get(level)).unwrap_or(&"PRINT");
    ::ucs::stderr_line!("{kind:>5} {name}: {}:{line} {}", base_name(file), message.trim_end());
    if level <= abort_level() {
        std::process::abort();
    }
}

/// Names of levels.
pub(super) const LEVELS: [&str; 12] =
    ["FATAL", "ERROR", "WARN", "DIAG", "INFO", "DEBUG", "TRACE", "REQ", "DATA", "ASYNC", "FUNC", "POLL"];

/// Name of a file without its folder.
fn base_name(file: &str) -> &str {
    file.rsplit('/').next().unwrap_or(file)
}

/// Logs a message, and ends the program if its level says so.
fn log(level: c_int, file: &str, line: u32, message: &str) {
    crate::log::init_from_env();
    // The program has looked at the level before the configuration was read, perhaps.
    if level > log_level() && level != LEVEL_PRINT {
        return;
    }
    let file = base_name(file);
    let message = message.trim_end();
    match level {
        0 | 1 => tracing::error!("{file}:{line} {message}"),
        2 => tracing::warn!("{file}:{line} {message}"),
        3 | 4 => tracing::info!("{file}:{line} {message}"),
        5 => tracing::debug!("{file}:{line} {message}"),
        LEVEL_PRINT => ::ucs::stderr_line!("{file}:{line} {message}"),
        _ => tracing::trace!("{file}:{line} {message}"),
    }
    if level <= abort_level() {
        std::process::abort();
    }
}

unsafe extern "C" fn fatal_error_format(args: *const Args) {
    let print = || {
        // SAFETY: the caller of the variadic function passes these arguments.
        let (file, line, function, message) = unsafe {
            let args = &*args;
            let message = args.text(args.pointer(3));
            (text(args.pointer(0)), args.fixed(1) as u32, text(args.pointer(2)), message)
        };
        ::ucs::stderr_line!("{file}:{line} {function}: {}", message.trim_end());
        Ok(())
    };
    crate::entry::guard::<()>("ucs_fatal_error_format", print);
    std::process::abort();
}

unsafe extern "C" fn log_fatal_error(args: *const Args) {
    crate::entry::guard::<()>("ucs_log_fatal_error", || {
        // SAFETY: the caller of the variadic function passes a format and its arguments.
        let message = unsafe { (*args).text((*args).pointer(0)) };
        ::ucs::stderr_line!("{}", message.trim_end());
        Ok(())
    });
}

/// Writes messages out: each is written at once.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ucs_log_flush() {}

/// Bytes that a message may have.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ucs_log_get_buffer_size() -> usize {
    super::variadic::TEXT_MAX
}

/// Root of the statistics: there is none, as in UCX without statistics.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ucs_stats_get_root() -> *mut c_void {
    std::ptr::null_mut()
}
