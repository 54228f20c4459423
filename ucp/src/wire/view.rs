//! The door: turns received bytes into a checked packet, once.
//!
//! Called by the engine for every arriving packet. Headers are copied out, each field once, since packet memory
//! may be shared with another process; only the payload stays where it is. It keeps no state and decides
//! nothing about who sent the packet.

use super::base::{Base, PktType, Reader, Tagged, VERSION};
use super::ctl::{AtomRsp, Cts, CtsData, Eor, PeerError, ReadNack, ReadRsp, Receipt};
use super::handshake::Handshake;
use super::opt::Opts;
use super::rta::{self, Rta};
use super::rtm::{self, Delivery, Rtm};
use super::rtr::{self, ReadKind, Rtr};
use super::rtw::{self, Rtw};
use super::table::{Travel, row};
use std::fmt;

/// A packet that has passed the door.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Packet<'a> {
    /// Request to message.
    Rtm(Rtm<'a>),
    /// Request to write.
    Rtw(Rtw<'a>),
    /// Request to read.
    Rtr(Rtr),
    /// Request for an atomic, and its operands.
    Rta(Rta, &'a [u8]),
    /// A window.
    Cts(Cts),
    /// Data within a window.
    CtsData(CtsData, &'a [u8]),
    /// Data of an emulated read.
    ReadRsp(ReadRsp, &'a [u8]),
    /// End of read.
    Eor(Eor),
    /// Result of an atomic.
    AtomRsp(AtomRsp, &'a [u8]),
    /// What the sender can.
    Handshake(Handshake),
    /// Delivery complete.
    Receipt(Receipt),
    /// The receiver cannot read.
    ReadNack(ReadNack),
    /// The other side failed.
    PeerError(PeerError),
}

impl<'a> Packet<'a> {
    /// Optional headers, if it is a REQ packet.
    #[inline]
    pub fn opts(&self) -> Option<&Opts> {
        match self {
            Packet::Rtm(rtm) => Some(&rtm.opts),
            Packet::Rtw(rtw) => Some(&rtw.opts),
            Packet::Rtr(rtr) => Some(&rtr.opts),
            Packet::Rta(rta, _) => Some(&rta.opts),
            _ => None,
        }
    }

    /// The connid by which the sender names itself: from the connid header, the multi-use word, or the raw
    /// address.
    #[inline]
    pub fn sender_connid(&self) -> Option<u32> {
        match self {
            Packet::Rtm(rtm) => rtm.opts.sender_connid(),
            Packet::Rtw(rtw) => rtw.opts.sender_connid(),
            Packet::Rtr(rtr) => rtr.opts.sender_connid(),
            Packet::Rta(rta, _) => rta.opts.sender_connid(),
            Packet::Cts(cts) => cts.connid,
            Packet::CtsData(ctsdata, _) => ctsdata.connid,
            Packet::ReadRsp(readrsp, _) => readrsp.connid,
            Packet::Eor(eor) => eor.connid,
            Packet::AtomRsp(atomrsp, _) => atomrsp.connid,
            Packet::Handshake(handshake) => handshake.connid,
            Packet::Receipt(receipt) => receipt.connid,
            Packet::ReadNack(nack) => nack.connid,
            Packet::PeerError(error) => error.connid,
        }
    }

    /// The place in the sender's order, if it has one.
    #[inline]
    pub fn msg_id(&self) -> Option<u32> {
        match self {
            Packet::Rtm(rtm) => Some(rtm.msg_id),
            Packet::Rta(rta, _) => Some(rta.msg_id),
            _ => None,
        }
    }

    /// Application bytes, empty if the type carries none.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        match *self {
            Packet::Rtm(Rtm { payload, .. }) | Packet::Rtw(Rtw { payload, .. }) => payload,
            Packet::Rta(_, payload)
            | Packet::CtsData(_, payload)
            | Packet::ReadRsp(_, payload)
            | Packet::AtomRsp(_, payload) => payload,
            _ => &[],
        }
    }
}

/// A part of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
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

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Part::Base => "base header",
            Part::Header => "fixed header",
            Part::RmaIov => "rma iov",
            Part::ReadIov => "read iov",
            Part::RawAddr => "raw address header",
            Part::CqData => "cq data header",
            Part::Connid => "connid",
            Part::Extra => "feature words",
            Part::HostId => "host id",
            Part::DeviceVersion => "device version",
            Part::UserRecvQp => "user receive queue pair",
            Part::HmemP2p => "peer-to-peer word",
            Part::Payload => "payload",
        })
    }
}

/// Why a packet was turned away. Always the sender's fault, or the network's.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Reject {
    /// A part does not fit into what is left of the packet.
    #[error("{part} needs {need} bytes, {have} are left")]
    Short {
        /// Which part.
        part: Part,
        /// Its length.
        need: u64,
        /// What is there.
        have: usize,
    },
    /// Not protocol version 4.
    #[error("protocol version {0}, not 4")]
    Version(u8),
    /// A type nobody has assigned.
    #[error("unknown packet type {0}")]
    Unknown(u8),
    /// A type that is reserved, deprecated or internal.
    #[error("reserved packet type {0}")]
    Reserved(PktType),
    /// A type that has a layout, but is never sent.
    #[error("{0} is never sent")]
    NeverSent(PktType),
    /// More iovs than a packet may carry.
    #[error("{count} pieces in {part}, at most 4 are allowed")]
    IovCount {
        /// Rma or read iov.
        part: Part,
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
        /// What the header says.
        claimed: u64,
        /// What is there.
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

/// Checks a received packet and takes it apart. Never panics, whatever the bytes.
// HOT
#[inline]
pub fn parse(packet: &[u8]) -> Result<Packet<'_>, Reject> {
    match rtm::read::eager_at_once(packet) {
        Some(rtm) => Ok(Packet::Rtm(rtm)),
        None => parse_any(packet),
    }
}

/// The long way, for every type.
// HOT: CTSDATA and MEDIUM come this way.
// [M1.1] [M1.2]
pub(super) fn parse_any(packet: &[u8]) -> Result<Packet<'_>, Reject> {
    // Only this copy of the base header is used, though the fixed headers contain it again.
    let base: Base = Reader::new(packet).take(Part::Base)?;
    if base.version != VERSION {
        return Err(Reject::Version(base.version));
    }
    match PktType(base.ty) {
        PktType::CTSDATA => CtsData::parse(packet, base),
        PktType::EAGER_MSGRTM => rtm::read::eager(packet, base, Tagged::No),
        PktType::EAGER_TAGRTM => rtm::read::eager(packet, base, Tagged::Yes),
        PktType::MEDIUM_MSGRTM => rtm::read::medium(packet, base, Tagged::No),
        PktType::MEDIUM_TAGRTM => rtm::read::medium(packet, base, Tagged::Yes),
        PktType::LONGCTS_MSGRTM => rtm::read::longcts(packet, base, Tagged::No, Delivery::Plain),
        PktType::LONGCTS_TAGRTM => rtm::read::longcts(packet, base, Tagged::Yes, Delivery::Plain),
        PktType::LONGREAD_MSGRTM => rtm::read::longread(packet, base, Tagged::No),
        PktType::LONGREAD_TAGRTM => rtm::read::longread(packet, base, Tagged::Yes),
        PktType::RUNTREAD_MSGRTM => rtm::read::runtread(packet, base, Tagged::No),
        PktType::RUNTREAD_TAGRTM => rtm::read::runtread(packet, base, Tagged::Yes),
        PktType::DC_EAGER_MSGRTM => rtm::read::dc_eager(packet, base, Tagged::No),
        PktType::DC_EAGER_TAGRTM => rtm::read::dc_eager(packet, base, Tagged::Yes),
        PktType::DC_MEDIUM_MSGRTM => rtm::read::dc_medium(packet, base, Tagged::No),
        PktType::DC_MEDIUM_TAGRTM => rtm::read::dc_medium(packet, base, Tagged::Yes),
        PktType::DC_LONGCTS_MSGRTM => rtm::read::longcts(packet, base, Tagged::No, Delivery::Complete),
        PktType::DC_LONGCTS_TAGRTM => rtm::read::longcts(packet, base, Tagged::Yes, Delivery::Complete),
        PktType::EAGER_RTW => rtw::eager(packet, base, Delivery::Plain),
        PktType::DC_EAGER_RTW => rtw::eager(packet, base, Delivery::Complete),
        PktType::LONGCTS_RTW => rtw::longcts(packet, base, Delivery::Plain),
        PktType::DC_LONGCTS_RTW => rtw::longcts(packet, base, Delivery::Complete),
        PktType::LONGREAD_RTW => rtw::longread(packet, base),
        PktType::SHORT_RTR => rtr::parse(packet, base, ReadKind::Short),
        PktType::LONGCTS_RTR => rtr::parse(packet, base, ReadKind::LongCts),
        PktType::WRITE_RTA | PktType::FETCH_RTA | PktType::COMPARE_RTA | PktType::DC_WRITE_RTA => {
            rta::parse(packet, base)
        }
        PktType::CTS => Cts::parse(packet, base),
        PktType::READRSP => ReadRsp::parse(packet, base),
        PktType::EOR => Eor::parse(packet, base),
        PktType::ATOMRSP => AtomRsp::parse(packet, base),
        PktType::HANDSHAKE => Handshake::parse(packet, base),
        PktType::RECEIPT => Receipt::parse(packet, base),
        PktType::READ_NACK => ReadNack::parse(packet, base),
        PktType::PEER_ERROR => PeerError::parse(packet, base),
        ty => Err(match row(ty).travel {
            Travel::NeverSent => Reject::NeverSent(ty),
            Travel::Reserved => Reject::Reserved(ty),
            Travel::Yes | Travel::Unknown => Reject::Unknown(ty.0),
        }),
    }
}
