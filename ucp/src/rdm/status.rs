//! How operations and peers end: the status of a receive, and the errors of a peer and of an operation.

use super::ids::PeerId;
use crate::wire::EfaStatus;
use ucs::{InternedStr, Status};

/// Error of a peer, or of one packet to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PeerError {
    /// The peer's process or queue pair is gone.
    #[error("peer is gone")]
    Gone,
    /// Memory that we share with the peer was overwritten by a process that it does not belong to.
    #[error("memory shared with the peer is corrupt")]
    Corrupt,
    /// The peer's address cannot be connected to.
    #[error("peer is not reachable")]
    Unreachable,
    /// The peer was heard before and answers no more.
    #[error("peer no longer answers")]
    Unresponsive,
    /// This process has no file descriptor left to reach it with.
    #[error("no file descriptor left to reach the peer")]
    NoDescriptor,
    /// This process has no memory left to reach it with.
    #[error("out of memory to reach the peer")]
    NoMemory,
    /// A finite kind of object that is needed to reach it is used up.
    #[error("no more {0} to reach the peer with")]
    Exhausted(InternedStr),
    /// It has closed its endpoint to us by force.
    #[error("peer has closed the connection")]
    Closed,
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
    /// The transport does not have this call.
    #[error("the transport does not support {0}")]
    Unsupported(InternedStr),
    /// The arguments do not fit together, for this reason.
    #[error("the transport refused the arguments: {0}")]
    InvalidParam(InternedStr),
    /// The data exceeds a limit of the transport: which, in words.
    #[error("{0}")]
    TooLong(InternedStr),
    /// The transport's endpoint has no other end yet.
    #[error("the transport's endpoint is not connected yet")]
    NotConnected,
    /// A system call failed: which, and why.
    #[error("{0}")]
    System(InternedStr),
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
        self.is_local_lane() || matches!(self, PeerError::Unreachable | PeerError::Unresponsive)
    }

    /// The EFA completion status that says so.
    pub const fn status(self) -> EfaStatus {
        match self {
            PeerError::Gone | PeerError::Closed | PeerError::Corrupt => EfaStatus::BadDestQpn,
            PeerError::Unresponsive => EfaStatus::Unresponsive,
            PeerError::Unreachable
            | PeerError::NoDescriptor
            | PeerError::NoMemory
            | PeerError::Exhausted(_)
            | PeerError::OverLimit => EfaStatus::Unreachable,
            PeerError::Device(status) => status,
            PeerError::Local(LocalError::Unsupported(_)) => EfaStatus::UnsupportedOp,
            PeerError::Local(LocalError::TooLong(_)) => EfaStatus::BadLength,
            PeerError::Local(_) => EfaStatus::QpInternal,
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

    /// Whether it says something of one operation only: peer and lane are well. A packet that ends so is
    /// lost all the same, and with it the order of messages.
    pub const fn is_of_operation(self) -> bool {
        use EfaStatus as S;
        let of_operation =
            matches!(self, PeerError::Device(S::UnsupportedOp | S::InvalidLkey | S::BadLength));
        of_operation || self.is_of_rdma() || self.is_local()
    }

    /// Whether only reads and writes of memory end so, so that no packet was lost.
    pub const fn is_of_rdma(self) -> bool {
        use EfaStatus as S;
        matches!(self, PeerError::Device(S::RemoteBadAddress | S::UnknownPeer | S::FeatureMismatch))
    }

    /// The error of an operation with `peer` that ended so.
    pub(in crate::rdm) fn of_operation(self, peer: PeerId) -> OpError {
        if self == PeerError::ACCESS { OpError::Access(peer) } else { OpError::Peer(peer, self) }
    }
}

/// Why the callbacks of a generic datatype ended their operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DatatypeError {
    /// `pack` returned no bytes before the end, or more than it was asked for. Nothing of the message was
    /// sent, or it is withdrawn; a peer without PEER_ERROR that has a part of it gets zeros.
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
    /// Caller: an atomic does not fit one packet.
    #[error("atomic of {len} bytes is longer than the {max} that fit one packet")]
    AtomicTooLong {
        /// Bytes of the elements.
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

impl OpError {
    /// Whether the peer or a device refused this operation, and peer and lane may be well.
    pub const fn is_refusal(self) -> bool {
        match self {
            OpError::Access(_) | OpError::Aborted(..) => true,
            OpError::Peer(_, fault) => fault.is_of_operation(),
            _ => false,
        }
    }
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

impl RecvStatus {
    /// The status of an operation that has received nothing.
    pub const EMPTY: RecvStatus = RecvStatus { len: 0, tag: 0, from: PeerId::NONE, cq_data: None };
}

/// libfabric's code for an aborted operation, in a PEER_ERROR.
pub const ABORTED: u32 = 4127;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rdm::io::{NotPosted, Posted};

    #[test]
    fn errors_of_the_hot_path_fit_a_register() {
        assert_eq!(size_of::<Option<PeerError>>(), 4);
        assert_eq!(size_of::<Result<Posted, NotPosted>>(), 4);
    }

    #[test]
    fn operation_errors_fail_neither_peer_nor_lane() {
        for status in (0..=u8::MAX).map(EfaStatus::from) {
            let fault = PeerError::Device(status);
            assert!(!fault.is_of_rdma() || fault.is_of_operation(), "{fault}");
            assert!(!fault.is_of_operation() || !fault.is_lane_failure(), "{fault}");
        }
        assert!(!PeerError::Device(EfaStatus::BadDestQpn).is_of_operation());
        assert_eq!(PeerError::ACCESS.of_operation(PeerId(3)), OpError::Access(PeerId(3)));
    }
}
