//! Functions that C calls: the outcome of a panic, and the form in which results reach the caller.

use std::ffi::{c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::errno::Errno;

/// Result of a function, as the caller sees it.
pub(crate) trait Output {
    /// Result of the body.
    type Value;
    fn of(result: Result<Self::Value, Errno>) -> Self;
}

impl Output for c_int {
    type Value = c_int;
    #[inline(always)]
    fn of(result: Result<c_int, Errno>) -> Self {
        result.unwrap_or_else(|errno| -errno.0)
    }
}

impl Output for isize {
    type Value = isize;
    #[inline(always)]
    fn of(result: Result<isize, Errno>) -> Self {
        result.unwrap_or_else(|errno| -(errno.0 as isize))
    }
}

impl Output for u64 {
    type Value = u64;
    fn of(result: Result<u64, Errno>) -> Self {
        result.unwrap_or(0)
    }
}

impl Output for *const c_char {
    type Value = *const c_char;
    fn of(result: Result<*const c_char, Errno>) -> Self {
        result.unwrap_or(std::ptr::null())
    }
}

impl Output for *mut c_void {
    type Value = *mut c_void;
    fn of(result: Result<*mut c_void, Errno>) -> Self {
        result.unwrap_or(std::ptr::null_mut())
    }
}

impl Output for () {
    type Value = ();
    fn of(_: Result<(), Errno>) {}
}

/// Runs the body of a function. A panic becomes an input/output error: it does not cross into C.
// HOT
#[inline(always)]
pub(crate) fn guard<R: Output>(name: &str, body: impl FnOnce() -> Result<R::Value, Errno>) -> R {
    // Within, the compiler knows which result it is.
    match catch_unwind(AssertUnwindSafe(|| R::of(body()))) {
        Ok(output) => output,
        Err(_) => {
            report_panic(name);
            R::of(Err(Errno::IO))
        }
    }
}

#[cold]
#[inline(never)]
fn report_panic(name: &str) {
    tracing::error!("{name}: panic, returned as -FI_EIO");
}

/// Defines functions of libfabric's tables. The body returns a `Result` with an [`Errno`] as its error. It
/// relies on what the manual asks of callers: each object is null or one of ours that is open, and memory is
/// null or as long as the call says, until the call returns or the operation ends.
macro_rules! calls {
    ($($(#[$meta:meta])* fn $name:ident($($arg:ident: $T:ty),* $(,)?) -> $Ret:ty $body:block)+) => {$(
        $(#[$meta])*
        #[allow(unused_unsafe, clippy::multiple_unsafe_ops_per_block)]
        pub(crate) unsafe extern "C" fn $name($($arg: $T),*) -> $Ret {
            // SAFETY: the function's contract is the manual's, as the doc comment of this macro has it.
            crate::entry::guard(stringify!($name), move || unsafe { $body })
        }
    )+};
}
