//! RMA iovs: descriptors of remote memory.

use super::error::{ParseError, Section};
use super::reader::{Reader, put};
use std::fmt;
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// RMA iovs (and read iovs) a packet may carry: the peer's array has four elements.
pub const MAX_IOV: usize = 4;

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

    /// Writes the pieces at `buf[at..]`; returns the offset behind them.
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
    pub(super) fn read(from: &mut Reader<'_>, count: u32, section: Section) -> Result<Self, ParseError> {
        if count as usize > MAX_IOV {
            return Err(ParseError::IovCount { section, count });
        }
        let mut iovs = Iovs { count: count as u8, ..Iovs::NONE };
        for iov in iovs.list.iter_mut().take(count as usize) {
            let hdr: RmaIovHdr = from.take(section)?;
            *iov = hdr.into();
        }
        Ok(iovs)
    }

    /// Reads `count` rma iovs and the sum of their lengths, which replaces `msg_length`.
    #[inline]
    pub(super) fn read_rma(from: &mut Reader<'_>, count: u32) -> Result<(Self, u64), ParseError> {
        let iovs = Iovs::read(from, count, Section::RmaIov)?;
        let total = iovs.total().ok_or(ParseError::IovTotal)?;
        Ok((iovs, total))
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
