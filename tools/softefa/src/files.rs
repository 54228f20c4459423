//! Two functions of the C library that UCX asks whether a device's character device is there before it opens the device.
//! Called by every part of the program: a name that is not that of a device of ours goes straight to the system.

use crate::device;
use std::ffi::{CStr, c_char, c_int};

/// Where character devices of RDMA devices are.
const RDMA_DEV_DIR: &[u8] = b"/dev/infiniband/";
/// What is shown instead: a character device that anybody may read and write.
const SUBSTITUTE: &CStr = c"/dev/null";

/// The path the system is asked for.
///
/// # Safety
/// `path` is null or a string.
unsafe fn redirect(path: *const c_char) -> *const c_char {
    if path.is_null() {
        return path;
    }
    // SAFETY: by this function's contract.
    let text = unsafe { CStr::from_ptr(path) };
    match text.to_bytes().strip_prefix(RDMA_DEV_DIR) {
        Some(name) if device::is_dev_name(name) => SUBSTITUTE.as_ptr(),
        _ => path,
    }
}

/// # Safety
/// As of the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn stat(path: *const c_char, room: *mut libc::stat) -> c_int {
    // SAFETY: by this function's contract.
    let path = unsafe { redirect(path) };
    // SAFETY: the call is the same, of another name.
    unsafe { libc::fstatat(libc::AT_FDCWD, path, room, 0) }
}

/// # Safety
/// As of the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn access(path: *const c_char, mode: c_int) -> c_int {
    // SAFETY: by this function's contract.
    let path = unsafe { redirect(path) };
    // SAFETY: the call is the same, of another name.
    unsafe { libc::faccessat(libc::AT_FDCWD, path, mode, 0) }
}
