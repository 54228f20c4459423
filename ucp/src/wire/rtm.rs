//! Requests to message: the two-sided packets, tagged and not, with and without delivery complete.
//!
//! Builders are called by the engine's rooms to write into a slot of the wire; `parse` is called by
//! `view::parse` only. Which of them to send, `select` decides.

use super::base::{Base, Iovs, PktType, Reader, ReqFlags, Tagged, put};
use super::opt::Opts;
use super::table::layout;
use super::view::{Part, Reject};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// EAGER.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct EagerHdr {
    base: Base,
    msg_id: U32,
}

layout! {
    /// Fields of EAGER.
    pub(super) const EAGER: EagerHdr = 8 {
        msg_id: 4 @ 4, Dec, "place in the sender's order";
    }
}

/// MEDIUM.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct MediumHdr {
    base: Base,
    msg_id: U32,
    msg_length: U64,
    seg_offset: U64,
}

layout! {
    /// Fields of MEDIUM.
    pub(super) const MEDIUM: MediumHdr = 24 {
        msg_id: 4 @ 4, Dec, "place in the sender's order";
        msg_length: 8 @ 8, Dec, "bytes of the whole message";
        seg_offset: 8 @ 16, Dec, "offset of this packet's bytes in the message";
    }
}

/// LONGCTS and DC_LONGCTS.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct LongCtsHdr {
    base: Base,
    msg_id: U32,
    msg_length: U64,
    send_id: U32,
    credit_request: U32,
}

layout! {
    /// Fields of LONGCTS and DC_LONGCTS.
    pub(super) const LONGCTS: LongCtsHdr = 24 {
        msg_id: 4 @ 4, Dec, "place in the sender's order";
        msg_length: 8 @ 8, Dec, "bytes of the whole message";
        send_id: 4 @ 16, Dec, "the sender's id of the operation";
        credit_request: 4 @ 20, Dec, "packets the sender would like to be granted";
    }
}

/// LONGREAD.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct LongReadHdr {
    base: Base,
    msg_id: U32,
    msg_length: U64,
    send_id: U32,
    read_iov_count: U32,
}

layout! {
    /// Fields of LONGREAD.
    pub(super) const LONGREAD: LongReadHdr = 24 {
        msg_id: 4 @ 4, Dec, "place in the sender's order";
        msg_length: 8 @ 8, Dec, "bytes of the whole message";
        send_id: 4 @ 16, Dec, "the sender's id of the operation";
        read_iov_count: 4 @ 20, Dec, "pieces of memory to read from";
    }
}

/// DC_EAGER.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct DcEagerHdr {
    base: Base,
    msg_id: U32,
    send_id: U32,
    pad: U32,
}

layout! {
    /// Fields of DC_EAGER.
    pub(super) const DC_EAGER: DcEagerHdr = 16 {
        msg_id: 4 @ 4, Dec, "place in the sender's order";
        send_id: 4 @ 8, Dec, "the sender's id, for the RECEIPT";
        pad: 4 @ 12, Pad, "padding";
    }
}

/// DC_MEDIUM.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct DcMediumHdr {
    base: Base,
    msg_id: U32,
    send_id: U32,
    pad: U32,
    msg_length: U64,
    seg_offset: U64,
}

layout! {
    /// Fields of DC_MEDIUM.
    pub(super) const DC_MEDIUM: DcMediumHdr = 32 {
        msg_id: 4 @ 4, Dec, "place in the sender's order";
        send_id: 4 @ 8, Dec, "the sender's id, for the RECEIPT";
        pad: 4 @ 12, Pad, "padding";
        msg_length: 8 @ 16, Dec, "bytes of the whole message";
        seg_offset: 8 @ 24, Dec, "offset of this packet's bytes in the message";
    }
}

/// RUNTCTS and RUNTREAD.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RuntHdr {
    base: Base,
    msg_id: U32,
    msg_length: U64,
    send_id: U32,
    count: U32,
    seg_offset: U64,
    runt_length: U64,
}

layout! {
    /// Fields of RUNTCTS, which nobody sends.
    pub(super) const RUNTCTS: RuntHdr = 40 {
        msg_id: 4 @ 4, Dec, "place in the sender's order";
        msg_length: 8 @ 8, Dec, "bytes of the whole message";
        send_id: 4 @ 16, Dec, "the sender's id of the operation";
        count as "credit_request": 4 @ 20, Dec, "packets the sender would like to be granted";
        seg_offset: 8 @ 24, Dec, "offset of this packet's bytes in the message";
        runt_length: 8 @ 32, Dec, "bytes that travel in all packets of the message";
    }
}

layout! {
    /// Fields of RUNTREAD.
    pub(super) const RUNTREAD: RuntHdr = 40 {
        msg_id: 4 @ 4, Dec, "place in the sender's order";
        msg_length: 8 @ 8, Dec, "bytes of the whole message";
        send_id: 4 @ 16, Dec, "the sender's id of the operation";
        count as "read_iov_count": 4 @ 20, Dec, "pieces of memory to read from";
        seg_offset: 8 @ 24, Dec, "offset of this packet's bytes in the message";
        runt_length: 8 @ 32, Dec, "bytes that travel in all packets of the message";
    }
}

/// A tagged type has the header of its untagged sibling, then the tag.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct WithTag<H> {
    hdr: H,
    tag: U64,
}

const _: () =
    assert!(size_of::<WithTag<EagerHdr>>() == 16 && std::mem::offset_of!(WithTag<EagerHdr>, tag) == 8);
const _: () = assert!(std::mem::offset_of!(WithTag<LongCtsHdr>, tag) == 24);
const _: () = assert!(std::mem::offset_of!(WithTag<RuntHdr>, tag) == 40);

/// Whether the sender wants to hear that the message has arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Delivery {
    /// No: the plain packet types.
    #[default]
    Plain,
    /// Yes, by a RECEIPT: the DC packet types.
    Complete,
}

/// Why a LONGCTS_RTM is sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Cause {
    /// A new message.
    #[default]
    Fresh,
    /// The answer to a READ_NACK: same ids, no payload, flag 0x2000.
    ReadNack,
}

/// Flags and type of an RTM: `plain` is the untagged type, the tagged one follows it.
#[inline(always)]
fn base(plain: PktType, tag: Option<u64>, opts: &Opts) -> Base {
    let tagged = if tag.is_some() { ReqFlags::TAGGED } else { ReqFlags::empty() };
    let flags = ReqFlags::MSG.union(tagged).union(opts.flags());
    Base::new(PktType(plain.0 + tag.is_some() as u8), flags.bits())
}

/// Writes header, tag and options; answers the offset behind them.
#[inline(always)]
fn write<H: IntoBytes + Immutable>(buf: &mut [u8], hdr: &H, tag: Option<u64>, opts: &Opts) -> usize {
    let mut at = put(buf, 0, hdr);
    if let Some(tag) = tag {
        at = put(buf, at, &U64::new(tag));
    }
    opts.write(buf, at)
}

/// EAGER or DC_EAGER: the message in one packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Eager {
    /// Place in the sender's order.
    pub msg_id: u32,
    /// For a tagged message.
    pub tag: Option<u64>,
    /// The sender's id, if it wants a RECEIPT: makes it a DC packet.
    pub receipt: Option<u32>,
    /// Optional headers.
    pub opts: Opts,
}

impl Eager {
    /// Writes the headers to the start of `buf`; the payload goes at the offset answered. Panics if `buf` is
    /// shorter than the headers.
    // HOT
    #[inline]
    pub fn write(&self, buf: &mut [u8]) -> usize {
        let msg_id = self.msg_id.into();
        match self.receipt {
            None => {
                let base = base(PktType::EAGER_MSGRTM, self.tag, &self.opts);
                write(buf, &EagerHdr { base, msg_id }, self.tag, &self.opts)
            }
            Some(send_id) => {
                let base = base(PktType::DC_EAGER_MSGRTM, self.tag, &self.opts);
                let hdr = DcEagerHdr { base, msg_id, send_id: send_id.into(), pad: U32::ZERO };
                write(buf, &hdr, self.tag, &self.opts)
            }
        }
    }
}

/// MEDIUM or DC_MEDIUM: one packet of a message in several.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Medium {
    /// Place in the sender's order, the same in all packets of the message.
    pub msg_id: u32,
    /// For a tagged message.
    pub tag: Option<u64>,
    /// The sender's id, if it wants a RECEIPT: makes it a DC packet.
    pub receipt: Option<u32>,
    /// Bytes of the whole message.
    pub msg_length: u64,
    /// Offset of this packet's bytes in the message.
    pub seg_offset: u64,
    /// Optional headers.
    pub opts: Opts,
}

impl Medium {
    /// Writes the headers to the start of `buf`; the payload goes at the offset answered. Panics if `buf` is
    /// shorter than the headers.
    // HOT
    #[inline]
    pub fn write(&self, buf: &mut [u8]) -> usize {
        let msg_id = self.msg_id.into();
        let (msg_length, seg_offset) = (self.msg_length.into(), self.seg_offset.into());
        match self.receipt {
            None => {
                let base = base(PktType::MEDIUM_MSGRTM, self.tag, &self.opts);
                write(buf, &MediumHdr { base, msg_id, msg_length, seg_offset }, self.tag, &self.opts)
            }
            Some(send_id) => {
                let base = base(PktType::DC_MEDIUM_MSGRTM, self.tag, &self.opts);
                let send_id = send_id.into();
                let hdr = DcMediumHdr { base, msg_id, send_id, pad: U32::ZERO, msg_length, seg_offset };
                write(buf, &hdr, self.tag, &self.opts)
            }
        }
    }
}

/// LONGCTS or DC_LONGCTS: the first packet of a message under flow control.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LongCts {
    /// Place in the sender's order.
    pub msg_id: u32,
    /// For a tagged message.
    pub tag: Option<u64>,
    /// Plain or DC.
    pub delivery: Delivery,
    /// Bytes of the whole message.
    pub msg_length: u64,
    /// The sender's id of the operation, to come back in CTS (and RECEIPT).
    pub send_id: u32,
    /// Packets the sender would like to be granted; newer receivers ignore it.
    pub credit_request: u32,
    /// Fresh, or instead of a read.
    pub cause: Cause,
    /// Optional headers.
    pub opts: Opts,
}

impl LongCts {
    /// Writes the headers to the start of `buf`; the payload goes at the offset answered. Panics if `buf` is
    /// shorter than the headers.
    #[inline]
    pub fn write(&self, buf: &mut [u8]) -> usize {
        let plain = match self.delivery {
            Delivery::Plain => PktType::LONGCTS_MSGRTM,
            Delivery::Complete => PktType::DC_LONGCTS_MSGRTM,
        };
        let mut base = base(plain, self.tag, &self.opts);
        if self.cause == Cause::ReadNack {
            base.flags |= zerocopy::little_endian::U16::new(ReqFlags::READ_NACK.bits());
        }
        let hdr = LongCtsHdr {
            base,
            msg_id: self.msg_id.into(),
            msg_length: self.msg_length.into(),
            send_id: self.send_id.into(),
            credit_request: self.credit_request.into(),
        };
        write(buf, &hdr, self.tag, &self.opts)
    }
}

/// LONGREAD: the receiver reads the whole message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LongRead {
    /// Place in the sender's order.
    pub msg_id: u32,
    /// For a tagged message.
    pub tag: Option<u64>,
    /// Bytes of the whole message.
    pub msg_length: u64,
    /// The sender's id of the operation, to come back in EOR or READ_NACK.
    pub send_id: u32,
    /// Where to read.
    pub read_iov: Iovs,
    /// Optional headers.
    pub opts: Opts,
}

impl LongRead {
    /// Writes the whole packet to the start of `buf`; answers its length. Panics if `buf` is too short.
    pub fn write(&self, buf: &mut [u8]) -> usize {
        let hdr = LongReadHdr {
            base: base(PktType::LONGREAD_MSGRTM, self.tag, &self.opts),
            msg_id: self.msg_id.into(),
            msg_length: self.msg_length.into(),
            send_id: self.send_id.into(),
            read_iov_count: (self.read_iov.count() as u32).into(),
        };
        let at = write(buf, &hdr, self.tag, &self.opts);
        self.read_iov.write(buf, at)
    }
}

/// RUNTREAD: one packet of the head of a message whose tail the receiver reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RuntRead {
    /// Place in the sender's order, the same in all packets of the message.
    pub msg_id: u32,
    /// For a tagged message.
    pub tag: Option<u64>,
    /// Bytes of the whole message.
    pub msg_length: u64,
    /// The sender's id of the operation, to come back in EOR or READ_NACK.
    pub send_id: u32,
    /// Offset of this packet's bytes in the message.
    pub seg_offset: u64,
    /// Bytes that travel in all RUNTREAD packets of the message.
    pub runt_length: u64,
    /// Where to read: the whole message, in every packet of it.
    pub read_iov: Iovs,
    /// Optional headers.
    pub opts: Opts,
}

impl RuntRead {
    /// Writes the headers and the read iovs to the start of `buf`; the payload goes at the offset answered.
    /// Panics if `buf` is too short.
    pub fn write(&self, buf: &mut [u8]) -> usize {
        let hdr = RuntHdr {
            base: base(PktType::RUNTREAD_MSGRTM, self.tag, &self.opts),
            msg_id: self.msg_id.into(),
            msg_length: self.msg_length.into(),
            send_id: self.send_id.into(),
            count: (self.read_iov.count() as u32).into(),
            seg_offset: self.seg_offset.into(),
            runt_length: self.runt_length.into(),
        };
        let at = write(buf, &hdr, self.tag, &self.opts);
        self.read_iov.write(buf, at)
    }
}

/// A parsed request to message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rtm<'a> {
    /// One of the RTM types that travel.
    pub ty: PktType,
    /// All flags, unknown ones too.
    pub flags: ReqFlags,
    /// Place in the sender's order.
    pub msg_id: u32,
    /// The tag, if the type is tagged.
    pub tag: Option<u64>,
    /// A RECEIPT is owed, carrying this id: the DC types.
    pub receipt: Option<u32>,
    /// Optional headers.
    pub opts: Opts,
    /// What else the protocol says.
    pub body: RtmBody,
    /// Application bytes, still in packet memory.
    pub payload: &'a [u8],
}

impl Rtm<'_> {
    /// Bytes of the whole message.
    #[inline]
    pub fn msg_length(&self) -> u64 {
        match self.body {
            RtmBody::Eager => self.payload.len() as u64,
            RtmBody::Medium { msg_length, .. }
            | RtmBody::LongCts { msg_length, .. }
            | RtmBody::LongRead { msg_length, .. }
            | RtmBody::RuntRead { msg_length, .. } => msg_length,
        }
    }
}

/// The parts of an RTM that depend on the protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RtmBody {
    /// EAGER, DC_EAGER.
    Eager,
    /// MEDIUM, DC_MEDIUM: `seg_offset + payload.len() <= msg_length` holds.
    Medium {
        /// Bytes of the whole message.
        msg_length: u64,
        /// Offset of the payload in it.
        seg_offset: u64,
    },
    /// LONGCTS, DC_LONGCTS: the payload is the start of the message and not longer than it.
    LongCts {
        /// Bytes of the whole message.
        msg_length: u64,
        /// The sender's id.
        send_id: u32,
        /// A wish.
        credit_request: u32,
        /// Fresh, or the answer to our READ_NACK.
        cause: Cause,
    },
    /// LONGREAD.
    LongRead {
        /// Bytes of the whole message.
        msg_length: u64,
        /// The sender's id.
        send_id: u32,
        /// Where to read; its lengths need not add up to `msg_length`.
        read_iov: Iovs,
    },
    /// RUNTREAD: `seg_offset + payload.len() <= runt_length <= msg_length` holds.
    RuntRead {
        /// Bytes of the whole message.
        msg_length: u64,
        /// The sender's id.
        send_id: u32,
        /// Offset of the payload in the message.
        seg_offset: u64,
        /// Bytes that travel in packets.
        runt_length: u64,
        /// Where to read; its lengths need not add up to `msg_length`.
        read_iov: Iovs,
    },
}

/// Fixed header, tag, options.
#[inline(always)]
fn read<H: FromBytes + Unaligned>(
    from: &mut Reader<'_>,
    tagged: Tagged,
    flags: ReqFlags,
) -> Result<(H, Option<u64>, Opts), Reject> {
    let (hdr, tag) = match tagged {
        Tagged::No => (from.take::<H>(Part::Header)?, None),
        Tagged::Yes => {
            let both: WithTag<H> = from.take(Part::Header)?;
            (both.hdr, Some(both.tag.get()))
        }
    };
    Ok((hdr, tag, Opts::read(from, flags)?))
}

/// `len` bytes at `at` must lie within `total`.
#[inline(always)]
fn within(at: u64, len: usize, total: u64) -> Result<(), Reject> {
    match at.checked_add(len as u64) {
        Some(end) if end <= total => Ok(()),
        _ => Err(Reject::Range { offset: at, len: len as u64, total }),
    }
}

/// EAGER.
// HOT
#[inline(always)]
pub(super) fn eager<'a>(packet: &'a [u8], base: Base, tagged: Tagged) -> Result<Rtm<'a>, Reject> {
    let mut from = Reader::new(packet);
    let flags = ReqFlags::from_bits_retain(base.flags.get());
    let (hdr, tag, opts) = read::<EagerHdr>(&mut from, tagged, flags)?;
    let (msg_id, payload) = (hdr.msg_id.get(), from.rest());
    Ok(Rtm { ty: PktType(base.ty), flags, msg_id, tag, receipt: None, opts, body: RtmBody::Eager, payload })
}

/// MEDIUM.
// HOT
#[inline]
pub(super) fn medium<'a>(packet: &'a [u8], base: Base, tagged: Tagged) -> Result<Rtm<'a>, Reject> {
    let mut from = Reader::new(packet);
    let flags = ReqFlags::from_bits_retain(base.flags.get());
    let (hdr, tag, opts) = read::<MediumHdr>(&mut from, tagged, flags)?;
    let (msg_id, payload) = (hdr.msg_id.get(), from.rest());
    let (msg_length, seg_offset) = (hdr.msg_length.get(), hdr.seg_offset.get());
    within(seg_offset, payload.len(), msg_length)?;
    let body = RtmBody::Medium { msg_length, seg_offset };
    Ok(Rtm { ty: PktType(base.ty), flags, msg_id, tag, receipt: None, opts, body, payload })
}

/// DC_EAGER.
pub(super) fn dc_eager<'a>(packet: &'a [u8], base: Base, tagged: Tagged) -> Result<Rtm<'a>, Reject> {
    let mut from = Reader::new(packet);
    let flags = ReqFlags::from_bits_retain(base.flags.get());
    let (hdr, tag, opts) = read::<DcEagerHdr>(&mut from, tagged, flags)?;
    let (msg_id, receipt, payload) = (hdr.msg_id.get(), Some(hdr.send_id.get()), from.rest());
    Ok(Rtm { ty: PktType(base.ty), flags, msg_id, tag, receipt, opts, body: RtmBody::Eager, payload })
}

/// DC_MEDIUM.
pub(super) fn dc_medium<'a>(packet: &'a [u8], base: Base, tagged: Tagged) -> Result<Rtm<'a>, Reject> {
    let mut from = Reader::new(packet);
    let flags = ReqFlags::from_bits_retain(base.flags.get());
    let (hdr, tag, opts) = read::<DcMediumHdr>(&mut from, tagged, flags)?;
    let (msg_id, receipt, payload) = (hdr.msg_id.get(), Some(hdr.send_id.get()), from.rest());
    let (msg_length, seg_offset) = (hdr.msg_length.get(), hdr.seg_offset.get());
    within(seg_offset, payload.len(), msg_length)?;
    let body = RtmBody::Medium { msg_length, seg_offset };
    Ok(Rtm { ty: PktType(base.ty), flags, msg_id, tag, receipt, opts, body, payload })
}

/// LONGCTS and DC_LONGCTS.
pub(super) fn longcts<'a>(
    packet: &'a [u8],
    base: Base,
    tagged: Tagged,
    delivery: Delivery,
) -> Result<Rtm<'a>, Reject> {
    let mut from = Reader::new(packet);
    let flags = ReqFlags::from_bits_retain(base.flags.get());
    let (hdr, tag, opts) = read::<LongCtsHdr>(&mut from, tagged, flags)?;
    let (msg_id, send_id, payload) = (hdr.msg_id.get(), hdr.send_id.get(), from.rest());
    let msg_length = hdr.msg_length.get();
    within(0, payload.len(), msg_length)?;
    let receipt = (delivery == Delivery::Complete).then_some(send_id);
    let cause = if flags.contains(ReqFlags::READ_NACK) { Cause::ReadNack } else { Cause::Fresh };
    let body = RtmBody::LongCts { msg_length, send_id, credit_request: hdr.credit_request.get(), cause };
    Ok(Rtm { ty: PktType(base.ty), flags, msg_id, tag, receipt, opts, body, payload })
}

/// LONGREAD.
pub(super) fn longread<'a>(packet: &'a [u8], base: Base, tagged: Tagged) -> Result<Rtm<'a>, Reject> {
    let mut from = Reader::new(packet);
    let flags = ReqFlags::from_bits_retain(base.flags.get());
    let (hdr, tag, opts) = read::<LongReadHdr>(&mut from, tagged, flags)?;
    let read_iov = Iovs::read(&mut from, hdr.read_iov_count.get(), Part::ReadIov)?;
    let (msg_id, send_id, msg_length) = (hdr.msg_id.get(), hdr.send_id.get(), hdr.msg_length.get());
    let body = RtmBody::LongRead { msg_length, send_id, read_iov };
    Ok(Rtm { ty: PktType(base.ty), flags, msg_id, tag, receipt: None, opts, body, payload: &[] })
}

/// RUNTREAD.
pub(super) fn runtread<'a>(packet: &'a [u8], base: Base, tagged: Tagged) -> Result<Rtm<'a>, Reject> {
    let mut from = Reader::new(packet);
    let flags = ReqFlags::from_bits_retain(base.flags.get());
    let (hdr, tag, opts) = read::<RuntHdr>(&mut from, tagged, flags)?;
    let read_iov = Iovs::read(&mut from, hdr.count.get(), Part::ReadIov)?;
    let (msg_id, send_id, payload) = (hdr.msg_id.get(), hdr.send_id.get(), from.rest());
    let (msg_length, runt_length, seg_offset) =
        (hdr.msg_length.get(), hdr.runt_length.get(), hdr.seg_offset.get());
    if runt_length > msg_length {
        return Err(Reject::Range { offset: 0, len: runt_length, total: msg_length });
    }
    within(seg_offset, payload.len(), runt_length)?;
    let body = RtmBody::RuntRead { msg_length, send_id, seg_offset, runt_length, read_iov };
    Ok(Rtm { ty: PktType(base.ty), flags, msg_id, tag, receipt: None, opts, body, payload })
}
