//! Table of the 256 packet types, built at compile time: name, length, family, fields.
//!
//! Read by the printer, the size functions, the dump tool and the dissector generator.

use super::base::PktType;
use super::handshake::Features;
pub use super::layout::{Field, FieldFormat};
use super::{ctl, handshake, rta, rtm, rtr, rtw};

/// Family of a packet type.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PktFamily {
    /// Request to message: two-sided.
    Rtm,
    /// Request to write.
    Rtw,
    /// Request to read.
    Rtr,
    /// Request for an atomic.
    Rta,
    /// Everything that is no REQ packet.
    Control,
    /// Not a known type.
    None,
}

impl PktFamily {
    /// REQ packets may carry a raw address, cq data and a connid.
    pub const fn is_req(self) -> bool {
        matches!(self, PktFamily::Rtm | PktFamily::Rtw | PktFamily::Rtr | PktFamily::Rta)
    }

    /// Whether packets of this class take a place in the message order of their sender.
    pub const fn has_msg_id(self) -> bool {
        matches!(self, PktFamily::Rtm | PktFamily::Rta)
    }
}

/// Whether a type may appear on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Assignment {
    /// Sent and received.
    InUse,
    /// It has a layout, but nobody ever sent it and everybody rejects it.
    NeverSent,
    /// Reserved, deprecated or internal to an implementation.
    Reserved,
    /// Not assigned.
    Unassigned,
}

/// Static properties of a packet type.
#[derive(Clone, Copy, Debug)]
pub struct PktInfo {
    /// Packet type.
    pub ty: PktType,
    /// Name; empty if the number is not assigned.
    pub name: &'static str,
    /// Bytes of the fixed header, tag included, iovs and optional headers not.
    pub hdr_len: u16,
    /// Packet family.
    pub family: PktFamily,
    /// The last 8 bytes of the fixed header are a tag.
    pub tagged: bool,
    /// `rma_iov_count` iovs follow the fixed header.
    pub rma_iov: bool,
    /// `read_iov_count` iovs lead the payload.
    pub read_iov: bool,
    /// Application bytes may follow.
    pub payload: bool,
    /// The receiver must answer with a RECEIPT.
    pub dc: bool,
    /// Whether it may appear.
    pub assignment: Assignment,
    /// Features the receiver must have announced; empty for baseline packets.
    pub needs: Features,
    /// The fields behind the base header, tag not included.
    pub fields: &'static [Field],
}

/// The tag of a tagged type, wherever it is.
const TAG: Field =
    Field { name: "tag", offset: 0, width: 8, format: FieldFormat::Hex, meaning: "tag of the message" };

impl PktInfo {
    const fn unknown(ty: u8) -> Self {
        PktInfo {
            ty: PktType(ty),
            name: "",
            hdr_len: 0,
            family: PktFamily::None,
            tagged: false,
            rma_iov: false,
            read_iov: false,
            payload: false,
            dc: false,
            assignment: Assignment::Unassigned,
            needs: Features::empty(),
            fields: &[],
        }
    }

    const fn new(ty: PktType, family: PktFamily, fields: &'static [Field]) -> Self {
        let mut info = PktInfo {
            ty,
            name: ty.name(),
            family,
            fields,
            assignment: Assignment::InUse,
            hdr_len: 4,
            ..PktInfo::unknown(0)
        };
        let mut i = 0;
        while i < fields.len() {
            info.hdr_len += fields[i].width as u16;
            i += 1;
        }
        info
    }

    const fn tagged(mut self) -> Self {
        self.tagged = true;
        self.hdr_len += 8;
        self
    }

    const fn rma_iov(mut self) -> Self {
        self.rma_iov = true;
        self
    }

    const fn read_iov(mut self) -> Self {
        self.read_iov = true;
        self
    }

    const fn payload(mut self) -> Self {
        self.payload = true;
        self
    }

    const fn dc(mut self) -> Self {
        self.dc = true;
        self.needs(Features::DELIVERY_COMPLETE)
    }

    const fn needs(mut self, bits: Features) -> Self {
        self.needs = self.needs.union(bits);
        self
    }

    const fn assignment(mut self, assignment: Assignment) -> Self {
        self.assignment = assignment;
        self
    }

    const fn no_header(ty: PktType) -> Self {
        PktInfo { ty, name: ty.name(), assignment: Assignment::Reserved, ..PktInfo::unknown(0) }
    }

    /// All fields behind the base header, the tag last.
    pub fn all_fields(&self) -> impl Iterator<Item = Field> + '_ {
        let tag = self.tagged.then(|| Field { offset: self.hdr_len - 8, ..TAG });
        self.fields.iter().copied().chain(tag)
    }
}

const fn rtm(ty: PktType, fields: &'static [Field]) -> PktInfo {
    PktInfo::new(ty, PktFamily::Rtm, fields)
}

const fn rtw(ty: PktType, fields: &'static [Field]) -> PktInfo {
    PktInfo::new(ty, PktFamily::Rtw, fields).rma_iov()
}

const fn rta(ty: PktType, fields: &'static [Field]) -> PktInfo {
    PktInfo::new(ty, PktFamily::Rta, fields).rma_iov().payload()
}

const fn ctl(ty: PktType, fields: &'static [Field]) -> PktInfo {
    PktInfo::new(ty, PktFamily::Control, fields)
}

/// The tail of a RUNTREAD is read: the receiver must be able to.
const RUNT: Features = Features::RDMA_READ.union(Features::RUNT_READ);

/// The types that have a name.
const KNOWN: &[PktInfo] = &[
    PktInfo::no_header(PktType::RTS),
    PktInfo::no_header(PktType::CONNACK),
    ctl(PktType::CTS, ctl::CTS),
    ctl(PktType::CTSDATA, ctl::CTSDATA).payload(),
    ctl(PktType::READRSP, ctl::READRSP).payload(),
    PktInfo::no_header(PktType::RMA_CONTEXT),
    ctl(PktType::EOR, ctl::EOR),
    ctl(PktType::ATOMRSP, ctl::ATOMRSP).payload(),
    ctl(PktType::HANDSHAKE, handshake::FIELDS),
    ctl(PktType::RECEIPT, ctl::RECEIPT).needs(Features::DELIVERY_COMPLETE),
    ctl(PktType::READ_NACK, ctl::READ_NACK).needs(Features::READ_NACK),
    ctl(PktType::PEER_ERROR, ctl::PEER_ERROR).needs(Features::PEER_ERROR),
    rtm(PktType::EAGER_MSGRTM, rtm::hdr::EAGER).payload(),
    rtm(PktType::EAGER_TAGRTM, rtm::hdr::EAGER).tagged().payload(),
    rtm(PktType::MEDIUM_MSGRTM, rtm::hdr::MEDIUM).payload(),
    rtm(PktType::MEDIUM_TAGRTM, rtm::hdr::MEDIUM).tagged().payload(),
    rtm(PktType::LONGCTS_MSGRTM, rtm::hdr::LONGCTS).payload(),
    rtm(PktType::LONGCTS_TAGRTM, rtm::hdr::LONGCTS).tagged().payload(),
    rtw(PktType::EAGER_RTW, rtw::hdr::EAGER).payload(),
    rtw(PktType::LONGCTS_RTW, rtw::hdr::LONGCTS).payload(),
    PktInfo::new(PktType::SHORT_RTR, PktFamily::Rtr, rtr::FIELDS).rma_iov(),
    PktInfo::new(PktType::LONGCTS_RTR, PktFamily::Rtr, rtr::FIELDS).rma_iov(),
    rta(PktType::WRITE_RTA, rta::hdr::WRITE),
    rta(PktType::FETCH_RTA, rta::hdr::FETCH),
    rta(PktType::COMPARE_RTA, rta::hdr::FETCH),
    rtm(PktType::LONGREAD_MSGRTM, rtm::hdr::LONGREAD).read_iov().needs(Features::RDMA_READ),
    rtm(PktType::LONGREAD_TAGRTM, rtm::hdr::LONGREAD).tagged().read_iov().needs(Features::RDMA_READ),
    rtw(PktType::LONGREAD_RTW, rtw::hdr::LONGREAD).read_iov().needs(Features::RDMA_READ),
    PktInfo::no_header(PktType::READ_RTR),
    PktInfo::no_header(PktType::RESERVED_132),
    rtm(PktType::DC_EAGER_MSGRTM, rtm::hdr::DC_EAGER).payload().dc(),
    rtm(PktType::DC_EAGER_TAGRTM, rtm::hdr::DC_EAGER).tagged().payload().dc(),
    rtm(PktType::DC_MEDIUM_MSGRTM, rtm::hdr::DC_MEDIUM).payload().dc(),
    rtm(PktType::DC_MEDIUM_TAGRTM, rtm::hdr::DC_MEDIUM).tagged().payload().dc(),
    rtm(PktType::DC_LONGCTS_MSGRTM, rtm::hdr::LONGCTS).payload().dc(),
    rtm(PktType::DC_LONGCTS_TAGRTM, rtm::hdr::LONGCTS).tagged().payload().dc(),
    rtw(PktType::DC_EAGER_RTW, rtw::hdr::DC_EAGER).payload().dc(),
    rtw(PktType::DC_LONGCTS_RTW, rtw::hdr::LONGCTS).payload().dc(),
    rta(PktType::DC_WRITE_RTA, rta::hdr::DC_WRITE).dc(),
    rtm(PktType::RUNTCTS_MSGRTM, rtm::hdr::RUNTCTS).payload().assignment(Assignment::NeverSent),
    rtm(PktType::RUNTCTS_TAGRTM, rtm::hdr::RUNTCTS).tagged().payload().assignment(Assignment::NeverSent),
    rtw(PktType::RUNTCTS_RTW, rtw::hdr::RUNTCTS).payload().assignment(Assignment::NeverSent),
    rtm(PktType::RUNTREAD_MSGRTM, rtm::hdr::RUNTREAD).read_iov().payload().needs(RUNT),
    rtm(PktType::RUNTREAD_TAGRTM, rtm::hdr::RUNTREAD).tagged().read_iov().payload().needs(RUNT),
    rtw(PktType::RUNTREAD_RTW, rtw::hdr::RUNTREAD).read_iov().payload().assignment(Assignment::NeverSent),
];

/// Properties of every packet type, by number.
pub static TABLE: [PktInfo; 256] = build();

const fn build() -> [PktInfo; 256] {
    let mut table = [const { PktInfo::unknown(0) }; 256];
    let mut ty = 0;
    while ty < 256 {
        table[ty].ty = PktType(ty as u8);
        ty += 1;
    }
    let mut i = 0;
    while i < KNOWN.len() {
        let slot = KNOWN[i].ty.0 as usize;
        assert!(matches!(table[slot].assignment, Assignment::Unassigned), "two rows of one packet type");
        table[slot] = KNOWN[i];
        i += 1;
    }
    table
}

/// Properties of a packet type.
#[inline]
pub fn info(ty: PktType) -> &'static PktInfo {
    &TABLE[usize::from(ty.0)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_lengths_match_the_specification() {
        let want: &[(u8, u16)] = &[
            (3, 24),
            (4, 24),
            (5, 24),
            (7, 16),
            (8, 24),
            (9, 8),
            (10, 16),
            (11, 16),
            (12, 20),
            (64, 8),
            (65, 16),
            (66, 24),
            (67, 32),
            (68, 24),
            (69, 32),
            (70, 8),
            (71, 24),
            (72, 24),
            (73, 24),
            (74, 24),
            (75, 24),
            (76, 24),
            (128, 24),
            (129, 32),
            (130, 24),
            (133, 16),
            (134, 24),
            (135, 32),
            (136, 40),
            (137, 24),
            (138, 32),
            (139, 16),
            (140, 24),
            (141, 24),
            (142, 40),
            (143, 48),
            (144, 40),
            (145, 40),
            (146, 48),
            (147, 40),
        ];
        for info in &TABLE {
            let len = want.iter().find(|(ty, _)| *ty == info.ty.0).map_or(0, |(_, len)| *len);
            assert_eq!(info.hdr_len, len, "{}", info.ty);
        }
    }

    #[test]
    fn fields_cover_the_header() {
        for (at, info) in TABLE.iter().enumerate() {
            assert_eq!(usize::from(info.ty.0), at);
            assert_eq!(info.name.is_empty(), info.assignment == Assignment::Unassigned);
            let mut end = 4;
            for field in info.all_fields() {
                assert_eq!(field.offset, end, "{} {}", info.ty, field.name);
                assert!(matches!(field.width, 1 | 2 | 4 | 8));
                end += u16::from(field.width);
            }
            assert!(info.hdr_len == 0 || info.hdr_len == end);
        }
    }
}
