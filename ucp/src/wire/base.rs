//! Base header, packet types, flags of each packet family and message classes. Used by all of `wire` and by
//! the engine.

use bitflags::bitflags;
use std::fmt;
use zerocopy::little_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The only protocol version there is.
pub const VERSION: u8 = 4;

/// The first four bytes of every packet.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Base {
    /// Packet type, see [`PktType`].
    pub ty: u8,
    /// Protocol version, [`VERSION`].
    pub version: u8,
    /// Flags; their meaning depends on the packet type.
    pub flags: U16,
}

const _: () = assert!(size_of::<Base>() == 4 && align_of::<Base>() == 1);
const _: () = assert!(std::mem::offset_of!(Base, version) == 1 && std::mem::offset_of!(Base, flags) == 2);

impl Base {
    /// The base header of a packet of this type with these flag bits.
    #[inline]
    pub const fn new(ty: PktType, flags: u16) -> Self {
        Base { ty: ty.0, version: VERSION, flags: U16::new(flags) }
    }
}

/// The type of a packet: byte 0. Every value can be held; [`super::table::info`] tells what it means.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(transparent)]
pub struct PktType(pub u8);

macro_rules! pkt_types {
    ($($(#[$doc:meta])* $name:ident = $value:literal;)*) => {
        impl PktType {
            $($(#[$doc])* pub const $name: PktType = PktType($value);)*

            /// Name of the type as the protocol writes it; empty if the number is not assigned.
            pub const fn name(self) -> &'static str {
                match self.0 {
                    $($value => stringify!($name),)*
                    _ => "",
                }
            }
        }
    };
}

pkt_types! {
    /// Request to send; deprecated, never on the wire.
    RTS = 1;
    /// Connection acknowledgement; deprecated, never on the wire.
    CONNACK = 2;
    /// Clear to send: the receiver opens a window of bytes.
    CTS = 3;
    /// Data within a window.
    CTSDATA = 4;
    /// Data of an emulated read.
    READRSP = 5;
    /// A number libfabric keeps for itself; never on the wire.
    RMA_CONTEXT = 6;
    /// End of read: the source buffer of a read-based transfer may be reused.
    EOR = 7;
    /// Result of an atomic.
    ATOMRSP = 8;
    /// Features and requests of the sender.
    HANDSHAKE = 9;
    /// Delivery complete: the message is in the receiver's buffer.
    RECEIPT = 10;
    /// The receiver cannot read; fall back to long-CTS.
    READ_NACK = 11;
    /// The sender's or receiver's side of an operation failed.
    PEER_ERROR = 12;
    /// Message in one packet.
    EAGER_MSGRTM = 64;
    /// Tagged message in one packet.
    EAGER_TAGRTM = 65;
    /// One packet of a message in several.
    MEDIUM_MSGRTM = 66;
    /// One packet of a tagged message in several.
    MEDIUM_TAGRTM = 67;
    /// First packet of a message under flow control.
    LONGCTS_MSGRTM = 68;
    /// First packet of a tagged message under flow control.
    LONGCTS_TAGRTM = 69;
    /// Emulated write in one packet; with no iov, the handshake trigger.
    EAGER_RTW = 70;
    /// First packet of an emulated write under flow control.
    LONGCTS_RTW = 71;
    /// Emulated read answered by one packet.
    SHORT_RTR = 72;
    /// Emulated read under flow control.
    LONGCTS_RTR = 73;
    /// Atomic without result.
    WRITE_RTA = 74;
    /// Atomic that answers the old value.
    FETCH_RTA = 75;
    /// Compare-and-swap kind of atomic.
    COMPARE_RTA = 76;
    /// Message the receiver reads by RDMA.
    LONGREAD_MSGRTM = 128;
    /// Tagged message the receiver reads by RDMA.
    LONGREAD_TAGRTM = 129;
    /// Write the receiver reads by RDMA.
    LONGREAD_RTW = 130;
    /// Reserved.
    READ_RTR = 131;
    /// Reserved.
    RESERVED_132 = 132;
    /// EAGER_MSGRTM that asks for a RECEIPT.
    DC_EAGER_MSGRTM = 133;
    /// EAGER_TAGRTM that asks for a RECEIPT.
    DC_EAGER_TAGRTM = 134;
    /// MEDIUM_MSGRTM that asks for a RECEIPT.
    DC_MEDIUM_MSGRTM = 135;
    /// MEDIUM_TAGRTM that asks for a RECEIPT.
    DC_MEDIUM_TAGRTM = 136;
    /// LONGCTS_MSGRTM that asks for a RECEIPT.
    DC_LONGCTS_MSGRTM = 137;
    /// LONGCTS_TAGRTM that asks for a RECEIPT.
    DC_LONGCTS_TAGRTM = 138;
    /// EAGER_RTW that asks for a RECEIPT.
    DC_EAGER_RTW = 139;
    /// LONGCTS_RTW that asks for a RECEIPT.
    DC_LONGCTS_RTW = 140;
    /// WRITE_RTA that asks for a RECEIPT.
    DC_WRITE_RTA = 141;
    /// Laid out, never sent.
    RUNTCTS_MSGRTM = 142;
    /// Laid out, never sent.
    RUNTCTS_TAGRTM = 143;
    /// Laid out, never sent.
    RUNTCTS_RTW = 144;
    /// Message whose head travels in packets and whose rest is read by RDMA.
    RUNTREAD_MSGRTM = 145;
    /// Tagged message whose head travels in packets and whose rest is read by RDMA.
    RUNTREAD_TAGRTM = 146;
    /// Laid out, never sent.
    RUNTREAD_RTW = 147;
}

impl fmt::Display for PktType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            "" => write!(f, "type {}", self.0),
            name => f.write_str(name),
        }
    }
}

impl fmt::Debug for PktType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Whether a message has a tag.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Tagged {
    /// No.
    No,
    /// Yes: 8 bytes more of header.
    Yes,
}

/// Which queue of the receiver an RTM is for. All but [`MsgClass::Message`] are an extension of ours: sent
/// only to peers that announce it ([`Features::CLASSES`](super::Features::CLASSES)), so that no other
/// endpoint ever sees one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u8)]
pub enum MsgClass {
    /// Tagged and untagged messages: the protocol's own.
    #[default]
    Message = 0,
    /// Active messages; the tag holds the handler and the header's length.
    Am = 1,
    /// Data that an active message announced; the tag is its number.
    AmData = 2,
    /// A piece of a byte stream.
    Stream = 3,
}

impl MsgClass {
    const SHIFT: u32 = 8;

    /// The class that flags say.
    #[inline(always)]
    pub const fn of(flags: ReqFlags) -> MsgClass {
        match (flags.bits() >> MsgClass::SHIFT) & 3 {
            0 => MsgClass::Message,
            1 => MsgClass::Am,
            2 => MsgClass::AmData,
            _ => MsgClass::Stream,
        }
    }

    /// The flags that say the class.
    #[inline(always)]
    pub const fn flags(self) -> ReqFlags {
        ReqFlags::from_bits_retain((self as u16) << MsgClass::SHIFT)
    }
}

bitflags! {
    /// Flags of REQ packets (RTM, RTW, RTR, RTA). Unknown bits survive.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct ReqFlags: u16 {
        /// A raw address header follows the fixed header.
        const RAW_ADDR = 0x0001;
        /// A cq data header is there.
        const CQ_DATA = 0x0002;
        /// On every RTM, tagged ones too.
        const MSG = 0x0004;
        /// On every tagged RTM.
        const TAGGED = 0x0008;
        /// Never set by anybody; must not be required.
        const RMA = 0x0010;
        /// On every RTA.
        const ATOMIC = 0x0020;
        /// The class of an RTM, low bit (`MsgClass`; rdm-v4 chapter 11).
        const CLASS_LOW = 0x0100;
        /// The class of an RTM, high bit.
        const CLASS_HIGH = 0x0200;
        /// On the DC_EAGER_MSGRTM that ends a conversation (`Close`; rdm-v4 chapter 11).
        const CLOSE = 0x0400;
        /// On the LONGCTS_RTM that answers a READ_NACK.
        const READ_NACK = 0x2000;
        /// A connid header is there.
        const CONNID = 0x8000;
        const _ = !0;
    }
}

bitflags! {
    /// Flags of control packets except HANDSHAKE. Unknown bits survive.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct CtlFlags: u16 {
        /// On the CTS of an emulated read: it selects the id table in 1.10-1.14 peers.
        const READ = 0x0080;
        /// On a READ_NACK of one that could read, and finds packets faster this time (rdm-v4 chapter 11).
        const NOT_NOW = 0x0100;
        /// The multi-use word (CTSDATA: the trailing 8 bytes) holds the connid.
        const CONNID = 0x8000;
        const _ = !0;
    }
}
