//! Slots that hold messages of `self` from send to handler, or until a kept message is dropped. LIFO, for the
//! cache.

#![allow(unsafe_code)]

use std::cell::Cell;
use std::sync::Arc;

use ucs::mem::page::CACHE_LINE;
use ucs::mem::{Fill, MapOpts, Mapping, MemError};

use crate::api::{Keep, RecvDesc};
use crate::base::recv_desc::RecvDescPool;

/// Bytes before a slot's packet: its payload, behind the id, begins with a cache line.
const OFFSET: usize = CACHE_LINE - 1;

/// The slots of an interface: as many as its queue holds, and as many again that may be kept.
pub(super) struct Slots {
    memory: Arc<Mapping>,
    slot_len: usize,
    /// Numbers of the free slots: the first `left`.
    free: Box<[Cell<u32>]>,
    left: Cell<usize>,
    kept: Cell<u32>,
    most_kept: u32,
    pool: Arc<RecvDescPool>,
}

impl Slots {
    pub(super) fn new(seg_size: usize, depth: u32) -> Result<Self, MemError> {
        let slot_len = (seg_size + OFFSET).next_multiple_of(CACHE_LINE);
        let count = 2 * depth;
        let memory = Arc::new(Mapping::new(
            slot_len * count as usize,
            MapOpts { fill: Fill::Lazy, ..MapOpts::default() },
        )?);
        Ok(Slots {
            pool: RecvDescPool::new(count, memory.clone()),
            memory,
            slot_len,
            free: (0..count).rev().map(Cell::new).collect(),
            left: Cell::new(count as usize),
            kept: Cell::new(0),
            most_kept: depth,
        })
    }

    /// A slot to fill.
    // HOT
    #[inline(always)]
    pub(super) fn take(&self) -> Option<TxSlot<'_>> {
        let left = self.left.get().checked_sub(1)?;
        let slot = self.free.get(left)?.get();
        self.left.set(left);
        Some(TxSlot { slots: self, slot })
    }

    /// Takes a slot back from its one holder.
    // HOT
    #[inline(always)]
    fn give(&self, slot: u32) {
        let left = self.left.get();
        self.free[left].set(slot);
        self.left.set(left + 1);
    }

    /// Begins to deliver the message in a slot that was [queued](TxSlot::into_queue), once.
    // HOT
    #[inline(always)]
    pub(super) fn deliver(&self, slot: u32) -> Delivery<'_> {
        Delivery { slots: self, slot, kept: Cell::new(false) }
    }

    /// First byte of a slot.
    // HOT
    #[inline(always)]
    fn at(&self, slot: u32) -> *mut u8 {
        self.memory.as_ptr().wrapping_add(slot as usize * self.slot_len + OFFSET)
    }

    #[cold]
    fn reclaim(&self) {
        let back = self.pool.reclaim(|slot| self.give(slot));
        self.kept.set(self.kept.get() - back);
    }
}

pub(super) struct TxSlot<'a> {
    slots: &'a Slots,
    slot: u32,
}

impl TxSlot<'_> {
    /// Bytes of the slot.
    // HOT
    #[inline(always)]
    pub(super) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: every number of the free list is a slot of the mapping, which starts zeroed; this one was
        // taken, so nobody else has it until it is queued or given back, which ends this borrow.
        unsafe { std::slice::from_raw_parts_mut(self.slots.at(self.slot), self.slots.slot_len - OFFSET) }
    }

    #[inline(always)]
    pub(super) fn number(&self) -> u32 {
        self.slot
    }

    /// The queue has it now.
    // HOT
    #[inline(always)]
    pub(super) fn into_queue(self) {
        std::mem::forget(self);
    }
}

impl Drop for TxSlot<'_> {
    #[cold]
    fn drop(&mut self) {
        self.slots.give(self.slot);
    }
}

pub(super) struct Delivery<'a> {
    slots: &'a Slots,
    slot: u32,
    kept: Cell<bool>,
}

impl Delivery<'_> {
    /// The message's bytes.
    // HOT
    #[inline(always)]
    pub(super) fn bytes(&self, len: usize) -> &[u8] {
        assert!(len <= self.slots.slot_len - OFFSET);
        // SAFETY: the slot lies in the mapping and is longer; it is not written until it is given back, at
        // the end of this delivery or by who keeps the message.
        unsafe { std::slice::from_raw_parts(self.slots.at(self.slot), len) }
    }

    pub(super) fn requeue(self) {
        std::mem::forget(self);
    }
}

impl Keep for Delivery<'_> {
    fn keep(&self, packet: &[u8]) -> RecvDesc {
        let slots = self.slots;
        if slots.kept.get() == slots.most_kept {
            slots.reclaim();
        }
        if slots.kept.get() == slots.most_kept || self.kept.replace(true) {
            return RecvDesc::copied(packet);
        }
        slots.kept.set(slots.kept.get() + 1);
        // SAFETY: the packet lies in the slot, which is not written again before it is taken back by
        // `reclaim`.
        unsafe { slots.pool.lend(self.slot, packet.as_ptr(), packet.len()) }
    }
}

impl Drop for Delivery<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if !self.kept.get() {
            self.slots.give(self.slot);
        }
    }
}
