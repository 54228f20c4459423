//! Values that the program packs into messages and unpacks from them, in parts at given offsets.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};

use ucs::Status;

use crate::api::core::error::Error;
use crate::api::data::bound::Bound;
use crate::api::data::view::{RecvData, RecvView, SendData, SendView};

use crate::rdm::{GenericOps, PACK_PANICKED, UNPACK_PANICKED};

/// Produces the bytes of a message in parts. [`Packed`] makes a value sendable.
///
/// The library calls [`pack`](Pack::pack) while an operation runs, from calls that send and from progress.
/// The function may not call the worker: such a call panics. A panic ends the operation with
/// [`DatatypeError::Panicked`](crate::DatatypeError), and the worker goes on.
pub trait Pack: 'static {
    /// Length of the message, bytes. Read once, when an operation starts.
    fn packed_size(&self) -> usize;

    /// Writes bytes of the message from `offset` on to `to`, and returns how many: as many as fit, at least
    /// one. Offsets come in any order, and the same bytes may be asked for again. `to` ends at the end of the
    /// message at the latest.
    fn pack(&mut self, offset: usize, to: &mut [u8]) -> usize;
}

/// Takes the bytes of a message in parts. [`Unpacked`] makes a value receivable.
///
/// The library calls [`unpack`](Unpack::unpack) while an operation runs, from calls that receive and from
/// progress. What [`Pack`] says of calls of the worker and of panics applies.
pub trait Unpack: 'static {
    /// Longest message, bytes; a longer one is truncated. Read once, when an operation starts.
    fn packed_size(&self) -> usize;

    /// Takes `from`, the bytes of the message from `offset` on. Parts come in any order, each byte once. An
    /// error ends the operation with [`DatatypeError::Unpack`](crate::DatatypeError); the rest of the message
    /// is dropped.
    fn unpack(&mut self, offset: usize, from: &[u8]) -> Result<(), Status>;
}

/// A value to send by [`Pack`]. Reusable: sending again allocates nothing.
pub struct Packed<P>(Box<Bound<P>>);

/// A value to receive by [`Unpack`]. Reusable: receiving again allocates nothing.
pub struct Unpacked<U>(Box<Bound<U>>);

macro_rules! wrapper {
    ($name:ident<$t:ident>, $what:literal) => {
        impl<$t> $name<$t> {
            #[doc = concat!("Wraps a value ", $what, ".")]
            pub fn new(value: $t) -> Self {
                $name(Box::new(Bound::new(value)))
            }

            /// Returns the value.
            pub fn into_inner(self) -> $t {
                self.0.state
            }

            /// Returns a reference to the value.
            pub fn get(&self) -> &$t {
                &self.0.state
            }

            /// Returns a mutable reference to the value.
            pub fn get_mut(&mut self) -> &mut $t {
                &mut self.0.state
            }
        }

        impl<$t: std::fmt::Debug> std::fmt::Debug for $name<$t> {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_tuple(stringify!($name)).field(&self.0.state).finish()
            }
        }
    };
}
wrapper!(Packed<P>, "to send");
wrapper!(Unpacked<U>, "to receive into");

impl<P: Pack> SendData for Packed<P> {
    fn send_view(&mut self) -> Result<SendView, Error> {
        let len = self.0.state.packed_size();
        // SAFETY: the operation owns `self`, whose box does not move.
        unsafe { self.0.bind(GenericOps { pack: pack::<P>, ..GenericOps::NONE }, None, len) };
        Ok(SendView::Generic(self.0.data()))
    }
}

impl<U: Unpack> RecvData for Unpacked<U> {
    fn recv_view(&mut self) -> Result<RecvView, Error> {
        let len = self.0.state.packed_size();
        // SAFETY: as in `Packed`.
        unsafe { self.0.bind(GenericOps { unpack: unpack::<U>, ..GenericOps::NONE }, None, len) };
        Ok(RecvView::List(self.0.list()))
    }

    unsafe fn filled(&mut self, _len: usize) {}
}

/// Returns `None` if `call` panics.
fn without_panic<R>(call: impl FnOnce() -> R) -> Option<R> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(value) => Some(value),
        Err(payload) => {
            // Dropping what was thrown may panic in turn.
            if let Err(payload) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
                std::mem::forget(payload);
            }
            None
        }
    }
}

/// Safety: as [`GenericOps::pack`], with a `P` as state.
unsafe extern "C" fn pack<P: Pack>(
    state: *mut c_void,
    offset: usize,
    dest: *mut c_void,
    max_length: usize,
) -> usize {
    // SAFETY: the state is a `P` that nobody else uses during the operation.
    let value = unsafe { &mut *state.cast::<P>() };
    // SAFETY: the engine has `max_length` writable bytes there.
    let to = unsafe { std::slice::from_raw_parts_mut(dest.cast(), max_length) };
    without_panic(|| value.pack(offset, to)).map_or(PACK_PANICKED, |n| n.min(PACK_PANICKED - 1))
}

/// Safety: as [`GenericOps::unpack`], with a `U` as state.
unsafe extern "C" fn unpack<U: Unpack>(
    state: *mut c_void,
    offset: usize,
    src: *const c_void,
    length: usize,
) -> i8 {
    // SAFETY: the state is a `U` that nobody else uses during the operation.
    let value = unsafe { &mut *state.cast::<U>() };
    // SAFETY: the engine has `length` readable bytes there.
    let from = unsafe { std::slice::from_raw_parts(src.cast(), length) };
    match without_panic(|| value.unpack(offset, from)) {
        Some(Ok(())) => Status::Ok.into(),
        Some(Err(status)) if status.is_err() && i8::from(status) != UNPACK_PANICKED => status.into(),
        Some(Err(_)) => Status::IoError.into(),
        None => UNPACK_PANICKED,
    }
}
