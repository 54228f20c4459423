//! Contiguous bytes, and how a run of bytes lies in pieces.

#![allow(unsafe_code)]

use std::ptr::NonNull;

/// Contiguous bytes that the wire registers, reads from or writes to in place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    pub(super) ptr: NonNull<u8>,
    pub(super) len: usize,
}

impl Piece {
    /// An empty piece.
    pub const EMPTY: Piece = Piece { ptr: NonNull::dangling(), len: 0 };

    /// Names the `len` bytes at `ptr`; `None` if `ptr` is null.
    /// # Safety
    /// They stay valid for their registered uses until the registration is released or the wire dropped.
    pub unsafe fn new(ptr: *mut u8, len: usize) -> Option<Piece> {
        Some(Piece { ptr: NonNull::new(ptr)?, len })
    }

    /// Address of the first byte.
    #[inline]
    pub const fn ptr(self) -> *mut u8 {
        self.ptr.as_ptr()
    }

    /// Length, bytes.
    #[inline]
    pub const fn len(self) -> usize {
        self.len
    }

    /// Whether the length is 0.
    #[inline]
    pub const fn is_empty(self) -> bool {
        self.len == 0
    }

    /// Returns the subrange from `at` on, of at most `len` bytes.
    #[inline]
    pub fn part(self, at: usize, len: usize) -> Piece {
        let at = at.min(self.len);
        let len = len.min(self.len - at);
        // SAFETY: at <= self.len, so the sum lies inside the bytes of `new`, or one past them.
        Piece { ptr: unsafe { self.ptr.add(at) }, len }
    }
}

/// Calls `each(piece, offset in the piece, offset in the run, bytes)` for the overlap of every piece with
/// `at..at + len`. Bytes past the last piece are left out.
// HOT
#[inline]
pub fn for_each_overlap(
    lens: impl Iterator<Item = usize>,
    at: u64,
    len: usize,
    mut each: impl FnMut(usize, usize, usize, usize),
) {
    let Ok(mut skip) = usize::try_from(at) else { return };
    let mut done = 0;
    for (piece, size) in lens.enumerate() {
        if done == len {
            return;
        }
        if skip >= size {
            skip -= size;
            continue;
        }
        let n = (size - skip).min(len - done);
        each(piece, skip, done, n);
        done += n;
        skip = 0;
    }
}

/// The piece that byte `at` of the run lies in, its number, and how far into it.
pub fn piece_at(pieces: impl Iterator<Item = Piece>, at: u64) -> Option<(usize, Piece, usize)> {
    let mut skip = usize::try_from(at).ok()?;
    for (n, piece) in pieces.enumerate() {
        if skip < piece.len() {
            return Some((n, piece, skip));
        }
        skip -= piece.len();
    }
    None
}
