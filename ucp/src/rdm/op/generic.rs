//! Data that the program's callbacks pack into packets and unpack from them. Callbacks run inside the engine
//! and may not call the worker. A callback that fails is not called again, and its operation ends with the
//! error.

#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::c_void;

use ucs::Status;

use crate::rdm::status::DatatypeError;

/// Callbacks of a generic datatype, with the signatures of UCX's `ucp_generic_dt_ops_t`.
///
/// `offset` counts packed bytes. Offsets may come in any order. `pack` may be asked for the same bytes again;
/// each byte is unpacked once. No callback may unwind or call the worker; see [`in_callback`].
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct GenericOps {
    /// Packs up to `max_length` bytes from `offset` on into `dest`. Returns how many; at least 1.
    pub pack: unsafe extern "C" fn(
        state: *mut c_void,
        offset: usize,
        dest: *mut c_void,
        max_length: usize,
    ) -> usize,
    /// Unpacks `length` bytes at `src`. Returns a [`Status`]; a negative one ends the operation.
    pub unpack:
        unsafe extern "C" fn(state: *mut c_void, offset: usize, src: *const c_void, length: usize) -> i8,
    /// Releases `state`. Called exactly once, before the operation is reported as ended.
    pub finish: unsafe extern "C" fn(state: *mut c_void),
}

/// Result of `pack` after a panic that was caught.
pub const PACK_PANICKED: usize = usize::MAX;
/// Result of `unpack` after a panic that was caught.
pub const UNPACK_PANICKED: i8 = Status::Last as i8;

thread_local! {
    static IN_CALLBACK: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread is inside a callback of a generic datatype, where no call of a worker is permitted.
pub fn in_callback() -> bool {
    IN_CALLBACK.get()
}

fn in_callback_do<R>(call: impl FnOnce() -> R) -> R {
    let outer = IN_CALLBACK.replace(true);
    let result = call();
    IN_CALLBACK.set(outer);
    result
}

/// A generic datatype in use by one operation.
#[derive(Debug)]
pub struct GenericData {
    ops: GenericOps,
    state: *mut c_void,
    len: usize,
    error: Cell<Option<DatatypeError>>,
}

unsafe extern "C" fn no_pack(_: *mut c_void, _: usize, _: *mut c_void, _: usize) -> usize {
    0
}

unsafe extern "C" fn no_unpack(_: *mut c_void, _: usize, _: *const c_void, _: usize) -> i8 {
    Status::Unsupported as i8
}

unsafe extern "C" fn no_finish(_: *mut c_void) {}

impl GenericOps {
    /// Callbacks that fail, whose `finish` does nothing.
    pub const NONE: GenericOps = GenericOps { pack: no_pack, unpack: no_unpack, finish: no_finish };
}

impl GenericData {
    /// Data of no bytes.
    pub const fn empty() -> GenericData {
        GenericData { ops: GenericOps::NONE, state: std::ptr::null_mut(), len: 0, error: Cell::new(None) }
    }

    /// Wraps `len` packed bytes, behind `ops` and `state`.
    /// # Safety
    /// Until the operation ends, `ops` may be called with `state` from any thread, one call at a time.
    pub const unsafe fn new(ops: GenericOps, state: *mut c_void, len: usize) -> GenericData {
        GenericData { ops, state, len, error: Cell::new(None) }
    }

    /// Packed length, bytes.
    #[inline]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether the length is 0.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Error of a callback, if one has failed.
    pub fn error(&self) -> Option<DatatypeError> {
        self.error.get()
    }

    /// Calls `finish`.
    /// # Safety
    /// Called once, after the operation.
    pub unsafe fn finish(&self) {
        // SAFETY: `new` permits the call; the caller makes it once.
        in_callback_do(|| unsafe { (self.ops.finish)(self.state) });
    }

    /// Packs the bytes from `at` on into `to`, up to the end of either. Returns how many. Bytes that the
    /// callback does not deliver are 0.
    pub fn pack(&self, at: usize, to: &mut [u8]) -> usize {
        let len = self.len.saturating_sub(at).min(to.len());
        let mut done = 0;
        while done < len && self.error.get().is_none() {
            let (dest, room) = (to[done..].as_mut_ptr().cast(), len - done);
            // SAFETY: `new` permits the call; `room` bytes at `dest` are writable.
            match in_callback_do(|| unsafe { (self.ops.pack)(self.state, at + done, dest, room) }) {
                PACK_PANICKED => self.error.set(Some(DatatypeError::Panicked)),
                n if n == 0 || n > room => self.error.set(Some(DatatypeError::Pack)),
                n => done += n,
            }
        }
        to[done..len].fill(0);
        len
    }

    /// Unpacks `from`, the bytes from `at` on, up to the end of the data.
    pub fn unpack(&self, at: u64, from: &[u8]) {
        let Some(left) = (self.len as u64).checked_sub(at).filter(|left| *left > 0) else { return };
        let len = from.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        if len == 0 || self.error.get().is_some() {
            return;
        }
        // SAFETY: `new` permits the call; `len` bytes of `from` are readable.
        let unpack = || unsafe { (self.ops.unpack)(self.state, at as usize, from.as_ptr().cast(), len) };
        match in_callback_do(unpack) {
            0.. => {}
            UNPACK_PANICKED => self.error.set(Some(DatatypeError::Panicked)),
            code => {
                let status = Status::try_from(code).unwrap_or(Status::IoError);
                self.error.set(Some(DatatypeError::Unpack(status)));
            }
        }
    }
}
