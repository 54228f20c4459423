//! Error numbers of the C library, from errors of the device and in returns of verbs.

use ucs::config::is_first_report;
use uct::api::{Error, OpenError};

pub type Errno = i32;

pub fn errno_of(e: Error) -> Errno {
    match e {
        Error::Sys { errno, .. } => errno.0,
        Error::NoMemory | Error::Exhausted(_) => libc::ENOMEM,
        Error::NoDescriptor => libc::EMFILE,
        Error::Unsupported(_) => libc::EOPNOTSUPP,
        _ => libc::EINVAL,
    }
}

/// Converts a failed open.
pub fn errno_of_open(e: &OpenError) -> Errno {
    match e {
        OpenError::Op(e) => errno_of(*e),
        OpenError::Environment(_) => libc::EIO,
        OpenError::Exhausted { errno, .. } => errno.0,
        _ => libc::EINVAL,
    }
}

/// As [`errno_of_open`], and prints what a number cannot say.
pub fn report(e: &OpenError) -> Errno {
    if matches!(e, OpenError::Environment(_) | OpenError::Exhausted { .. }) {
        complain(&e.to_string());
    }
    errno_of_open(e)
}

/// Prints a line, once for each text: programs open a device several times.
pub fn complain(text: &str) {
    if is_first_report(&format!("softefa: {text}")) {
        ucs::stderr_line!("softefa: {text}");
    }
}

pub fn set_errno(e: Errno) {
    // SAFETY: the location of the calling thread's errno is always valid.
    let at = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    unsafe { *at = e };
}

/// Return value of a verb that returns a pointer: the object, or null and errno.
pub fn ret_ptr<T>(made: Result<*mut T, Errno>) -> *mut T {
    made.unwrap_or_else(|e| {
        set_errno(e);
        std::ptr::null_mut()
    })
}

/// Return value of a verb that returns a number: 0, or the error number, also in errno.
pub fn ret_int(done: Result<(), Errno>) -> i32 {
    match done {
        Ok(()) => 0,
        Err(e) => {
            set_errno(e);
            e
        }
    }
}
