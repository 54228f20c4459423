//! Data with callbacks of running `*_raw` operations: kept at one address, and finished exactly once.

#![allow(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::ffi::c_void;
use std::ptr::NonNull;

use crate::api::core::requests::{Callback, Ended, RequestId};
use crate::api::data::bound::Bound;
use crate::api::data::strided::StridedIov;

use crate::rdm::GenericOps;

const MAX_SPARE: usize = 64;

/// Data of one operation.
pub(crate) struct DataOp {
    /// With the state of [`StridedIov::OPS`].
    pub(crate) bound: Bound<StridedIov>,
    done: Option<Callback>,
    owner: NonNull<DataOps>,
    /// Position in [`DataOps::running`].
    at: Cell<usize>,
}

/// Data of the running operations of a worker. Dropped after the engine; finishes what is left.
#[derive(Default)]
pub(crate) struct DataOps {
    /// From [`Box::leak`].
    running: RefCell<Vec<NonNull<DataOp>>>,
    /// As above.
    spare: RefCell<Vec<NonNull<DataOp>>>,
}

/// State of the callbacks of a new operation.
pub(crate) enum DataState {
    /// The program's.
    Generic(*mut c_void),
    /// Copied into the operation.
    Strided(StridedIov),
}

impl DataOps {
    /// Registers the data of an operation that is about to start. Returns it, and the callback with which the
    /// operation has to start. [`DataOps::end`] ends it if the operation ends within the call.
    /// # Safety
    /// Until the operation ends or `self` is dropped, the callbacks may be called with the state. `self`
    /// keeps its address as long, and outlives the engine that runs the operation.
    pub(crate) unsafe fn begin(
        &self,
        ops: GenericOps,
        state: DataState,
        len: usize,
        done: Option<Callback>,
    ) -> (NonNull<DataOp>, Callback) {
        let spare = self.spare.borrow_mut().pop();
        let mut at = spare.unwrap_or_else(|| {
            let bound = Bound::new(StridedIov::default());
            let op = DataOp { bound, done: None, owner: NonNull::from_ref(self), at: Cell::new(0) };
            NonNull::from_mut(Box::leak(Box::new(op)))
        });
        let mut running = self.running.borrow_mut();
        // SAFETY: a spare or new operation, which nobody else uses.
        let op = unsafe { at.as_mut() };
        op.done = done;
        op.at.set(running.len());
        let foreign = match state {
            DataState::Generic(state) => Some(state),
            DataState::Strided(blocks) => {
                op.bound.state = blocks;
                None
            }
        };
        // SAFETY: this function's contract; the operation is boxed.
        unsafe { op.bound.bind(ops, foreign, len) };
        running.push(at);
        (at, Callback::new(on_done, at.as_ptr().cast()))
    }

    /// Has only the data finished at the end of the operation whose callback `call` is, and nothing of the
    /// program called. False: it is of no operation of these.
    pub(crate) fn forget_done(&self, call: Callback) -> bool {
        let running = self.running.borrow();
        let Some(mut at) = running.iter().copied().find(|at| at.as_ptr().cast() == call.arg) else {
            return false;
        };
        // SAFETY: running operations are alive, and nobody else uses this one within the call.
        unsafe { at.as_mut() }.done = None;
        true
    }

    /// Calls `finish` and recycles the operation. Returns the callback of the program.
    /// # Safety
    /// `op` comes from `begin` and has not ended before; the engine no longer uses it.
    pub(crate) unsafe fn end(&self, mut at: NonNull<DataOp>) -> Option<Callback> {
        // SAFETY: the caller's contract: alive, and used by nobody else.
        let op = unsafe { at.as_mut() };
        let mut running = self.running.borrow_mut();
        let index = op.at.get();
        running.swap_remove(index);
        if let Some(moved) = running.get(index) {
            // SAFETY: running operations are alive.
            unsafe { moved.as_ref() }.at.set(index);
        }
        drop(running);
        let done = op.done.take();
        // SAFETY: the data is bound.
        let data = unsafe { op.bound.data().as_ref() };
        // SAFETY: the operation has left the list, so this is the only call.
        unsafe { data.finish() };
        let mut spare = self.spare.borrow_mut();
        if spare.len() < MAX_SPARE {
            spare.push(at);
        } else {
            drop(spare);
            // SAFETY: leaked by `begin`, and in no list any more.
            drop(unsafe { Box::from_raw(at.as_ptr()) });
        }
        done
    }
}

impl Drop for DataOps {
    fn drop(&mut self) {
        while let Some(op) = self.last_running() {
            // SAFETY: still running, and the engine is gone.
            unsafe { self.end(op) };
        }
        for op in self.spare.get_mut().drain(..) {
            // SAFETY: leaked by `begin`, and in no other list.
            drop(unsafe { Box::from_raw(op.as_ptr()) });
        }
    }
}

impl DataOps {
    fn last_running(&self) -> Option<NonNull<DataOp>> {
        self.running.borrow().last().copied()
    }
}

/// Finishes the data, then calls the callback of the program. Safety: `arg` is a running [`DataOp`].
unsafe fn on_done(arg: *mut (), request: RequestId, ended: Ended) {
    let op = NonNull::new(arg.cast::<DataOp>()).expect("`begin` passes an operation");
    // SAFETY: running, so alive.
    let owner = unsafe { op.as_ref() }.owner;
    // SAFETY: the callback runs in a progress call of the worker that has the owner.
    let owner = unsafe { owner.as_ref() };
    // SAFETY: a request calls its callback once, when its operation has ended.
    if let Some(done) = unsafe { owner.end(op) } {
        // SAFETY: the contract of the `*_raw` call permits one call with this argument.
        unsafe { (done.fun)(done.arg, request, ended) };
    }
}
