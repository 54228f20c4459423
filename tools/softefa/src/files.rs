//! Calls by which programs check for a device's character device, such as UCX: `stat` and `access` in every
//! form, among them those of programs built for a glibc before 2.33. Other names are unchanged.
//!
//! The forms reach the kernel by themselves: the C library's would call each other, and so these.

use crate::device;
use std::ffi::{CStr, c_char, c_int, c_uint};

const RDMA_DEV_DIR: &[u8] = b"/dev/infiniband/";
/// Shown for our devices: a character device that anybody may open.
const SUBSTITUTE: &CStr = c"/dev/null";
const NOFOLLOW: c_int = libc::AT_SYMLINK_NOFOLLOW;

/// Path to ask the system for. Unsafe: `path` is null or a string; another one faults here, where the kernel
/// would answer EFAULT.
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

/// `fstatat`. Unsafe: as that.
unsafe fn stat_at(dir: c_int, path: *const c_char, room: *mut libc::stat, flags: c_int) -> c_int {
    // SAFETY: by this function's contract.
    let path = unsafe { redirect(path) };
    // SAFETY: the call of another name; the kernel checks both pointers, and fills what C calls `stat`.
    unsafe { libc::syscall(libc::SYS_newfstatat, dir, path, room, flags) as c_int }
}

/// `faccessat`. Unsafe: as that.
unsafe fn access_at(dir: c_int, path: *const c_char, mode: c_int, flags: c_int) -> c_int {
    // SAFETY: by this function's contract.
    let path = unsafe { redirect(path) };
    if flags != 0 {
        // SAFETY: the call of another name; the kernel checks the pointer.
        let done = unsafe { libc::syscall(libc::SYS_faccessat2, dir, path, mode, flags) as c_int };
        let unknown = std::io::Error::last_os_error().raw_os_error() == Some(libc::ENOSYS);
        if done == 0 || !unknown {
            return done;
        }
    }
    // SAFETY: as above.
    unsafe { libc::syscall(libc::SYS_faccessat, dir, path, mode) as c_int }
}

/// Forms of `stat` by path, with the flags of `fstatat` for each.
macro_rules! by_path {
    ($($name:ident $flags:expr;)*) => {
        $(#[unsafe(no_mangle)]
        unsafe extern "C" fn $name(path: *const c_char, room: *mut libc::stat) -> c_int {
            // SAFETY: by this function's contract.
            unsafe { stat_at(libc::AT_FDCWD, path, room, $flags) }
        })*
    };
}

/// Forms with a version of the structure, of which 64-bit systems have one.
macro_rules! by_version {
    ($($name:ident $flags:expr;)*) => {
        $(#[unsafe(no_mangle)]
        unsafe extern "C" fn $name(_version: c_int, path: *const c_char, room: *mut libc::stat) -> c_int {
            // SAFETY: by this function's contract.
            unsafe { stat_at(libc::AT_FDCWD, path, room, $flags) }
        })*
    };
}

by_path! {
    stat 0;
    stat64 0;
    lstat NOFOLLOW;
    lstat64 NOFOLLOW;
}

by_version! {
    __xstat 0;
    __xstat64 0;
    __lxstat NOFOLLOW;
    __lxstat64 NOFOLLOW;
}

macro_rules! at {
    ($($name:ident)*) => {
        $(#[unsafe(no_mangle)]
        unsafe extern "C" fn $name(dir: c_int, path: *const c_char, room: *mut libc::stat, flags: c_int) -> c_int {
            // SAFETY: by this function's contract.
            unsafe { stat_at(dir, path, room, flags) }
        })*
    };
}

macro_rules! at_by_version {
    ($($name:ident)*) => {
        $(#[unsafe(no_mangle)]
        unsafe extern "C" fn $name(
            _version: c_int,
            dir: c_int,
            path: *const c_char,
            room: *mut libc::stat,
            flags: c_int,
        ) -> c_int {
            // SAFETY: by this function's contract.
            unsafe { stat_at(dir, path, room, flags) }
        })*
    };
}

at! { fstatat fstatat64 }
at_by_version! { __fxstatat __fxstatat64 }

#[unsafe(no_mangle)]
unsafe extern "C" fn statx(
    dir: c_int,
    path: *const c_char,
    flags: c_int,
    mask: c_uint,
    room: *mut libc::statx,
) -> c_int {
    // SAFETY: by this function's contract.
    let path = unsafe { redirect(path) };
    // SAFETY: the call of another name; the kernel checks both pointers.
    unsafe { libc::syscall(libc::SYS_statx, dir, path, flags, mask, room) as c_int }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn access(path: *const c_char, mode: c_int) -> c_int {
    // SAFETY: by this function's contract.
    unsafe { access_at(libc::AT_FDCWD, path, mode, 0) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn faccessat(dir: c_int, path: *const c_char, mode: c_int, flags: c_int) -> c_int {
    // SAFETY: by this function's contract.
    unsafe { access_at(dir, path, mode, flags) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn eaccess(path: *const c_char, mode: c_int) -> c_int {
    // SAFETY: by this function's contract.
    unsafe { access_at(libc::AT_FDCWD, path, mode, libc::AT_EACCESS) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn euidaccess(path: *const c_char, mode: c_int) -> c_int {
    // SAFETY: by this function's contract.
    unsafe { access_at(libc::AT_FDCWD, path, mode, libc::AT_EACCESS) }
}
