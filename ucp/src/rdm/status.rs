//! How operations and peers end: the status of a receive, and the errors of a peer and of an operation.

use super::ids::PeerId;
use crate::wire::EfaStatus;
use ucs::Status;

/// Error of a peer, or of one packet to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PeerError {
    /// The peer's process or queue pair is gone.
    #[error("peer is gone")]
    Gone,
    /// The peer's address cannot be connected to.
    #[error("peer is not reachable")]
    Unreachable,
    /// This process has no file descriptor left to reach it with.
    #[error("no file descriptor left to reach the peer")]
    NoDescriptor,
    /// This process has no memory left to reach it with.
    #[error("out of memory to reach the peer")]
    NoMemory,
    /// It has sent more messages than may be kept here until somebody receives them.
    #[error("peer has sent more than may be kept unreceived")]
    OverLimit,
    /// The device ended a packet with this EFA completion status.
    #[error("device completion status {0}")]
    Device(EfaStatus),
    /// The transport refused the operation before the device had it. Neither the peer nor a lane failed.
    #[error("{0}")]
    Local(LocalError),
}

/// Why a transport refused an operation at this end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LocalError {
    /// The transport does not have the operation.
    #[error("the transport does not support the operation")]
    Unsupported,
    /// The arguments do not fit together.
    #[error("the transport refused the arguments")]
    InvalidParam,
    /// A system call failed.
    #[error("a system call of the transport failed")]
    System,
}

impl PeerError {
    /// Answer of a wire without RDMA: the status of an operation that the devices do not have in common.
    pub const NO_RDMA: PeerError = PeerError::Device(EfaStatus::FeatureMismatch);

    /// The device refused the remote key, or what lies behind it: the operation's fault, not the peer's.
    pub const ACCESS: PeerError = PeerError::Device(EfaStatus::RemoteBadAddress);
    /// The peer had no receive for what arrives with a write, for as long as the device tried. Not the peer's
    /// end.
    pub const NOT_READY: PeerError = PeerError::Device(EfaStatus::Rnr);

    /// A message was longer than the receive that it used up.
    pub const TOO_LONG: PeerError = PeerError::Device(EfaStatus::RemoteBadLength);

    /// Whether it is our own queue pair that failed: nothing goes over this lane any more.
    pub const fn is_local_lane(self) -> bool {
        matches!(self, PeerError::Device(EfaStatus::Flushed | EfaStatus::QpInternal))
    }

    /// Whether it is a device on the way to the peer that failed, and the peer may be there all the same.
    pub const fn is_lane_failure(self) -> bool {
        self.is_local_lane() || matches!(self, PeerError::Unreachable)
    }

    /// The EFA completion status that says so.
    pub const fn status(self) -> EfaStatus {
        match self {
            PeerError::Gone => EfaStatus::BadDestQpn,
            PeerError::Unreachable | PeerError::NoDescriptor | PeerError::NoMemory | PeerError::OverLimit => {
                EfaStatus::Unreachable
            }
            PeerError::Device(status) => status,
            PeerError::Local(LocalError::Unsupported) => EfaStatus::UnsupportedOp,
            PeerError::Local(LocalError::InvalidParam | LocalError::System) => EfaStatus::QpInternal,
        }
    }

    /// Whether it is the peer, or the way to it, that failed, not one operation.
    pub const fn is_peer_failure(self) -> bool {
        !matches!(self, PeerError::Device(_) | PeerError::Local(_))
    }

    /// Whether the operation was refused at this end, so that only it has failed.
    pub const fn is_local(self) -> bool {
        matches!(self, PeerError::Local(_))
    }
}

/// Why the callbacks of a generic datatype ended their operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DatatypeError {
    /// `pack` returned no bytes before the end, or more than it was asked for. The peer got zeros instead.
    #[error("the pack callback returned a wrong number of bytes")]
    Pack,
    /// `unpack` returned this status.
    #[error("the unpack callback failed: {0:?}")]
    Unpack(Status),
    /// A callback panicked.
    #[error("a pack or unpack callback panicked")]
    Panicked,
}

/// Why an operation failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpError {
    /// Caller: the receive is shorter than the message; its first `room` bytes were received.
    #[error("message of {len} bytes cut to the {room} of its receive")]
    Truncated {
        /// Bytes of the message.
        len: u64,
        /// Bytes of the receive.
        room: usize,
        /// Tag of the message; 0 if untagged.
        tag: u64,
        /// Sender.
        from: PeerId,
    },
    /// Caller: cancelled.
    #[error("cancelled")]
    Cancelled,
    /// Caller: lengths that do not agree, or an operation that does not exist for this type.
    #[error("arguments do not fit together")]
    Invalid,
    /// Peer: it takes no message longer than a packet.
    #[error("message of {len} bytes is longer than the {max} the peer takes")]
    TooLong {
        /// Bytes of the message.
        len: usize,
        /// Most bytes of one.
        max: usize,
    },
    /// Caller: only the peer's processor could do it, and `Emulation::Refused` was asked for.
    #[error("only the peer's processor could do this, and emulation is refused")]
    Emulated,
    /// Caller: no such peer, or no such message.
    #[error("no such peer or message")]
    Unknown,
    /// Peer: this one failed.
    #[error("peer {}: {}", .0.0, .1)]
    Peer(PeerId, PeerError),
    /// Peer: its memory may not be reached like this.
    #[error("remote key of peer {} does not allow this access", .0.0)]
    Access(PeerId),
    /// Peer: this one gave up its part of the operation, for this reason of its own.
    #[error("peer {} gave the operation up (its code {})", .0.0, .1)]
    Aborted(PeerId, u32),
    /// Peer: it cannot do this (an old release, or its zero-copy receive mode).
    #[error("not supported by the peer")]
    Unsupported,
    /// Resource: too many operations at a time.
    #[error("too many operations at a time")]
    NoResource,
    /// Caller: its pack or unpack callback failed.
    #[error("{0}")]
    Datatype(DatatypeError),
}

/// A message received.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecvStatus {
    /// Length of the message, bytes.
    pub len: usize,
    /// Tag; 0 for an untagged message.
    pub tag: u64,
    /// The sender.
    pub from: PeerId,
    /// Data of the sender for this completion.
    pub cq_data: Option<u64>,
}
