//! Blocks of equal length at equal distances, sent and received as one message.

#![allow(unsafe_code)]

use std::ffi::c_void;

use crate::api::core::error::Error;
use crate::api::data::bound::Bound;
use crate::api::data::view::{RecvData, RecvView, SendData, SendView};
use crate::api::request::buf::{IoBuf, IoBufMut};

use crate::rdm::GenericOps;

/// Blocks of memory: `count` blocks of `len` bytes, `stride` bytes apart.
#[derive(Clone, Copy, Debug)]
pub struct StridedIov {
    /// Address of the first block.
    pub addr: *mut u8,
    /// Length of a block, bytes.
    pub len: usize,
    /// Distance between the starts of two blocks, bytes; at least `len`.
    pub stride: usize,
    /// Number of blocks.
    pub count: usize,
}

impl Default for StridedIov {
    fn default() -> Self {
        StridedIov { addr: std::ptr::null_mut(), len: 0, stride: 0, count: 0 }
    }
}

impl StridedIov {
    /// Bytes of all blocks, if they do not overlap and the distances do not overflow.
    pub(crate) fn packed_size(&self) -> Result<usize, Error> {
        let total = self.len.checked_mul(self.count).ok_or(Error::Invalid)?;
        self.extent().map(|_| total)
    }

    /// Bytes from the start of the first block to the end of the last.
    pub(crate) fn extent(&self) -> Result<usize, Error> {
        if self.count > 1 && self.stride < self.len {
            return Err(Error::Invalid);
        }
        let Some(last) = self.count.checked_sub(1) else { return Ok(0) };
        self.stride.checked_mul(last).and_then(|at| at.checked_add(self.len)).ok_or(Error::Invalid)
    }

    /// Whether the blocks are one run of bytes.
    pub(crate) fn is_contiguous(&self) -> bool {
        self.count <= 1 || self.stride == self.len
    }

    /// Callbacks whose state is a [`StridedIov`].
    pub(crate) const OPS: GenericOps = GenericOps { pack, unpack, ..GenericOps::NONE };

    /// Calls `each(address, offset, bytes)` for the parts of blocks with the packed bytes `at..at + len`.
    fn for_each_part(&self, at: usize, len: usize, mut each: impl FnMut(*mut u8, usize, usize)) {
        let (mut block, mut skip, mut done) = (at / self.len, at % self.len, 0);
        while done < len && block < self.count {
            let n = (self.len - skip).min(len - done);
            each(self.addr.wrapping_add(block * self.stride + skip), done, n);
            (block, skip, done) = (block + 1, 0, done + n);
        }
    }
}

/// Safety: as [`GenericOps::pack`], with the [`StridedIov`] of readable blocks as state.
unsafe extern "C" fn pack(state: *mut c_void, offset: usize, dest: *mut c_void, max_length: usize) -> usize {
    // SAFETY: the state is the blocks; `len` is not 0, since a packed length is not.
    let blocks = unsafe { &*state.cast::<StridedIov>() };
    let dest: *mut u8 = dest.cast();
    blocks.for_each_part(offset, max_length, |from, at, n| {
        // SAFETY: the part lies in a block, which the caller keeps readable, and in `dest`.
        unsafe { ucs::mem::copy_bytes(from, dest.wrapping_add(at), n) };
    });
    max_length
}

/// Safety: as [`GenericOps::unpack`], with the [`StridedIov`] of writable blocks as state.
unsafe extern "C" fn unpack(state: *mut c_void, offset: usize, src: *const c_void, length: usize) -> i8 {
    // SAFETY: as in `pack`.
    let blocks = unsafe { &*state.cast::<StridedIov>() };
    let src: *const u8 = src.cast();
    blocks.for_each_part(offset, length, |to, at, n| {
        // SAFETY: the part lies in a block, which the caller keeps writable, and in `src`.
        unsafe { ucs::mem::copy_bytes(src.wrapping_add(at), to, n) };
    });
    0
}

/// Positions of the blocks in a container.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stride {
    /// Offset of the first block, bytes.
    pub offset: usize,
    /// Length of a block, bytes.
    pub len: usize,
    /// Distance between the starts of two blocks, bytes; at least `len`.
    pub stride: usize,
    /// Number of blocks.
    pub count: usize,
}

/// A container of which blocks are sent or received as one message: a column of a matrix, for example.
/// [`Error::Invalid`] if blocks overlap or exceed the container. A received message leaves the bytes between
/// the blocks, and the length of a vector, as they are.
pub struct Strided<B> {
    buf: B,
    positions: Stride,
    bound: Box<Bound<StridedIov>>,
}

// SAFETY: the pointers are to the container's memory, which it owns, and only an operation that owns both
// uses them.
unsafe impl<B: Send> Send for Strided<B> {}

impl<B> Strided<B> {
    /// Wraps a container.
    pub fn new(buf: B, positions: Stride) -> Self {
        Strided { buf, positions, bound: Box::new(Bound::new(StridedIov::default())) }
    }

    /// Returns the container.
    pub fn into_inner(self) -> B {
        self.buf
    }

    /// Returns a reference to the container.
    pub fn get(&self) -> &B {
        &self.buf
    }

    /// Blocks in `size` bytes at `addr`.
    fn blocks(&self, addr: *mut u8, size: usize) -> Result<(StridedIov, usize), Error> {
        let Stride { offset, len, stride, count } = self.positions;
        let blocks = StridedIov { addr: addr.wrapping_add(offset), len, stride, count };
        let end = blocks.extent()?.checked_add(offset).ok_or(Error::Invalid)?;
        if end > size {
            return Err(Error::Invalid);
        }
        Ok((blocks, blocks.packed_size()?))
    }
}

impl<B: IoBuf> SendData for Strided<B> {
    fn send_view(&mut self) -> Result<SendView, Error> {
        let bytes = self.buf.bytes();
        let (blocks, len) = self.blocks(bytes.as_ptr().cast_mut(), bytes.len())?;
        if blocks.is_contiguous() {
            return Ok(SendView::Bytes(blocks.addr, len));
        }
        self.bound.state = blocks;
        // SAFETY: the operation owns `self`, whose box does not move; the blocks lie in the container.
        unsafe { self.bound.bind(StridedIov::OPS, None, len) };
        Ok(SendView::Generic(self.bound.data()))
    }
}

impl<B: IoBufMut> RecvData for Strided<B> {
    fn recv_view(&mut self) -> Result<RecvView, Error> {
        let (addr, size) = self.buf.memory();
        let (blocks, len) = self.blocks(addr, size)?;
        if blocks.is_contiguous() {
            return Ok(RecvView::Bytes(blocks.addr, len));
        }
        self.bound.state = blocks;
        // SAFETY: as for a send.
        unsafe { self.bound.bind(StridedIov::OPS, None, len) };
        Ok(RecvView::List(self.bound.list()))
    }

    unsafe fn filled(&mut self, _len: usize) {}
}
