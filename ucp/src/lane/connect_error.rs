//! Errors of connecting: the address is malformed, or no common transport reaches the peer.

use ucs::Status;
use ucs::sync::LockError;
use uct::api::ConnectError as WireRefusal;

use crate::address::AddressError;
use crate::cm::ConnectFailure;

/// Why an endpoint could not be created. Displays as one line; never built on a hot path.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The bytes are not an address.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// The two workers have no transport in common.
    #[error("no transport in common: the peer has {theirs}; this worker has {ours} (see UCX_TLS)")]
    NoCommonTransport {
        /// The peer's transports, comma separated.
        theirs: String,
        /// Ours, comma separated.
        ours: String,
    },
    /// The endpoint that waited for its peer's address was closed, or has failed.
    #[error("the endpoint has been closed")]
    EndpointClosed,
    /// The exchange with a socket address could not begin.
    #[error("{0}")]
    Failed(#[from] ConnectFailure),
    /// This worker's address is too long for an exchange.
    #[error("worker address of {len} bytes is longer than {max}")]
    AddressTooLong {
        /// Length of the address, bytes.
        len: usize,
        /// Longest permitted address, bytes.
        max: usize,
    },
    /// There are common transports, but none reaches the peer.
    #[error("peer is not reachable: {}", Tried(.tried))]
    Unreachable {
        /// Each common transport and why it does not reach the peer.
        tried: Vec<(&'static str, WireRefusal)>,
    },
    /// The calling thread may not use the worker ([`crate::mt`]).
    #[error("worker: {0}")]
    Thread(#[from] LockError),
}

impl ConnectError {
    /// The status code of the C API.
    pub fn status(&self) -> Status {
        match self {
            ConnectError::Address(_) => Status::InvalidAddr,
            ConnectError::EndpointClosed => Status::NotConnected,
            ConnectError::Thread(_) => Status::InvalidParam,
            ConnectError::Failed(why) => why.status(),
            ConnectError::AddressTooLong { .. } => Status::ExceedsLimit,
            ConnectError::NoCommonTransport { .. } | ConnectError::Unreachable { .. } => Status::Unreachable,
        }
    }
}

/// Prints `posix: peer is on another host; efa: ...`.
struct Tried<'a>(&'a [(&'static str, WireRefusal)]);

impl std::fmt::Display for Tried<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (i, (tl, why)) in self.0.iter().enumerate() {
            write!(f, "{}{tl}: {why}", if i > 0 { "; " } else { "" })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unreachable_lists_what_was_tried() {
        let e = ConnectError::Unreachable {
            tried: vec![("posix", WireRefusal::OtherHost), ("efa", WireRefusal::Gone)],
        };
        let text = e.to_string();
        assert!(text.contains("posix: ") && text.contains("; efa: "), "{text}");
    }
}
