//! Failures of making a connection, as endpoints and operations report them.

use std::io::{Error, ErrorKind};

use ucs::{Errno, Status};

/// Why an endpoint without a peer never got one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectFailure {
    /// Nobody can supply the peer's address any more.
    #[error("the wait for the peer's address was cancelled")]
    Cancelled,
    /// The peer's address is known, but no transport reaches it; or none reaches us from there.
    #[error("no transport reaches the peer")]
    Unreachable,
    /// Nobody listens at the socket address.
    #[error("nobody listens at the address")]
    Refused,
    /// The listener's program has rejected the request.
    #[error("rejected by the peer")]
    Rejected,
    /// The peer has closed the connection within the exchange, or its process has ended.
    #[error("connection reset by the peer")]
    Reset,
    /// The exchange has taken longer than `UCX_CM_TIMEOUT`.
    #[error("the peer did not answer in time (UCX_CM_TIMEOUT)")]
    TimedOut,
    /// One of the two sides has sent something else than a frame of this exchange, or of its version.
    #[error("the peer does not speak this protocol, or another version of it")]
    Malformed,
    /// There is no network path to the host of the socket address.
    #[error("the peer's host is not reachable")]
    HostUnreachable,
    /// A system call on the socket has failed.
    #[error("socket: {0}")]
    Socket(Errno),
}

impl ConnectFailure {
    /// Status code in the C API.
    pub fn status(self) -> Status {
        match self {
            ConnectFailure::Cancelled => Status::Canceled,
            ConnectFailure::Unreachable | ConnectFailure::HostUnreachable => Status::Unreachable,
            // As UCX 1.13.1 answers over TCP.
            ConnectFailure::Refused => Status::NotConnected,
            ConnectFailure::Rejected => Status::Rejected,
            ConnectFailure::Reset | ConnectFailure::Malformed => Status::ConnectionReset,
            ConnectFailure::TimedOut => Status::TimedOut,
            ConnectFailure::Socket(_) => Status::IoError,
        }
    }

    pub(super) fn of_io(error: &Error) -> ConnectFailure {
        match error.kind() {
            ErrorKind::ConnectionRefused => ConnectFailure::Refused,
            ErrorKind::ConnectionReset
            | ErrorKind::ConnectionAborted
            | ErrorKind::NotConnected
            | ErrorKind::BrokenPipe
            | ErrorKind::UnexpectedEof => ConnectFailure::Reset,
            ErrorKind::TimedOut => ConnectFailure::TimedOut,
            ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable => ConnectFailure::HostUnreachable,
            _ => ConnectFailure::Socket(Errno(error.raw_os_error().unwrap_or(EIO))),
        }
    }
}

impl From<Error> for ConnectFailure {
    fn from(error: Error) -> ConnectFailure {
        ConnectFailure::of_io(&error)
    }
}

/// For errors without a number.
const EIO: i32 = 5;
