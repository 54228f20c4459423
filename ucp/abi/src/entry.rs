//! Entry points: the outcome of a panic, and the form in which results reach the caller.
//!
//! The short ways of `ucp_request_free`, `ucp_request_release`, `ucp_request_check_status`, `ucs_mpool_get`
//! and `ucs_mpool_put` are not defined by `entry!`, and catch no panic: they call nothing that has one.

use std::ffi::{c_uint, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use ::ucs::Status;

/// `ucs_status_t`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(transparent)]
pub(crate) struct CStatus(pub i8);

/// `ucs_status_ptr_t`: null, a request, or a negative status.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(transparent)]
pub(crate) struct StatusPtr(pub *mut c_void);

impl StatusPtr {
    /// The operation has ended well; there is no request.
    pub(crate) const OK: StatusPtr = StatusPtr(std::ptr::null_mut());

    // HOT
    #[inline(always)]
    pub(crate) fn error(status: Status) -> StatusPtr {
        StatusPtr(std::ptr::without_provenance_mut(status.code() as isize as usize))
    }

    /// The status, unless it is a request.
    // HOT
    #[inline(always)]
    pub(crate) fn status(self) -> Option<Status> {
        match self.0.addr() as isize {
            0 => Some(Status::Ok),
            code @ -127..=-1 => Some(Status::try_from(code as i8).unwrap_or(Status::IoError)),
            _ => None,
        }
    }
}

impl From<Status> for CStatus {
    fn from(status: Status) -> CStatus {
        CStatus(status as i8)
    }
}

/// Result of an entry point, as the caller sees it.
pub(crate) trait Output {
    /// Result of the body.
    type Value;
    fn of(result: Result<Self::Value, Status>) -> Self;
}

impl Output for CStatus {
    type Value = ();
    #[inline(always)]
    fn of(result: Result<(), Status>) -> Self {
        result.err().unwrap_or(Status::Ok).into()
    }
}

impl Output for StatusPtr {
    type Value = StatusPtr;
    #[inline(always)]
    fn of(result: Result<StatusPtr, Status>) -> Self {
        result.unwrap_or_else(StatusPtr::error)
    }
}

impl Output for c_uint {
    type Value = c_uint;
    #[inline(always)]
    fn of(result: Result<c_uint, Status>) -> Self {
        result.unwrap_or(0)
    }
}

impl Output for u64 {
    type Value = u64;
    fn of(result: Result<u64, Status>) -> Self {
        result.unwrap_or(0)
    }
}

impl Output for usize {
    type Value = usize;
    fn of(result: Result<usize, Status>) -> Self {
        result.unwrap_or(0)
    }
}

impl Output for i32 {
    type Value = i32;
    fn of(result: Result<i32, Status>) -> Self {
        result.unwrap_or(0)
    }
}

impl Output for isize {
    type Value = isize;
    fn of(result: Result<isize, Status>) -> Self {
        result.unwrap_or_else(|status| status.code() as isize)
    }
}

impl Output for () {
    type Value = ();
    fn of(_: Result<(), Status>) {}
}

impl<T> Output for *mut T {
    type Value = *mut T;
    fn of(result: Result<*mut T, Status>) -> Self {
        result.unwrap_or(std::ptr::null_mut())
    }
}

/// Runs the body of an entry point. A panic becomes [`Status::IoError`]: it does not cross into C.
// HOT
#[inline(always)]
pub(crate) fn guard<R: Output>(name: &str, body: impl FnOnce() -> Result<R::Value, Status>) -> R {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(result) => R::of(result),
        Err(_) => {
            report_panic(name);
            R::of(Err(Status::IoError))
        }
    }
}

#[cold]
#[inline(never)]
fn report_panic(name: &str) {
    tracing::error!("{name}: panic, returned as UCS_ERR_IO_ERROR");
}

/// [`Status::InvalidParam`], with a line in the log that says which parameter of the caller is refused.
#[cold]
#[inline(never)]
pub(crate) fn invalid(why: &str) -> Status {
    crate::log::init_from_env();
    tracing::error!("invalid parameter: {why}");
    Status::InvalidParam
}

/// Defines exported functions. The body returns a `Result` with a [`Status`] as its error. The caller passes
/// what UCX's header asks for: handles are null or live, and pointers are null or valid for what the function
/// does with them.
macro_rules! entry {
    ($($(#[$meta:meta])* fn $name:ident($($arg:ident: $T:ty),* $(,)?) $(-> $Ret:ty)? $body:block)+) => {$(
        $(#[$meta])*
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $name($($arg: $T),*) $(-> $Ret)? {
            if crate::check::is_on() {
                // SAFETY: the arguments are those of the caller of this function, who keeps its contract.
                unsafe { crate::check::enter(stringify!($name), &[$(crate::check::argument!($arg)),*]) };
            }
            crate::entry::guard(stringify!($name), move || $body)
        }
    )+};
}

#[cfg(test)]
mod tests {
    use super::*;

    fn panics<R: Output>() -> R {
        guard("a test", || panic!("this panic is part of a test"))
    }

    /// A panic does not cross into C: each kind of result has a value for it.
    #[test]
    fn a_panic_becomes_a_result_of_each_kind() {
        let status = Status::IoError;
        assert_eq!(panics::<CStatus>(), status.into());
        assert_eq!(panics::<StatusPtr>(), StatusPtr::error(status));
        assert_eq!(panics::<c_uint>(), 0);
        assert_eq!(panics::<i32>(), 0);
        assert_eq!(panics::<isize>(), status.code() as isize);
        panics::<()>();
        assert!(panics::<*mut u8>().is_null());
    }
}
