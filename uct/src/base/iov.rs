//! Gather and scatter between local blocks and contiguous memory, for zcopy by the CPU. Allocates nothing.

#![allow(unsafe_code)]

use crate::api::{Error, Iov, Refused, RemoteIov};
use ucs::mem::copy_bytes;

/// Bytes in all blocks, if the list obeys the limits.
// HOT
#[inline]
pub fn checked_len<M>(iov: &[Iov<'_, M>], max_iov: usize, max: usize) -> Result<usize, Refused> {
    if iov.len() > max_iov {
        return Err(Refused::Failed(Error::TooLong { len: iov.len(), max: max_iov }));
    }
    let mut sum = 0usize;
    for piece in iov {
        let len = piece.len.checked_mul(piece.count).and_then(|n| sum.checked_add(n));
        sum = len.ok_or(Refused::Failed(Error::InvalidParam("iov length overflows")))?;
    }
    super::check::fits(sum, max)?;
    Ok(sum)
}

/// Bytes in the blocks of a scatter list, if both lists obey the limits and have the same number of bytes.
pub fn checked_sgl_len<M, K>(
    iov: &[Iov<'_, M>],
    remote: &[RemoteIov<'_, K>],
    max_iov: usize,
    max: usize,
) -> Result<usize, Refused> {
    let len = checked_len(iov, max_iov, max)?;
    if remote.len() > max_iov {
        return Err(Refused::Failed(Error::TooLong { len: remote.len(), max: max_iov }));
    }
    let theirs = remote.iter().try_fold(0usize, |sum, r| sum.checked_add(r.len.checked_mul(r.count)?));
    match theirs {
        Some(theirs) if theirs == len => Ok(len),
        _ => Err(Refused::Failed(Error::InvalidParam("local and remote lists differ in length"))),
    }
}

/// A stretch that is contiguous on both sides.
#[derive(Debug)]
pub struct Fragment<'a, M, K> {
    pub addr: *mut u8,
    pub mem: Option<&'a M>,
    pub remote: u64,
    pub rkey: &'a K,
    pub len: usize,
}

#[derive(Clone, Copy, Default)]
struct IovPosition {
    piece: usize,
    block: usize,
    offset: usize,
}

impl IovPosition {
    fn advance(&mut self, by: usize, len: usize, count: usize) {
        self.offset += by;
        if self.offset == len {
            (self.offset, self.block) = (0, self.block + 1);
            if self.block == count {
                (self.block, self.piece) = (0, self.piece + 1);
            }
        }
    }
}

/// A stretch that is contiguous on both sides, before anybody asks what registration and key it needs.
#[derive(Clone, Copy, Debug)]
pub struct RawFragment {
    pub addr: *mut u8,
    pub here: usize,
    pub remote: u64,
    pub there: usize,
    pub len: usize,
}

/// How far two lists with the same number of bytes are gone through.
#[derive(Clone, Copy, Default)]
pub struct FragmentCursor {
    here: IovPosition,
    there: IovPosition,
}

impl FragmentCursor {
    /// The next stretch of the two lists, which are the same at each call.
    #[inline]
    pub fn next<M, K>(&mut self, iov: &[Iov<'_, M>], remote: &[RemoteIov<'_, K>]) -> Option<RawFragment> {
        let FragmentCursor { here, there } = self;
        while iov.get(here.piece).is_some_and(|p| p.total() == 0) {
            here.piece += 1;
        }
        while remote.get(there.piece).is_some_and(|p| p.len * p.count == 0) {
            there.piece += 1;
        }
        let (ours, theirs) = (iov.get(here.piece)?, remote.get(there.piece)?);
        // Blocks without gaps are one block.
        let (our_len, our_count) =
            if ours.stride == ours.len { (ours.total(), 1) } else { (ours.len, ours.count) };
        let (their_len, their_count) = if theirs.stride == theirs.len as u64 {
            (theirs.len * theirs.count, 1)
        } else {
            (theirs.len, theirs.count)
        };
        let len = (our_len - here.offset).min(their_len - there.offset);
        let skip = (there.block as u64).wrapping_mul(theirs.stride).wrapping_add(there.offset as u64);
        let cut = RawFragment {
            addr: ours.addr.wrapping_add(here.block.wrapping_mul(ours.stride)).wrapping_add(here.offset),
            here: here.piece,
            remote: theirs.addr.wrapping_add(skip),
            there: there.piece,
            len,
        };
        here.advance(len, our_len, our_count);
        there.advance(len, their_len, their_count);
        Some(cut)
    }
}

/// The fragments of two lists with the same number of bytes.
pub fn fragments<'a, M, K>(
    iov: &'a [Iov<'a, M>],
    remote: &'a [RemoteIov<'a, K>],
) -> impl Iterator<Item = Fragment<'a, M, K>> {
    let mut walk = FragmentCursor::default();
    std::iter::from_fn(move || {
        let RawFragment { addr, here, remote: at, there, len } = walk.next(iov, remote)?;
        Some(Fragment { addr, mem: iov[here].mem, remote: at, rkey: remote[there].rkey, len })
    })
}

/// Copies the blocks, one after the other, to `to`.
/// # Safety
/// Every block must be valid for reads, `to` for writes of their total length, and they must not overlap.
// HOT
#[inline]
pub unsafe fn gather<M>(iov: &[Iov<'_, M>], to: *mut u8) {
    let mut at = to;
    for piece in iov {
        for from in piece.blocks() {
            // SAFETY: the caller vouches for the block and for as many bytes behind `to` as all blocks have;
            // `at` has advanced by exactly the bytes copied so far.
            unsafe { copy_bytes(from, at, piece.len) };
            at = at.wrapping_add(piece.len);
        }
    }
}

/// Copies contiguous bytes at `from` into the blocks.
/// # Safety
/// Every block must be valid for writes, `from` for reads of their total length, and they must not overlap.
// HOT
#[inline]
pub unsafe fn scatter<M>(from: *const u8, iov: &[Iov<'_, M>]) {
    let mut at = from;
    for piece in iov {
        for to in piece.blocks() {
            // SAFETY: as in `gather`, with the directions exchanged.
            unsafe { copy_bytes(at, to, piece.len) };
            at = at.wrapping_add(piece.len);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn strided_blocks_go_out_and_come_back() {
        let mut local: Vec<u8> = (0..12).collect();
        let base = local.as_mut_ptr();
        let iov: [Iov<'_, ()>; 2] = [
            Iov { addr: base, len: 2, stride: 4, count: 2, mem: None },
            Iov::new(base.wrapping_add(10), 2, None),
        ];
        assert_eq!(checked_len(&iov, 2, 6), Ok(6));
        assert!(checked_len(&iov, 1, 6).is_err());
        assert_eq!(checked_len(&iov, 2, 5), Err(Refused::Failed(Error::TooLong { len: 6, max: 5 })));
        let mut packed = [0u8; 6];
        // SAFETY: the blocks lie in `local`, the six bytes in `packed`.
        unsafe { gather(&iov, packed.as_mut_ptr()) };
        assert_eq!(packed, [0, 1, 4, 5, 10, 11]);
        let back = [90, 91, 92, 93, 94, 95];
        // SAFETY: as above.
        unsafe { scatter(back.as_ptr(), &iov) };
        assert_eq!(local, [90, 91, 2, 3, 92, 93, 6, 7, 8, 9, 94, 95]);
    }

    #[test]
    fn blocks_without_a_byte_are_not_walked() {
        let base = std::ptr::without_provenance_mut::<u8>(1000);
        let iov = [Iov::<()> { addr: base, len: 0, stride: 8, count: usize::MAX, mem: None }];
        assert_eq!(checked_len(&iov, 1, 0), Ok(0));
        assert_eq!(iov[0].blocks().next(), None);
    }

    #[test]
    fn overflow_is_the_callers_error() {
        let iov = [Iov::<()> { addr: std::ptr::null_mut(), len: usize::MAX, stride: 0, count: 2, mem: None }];
        assert_eq!(
            checked_len(&iov, 1, usize::MAX),
            Err(Refused::Failed(Error::InvalidParam("iov length overflows")))
        );
    }

    #[test]
    fn fragments_end_where_either_side_ends() {
        let base = std::ptr::without_provenance_mut::<u8>(1000);
        let iov = [
            Iov::<()> { addr: base, len: 4, stride: 10, count: 2, mem: None },
            Iov::new(base.wrapping_add(50), 0, None),
            Iov::new(base.wrapping_add(100), 6, None),
        ];
        let keys = ['x', 'y'];
        let remote = [
            RemoteIov { addr: 1, len: 3, stride: 3, count: 2, rkey: &keys[0] },
            RemoteIov { addr: 200, len: 2, stride: 5, count: 4, rkey: &keys[1] },
        ];
        assert_eq!(checked_sgl_len(&iov, &remote, 3, 14), Ok(14));
        assert!(checked_sgl_len(&iov, &remote[..1], 3, 14).is_err());
        let got: Vec<_> =
            fragments(&iov, &remote).map(|f| (f.addr.addr() - 1000, f.remote, *f.rkey, f.len)).collect();
        let want = [
            (0, 1, 'x', 4),
            (10, 5, 'x', 2),
            (12, 200, 'y', 2),
            (100, 205, 'y', 2),
            (102, 210, 'y', 2),
            (104, 215, 'y', 2),
        ];
        assert_eq!(got, want);
    }
}
