//! What every packet shares: the 4-byte base header, packet types, flags per packet family, RMA iovs.
//!
//! Used by all other files of `wire` and, for its names, by the engine. Holds no rule about when a packet
//! may be sent: that is the engine's.

use super::view::{Part, Reject};
use bitflags::bitflags;
use std::fmt;
use zerocopy::little_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The only protocol version there is.
pub const VERSION: u8 = 4;

/// RMA iovs (and read iovs) a packet may carry: the peer's array has four elements.
pub const MAX_IOV: usize = 4;

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

/// The type of a packet: byte 0. Every value can be held; [`super::table::row`] tells what it means.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(transparent)]
pub struct PktType(pub u8);

macro_rules! pkt_types {
    ($($(#[$doc:meta])* $name:ident = $value:literal;)*) => {
        impl PktType {
            $($(#[$doc])* pub const $name: PktType = PktType($value);)*
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
    /// What the sender can and wants.
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
        match super::table::row(*self).name {
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

/// Which queue of the receiver an RTM is for. All but [`Class::Message`] are an extension of ours: sent only to peers
/// that announce it ([`Features::CLASSES`](super::Features::CLASSES)), so that no other endpoint ever sees one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u8)]
pub enum Class {
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

impl Class {
    const SHIFT: u32 = 8;

    /// The class that flags say.
    #[inline(always)]
    pub const fn of(flags: ReqFlags) -> Class {
        match (flags.bits() >> Class::SHIFT) & 3 {
            0 => Class::Message,
            1 => Class::Am,
            2 => Class::AmData,
            _ => Class::Stream,
        }
    }

    /// The flags that say the class.
    #[inline(always)]
    pub const fn flags(self) -> ReqFlags {
        ReqFlags::from_bits_retain((self as u16) << Class::SHIFT)
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
        /// The class of an RTM, low bit (`Class`; rdm-v4 chapter 11).
        const CLASS_LOW = 0x0100;
        /// The class of an RTM, high bit.
        const CLASS_HIGH = 0x0200;
        /// On the LONGCTS_RTM that answers a READ_NACK.
        const READ_NACK = 0x2000;
        /// A connid header is there.
        const CONNID = 0x8000;
        const _ = !0;
    }
}

bitflags! {
    /// Flags of the control packets but HANDSHAKE. Unknown bits survive.
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

/// One piece of remote memory, as it travels: 24 bytes.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct RmaIovHdr {
    addr: U64,
    len: U64,
    key: U64,
}

const _: () = assert!(size_of::<RmaIovHdr>() == RmaIov::LEN && align_of::<RmaIovHdr>() == 1);
const _: () = assert!(std::mem::offset_of!(RmaIovHdr, addr) == 0);
const _: () = assert!(std::mem::offset_of!(RmaIovHdr, len) == 8);
const _: () = assert!(std::mem::offset_of!(RmaIovHdr, key) == 16);

/// One piece of remote memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct RmaIov {
    /// Virtual address in the owner's process.
    pub addr: u64,
    /// Bytes.
    pub len: u64,
    /// The registration's remote key.
    pub key: u64,
}

impl RmaIov {
    /// Bytes of one iov on the wire.
    pub const LEN: usize = 24;
}

impl From<RmaIov> for RmaIovHdr {
    #[inline(always)]
    fn from(iov: RmaIov) -> Self {
        RmaIovHdr { addr: iov.addr.into(), len: iov.len.into(), key: iov.key.into() }
    }
}

impl From<RmaIovHdr> for RmaIov {
    #[inline(always)]
    fn from(hdr: RmaIovHdr) -> Self {
        RmaIov { addr: hdr.addr.get(), len: hdr.len.get(), key: hdr.key.get() }
    }
}

/// Up to [`MAX_IOV`] pieces of remote memory.
#[derive(Clone, Copy, Default)]
pub struct Iovs {
    list: [RmaIov; MAX_IOV],
    count: u8,
}

/// More than [`MAX_IOV`] iovs were given.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0} iovs, at most 4 fit a packet")]
pub struct TooManyIovs(pub usize);

impl Iovs {
    /// None at all.
    pub const NONE: Iovs = Iovs { list: [RmaIov { addr: 0, len: 0, key: 0 }; MAX_IOV], count: 0 };

    /// Exactly one.
    #[inline]
    pub const fn one(iov: RmaIov) -> Self {
        let none = RmaIov { addr: 0, len: 0, key: 0 };
        Iovs { list: [iov, none, none, none], count: 1 }
    }

    /// One with others behind it, of which no more than fit are taken.
    pub fn with(first: RmaIov, others: &[RmaIov]) -> Self {
        let mut all = Iovs::one(first);
        for (at, iov) in all.list.iter_mut().skip(1).zip(others) {
            *at = *iov;
            all.count += 1;
        }
        all
    }

    /// The pieces.
    #[inline]
    pub fn as_slice(&self) -> &[RmaIov] {
        &self.list[..usize::from(self.count).min(MAX_IOV)]
    }

    /// How many.
    #[inline]
    pub const fn count(&self) -> usize {
        self.count as usize
    }

    /// Bytes on the wire.
    #[inline]
    pub const fn wire_len(&self) -> usize {
        self.count as usize * RmaIov::LEN
    }

    /// Sum of the pieces' lengths; `None` if it exceeds 64 bits.
    #[inline]
    pub fn total(&self) -> Option<u64> {
        self.as_slice().iter().try_fold(0u64, |sum, iov| sum.checked_add(iov.len))
    }

    /// Writes the pieces at `buf[at..]`; answers the offset behind them.
    #[inline]
    pub(super) fn write(&self, buf: &mut [u8], mut at: usize) -> usize {
        for iov in self.as_slice() {
            at = put(buf, at, &RmaIovHdr::from(*iov));
        }
        at
    }

    /// Reads `count` pieces.
    // [M1.4]
    #[inline]
    pub(super) fn read(from: &mut Reader<'_>, count: u32, part: Part) -> Result<Self, Reject> {
        if count as usize > MAX_IOV {
            return Err(Reject::IovCount { part, count });
        }
        let mut iovs = Iovs { count: count as u8, ..Iovs::NONE };
        for iov in iovs.list.iter_mut().take(count as usize) {
            let hdr: RmaIovHdr = from.take(part)?;
            *iov = hdr.into();
        }
        Ok(iovs)
    }
}

impl TryFrom<&[RmaIov]> for Iovs {
    type Error = TooManyIovs;

    fn try_from(iovs: &[RmaIov]) -> Result<Self, TooManyIovs> {
        let mut out = Iovs::NONE;
        let Some(list) = out.list.get_mut(..iovs.len()) else { return Err(TooManyIovs(iovs.len())) };
        list.copy_from_slice(iovs);
        out.count = iovs.len() as u8;
        Ok(out)
    }
}

impl PartialEq for Iovs {
    fn eq(&self, other: &Self) -> bool {
        self.as_slice() == other.as_slice()
    }
}

impl Eq for Iovs {}

impl fmt::Debug for Iovs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.as_slice()).finish()
    }
}

/// What is left of a packet while it is parsed. Every `take` copies out of packet memory, once: another
/// process may be writing to it.
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    #[inline(always)]
    pub fn new(packet: &'a [u8]) -> Self {
        Reader { rest: packet }
    }

    /// Copies the next `T` out.
    // [M1.3]
    #[inline(always)]
    pub fn take<T: FromBytes + Unaligned>(&mut self, part: Part) -> Result<T, Reject> {
        match T::read_from_prefix(self.rest) {
            Ok((value, rest)) => {
                self.rest = rest;
                Ok(value)
            }
            Err(_) => Err(short(part, size_of::<T>() as u64, self.rest.len())),
        }
    }

    /// The next `len` bytes, which stay where they are.
    #[inline(always)]
    pub fn bytes(&mut self, len: u64, part: Part) -> Result<&'a [u8], Reject> {
        let split = usize::try_from(len).ok().and_then(|len| self.rest.split_at_checked(len));
        let Some((bytes, rest)) = split else { return Err(short(part, len, self.rest.len())) };
        self.rest = rest;
        Ok(bytes)
    }

    /// All that is left.
    #[inline(always)]
    pub fn rest(self) -> &'a [u8] {
        self.rest
    }

    /// How much is left.
    #[inline(always)]
    pub fn left(&self) -> usize {
        self.rest.len()
    }
}

#[cold]
fn short(part: Part, need: u64, have: usize) -> Reject {
    Reject::Short { part, need, have }
}

/// Writes `value` at `buf[at..]`; answers the offset behind it. Panics if it does not fit: the caller asked for
/// the room.
#[inline(always)]
pub(super) fn put<T: IntoBytes + Immutable>(buf: &mut [u8], at: usize, value: &T) -> usize {
    let end = at + size_of::<T>();
    buf[at..end].copy_from_slice(value.as_bytes());
    end
}
