//! Counts of what peers have done with one region by packets, which all workers of a context keep together.

use std::sync::atomic::{AtomicU64, Ordering};

/// Number of operations of peers on a region.
#[derive(Debug, Default)]
pub struct RegionCounts {
    reads: AtomicU64,
    writes: AtomicU64,
}

impl RegionCounts {
    /// Counts an operation.
    pub(super) fn add(&self, is_read: bool) {
        (if is_read { &self.reads } else { &self.writes }).fetch_add(1, Ordering::Release);
    }

    /// Reads, and atomic operations with a result.
    pub fn reads(&self) -> u64 {
        self.reads.load(Ordering::Acquire)
    }

    /// Writes, and atomic operations without one.
    pub fn writes(&self) -> u64 {
        self.writes.load(Ordering::Acquire)
    }
}
