//! Completion queues: the ends of many operations, read one after the other.

#![allow(unsafe_code)]

use std::ptr::from_ref;
use std::rc::Rc;
use std::task::{Context, Poll};

use crate::api::core::error::Error;
use crate::api::core::requests::{CallAt, Callback, Ended, OpStatus, RequestId};
use crate::api::request::buf::{DetachedBuf, InFlightBuf};
use crate::api::request::handles::with_len_set;
use crate::api::request::tracked::{TrackedOp, TrackedState};
use crate::api::worker::handle::Worker;

use crate::rdm::{Cancel, RecvStatus};

use super::slots::{Entry, Slot, Slots};
use super::tracked::Tracked;

/// The ends of operations of one worker, in the order in which they come, as a completion queue of libfabric
/// or of verbs has them. An operation is given to the queue by its request, with a number of the program.
///
/// ```no_run
/// # fn f(worker: &ucp::Worker, ep: &ucp::Ep) -> Result<(), Box<dyn std::error::Error>> {
/// let queue = ucp::CompletionQueue::new(worker, 64);
/// queue.track(worker.tag_recv(7, ucp::TAG_MASK_FULL, vec![0; 100]), 1)?;
/// queue.track(ep.tag_send(7, vec![1; 100]), 2)?;
/// while let Some(ended) = queue.wait() {
///     println!("operation {}: {:?}", ended.context, ended.result);
/// }
/// # Ok(())
/// # }
/// ```
/// The queue has room for as many operations as it is deep: running ones, and ends that nobody has read. So
/// it is never overrun. It allocates when it is made, and not for an operation.
///
/// Dropping it does to each operation what dropping its request does: receives that no message has matched
/// are cancelled, all others go on, and their buffers are dropped when they end. Raw operations go on, too.
/// A queue keeps its worker, as an endpoint does.
pub struct CompletionQueue<B: 'static = Vec<u8>> {
    worker: Worker,
    slots: Rc<Slots<B>>,
    depth: u32,
}

/// The end of an operation.
#[derive(Debug)]
pub struct Completion<B> {
    /// The program's number, as passed with the operation.
    pub context: u64,
    /// Length, tag and sender of what was received; of other operations without a meaning.
    pub result: Result<RecvStatus, Error>,
    /// The buffer of the operation. `None`: it had none, as flushes and raw operations have not.
    pub buf: Option<B>,
}

/// An operation that a queue has not taken. It goes on.
#[derive(thiserror::Error)]
#[error("{error}")]
pub struct NotTracked<R> {
    /// Request of the operation.
    pub request: R,
    /// Why it was not taken: [`Error::QueueFull`]; [`Error::Invalid`] of a raw operation; [`Error::Thread`]
    /// of a shared worker.
    pub error: Error,
}

impl<R> From<NotTracked<R>> for Error {
    fn from(refused: NotTracked<R>) -> Error {
        refused.error
    }
}

impl<R> std::fmt::Debug for NotTracked<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NotTracked").field("error", &self.error).finish_non_exhaustive()
    }
}

/// Notes the end of the operation of a slot.
/// # Safety
/// `arg` is a slot of a queue that exists.
// HOT
unsafe fn on_end<B: 'static>(arg: *mut (), _: RequestId, ended: Ended) {
    // SAFETY: this function's contract. A queue that is dropped takes the callbacks of all that runs away.
    let slot = unsafe { &*arg.cast_const().cast::<Slot<B>>() };
    // SAFETY: as above; it was set when the queue was made.
    let slots = unsafe { &*slot.all.get() };
    slots.end(slot, ended);
}

impl<B: 'static> CompletionQueue<B> {
    /// Makes a queue for the operations of a worker, with room for `depth` of them, at least one.
    pub fn new(worker: &Worker, depth: u32) -> CompletionQueue<B> {
        let depth = depth.max(1);
        CompletionQueue { worker: worker.clone(), slots: Slots::new(depth), depth }
    }

    /// The worker whose operations it takes.
    pub fn worker(&self) -> &Worker {
        &self.worker
    }

    /// Takes an operation over: its end becomes an entry with `context`. One that has ended already is an
    /// entry at once. A full queue returns the request, which is dropped with the error if nobody takes it
    /// out. Panics if the operation runs at another worker.
    // HOT
    #[inline]
    pub fn track<R: Tracked<B>>(&self, request: R, context: u64) -> Result<(), NotTracked<R>> {
        let slot = match self.room() {
            Ok(slot) => slot,
            Err(error) => return Err(NotTracked { request, error }),
        };
        let is_own = request.running_at().is_none_or(|worker| worker.is(&self.worker));
        assert!(is_own, "the operation belongs to another worker");
        self.add(slot, request.into_tracked(), context);
        Ok(())
    }

    /// The slot of the next operation.
    // HOT
    #[inline]
    pub(crate) fn room(&self) -> Result<&Slot<B>, Error> {
        self.slots.free().ok_or(Error::QueueFull(self.depth as usize))
    }

    /// Adds an operation of the worker, in the slot of [`CompletionQueue::room`].
    // HOT
    #[inline]
    pub(crate) fn add(&self, slot: &Slot<B>, op: TrackedOp<B>, context: u64) {
        let TrackedOp { state, buf, set_filled } = op;
        let entry = Entry { context, buf, set_filled };
        match state {
            TrackedState::Ended(ended) => self.slots.push_ended(slot, ended, entry),
            TrackedState::Running(id) => {
                let refused = self.push(slot, id, entry);
                // Nothing else has the request. A buffer that were refused would be leaked, not freed.
                debug_assert!(refused.is_ok(), "a request that was given away has no callback");
            }
        }
    }

    /// Takes over what a raw call has started, and its request, which the program does not use any more. An
    /// error that the call returned is an entry, too. The memory of the operation stays the program's, as
    /// the raw call says, also if the queue is dropped.
    ///
    /// Returned are what finds the queue full, and, with [`Error::Invalid`], an operation that has a callback
    /// (also one of data that callbacks pack or unpack), or that this worker does not know: they go on.
    // HOT
    #[inline]
    pub fn track_raw<T: IntoStatus>(
        &self,
        started: Result<OpStatus<T>, Error>,
        context: u64,
    ) -> Result<(), NotTracked<Result<OpStatus<T>, Error>>> {
        let slot = match self.room() {
            Ok(slot) => slot,
            Err(error) => return Err(NotTracked { request: started, error }),
        };
        let entry = Entry { context, buf: None, set_filled: None };
        let ended = match started {
            Ok(OpStatus::InProgress(id)) => {
                return match self.push(slot, id, entry) {
                    Ok(()) => Ok(()),
                    Err(_) => Err(NotTracked { request: started, error: Error::Invalid }),
                };
            }
            Ok(OpStatus::Done(status)) => Ok(status.into_status()),
            Err(error) => Err(error),
        };
        self.slots.push_ended(slot, ended, entry);
        Ok(())
    }

    /// Adds an operation that has been started, in the slot of [`CompletionQueue::room`]. Returns the entry
    /// of one that cannot be taken over.
    // HOT
    #[inline]
    fn push(&self, slot: &Slot<B>, id: RequestId, entry: Entry<B>) -> Result<(), Entry<B>> {
        let mut core = self.worker.core_keep_idle();
        let done = Callback { fun: on_end::<B>, arg: from_ref(slot).cast_mut().cast(), at: CallAt::End };
        if let Some(before) = core.reqs.set_raw_callback(id, done) {
            self.slots.start(slot, id, entry);
            drop(core);
            // The waker is the program's, and may use the worker and the queue.
            drop(before);
            return Ok(());
        }
        let Some(ended) = core.reqs.take(id) else { return Err(entry) };
        drop(core);
        self.slots.push_ended(slot, ended, entry);
        Ok(())
    }

    /// Takes the end that came first. Makes no progress.
    // HOT
    #[inline]
    pub fn read(&self) -> Option<Completion<B>> {
        let (result, Entry { context, buf, set_filled }) = self.slots.pop()?;
        let buf = buf.map(InFlightBuf::into_inner);
        let buf = match set_filled {
            Some(set_filled) => buf.map(|buf| with_len_set(result, buf, set_filled)),
            None => buf,
        };
        Some(Completion { context, result, buf })
    }

    /// Makes progress until there is an end, and takes it. `None`: no operation of the queue runs.
    pub fn wait(&self) -> Option<Completion<B>> {
        let slots = &self.slots;
        self.worker.run_until(|_| (slots.ended() > 0 || slots.running() == 0).then_some(()));
        self.read()
    }

    /// Takes the end that came first, or `None` if none can come; wakes the waker of `cx` at the next end,
    /// inside the worker.
    pub(crate) fn poll_read(&self, cx: &mut Context<'_>) -> Poll<Option<Completion<B>>> {
        let ended = self.read();
        if ended.is_some() || self.running() == 0 {
            return Poll::Ready(ended);
        }
        self.slots.wait_for_end(cx.waker().clone());
        Poll::Pending
    }

    /// Operations of the queue that run.
    pub fn running(&self) -> usize {
        self.slots.running()
    }

    /// Ends that can be read.
    pub fn len(&self) -> usize {
        self.slots.ended()
    }

    /// Whether there is no end to be read.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Operations for which there is room: running ones, and ends that were not read.
    pub fn depth(&self) -> usize {
        self.depth as usize
    }

    /// Cancels the operations with this number, as their requests would. Returns how many will end with
    /// [`Error::Cancelled`], which are entries when progress is made. Looks at each entry of the queue.
    pub fn cancel(&self, context: u64) -> usize {
        let requests = self.slots.requests(context);
        requests.into_iter().filter(|id| self.worker.core().cancel(*id, Cancel::Unfinished)).count()
    }
}

/// The result of a raw call that has ended.
pub trait IntoStatus: Copy {
    #[doc(hidden)]
    fn into_status(self) -> RecvStatus;
}

impl IntoStatus for RecvStatus {
    #[inline]
    fn into_status(self) -> RecvStatus {
        self
    }
}

impl IntoStatus for () {
    #[inline]
    fn into_status(self) -> RecvStatus {
        crate::api::core::requests::EMPTY_STATUS
    }
}

impl<B: 'static> Drop for CompletionQueue<B> {
    fn drop(&mut self) {
        for id in self.slots.receives() {
            self.worker.core().cancel(id, Cancel::Unfinished);
        }
        while let Some((id, entry)) = self.slots.take_running() {
            let buf =
                entry.buf.map(|in_flight| Box::new(DetachedBuf::new(in_flight)) as Box<dyn std::any::Any>);
            let dropped = self.worker.core().reqs.abandon(id, buf);
            drop(dropped);
        }
        while self.read().is_some() {}
    }
}
