//! A thread that progresses a shared worker while the program computes; it sleeps when idle.

use std::future::poll_fn;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread::{self, JoinHandle, ThreadId};

use ucs::sys::proc;

use super::{SharedWorker, ThreadMode};

/// A progress thread of a worker of [`ThreadMode::Multi`], ended and joined on drop. Other threads that wait
/// for requests of the worker then sleep until theirs has ended.
///
/// Dropped in a handler or callback of its worker, it is not joined: it ends afterwards.
#[derive(Debug)]
pub struct ProgressThread {
    stop: Arc<Stop>,
    worker: SharedWorker,
    id: ThreadId,
    thread: Option<JoinHandle<()>>,
    /// Process of the thread.
    pid: u32,
}

#[derive(Debug, Default)]
struct Stop(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    is_set: bool,
    waker: Option<Waker>,
}

impl Stop {
    fn poll(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.is_set {
            return Poll::Ready(());
        }
        state.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    fn set(&self) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.is_set = true;
        let waker = state.waker.take();
        drop(state);
        waker.into_iter().for_each(Waker::wake);
    }
}

impl SharedWorker {
    /// Starts a thread that progresses this worker. [`io::ErrorKind::Unsupported`] in another mode than
    /// [`ThreadMode::Multi`].
    pub fn spawn_progress(&self) -> io::Result<ProgressThread> {
        self.spawn_progress_with(|| {})
    }

    /// Starts such a thread, which calls `after` outside the worker behind each progress call and each sleep:
    /// for what the progress has made possible.
    pub fn spawn_progress_with(&self, after: impl FnMut() + Send + 'static) -> io::Result<ProgressThread> {
        if self.mode() != ThreadMode::Multi {
            let why = "a progress thread needs a worker of thread mode multi";
            return Err(io::Error::new(io::ErrorKind::Unsupported, why));
        }
        let stop = Arc::new(Stop::default());
        let (worker, until) = (self.clone(), stop.clone());
        let body = move || {
            if let Err(error) = worker.block_on_with(poll_fn(|cx| until.poll(cx)), after) {
                tracing::warn!(%error, "a progress thread ends early");
            }
        };
        let thread = thread::Builder::new().name("ucp-progress".into()).spawn(body)?;
        let (id, pid) = (thread.thread().id(), proc::pid());
        Ok(ProgressThread { stop, worker: self.clone(), id, thread: Some(thread), pid })
    }
}

impl ProgressThread {
    /// Whether it still progresses: not after a panic of a handler or callback.
    pub fn is_running(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }
}

impl Drop for ProgressThread {
    fn drop(&mut self) {
        if self.pid != proc::pid() {
            // A forked child has no such thread, and shares descriptors with its parent.
            std::mem::forget(self.thread.take());
            return;
        }
        self.stop.set();
        if thread::current().id() == self.id || self.worker.shared.is_held_here() {
            return;
        }
        if let Some(Err(_)) = self.thread.take().map(JoinHandle::join) {
            tracing::warn!("a handler or callback panicked in a progress thread");
        }
    }
}

#[cfg(all(test, feature = "lanes"))]
mod tests {
    #![allow(unsafe_code)]

    use std::sync::mpsc::channel;

    use ucs::config::Source;
    use ucs::testing::drop_in_child;

    use super::*;
    use crate::Context;
    use crate::mt::SharedEpParams;

    fn worker() -> SharedWorker {
        let context = Context::configured(Source::empty().with("UCX_TLS", "posix")).unwrap();
        context.shared_worker(ThreadMode::Multi).unwrap()
    }

    #[test]
    fn a_forked_child_does_not_wait_for_a_progress_thread_of_its_parent() {
        let thread = drop_in_child(worker().spawn_progress().unwrap());
        assert!(thread.is_running());
    }

    #[test]
    fn a_forked_child_does_not_wait_for_a_thread_of_its_parent_that_is_inside() {
        let worker = worker();
        let ep = worker.connect(&worker.address().unwrap(), SharedEpParams::default()).unwrap();
        let request = worker.tag_recv(1, crate::TAG_MASK_FULL, vec![0; 8]);
        let ((tell, inside), (leave, told)) = (channel(), channel::<()>());
        thread::scope(|scope| {
            let worker = &worker;
            scope.spawn(move || {
                let stays = |_: &crate::Worker| {
                    tell.send(()).unwrap();
                    told.recv().unwrap();
                };
                // SAFETY: nothing of the plain worker is used.
                unsafe { worker.with(stays) }.unwrap();
            });
            inside.recv().unwrap();
            let kept = drop_in_child((ep, request));
            leave.send(()).unwrap();
            drop(kept);
        });
    }
}
