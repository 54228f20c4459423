//! The only door to atomics, fences and spin hints: `std` normally, `loom` under `--cfg loom`, so that
//! lock-free code written against this module can be checked exhaustively. Used by queues shared between
//! threads or processes. Its one blocking lock is for what slow paths keep beside atomics, so that both are
//! checked together; nothing hot takes it.

mod cell;
mod prefetch;
mod scalar_load;
mod spin;
mod spin_hint;

pub use cell::UnsafeCell;
pub use crossbeam_utils::CachePadded;
pub use prefetch::{load_fence, prefetch_read, prefetch_write};
pub use scalar_load::scalar_load;
pub use spin::{SpinGuard, SpinLock};
pub use spin_hint::SpinHint;

#[cfg(not(loom))]
pub use std::{
    hint,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{
            AtomicBool, AtomicI32, AtomicI64, AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64,
            AtomicUsize, Ordering, fence,
        },
    },
    thread,
};

#[cfg(loom)]
pub use loom::{
    hint,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{
            AtomicBool, AtomicI32, AtomicI64, AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64,
            AtomicUsize, Ordering, fence,
        },
    },
    thread,
};

/// Runs `test` once, or under loom in every interleaving of its threads. Tests that are models are called
/// `loom_...`, or are in a file `loom.rs`: `tests/run loom` asks for them by that name.
#[cfg(not(loom))]
pub fn model(test: impl Fn() + Sync + Send + 'static) {
    test();
}

/// Runs `test` once, or under loom in every interleaving of its threads.
#[cfg(loom)]
pub fn model(test: impl Fn() + Sync + Send + 'static) {
    loom::model(test);
}
