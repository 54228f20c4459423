//! Parse errors, returned by every parser of `wire`.

use super::base::PktType;
use std::fmt;

/// A section of a packet: what a parse error is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Section {
    /// The first four bytes.
    Base,
    /// The fixed header of the type, tag included.
    Header,
    /// The array of rma iovs.
    RmaIov,
    /// The array of read iovs.
    ReadIov,
    /// The raw address header.
    RawAddr,
    /// The cq data header.
    CqData,
    /// The connid, wherever the type has it.
    Connid,
    /// The feature words of a HANDSHAKE.
    Extra,
    /// The host id of a HANDSHAKE.
    HostId,
    /// The device version of a HANDSHAKE.
    DeviceVersion,
    /// The user receive queue pair of a HANDSHAKE.
    UserRecvQp,
    /// The peer-to-peer word of a HANDSHAKE.
    HmemP2p,
    /// Application bytes.
    Payload,
}

impl fmt::Display for Section {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Section::Base => "base header",
            Section::Header => "fixed header",
            Section::RmaIov => "rma iov",
            Section::ReadIov => "read iov",
            Section::RawAddr => "raw address header",
            Section::CqData => "cq data header",
            Section::Connid => "connid",
            Section::Extra => "feature words",
            Section::HostId => "host id",
            Section::DeviceVersion => "device version",
            Section::UserRecvQp => "user receive queue pair",
            Section::HmemP2p => "peer-to-peer word",
            Section::Payload => "payload",
        })
    }
}

/// Reason why a packet was rejected: an error of the sender or of the network.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ParseError {
    /// A section is longer than the rest of the packet.
    #[error("{section} needs {need} bytes, {have} are left")]
    Truncated {
        /// The section.
        section: Section,
        /// Bytes needed.
        need: u64,
        /// Bytes present.
        have: usize,
    },
    /// Not protocol version 4.
    #[error("protocol version {0}, not 4")]
    Version(u8),
    /// A type nobody has assigned.
    #[error("unknown packet type {0}")]
    UnknownType(u8),
    /// A type that is reserved, deprecated or internal.
    #[error("reserved packet type {0}")]
    ReservedType(PktType),
    /// A type that has a layout, but is never sent.
    #[error("{0} is never sent")]
    NeverSent(PktType),
    /// More iovs than a packet may carry.
    #[error("{count} pieces in {section}, at most 4 are allowed")]
    IovCount {
        /// Rma or read iov.
        section: Section,
        /// The count claimed.
        count: u32,
    },
    /// The lengths of the rma iovs exceed 64 bits together.
    #[error("lengths of the rma iovs overflow")]
    IovTotal,
    /// A raw address shorter than an address.
    #[error("raw address of {0} bytes, at least 32 are needed")]
    AddrLen(u32),
    /// The payload is not what another field says: shorter than `seg_length`, or not the rma iovs' sum.
    #[error("payload of {claimed} bytes claimed, {have} there")]
    Length {
        /// Bytes the header claims.
        claimed: u64,
        /// Bytes present.
        have: usize,
    },
    /// Bytes beyond the end of the message.
    #[error("{len} bytes at {offset} exceed the message of {total}")]
    Range {
        /// Offset in the message.
        offset: u64,
        /// Bytes.
        len: u64,
        /// Bytes of the message, or of its part that travels in packets.
        total: u64,
    },
    /// `nextra_p3` of a HANDSHAKE is less than 3.
    #[error("nextra_p3 is {0}, at least 3 is needed")]
    ExtraCount(u32),
    /// `ref_kind` of a PEER_ERROR is none of 0, 1, 2.
    #[error("unknown ref_kind {0}")]
    RefKind(u32),
}
