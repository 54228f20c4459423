//! Handles that C programs hold: addresses of objects of this library, which begin with a number that tells
//! their kind.

use std::cell::Cell;

use ::ucs::Status;

use crate::entry::invalid;

/// First field of every object: its kind, until it is freed. Objects are `repr(C)`, so that it is found in
/// one of another kind, too.
pub(crate) struct Magic(Cell<u32>);

impl Magic {
    pub(crate) fn of<T: Handle>() -> Magic {
        Magic(Cell::new(T::MAGIC))
    }

    /// The kind, for objects that do not begin with it. 0: freed.
    pub(crate) fn kind(&self) -> u32 {
        self.0.get()
    }

    /// Marks the object as freed.
    pub(crate) fn clear(&self) {
        self.0.set(0);
    }

    /// The kind of an object that is never freed.
    pub(crate) const fn of_static(kind: u32) -> Magic {
        Magic(Cell::new(kind))
    }
}

/// An object with a [`Magic`] as its first field, in memory of [`Box`].
pub(crate) trait Handle: Sized {
    const MAGIC: u32;
    /// Name in UCX, for messages.
    const NAME: &'static str;
    /// Objects are static: no function makes or frees them.
    const IS_STATIC: bool = false;
    fn magic(&self) -> &Magic;

    /// Whether a handle of this kind is at an address, which may be any number.
    fn is_live(address: usize) -> bool {
        crate::live::contains(address, Self::NAME)
    }
}

/// A kind of handle.
pub(crate) trait Named {
    /// Name for messages.
    const NAME: &'static str;
    /// Objects are static: no function makes or frees them.
    const IS_STATIC: bool;
    /// A slow path looks the handle up.
    const IS_LOOKED_UP: bool = true;
}

impl<T: Handle> Named for T {
    const NAME: &'static str = <T as Handle>::NAME;
    const IS_STATIC: bool = <T as Handle>::IS_STATIC;
}

/// The object of a handle on a slow path: a handle of its kind is at the address, which may be any number.
/// `'a` ends when the caller frees the handle.
pub(crate) fn checked<'a, T: Handle>(handle: *const T) -> Result<&'a T, Status> {
    if handle.is_null() {
        return Err(null());
    }
    crate::check::handle(handle);
    if !T::is_live(handle.addr()) {
        return Err(not_valid(handle, T::NAME));
    }
    // SAFETY: an object of this kind is at the address.
    unsafe { checked_by_magic(handle) }
}

/// The object of a handle whose address is one of this library, perhaps of another kind.
/// # Safety
/// `handle` is null or an object of this library, which is not freed while the result is used.
pub(crate) unsafe fn checked_by_magic<'a, T: Handle>(handle: *const T) -> Result<&'a T, Status> {
    // SAFETY: this function's contract; every object begins with its kind.
    let object = unsafe { from_ptr(handle) }?;
    crate::check::handle(handle);
    if object.magic().kind() == T::MAGIC { Ok(object) } else { Err(not_valid(handle, T::NAME)) }
}

/// The object of a handle of a kind that does not begin with it, on a slow path.
pub(crate) fn found<'a, T: Named>(handle: *const T) -> Result<&'a T, Status> {
    if handle.is_null() {
        return Err(null());
    }
    if !crate::live::contains(handle.addr(), T::NAME) {
        return Err(not_valid(handle, T::NAME));
    }
    // SAFETY: an object of this kind is at the address.
    unsafe { from_ptr(handle) }
}

#[cold]
fn not_valid<T>(handle: *const T, name: &str) -> Status {
    crate::log::init_from_env();
    tracing::error!("not a valid {name}: {handle:p} is of another kind, or has been freed");
    Status::InvalidParam
}

#[cold]
fn null() -> Status {
    invalid("a handle or structure is null")
}

/// The object of a handle: only null is refused.
/// # Safety
/// `handle` is null or an object of this type, which is not freed while the result is used.
// HOT
#[inline(always)]
pub(crate) unsafe fn from_ptr<'a, T>(handle: *const T) -> Result<&'a T, Status> {
    // SAFETY: this function's contract.
    unsafe { handle.as_ref() }.ok_or_else(null)
}

/// Hands an object out.
pub(crate) fn into_handle<T: Named>(object: T) -> *mut T {
    let handle = Box::into_raw(Box::write(crate::check::new_place(), object));
    if T::IS_LOOKED_UP {
        crate::live::insert(handle.addr(), T::NAME);
    }
    handle
}

/// Takes an object back, to free it.
pub(crate) fn from_handle<T: Handle>(handle: *mut T) -> Result<Box<T>, Status> {
    checked(handle)?.magic().0.set(0);
    // SAFETY: `into_handle` has made it; the program frees it once.
    Ok(unsafe { take(handle) })
}

/// Takes an object back that does not begin with its kind.
/// # Safety
/// `into_handle` has made it, and it is taken once.
pub(crate) unsafe fn take<T: Named>(handle: *mut T) -> Box<T> {
    crate::check::remove(handle);
    if T::IS_LOOKED_UP {
        crate::live::remove(handle.addr());
    }
    // SAFETY: this function's contract.
    unsafe { Box::from_raw(handle) }
}

/// Frees an object whose first bytes inline functions of programs read. With the checks on its memory stays,
/// and `mark` writes there what ends the program at the next call.
/// # Safety
/// As for [`take`].
pub(crate) unsafe fn free_read_inline<T: Named>(handle: *mut T, mark: impl FnOnce(*mut T)) {
    if !crate::check::checks() {
        // SAFETY: this function's contract.
        return drop(unsafe { take(handle) });
    }
    crate::check::remove(handle);
    if T::IS_LOOKED_UP {
        crate::live::remove(handle.addr());
    }
    // SAFETY: this function's contract. The memory is an object no more, and is never freed.
    unsafe { handle.drop_in_place() };
    mark(handle);
}
