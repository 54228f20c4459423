//! A value that stays with the thread that made it, inside of a type that is for any thread.

#![allow(unsafe_code)]

use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};

/// A value for one thread. Its use in another thread panics; dropped there, it is leaked.
pub struct ThreadBound<T> {
    value: ManuallyDrop<T>,
    thread: u64,
}

/// Number of the calling thread, which no other thread of the process has, also not later. Destructors of
/// thread locals may ask for it.
fn this_thread() -> u64 {
    static COUNT: AtomicU64 = AtomicU64::new(1);
    thread_local! { static NUMBER: Cell<u64> = const { Cell::new(0) } }
    NUMBER.with(|number| {
        if number.get() == 0 {
            number.set(COUNT.fetch_add(1, Ordering::Relaxed));
        }
        number.get()
    })
}

// SAFETY: the value is reached and dropped only in the thread that made it, which each access checks. No two
// threads of a process have the same id, also one after the other.
unsafe impl<T> Send for ThreadBound<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for ThreadBound<T> {}

impl<T> ThreadBound<T> {
    /// Binds a value to the calling thread.
    pub fn new(value: T) -> Self {
        ThreadBound { value: ManuallyDrop::new(value), thread: this_thread() }
    }

    /// Whether the calling thread may use the value.
    pub fn is_here(&self) -> bool {
        self.thread == this_thread()
    }

    /// The value, if the calling thread may use it.
    pub fn here(&self) -> Option<&T> {
        self.is_here().then(|| &*self.value)
    }
}

impl<T> Deref for ThreadBound<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.here().expect("this belongs to one thread, and is used in another")
    }
}

impl<T: Clone> Clone for ThreadBound<T> {
    fn clone(&self) -> Self {
        ThreadBound::new(T::clone(self))
    }
}

impl<T> Drop for ThreadBound<T> {
    fn drop(&mut self) {
        if self.is_here() {
            // SAFETY: dropped once, here, in the thread of the value.
            unsafe { ManuallyDrop::drop(&mut self.value) };
        } else {
            tracing::warn!("leaked a thread-bound value that was dropped in another thread");
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::rc::Rc;
    use std::sync::Arc;

    #[test]
    fn another_thread_neither_uses_nor_drops_it() {
        let value = Rc::new(7);
        let bound = Arc::new(ThreadBound::new(value.clone()));
        assert_eq!(***bound, 7);
        assert!(bound.here().is_some());
        let there = bound.clone();
        assert!(std::thread::spawn(move || there.here().is_none()).join().unwrap());
        let there = bound.clone();
        assert!(std::thread::spawn(move || ***there == 7).join().is_err());
        let bound = Arc::into_inner(bound).unwrap();
        std::thread::spawn(move || drop(bound)).join().unwrap();
        assert_eq!(Rc::strong_count(&value), 2, "leaked");
        // SAFETY: the leaked reference is one of the two; this thread takes it back.
        unsafe { Rc::decrement_strong_count(Rc::as_ptr(&value)) };
    }
}
