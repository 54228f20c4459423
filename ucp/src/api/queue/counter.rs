//! Counters of operations that have ended.

#![allow(unsafe_code)]

use std::any::Any;
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use ucs::time::Nanos;

use crate::api::core::error::Error;
use crate::api::core::requests::{CallAt, Callback, Ended, OpStatus, RequestId};
use crate::api::worker::handle::Worker;

use super::completion::IntoStatus;

/// Counts operations of one worker that have ended, without an entry for each, as a counter of libfabric
/// does. Programs that put or get many pieces wait for a number of them.
///
/// ```no_run
/// # use ucp::{Ep, Error, Rkey, Worker};
/// static WORDS: [u64; 8] = [7; 8];
/// # unsafe fn f(worker: &Worker, ep: &Ep, rkey: &Rkey, to: u64) -> Result<(), Error> {
/// let puts = ucp::Counter::new(worker);
/// for word in &WORDS {
///     puts.track(ep.put_raw(std::ptr::from_ref(word).cast(), 8, to, rkey, &Default::default()))?;
/// }
/// puts.wait(8)?;
/// # Ok(())
/// # }
/// ```
/// Operations that wait for a value are held by [`Triggers`](crate::Triggers):
/// `triggers.take_due(counter.value())`. Dropping a counter lets its operations go on. A counter keeps its
/// worker, as an endpoint does.
pub struct Counter {
    worker: Worker,
    counts: Rc<Counts>,
}

#[derive(Default)]
struct Counts {
    value: Cell<u64>,
    errors: Cell<u64>,
    running: Cell<u64>,
    last_error: Cell<Option<Error>>,
}

impl Counts {
    // HOT
    #[inline]
    fn note(&self, ended: Result<(), Error>) {
        match ended {
            Ok(()) => self.value.set(self.value.get().wrapping_add(1)),
            Err(error) => {
                self.errors.set(self.errors.get().wrapping_add(1));
                self.last_error.set(Some(error));
            }
        }
    }
}

/// Counts the end of an operation.
/// # Safety
/// `arg` is counts that the worker of the operation keeps.
// HOT
unsafe fn on_end(arg: *mut (), _: RequestId, ended: Ended) {
    // SAFETY: this function's contract.
    let counts = unsafe { &*arg.cast_const().cast::<Counts>() };
    counts.running.set(counts.running.get() - 1);
    counts.note(ended.map(drop));
}

impl Counter {
    /// Makes a counter of operations of a worker, which begins with zero.
    pub fn new(worker: &Worker) -> Counter {
        let counts = Rc::<Counts>::default();
        // Operations of counters that are gone may still run.
        let is_needed = |kept: &Rc<dyn Any>| {
            let counts = kept.downcast_ref::<Counts>();
            Rc::strong_count(kept) > 1 || counts.is_some_and(|counts| counts.running.get() > 0)
        };
        let mut all = worker.inner.counts.borrow_mut();
        if all.len() == all.capacity() {
            all.retain(is_needed);
        }
        all.push(counts.clone());
        drop(all);
        Counter { worker: worker.clone(), counts }
    }

    /// Counts what a raw call has started, when it ends, and takes its request over, which the program does
    /// not use any more. An error that the call returned is counted, too. The memory of the operation stays
    /// the program's, as the raw call says.
    ///
    /// [`Error::Invalid`], with nothing counted: the operation has a callback (also one of data that
    /// callbacks pack or unpack), or this worker does not know it. It goes on.
    // HOT
    #[inline]
    pub fn track<T: IntoStatus>(&self, started: Result<OpStatus<T>, Error>) -> Result<(), Error> {
        let id = match started {
            Ok(OpStatus::InProgress(id)) => id,
            ended => {
                self.counts.note(ended.map(drop));
                return Ok(());
            }
        };
        let mut core = self.worker.core_keep_idle();
        if let Some(ended) = core.reqs.take(id) {
            self.counts.note(ended.map(drop));
            return Ok(());
        }
        let arg = Rc::as_ptr(&self.counts);
        let done = Callback { fun: on_end, arg: arg.cast_mut().cast(), at: CallAt::End };
        let Some(before) = core.reqs.set_raw_callback(id, done) else { return Err(Error::Invalid) };
        self.counts.running.set(self.counts.running.get() + 1);
        drop(core);
        // The waker is the program's, and may use the worker.
        drop(before);
        Ok(())
    }

    /// Operations that have ended well, and what the program has added.
    // HOT
    #[inline]
    pub fn value(&self) -> u64 {
        self.counts.value.get()
    }

    /// Operations that have failed.
    pub fn errors(&self) -> u64 {
        self.counts.errors.get()
    }

    /// Operations that run.
    pub fn running(&self) -> u64 {
        self.counts.running.get()
    }

    /// The error of the operation that has failed last.
    pub fn last_error(&self) -> Option<Error> {
        self.counts.last_error.get()
    }

    /// Adds to the value.
    pub fn add(&self, more: u64) {
        self.counts.value.set(self.value().wrapping_add(more));
    }

    /// Sets the value; errors stay counted.
    pub fn set(&self, value: u64) {
        self.counts.value.set(value);
    }

    /// Forgets the errors that were counted.
    pub fn clear_errors(&self) {
        self.counts.errors.set(0);
        self.counts.last_error.set(None);
    }

    /// Makes progress until the value is at least `value`. If operations have failed, it ends with the last
    /// error when nothing runs any more: their memory is the program's again then.
    ///
    /// What the program adds in a handler raises the value, too; a value that nothing will reach is waited
    /// for without end.
    pub fn wait(&self, value: u64) -> Result<(), Error> {
        self.wait_until(value, Nanos::NEVER)
    }

    /// Waits as [`Counter::wait`], for so long at most: then [`Error::TimedOut`], and operations may still
    /// run.
    pub fn wait_within(&self, value: u64, limit: Duration) -> Result<(), Error> {
        let deadline = self.worker.core().now() + limit;
        self.wait_until(value, deadline)
    }

    fn wait_until(&self, value: u64, deadline: Nanos) -> Result<(), Error> {
        let counts = &self.counts;
        self.worker.run_until(|core| {
            if counts.value.get() >= value {
                return Some(Ok(()));
            }
            match counts.last_error.get() {
                Some(error) if counts.running.get() == 0 => return Some(Err(error)),
                _ => {}
            }
            (deadline != Nanos::NEVER && core.now() >= deadline).then_some(Err(Error::TimedOut(None)))
        })
    }
}
