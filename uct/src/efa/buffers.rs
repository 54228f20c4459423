//! Equal buffers in one registered region, for `tx` and `rx`; makes slices of registered memory.

#![allow(unsafe_code)]

use super::dev::{Dev, DevMr, Sge};
use crate::api::{Access, Error};
use std::any::Any;
use std::sync::Arc;

const CACHE_LINE: usize = 64;

pub(super) struct Buffers<M> {
    mr: M,
    slot_len: usize,
    stride: usize,
    count: u32,
}

impl<M: DevMr> Buffers<M> {
    /// Allocates and registers `count` buffers in the memory the device is fastest on.
    pub(super) fn new<D: Dev<Mr = M>>(
        dev: &D,
        pd: &D::Pd,
        slot_len: usize,
        count: u32,
        access: Access,
    ) -> Result<Self, Error> {
        let stride = slot_len.next_multiple_of(CACHE_LINE);
        let mr = dev.alloc_mr(pd, stride * count as usize, access)?;
        assert!(mr.len() >= stride * count as usize, "the device gave less memory than it was asked for");
        Ok(Buffers { mr, slot_len, stride, count })
    }

    // HOT
    #[inline]
    fn ptr(&self, slot: u32) -> *mut u8 {
        assert!(slot < self.count);
        self.mr.addr().wrapping_add(slot as usize * self.stride)
    }

    pub(super) fn backing(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        self.mr.backing()
    }

    #[inline]
    pub(super) fn slot_len(&self) -> usize {
        self.slot_len
    }

    /// SGE of the first `len` bytes of a buffer.
    // HOT
    #[inline]
    pub(super) fn sge(&self, slot: u32, len: usize) -> Sge {
        debug_assert!(len <= self.slot_len);
        Sge { addr: self.ptr(slot), len: len as u32, lkey: self.mr.lkey() }
    }

    /// The first `len` bytes of a buffer, to read. Unsafe: nobody writes the buffer while the slice lives.
    // HOT
    #[inline]
    pub(super) unsafe fn bytes(&self, slot: u32, len: usize) -> &[u8] {
        assert!(len <= self.slot_len);
        // SAFETY: `ptr` checks that the slot lies in the region, which was zeroed and lives as long as self;
        // the caller excludes writers.
        unsafe { std::slice::from_raw_parts(self.ptr(slot), len) }
    }

    /// The first `len` bytes of a buffer, to write. Unsafe: only the caller uses it while the slice lives.
    // HOT
    #[inline]
    #[allow(clippy::mut_from_ref, reason = "slots are apart from each other; the caller owns this one")]
    pub(super) unsafe fn bytes_mut(&self, slot: u32, len: usize) -> &mut [u8] {
        assert!(len <= self.slot_len);
        // SAFETY: as in `bytes`; the caller has the slot to itself.
        unsafe { std::slice::from_raw_parts_mut(self.ptr(slot), len) }
    }
}
