//! Atomics, fences, locks and spin hints: `std`, or `loom` under `--cfg loom` for exhaustive checks. The
//! blocking spin lock is for slow paths; the recursive lock is that of what threads share by their mode, and
//! the leader group is that of the threads that wait for it.

mod cell;
mod copy_once;
mod leader;
mod prefetch;
mod rcu;
mod recursive_lock;
mod scalar_load;
mod spin;
mod spin_hint;

pub use cell::UnsafeCell;
pub use copy_once::copy_once;
pub use crossbeam_utils::CachePadded;
pub use leader::{Follower, LeaderGroup};
pub use prefetch::{load_fence, prefetch_read, prefetch_write};
pub use rcu::{Rcu, RcuReader};
pub use recursive_lock::{
    LockError, LockResult, RecursiveGuard, RecursiveLock, ThreadKey, ThreadMode, this_thread,
};
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

/// Runs `test` once, or under loom in every interleaving. Models are named `loom_...` or lie in a `loom.rs`.
#[cfg(not(loom))]
pub fn model(test: impl Fn() + Sync + Send + 'static) {
    test();
}

/// Runs `test` once, or under loom in every interleaving of its threads.
#[cfg(loom)]
pub fn model(test: impl Fn() + Sync + Send + 'static) {
    loom::model(test);
}

/// As [`model`], with at most so many preemptions in each interleaving, for models of more than two threads.
#[cfg(not(loom))]
pub fn model_bounded(_preemptions: usize, test: impl Fn() + Sync + Send + 'static) {
    test();
}

/// As [`model`], with at most so many preemptions in each interleaving.
#[cfg(loom)]
pub fn model_bounded(preemptions: usize, test: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(test);
}
