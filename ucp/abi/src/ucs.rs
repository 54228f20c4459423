//! Functions and data of `libucs` that consumers use.

#[macro_use]
mod variadic;

mod async_context;
mod class;
mod config;
mod cpu;
mod debug;
pub(crate) mod global;
mod lock;
mod log;
mod memunits;
mod mpool;
mod mpool_chunk;
mod mpool_make;
mod net;
mod pgtable;
mod profile;
mod stubs;
mod system_id;
mod text;
mod topo;

use std::ffi::{CStr, c_char};

use ::ucs::Status;

/// Text of a status, as UCX words it.
fn text(status: Status) -> &'static CStr {
    match status {
        Status::Ok => c"Success",
        Status::InProgress => c"Operation in progress",
        Status::NoMessage => c"No pending message",
        Status::NoResource => c"No resources are available to initiate the operation",
        Status::IoError => c"Input/output error",
        Status::NoMemory => c"Out of memory",
        Status::InvalidParam => c"Invalid parameter",
        Status::Unreachable => c"Destination is unreachable",
        Status::InvalidAddr => c"Address not valid",
        Status::NotImplemented => c"Function not implemented",
        Status::MessageTruncated => c"Message truncated",
        Status::NoProgress => c"No progress",
        Status::BufferTooSmall => c"Provided buffer is too small",
        Status::NoElem => c"No such element",
        Status::SomeConnectsFailed => c"Failed to connect some of the requested endpoints",
        Status::NoDevice => c"No such device",
        Status::Busy => c"Device is busy",
        Status::Canceled => c"Request canceled",
        Status::ShmemSegment => c"Shared memory error",
        Status::AlreadyExists => c"Element already exists",
        Status::OutOfRange => c"Index out of range",
        Status::TimedOut => c"Operation timed out",
        Status::ExceedsLimit => c"User-defined limit was reached",
        Status::Unsupported => c"Unsupported operation",
        Status::Rejected => c"Operation rejected by remote peer",
        Status::NotConnected => c"Endpoint is not connected",
        Status::ConnectionReset => c"Connection reset by remote peer",
        Status::FirstLinkFailure => c"First link failure",
        Status::LastLinkFailure => c"Last link failure",
        Status::FirstEndpointFailure => c"First endpoint failure",
        Status::EndpointTimeout => c"Endpoint timeout",
        Status::LastEndpointFailure => c"Last endpoint failure",
        Status::Last => c"Unknown error",
    }
}

/// Text of a status. Takes every number.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ucs_status_string(status: i8) -> *const c_char {
    Status::try_from(status).map_or(c"Unknown error", text).as_ptr()
}
