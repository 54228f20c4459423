//! UCX's lower interface, `uct_*`, on crate [`uct`]: its objects are nearly the same, so that each function
//! checks what a C caller passes, calls the method of the same name, and translates its result.
//!
//! | Module | Functions |
//! |---|---|
//! | `component`, `config` | transports and devices of this machine; configurations |
//! | `md`, `rkey` | memory domains, memory, remote keys |
//! | `worker`, `progress` | progress, and what it reports |
//! | `iface`, `attr` | interfaces and their attributes |
//! | `ep`, `pending` | endpoints, operations that wait for room |
//! | `send`, `rma`, `amo`, `flush` | operations |
//! | `ops` | the table of operations that UCX's inline functions call |
//! | `v2` | forms whose parameters have a mask |
//! | `refused` | connection managers and listeners, which there are none of |

/// Defines functions of the operation table, which have no name outside. The body returns a `Result` with a
/// `Status` as its error.
macro_rules! operation {
    ($($(#[$meta:meta])* fn $name:ident($($arg:ident: $T:ty),* $(,)?) $(-> $Ret:ty)? $body:block)+) => {$(
        $(#[$meta])*
        pub(crate) unsafe extern "C" fn $name($($arg: $T),*) $(-> $Ret)? {
            if crate::check::is_on() {
                // SAFETY: the arguments are those of the caller of this function, who keeps its contract.
                unsafe { crate::check::enter(stringify!($name), &[$(crate::check::argument!($arg)),*]) };
            }
            crate::entry::guard(stringify!($name), move || $body)
        }
    )+};
}

mod amo;
mod attr;
mod component;
mod config;
mod ep;
mod flush;
mod iface;
mod md;
mod ops;
mod pending;
mod progress;
mod refused;
mod rkey;
mod rma;
mod send;
mod types;
mod v2;
mod worker;

use ::ucs::Status;
use ::uct::api::{Outcome, Sent};

use crate::entry::invalid;

// What `UCX_CHECK=y` looks at.
pub(crate) use attr::MAX_IOV;
pub(crate) use md::MemHandle;
pub(crate) use rkey::Rkey;
pub(crate) use types::{INVALID_RKEY, Iov};

/// The status of the start of an operation: done is 0, in progress is 1, and the rest is negative.
// HOT
#[inline(always)]
fn answer(outcome: Outcome) -> Result<(), Status> {
    match outcome {
        Ok(Sent::Done) => Ok(()),
        Ok(Sent::InProgress) => Err(Status::InProgress),
        Err(refused) => Err(refused.status()),
    }
}

/// The result of the start of a copied operation: the bytes, or a negative status.
// HOT
#[inline(always)]
fn answer_length(outcome: Outcome<usize>) -> Result<isize, Status> {
    outcome.map(|length| length as isize).map_err(|refused| refused.status())
}

/// Bytes of the caller.
/// # Safety
/// `at` is null, or this many bytes can be read there and stay as they are while the result is used.
// HOT
#[inline(always)]
unsafe fn bytes<'a>(at: *const std::ffi::c_void, length: usize) -> Result<&'a [u8], Status> {
    match (at.is_null(), length) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(invalid("the buffer is null")),
        // SAFETY: this function's contract.
        (false, _) => Ok(unsafe { std::slice::from_raw_parts(at.cast(), length) }),
    }
}

/// A name in a field of a structure: cut to its size, and ended by zero.
fn name_of<const SIZE: usize>(name: &str) -> [std::ffi::c_char; SIZE] {
    let mut out = [0; SIZE];
    for (to, from) in out[..SIZE - 1].iter_mut().zip(name.bytes()) {
        *to = from as std::ffi::c_char;
    }
    out
}
