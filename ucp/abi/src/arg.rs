//! Pointer arguments of exported functions. Each type states what its caller guarantees: null, or memory of
//! this layout that stays valid until the call returns. The functions here check for null.

use std::ffi::{CStr, c_char};
use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr::NonNull;

use ::ucs::Status;

use crate::entry::invalid;

/// Structure of parameters: null, or one that begins with its mask and has the fields that the mask names.
#[repr(transparent)]
pub(crate) struct ParamsPtr<'a, T>(*const T, PhantomData<&'a T>);

/// Structure of attributes: null, or one that begins with its mask. The fields that the mask names can be
/// read and written.
#[repr(transparent)]
pub(crate) struct AttrPtr<'a, T>(*mut T, PhantomData<&'a mut T>);

/// Place for a result: null, or memory that can be written.
#[repr(transparent)]
pub(crate) struct OutPtr<'a, T>(*mut T, PhantomData<&'a mut T>);

/// C string, or null.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct StrPtr<'a>(*const c_char, PhantomData<&'a CStr>);

macro_rules! copy_types {
    ($($name:ident)+) => {$(
        impl<T> Clone for $name<'_, T> {
            fn clone(&self) -> Self {
                *self
            }
        }

        impl<T> Copy for $name<'_, T> {}
    )+};
}

copy_types! { ParamsPtr AttrPtr OutPtr }

/// Parameters that are not null.
pub(crate) struct Fields<'a, T> {
    at: *const T,
    mask: u64,
    during: PhantomData<&'a T>,
}

/// Attributes that are not null.
pub(crate) struct AttrFields<'a, T> {
    /// Read by what reads parameters.
    fields: Fields<'a, T>,
    at: *mut T,
}

/// The mask with which a structure begins. Refuses null; `function` is named in the message.
/// # Safety
/// `at` is null or a structure that begins with a mask of 64 bits.
unsafe fn mask_of<T>(at: *const T, function: &str) -> Result<u64, Status> {
    if at.is_null() {
        return Err(invalid(&format!("{function}: the structure of parameters or attributes is null")));
    }
    // SAFETY: this function's contract.
    Ok(unsafe { at.cast::<u64>().read_unaligned() })
}

impl<'a, T> ParamsPtr<'a, T> {
    /// # Safety
    /// `at` meets the type's guarantee while the result is used.
    pub(crate) unsafe fn new(at: *const T) -> ParamsPtr<'a, T> {
        ParamsPtr(at, PhantomData)
    }

    /// The structure. Refuses null; `function` is named in the message.
    pub(crate) fn fields(self, function: &str) -> Result<Fields<'a, T>, Status> {
        // SAFETY: the type's invariant.
        let mask = unsafe { mask_of(self.0, function) }?;
        Ok(Fields { at: self.0, mask, during: PhantomData })
    }
}

impl<'a, T> AttrPtr<'a, T> {
    /// The structure. Refuses null; `function` is named in the message.
    pub(crate) fn fields(self, function: &str) -> Result<AttrFields<'a, T>, Status> {
        // SAFETY: the type's invariant.
        let mask = unsafe { mask_of(self.0, function) }?;
        let fields = Fields { at: self.0, mask, during: PhantomData };
        Ok(AttrFields { fields, at: self.0 })
    }
}

impl<T> Fields<'_, T> {
    /// Fields that are there.
    pub(crate) fn mask(&self) -> u64 {
        self.mask
    }

    /// Address of the structure.
    pub(crate) fn at(&self) -> *const T {
        self.at
    }
}

impl<T> AttrFields<'_, T> {
    /// Address of the structure, to write fields.
    pub(crate) fn at_mut(&self) -> *mut T {
        self.at
    }
}

impl<'a, T> Deref for AttrFields<'a, T> {
    type Target = Fields<'a, T>;

    fn deref(&self) -> &Fields<'a, T> {
        &self.fields
    }
}

impl<'a, T> OutPtr<'a, T> {
    /// # Safety
    /// `at` meets the type's guarantee while the result is used.
    pub(crate) unsafe fn new(at: *mut T) -> OutPtr<'a, T> {
        OutPtr(at, PhantomData)
    }

    pub(crate) fn is_null(&self) -> bool {
        self.0.is_null()
    }

    /// Stores a result. Refuses null.
    pub(crate) fn store(self, value: T) -> Result<(), Status> {
        let to = NonNull::new(self.0).ok_or_else(|| invalid("the place for the result is null"))?;
        // SAFETY: the type's invariant.
        unsafe { to.write(value) };
        Ok(())
    }
}

#[cfg(test)]
impl<'a, T> From<&'a mut T> for OutPtr<'a, T> {
    fn from(place: &'a mut T) -> OutPtr<'a, T> {
        OutPtr(place, PhantomData)
    }
}

impl<'a> StrPtr<'a> {
    /// No text.
    pub(crate) const NULL: StrPtr<'static> = StrPtr(std::ptr::null(), PhantomData);

    /// # Safety
    /// `at` is null or a C string, as long as the result is used.
    pub(crate) unsafe fn new(at: *const c_char) -> StrPtr<'a> {
        StrPtr(at, PhantomData)
    }

    /// The string. `None` for null.
    pub(crate) fn get(self) -> Option<&'a CStr> {
        // SAFETY: the type's invariant.
        (!self.0.is_null()).then(|| unsafe { CStr::from_ptr(self.0) })
    }

    /// The string as text; empty for null.
    pub(crate) fn text(self) -> String {
        self.get().unwrap_or_default().to_string_lossy().into_owned()
    }
}

#[cfg(test)]
impl<'a> From<&'a CStr> for StrPtr<'a> {
    fn from(text: &'a CStr) -> StrPtr<'a> {
        StrPtr(text.as_ptr(), PhantomData)
    }
}

/// The value of a field of [`Fields`] or [`AttrFields`], if its bit is set in the mask; else `None`.
macro_rules! field {
    ($from:expr, $bit:expr, $field:ident) => {
        if $from.mask() & $bit == 0 {
            None
        } else {
            // SAFETY: the structure has the fields that its mask names, which is an invariant of the types.
            Some(unsafe { (&raw const (*$from.at()).$field).read_unaligned() })
        }
    };
}

/// Writes a field of [`AttrFields`], if its bit is set in the mask.
macro_rules! answer {
    ($to:expr, $bit:expr, $field:ident = $value:expr) => {
        if $to.mask() & $bit != 0 {
            let value = $value;
            // SAFETY: the structure has the fields that its mask asks for, which is an invariant of the type.
            unsafe { (&raw mut (*$to.at_mut()).$field).write_unaligned(value) }
        }
    };
}
