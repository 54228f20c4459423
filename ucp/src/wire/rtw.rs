//! Requests to write: emulated writes, and the trigger that makes a peer shake hands.
//!
//! Builders are called by the engine; `parse` functions by `view::parse` only. RTW packets carry no class flag
//! and no msg_id. The rma iovs follow the fixed header, before the optional headers.

mod short;

use super::base::{Base, Iovs, PktType, Reader, ReqFlags, put};
use super::opt::Opts;
use super::rawaddr::RawAddr;
use super::rtm::Delivery;
use super::table::layout;
use super::view::{Packet, Part, Reject};
pub use short::Short;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// EAGER_RTW.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct EagerHdr {
    base: Base,
    rma_iov_count: U32,
}

layout! {
    /// Fields of EAGER_RTW.
    pub(super) const EAGER: EagerHdr = 8 {
        rma_iov_count: 4 @ 4, Dec, "pieces of memory to write to; 0 is the handshake trigger";
    }
}

/// DC_EAGER_RTW.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct DcEagerHdr {
    base: Base,
    rma_iov_count: U32,
    send_id: U32,
    pad: U32,
}

layout! {
    /// Fields of DC_EAGER_RTW.
    pub(super) const DC_EAGER: DcEagerHdr = 16 {
        rma_iov_count: 4 @ 4, Dec, "pieces of memory to write to";
        send_id: 4 @ 8, Dec, "the sender's id, for the RECEIPT";
        pad: 4 @ 12, Pad, "padding";
    }
}

/// LONGCTS_RTW, DC_LONGCTS_RTW and LONGREAD_RTW.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct LongHdr {
    base: Base,
    rma_iov_count: U32,
    msg_length: U64,
    send_id: U32,
    count: U32,
}

layout! {
    /// Fields of LONGCTS_RTW and DC_LONGCTS_RTW.
    pub(super) const LONGCTS: LongHdr = 24 {
        rma_iov_count: 4 @ 4, Dec, "pieces of memory to write to";
        msg_length: 8 @ 8, Dec, "bytes of the whole write";
        send_id: 4 @ 16, Dec, "the sender's id of the operation";
        count as "credit_request": 4 @ 20, Dec, "packets the sender would like to be granted";
    }
}

layout! {
    /// Fields of LONGREAD_RTW.
    pub(super) const LONGREAD: LongHdr = 24 {
        rma_iov_count: 4 @ 4, Dec, "pieces of memory to write to";
        msg_length: 8 @ 8, Dec, "bytes of the whole write";
        send_id: 4 @ 16, Dec, "the sender's id of the operation";
        count as "read_iov_count": 4 @ 20, Dec, "pieces of memory to read from";
    }
}

/// RUNTCTS_RTW and RUNTREAD_RTW, which nobody sends.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RuntHdr {
    base: Base,
    rma_iov_count: U32,
    msg_length: U64,
    send_id: U32,
    count: U32,
    seg_offset: U64,
    runt_length: U64,
}

layout! {
    /// Fields of RUNTCTS_RTW.
    pub(super) const RUNTCTS: RuntHdr = 40 {
        rma_iov_count: 4 @ 4, Dec, "pieces of memory to write to";
        msg_length: 8 @ 8, Dec, "bytes of the whole write";
        send_id: 4 @ 16, Dec, "the sender's id of the operation";
        count as "credit_request": 4 @ 20, Dec, "packets the sender would like to be granted";
        seg_offset: 8 @ 24, Dec, "offset of this packet's bytes in the write";
        runt_length: 8 @ 32, Dec, "bytes that travel in all packets of the write";
    }
}

layout! {
    /// Fields of RUNTREAD_RTW.
    pub(super) const RUNTREAD: RuntHdr = 40 {
        rma_iov_count: 4 @ 4, Dec, "pieces of memory to write to";
        msg_length: 8 @ 8, Dec, "bytes of the whole write";
        send_id: 4 @ 16, Dec, "the sender's id of the operation";
        count as "read_iov_count": 4 @ 20, Dec, "pieces of memory to read from";
        seg_offset: 8 @ 24, Dec, "offset of this packet's bytes in the write";
        runt_length: 8 @ 32, Dec, "bytes that travel in all packets of the write";
    }
}

/// Writes header, rma iovs and options; answers the offset behind them.
#[inline(always)]
fn write<H: IntoBytes + Immutable>(buf: &mut [u8], hdr: &H, rma_iov: &Iovs, opts: &Opts) -> usize {
    let at = put(buf, 0, hdr);
    let at = rma_iov.write(buf, at);
    opts.write(buf, at)
}

/// EAGER_RTW or DC_EAGER_RTW: a write in one packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Eager {
    /// Where to write; the lengths add up to the payload's.
    pub rma_iov: Iovs,
    /// The sender's id, if it wants a RECEIPT: makes it a DC packet.
    pub receipt: Option<u32>,
    /// Optional headers.
    pub opts: Opts,
}

impl Eager {
    /// The packet that does nothing but call for the peer's HANDSHAKE: no iov, no payload, the raw address.
    /// 48 bytes.
    #[inline]
    pub const fn trigger(from: RawAddr) -> Self {
        Eager { rma_iov: Iovs::NONE, receipt: None, opts: Opts::raw_addr(from) }
    }

    /// Writes the headers to the start of `buf`; the payload goes at the offset answered. Panics if `buf` is
    /// shorter than the headers.
    // HOT
    #[inline]
    pub fn write(&self, buf: &mut [u8]) -> usize {
        let flags = self.opts.flags().bits();
        let rma_iov_count = (self.rma_iov.count() as u32).into();
        match self.receipt {
            None => {
                let base = Base::new(PktType::EAGER_RTW, flags);
                write(buf, &EagerHdr { base, rma_iov_count }, &self.rma_iov, &self.opts)
            }
            Some(send_id) => {
                let base = Base::new(PktType::DC_EAGER_RTW, flags);
                let hdr = DcEagerHdr { base, rma_iov_count, send_id: send_id.into(), pad: U32::ZERO };
                write(buf, &hdr, &self.rma_iov, &self.opts)
            }
        }
    }
}

/// LONGCTS_RTW or DC_LONGCTS_RTW: the first packet of a write under flow control.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LongCts {
    /// Where to write; the lengths add up to `msg_length`.
    pub rma_iov: Iovs,
    /// Plain or DC.
    pub delivery: Delivery,
    /// Bytes of the whole write.
    pub msg_length: u64,
    /// The sender's id of the operation, to come back in CTS (and RECEIPT).
    pub send_id: u32,
    /// Packets the sender would like to be granted.
    pub credit_request: u32,
    /// Optional headers.
    pub opts: Opts,
}

impl LongCts {
    /// Writes the headers to the start of `buf`; the payload goes at the offset answered. Panics if `buf` is
    /// shorter than the headers.
    pub fn write(&self, buf: &mut [u8]) -> usize {
        let ty = match self.delivery {
            Delivery::Plain => PktType::LONGCTS_RTW,
            Delivery::Complete => PktType::DC_LONGCTS_RTW,
        };
        let hdr = LongHdr {
            base: Base::new(ty, self.opts.flags().bits()),
            rma_iov_count: (self.rma_iov.count() as u32).into(),
            msg_length: self.msg_length.into(),
            send_id: self.send_id.into(),
            count: self.credit_request.into(),
        };
        write(buf, &hdr, &self.rma_iov, &self.opts)
    }
}

/// LONGREAD_RTW: the target reads what it is to write.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LongRead {
    /// Where to write; the lengths add up to `msg_length`.
    pub rma_iov: Iovs,
    /// Bytes of the whole write.
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
        let hdr = LongHdr {
            base: Base::new(PktType::LONGREAD_RTW, self.opts.flags().bits()),
            rma_iov_count: (self.rma_iov.count() as u32).into(),
            msg_length: self.msg_length.into(),
            send_id: self.send_id.into(),
            count: (self.read_iov.count() as u32).into(),
        };
        let at = write(buf, &hdr, &self.rma_iov, &self.opts);
        self.read_iov.write(buf, at)
    }
}

/// A parsed request to write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rtw<'a> {
    /// One of the RTW types that travel.
    pub ty: PktType,
    /// All flags, unknown ones too.
    pub flags: ReqFlags,
    /// Where to write: addresses and keys are claims.
    pub rma_iov: Iovs,
    /// A RECEIPT is owed, carrying this id: the DC types.
    pub receipt: Option<u32>,
    /// Optional headers.
    pub opts: Opts,
    /// What else the protocol says.
    pub body: RtwBody,
    /// Application bytes, still in packet memory.
    pub payload: &'a [u8],
}

impl Rtw<'_> {
    /// No iov at all: it only calls for a HANDSHAKE. Accept silently.
    #[inline]
    pub fn is_trigger(&self) -> bool {
        self.body == RtwBody::Eager && self.rma_iov.count() == 0
    }
}

/// The parts of an RTW that depend on the protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RtwBody {
    /// EAGER_RTW, DC_EAGER_RTW: the payload is as long as the rma iovs together.
    Eager,
    /// LONGCTS_RTW, DC_LONGCTS_RTW: `msg_length` is the rma iovs' sum, the payload not longer.
    LongCts {
        /// Bytes of the whole write.
        msg_length: u64,
        /// The sender's id.
        send_id: u32,
        /// A wish.
        credit_request: u32,
    },
    /// LONGREAD_RTW: `msg_length` is the rma iovs' sum.
    LongRead {
        /// Bytes of the whole write.
        msg_length: u64,
        /// The sender's id.
        send_id: u32,
        /// Where to read; its lengths need not add up to `msg_length`.
        read_iov: Iovs,
    },
}

/// The rma iovs and what they add up to: the length that counts, whatever `msg_length` says.
pub(super) fn rma_iovs(from: &mut Reader<'_>, count: u32) -> Result<(Iovs, u64), Reject> {
    let iovs = Iovs::read(from, count, Part::RmaIov)?;
    let total = iovs.total().ok_or(Reject::IovTotal)?;
    Ok((iovs, total))
}

/// EAGER_RTW and DC_EAGER_RTW.
pub(super) fn eager<'a>(packet: &'a [u8], base: Base, delivery: Delivery) -> Result<Packet<'a>, Reject> {
    let mut from = Reader::new(packet);
    let flags = ReqFlags::from_bits_retain(base.flags.get());
    let (count, receipt) = match delivery {
        Delivery::Plain => (from.take::<EagerHdr>(Part::Header)?.rma_iov_count.get(), None),
        Delivery::Complete => {
            let hdr: DcEagerHdr = from.take(Part::Header)?;
            (hdr.rma_iov_count.get(), Some(hdr.send_id.get()))
        }
    };
    let (rma_iov, total) = rma_iovs(&mut from, count)?;
    let opts = Opts::read(&mut from, flags)?;
    let payload = from.rest();
    if payload.len() as u64 != total {
        return Err(Reject::Length { claimed: total, have: payload.len() });
    }
    Ok(Packet::Rtw(Rtw {
        ty: PktType(base.ty),
        flags,
        rma_iov,
        receipt,
        opts,
        body: RtwBody::Eager,
        payload,
    }))
}

/// LONGCTS_RTW and DC_LONGCTS_RTW.
pub(super) fn longcts<'a>(packet: &'a [u8], base: Base, delivery: Delivery) -> Result<Packet<'a>, Reject> {
    let mut from = Reader::new(packet);
    let flags = ReqFlags::from_bits_retain(base.flags.get());
    let hdr: LongHdr = from.take(Part::Header)?;
    let (rma_iov, msg_length) = rma_iovs(&mut from, hdr.rma_iov_count.get())?;
    let opts = Opts::read(&mut from, flags)?;
    let (send_id, payload) = (hdr.send_id.get(), from.rest());
    if payload.len() as u64 > msg_length {
        return Err(Reject::Range { offset: 0, len: payload.len() as u64, total: msg_length });
    }
    let receipt = (delivery == Delivery::Complete).then_some(send_id);
    let body = RtwBody::LongCts { msg_length, send_id, credit_request: hdr.count.get() };
    Ok(Packet::Rtw(Rtw { ty: PktType(base.ty), flags, rma_iov, receipt, opts, body, payload }))
}

/// LONGREAD_RTW.
pub(super) fn longread<'a>(packet: &'a [u8], base: Base) -> Result<Packet<'a>, Reject> {
    let mut from = Reader::new(packet);
    let flags = ReqFlags::from_bits_retain(base.flags.get());
    let hdr: LongHdr = from.take(Part::Header)?;
    let (rma_iov, msg_length) = rma_iovs(&mut from, hdr.rma_iov_count.get())?;
    let opts = Opts::read(&mut from, flags)?;
    let read_iov = Iovs::read(&mut from, hdr.count.get(), Part::ReadIov)?;
    let body = RtwBody::LongRead { msg_length, send_id: hdr.send_id.get(), read_iov };
    Ok(Packet::Rtw(Rtw { ty: PktType(base.ty), flags, rma_iov, receipt: None, opts, body, payload: &[] }))
}
