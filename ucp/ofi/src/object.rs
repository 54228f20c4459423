//! Objects that C programs hold: each begins with a `struct fid`, whose class tells its kind.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::abi::Fid;
use crate::errno::Errno;

/// An object with a [`Fid`] at its beginning, in memory of [`Box`].
pub(crate) trait Object: Sized {
    const CLASS: usize;
    /// Name for messages.
    const NAME: &'static str;
    /// Objects that have to be closed before this one.
    fn users(&self) -> &UserCount;
}

/// Number of objects that use another one.
#[derive(Default)]
pub(crate) struct UserCount(AtomicUsize);

impl UserCount {
    pub(crate) fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn remove(&self) {
        // Whoever closes the object does it behind the last use.
        self.0.fetch_sub(1, Ordering::Release);
    }

    pub(crate) fn count(&self) -> usize {
        self.0.load(Ordering::Acquire)
    }
}

/// The object of a call on a slow path: its class is checked.
/// # Safety
/// `fid` is null or an object of this crate, which is not closed while the result is used.
pub(crate) unsafe fn checked<'a, T: Object>(fid: *const Fid) -> Result<&'a T, Errno> {
    // SAFETY: this function's contract; every object begins with its class.
    let class = unsafe { fid.as_ref() }.ok_or(Errno::INVAL)?.fclass;
    if class != T::CLASS {
        tracing::error!("not {}, or one that has been closed: {fid:p}", T::NAME);
        return Err(Errno::INVAL);
    }
    // SAFETY: this function's contract, and the class is that of the type.
    unsafe { from_fid(fid) }
}

/// The object of a call: only null is refused.
/// # Safety
/// `fid` is null or an object of this type, which is not closed while the result is used.
// HOT
#[inline(always)]
pub(crate) unsafe fn from_fid<'a, T: Object>(fid: *const Fid) -> Result<&'a T, Errno> {
    // SAFETY: this function's contract.
    unsafe { fid.cast::<T>().as_ref() }.ok_or(Errno::INVAL)
}

/// Stores the handle of a new object.
/// # Safety
/// As for [`store`].
pub(crate) unsafe fn store_handle<T: Object>(to: *mut *mut Fid, object: T) -> Result<(), Errno> {
    if to.is_null() {
        return Err(Errno::INVAL);
    }
    // SAFETY: this function's contract.
    unsafe { store(to, Box::into_raw(Box::new(object)).cast()) }
}

/// Takes an object back, to free it: busy while others use it.
/// # Safety
/// `fid` is null or an object of this crate, which nobody uses any more unless the result is an error.
pub(crate) unsafe fn from_handle<T: Object>(fid: *mut Fid) -> Result<Box<T>, Errno> {
    // SAFETY: this function's contract.
    let object: &T = unsafe { checked(fid) }?;
    let users = object.users().count();
    if users > 0 {
        tracing::debug!("{} cannot be closed: {users} objects use it", T::NAME);
        return Err(Errno::BUSY);
    }
    // SAFETY: the object begins with its class, which nobody reads meanwhile.
    unsafe { (*fid).fclass = 0 };
    // SAFETY: `store_handle` has made it; the program closes it once.
    Ok(unsafe { Box::from_raw(fid.cast::<T>()) })
}

/// Stores a result of a call. Refuses null.
/// # Safety
/// `to` is null or can be written.
pub(crate) unsafe fn store<T>(to: *mut T, value: T) -> Result<(), Errno> {
    let to = NonNull::new(to).ok_or(Errno::INVAL)?;
    // SAFETY: this function's contract.
    unsafe { to.write(value) };
    Ok(())
}

/// Stores an error entry of a queue. Without `has_size`: all but its last field, the size of its data, which
/// programs of versions before 1.5 do not have. Returns the number of bytes.
/// # Safety
/// `to` is memory for as many bytes.
pub(crate) unsafe fn store_error_entry<T: Copy>(to: *mut T, entry: &T, has_size: bool) -> usize {
    let len = if has_size { size_of::<T>() } else { size_of::<T>() - size_of::<usize>() };
    // SAFETY: this function's contract.
    unsafe { std::ptr::copy_nonoverlapping(std::ptr::from_ref(entry).cast::<u8>(), to.cast::<u8>(), len) };
    len
}

/// A structure of the caller. Refuses null.
/// # Safety
/// `at` is null or a structure of this type.
pub(crate) unsafe fn read<T: Copy>(at: *const T) -> Result<T, Errno> {
    // SAFETY: this function's contract.
    unsafe { at.as_ref() }.copied().ok_or(Errno::INVAL)
}
