//! Pieces of local memory.

/// Piece of local memory.
#[derive(Clone, Copy, Debug)]
pub struct Iov {
    /// First byte.
    pub addr: *mut u8,
    /// Length, bytes.
    pub len: usize,
}

impl Iov {
    pub(crate) fn of(addr: *const u8, len: usize) -> Iov {
        Iov { addr: addr.cast_mut(), len }
    }
}
