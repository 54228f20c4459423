//! Result codes with the values of UCX's `ucs_status_t`. No text or context: each crate has richer errors.

use std::fmt;

use num_enum::{IntoPrimitive, TryFromPrimitive};

use crate::Blame;

/// Outcome of an operation. `NoResource` is no fault: nothing happened, progress and try again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, IntoPrimitive, TryFromPrimitive)]
#[repr(i8)]
pub enum Status {
    /// Finished; buffers may be reused.
    Ok = 0,
    /// Accepted; a completion will follow exactly once.
    InProgress = 1,
    /// No message is waiting.
    NoMessage = -1,
    /// A queue or pool is full at the moment; nothing was done.
    NoResource = -2,
    /// Input/output error.
    IoError = -3,
    /// Memory could not be obtained.
    NoMemory = -4,
    /// An argument is not valid.
    InvalidParam = -5,
    /// The destination cannot be reached by this interface.
    Unreachable = -6,
    /// An address is malformed or outside its region.
    InvalidAddr = -7,
    /// The function is not implemented.
    NotImplemented = -8,
    /// The message was longer than the receive buffer.
    MessageTruncated = -9,
    /// Nothing was progressed.
    NoProgress = -10,
    /// The given buffer is too small for the answer.
    BufferTooSmall = -11,
    /// No such element.
    NoElem = -12,
    /// Some of several connections could not be made.
    SomeConnectsFailed = -13,
    /// No such device.
    NoDevice = -14,
    /// In use, or pending work forbids the operation.
    Busy = -15,
    /// Canceled by the caller.
    Canceled = -16,
    /// Shared memory segment error.
    ShmemSegment = -17,
    /// The element exists already.
    AlreadyExists = -18,
    /// Index or offset out of range.
    OutOfRange = -19,
    /// Timed out.
    TimedOut = -20,
    /// A limit would be exceeded.
    ExceedsLimit = -21,
    /// The interface or peer cannot do this operation.
    Unsupported = -22,
    /// The peer rejected the request.
    Rejected = -23,
    /// Not connected.
    NotConnected = -24,
    /// The peer closed or reset the connection.
    ConnectionReset = -25,
    /// First of the codes reserved for link failures.
    FirstLinkFailure = -40,
    /// Last of the codes reserved for link failures.
    LastLinkFailure = -59,
    /// First of the codes reserved for endpoint failures.
    FirstEndpointFailure = -60,
    /// The peer did not answer within the retry limits.
    EndpointTimeout = -80,
    /// Last of the codes reserved for endpoint failures.
    LastEndpointFailure = -89,
    /// Lower bound of all codes; never returned.
    Last = -100,
}

impl Status {
    /// Every code, in order of declaration.
    pub const ALL: [Status; 33] = [
        Status::Ok,
        Status::InProgress,
        Status::NoMessage,
        Status::NoResource,
        Status::IoError,
        Status::NoMemory,
        Status::InvalidParam,
        Status::Unreachable,
        Status::InvalidAddr,
        Status::NotImplemented,
        Status::MessageTruncated,
        Status::NoProgress,
        Status::BufferTooSmall,
        Status::NoElem,
        Status::SomeConnectsFailed,
        Status::NoDevice,
        Status::Busy,
        Status::Canceled,
        Status::ShmemSegment,
        Status::AlreadyExists,
        Status::OutOfRange,
        Status::TimedOut,
        Status::ExceedsLimit,
        Status::Unsupported,
        Status::Rejected,
        Status::NotConnected,
        Status::ConnectionReset,
        Status::FirstLinkFailure,
        Status::LastLinkFailure,
        Status::FirstEndpointFailure,
        Status::EndpointTimeout,
        Status::LastEndpointFailure,
        Status::Last,
    ];

    /// True for failure codes (negative values); `Ok` and `InProgress` are not errors.
    #[inline]
    pub const fn is_err(self) -> bool {
        (self as i8) < 0
    }

    /// The number a C program sees.
    #[inline]
    pub const fn code(self) -> i32 {
        self as i8 as i32
    }

    /// The status with this number, if there is one.
    pub fn from_code(code: i32) -> Option<Status> {
        i8::try_from(code).ok().and_then(|c| Status::try_from(c).ok())
    }

    /// `Err(self)` for failures, `Ok(())` otherwise (`InProgress` counts as accepted).
    #[inline]
    pub const fn ok(self) -> Result<(), Status> {
        if self.is_err() { Err(self) } else { Ok(()) }
    }

    /// Whose fault a failure usually is; `None` for `Ok` and `InProgress`.
    pub const fn blame(self) -> Option<Blame> {
        use Status as S;
        Some(match self {
            S::Ok | S::InProgress => return None,
            S::InvalidParam
            | S::InvalidAddr
            | S::NotImplemented
            | S::MessageTruncated
            | S::BufferTooSmall
            | S::NoElem
            | S::AlreadyExists
            | S::OutOfRange
            | S::ExceedsLimit
            | S::Unsupported
            | S::Canceled => Blame::Caller,
            S::Unreachable
            | S::SomeConnectsFailed
            | S::TimedOut
            | S::Rejected
            | S::NotConnected
            | S::ConnectionReset
            | S::FirstEndpointFailure
            | S::EndpointTimeout
            | S::LastEndpointFailure => Blame::Peer,
            S::IoError | S::NoDevice | S::FirstLinkFailure | S::LastLinkFailure | S::Last => Blame::Device,
            S::NoMessage | S::NoResource | S::NoMemory | S::NoProgress | S::Busy | S::ShmemSegment => {
                Blame::Resource
            }
        })
    }

    /// Short text for a person.
    pub const fn text(self) -> &'static str {
        match self {
            Status::Ok => "success",
            Status::InProgress => "in progress",
            Status::NoMessage => "no message waiting",
            Status::NoResource => "no resource at the moment, try again",
            Status::IoError => "input/output error",
            Status::NoMemory => "out of memory",
            Status::InvalidParam => "invalid argument",
            Status::Unreachable => "destination unreachable",
            Status::InvalidAddr => "invalid address",
            Status::NotImplemented => "not implemented",
            Status::MessageTruncated => "message truncated",
            Status::NoProgress => "no progress",
            Status::BufferTooSmall => "buffer too small",
            Status::NoElem => "no such element",
            Status::SomeConnectsFailed => "some connections failed",
            Status::NoDevice => "no such device",
            Status::Busy => "busy",
            Status::Canceled => "canceled",
            Status::ShmemSegment => "shared memory error",
            Status::AlreadyExists => "already exists",
            Status::OutOfRange => "out of range",
            Status::TimedOut => "timed out",
            Status::ExceedsLimit => "limit exceeded",
            Status::Unsupported => "not supported",
            Status::Rejected => "rejected by the peer",
            Status::NotConnected => "not connected",
            Status::ConnectionReset => "connection reset by the peer",
            Status::FirstLinkFailure | Status::LastLinkFailure => "link failure",
            Status::FirstEndpointFailure | Status::LastEndpointFailure => "endpoint failure",
            Status::EndpointTimeout => "peer did not answer in time",
            Status::Last => "no status",
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

impl std::error::Error for Status {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_ucs_status_t() {
        let want = [
            (Status::Ok, 0),
            (Status::InProgress, 1),
            (Status::NoMessage, -1),
            (Status::MessageTruncated, -9),
            (Status::Canceled, -16),
            (Status::Unsupported, -22),
            (Status::ConnectionReset, -25),
            (Status::EndpointTimeout, -80),
            (Status::Last, -100),
        ];
        for (status, code) in want {
            assert_eq!(status.code(), code);
            assert_eq!(Status::from_code(code), Some(status));
        }
        assert_eq!(Status::from_code(-26), None);
        assert_eq!(Status::from_code(256), None);
    }

    #[test]
    fn errors_are_negative_and_have_blame_and_text() {
        for status in Status::ALL {
            assert_eq!(status.is_err(), status.code() < 0);
            assert_eq!(status.is_err(), status.blame().is_some());
            assert_eq!(status.is_err(), status.ok().is_err());
            assert!(!status.to_string().is_empty());
        }
    }
}
