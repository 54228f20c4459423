//! Parsers of RTW packets, called by `wire::parse` only.
//!
//! Each checks what its packet says about itself and builds the result in place, inside [`Packet`].

use super::hdr::*;
use super::{Rtw, RtwBody};
use crate::wire::base::{Base, PktType, ReqFlags};
use crate::wire::error::{ParseError, Section};
use crate::wire::iov::Iovs;
use crate::wire::opt::Opts;
use crate::wire::packet::Packet;
use crate::wire::reader::Reader;
use crate::wire::rtm::Delivery;

pub fn eager<'a>(packet: &'a [u8], base: Base, delivery: Delivery) -> Result<Packet<'a>, ParseError> {
    let mut from = Reader::new(packet);
    let flags = ReqFlags::from_bits_retain(base.flags.get());
    let (count, receipt) = match delivery {
        Delivery::Plain => (from.take::<EagerHdr>(Section::Header)?.rma_iov_count.get(), None),
        Delivery::Complete => {
            let hdr: DcEagerHdr = from.take(Section::Header)?;
            (hdr.rma_iov_count.get(), Some(hdr.send_id.get()))
        }
    };
    let (rma_iov, total) = Iovs::read_rma(&mut from, count)?;
    let opts = Opts::read(&mut from, flags)?;
    let payload = from.rest();
    if payload.len() as u64 != total {
        return Err(ParseError::Length { claimed: total, have: payload.len() });
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

pub fn longcts<'a>(packet: &'a [u8], base: Base, delivery: Delivery) -> Result<Packet<'a>, ParseError> {
    let mut from = Reader::new(packet);
    let flags = ReqFlags::from_bits_retain(base.flags.get());
    let hdr: LongHdr = from.take(Section::Header)?;
    let (rma_iov, msg_length) = Iovs::read_rma(&mut from, hdr.rma_iov_count.get())?;
    let opts = Opts::read(&mut from, flags)?;
    let (send_id, payload) = (hdr.send_id.get(), from.rest());
    if payload.len() as u64 > msg_length {
        return Err(ParseError::Range { offset: 0, len: payload.len() as u64, total: msg_length });
    }
    let receipt = (delivery == Delivery::Complete).then_some(send_id);
    let body = RtwBody::LongCts { msg_length, send_id, credit_request: hdr.count.get() };
    Ok(Packet::Rtw(Rtw { ty: PktType(base.ty), flags, rma_iov, receipt, opts, body, payload }))
}

pub fn longread<'a>(packet: &'a [u8], base: Base) -> Result<Packet<'a>, ParseError> {
    let mut from = Reader::new(packet);
    let flags = ReqFlags::from_bits_retain(base.flags.get());
    let hdr: LongHdr = from.take(Section::Header)?;
    let (rma_iov, msg_length) = Iovs::read_rma(&mut from, hdr.rma_iov_count.get())?;
    let opts = Opts::read(&mut from, flags)?;
    let read_iov = Iovs::read(&mut from, hdr.count.get(), Section::ReadIov)?;
    let body = RtwBody::LongRead { msg_length, send_id: hdr.send_id.get(), read_iov };
    Ok(Packet::Rtw(Rtw { ty: PktType(base.ty), flags, rma_iov, receipt: None, opts, body, payload: &[] }))
}
