//! Header lengths and payload capacity of packets, used by `select` and the protocols.

use super::base::{PktType, Tagged};
use super::iov::RmaIov;
use super::opt::Opts;
use super::rtm::Delivery;
use super::table::info;

/// Bytes before the payload of a packet of this type. Not counted: read iovs, the variable part of HANDSHAKE
/// (see [`wire_len`](super::Handshake::wire_len)), the connid of CTSDATA (see
/// [`header_len`](super::ctl::CtsData::header_len)).
#[inline]
pub fn header_len(ty: PktType, rma_iovs: usize, opts: &Opts) -> usize {
    let info = info(ty);
    let iovs = if info.rma_iov { rma_iovs * RmaIov::LEN } else { 0 };
    let opts = if info.family.is_req() { opts.wire_len() } else { 0 };
    usize::from(info.hdr_len) + iovs + opts
}

/// Longest EAGER message in a packet of `mtu` bytes; 0 if nothing fits.
#[inline]
pub fn max_eager_payload(mtu: usize, tagged: Tagged, delivery: Delivery, opts: &Opts) -> usize {
    let ty = match (delivery, tagged) {
        (Delivery::Plain, Tagged::No) => PktType::EAGER_MSGRTM,
        (Delivery::Plain, Tagged::Yes) => PktType::EAGER_TAGRTM,
        (Delivery::Complete, Tagged::No) => PktType::DC_EAGER_MSGRTM,
        (Delivery::Complete, Tagged::Yes) => PktType::DC_EAGER_TAGRTM,
    };
    mtu.saturating_sub(header_len(ty, 0, opts))
}

/// Longest payload of one packet of this type, read iovs counted as headers; 0 if nothing fits.
#[inline]
pub fn max_payload(mtu: usize, ty: PktType, rma_iovs: usize, read_iovs: usize, opts: &Opts) -> usize {
    mtu.saturating_sub(header_len(ty, rma_iovs, opts) + read_iovs * RmaIov::LEN)
}
