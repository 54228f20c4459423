//! Values of options in memory of a C caller. The types say in the signature of a function what it relies on,
//! as those of [`crate::arg`] do.

use std::ffi::{c_char, c_int, c_void};

use ::ucs::Status;

/// Value of an option of the type that a function reads, or null.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct ValuePtr(*const c_void);

/// Place for a value of an option of the type that a function writes, or null.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct PlacePtr(*mut c_void);

/// Buffer for the text of a value, of as many bytes as the argument after it says.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct TextPtr(*mut c_char);

impl ValuePtr {
    /// # Safety
    /// `at` is a value of the type that the called function reads, or null, until the function returns.
    pub(super) unsafe fn new(at: *const c_void) -> ValuePtr {
        ValuePtr(at)
    }

    /// The address, to use under the type's invariant.
    pub(super) fn get(self) -> *const c_void {
        self.0
    }
}

impl PlacePtr {
    /// # Safety
    /// `at` is a place for a value of the type that the called function writes, or null, until the function
    /// returns.
    pub(super) unsafe fn new(at: *mut c_void) -> PlacePtr {
        PlacePtr(at)
    }

    /// The address, to use under the type's invariant.
    pub(super) fn get(self) -> *mut c_void {
        self.0
    }
}

impl TextPtr {
    /// # Safety
    /// `at` is a buffer of as many bytes as the argument after it says, until the function returns.
    pub(super) unsafe fn new(at: *mut c_char) -> TextPtr {
        TextPtr(at)
    }
}

/// Result of a function that reads a value.
pub(super) fn store<T>(to: PlacePtr, value: Option<T>) -> Result<c_int, Status> {
    let value = value.ok_or(Status::InvalidParam)?;
    if to.0.is_null() {
        return Err(Status::InvalidParam);
    }
    // SAFETY: the type's invariant.
    unsafe { to.0.cast::<T>().write_unaligned(value) };
    Ok(1)
}

/// A value of an option.
pub(super) fn load<T: Copy>(from: ValuePtr) -> Result<T, Status> {
    if from.0.is_null() {
        return Err(Status::InvalidParam);
    }
    // SAFETY: the type's invariant.
    Ok(unsafe { from.0.cast::<T>().read_unaligned() })
}

/// Result of a function that prints a number or one of a few names: the length of the text.
pub(super) fn show(to: TextPtr, size: usize, text: &(impl AsRef<[u8]> + ?Sized)) -> Result<c_int, Status> {
    let text = text.as_ref();
    // SAFETY: the type's invariant: `size` is the argument after it.
    unsafe { crate::info::fill_string(to.0, size, text) };
    Ok(c_int::try_from(text.len()).unwrap_or(c_int::MAX))
}

/// Result of a function that prints a value whose text may be empty: 1, as in UCX, where 0 is a failure.
pub(super) fn show_text(
    to: TextPtr,
    size: usize,
    text: &(impl AsRef<[u8]> + ?Sized),
) -> Result<c_int, Status> {
    show(to, size, text).map(|_| 1)
}

/// Defines functions that copy a value without memory of its own.
macro_rules! copied {
    ($($(#[$meta:meta])* fn $name:ident: $T:ty;)+) => {$(
        entry! {
            $(#[$meta])*
            fn $name(from: $crate::ucs::config::value::ValuePtr, to: $crate::ucs::config::value::PlacePtr, _arg: *const c_void) -> CStatus {
                $crate::ucs::config::value::store(to, Some($crate::ucs::config::value::load::<$T>(from)?)).map(|_| ())
            }
        }
    )+};
}
pub(super) use copied;
