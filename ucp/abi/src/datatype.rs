//! Datatypes: contiguous, iov, and generic with callbacks of the program.

use std::cell::Cell;
use std::ffi::c_void;

use ::ucs::Status;
use ucp::{Generic, GenericOps, Iov, Layout};

use crate::arg::{AttrPtr, OutPtr};
use crate::entry::{CStatus, invalid};
use crate::handle::{Handle, Magic, checked, checked_by_magic, from_handle, from_ptr, into_handle};
use crate::types::{DatatypeAttr, GenericDtOps};

const CLASS: u64 = 7;
const CONTIG: u64 = 0;
const IOV: u64 = 2;
const GENERIC: u64 = 7;

/// A datatype of `ucp_dt_create_generic`. Its address, which is aligned to more than the class bits, and the
/// class make the handle.
#[repr(C, align(8))]
struct GenericType {
    magic: Magic,
    ops: GenericDtOps,
    context: *mut c_void,
}

impl Handle for GenericType {
    const MAGIC: u32 = 0x7570_6474;
    const NAME: &'static str = "datatype of callbacks";
    fn magic(&self) -> &Magic {
        &self.magic
    }
}

/// Data of an operation.
pub(crate) enum Data {
    Bytes(*mut u8, usize),
    /// A list of the caller, read in place.
    Pieces(*const Iov, usize),
    Generic(Started),
}

/// Callbacks of the program that have been started. Dropped before an operation has taken them, they are
/// finished.
pub(crate) struct Started {
    generic: Generic,
    /// Whether an operation finishes them.
    is_taken: Cell<bool>,
}

impl Started {
    fn new(generic: Generic) -> Started {
        Started { generic, is_taken: Cell::new(false) }
    }

    /// The callbacks, for an operation. It finishes them also if it does not start.
    fn take(&self) -> Generic {
        self.is_taken.set(true);
        self.generic
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        if !self.is_taken.get() {
            // SAFETY: the state has been started, and nothing else finishes it.
            unsafe { (self.generic.ops.finish)(self.generic.state) };
        }
    }
}

/// Direction in which callbacks are used.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    Pack,
    Unpack,
}

/// The length of `count` elements has no number.
fn too_long() -> Status {
    invalid("count times the size of the datatype is too large")
}

/// A datatype lacks a callback.
#[cold]
fn lacks(callback: &str) -> Status {
    invalid(&format!("the datatype has no {callback}"))
}

/// Bytes of which a receive from a stream has a multiple: of an element that is contiguous, else 1.
pub(crate) fn element_size(datatype: u64) -> usize {
    if datatype & CLASS == CONTIG { (datatype >> 3) as usize } else { 1 }
}

impl Data {
    /// Data of the caller: `count` elements of a datatype at `buffer`.
    /// # Safety
    /// `datatype` is one of the interface, not freed. The data is valid as long as the result, and the
    /// operation that uses it.
    // HOT
    #[inline(always)]
    pub(crate) unsafe fn new(
        buffer: *const c_void,
        count: usize,
        datatype: u64,
        of: Use,
    ) -> Result<Data, Status> {
        if datatype & CLASS == CONTIG {
            let len = count.checked_mul((datatype >> 3) as usize).ok_or_else(too_long)?;
            if buffer.is_null() && len > 0 {
                return Err(invalid("the buffer is null"));
            }
            return Ok(Data::Bytes(buffer.cast_mut().cast(), len));
        }
        // SAFETY: this function's contract.
        unsafe { Data::other(buffer, count, datatype, of) }
    }

    /// Contiguous data; other data cannot be sent within the call.
    /// # Safety
    /// As for [`Data::new`].
    pub(crate) unsafe fn contiguous(
        buffer: *const c_void,
        count: usize,
        datatype: u64,
    ) -> Result<Data, Status> {
        if datatype & CLASS != CONTIG {
            return Err(Status::NoResource);
        }
        // SAFETY: this function's contract.
        unsafe { Data::new(buffer, count, datatype, Use::Pack) }
    }

    /// [`Data::new`] of a list or with callbacks.
    /// # Safety
    /// As for [`Data::new`].
    #[inline(never)]
    unsafe fn other(buffer: *const c_void, count: usize, datatype: u64, of: Use) -> Result<Data, Status> {
        match datatype & CLASS {
            IOV if buffer.is_null() && count > 0 => Err(invalid("the list of pieces is null")),
            IOV => Ok(Data::Pieces(buffer.cast(), count)),
            GENERIC => {
                // SAFETY: this function's contract.
                let generic = unsafe { checked_by_magic(generic_handle(datatype)) }?;
                // All are looked at before the start, after which nothing but `finish` may end the data.
                let packed_size = generic.ops.packed_size.ok_or_else(|| lacks("packed_size"))?;
                let ops = GenericOps {
                    pack: generic.ops.pack.ok_or_else(|| lacks("pack"))?,
                    unpack: generic.ops.unpack.ok_or_else(|| lacks("unpack"))?,
                    finish: generic.ops.finish.ok_or_else(|| lacks("finish"))?,
                };
                // SAFETY: as above: the datatype's callbacks, with the arguments that they ask for.
                let state = unsafe {
                    match of {
                        Use::Pack => {
                            let start = generic.ops.start_pack.ok_or_else(|| lacks("start_pack"))?;
                            start(generic.context, buffer, count)
                        }
                        Use::Unpack => {
                            let start = generic.ops.start_unpack.ok_or_else(|| lacks("start_unpack"))?;
                            start(generic.context, buffer.cast_mut(), count)
                        }
                    }
                };
                // SAFETY: as above.
                let len = unsafe { packed_size(state) };
                Ok(Data::Generic(Started::new(Generic { ops, state, len })))
            }
            class => {
                tracing::error!("datatype class {class} is not supported");
                Err(Status::Unsupported)
            }
        }
    }

    /// The layout of data that is not contiguous, for an operation, which finishes its callbacks.
    /// # Safety
    /// A list is the caller's and valid during the call.
    pub(crate) unsafe fn layout<'a>(&self, single: &'a [Iov; 1]) -> Layout<'a> {
        match self {
            Data::Bytes(..) => Layout::Iov(single),
            Data::Pieces(_, 0) => Layout::Iov(&[]),
            Data::Pieces(pieces, count) => {
                // SAFETY: this function's contract; `Iov` has the layout of `ucp_dt_iov_t`.
                Layout::Iov(unsafe { std::slice::from_raw_parts(*pieces, *count) })
            }
            Data::Generic(started) => Layout::Generic(started.take()),
        }
    }

    /// The one piece of contiguous data.
    pub(crate) fn single(&self) -> [Iov; 1] {
        match *self {
            Data::Bytes(addr, len) => [Iov { addr, len }],
            _ => [Iov { addr: std::ptr::null_mut(), len: 0 }],
        }
    }
}

fn generic_handle(datatype: u64) -> *mut GenericType {
    std::ptr::with_exposed_provenance_mut((datatype & !CLASS) as usize)
}

entry! {
    /// Makes a datatype of callbacks.
    fn ucp_dt_create_generic(ops: *const GenericDtOps, context: *mut c_void, datatype: OutPtr<u64>) -> CStatus {
        // SAFETY: the caller's contract.
        let ops = *unsafe { from_ptr(ops) }?;
        let whole = ops.pack.is_some() && ops.unpack.is_some() && ops.finish.is_some() && ops.packed_size.is_some();
        if !whole || datatype.is_null() {
            return Err(invalid("ucp_dt_create_generic: datatype is null, or one of pack, unpack, finish and packed_size is missing"));
        }
        let at = into_handle(GenericType { magic: Magic::of::<GenericType>(), ops, context });
        datatype.store(at.expose_provenance() as u64 | GENERIC)
    }

    /// Frees a datatype of callbacks; others need no freeing.
    fn ucp_dt_destroy(datatype: u64) {
        if datatype & CLASS == GENERIC {
            from_handle(generic_handle(datatype)).map(drop)?;
        }
        Ok(())
    }

    /// Length of packed data: of `count` elements, 1 by default, at `buffer`, which contiguous data does not
    /// need.
    fn ucp_dt_query(datatype: u64, attr: AttrPtr<DatatypeAttr>) -> CStatus {
        let attr = attr.fields("ucp_dt_query")?;
        let buffer = field!(attr, 1 << 1, buffer).unwrap_or(std::ptr::null());
        let count = field!(attr, 1 << 2, count).unwrap_or(1);
        if attr.mask() & 1 == 0 {
            return Ok(());
        }
        if datatype & CLASS == GENERIC {
            checked(generic_handle(datatype))?;
        }
        let len = match datatype & CLASS {
            CONTIG => count.checked_mul((datatype >> 3) as usize).ok_or_else(too_long)?,
            // SAFETY: the caller's contract.
            _ => match unsafe { Data::new(buffer, count, datatype, Use::Pack) }? {
                Data::Bytes(_, len) => len,
                Data::Pieces(pieces, count) => {
                    // SAFETY: the caller passes a list of as many pieces.
                    let len = |at| unsafe { (*pieces.add(at)).len };
                    (0..count).try_fold(0_usize, |sum, at| sum.checked_add(len(at))).ok_or_else(too_long)?
                }
                Data::Generic(started) => started.generic.len,
            },
        };
        answer!(attr, 1 << 0, packed_size = len);
        Ok(())
    }
}
