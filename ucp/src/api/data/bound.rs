//! The state of callbacks and what the engine needs to call them, at one address.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::ptr::NonNull;

use crate::rdm::{GenericData, GenericOps, RecvList};

/// A state of callbacks, bound to one operation at a time. Boxed, and not accessed during the operation.
pub(crate) struct Bound<T> {
    pub(crate) state: T,
    data: GenericData,
    list: RecvList,
}

// SAFETY: what it points to lies in itself, or is used by the operation that owns it; of the program's it
// holds the state, which is `Send`.
unsafe impl<T: Send> Send for Bound<T> {}

impl<T> Bound<T> {
    pub(crate) fn new(state: T) -> Self {
        Bound { state, data: GenericData::empty(), list: RecvList::NONE }
    }

    /// Binds `ops` to `state`, or to the state in here, for an operation on `len` bytes.
    /// # Safety
    /// Until the operation ends, `ops` may be called with that state, and `self` stays where it is.
    pub(crate) unsafe fn bind(&mut self, ops: GenericOps, state: Option<*mut c_void>, len: usize) {
        let state = state.unwrap_or((&raw mut self.state).cast());
        // SAFETY: this function's contract.
        self.data = unsafe { GenericData::new(ops, state, len) };
        // SAFETY: this function's contract; the data is beside the list.
        self.list = unsafe { RecvList::of_generic(&self.data) };
    }

    /// Source of a send.
    pub(crate) fn data(&self) -> NonNull<GenericData> {
        NonNull::from_ref(&self.data)
    }

    /// Destination of a receive.
    pub(crate) fn list(&self) -> NonNull<RecvList> {
        NonNull::from_ref(&self.list)
    }
}
