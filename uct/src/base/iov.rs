//! Gather and scatter: between a list of local blocks and one contiguous stretch of memory.
//! Used by zcopy of transports that move bytes with the CPU. Never reads past a block, never allocates.

use crate::api::{Error, Iov, Refused};

/// Bytes in all blocks, if the list obeys the limits. // HOT
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

/// Copies the blocks, one after the other, to `to`. // HOT
///
/// # Safety
/// Every block must be valid for reads, `to` for writes of their total length, and they must not overlap.
#[inline]
pub unsafe fn gather<M>(iov: &[Iov<'_, M>], to: *mut u8) {
    let mut at = to;
    for piece in iov {
        for block in 0..piece.count {
            let from = piece.addr.wrapping_add(block * piece.stride);
            // SAFETY: the caller vouches for the block and for as many bytes behind `to` as all blocks have; `at`
            // has advanced by exactly the bytes copied so far.
            unsafe { std::ptr::copy_nonoverlapping(from, at, piece.len) };
            at = at.wrapping_add(piece.len);
        }
    }
}

/// Copies contiguous bytes at `from` into the blocks. // HOT
///
/// # Safety
/// Every block must be valid for writes, `from` for reads of their total length, and they must not overlap.
#[inline]
pub unsafe fn scatter<M>(from: *const u8, iov: &[Iov<'_, M>]) {
    let mut at = from;
    for piece in iov {
        for block in 0..piece.count {
            let to = piece.addr.wrapping_add(block * piece.stride);
            // SAFETY: as in `gather`, with the directions exchanged.
            unsafe { std::ptr::copy_nonoverlapping(at, to, piece.len) };
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
    fn overflow_is_the_callers_error() {
        let iov = [Iov::<()> { addr: std::ptr::null_mut(), len: usize::MAX, stride: 0, count: 2, mem: None }];
        assert_eq!(
            checked_len(&iov, 1, usize::MAX),
            Err(Refused::Failed(Error::InvalidParam("iov length overflows")))
        );
    }
}
