//! The only door to atomics, fences and spin hints: `std` normally, `loom` under `--cfg loom`, so that lock-free
//! code written against this module can be checked exhaustively.
//! Used by queues shared between threads or processes. Its one blocking lock is for what slow paths keep beside atomics, so
//! that both are checked together; nothing hot takes it.

mod apart;
mod cell;
mod lull;
mod prefetch;
mod spin;

pub use apart::apart;
pub use cell::UnsafeCell;
pub use crossbeam_utils::CachePadded;
pub use lull::Lull;
pub use prefetch::{prefetch_read, prefetch_write, settle_loads};
pub use spin::{SpinGuard, SpinLock};

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

/// Runs `test` once, or under loom in every interleaving of its threads. Tests that are models are called `loom_...`, or are in
/// a file `loom.rs`: `tests/run loom` asks for them by that name.
#[cfg(not(loom))]
pub fn model(test: impl Fn() + Sync + Send + 'static) {
    test();
}

/// Runs `test` once, or under loom in every interleaving of its threads.
#[cfg(loom)]
pub fn model(test: impl Fn() + Sync + Send + 'static) {
    loom::model(test);
}
