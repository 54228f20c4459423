//! A lock that one C function takes and another releases: a batch of work requests, an extended poll.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, Ordering};

/// A value for the holder of the lock only.
pub struct SplitLock<T> {
    locked: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached only between `lock` and `unlock` (contract of `value`), by one thread at a
// time.
unsafe impl<T: Send> Sync for SplitLock<T> {}

/// Spins before a waiter yields.
const SPINS: u32 = 64;

impl<T> SplitLock<T> {
    pub const fn new(value: T) -> Self {
        SplitLock { locked: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    // HOT
    #[inline]
    pub fn lock(&self) {
        let mut spins = 0;
        // SYNC(held): acquire pairs with the release in `unlock`.
        while self.locked.compare_exchange_weak(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
            spins += 1;
            if spins % SPINS == 0 {
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        }
    }

    #[inline]
    pub fn unlock(&self) {
        self.locked.store(false, Ordering::Release);
    }

    /// The value. Unsafe: the lock is held, and the reference dropped before unlock or another call.
    #[inline]
    #[allow(clippy::mut_from_ref, reason = "the flag makes it exclusive")]
    pub unsafe fn value(&self) -> &mut T {
        // SAFETY: exclusive by this function's contract.
        unsafe { &mut *self.value.get() }
    }
}
