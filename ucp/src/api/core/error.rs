//! Errors of operations. [`Error`] is small and `Copy`; [`Error::status`] maps it to the C API.

use super::requests::MAX_OPERATIONS;
use crate::rdm::LocalError;
use ucs::sync::LockError;
use ucs::{Blame, InternedStr, Status};

pub use crate::cm::ConnectFailure;
use crate::rdm::io::{PeerError, PeerId};
use crate::rdm::{DatatypeError, OpError};
use crate::wire::EfaStatus;

/// Error of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The message exceeds the receive buffer: the part that fits was written, the rest is lost.
    #[error("message of {len} bytes does not fit the buffer of {room}")]
    Truncated {
        /// Length of the message, bytes.
        len: u64,
        /// Length of the buffer, bytes.
        room: usize,
    },
    /// The operation was cancelled on request.
    #[error("cancelled")]
    Cancelled,
    /// Invalid arguments: lengths differ or overflow, blocks overlap, or the type lacks the operation.
    #[error("invalid arguments")]
    Invalid,
    /// The data of the operation is not in the registered memory that its parameters name.
    #[error("{len} bytes are not all in the registered memory of {mem} that was named")]
    OutsideMem {
        /// Length of the data, bytes.
        len: usize,
        /// Length of the registered memory, bytes.
        mem: usize,
    },
    /// An operation names more pieces of memory than it may have.
    #[error("more than {max} pieces of memory in one operation")]
    TooManyPieces {
        /// Most pieces of one operation.
        max: usize,
    },
    /// An atomic does not fit one packet ([`EpProtocols::max_atomic`](crate::EpProtocols::max_atomic)).
    #[error("atomic of {len} bytes is longer than the {max} that fit one packet")]
    AtomicTooLong {
        /// Length of the elements, bytes.
        len: usize,
        /// Longest permitted length, bytes.
        max: usize,
    },
    /// Only packets could carry the operation, and `UCX_EMULATION=n` excludes them.
    #[error("only the peer's processor could do this, and emulation is refused (UCX_EMULATION)")]
    EmulationDisabled,
    /// The header of an active message is too long.
    #[error("header of {len} bytes is longer than {max}")]
    HeaderTooLong {
        /// Length of the header, bytes.
        len: usize,
        /// Longest permitted header, bytes.
        max: usize,
    },
    /// The peer of the endpoint is not known yet, and this cannot wait for it.
    #[error("endpoint has no peer yet")]
    NotConnected,
    /// The endpoint never got its peer.
    #[error("endpoint could not be connected: {0}")]
    ConnectFailed(ConnectFailure),
    /// The calling thread may not use the worker ([`crate::mt`]).
    #[error("worker: {0}")]
    Thread(#[from] LockError),
    /// The endpoint is closed.
    #[error("endpoint is closed")]
    Closed,
    /// The probed message was already received, or its sender failed.
    #[error("no such probed message")]
    NoMessage,
    /// The process or queue pair of this peer ([`Ep::peer`](crate::Ep::peer)) is gone.
    #[error("peer {} is gone", .0.0)]
    PeerGone(PeerId),
    /// This peer has closed its end of the connection by force.
    #[error("peer {} has closed the connection", .0.0)]
    Reset(PeerId),
    /// The memory shared with this peer was overwritten by a process that it does not belong to.
    #[error("memory shared with peer {} is corrupt", .0.0)]
    Corrupt(PeerId),
    /// The address of this peer cannot be reached.
    #[error("peer {} is not reachable", .0.0)]
    Unreachable(PeerId),
    /// This peer was heard before and answers no more: its host is cut off or down, or its process hangs.
    #[error("peer {} no longer answers", .0.0)]
    Unresponsive(PeerId),
    /// This peer (`None`: at least one peer) did not answer in time.
    #[error("{} did not answer in time", PeerName(.0))]
    TimedOut(Option<PeerId>),
    /// The remote key of this peer does not permit the range or the kind of access.
    #[error("remote key of peer {} does not allow this access", .0.0)]
    RemoteAccess(PeerId),
    /// This peer aborted its part of the operation, with its own code (libfabric: `prov_errno`).
    #[error("peer {} gave the operation up (its code {})", .0.0, .1)]
    Aborted(PeerId, u32),
    /// The peer is in a receive mode that accepts single packets only.
    #[error("message of {len} bytes is longer than the {max} the peer takes")]
    TooLong {
        /// Length of the message, bytes.
        len: usize,
        /// Longest permitted message, bytes.
        max: usize,
    },
    /// The peer's release or receive mode does not support the operation.
    #[error("not supported by the peer")]
    Unsupported,
    /// The device failed operations to this peer, or to none in particular, with this EFA completion status.
    #[error("{}: device completion status {}", PeerName(.0), .1)]
    Device(Option<PeerId>, EfaStatus),
    /// The transport refused the operation to this peer (`None`: to none in particular) at this end. Lane
    /// and peer are well.
    #[error("operation with {}: {}", PeerName(.0), .1)]
    Local(Option<PeerId>, LocalError),
    /// The worker has too many operations in progress: [`MAX_OPERATIONS`] of one kind, such as receives.
    #[error("too many operations are running: a worker has at most {MAX_OPERATIONS} of a kind")]
    Exhausted,
    /// A completion queue has no entry left for another operation.
    #[error("all {0} entries of the completion queue are in use: read it, or make it deeper")]
    QueueFull(usize),
    /// The process or system has no free file descriptor to reach this peer.
    #[error("no file descriptor left to reach peer {} with (raise the limit, see `ulimit -n`)", .0.0)]
    NoDescriptor(PeerId),
    /// A finite kind of object that is needed to reach this peer is used up.
    #[error("no more {} to reach peer {} with", .1, .0.0)]
    NoMore(PeerId, InternedStr),
    /// This peer exceeded the memory of unexpected messages (`UCX_UNEXP_MAX`): its packets are dropped.
    #[error("peer {} has sent more than may be kept unreceived (UCX_UNEXP_MAX)", .0.0)]
    OverLimit(PeerId),
    /// Memory to reach this peer could not be allocated.
    #[error(
        "out of memory to reach peer {} with (free some, use smaller sizes, or raise the container's or user's limit)",
        .0.0
    )]
    NoMemory(PeerId),
    /// A pack or unpack callback of the program failed.
    #[error("{0}")]
    Datatype(DatatypeError),
}

impl Error {
    /// Party that has to act.
    pub fn blame(self) -> Blame {
        use Error::*;
        match self {
            Truncated { .. }
            | HeaderTooLong { .. }
            | Cancelled
            | Invalid
            | OutsideMem { .. }
            | TooManyPieces { .. }
            | AtomicTooLong { .. }
            | EmulationDisabled
            | Thread(_)
            | Closed
            | NotConnected
            | NoMessage
            | Datatype(_) => Blame::Caller,
            ConnectFailed(why) => why.status().blame().unwrap_or(Blame::Peer),
            PeerGone(_)
            | Reset(_)
            | Corrupt(_)
            | Unreachable(_)
            | Unresponsive(_)
            | TimedOut(_)
            | RemoteAccess(_)
            | Aborted(..)
            | TooLong { .. }
            | Unsupported => Blame::Peer,
            Local(_, LocalError::System(_)) => Blame::Device,
            Local(..) => Blame::Caller,
            Device(..) => Blame::Device,
            QueueFull(_) | Exhausted | NoDescriptor(_) | NoMemory(_) | NoMore(..) | OverLimit(_) => {
                Blame::Resource
            }
        }
    }

    /// Whether a receive that has failed so has not begun: the message is as before, and may be received
    /// again, as after [`Message::recv_raw`](crate::Message::recv_raw).
    pub fn keeps_message(self) -> bool {
        matches!(self, Error::OutsideMem { .. } | Error::Invalid | Error::Exhausted)
    }

    /// Status code in the C API.
    pub fn status(self) -> Status {
        use Error::*;
        match self {
            Truncated { .. } => Status::MessageTruncated,
            HeaderTooLong { .. } | TooLong { .. } => Status::InvalidParam,
            Cancelled => Status::Canceled,
            Invalid | OutsideMem { .. } | Thread(_) => Status::InvalidParam,
            TooManyPieces { .. } | AtomicTooLong { .. } => Status::ExceedsLimit,
            EmulationDisabled => Status::Unsupported,
            Closed | NotConnected => Status::NotConnected,
            ConnectFailed(why) => why.status(),
            NoMessage => Status::NoMessage,
            PeerGone(_) | Reset(_) | Corrupt(_) => Status::ConnectionReset,
            Unreachable(_) => Status::Unreachable,
            Unresponsive(_) | TimedOut(_) => Status::EndpointTimeout,
            RemoteAccess(_) | Aborted(..) => Status::Rejected,
            Unsupported => Status::Unsupported,
            Local(_, LocalError::Unsupported(_)) => Status::Unsupported,
            Local(_, LocalError::InvalidParam(_)) => Status::InvalidParam,
            Local(_, LocalError::TooLong(_)) => Status::ExceedsLimit,
            Local(_, LocalError::NotConnected) => Status::NotConnected,
            Local(_, LocalError::System(_)) => Status::IoError,
            Device(..) => Status::IoError,
            Datatype(DatatypeError::Unpack(status)) => status,
            Datatype(_) => Status::IoError,
            QueueFull(_) => Status::NoResource,
            Exhausted | NoDescriptor(_) | NoMemory(_) | NoMore(..) | OverLimit(_) => Status::NoMemory,
        }
    }
}

impl Error {
    /// Peer of the error, as numbered by [`Ep::peer`](crate::Ep::peer); `None`: no peer in particular.
    pub fn peer(self) -> Option<PeerId> {
        use Error::*;
        match self {
            PeerGone(peer) | Reset(peer) | Corrupt(peer) | Unreachable(peer) | Unresponsive(peer)
            | RemoteAccess(peer) => Some(peer),
            Aborted(peer, _) => Some(peer),
            OverLimit(peer) | NoDescriptor(peer) | NoMemory(peer) | NoMore(peer, _) => Some(peer),
            TimedOut(peer) | Device(peer, _) | Local(peer, _) => peer,
            _ => None,
        }
    }

    pub(crate) fn of_peer(peer: PeerId, fault: PeerError) -> Self {
        match fault {
            PeerError::Gone => Error::PeerGone(peer),
            PeerError::Corrupt => Error::Corrupt(peer),
            PeerError::Closed => Error::Reset(peer),
            PeerError::Unreachable => Error::Unreachable(peer),
            PeerError::Unresponsive => Error::Unresponsive(peer),
            PeerError::NoDescriptor => Error::NoDescriptor(peer),
            PeerError::NoMemory => Error::NoMemory(peer),
            PeerError::Exhausted(what) => Error::NoMore(peer, what),
            PeerError::OverLimit => Error::OverLimit(peer),
            PeerError::ACCESS => Error::RemoteAccess(peer),
            PeerError::Device(code) => Error::Device(Some(peer), code),
            PeerError::Local(why) => Error::Local(Some(peer), why),
        }
    }

    /// The error of what concerns a device and no peer in particular.
    pub(crate) fn of_device(fault: PeerError) -> Self {
        match fault {
            PeerError::Local(why) => Error::Local(None, why),
            fault => Error::Device(None, fault.status()),
        }
    }
}

impl From<OpError> for Error {
    #[cold]
    #[inline(never)]
    fn from(e: OpError) -> Self {
        match e {
            OpError::Truncated { len, room, .. } => Error::Truncated { len, room },
            OpError::Cancelled => Error::Cancelled,
            OpError::Invalid => Error::Invalid,
            OpError::Emulated => Error::EmulationDisabled,
            OpError::Unknown => Error::NoMessage,
            OpError::TooLong { len, max } => Error::TooLong { len, max },
            OpError::AtomicTooLong { len, max } => Error::AtomicTooLong { len, max },
            OpError::Unsupported => Error::Unsupported,
            OpError::Access(peer) => Error::RemoteAccess(peer),
            OpError::Aborted(peer, code) => Error::Aborted(peer, code),
            OpError::NoResource => Error::Exhausted,
            OpError::Datatype(error) => Error::Datatype(error),
            OpError::Peer(peer, fault) => Error::of_peer(peer, fault),
        }
    }
}

struct PeerName<'a>(&'a Option<PeerId>);

impl std::fmt::Display for PeerName<'_> {
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
            QueueFull(8),
            PeerGone(PEER),
            Unreachable(PEER),
            Unresponsive(PEER),
            TimedOut(Some(PEER)),
            Device(Some(PEER), EfaStatus::RemoteBadAddress),
            RemoteAccess(PEER),
            OverLimit(PEER),
            Aborted(PEER, 4127),
            NoDescriptor(PEER),
            NoMemory(PEER),
            NoMore(PEER, InternedStr::new("queue pairs")),
            Local(Some(PEER), LocalError::Unsupported(InternedStr::new("put_short"))),
            Local(Some(PEER), LocalError::InvalidParam(InternedStr::new("of a test"))),
            Local(Some(PEER), LocalError::TooLong(InternedStr::new("of a test"))),
            Local(Some(PEER), LocalError::System(InternedStr::new("mmap"))),
        ];
        for e in all {
            assert!(e.status().is_err(), "{e}");
            assert_eq!(e.status().blame(), Some(if e == Closed { Blame::Peer } else { e.blame() }), "{e}");
        }
        for e in &all[4..] {
            assert_eq!(e.peer(), Some(PEER), "{e}");
            assert!(e.to_string().contains("peer 5"), "{e}");
        }
        let faults = [
            PeerError::Gone,
            PeerError::Corrupt,
            PeerError::Unreachable,
            PeerError::Unresponsive,
            PeerError::NoDescriptor,
            PeerError::NoMemory,
            PeerError::OverLimit,
        ];
        for fault in faults.into_iter().chain((0..16).map(|n| PeerError::Device(EfaStatus::from(n)))) {
            assert_eq!(Error::of_peer(PEER, fault).peer(), Some(PEER), "{fault}");
        }
        assert_eq!(Device(None, EfaStatus::UnsupportedOp).to_string(), "a peer: device completion status 3");
        let text = "too many operations are running: a worker has at most 1048576 of a kind";
        assert_eq!(Error::from(OpError::NoResource).to_string(), text);
        let text = Local(None, LocalError::System(InternedStr::new("mmap: ENOMEM"))).to_string();
        assert_eq!(text, "operation with a peer: mmap: ENOMEM");
        assert_eq!(Error::of_peer(PEER, PeerError::ACCESS), RemoteAccess(PEER));
        assert!(size_of::<Error>() <= 24, "{}", size_of::<Error>());
        assert_eq!(Error::from(OpError::Peer(PEER, PeerError::Gone)).to_string(), "peer 5 is gone");
    }
}
