//! Pieces of local memory.

/// Piece of local memory. Has the layout of UCX's `ucp_dt_iov_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
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
