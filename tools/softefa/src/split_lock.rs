//! A lock that one C function takes and another gives back: a send session, a poll session.
//! Used by queue pairs and completion queues. Never held by this library while it runs on its own account.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, Ordering};

/// A value that only the holder of its flag touches.
pub struct SplitLock<T> {
    locked: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached only between `take` and `give` (contract of `value`), that is by one thread at a time.
unsafe impl<T: Send> Sync for SplitLock<T> {}

/// Spins before a waiter lets others run.
const SPINS: u32 = 64;

impl<T> SplitLock<T> {
    pub const fn new(value: T) -> Self {
        SplitLock { locked: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// Waits until nobody holds it, and holds it. // HOT
    #[inline]
    pub fn lock(&self) {
        let mut spins = 0;
        // SYNC(held): acquire pairs with the release in `give`.
        while self.locked.compare_exchange_weak(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
            spins += 1;
            if spins % SPINS == 0 {
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        }
    }

    /// Gives it back.
    #[inline]
    pub fn unlock(&self) {
        self.locked.store(false, Ordering::Release);
    }

    /// The value.
    ///
    /// # Safety
    /// The caller holds it, and drops the reference before it is given back and before it asks again.
    #[inline]
    #[allow(clippy::mut_from_ref, reason = "the flag makes it exclusive")]
    pub unsafe fn value(&self) -> &mut T {
        // SAFETY: exclusive by this function's contract.
        unsafe { &mut *self.value.get() }
    }
}
