//! The parser of RTA packets, called by `wire::parse` only.

use super::hdr::RtaHdr;
use super::{Rta, RtaKind};
use crate::wire::base::{Base, PktType, ReqFlags};
use crate::wire::error::{ParseError, Section};
use crate::wire::iov::Iovs;
use crate::wire::opt::Opts;
use crate::wire::packet::Packet;
use crate::wire::reader::Reader;

/// All RTAs. The payload's length is not checked: what it must be depends on the operation.
pub fn parse(packet: &[u8], base: Base) -> Result<Packet<'_>, ParseError> {
    let mut from = Reader::new(packet);
    let hdr: RtaHdr = from.take(Section::Header)?;
    let (rma_iov, _) = Iovs::read_rma(&mut from, hdr.rma_iov_count.get())?;
    let opts = Opts::read(&mut from, ReqFlags::from_bits_retain(base.flags.get()))?;
    let id = hdr.id.get();
    let kind = match PktType(base.ty) {
        PktType::FETCH_RTA => RtaKind::Fetch { recv_id: id },
        PktType::COMPARE_RTA => RtaKind::Compare { recv_id: id },
        PktType::DC_WRITE_RTA => RtaKind::DcWrite { send_id: id },
        _ => RtaKind::Write,
    };
    let (msg_id, datatype, op) = (hdr.msg_id.get(), hdr.datatype.get(), hdr.op.get());
    Ok(Packet::Rta(Rta { kind, msg_id, rma_iov, datatype, op, opts }, from.rest()))
}
