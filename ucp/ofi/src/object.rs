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
    fn users(&self) -> &Users;
}

/// Number of objects that use another one.
#[derive(Default)]
pub(crate) struct Users(AtomicUsize);

impl Users {
    pub(crate) fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn remove(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }

    fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// The object of a call on a slow path: its class is checked.
pub(crate) fn checked<'a, T: Object>(fid: *const Fid) -> Result<&'a T, Errno> {
    // SAFETY: every object begins with its class.
    let class = unsafe { fid.as_ref() }.ok_or(Errno::INVAL)?.fclass;
    if class != T::CLASS {
        tracing::error!("not {}, or one that has been closed: {fid:p}", T::NAME);
        return Err(Errno::INVAL);
    }
    given(fid)
}

/// The object of a call: only null is refused. // HOT
#[inline(always)]
pub(crate) fn given<'a, T: Object>(fid: *const Fid) -> Result<&'a T, Errno> {
    // SAFETY: an object that is not null is one of ours and has not been closed, by the contract of each
    // function of the interface.
    unsafe { fid.cast::<T>().as_ref() }.ok_or(Errno::INVAL)
}

/// Stores the handle of a new object.
pub(crate) fn store_handle<T: Object>(to: *mut *mut Fid, object: T) -> Result<(), Errno> {
    store(to, Box::into_raw(Box::new(object)).cast())
}

/// Takes an object back, to free it: busy while others use it.
pub(crate) fn from_handle<T: Object>(fid: *mut Fid) -> Result<Box<T>, Errno> {
    let object: &T = checked(fid)?;
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
pub(crate) fn store<T>(to: *mut T, value: T) -> Result<(), Errno> {
    let to = NonNull::new(to).ok_or(Errno::INVAL)?;
    // SAFETY: the caller passes memory for the result.
    unsafe { to.write(value) };
    Ok(())
}

/// A structure of the caller. Refuses null.
pub(crate) fn read<T: Copy>(at: *const T) -> Result<T, Errno> {
    // SAFETY: the caller passes a structure of this type.
    unsafe { at.as_ref() }.copied().ok_or(Errno::INVAL)
}
