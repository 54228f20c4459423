//! Argument checks that every transport makes the same way. Called at the head of each operation.

use ucs::Errno;
use ucs::mem::rights::may_access;

use crate::api::{Access, AtomicOp, Error, Refused};

/// Refuses what does not fit a limit.
// HOT
#[inline(always)]
pub fn fits(len: usize, max: usize) -> Result<(), Refused> {
    if len > max { Err(Refused::Failed(Error::TooLong { len, max })) } else { Ok(()) }
}

/// The length that a pack closure answers for a packet of at most `max` bytes.
// HOT
#[inline(always)]
pub fn packed(len: usize, max: usize) -> Result<usize, Refused> {
    if len.wrapping_sub(1) < max { Ok(len) } else { Err(badly_packed()) }
}

/// Checks the length of packed put bytes, which may be none.
// HOT
#[inline(always)]
pub fn packed_bytes(len: usize, max: usize) -> Result<usize, Refused> {
    if len <= max { Ok(len) } else { Err(badly_packed()) }
}

#[cold]
fn badly_packed() -> Refused {
    Error::InvalidParam("pack wrote no id, or more than it was given").into()
}

/// Refuses a registration of nothing, or of a range that wraps.
pub fn registrable(addr: *const u8, len: usize) -> Result<(), Error> {
    if addr.is_null() || len == 0 {
        return Err(Error::InvalidParam("registration of no memory"));
    }
    match addr.addr().checked_add(len) {
        Some(_) => Ok(()),
        None => Err(Error::InvalidParam("registration of a range that wraps around")),
    }
}

/// Refuses memory that is not mapped, or is read-only and to be written, as a NIC does that pins its pages.
/// Asks the system.
pub fn accessible(addr: *const u8, len: usize, access: Access) -> Result<(), Error> {
    let write = access.intersects(Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
    if may_access(addr.addr(), len, write) {
        return Ok(());
    }
    let call = "registering memory that is not mapped, or read-only memory to be written";
    Err(Error::Sys { call, errno: Errno(libc::EFAULT) })
}

/// Total length of pieces, saturating since pieces may repeat.
// HOT
#[inline(always)]
pub fn total(pieces: &[&[u8]]) -> usize {
    pieces.iter().fold(0, |len: usize, piece| len.saturating_add(piece.len()))
}

/// Refuses a post of an operation that only makes sense with its result.
#[inline(always)]
pub fn postable(op: AtomicOp) -> Result<(), Refused> {
    if op == AtomicOp::Swap {
        return Err(Refused::Failed(Error::InvalidParam("swap has no form without a result")));
    }
    Ok(())
}
