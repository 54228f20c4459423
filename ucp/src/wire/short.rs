//! Request packets of a fixed header with at most a connid behind it, written and read in one go: what the short forms of
//! messages, writes and atomics ([`super::rtm::Short`], [`super::rtw::Short`], [`super::rta::Short`]) have in common. A
//! packet with anything else behind its header is left to [`super::parse`].

use super::base::{Base, PktType, ReqFlags, VERSION, put};
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A fixed header, and connid.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct WithConnid<F> {
    fixed: F,
    connid: U32,
}

/// A fixed header that begins with a [`Base`].
pub(super) trait Fixed: FromBytes + IntoBytes + KnownLayout + Immutable + Unaligned + Copy {
    /// The one type of packet that has it.
    const TY: PktType;
}

/// The base of a packet with these flags of its own.
#[inline(always)]
pub(super) fn base<F: Fixed>(own: ReqFlags, connid: Option<u32>) -> Base {
    let more = if connid.is_some() { ReqFlags::CONNID } else { ReqFlags::empty() };
    Base::new(F::TY, own.union(more).bits())
}

/// Bytes of header and connid.
#[inline(always)]
pub(super) const fn wire_len<F: Fixed>(connid: Option<u32>) -> usize {
    if connid.is_some() { size_of::<WithConnid<F>>() } else { size_of::<F>() }
}

/// Writes header and connid to the start of `buf`; the payload goes at the offset answered. Panics if `buf` is shorter.
// HOT
#[inline(always)]
pub(super) fn write<F: Fixed>(buf: &mut [u8], fixed: F, connid: Option<u32>) -> usize {
    match connid {
        Some(connid) => put(buf, 0, &WithConnid { fixed, connid: connid.into() }),
        None => put(buf, 0, &fixed),
    }
}

/// What was read.
pub(super) struct Read<'a, F> {
    pub fixed: F,
    pub flags: ReqFlags,
    pub connid: Option<u32>,
    pub payload: &'a [u8],
}

/// Header, connid and what follows, if it is such a packet.
// HOT
#[inline(always)]
pub(super) fn read<F: Fixed>(packet: &[u8]) -> Option<Read<'_, F>> {
    let (base, _) = Base::read_from_prefix(packet).ok()?;
    let (fixed, rest) = F::read_from_prefix(packet).ok()?;
    let flags = ReqFlags::from_bits_retain(base.flags.get());
    let other = flags.intersects(ReqFlags::RAW_ADDR.union(ReqFlags::CQ_DATA));
    if other || base.version != VERSION || base.ty != F::TY.0 {
        return None;
    }
    let (connid, payload) = match flags.contains(ReqFlags::CONNID) {
        true => {
            let (connid, payload) = U32::read_from_prefix(rest).ok()?;
            (Some(connid.get()), payload)
        }
        false => (None, rest),
    };
    Some(Read { fixed, flags, connid, payload })
}
