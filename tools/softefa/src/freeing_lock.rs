//! A mutex that a verb can take to free an object without waiting for ever. A signal handler that interrupted
//! a verb and calls `exit` runs in the thread that holds the lock; a forked child has no thread that would
//! release what another thread of its parent held.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

/// Longest time that a verb waits to free an object while one holder keeps the lock. Others hold it for
/// microseconds.
const WAIT: Duration = Duration::from_secs(1);
/// Attempts to lock between two looks at the clock.
const SPINS: u32 = 64;
/// Looks at the clock before a verb gives up. A process that was stopped for long has looked only once.
const LOOKS: u32 = 256;

pub struct FreeingLock<T> {
    value: Mutex<T>,
    /// How often the lock was taken, written by its holder only. It tells a lock that many threads want from
    /// one that nobody will release.
    taken: AtomicU32,
    /// The lock could not be had to free an object: whatever is left goes with the process.
    abandoned: AtomicBool,
}

impl<T> FreeingLock<T> {
    pub fn new(value: T) -> FreeingLock<T> {
        FreeingLock { value: Mutex::new(value), taken: AtomicU32::new(0), abandoned: AtomicBool::new(false) }
    }

    // HOT
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        // A panic in a verb ends the process, so nobody sees a poisoned lock.
        let value = self.value.lock().unwrap_or_else(PoisonError::into_inner);
        self.note_taken();
        value
    }

    #[inline]
    fn note_taken(&self) {
        self.taken.store(self.taken.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let value = match self.value.try_lock() {
            Ok(value) => value,
            Err(TryLockError::Poisoned(value)) => value.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        self.note_taken();
        Some(value)
    }

    /// Locks to free an object; `None` if that would wait for ever. The first caller gives up when one holder
    /// has kept the lock for a second. Later ones do not wait; the kernel frees what they would.
    #[cold]
    pub fn lock_to_free(&self) -> Option<MutexGuard<'_, T>> {
        let (mut holder, mut since, mut looks) = (None, Instant::now(), 0);
        loop {
            for _ in 0..SPINS {
                if let Some(value) = self.try_lock() {
                    return Some(value);
                }
                std::hint::spin_loop();
            }
            if self.abandoned.load(Ordering::Relaxed) {
                return None;
            }
            let taken = Some(self.taken.load(Ordering::Relaxed));
            if holder != taken {
                (holder, since, looks) = (taken, Instant::now(), 0);
            }
            looks += 1;
            if looks >= LOOKS && since.elapsed() >= WAIT {
                self.abandoned.store(true, Ordering::Relaxed);
                return None;
            }
            thread::yield_now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_that_many_take_in_turn_is_waited_for() {
        let lock = FreeingLock::new(());
        let mut longest = Duration::ZERO;
        let has_waited = thread::scope(|scope| {
            let held = lock.lock();
            let waiter = scope.spawn(|| lock.lock_to_free().is_some());
            // As if it went from one to the next, so fast that the waiter never sees it free.
            for _ in 0..20 {
                let start = Instant::now();
                thread::sleep(WAIT / 10);
                lock.note_taken();
                longest = longest.max(start.elapsed());
            }
            drop(held);
            waiter.join().expect("it ends")
        });
        // A machine that pauses keeps the lock in one hand for too long.
        let is_right = has_waited && !lock.abandoned.load(Ordering::Relaxed);
        assert!(is_right || longest >= WAIT / 2, "gave up while the lock changed hands: {longest:?}");
    }

    #[test]
    fn a_lock_that_its_holder_keeps_is_given_up() {
        let lock = FreeingLock::new(());
        let _held = lock.lock();
        let begun = Instant::now();
        assert!(lock.lock_to_free().is_none());
        assert!(begun.elapsed() >= WAIT);
        assert!(lock.abandoned.load(Ordering::Relaxed), "later callers do not wait");
    }
}
