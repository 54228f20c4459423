//! Spin lock for short sections between few threads of one process; a dead holder would stop other processes.

#![allow(unsafe_code)]

use std::ops::{Deref, DerefMut};

use super::{AtomicBool, Ordering, UnsafeCell, hint};

/// Mutual exclusion by spinning; yields to the scheduler when the wait is long.
#[derive(Debug)]
pub struct SpinLock<T> {
    taken: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached only by the one thread that set `taken`, so sharing the lock sends T between
// threads.
unsafe impl<T: Send> Sync for SpinLock<T> {}
// SAFETY: the lock owns its T and nothing else.
unsafe impl<T: Send> Send for SpinLock<T> {}

impl<T> SpinLock<T> {
    /// Unlocked.
    pub fn new(value: T) -> SpinLock<T> {
        SpinLock { taken: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// The lock if it is free.
    #[inline]
    pub fn try_lock(&self) -> Option<SpinGuard<'_, T>> {
        // SYNC(spin): acquire pairs with the release in SpinGuard::drop.
        match self.taken.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => Some(SpinGuard { lock: self }),
            Err(_) => None,
        }
    }

    /// Waits for the lock.
    #[inline]
    pub fn lock(&self) -> SpinGuard<'_, T> {
        let mut spins = 0u32;
        loop {
            if let Some(guard) = self.try_lock() {
                return guard;
            }
            spins += 1;
            // The holder may have lost its core to us.
            if spins.is_multiple_of(64) { super::thread::yield_now() } else { hint::spin_loop() }
        }
    }
}

impl<T: Default> Default for SpinLock<T> {
    fn default() -> Self {
        SpinLock::new(T::default())
    }
}

/// Holds a [`SpinLock`]; unlocks on drop.
#[derive(Debug)]
pub struct SpinGuard<'a, T> {
    lock: &'a SpinLock<T>,
}

impl<T> Deref for SpinGuard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        self.lock.value.with(|p| {
            // SAFETY: this guard is the only one of its lock, and &self allows reading only.
            unsafe { &*p }
        })
    }
}

impl<T> DerefMut for SpinGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        self.lock.value.with_mut(|p| {
            // SAFETY: this guard is the only one of its lock, and &mut self excludes other borrows made
            // through it.
            unsafe { &mut *p }
        })
    }
}

impl<T> Drop for SpinGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        // SYNC(spin): release pairs with the acquire in SpinLock::try_lock.
        self.lock.taken.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Arc, model, thread};
    use super::*;

    #[test]
    fn loom_excludes_the_other_thread() {
        const TURNS: u32 = if cfg!(loom) { 1 } else { 10_000 };
        model(|| {
            let lock = Arc::new(SpinLock::new(0u32));
            let other = {
                let lock = Arc::clone(&lock);
                thread::spawn(move || (0..TURNS).for_each(|_| *lock.lock() += 1))
            };
            (0..TURNS).for_each(|_| *lock.lock() += 1);
            other.join().unwrap();
            assert_eq!(*lock.lock(), 2 * TURNS);
        });
    }

    #[test]
    fn loom_try_lock_says_no_while_held() {
        model(|| {
            let lock = SpinLock::new(());
            let held = lock.lock();
            assert!(lock.try_lock().is_none());
            drop(held);
            assert!(lock.try_lock().is_some());
        });
    }
}
