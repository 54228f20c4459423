//! Parsers of RTM packets, called by `wire::parse` only: one function for each layout, and the fast path of
//! EAGER.
//!
//! Each checks what its packet says about itself, copies every field once and builds the result in place,
//! inside [`Packet`]: moving it costs more than parsing it.

use super::hdr::*;
use super::{Cause, Delivery, Rtm, RtmBody};
use crate::wire::base::{Base, MsgClass, PktType, ReqFlags, Tagged, VERSION};
use crate::wire::error::{ParseError, Section};
use crate::wire::iov::Iovs;
use crate::wire::opt::Opts;
use crate::wire::packet::Packet;
use crate::wire::reader::Reader;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, IntoBytes, Unaligned};

#[inline(always)]
fn read<H: FromBytes + IntoBytes + Unaligned>(
    from: &mut Reader<'_>,
    tagged: Tagged,
    flags: ReqFlags,
) -> Result<(H, Option<u64>, Opts), ParseError> {
    let (hdr, tag) = match tagged {
        Tagged::No => (from.take::<H>(Section::Header)?, None),
        Tagged::Yes => {
            let both: WithTag<H> = from.take(Section::Header)?;
            (both.hdr, Some(both.tag.get()))
        }
    };
    Ok((hdr, tag, Opts::read(from, flags)?))
}

/// `len` bytes at `at` must lie within `total`.
#[inline(always)]
fn within(at: u64, len: usize, total: u64) -> Result<(), ParseError> {
    match at.checked_add(len as u64) {
        Some(end) if end <= total => Ok(()),
        _ => Err(ParseError::Range { offset: at, len: len as u64, total }),
    }
}

/// Fast path for EAGER with at most a connid. `None`: use the general parser, which reports errors too.
// HOT
#[inline(always)]
pub fn eager_fast(packet: &[u8]) -> Option<Rtm<'_>> {
    let mut from = Reader::new(packet);
    let base: Base = from.take(Section::Base).ok()?;
    let ty = PktType(base.ty);
    let flags = ReqFlags::from_bits_retain(base.flags.get());
    let plain = !flags.intersects(ReqFlags::RAW_ADDR.union(ReqFlags::CQ_DATA));
    if !plain || base.version != VERSION || ty.0 | 1 != PktType::EAGER_TAGRTM.0 {
        return None;
    }
    let msg_id = from.take::<U32>(Section::Header).ok()?.get();
    let tag = match ty == PktType::EAGER_TAGRTM {
        true => Some(from.take::<U64>(Section::Header).ok()?.get()),
        false => None,
    };
    let connid = match flags.contains(ReqFlags::CONNID) {
        true => Some(from.take::<U32>(Section::Connid).ok()?.get()),
        false => None,
    };
    let opts = Opts { connid, ..Opts::NONE }.of_class(MsgClass::of(flags));
    Some(Rtm { ty, flags, msg_id, tag, receipt: None, opts, body: RtmBody::Eager, payload: from.rest() })
}

// HOT
#[inline(always)]
pub fn eager<'a>(packet: &'a [u8], base: Base, tagged: Tagged) -> Result<Packet<'a>, ParseError> {
    let mut from = Reader::new(packet);
    let flags = ReqFlags::from_bits_retain(base.flags.get());
    let (hdr, tag, opts) = read::<EagerHdr>(&mut from, tagged, flags)?;
    let (msg_id, payload) = (hdr.msg_id.get(), from.rest());
    Ok(Packet::Rtm(Rtm {
        ty: PktType(base.ty),
        flags,
        msg_id,
        tag,
        receipt: None,
        opts,
        body: RtmBody::Eager,
        payload,
    }))
}

// HOT
#[inline]
pub fn medium<'a>(packet: &'a [u8], base: Base, tagged: Tagged) -> Result<Packet<'a>, ParseError> {
    let mut from = Reader::new(packet);
    let flags = ReqFlags::from_bits_retain(base.flags.get());
    let (hdr, tag, opts) = read::<MediumHdr>(&mut from, tagged, flags)?;
    let (msg_id, payload) = (hdr.msg_id.get(), from.rest());
    let (msg_length, seg_offset) = (hdr.msg_length.get(), hdr.seg_offset.get());
    within(seg_offset, payload.len(), msg_length)?;
    Ok(Packet::Rtm(Rtm {
        ty: PktType(base.ty),
        flags,
        msg_id,
        tag,
        receipt: None,
        opts,
        body: RtmBody::Medium { msg_length, seg_offset },
        payload,
    }))
}

pub fn dc_eager<'a>(packet: &'a [u8], base: Base, tagged: Tagged) -> Result<Packet<'a>, ParseError> {
    let mut from = Reader::new(packet);
    let flags = ReqFlags::from_bits_retain(base.flags.get());
    let (hdr, tag, opts) = read::<DcEagerHdr>(&mut from, tagged, flags)?;
    let (msg_id, receipt, payload) = (hdr.msg_id.get(), Some(hdr.send_id.get()), from.rest());
    Ok(Packet::Rtm(Rtm {
        ty: PktType(base.ty),
        flags,
        msg_id,
        tag,
        receipt,
        opts,
        body: RtmBody::Eager,
        payload,
    }))
}

pub fn dc_medium<'a>(packet: &'a [u8], base: Base, tagged: Tagged) -> Result<Packet<'a>, ParseError> {
    let mut from = Reader::new(packet);
    let flags = ReqFlags::from_bits_retain(base.flags.get());
    let (hdr, tag, opts) = read::<DcMediumHdr>(&mut from, tagged, flags)?;
    let (msg_id, receipt, payload) = (hdr.msg_id.get(), Some(hdr.send_id.get()), from.rest());
    let (msg_length, seg_offset) = (hdr.msg_length.get(), hdr.seg_offset.get());
    within(seg_offset, payload.len(), msg_length)?;
    Ok(Packet::Rtm(Rtm {
        ty: PktType(base.ty),
        flags,
        msg_id,
        tag,
        receipt,
        opts,
        body: RtmBody::Medium { msg_length, seg_offset },
        payload,
    }))
}

pub fn longcts<'a>(
    packet: &'a [u8],
    base: Base,
    tagged: Tagged,
    delivery: Delivery,
) -> Result<Packet<'a>, ParseError> {
    let mut from = Reader::new(packet);
    let flags = ReqFlags::from_bits_retain(base.flags.get());
    let (hdr, tag, opts) = read::<LongCtsHdr>(&mut from, tagged, flags)?;
    let (msg_id, send_id, payload) = (hdr.msg_id.get(), hdr.send_id.get(), from.rest());
    let msg_length = hdr.msg_length.get();
    within(0, payload.len(), msg_length)?;
    let receipt = (delivery == Delivery::Complete).then_some(send_id);
    let cause = if flags.contains(ReqFlags::READ_NACK) { Cause::ReadNack } else { Cause::Fresh };
    Ok(Packet::Rtm(Rtm {
        ty: PktType(base.ty),
        flags,
        msg_id,
        tag,
        receipt,
        opts,
        body: RtmBody::LongCts { msg_length, send_id, credit_request: hdr.credit_request.get(), cause },
        payload,
    }))
}

pub fn longread<'a>(packet: &'a [u8], base: Base, tagged: Tagged) -> Result<Packet<'a>, ParseError> {
    let mut from = Reader::new(packet);
    let flags = ReqFlags::from_bits_retain(base.flags.get());
    let (hdr, tag, opts) = read::<LongReadHdr>(&mut from, tagged, flags)?;
    let read_iov = Iovs::read(&mut from, hdr.read_iov_count.get(), Section::ReadIov)?;
    let (msg_id, send_id, msg_length) = (hdr.msg_id.get(), hdr.send_id.get(), hdr.msg_length.get());
    Ok(Packet::Rtm(Rtm {
        ty: PktType(base.ty),
        flags,
        msg_id,
        tag,
        receipt: None,
        opts,
        body: RtmBody::LongRead { msg_length, send_id, read_iov },
        payload: &[],
    }))
}

pub fn runtread<'a>(packet: &'a [u8], base: Base, tagged: Tagged) -> Result<Packet<'a>, ParseError> {
    let mut from = Reader::new(packet);
    let flags = ReqFlags::from_bits_retain(base.flags.get());
    let (hdr, tag, opts) = read::<RuntHdr>(&mut from, tagged, flags)?;
    let read_iov = Iovs::read(&mut from, hdr.count.get(), Section::ReadIov)?;
    let (msg_id, send_id, payload) = (hdr.msg_id.get(), hdr.send_id.get(), from.rest());
    let (msg_length, runt_length, seg_offset) =
        (hdr.msg_length.get(), hdr.runt_length.get(), hdr.seg_offset.get());
    if runt_length > msg_length {
        return Err(ParseError::Range { offset: 0, len: runt_length, total: msg_length });
    }
    within(seg_offset, payload.len(), runt_length)?;
    Ok(Packet::Rtm(Rtm {
        ty: PktType(base.ty),
        flags,
        msg_id,
        tag,
        receipt: None,
        opts,
        body: RtmBody::RuntRead { msg_length, send_id, seg_offset, runt_length, read_iov },
        payload,
    }))
}
