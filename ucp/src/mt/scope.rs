//! Operations of shared workers on borrowed buffers; like `std::thread::scope`, a scope waits for them even
//! after a panic.

#![allow(unsafe_code)]

use std::any::Any;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ucs::Status;

use super::SharedWorker;
use super::blocking;
use super::ep::SharedEp;
use super::shared::Inside;
use crate::api::{atomic_params, with_empty_status};
use crate::{
    AmParams, AmProto, AtomicOp, AtomicType, Ep, Error, Iov, Match, OpParams, OpStatus, RecvStatus,
    RequestId, Rkey, RmaParams, SendParams, StreamRecvMode,
};

/// Starts operations on borrowed memory, from any thread: see [`SharedWorker::scope`]. Panics if an endpoint
/// is of another worker.
pub struct SharedScope<'scope, 'env: 'scope> {
    worker: &'env SharedWorker,
    /// Operations of this scope whose results have not been taken.
    running: Mutex<Vec<RequestId>>,
    scope: PhantomData<&'scope mut &'scope ()>,
    env: PhantomData<&'env mut &'env ()>,
}

/// An operation on borrowed memory, for any thread. Dropping it leaves the wait to the end of the scope.
#[must_use = "the result is lost unless you wait for it"]
pub struct SharedScopedRequest<'scope, T> {
    worker: &'scope SharedWorker,
    running: &'scope Mutex<Vec<RequestId>>,
    state: State,
    out: PhantomData<fn() -> T>,
}

enum State {
    Ended(Result<RecvStatus, Error>),
    Running(RequestId),
}

fn lock(running: &Mutex<Vec<RequestId>>) -> MutexGuard<'_, Vec<RequestId>> {
    running.lock().unwrap_or_else(PoisonError::into_inner)
}

impl SharedWorker {
    /// Runs `f`, which can start operations on memory that outlives the scope, and makes progress until all
    /// have ended. If `f` panics, unmatched receives are cancelled and other operations are waited for.
    /// ```no_run
    /// # fn f(worker: &ucp::mt::SharedWorker, ep: &ucp::mt::SharedEp) {
    /// let (out, mut back) = ([1u8; 100], [0u8; 100]);
    /// worker.scope(|s| {
    ///     let answer = s.tag_recv(2, ucp::TAG_MASK_FULL, &mut back);
    ///     std::thread::scope(|threads| {
    ///         threads.spawn(|| s.tag_send(ep, 1, &out).wait().unwrap());
    ///     });
    ///     answer.wait().unwrap();
    /// });
    /// # }
    /// ```
    pub fn scope<'env, R>(
        &'env self,
        f: impl for<'scope> FnOnce(&'scope SharedScope<'scope, 'env>) -> R,
    ) -> R {
        let scope =
            SharedScope { worker: self, running: Mutex::default(), scope: PhantomData, env: PhantomData };
        let value = catch_unwind(AssertUnwindSafe(|| f(&scope)));
        let running = std::mem::take(&mut *lock(&scope.running));
        let panic = self.end_all(running, value.is_err());
        match (value, panic) {
            (Ok(value), None) => value,
            (Err(panic), _) | (Ok(_), Some(panic)) => resume_unwind(panic),
        }
    }

    /// Waits for the end of operations, and returns the first panic of a callback.
    fn end_all(&self, running: Vec<RequestId>, cancels: bool) -> Option<Box<dyn Any + Send>> {
        let mut first = None;
        for id in running {
            let ended = catch_unwind(AssertUnwindSafe(|| {
                let inside = self.shared.enter_waiting();
                let inside = inside.expect("operations are started by threads that may go in");
                if cancels {
                    inside.worker().cancel(id);
                }
                let _ = blocking::wait(inside, id);
            }));
            first = first.or(ended.err());
        }
        first
    }
}

impl<'scope, 'env> SharedScope<'scope, 'env> {
    /// Sends a tagged message; ends when `bytes` may be reused.
    pub fn tag_send(
        &'scope self,
        ep: &SharedEp,
        tag: u64,
        bytes: &'scope [u8],
    ) -> SharedScopedRequest<'scope, ()> {
        self.send(ep, bytes, &SendParams { tag: Some(tag), ..SendParams::default() })
    }

    /// Sends a tagged message; ends when the receiver's buffer holds it.
    pub fn tag_send_sync(
        &'scope self,
        ep: &SharedEp,
        tag: u64,
        bytes: &'scope [u8],
    ) -> SharedScopedRequest<'scope, ()> {
        let params = SendParams {
            tag: Some(tag),
            sync: crate::select::DeliveryComplete::Yes,
            ..SendParams::default()
        };
        self.send(ep, bytes, &params)
    }

    /// Sends an untagged message; ends when `bytes` may be reused.
    pub fn msg_send(&'scope self, ep: &SharedEp, bytes: &'scope [u8]) -> SharedScopedRequest<'scope, ()> {
        self.send(ep, bytes, &SendParams::default())
    }

    /// Writes `bytes` to address `remote` of a peer's memory; ends when `bytes` may be reused.
    pub fn put(
        &'scope self,
        ep: &SharedEp,
        bytes: &'scope [u8],
        remote: u64,
        rkey: &Rkey,
    ) -> SharedScopedRequest<'scope, ()> {
        let params = RmaParams::default();
        self.start_on(ep, |ep| {
            // SAFETY: the slice is borrowed for 'scope, and `SharedWorker::scope` waits for the end.
            unsafe { ep.put_raw(bytes.as_ptr(), bytes.len(), remote, rkey, &params) }.map(with_empty_status)
        })
    }

    /// Reads `out.len()` bytes at address `remote` of a peer's memory.
    pub fn get(
        &'scope self,
        ep: &SharedEp,
        out: &'scope mut [u8],
        remote: u64,
        rkey: &Rkey,
    ) -> SharedScopedRequest<'scope, RecvStatus> {
        let params = RmaParams::default();
        // SAFETY: the slice is borrowed for 'scope, and `SharedWorker::scope` waits for the end.
        self.start_on(ep, |ep| unsafe { ep.get_raw(out.as_mut_ptr(), out.len(), remote, rkey, &params) })
    }

    /// Receives a message whose tag equals `tag` in the bits of `mask`.
    pub fn tag_recv(
        &'scope self,
        tag: u64,
        mask: u64,
        buf: &'scope mut [u8],
    ) -> SharedScopedRequest<'scope, RecvStatus> {
        self.recv(Match::tagged(tag, mask), buf)
    }

    /// Receives a message accepted by `matching`.
    pub fn recv(
        &'scope self,
        matching: Match,
        buf: &'scope mut [u8],
    ) -> SharedScopedRequest<'scope, RecvStatus> {
        // SAFETY: the slice is borrowed for 'scope, and `SharedWorker::scope` waits for the end.
        self.start(|inside| unsafe {
            inside.worker().recv_raw(buf.as_mut_ptr(), buf.len(), matching, &OpParams::default())
        })
    }

    /// Receives a message accepted by `matching` into several buffers, filled in order.
    pub fn recv_iov(
        &'scope self,
        matching: Match,
        bufs: impl IntoIterator<Item = &'scope mut [u8]>,
    ) -> SharedScopedRequest<'scope, RecvStatus> {
        let iov = |buf: &'scope mut [u8]| Iov { addr: buf.as_mut_ptr(), len: buf.len() };
        let pieces: Vec<Iov> = bufs.into_iter().map(iov).collect();
        // SAFETY: the slices are borrowed for 'scope, and `SharedWorker::scope` waits for the end.
        self.start(|inside| unsafe {
            inside.worker().recv_layout_raw(&pieces, matching, &OpParams::default())
        })
    }

    /// Sends a copy of `header`, and `data`, to handler `id` of the peer; ends when `data` may be reused.
    pub fn am_send(
        &'scope self,
        ep: &SharedEp,
        id: u16,
        header: &[u8],
        data: &'scope [u8],
    ) -> SharedScopedRequest<'scope, ()> {
        self.am_send_with(ep, AmProto::Auto, id, header, data)
    }

    /// Sends an active message with a chosen protocol.
    pub fn am_send_with(
        &'scope self,
        ep: &SharedEp,
        proto: AmProto,
        id: u16,
        header: &[u8],
        data: &'scope [u8],
    ) -> SharedScopedRequest<'scope, ()> {
        let params = AmParams { proto, ..AmParams::default() };
        self.start_on(ep, |ep| {
            // SAFETY: the slice is borrowed for 'scope, and `SharedWorker::scope` waits for the end.
            unsafe { ep.am_send_raw(id, header, data.as_ptr(), data.len(), &params) }.map(with_empty_status)
        })
    }

    /// Sends bytes to the peer's stream; ends when they may be reused.
    pub fn stream_send(&'scope self, ep: &SharedEp, bytes: &'scope [u8]) -> SharedScopedRequest<'scope, ()> {
        self.start_on(ep, |ep| {
            // SAFETY: the slice is borrowed for 'scope, and `SharedWorker::scope` waits for the end.
            unsafe { ep.stream_send_raw(bytes.as_ptr(), bytes.len(), &OpParams::default()) }
                .map(with_empty_status)
        })
    }

    /// Receives bytes of the peer's stream: at least one, or as many as there is room for.
    pub fn stream_recv(
        &'scope self,
        ep: &SharedEp,
        buf: &'scope mut [u8],
        mode: StreamRecvMode,
    ) -> SharedScopedRequest<'scope, RecvStatus> {
        self.start_on(ep, |ep| {
            // SAFETY: the slice is borrowed for 'scope, and `SharedWorker::scope` waits for the end.
            unsafe { ep.stream_recv_raw(buf.as_mut_ptr(), buf.len(), mode, &OpParams::default()) }
                .map(OpStatus::InProgress)
        })
    }

    /// Executes `op` on as many elements of the peer's memory as there are operands: [`Scope::atomic_fetch`].
    ///
    /// [`Scope::atomic_fetch`]: crate::Scope::atomic_fetch
    pub fn atomic_fetch<T: AtomicType + Send>(
        &'scope self,
        ep: &SharedEp,
        op: AtomicOp,
        operands: &'scope [T],
        old: &'scope mut [T],
        remote: u64,
        rkey: &Rkey,
    ) -> SharedScopedRequest<'scope, ()> {
        self.atomic_compare(ep, op, operands, operands, old, remote, rkey)
    }

    /// Executes a compare operation: [`Scope::atomic_compare`].
    ///
    /// [`Scope::atomic_compare`]: crate::Scope::atomic_compare
    #[expect(clippy::too_many_arguments, reason = "what the operation consists of")]
    pub fn atomic_compare<T: AtomicType + Send>(
        &'scope self,
        ep: &SharedEp,
        op: AtomicOp,
        compare: &'scope [T],
        operands: &'scope [T],
        old: &'scope mut [T],
        remote: u64,
        rkey: &Rkey,
    ) -> SharedScopedRequest<'scope, ()> {
        self.start_on(ep, |ep| {
            let params = atomic_params(op, compare, operands, old)?;
            // SAFETY: the slices are borrowed for 'scope, and `SharedWorker::scope` waits for the end.
            unsafe { ep.atomic_raw(remote, rkey, &params) }
        })
    }

    fn send(
        &'scope self,
        ep: &SharedEp,
        bytes: &'scope [u8],
        params: &SendParams,
    ) -> SharedScopedRequest<'scope, ()> {
        self.start_on(ep, |ep| {
            // SAFETY: the slice is borrowed for 'scope, and `SharedWorker::scope` waits for the end.
            unsafe { ep.send_raw(bytes.as_ptr(), bytes.len(), params) }.map(with_empty_status)
        })
    }

    fn start_on<T>(
        &'scope self,
        ep: &SharedEp,
        start: impl FnOnce(&Ep) -> Result<OpStatus<RecvStatus>, Error>,
    ) -> SharedScopedRequest<'scope, T> {
        assert!(Arc::ptr_eq(ep.shared(), &self.worker.shared), "the endpoint belongs to another worker");
        self.start(|inside| start(ep.plain(inside)))
    }

    fn start<T>(
        &'scope self,
        start: impl FnOnce(&Inside<'_>) -> Result<OpStatus<RecvStatus>, Error>,
    ) -> SharedScopedRequest<'scope, T> {
        let state = match self.worker.enter().and_then(|inside| start(&inside)) {
            Ok(OpStatus::InProgress(id)) => {
                lock(&self.running).push(id);
                State::Running(id)
            }
            Ok(OpStatus::Done(status)) => State::Ended(Ok(status)),
            Err(error) => State::Ended(Err(error)),
        };
        SharedScopedRequest { worker: self.worker, running: &self.running, state, out: PhantomData }
    }
}

/// Removes an ended operation from those that the scope waits for, even if a callback has panicked.
struct EndedOnDrop<'a>(&'a Mutex<Vec<RequestId>>, RequestId);

impl Drop for EndedOnDrop<'_> {
    fn drop(&mut self) {
        lock(self.0).retain(|&other| other != self.1);
    }
}

impl<T> SharedScopedRequest<'_, T> {
    /// With an error of the thread mode, the wait is left to the end of the scope.
    fn wait_for_end(&self) -> Result<RecvStatus, Error> {
        let id = match self.state {
            State::Ended(ended) => return ended,
            State::Running(id) => id,
        };
        let inside = self.worker.enter()?;
        // The wait returns, and unwinds, after the end of the operation only.
        let _ended = EndedOnDrop(self.running, id);
        blocking::wait(inside, id)
    }

    /// Takes the result if the operation has ended. With an error of the thread mode it is left to the scope.
    fn take_end(&self) -> Option<Result<RecvStatus, Error>> {
        let id = match self.state {
            State::Ended(ended) => return Some(ended),
            State::Running(id) => id,
        };
        if !self.is_done() {
            return None;
        }
        match self.worker.enter() {
            Ok(inside) => {
                let ended = inside.worker().test(id)?;
                drop(EndedOnDrop(self.running, id));
                Some(ended)
            }
            Err(error) => Some(Err(error)),
        }
    }

    /// Whether the operation has ended.
    pub fn is_done(&self) -> bool {
        match self.state {
            State::Ended(_) => true,
            State::Running(id) => id.status() != Some(Status::InProgress),
        }
    }

    /// Cancels the operation; returns false if it continues or has ended.
    pub fn cancel(&self) -> Result<bool, Error> {
        match self.state {
            State::Ended(_) => Ok(false),
            State::Running(id) => Ok(self.worker.enter()?.worker().cancel(id)),
        }
    }
}

impl SharedScopedRequest<'_, ()> {
    /// Returns the result if the operation has ended, otherwise the request. Makes no progress.
    pub fn test(self) -> Result<Result<(), Error>, Self> {
        self.take_end().map(|ended| ended.map(drop)).ok_or(self)
    }

    /// Makes progress until the bytes may be reused.
    pub fn wait(self) -> Result<(), Error> {
        self.wait_for_end().map(drop)
    }
}

impl SharedScopedRequest<'_, RecvStatus> {
    /// Returns the result if the operation has ended, otherwise the request. Makes no progress.
    pub fn test(self) -> Result<Result<RecvStatus, Error>, Self> {
        self.take_end().ok_or(self)
    }

    /// Makes progress until the bytes have been received.
    pub fn wait(self) -> Result<RecvStatus, Error> {
        self.wait_for_end()
    }
}
