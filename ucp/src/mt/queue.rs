//! Completion queues of shared workers.

#![allow(unsafe_code)]

use std::sync::Arc;
use std::task::Poll;

use ucs::sync::LockError;

use super::request::{Operation, SharedRequest};
use super::shared::{Locked, OfWorker};
use super::worker::SharedWorker;
use crate::{
    AmSend, Completion, CompletionQueue, Error, FlushRequest, IntoStatus, NotTracked, RecvRequest,
    RecvStatus, SendRequest, Tracked, TrackedOp,
};

/// A [`CompletionQueue`] that any thread may give operations to, and read.
pub struct SharedCompletionQueue<B: Send + 'static = Vec<u8>>(Locked<CompletionQueue<B>>);

// SAFETY: of the user's it holds buffers, which are `Send`; all else is its worker's.
unsafe impl<B: Send + 'static> OfWorker for CompletionQueue<B> {}

/// A request that a [`SharedCompletionQueue`] takes.
pub trait SharedTracked<B: 'static>: Operation + Tracked<B> {
    #[doc(hidden)]
    fn ended_op(output: Self::Output) -> TrackedOp<B>;
}

impl<B: Send + 'static> SharedTracked<B> for SendRequest<B> {
    fn ended_op((ended, buf): (Result<(), Error>, B)) -> TrackedOp<B> {
        TrackedOp::ended(ended.map(IntoStatus::into_status), Some(buf))
    }
}

impl<B: Send + 'static> SharedTracked<B> for AmSend<B> {
    fn ended_op((ended, buf): (Result<(), Error>, B)) -> TrackedOp<B> {
        TrackedOp::ended(ended.map(IntoStatus::into_status), Some(buf))
    }
}

/// The length of the buffer has been set.
impl<B: Send + 'static> SharedTracked<B> for RecvRequest<B> {
    fn ended_op((ended, buf): (Result<RecvStatus, Error>, B)) -> TrackedOp<B> {
        TrackedOp::ended(ended, Some(buf))
    }
}

impl<B: Send + 'static> SharedTracked<B> for FlushRequest {
    fn ended_op(ended: Result<(), Error>) -> TrackedOp<B> {
        TrackedOp::ended(ended.map(IntoStatus::into_status), None)
    }
}

impl SharedWorker {
    /// Makes a queue for the operations of this worker, with room for `depth` of them, at least one.
    pub fn completion_queue<B: Send + 'static>(&self, depth: u32) -> Result<SharedCompletionQueue<B>, Error> {
        let inside = self.shared.enter()?;
        let queue = CompletionQueue::new(inside.worker(), depth);
        Ok(SharedCompletionQueue(Locked::new(queue, &inside)))
    }
}

impl<B: Send + 'static> SharedCompletionQueue<B> {
    /// Takes an operation over, as [`CompletionQueue::track`]. A full queue, and one that the thread may not
    /// use, return the request. Panics if the operation runs at another worker.
    // HOT
    #[inline]
    pub fn track<R: SharedTracked<B>>(
        &self,
        request: SharedRequest<R>,
        context: u64,
    ) -> Result<(), NotTracked<SharedRequest<R>>> {
        let is_own = request.running_at().is_none_or(|shared| Arc::ptr_eq(shared, self.0.shared()));
        assert!(is_own, "the operation belongs to another worker");
        let _inside = match self.0.enter() {
            Ok(inside) => inside,
            Err(error) => return Err(NotTracked { request, error: error.into() }),
        };
        let queue = self.0.fixed();
        let slot = match queue.room() {
            Ok(slot) => slot,
            Err(error) => return Err(NotTracked { request, error }),
        };
        queue.add(slot, request.into_tracked(), context);
        Ok(())
    }

    /// Runs `f` on the plain queue, inside the lock, for raw operations.
    /// # Safety
    /// As for [`SharedWorker::with`].
    pub unsafe fn with<R>(&self, f: impl FnOnce(&CompletionQueue<B>) -> R) -> Result<R, Error> {
        Ok(self.0.with(|queue, _| f(queue))?)
    }

    /// Takes the end that came first. Makes no progress.
    // HOT
    #[inline]
    pub fn read(&self) -> Result<Option<Completion<B>>, Error> {
        Ok(self.0.look(CompletionQueue::read)?)
    }

    /// Makes progress until there is an end, and takes it. `None`: no operation of the queue runs. Threads
    /// that wait for one worker take turns in progress.
    pub fn wait(&self) -> Result<Option<Completion<B>>, Error> {
        let shared = self.0.shared();
        let mut idle = 0;
        while idle < shared.spin() {
            idle += 1;
            let Some(inside) = shared.enter_to_progress()? else {
                std::hint::spin_loop();
                continue;
            };
            let queue = self.0.fixed();
            let ended = queue.read();
            if ended.is_some() || queue.running() == 0 {
                return Ok(ended);
            }
            if inside.progress() > 0 {
                idle = 0;
            }
        }
        shared.block_on(|cx| match self.0.with(|queue, _| queue.poll_read(cx)) {
            Ok(polled) => polled.map(Ok),
            Err(LockError::Concurrent) => {
                // Whose progress has brought the end is still inside.
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            Err(error) => Poll::Ready(Err(error.into())),
        })
    }

    /// Operations for which there is room: running ones, and ends that were not read.
    pub fn depth(&self) -> usize {
        self.0.fixed().depth()
    }

    /// Operations of the queue that run.
    pub fn running(&self) -> Result<usize, Error> {
        Ok(self.0.look(CompletionQueue::running)?)
    }

    /// Ends that can be read.
    pub fn len(&self) -> Result<usize, Error> {
        Ok(self.0.look(CompletionQueue::len)?)
    }

    /// Whether there is no end to be read.
    pub fn is_empty(&self) -> Result<bool, Error> {
        Ok(self.0.look(CompletionQueue::is_empty)?)
    }

    /// Cancels the operations with this number, as [`CompletionQueue::cancel`].
    pub fn cancel(&self, context: u64) -> Result<usize, Error> {
        Ok(self.0.with(|queue, _| queue.cancel(context))?)
    }
}
