//! Errors of operations, sorted by who is to blame, and errors of connecting, with text for people.
//! Every operation of this layer ends with `Ok` or one [`Error`]; the C face maps it by [`Error::status`].
//! Never carries text on the data path: [`Error`] is small and `Copy`.

use ucs::{Blame, Status};

use crate::rdm::OpError;
use crate::rdm::io::{PeerError, PeerId};
use crate::wire::EfaStatus;

/// How an operation failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Error {
    // --- the caller -------------------------------------------------------------------------------
    /// The message was longer than the receive buffer: what fitted was written, the rest is lost.
    #[error("message of {len} bytes does not fit the buffer of {room}")]
    Truncated {
        /// Length of the message, bytes.
        len: u64,
        /// Length of the buffer, bytes.
        room: usize,
    },
    /// Cancelled on request.
    #[error("cancelled")]
    Cancelled,
    /// Arguments that do not fit together: lengths that differ, an operation that the type does not have, memory that
    /// the key does not name.
    #[error("invalid arguments")]
    Invalid,
    /// Only the peer's processor could do this operation, and `UCX_EMULATION=n` refuses that: [`Ep::means`](super::Ep::means)
    /// says so beforehand.
    #[error("only the peer's processor could do this, and emulation is refused (UCX_EMULATION)")]
    EmulationDisabled,
    /// The header of an active message is longer than may be.
    #[error("header of {len} bytes is longer than {max}")]
    HeaderTooLong {
        /// Its length, bytes.
        len: usize,
        /// The most there may be, bytes.
        max: usize,
    },
    /// The endpoint has been closed.
    #[error("endpoint is closed")]
    Closed,
    /// The probed message was received already, or its sender failed.
    #[error("no such probed message")]
    NoMessage,
    // --- the peer ---------------------------------------------------------------------------------
    /// The process or queue pair of this peer ([`Ep::peer`](super::Ep::peer)) is gone.
    #[error("peer {} is gone", .0.0)]
    PeerGone(PeerId),
    /// The address of this peer cannot be reached.
    #[error("peer {} is not reachable", .0.0)]
    Unreachable(PeerId),
    /// This peer, or where all were waited for one of them, did not answer in the time given.
    #[error("{} did not answer in time", Who(.0))]
    TimedOut(Option<PeerId>),
    /// The remote key of this peer does not allow this: another range, or another kind of access.
    #[error("remote key of peer {} does not allow this access", .0.0)]
    RemoteAccess(PeerId),
    /// This peer gave up its part of the operation; the code is its own (libfabric: `prov_errno`).
    #[error("peer {} gave the operation up (its code {})", .0.0, .1)]
    Aborted(PeerId, u32),
    /// It takes no message longer than a packet: it is set up to receive in another way.
    #[error("message of {len} bytes is longer than the {max} the peer takes")]
    TooLong {
        /// Length of the message, bytes.
        len: usize,
        /// Most bytes of one.
        max: usize,
    },
    /// It cannot do this: an old release, or one set up to receive in another way.
    #[error("not supported by the peer")]
    Unsupported,
    // --- the device -------------------------------------------------------------------------------
    /// The device ended what was under way to this peer (to none in particular, if `None`) with this EFA completion status.
    #[error("{}: device completion status {}", Who(.0), .1)]
    Device(Option<PeerId>, EfaStatus),
    // --- resources --------------------------------------------------------------------------------
    /// More operations are running than this worker has numbers for.
    #[error("too many operations are running")]
    Exhausted,
    /// This process, or the system, has no file descriptor left to reach this peer with.
    #[error("no file descriptor left to reach peer {} with (raise the limit, see `ulimit -n`)", .0.0)]
    NoDescriptor(PeerId),
    /// This peer has sent more than may be kept here until somebody receives it (`UCX_UNEXP_MAX`): nothing of it is heard any
    /// more.
    #[error("peer {} has sent more than may be kept unreceived (UCX_UNEXP_MAX)", .0.0)]
    OverLimit(PeerId),
    /// Memory to reach this peer with could not be had.
    #[error(
        "out of memory to reach peer {} with (free some, use smaller sizes, or raise the container's or user's limit)",
        .0.0
    )]
    NoMemory(PeerId),
}

impl Error {
    /// Who has to act.
    pub fn blame(self) -> Blame {
        use Error::*;
        match self {
            Truncated { .. }
            | HeaderTooLong { .. }
            | Cancelled
            | Invalid
            | EmulationDisabled
            | Closed
            | NoMessage => Blame::Caller,
            PeerGone(_)
            | Unreachable(_)
            | TimedOut(_)
            | RemoteAccess(_)
            | Aborted(..)
            | TooLong { .. }
            | Unsupported => Blame::Peer,
            Device(..) => Blame::Device,
            Exhausted | NoDescriptor(_) | NoMemory(_) | OverLimit(_) => Blame::Resource,
        }
    }

    /// The status code of the C API.
    pub fn status(self) -> Status {
        use Error::*;
        match self {
            Truncated { .. } => Status::MessageTruncated,
            HeaderTooLong { .. } | TooLong { .. } => Status::InvalidParam,
            Cancelled => Status::Canceled,
            Invalid => Status::InvalidParam,
            EmulationDisabled => Status::Unsupported,
            Closed => Status::NotConnected,
            NoMessage => Status::NoMessage,
            PeerGone(_) => Status::ConnectionReset,
            Unreachable(_) => Status::Unreachable,
            TimedOut(_) => Status::EndpointTimeout,
            RemoteAccess(_) | Aborted(..) => Status::Rejected,
            Unsupported => Status::Unsupported,
            Device(..) => Status::IoError,
            Exhausted | NoDescriptor(_) | NoMemory(_) | OverLimit(_) => Status::NoMemory,
        }
    }
}

impl Error {
    /// The peer that it is about, by the number that [`Ep::peer`](super::Ep::peer) has; `None` where it is the caller's own
    /// affair, or where no peer in particular was spoken to.
    pub fn peer(self) -> Option<PeerId> {
        use Error::*;
        match self {
            PeerGone(peer) | Unreachable(peer) | RemoteAccess(peer) | Aborted(peer, _) => Some(peer),
            OverLimit(peer) | NoDescriptor(peer) | NoMemory(peer) => Some(peer),
            TimedOut(peer) | Device(peer, _) => peer,
            _ => None,
        }
    }

    /// The failure of a peer.
    pub(crate) fn of_peer(peer: PeerId, fault: PeerError) -> Self {
        match fault {
            PeerError::Gone => Error::PeerGone(peer),
            PeerError::Unreachable => Error::Unreachable(peer),
            PeerError::NoDescriptor => Error::NoDescriptor(peer),
            PeerError::NoMemory => Error::NoMemory(peer),
            PeerError::Flood => Error::OverLimit(peer),
            PeerError::Device(code) => Error::Device(Some(peer), code),
        }
    }
}

impl From<OpError> for Error {
    #[cold]
    #[inline(never)]
    fn from(e: OpError) -> Self {
        match e {
            OpError::Truncated { len, room } => Error::Truncated { len, room },
            OpError::Cancelled => Error::Cancelled,
            OpError::Invalid => Error::Invalid,
            OpError::Emulated => Error::EmulationDisabled,
            OpError::Unknown => Error::NoMessage,
            OpError::TooLong { len, max } => Error::TooLong { len, max },
            OpError::Unsupported => Error::Unsupported,
            OpError::Access(peer) => Error::RemoteAccess(peer),
            OpError::Aborted(peer, code) => Error::Aborted(peer, code),
            OpError::NoResource => Error::Exhausted,
            OpError::Peer(peer, fault) => Error::of_peer(peer, fault),
        }
    }
}

/// Prints `peer 5`, or `a peer`.
struct Who<'a>(&'a Option<PeerId>);

impl std::fmt::Display for Who<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(peer) => write!(f, "peer {}", peer.0),
            None => f.write_str("a peer"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_and_blame_agree() {
        use Error::*;
        const PEER: PeerId = PeerId(5);
        let all = [
            Truncated { len: 2, room: 1 },
            Cancelled,
            Closed,
            PeerGone(PEER),
            Unreachable(PEER),
            TimedOut(Some(PEER)),
            Device(Some(PEER), EfaStatus::RemoteBadAddress),
            RemoteAccess(PEER),
            OverLimit(PEER),
            Aborted(PEER, 4127),
            NoDescriptor(PEER),
            NoMemory(PEER),
        ];
        for e in all {
            assert!(e.status().is_err(), "{e}");
            assert_eq!(e.status().blame(), Some(if e == Closed { Blame::Peer } else { e.blame() }), "{e}");
        }
        for e in &all[3..] {
            assert_eq!(e.peer(), Some(PEER), "{e}");
            assert!(e.to_string().contains("peer 5"), "{e}");
        }
        let faults = [
            PeerError::Gone,
            PeerError::Unreachable,
            PeerError::NoDescriptor,
            PeerError::NoMemory,
            PeerError::Flood,
        ];
        for fault in faults.into_iter().chain((0..16).map(|n| PeerError::Device(EfaStatus::from(n)))) {
            assert_eq!(Error::of_peer(PEER, fault).peer(), Some(PEER), "{fault}");
        }
        assert_eq!(Device(None, EfaStatus::UnsupportedOp).to_string(), "a peer: device completion status 3");
        assert!(size_of::<Error>() <= 24, "{}", size_of::<Error>());
        assert_eq!(Error::from(OpError::Peer(PEER, PeerError::Gone)).to_string(), "peer 5 is gone");
    }
}
