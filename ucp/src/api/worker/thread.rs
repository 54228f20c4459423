//! Worker on its own thread: serves peers while the program computes, and runs jobs of other threads.

use std::any::Any;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel, sync_channel};
use std::thread::{self, JoinHandle, ThreadId};

use ucs::sys::proc;

use crate::api::worker::handle::Worker;
use crate::api::worker::signal::WorkerSignal;

const SPINS_BEFORE_SLEEP: u32 = 1000;

type Panic = Box<dyn Any + Send>;
type Job<T> = Box<dyn FnOnce(&Worker, &mut T) + Send>;

/// Worker that makes progress on its own thread, with its endpoints, memory and requests. Operations that
/// need the target's processor (see `docs/ucp.md`) proceed while the program computes. Sleeps when idle.
///
/// The worker stays on its thread and need not be `Send`: `make` creates it there, and [`run`](Self::run)
/// runs jobs there. The handle is `Send` and `Sync`.
/// ```no_run
/// use ucp::{Access, Context, WorkerThread};
///
/// let served = WorkerThread::spawn("served", || {
///     let worker = Context::new()?.worker()?;
///     let mem = worker.mem_alloc(4096, Access::all())?;
///     Ok::<_, Box<dyn std::error::Error + Send + Sync>>((worker, mem))
/// })?;
/// let (address, rkey) = served.run(|worker, mem| (worker.address().pack(), mem.pack_rkey()))?;
/// // Peers with these may now put, get, add and swap, whatever this thread does.
/// # let _ = (address, rkey);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "dropping the handle ends the thread and its worker"]
pub struct WorkerThread<T> {
    jobs: Option<Sender<Job<T>>>,
    signal: WorkerSignal,
    id: ThreadId,
    thread: Option<JoinHandle<()>>,
    /// Process of the thread.
    pid: u32,
}

/// Error of [`WorkerThread::spawn`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SpawnError<E> {
    /// The system could not provide a thread or descriptor.
    #[error("cannot start a worker's thread: {0}")]
    Sys(#[from] io::Error),
    /// The worker could not be created.
    #[error("cannot make the thread's worker: {0}")]
    Make(E),
}

/// Error of running a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JobError {
    /// The thread has ended: a posted job, a callback or a handler panicked.
    #[error("the worker's thread has ended")]
    Ended,
    /// The calling thread is the worker's own, which would wait for itself.
    #[error("a job cannot wait for another one of its own thread")]
    OwnThread,
}

impl<T: 'static> WorkerThread<T> {
    /// Starts a thread that makes a worker and serves it until the handle drops. Propagates panics of `make`.
    pub fn spawn<E: Send + 'static>(
        name: &str,
        make: impl FnOnce() -> Result<(Worker, T), E> + Send + 'static,
    ) -> Result<Self, SpawnError<E>> {
        let (jobs, queue) = channel();
        let (ready_tx, ready_rx) = sync_channel(1);
        let body = move || {
            let ready = make().map_err(SpawnError::Make).and_then(|(worker, state)| {
                let signal = worker.signaller().map_err(io::Error::from)?;
                Ok((worker, state, signal))
            });
            match ready {
                Ok((worker, state, signal)) => {
                    _ = ready_tx.send(Ok(signal));
                    serve(&worker, state, &queue);
                }
                Err(e) => _ = ready_tx.send(Err(e)),
            }
        };
        let thread = thread::Builder::new().name(name.to_owned()).spawn(body)?;
        let id = thread.thread().id();
        match ready_rx.recv() {
            Ok(Ok(signal)) => {
                Ok(WorkerThread { jobs: Some(jobs), signal, id, thread: Some(thread), pid: proc::pid() })
            }
            Ok(Err(e)) => Err(e),
            Err(_) => match thread.join() {
                Err(panic) => resume_unwind(panic),
                Ok(()) => unreachable!("the thread reports before it ends"),
            },
        }
    }

    /// Runs `f` on the worker's thread and returns its result; only waits inside `f` make progress meanwhile.
    /// Propagates a panic of `f`; the thread continues.
    pub fn run<R: Send + 'static>(
        &self,
        f: impl FnOnce(&Worker, &mut T) -> R + Send + 'static,
    ) -> Result<R, JobError> {
        if thread::current().id() == self.id {
            return Err(JobError::OwnThread);
        }
        let (result_tx, result_rx) = sync_channel::<Result<R, Panic>>(1);
        self.post(move |worker, state| {
            let done = catch_unwind(AssertUnwindSafe(|| f(worker, state)));
            _ = result_tx.send(done);
        })?;
        match result_rx.recv() {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(panic)) => resume_unwind(panic),
            Err(_) => Err(JobError::Ended),
        }
    }

    /// Queues `f` for the worker's thread without waiting. Jobs of one thread run in order. A panic of `f`
    /// ends the thread; [`WorkerThread::join`] reports it.
    pub fn post(&self, f: impl FnOnce(&Worker, &mut T) + Send + 'static) -> Result<(), JobError> {
        let jobs = self.jobs.as_ref().ok_or(JobError::Ended)?;
        jobs.send(Box::new(f)).map_err(|_| JobError::Ended)?;
        self.signal.signal();
        Ok(())
    }

    /// Ends the thread after its queued jobs and drops the worker. Propagates a panic that ended the thread.
    pub fn join(mut self) {
        if let Err(panic) = self.end() {
            resume_unwind(panic);
        }
    }
}

impl<T> WorkerThread<T> {
    fn end(&mut self) -> Result<(), Panic> {
        if self.pid != proc::pid() {
            // A forked child has no such thread, and shares the descriptor with its parent. Locks of the
            // queue may be held for ever.
            std::mem::forget((self.jobs.take(), self.thread.take()));
            return Ok(());
        }
        self.jobs = None;
        self.signal.signal();
        match self.thread.take() {
            // A job may drop the handle of its own thread, which then ends after the job.
            Some(thread) if thread.thread().id() != thread::current().id() => thread.join(),
            _ => Ok(()),
        }
    }
}

impl<T> Drop for WorkerThread<T> {
    fn drop(&mut self) {
        if self.end().is_err() {
            tracing::warn!("a worker's thread has panicked");
        }
    }
}

fn serve<T>(worker: &Worker, mut state: T, jobs: &Receiver<Job<T>>) {
    let mut idle = 0;
    loop {
        match jobs.try_recv() {
            Ok(job) => {
                job(worker, &mut state);
                idle = 0;
            }
            Err(TryRecvError::Disconnected) => {
                drop(state);
                // No handle leaves the thread: handlers that hold one would keep the worker for ever.
                return worker.close();
            }
            Err(TryRecvError::Empty) => {}
        }
        if worker.progress() > 0 {
            idle = 0;
            continue;
        }
        idle += 1;
        if idle < SPINS_BEFORE_SLEEP {
            std::hint::spin_loop();
            continue;
        }
        idle = 0;
        // Jobs posted so far have signalled; later ones signal again.
        if worker.wait(None).is_err() {
            thread::yield_now();
        }
    }
}

#[cfg(all(test, feature = "lanes"))]
mod tests {
    use super::*;
    use crate::Context;

    #[test]
    fn a_forked_child_does_not_wait_for_the_thread_of_its_parent() {
        let make = || {
            let context = Context::configured(ucs::config::Source::empty().with("UCX_TLS", "posix"));
            Ok::<_, std::convert::Infallible>((context.unwrap().worker().unwrap(), 7))
        };
        let served = ucs::testing::drop_in_child(WorkerThread::spawn("served", make).unwrap());
        assert_eq!(served.run(|_, seven| *seven).unwrap(), 7);
    }
}
