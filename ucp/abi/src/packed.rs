//! Packed addresses, keys and exported memory that programs hold, and lists of `uct`: bytes in memory of the
//! C allocator. The table of live handles has their addresses, so that nothing else is freed.

use std::ffi::c_void;

use ::ucs::Status;

use crate::entry::invalid;

/// Kind of bytes that a program releases by a function of their own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Packed {
    /// Address of a worker.
    Address,
    /// Remote key, or memory that another process maps: one function of UCX frees both.
    Key,
    /// List of components.
    Components,
    /// List of transports.
    Transports,
}

impl Packed {
    fn name(self) -> &'static str {
        match self {
            Packed::Address => "packed address",
            Packed::Key => "packed key",
            Packed::Components => "list of components",
            Packed::Transports => "list of transports",
        }
    }
}

/// Memory for `count` values, which are zero. The program returns it by [`release`]. `T` has nothing to drop.
pub(crate) fn alloc_list<T>(count: usize, what: Packed) -> Result<*mut T, Status> {
    // SAFETY: any size may be asked for.
    let at = unsafe { libc::calloc(count.max(1), size_of::<T>()) };
    if at.is_null() {
        return Err(Status::NoMemory);
    }
    crate::live::insert(at.addr(), what.name());
    Ok(at.cast())
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

/// Frees what [`alloc_packed`] or [`alloc_list`] has returned. Null is nothing to free. Any other address is
/// refused, and its memory is not looked at.
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
    // SAFETY: one of them has allocated it, and the table had it once.
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
        let list = alloc_list::<u64>(0, Packed::Components).expect("memory").cast();
        assert_eq!(release(list, Packed::Transports), Err(Status::InvalidParam));
        assert_eq!(release(list, Packed::Components), Ok(()));
        assert_eq!(release(list, Packed::Components), Err(Status::InvalidParam));
    }
}
