//! Refuses a worker that a forked child has inherited: its shared memory and devices are its parent's.

#![allow(unsafe_code)]

use std::cell::RefCell;

use ucs::sys::fork::ForkNotice;

use crate::api::core::worker_core::WorkerCore;

/// Has the next progress in a forked child take the slow path, which refuses it.
pub(crate) fn watch(core: &RefCell<WorkerCore>) -> ForkNotice {
    let core = core.as_ptr();
    // SAFETY: the core is valid here, and no reference is made to it.
    let word = unsafe { &raw mut (*core).calls_to_clock };
    // SAFETY: the worker drops the notice before its core, which does not move. Nothing that borrows the core
    // forks, so no reference is in use right after a fork.
    unsafe { ForkNotice::new(word, 1) }
}
