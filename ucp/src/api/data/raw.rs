//! Data of the `*_layout_raw` calls.

use std::ffi::c_void;

use crate::api::core::error::Error;
use crate::api::data::iov::Iov;
use crate::api::data::params::{check_mem, check_mem_of_pieces};
use crate::api::data::strided::StridedIov;
use crate::api::mem::memory::Mem;

use crate::rdm::GenericOps;

/// Layout of the memory of one operation, in the `*_layout_raw` calls. Contiguous memory has calls of its
/// own.
#[derive(Clone, Copy, Debug)]
pub enum Layout<'a> {
    /// Pieces, in order. The list itself is copied.
    Iov(&'a [Iov]),
    /// Blocks of equal length at equal distances.
    Strided(StridedIov),
    /// Data that callbacks pack and unpack.
    Generic(Generic),
}

/// A generic datatype, as in UCX: callbacks, and the state that `start_pack` or `start_unpack` has returned.
/// An operation calls `finish` exactly once, whatever its outcome, before it is reported as ended: before the
/// call returns *done* or an error, before the completion callback, or when the worker is dropped.
#[derive(Clone, Copy, Debug)]
pub struct Generic {
    /// Callbacks.
    pub ops: GenericOps,
    /// First argument of the callbacks.
    pub state: *mut c_void,
    /// Packed length, or longest message, bytes.
    pub len: usize,
}

impl<'a> From<&'a [Iov]> for Layout<'a> {
    fn from(pieces: &'a [Iov]) -> Self {
        Layout::Iov(pieces)
    }
}

impl<'a, const N: usize> From<&'a [Iov; N]> for Layout<'a> {
    fn from(pieces: &'a [Iov; N]) -> Self {
        Layout::Iov(pieces)
    }
}

impl<'a> From<&'a Vec<Iov>> for Layout<'a> {
    fn from(pieces: &'a Vec<Iov>) -> Self {
        Layout::Iov(pieces)
    }
}

impl From<StridedIov> for Layout<'_> {
    fn from(blocks: StridedIov) -> Self {
        Layout::Strided(blocks)
    }
}

impl From<Generic> for Layout<'_> {
    fn from(generic: Generic) -> Self {
        Layout::Generic(generic)
    }
}

/// The three ways in which operations start.
pub(crate) enum Data<'a> {
    Bytes(*mut u8, usize),
    Pieces(&'a [Iov]),
    Callbacks(CallbackData),
}

/// Data that is accessed through callbacks.
pub(crate) enum CallbackData {
    Strided(StridedIov),
    Generic(Generic),
}

impl<'a> Layout<'a> {
    /// Data of an operation. Memory has to lie in `mem`, if there is one.
    pub(crate) fn data_in(self, mem: Option<&Mem>) -> Result<Data<'a>, Error> {
        match &self {
            Layout::Iov(pieces) => check_mem_of_pieces(mem, pieces)?,
            Layout::Strided(blocks) => check_mem(mem, blocks.addr, blocks.extent()?)?,
            Layout::Generic(_) => {}
        }
        Ok(match self {
            Layout::Iov(pieces) => Data::Pieces(pieces),
            Layout::Strided(blocks) if blocks.is_contiguous() => {
                Data::Bytes(blocks.addr, blocks.packed_size()?)
            }
            Layout::Strided(blocks) => Data::Callbacks(CallbackData::Strided(blocks)),
            Layout::Generic(generic) => Data::Callbacks(CallbackData::Generic(generic)),
        })
    }
}
