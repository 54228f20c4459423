//! The bytes of EFA RDM v4: every packet type, built in place and parsed once. No state, no I/O.
//!
//! The engine (`rdm`) writes packets with the builders of `rtm`, `rtw`, `rtr`, `rta`, `ctl` and `handshake` and
//! takes received ones through [`parse`]; tools print them with [`Print`]. Nothing here depends on a peer's
//! state, and nothing a peer sends makes it panic.

pub mod base;
pub mod ctl;
pub mod handshake;
pub mod opt;
mod pack;
pub mod print;
pub mod rawaddr;
pub mod rta;
pub mod rtm;
pub mod rtr;
pub mod rtw;
mod short;
pub mod status;
pub mod table;
pub mod view;

pub use base::{Class, CtlFlags, Iovs, MAX_IOV, PktType, ReqFlags, RmaIov, Tagged, TooManyIovs, VERSION};
pub use handshake::{Features, Handshake, HandshakeFlags, UserRecvQp};
pub use opt::Opts;
pub use print::{Item, Print, items};
pub use rawaddr::RawAddr;
pub use rta::{AtomicOp, Datatype};
pub use rtm::{Cause, Delivery};
pub use status::EfaStatus;
pub use view::{Packet, Part, Reject, parse};

/// Bytes in front of the payload of a packet of this type with so many rma iovs and these options.
///
/// Not counted: the read iovs, which are the head of the payload, the feature words and optional headers of
/// HANDSHAKE (see [`Handshake::wire_len`]), the connid of CTSDATA (see [`ctl::CtsData::header_len`]).
#[inline]
pub fn header_len(ty: PktType, rma_iovs: usize, opts: &Opts) -> usize {
    let row = table::row(ty);
    let iovs = if row.rma_iov { rma_iovs * RmaIov::LEN } else { 0 };
    let opts = if row.class.is_req() { opts.wire_len() } else { 0 };
    usize::from(row.hdr_len) + iovs + opts
}

/// The longest message that travels as EAGER in a packet of `mtu` bytes; 0 if there is no room at all.
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

/// The most a single packet of this type holds behind its headers (read iovs counted as headers); 0 if there is
/// no room at all.
#[inline]
pub fn max_payload(mtu: usize, ty: PktType, rma_iovs: usize, read_iovs: usize, opts: &Opts) -> usize {
    mtu.saturating_sub(header_len(ty, rma_iovs, opts) + read_iovs * RmaIov::LEN)
}

#[cfg(test)]
mod tests;
