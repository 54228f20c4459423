//! Request packets with a fixed header and a connid only: shared part of the fast paths
//! [`super::rtm::Short`], [`super::rtw::Short`] and [`super::rta::Short`]. All other packets go through
//! [`super::parse`].

use super::base::{Base, PktType, ReqFlags, VERSION};
use super::reader::{put, read_prefix};
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

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
pub(super) fn base<F: Fixed>(own: ReqFlags) -> Base {
    Base::new(F::TY, own.union(ReqFlags::CONNID).bits())
}

#[inline(always)]
pub(super) const fn wire_len<F: Fixed>() -> usize {
    size_of::<WithConnid<F>>()
}

/// Writes header and connid to the start of `buf`; the payload goes at the offset answered. Panics if `buf`
/// is shorter.
// HOT
#[inline(always)]
pub(super) fn write<F: Fixed>(buf: &mut [u8], fixed: F, connid: u32) -> usize {
    put(buf, 0, &WithConnid { fixed, connid: connid.into() })
}

#[inline(always)]
const fn first_word(flags: ReqFlags, version: u8, ty: u8) -> u32 {
    (flags.bits() as u32) << 16 | (version as u32) << 8 | ty as u32
}

/// A parsed packet of this kind.
pub(super) struct Read<'a, F> {
    pub fixed: F,
    pub flags: ReqFlags,
    pub connid: u32,
    pub payload: &'a [u8],
}

/// Header, connid and what follows, if it is such a packet.
// HOT
#[inline(always)]
pub(super) fn read<F: Fixed>(packet: &[u8]) -> Option<Read<'_, F>> {
    let (WithConnid { fixed, connid }, payload) = read_prefix::<WithConnid<F>>(packet)?;
    let word = u32::from_le_bytes(*fixed.as_bytes().first_chunk()?);
    if word & first_word(ReqFlags::RAW_ADDR.union(ReqFlags::CQ_DATA).union(ReqFlags::CONNID), 0xff, 0xff)
        != first_word(ReqFlags::CONNID, VERSION, F::TY.0)
    {
        return None;
    }
    let flags = ReqFlags::from_bits_retain((word >> 16) as u16);
    Some(Read { fixed, flags, connid: connid.get(), payload })
}
