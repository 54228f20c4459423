//! `stat` and `access`, by which UCX checks for a device's character device. Other names are unchanged.

use crate::device;
use std::ffi::{CStr, c_char, c_int};

const RDMA_DEV_DIR: &[u8] = b"/dev/infiniband/";
/// Shown for our devices: a character device that anybody may open.
const SUBSTITUTE: &CStr = c"/dev/null";

/// Path to ask the system for. Unsafe: `path` is null or a string.
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

#[unsafe(no_mangle)]
unsafe extern "C" fn stat(path: *const c_char, room: *mut libc::stat) -> c_int {
    // SAFETY: by this function's contract.
    let path = unsafe { redirect(path) };
    // SAFETY: the call is the same, of another name.
    unsafe { libc::fstatat(libc::AT_FDCWD, path, room, 0) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn access(path: *const c_char, mode: c_int) -> c_int {
    // SAFETY: by this function's contract.
    let path = unsafe { redirect(path) };
    // SAFETY: the call is the same, of another name.
    unsafe { libc::faccessat(libc::AT_FDCWD, path, mode, 0) }
}
