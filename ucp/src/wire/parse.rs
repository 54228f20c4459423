//! The packet parser.
//!
//! Headers are copied out, each field once, because packet memory may be shared with another process; the
//! payload stays in place. Keeps no state and does not look at the sender.

use super::base::{Base, PktType, Tagged, VERSION};
use super::ctl::{AtomRsp, Cts, CtsData, Eor, PeerError, ReadNack, ReadRsp, Receipt};
use super::error::{ParseError, Section};
use super::handshake::Handshake;
use super::packet::Packet;
use super::reader::Reader;
use super::rtm::{self, Delivery};
use super::rtr::{ReadKind, Rtr};
use super::table::{Assignment, info};
use super::{rta, rtw};

/// Checks a received packet and takes it apart. Never panics, whatever the bytes.
// HOT
#[inline]
pub fn parse(packet: &[u8]) -> Result<Packet<'_>, ParseError> {
    match rtm::read::eager_fast(packet) {
        Some(rtm) => Ok(Packet::Rtm(rtm)),
        None => parse_general(packet),
    }
}

/// Parser for every type.
// HOT: CTSDATA and MEDIUM come this way.
// [M1.1] [M1.2]
pub(super) fn parse_general(packet: &[u8]) -> Result<Packet<'_>, ParseError> {
    // Only this copy of the base header is used, though the fixed headers contain it again.
    let base: Base = Reader::new(packet).take(Section::Base)?;
    if base.version != VERSION {
        return Err(ParseError::Version(base.version));
    }
    match PktType(base.ty) {
        PktType::CTSDATA => CtsData::parse(packet, base).map(|(hdr, payload)| Packet::CtsData(hdr, payload)),
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
        PktType::EAGER_RTW => rtw::read::eager(packet, base, Delivery::Plain),
        PktType::DC_EAGER_RTW => rtw::read::eager(packet, base, Delivery::Complete),
        PktType::LONGCTS_RTW => rtw::read::longcts(packet, base, Delivery::Plain),
        PktType::DC_LONGCTS_RTW => rtw::read::longcts(packet, base, Delivery::Complete),
        PktType::LONGREAD_RTW => rtw::read::longread(packet, base),
        PktType::SHORT_RTR => Rtr::parse(packet, base, ReadKind::Short).map(Packet::Rtr),
        PktType::LONGCTS_RTR => Rtr::parse(packet, base, ReadKind::LongCts).map(Packet::Rtr),
        PktType::WRITE_RTA | PktType::FETCH_RTA | PktType::COMPARE_RTA | PktType::DC_WRITE_RTA => {
            rta::read::parse(packet, base)
        }
        PktType::CTS => Cts::parse(packet, base).map(Packet::Cts),
        PktType::READRSP => ReadRsp::parse(packet, base).map(|(hdr, payload)| Packet::ReadRsp(hdr, payload)),
        PktType::EOR => Eor::parse(packet, base).map(Packet::Eor),
        PktType::ATOMRSP => AtomRsp::parse(packet, base).map(|(hdr, payload)| Packet::AtomRsp(hdr, payload)),
        PktType::HANDSHAKE => Handshake::parse(packet, base).map(Packet::Handshake),
        PktType::RECEIPT => Receipt::parse(packet, base).map(Packet::Receipt),
        PktType::READ_NACK => ReadNack::parse(packet, base).map(Packet::ReadNack),
        PktType::PEER_ERROR => PeerError::parse(packet, base).map(Packet::PeerError),
        ty => Err(match info(ty).assignment {
            Assignment::NeverSent => ParseError::NeverSent(ty),
            Assignment::Reserved => ParseError::ReservedType(ty),
            Assignment::InUse | Assignment::Unassigned => ParseError::UnknownType(ty.0),
        }),
    }
}
