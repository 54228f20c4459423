//! Error numbers of the C library: made from errors of the device, and returned by verbs. Imports no other module of the shim.

use uct::api::{Error, OpenError};

/// An error number of the C library.
pub type Errno = i32;

/// The error number of an error of the device.
pub fn errno_of(e: Error) -> Errno {
    match e {
        Error::Sys { errno, .. } => errno.0,
        Error::NoMemory | Error::Exhausted(_) => libc::ENOMEM,
        Error::NoDescriptor => libc::EMFILE,
        Error::Unsupported(_) => libc::EOPNOTSUPP,
        _ => libc::EINVAL,
    }
}

/// The error number of a failed opening; what a number cannot say goes to standard error.
pub fn errno_of_open(e: &OpenError) -> Errno {
    match e {
        OpenError::Op(e) => errno_of(*e),
        OpenError::Environment(_) => {
            eprintln!("softefa: {e}");
            libc::EIO
        }
        OpenError::Exhausted { errno, .. } => {
            eprintln!("softefa: {e}");
            errno.0
        }
        _ => libc::EINVAL,
    }
}

/// Sets the C library's error number.
pub fn set_errno(e: Errno) {
    // SAFETY: the location of the calling thread's errno is always valid.
    let at = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    unsafe { *at = e };
}

/// What a verb that answers with a pointer answers: the object, or null and errno.
pub fn ret_ptr<T>(made: Result<*mut T, Errno>) -> *mut T {
    made.unwrap_or_else(|e| {
        set_errno(e);
        std::ptr::null_mut()
    })
}

/// What a verb that answers with a number answers: 0, or the error number, which is in errno too.
pub fn ret_int(done: Result<(), Errno>) -> i32 {
    match done {
        Ok(()) => 0,
        Err(e) => {
            set_errno(e);
            e
        }
    }
}
