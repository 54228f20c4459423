//! One row for each of the 256 packet types, built at compile time: name, length, class, fields.
//!
//! Read by the printer, by the size functions, by the dump tool and by whatever generates a dissector. The
//! field lists are checked against the structs at compile time, see `layout!`.

use super::base::PktType;
use super::handshake::Features;
use super::{ctl, handshake, rta, rtm, rtr, rtw};

/// How a field is best shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Show {
    /// A number.
    Dec,
    /// An opaque value.
    Hex,
    /// Meaningless; shown only if not zero.
    Pad,
    /// A number of an [`super::rta::AtomicOp`].
    Op,
    /// A number of a [`super::rta::Datatype`].
    Datatype,
}

/// One field of a fixed header, little-endian.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Name on the wire.
    pub name: &'static str,
    /// Offset from the start of the packet, bytes.
    pub at: u16,
    /// Width, bytes: 1, 2, 4 or 8.
    pub width: u8,
    /// How to show it.
    pub show: Show,
    /// What it holds.
    pub meaning: &'static str,
}

impl Field {
    /// The value in this packet, if the packet is long enough.
    pub fn get(&self, packet: &[u8]) -> Option<u64> {
        let at = usize::from(self.at);
        let bytes = packet.get(at..at + usize::from(self.width))?;
        let mut value = [0; 8];
        value.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(u64::from_le_bytes(value))
    }
}

/// What kind of request, if one, a packet is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
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

impl Class {
    /// REQ packets may carry a raw address, cq data and a connid.
    pub const fn is_req(self) -> bool {
        matches!(self, Class::Rtm | Class::Rtw | Class::Rtr | Class::Rta)
    }

    /// Whether packets of this class take a place in the message order of their sender.
    pub const fn has_msg_id(self) -> bool {
        matches!(self, Class::Rtm | Class::Rta)
    }
}

/// Whether a type may appear on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Travel {
    /// Yes.
    Yes,
    /// It has a layout, but nobody ever sent it and everybody rejects it.
    NeverSent,
    /// Reserved, deprecated or internal to an implementation.
    Reserved,
    /// Not assigned.
    Unknown,
}

/// What there is to know about a packet type without a packet.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The type this row is of.
    pub ty: PktType,
    /// Its name; empty if it has none.
    pub name: &'static str,
    /// Bytes of the fixed header, tag included, iovs and optional headers not.
    pub hdr_len: u16,
    /// Its class.
    pub class: Class,
    /// The last 8 bytes of the fixed header are a tag.
    pub tagged: bool,
    /// `rma_iov_count` iovs follow the fixed header.
    pub rma_iov: bool,
    /// `read_iov_count` iovs lead the payload.
    pub read_iov: bool,
    /// Application bytes may follow.
    pub payload: bool,
    /// Its receiver owes a RECEIPT.
    pub dc: bool,
    /// Whether it may appear.
    pub travel: Travel,
    /// What the receiver must have announced in its HANDSHAKE; empty for baseline packets.
    pub needs: Features,
    /// The fields behind the base header, tag not included.
    pub fields: &'static [Field],
}

/// The tag of a tagged type, wherever it is.
const TAG: Field = Field { name: "tag", at: 0, width: 8, show: Show::Hex, meaning: "tag of the message" };

impl Row {
    const fn unknown(ty: u8) -> Self {
        Row {
            ty: PktType(ty),
            name: "",
            hdr_len: 0,
            class: Class::None,
            tagged: false,
            rma_iov: false,
            read_iov: false,
            payload: false,
            dc: false,
            travel: Travel::Unknown,
            needs: Features::empty(),
            fields: &[],
        }
    }

    const fn new(ty: PktType, name: &'static str, class: Class, fields: &'static [Field]) -> Self {
        let mut row = Row { ty, name, class, fields, travel: Travel::Yes, hdr_len: 4, ..Row::unknown(0) };
        let mut i = 0;
        while i < fields.len() {
            row.hdr_len += fields[i].width as u16;
            i += 1;
        }
        row
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

    const fn travel(mut self, travel: Travel) -> Self {
        self.travel = travel;
        self
    }

    const fn no_header(ty: PktType, name: &'static str) -> Self {
        Row { ty, name, travel: Travel::Reserved, ..Row::unknown(0) }
    }

    /// All fields behind the base header, the tag last.
    pub fn all_fields(&self) -> impl Iterator<Item = Field> + '_ {
        let tag = self.tagged.then(|| Field { at: self.hdr_len - 8, ..TAG });
        self.fields.iter().copied().chain(tag)
    }
}

const fn rtm(ty: PktType, name: &'static str, fields: &'static [Field]) -> Row {
    Row::new(ty, name, Class::Rtm, fields)
}

const fn rtw(ty: PktType, name: &'static str, fields: &'static [Field]) -> Row {
    Row::new(ty, name, Class::Rtw, fields).rma_iov()
}

const fn rta(ty: PktType, name: &'static str, fields: &'static [Field]) -> Row {
    Row::new(ty, name, Class::Rta, fields).rma_iov().payload()
}

const fn ctl(ty: PktType, name: &'static str, fields: &'static [Field]) -> Row {
    Row::new(ty, name, Class::Control, fields)
}

/// The tail of a RUNTREAD is read: the receiver must be able to.
const RUNT: Features = Features::RDMA_READ.union(Features::RUNT_READ);

/// The types that have a name.
const KNOWN: &[Row] = &[
    Row::no_header(PktType::RTS, "RTS"),
    Row::no_header(PktType::CONNACK, "CONNACK"),
    ctl(PktType::CTS, "CTS", ctl::CTS),
    ctl(PktType::CTSDATA, "CTSDATA", ctl::CTSDATA).payload(),
    ctl(PktType::READRSP, "READRSP", ctl::READRSP).payload(),
    Row::no_header(PktType::RMA_CONTEXT, "RMA_CONTEXT"),
    ctl(PktType::EOR, "EOR", ctl::EOR),
    ctl(PktType::ATOMRSP, "ATOMRSP", ctl::ATOMRSP).payload(),
    ctl(PktType::HANDSHAKE, "HANDSHAKE", handshake::FIELDS),
    ctl(PktType::RECEIPT, "RECEIPT", ctl::RECEIPT).needs(Features::DELIVERY_COMPLETE),
    ctl(PktType::READ_NACK, "READ_NACK", ctl::READ_NACK).needs(Features::READ_NACK),
    ctl(PktType::PEER_ERROR, "PEER_ERROR", ctl::PEER_ERROR).needs(Features::PEER_ERROR),
    rtm(PktType::EAGER_MSGRTM, "EAGER_MSGRTM", rtm::hdr::EAGER).payload(),
    rtm(PktType::EAGER_TAGRTM, "EAGER_TAGRTM", rtm::hdr::EAGER).tagged().payload(),
    rtm(PktType::MEDIUM_MSGRTM, "MEDIUM_MSGRTM", rtm::hdr::MEDIUM).payload(),
    rtm(PktType::MEDIUM_TAGRTM, "MEDIUM_TAGRTM", rtm::hdr::MEDIUM).tagged().payload(),
    rtm(PktType::LONGCTS_MSGRTM, "LONGCTS_MSGRTM", rtm::hdr::LONGCTS).payload(),
    rtm(PktType::LONGCTS_TAGRTM, "LONGCTS_TAGRTM", rtm::hdr::LONGCTS).tagged().payload(),
    rtw(PktType::EAGER_RTW, "EAGER_RTW", rtw::EAGER).payload(),
    rtw(PktType::LONGCTS_RTW, "LONGCTS_RTW", rtw::LONGCTS).payload(),
    Row::new(PktType::SHORT_RTR, "SHORT_RTR", Class::Rtr, rtr::FIELDS).rma_iov(),
    Row::new(PktType::LONGCTS_RTR, "LONGCTS_RTR", Class::Rtr, rtr::FIELDS).rma_iov(),
    rta(PktType::WRITE_RTA, "WRITE_RTA", rta::WRITE),
    rta(PktType::FETCH_RTA, "FETCH_RTA", rta::FETCH),
    rta(PktType::COMPARE_RTA, "COMPARE_RTA", rta::FETCH),
    rtm(PktType::LONGREAD_MSGRTM, "LONGREAD_MSGRTM", rtm::hdr::LONGREAD)
        .read_iov()
        .needs(Features::RDMA_READ),
    rtm(PktType::LONGREAD_TAGRTM, "LONGREAD_TAGRTM", rtm::hdr::LONGREAD)
        .tagged()
        .read_iov()
        .needs(Features::RDMA_READ),
    rtw(PktType::LONGREAD_RTW, "LONGREAD_RTW", rtw::LONGREAD).read_iov().needs(Features::RDMA_READ),
    Row::no_header(PktType::READ_RTR, "READ_RTR"),
    Row::no_header(PktType::RESERVED_132, "RESERVED_132"),
    rtm(PktType::DC_EAGER_MSGRTM, "DC_EAGER_MSGRTM", rtm::hdr::DC_EAGER).payload().dc(),
    rtm(PktType::DC_EAGER_TAGRTM, "DC_EAGER_TAGRTM", rtm::hdr::DC_EAGER).tagged().payload().dc(),
    rtm(PktType::DC_MEDIUM_MSGRTM, "DC_MEDIUM_MSGRTM", rtm::hdr::DC_MEDIUM).payload().dc(),
    rtm(PktType::DC_MEDIUM_TAGRTM, "DC_MEDIUM_TAGRTM", rtm::hdr::DC_MEDIUM).tagged().payload().dc(),
    rtm(PktType::DC_LONGCTS_MSGRTM, "DC_LONGCTS_MSGRTM", rtm::hdr::LONGCTS).payload().dc(),
    rtm(PktType::DC_LONGCTS_TAGRTM, "DC_LONGCTS_TAGRTM", rtm::hdr::LONGCTS).tagged().payload().dc(),
    rtw(PktType::DC_EAGER_RTW, "DC_EAGER_RTW", rtw::DC_EAGER).payload().dc(),
    rtw(PktType::DC_LONGCTS_RTW, "DC_LONGCTS_RTW", rtw::LONGCTS).payload().dc(),
    rta(PktType::DC_WRITE_RTA, "DC_WRITE_RTA", rta::DC_WRITE).dc(),
    rtm(PktType::RUNTCTS_MSGRTM, "RUNTCTS_MSGRTM", rtm::hdr::RUNTCTS).payload().travel(Travel::NeverSent),
    rtm(PktType::RUNTCTS_TAGRTM, "RUNTCTS_TAGRTM", rtm::hdr::RUNTCTS)
        .tagged()
        .payload()
        .travel(Travel::NeverSent),
    rtw(PktType::RUNTCTS_RTW, "RUNTCTS_RTW", rtw::RUNTCTS).payload().travel(Travel::NeverSent),
    rtm(PktType::RUNTREAD_MSGRTM, "RUNTREAD_MSGRTM", rtm::hdr::RUNTREAD).read_iov().payload().needs(RUNT),
    rtm(PktType::RUNTREAD_TAGRTM, "RUNTREAD_TAGRTM", rtm::hdr::RUNTREAD)
        .tagged()
        .read_iov()
        .payload()
        .needs(RUNT),
    rtw(PktType::RUNTREAD_RTW, "RUNTREAD_RTW", rtw::RUNTREAD).read_iov().payload().travel(Travel::NeverSent),
];

/// A row for every value of byte 0.
pub static TABLE: [Row; 256] = build();

const fn build() -> [Row; 256] {
    let mut table = [const { Row::unknown(0) }; 256];
    let mut ty = 0;
    while ty < 256 {
        table[ty].ty = PktType(ty as u8);
        ty += 1;
    }
    let mut i = 0;
    while i < KNOWN.len() {
        let slot = KNOWN[i].ty.0 as usize;
        assert!(matches!(table[slot].travel, Travel::Unknown), "two rows of one packet type");
        table[slot] = KNOWN[i];
        i += 1;
    }
    table
}

/// The row of a type.
#[inline]
pub fn row(ty: PktType) -> &'static Row {
    &TABLE[usize::from(ty.0)]
}

/// Width of the field a getter answers.
pub(super) const fn width_of<H, F>(_: fn(&H) -> &F) -> usize {
    size_of::<F>()
}

/// Declares the field list of a header and refuses to compile unless the struct agrees: every field's offset and
/// width, no gap, the size. Written as `name: width @ offset, Show, "meaning";`, behind the base header.
/// `name as "other"` prints the field under another name.
macro_rules! layout {
    (@name $field:ident) => { stringify!($field) };
    (@name $field:ident $label:literal) => { $label };
    ($(#[$doc:meta])* $vis:vis const $list:ident: $hdr:ty = $size:literal {
        $($field:ident $(as $label:literal)?: $width:literal @ $at:literal, $show:ident, $meaning:literal;)*
    }) => {
        $(#[$doc])*
        $vis const $list: &[$crate::wire::table::Field] = &[$($crate::wire::table::Field {
            name: $crate::wire::table::layout!(@name $field $($label)?),
            at: $at,
            width: $width,
            show: $crate::wire::table::Show::$show,
            meaning: $meaning,
        }),*];

        const _: () = {
            assert!(size_of::<$hdr>() == $size && align_of::<$hdr>() == 1);
            assert!(std::mem::offset_of!($hdr, base) == 0);
            $(
                assert!(std::mem::offset_of!($hdr, $field) == $at);
                assert!($crate::wire::table::width_of::<$hdr, _>(|hdr| &hdr.$field) == $width);
            )*
            assert!(4 $(+ $width)* == $size);
        };
    };
}
pub(super) use layout;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_those_of_the_facts() {
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
        for row in &TABLE {
            let len = want.iter().find(|(ty, _)| *ty == row.ty.0).map_or(0, |(_, len)| *len);
            assert_eq!(row.hdr_len, len, "{}", row.ty);
        }
    }

    #[test]
    fn every_row_is_at_its_place_and_fields_tile_the_header() {
        for (at, row) in TABLE.iter().enumerate() {
            assert_eq!(usize::from(row.ty.0), at);
            assert_eq!(row.name.is_empty(), row.travel == Travel::Unknown);
            let mut end = 4;
            for field in row.all_fields() {
                assert_eq!(field.at, end, "{} {}", row.ty, field.name);
                assert!(matches!(field.width, 1 | 2 | 4 | 8));
                end += u16::from(field.width);
            }
            assert!(row.hdr_len == 0 || row.hdr_len == end);
        }
    }
}
