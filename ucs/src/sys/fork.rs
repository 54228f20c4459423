//! Notice of a fork without a check on the hot path: in the child, words that owners have named get a value
//! that makes their next slow check come at once.

#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// A word that gets a value in forked children, until this is dropped.
#[derive(Debug)]
pub struct ForkNotice {
    word: *mut u32,
}

struct Registry {
    /// Held across a fork, so that the child finds the list whole. Never held for long.
    is_locked: AtomicBool,
    words: UnsafeCell<Vec<(*mut u32, u32)>>,
}

// SAFETY: the list is reached with `is_locked` held only; the words are written in a child of one thread.
unsafe impl Sync for Registry {}

static REGISTRY: Registry =
    Registry { is_locked: AtomicBool::new(false), words: UnsafeCell::new(Vec::new()) };
static FORKS: AtomicU32 = AtomicU32::new(0);

/// How many forks lie between the first process of this memory and the calling one.
pub fn generation() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

fn lock() {
    while REGISTRY.is_locked.swap(true, Ordering::Acquire) {
        std::thread::yield_now();
    }
}

fn unlock() {
    REGISTRY.is_locked.store(false, Ordering::Release);
}

extern "C" fn before_fork() {
    lock();
}

extern "C" fn after_fork_in_parent() {
    unlock();
}

extern "C" fn after_fork_in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    // SAFETY: the lock is held since before the fork.
    let words = unsafe { &*REGISTRY.words.get() };
    for &(word, value) in words {
        // SAFETY: each word is valid until its notice is dropped, and no other thread is left in this process
        // that could use it.
        unsafe { word.write(value) };
    }
    unlock();
}

impl ForkNotice {
    /// Has `word` set to `value` in every child that is forked from now on.
    /// # Safety
    /// `word` is valid for writes until the notice is dropped, and code that runs in a child right after the
    /// fork holds no reference to it.
    pub unsafe fn new(word: *mut u32, value: u32) -> ForkNotice {
        static HANDLERS: Once = Once::new();
        HANDLERS.call_once(|| {
            let (before, parent, child) = (before_fork, after_fork_in_parent, after_fork_in_child);
            // SAFETY: the handlers live as long as the program. An error means no memory: forks go unnoticed.
            let _ = unsafe { libc::pthread_atfork(Some(before), Some(parent), Some(child)) };
        });
        lock();
        // SAFETY: the lock is held.
        unsafe { (*REGISTRY.words.get()).push((word, value)) };
        unlock();
        ForkNotice { word }
    }
}

impl Drop for ForkNotice {
    fn drop(&mut self) {
        lock();
        // SAFETY: the lock is held.
        let words = unsafe { &mut *REGISTRY.words.get() };
        if let Some(at) = words.iter().position(|(word, _)| *word == self.word) {
            words.swap_remove(at);
        }
        unlock();
    }
}

#[cfg(all(test, not(loom)))]
#[allow(clippy::multiple_unsafe_ops_per_block)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_set_in_children_only() {
        let (named, dropped) = (Box::into_raw(Box::new(5)), Box::into_raw(Box::new(5)));
        // SAFETY: the words live until the notices are dropped; nothing refers to them during the fork.
        let (notice, other) = unsafe { (ForkNotice::new(named, 1), ForkNotice::new(dropped, 1)) };
        drop(other);
        let before = generation();
        // SAFETY: the child reads its memory and ends; it takes no lock.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: the words are valid, and this is the only thread.
            let words = unsafe { (named.read(), dropped.read()) };
            let is_right = words == (1, 5) && generation() == before + 1;
            // SAFETY: ends the process at once.
            unsafe { libc::_exit(i32::from(!is_right)) };
        }
        let mut status = -1;
        // SAFETY: waits for our own child.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0);
        drop(notice);
        // SAFETY: both came from boxes, and nothing else names them any more.
        let words = unsafe { (*Box::from_raw(named), *Box::from_raw(dropped)) };
        assert_eq!((words, generation()), ((5, 5), before));
    }
}
