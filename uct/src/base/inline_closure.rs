//! A closure stored inline: unpacks a get that completes later. Boxed only if large.

#![allow(unsafe_code)]

use std::mem::{ManuallyDrop, MaybeUninit};

const WORDS: usize = 6;

type Storage = MaybeUninit<[usize; WORDS]>;

/// A closure that is called at most once, with bytes.
pub struct InlineClosure {
    storage: Storage,
    call: unsafe fn(*mut Storage, &[u8]),
    drop: unsafe fn(*mut Storage),
}

impl InlineClosure {
    /// Moves `f` in, or into a box if it is larger than six words.
    // HOT
    #[inline]
    pub fn new<F: FnOnce(&[u8]) + 'static>(f: F) -> Self {
        if size_of::<F>() <= size_of::<Storage>() && align_of::<F>() <= align_of::<Storage>() {
            InlineClosure::in_place(f, |f, bytes| f(bytes))
        } else {
            InlineClosure::in_place(Box::new(f), |f, bytes| f(bytes))
        }
    }

    #[inline]
    fn in_place<T: 'static, A: FnOnce(T, &[u8]) + Copy + 'static>(value: T, _apply: A) -> Self {
        const { assert!(size_of::<A>() == 0) };
        assert!(size_of::<T>() <= size_of::<Storage>() && align_of::<T>() <= align_of::<Storage>());
        /// # Safety
        /// `room` holds a `T`, which is gone afterwards.
        unsafe fn call<T, A: FnOnce(T, &[u8]) + Copy>(storage: *mut Storage, bytes: &[u8]) {
            // SAFETY: `A` has no size (asserted above), so any aligned address holds one.
            let apply = unsafe { std::ptr::NonNull::<A>::dangling().as_ptr().read() };
            // SAFETY: the caller's promise; the value is moved out.
            let value = unsafe { storage.cast::<T>().read() };
            apply(value, bytes);
        }
        /// # Safety
        /// As for `call`.
        unsafe fn drop<T>(storage: *mut Storage) {
            // SAFETY: the caller's promise.
            unsafe { storage.cast::<T>().drop_in_place() };
        }
        let mut storage = Storage::uninit();
        // SAFETY: size and alignment fit (checked above), and the room is ours.
        unsafe { storage.as_mut_ptr().cast::<T>().write(value) };
        InlineClosure { storage, call: call::<T, A>, drop: drop::<T> }
    }

    /// Calls it.
    #[inline]
    pub fn call(self, bytes: &[u8]) {
        let mut this = ManuallyDrop::new(self);
        let call = this.call;
        // SAFETY: the room holds the closure `call` was made for, and nothing drops it a second time.
        unsafe { call(&raw mut this.storage, bytes) };
    }
}

impl Drop for InlineClosure {
    fn drop(&mut self) {
        // SAFETY: the room holds the closure `drop` was made for; `call` takes the closure with it.
        unsafe { (self.drop)(&raw mut self.storage) };
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::rc::Rc;

    #[test]
    fn closures_of_any_size_run_once_or_are_dropped() {
        let seen = Rc::new(Cell::new(0));
        let (small, large) = (seen.clone(), seen.clone());
        let ballast = [7u64; 20];
        InlineClosure::new(move |bytes: &[u8]| small.set(bytes.len())).call(&[0; 5]);
        assert_eq!((seen.get(), Rc::strong_count(&seen)), (5, 2));
        let closure = InlineClosure::new(move |bytes: &[u8]| large.set(bytes.len() + ballast[3] as usize));
        closure.call(&[0; 5]);
        assert_eq!((seen.get(), Rc::strong_count(&seen)), (12, 1));
        let (small, large) = (seen.clone(), seen.clone());
        drop(InlineClosure::new(move |_: &[u8]| small.set(1)));
        drop(InlineClosure::new(move |_: &[u8]| large.set(ballast.len())));
        assert_eq!((seen.get(), Rc::strong_count(&seen)), (12, 1));
    }
}
