//! Receive buffers: posted in batches, lent to handlers, and kept by them while there are spares.

#![allow(unsafe_code)]

use super::buffers::Buffers;
use super::dev::{Dev, DevMr, DevQp};
use crate::api::{Access, Error, Keep, RecvDesc};
use crate::base::recv_desc::RecvDescPool;
use std::cell::{Cell, RefCell};
use std::sync::Arc;

/// Receives posted with one doorbell, unless the queue is short.
const BATCH: u32 = 16;

/// The buffers; their memory outlives the interface while messages are kept.
struct Pool<M> {
    buffers: Buffers<M>,
    free: RefCell<Vec<u32>>,
    kept: Cell<u32>,
    spare: u32,
    /// `None`: the memory cannot outlive its registration, so keeping copies.
    lent: Option<Arc<RecvDescPool>>,
}

pub(super) struct Rx<M> {
    pool: Pool<M>,
    depth: u32,
    posted: Cell<u32>,
    batch: u32,
    closed: Cell<bool>,
}

/// A buffer between device and handler; returns to the pool when dropped, unless kept.
pub(super) struct RecvBuffer<'a, M: DevMr + 'static> {
    pool: &'a Pool<M>,
    slot: u32,
    kept: Cell<bool>,
}

impl<M: DevMr + 'static> Rx<M> {
    /// Allocates buffers of `slot_len` bytes for `depth` receives and `spare` kept messages.
    pub(super) fn new<D: Dev<Mr = M>>(
        dev: &D,
        pd: &D::Pd,
        slot_len: usize,
        depth: u32,
        spare: u32,
    ) -> Result<Self, Error> {
        let count = depth + spare;
        let buffers = Buffers::new(dev, pd, slot_len, count, Access::LOCAL_READ | Access::LOCAL_WRITE)?;
        let free = RefCell::new((0..count).rev().collect());
        let lent = buffers.backing().map(|memory| RecvDescPool::new(count, memory));
        let pool = Pool { buffers, free, kept: Cell::new(0), spare, lent };
        let batch = (depth / 4).clamp(1, BATCH);
        Ok(Rx { pool, depth, posted: Cell::new(0), batch, closed: Cell::new(false) })
    }

    /// Takes the buffer of a completed receive.
    // HOT
    #[inline]
    pub(super) fn take(&self, wr_id: u64) -> RecvBuffer<'_, M> {
        self.posted.set(self.posted.get() - 1);
        RecvBuffer { pool: &self.pool, slot: wr_id as u32, kept: Cell::new(false) }
    }

    /// Undoes [`Rx::take`]: the message stays received.
    #[inline]
    pub(super) fn put_back(&self, buffer: RecvBuffer<'_, M>) {
        self.posted.set(self.posted.get() + 1);
        buffer.kept.set(true);
    }

    /// Stops posting after the queue pair failed: a new receive would be flushed ahead of earlier arrivals.
    pub(super) fn close(&self) {
        self.closed.set(true);
    }

    /// Whether receives are missing that may be posted.
    // HOT
    #[inline]
    pub(super) fn needs_refill(&self) -> bool {
        self.posted.get() < self.depth && !self.closed.get()
    }

    /// Posts the missing receives if they fill a batch.
    // HOT
    #[inline]
    pub(super) fn refill_batch<Q: DevQp>(&self, qp: &Q) {
        if self.depth - self.posted.get() >= self.batch {
            self.refill(qp);
        }
    }

    #[inline]
    pub(super) fn refill<Q: DevQp>(&self, qp: &Q) {
        if self.posted.get() < self.depth {
            self.post_all_missing(qp);
        }
    }

    fn post_all_missing<Q: DevQp>(&self, qp: &Q) {
        if self.closed.get() {
            return;
        }
        let mut free = self.pool.free.borrow_mut();
        let before = self.posted.get();
        while self.posted.get() < self.depth {
            let Some(&slot) = free.last() else { break };
            let sge = self.pool.buffers.sge(slot, self.pool.buffers.slot_len());
            if qp.recv(u64::from(slot), sge).is_err() {
                break;
            }
            free.pop();
            self.posted.set(self.posted.get() + 1);
        }
        if self.posted.get() != before {
            qp.ring_doorbell();
        }
    }
}

impl<M: DevMr + 'static> RecvBuffer<'_, M> {
    // HOT
    #[inline]
    pub(super) fn bytes(&self, len: usize) -> &[u8] {
        let len = len.min(self.pool.buffers.slot_len());
        // SAFETY: the slot is posted again only after `self` is dropped. A sender on this host that still
        // writes to it is tolerated: readers read each field once (see `api::Am`).
        unsafe { self.pool.buffers.bytes(self.slot, len) }
    }
}

impl<M: DevMr + 'static> Keep for RecvBuffer<'_, M> {
    fn keep(&self, packet: &[u8]) -> RecvDesc {
        let pool = self.pool;
        let Some(lent) = &pool.lent else { return RecvDesc::copied(packet) };
        if pool.kept.get() == pool.spare {
            let reclaimed = lent.reclaim(|slot| pool.free.borrow_mut().push(slot));
            pool.kept.set(pool.kept.get() - reclaimed);
        }
        if pool.kept.get() == pool.spare || self.kept.replace(true) {
            return RecvDesc::copied(packet);
        }
        pool.kept.set(pool.kept.get() + 1);
        // SAFETY: the packet lies in the slot, which is not posted again before it has come back.
        unsafe { lent.lend(self.slot, packet.as_ptr(), packet.len()) }
    }
}

impl<M: DevMr + 'static> Drop for RecvBuffer<'_, M> {
    #[inline]
    fn drop(&mut self) {
        if !self.kept.get() {
            self.pool.free.borrow_mut().push(self.slot);
        }
    }
}
