//! Packed addresses, keys and exported memory that programs hold: bytes in memory of the C allocator. The
//! table of live handles has their addresses, so that nothing else is freed.

use std::ffi::c_void;

use ::ucs::Status;

use crate::entry::invalid;

/// Kind of packed bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Packed {
    /// Address of a worker.
    Address,
    /// Remote key, or memory that another process maps: one function of UCX frees both.
    Key,
}

impl Packed {
    fn name(self) -> &'static str {
        match self {
            Packed::Address => "packed address",
            Packed::Key => "packed key",
        }
    }
}

/// Copies bytes to memory that the program returns by [`release`]. It is aligned as that of `malloc`.
pub(crate) fn alloc_packed(bytes: &[u8], what: Packed) -> Result<*mut c_void, Status> {
    // SAFETY: no precondition.
    let at = unsafe { libc::malloc(bytes.len().max(1)) };
    if at.is_null() {
        return Err(Status::NoMemory);
    }
    // SAFETY: the memory is new and long enough.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), at.cast(), bytes.len()) };
    crate::live::insert(at.addr(), what.name());
    Ok(at)
}

/// Frees what [`alloc_packed`] has returned. Null is nothing to free. Any other address is refused, and its
/// memory is not looked at.
pub(crate) fn release(at: *mut c_void, what: Packed) -> Result<(), Status> {
    if at.is_null() {
        return Ok(());
    }
    if !crate::live::take(at.addr(), what.name()) {
        crate::check::not_packed(at, what.name());
        return Err(invalid(&format!(
            "{at:p} is no {} of this library, or it has been released",
            what.name()
        )));
    }
    // SAFETY: `alloc_packed` has allocated it, and the table had it once.
    unsafe { libc::free(at) };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_handed_out_is_freed_and_once() {
        let mut own = [0_u8; 64];
        assert_eq!(release(own.as_mut_ptr().cast(), Packed::Key), Err(Status::InvalidParam));
        let at = alloc_packed(&[7; 3], Packed::Key).expect("memory");
        assert!(at.addr().is_multiple_of(16));
        assert_eq!(release(at, Packed::Address), Err(Status::InvalidParam));
        assert_eq!(release(at, Packed::Key), Ok(()));
        assert_eq!(release(at, Packed::Key), Err(Status::InvalidParam));
        assert_eq!(release(std::ptr::null_mut(), Packed::Key), Ok(()));
    }
}
