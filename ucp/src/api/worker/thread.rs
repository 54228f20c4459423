//! A worker on a thread of its own: it serves its peers while the program computes, and does what other threads ask it
//! for. Never shares the worker: what is done with it is done on its thread.

use std::any::Any;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel, sync_channel};
use std::thread::{self, JoinHandle, ThreadId};

use ucs::sys::fd::{Epoll, EventFd};

use crate::api::worker::handle::Worker;

/// Empty progress calls before it sleeps.
const SPIN: u32 = 1000;

type Panic = Box<dyn Any + Send>;
type Job<T> = Box<dyn FnOnce(&Worker, &mut T) + Send>;

/// A worker that makes progress on a thread of its own, with whatever belongs to it: endpoints, memory, requests.
///
/// Some operations need the target's processor: atomics on `efa`, puts and gets by packets, messages that are longer than one
/// packet, active messages (`docs/ucp.md` says which). A program that computes for long without progress would keep its peers
/// waiting; this thread does not. It sleeps when nothing comes, and wakes up for what comes.
///
/// The worker and what belongs to it never leave their thread, so none of it need be `Send`: `make` makes them there, and
/// [`run`](Self::run) goes there. The handle is `Send` and `Sync`.
///
/// ```no_run
/// use ucp::{Access, Context, WorkerThread};
///
/// let served = WorkerThread::spawn("served", || {
///     let worker = Context::new()?.worker()?;
///     let mem = worker.mem_alloc(4096, Access::all())?;
///     Ok::<_, Box<dyn std::error::Error + Send + Sync>>((worker, mem))
/// })?;
/// let (address, rkey) = served.run(|worker, mem| (worker.address().pack(), mem.pack_rkey()))?;
/// // The peers that get these may put, get, add and swap from now on, whatever this thread does.
/// # let _ = (address, rkey);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct WorkerThread<T> {
    /// `None` once it is to end.
    jobs: Option<Sender<Job<T>>>,
    bell: Arc<EventFd>,
    id: ThreadId,
    thread: Option<JoinHandle<()>>,
}

/// Why there is no such thread.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError<E> {
    /// The system has none, or no descriptor for it.
    #[error("cannot start a worker's thread: {0}")]
    Sys(#[from] io::Error),
    /// The worker could not be made.
    #[error("cannot make the thread's worker: {0}")]
    Make(E),
}

/// Why a thread does not do what it was asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum JobError {
    /// It has ended: a posted job, a callback or a handler has panicked.
    #[error("the worker's thread has ended")]
    Ended,
    /// It is the calling thread, which would wait for itself.
    #[error("a job cannot wait for another one of its own thread")]
    OwnThread,
}

impl<T: 'static> WorkerThread<T> {
    /// Starts a thread of this name, which makes a worker and what belongs to it, and serves it until the handle is dropped.
    /// A panic of `make` goes on here.
    pub fn spawn<E: Send + 'static>(
        name: &str,
        make: impl FnOnce() -> Result<(Worker, T), E> + Send + 'static,
    ) -> Result<Self, SpawnError<E>> {
        let bell = Arc::new(EventFd::new().map_err(io::Error::from)?);
        let events = Epoll::new().map_err(io::Error::from)?;
        events.add(&*bell, 0).map_err(io::Error::from)?;
        let (jobs, queue) = channel();
        let (tell, made) = sync_channel(1);
        let heard = bell.clone();
        let body = move || {
            let ready = make().map_err(SpawnError::Make).and_then(|(worker, own)| {
                // A worker that cannot wake anybody does not let itself be armed either, so that nobody sleeps.
                let added = worker.event_fd().map_or(Ok(()), |fd| events.add(fd, 1));
                added.map_err(io::Error::from)?;
                Ok((worker, own))
            });
            // Whoever waits for this holds the other end.
            match ready {
                Ok((worker, own)) => {
                    _ = tell.send(Ok(()));
                    serve(&worker, own, &queue, &events, &heard);
                }
                Err(e) => _ = tell.send(Err(e)),
            }
        };
        let thread = thread::Builder::new().name(name.to_owned()).spawn(body)?;
        let id = thread.thread().id();
        match made.recv() {
            Ok(Ok(())) => Ok(WorkerThread { jobs: Some(jobs), bell, id, thread: Some(thread) }),
            Ok(Err(e)) => Err(e),
            Err(_) => match thread.join() {
                Err(panic) => resume_unwind(panic),
                Ok(()) => unreachable!("it tells before it ends"),
            },
        }
    }

    /// Runs `f` on the worker's thread, between two calls of progress, and waits for what it answers. While it runs, nothing is
    /// served but by itself (a wait of its own makes progress). A panic of `f` goes on here, and the thread goes on too.
    pub fn run<R: Send + 'static>(
        &self,
        f: impl FnOnce(&Worker, &mut T) -> R + Send + 'static,
    ) -> Result<R, JobError> {
        if thread::current().id() == self.id {
            return Err(JobError::OwnThread);
        }
        let (tell, answer) = sync_channel::<Result<R, Panic>>(1);
        self.post(move |worker, own| {
            let done = catch_unwind(AssertUnwindSafe(|| f(worker, own)));
            // Whoever asked waits, or has panicked.
            _ = tell.send(done);
        })?;
        match answer.recv() {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(panic)) => resume_unwind(panic),
            Err(_) => Err(JobError::Ended),
        }
    }

    /// Has `f` run on the worker's thread, and does not wait for it. Jobs are run in the order in which one thread asks for
    /// them. If `f` panics, the thread ends; [`WorkerThread::join`] tells.
    pub fn post(&self, f: impl FnOnce(&Worker, &mut T) + Send + 'static) -> Result<(), JobError> {
        let jobs = self.jobs.as_ref().ok_or(JobError::Ended)?;
        jobs.send(Box::new(f)).map_err(|_| JobError::Ended)?;
        self.ring();
        Ok(())
    }

    /// Ends the thread, when it has done what it was asked for, and drops its worker. A panic that has ended it goes on here.
    pub fn join(mut self) {
        if let Err(panic) = self.end() {
            resume_unwind(panic);
        }
    }
}

impl<T> WorkerThread<T> {
    fn ring(&self) {
        // Fails only for want of the descriptor, which we hold.
        _ = self.bell.signal();
    }

    fn end(&mut self) -> Result<(), Panic> {
        self.jobs = None;
        self.ring();
        match self.thread.take() {
            // A job drops its own thread's handle: it ends after the job.
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

/// Progress and jobs until there is no handle any more.
fn serve<T>(worker: &Worker, mut own: T, jobs: &Receiver<Job<T>>, events: &Epoll, bell: &EventFd) {
    let mut idle = 0;
    loop {
        match jobs.try_recv() {
            Ok(job) => {
                job(worker, &mut own);
                idle = 0;
            }
            Err(TryRecvError::Disconnected) => return,
            Err(TryRecvError::Empty) => {}
        }
        if worker.progress() > 0 {
            idle = 0;
            continue;
        }
        idle += 1;
        if idle < SPIN {
            std::hint::spin_loop();
            continue;
        }
        idle = 0;
        // A job that was posted before this has rung; one that is posted later rings for the next time.
        if worker.wait_on(events, None).is_err() {
            thread::yield_now();
        }
        _ = bell.clear();
    }
}
