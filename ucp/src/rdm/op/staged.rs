//! Memory of ours into which a message is read before callbacks unpack it.

#![allow(unsafe_code)]

use std::ptr::NonNull;

use crate::rdm::op::Piece;

/// Zeroed memory for one read. The device may write it until [`Staged::end_access`]. If it is dropped before,
/// it is not freed.
#[derive(Debug)]
pub struct Staged {
    /// From `Box::into_raw`.
    bytes: NonNull<[u8]>,
    is_ours: bool,
}

impl Staged {
    /// Allocates `len` bytes; `None` if there are not so many.
    pub fn new(len: usize) -> Option<Staged> {
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(len).ok()?;
        bytes.resize(len, 0);
        let bytes = NonNull::from(Box::leak(bytes.into_boxed_slice()));
        Some(Staged { bytes, is_ours: false })
    }

    /// Returns the memory for the device. Nothing here accesses it before [`Staged::end_access`].
    pub fn piece(&self) -> Piece {
        // SAFETY: the memory is freed only after `end_access`, which comes after the last use by the device.
        let piece = unsafe { Piece::new(self.bytes.cast().as_ptr(), self.bytes.len()) };
        piece.unwrap_or(Piece::EMPTY)
    }

    /// Notes that the device writes no more: no read is in flight, and the registration has ended.
    pub fn end_access(&mut self) {
        self.is_ours = true;
    }

    /// Returns what was read; nothing before [`Staged::end_access`].
    pub fn bytes(&self) -> &[u8] {
        if !self.is_ours {
            return &[];
        }
        // SAFETY: initialised by `new`, and written by nobody any more.
        unsafe { self.bytes.as_ref() }
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        if self.is_ours {
            // SAFETY: leaked by `new`, freed once, and used by nobody any more.
            drop(unsafe { Box::from_raw(self.bytes.as_ptr()) });
        }
    }
}
