//! Operations on borrowed buffers; like `std::thread::scope`, a scope waits for them even after a panic.

#![allow(unsafe_code)]

use std::any::Any;
use std::cell::RefCell;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use crate::api::am::send::{AmParams, AmProto};
use crate::api::core::error::Error;
use crate::api::core::requests::{Ended, OpStatus, RequestId};
use crate::api::data::iov::Iov;
use crate::api::data::params::OpParams;
use crate::api::ep::handle::Ep;
use crate::api::ep::send::SendParams;
use crate::api::rma::atomic_params::AtomicParams;
use crate::api::rma::atomic_type::AtomicType;
use crate::api::rma::list::{get_list_raw, put_list_raw};
use crate::api::rma::now::RmaPiece;
use crate::api::rma::params::RmaParams;
use crate::api::rma::rkey::Rkey;
use crate::api::stream::state::StreamRecvMode;
use crate::api::tag::recv::Match;
use crate::api::worker::handle::Worker;

use crate::rdm::{Cancel, RecvStatus};
use crate::select::DeliveryComplete;
use crate::wire::AtomicOp;

/// Starts operations on borrowed memory, see [`Worker::scope`]. Panics if an endpoint is of another worker.
pub struct Scope<'scope, 'env: 'scope> {
    worker: &'env Worker,
    /// Operations of this scope whose results have not been taken.
    running: RefCell<Vec<RequestId>>,
    scope: PhantomData<&'scope mut &'scope ()>,
    env: PhantomData<&'env mut &'env ()>,
}

/// An operation on borrowed memory. Dropping it leaves the wait to the end of the scope.
#[must_use = "the result is lost unless you wait for it"]
pub struct ScopedRequest<'scope, T> {
    worker: &'scope Worker,
    running: &'scope RefCell<Vec<RequestId>>,
    state: State,
    out: PhantomData<T>,
}

enum State {
    Ended(Ended),
    Running(RequestId),
}

impl Worker {
    /// Runs `f`, which can start operations on memory that outlives the scope, and makes progress until all
    /// have ended. If `f` panics, unmatched receives are cancelled and other operations are waited for.
    /// ```no_run
    /// # fn f(worker: &ucp::Worker, ep: &ucp::Ep) {
    /// let (out, mut back) = ([1u8; 100], [0u8; 100]);
    /// worker.scope(|s| {
    ///     let answer = s.tag_recv(2, ucp::TAG_MASK_FULL, &mut back);
    ///     s.tag_send(ep, 1, &out).wait().unwrap();
    ///     answer.wait().unwrap();
    /// });
    /// # }
    /// ```
    pub fn scope<'env, R>(&'env self, f: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> R) -> R {
        let scope = Scope { worker: self, running: RefCell::default(), scope: PhantomData, env: PhantomData };
        let mut value = catch_unwind(AssertUnwindSafe(|| f(&scope)));
        for id in scope.running.take() {
            if value.is_err() {
                self.core().cancel(id, Cancel::Unfinished);
            }
            let (_, panic) = wait_catching_panics(self, id);
            if let (Some(panic), Ok(_)) = (panic, &value) {
                value = Err(panic);
            }
        }
        value.unwrap_or_else(|panic| resume_unwind(panic))
    }

    pub(crate) fn wait_borrowed(&self, id: RequestId) -> Ended {
        match wait_catching_panics(self, id) {
            (ended, None) => ended,
            (_, Some(panic)) => resume_unwind(panic),
        }
    }
}

/// Waits for the end, and returns it with the first panic of a callback; a panic cancels the operation.
fn wait_catching_panics(worker: &Worker, id: RequestId) -> (Ended, Option<Box<dyn Any + Send>>) {
    let mut first = None;
    loop {
        match catch_unwind(AssertUnwindSafe(|| worker.wait_for(id))) {
            Ok(ended) => return (ended, first),
            Err(panic) => {
                first.get_or_insert(panic);
                worker.core().cancel(id, Cancel::Unfinished);
            }
        }
    }
}

impl<'scope, 'env> Scope<'scope, 'env> {
    /// Sends a tagged message; ends when `bytes` may be reused.
    pub fn tag_send(&'scope self, ep: &Ep, tag: u64, bytes: &'scope [u8]) -> ScopedRequest<'scope, ()> {
        self.send(ep, bytes, &SendParams { tag: Some(tag), ..SendParams::default() })
    }

    /// Sends a tagged message; ends when the receiver's buffer holds it.
    pub fn tag_send_sync(&'scope self, ep: &Ep, tag: u64, bytes: &'scope [u8]) -> ScopedRequest<'scope, ()> {
        self.send(
            ep,
            bytes,
            &SendParams { tag: Some(tag), sync: DeliveryComplete::Yes, ..SendParams::default() },
        )
    }

    /// Sends an untagged message; ends when `bytes` may be reused.
    pub fn msg_send(&'scope self, ep: &Ep, bytes: &'scope [u8]) -> ScopedRequest<'scope, ()> {
        self.send(ep, bytes, &SendParams::default())
    }

    /// Writes `bytes` to address `remote` of a peer's memory; ends when `bytes` may be reused.
    pub fn put(
        &'scope self,
        ep: &Ep,
        bytes: &'scope [u8],
        remote: u64,
        rkey: &Rkey,
    ) -> ScopedRequest<'scope, ()> {
        assert!(ep.worker().is(self.worker), "the endpoint belongs to another worker");
        let params = RmaParams::default();
        // SAFETY: the slice is borrowed for 'scope, and `Worker::scope` waits for the operation's end.
        let started = unsafe { ep.put_raw(bytes.as_ptr(), bytes.len(), remote, rkey, &params) };
        self.track(started.map(with_empty_status))
    }

    /// Reads `out.len()` bytes at address `remote` of a peer's memory.
    pub fn get(
        &'scope self,
        ep: &Ep,
        out: &'scope mut [u8],
        remote: u64,
        rkey: &Rkey,
    ) -> ScopedRequest<'scope, RecvStatus> {
        assert!(ep.worker().is(self.worker), "the endpoint belongs to another worker");
        let params = RmaParams::default();
        // SAFETY: the slice is borrowed for 'scope, and `Worker::scope` waits for the operation's end.
        self.track(unsafe { ep.get_raw(out.as_mut_ptr(), out.len(), remote, rkey, &params) })
    }

    /// Writes bytes to several addresses of a peer's memory, as [`put_list_raw`]; ends when all may
    /// be reused.
    pub fn put_list<'a>(
        &'scope self,
        ep: &Ep,
        pieces: impl IntoIterator<Item = (&'scope [u8], u64, &'a Rkey)>,
    ) -> ScopedRequest<'scope, ()> {
        assert!(ep.worker().is(self.worker), "the endpoint belongs to another worker");
        let local = |bytes: &[u8]| Iov { addr: bytes.as_ptr().cast_mut(), len: bytes.len() };
        let pieces: Vec<_> = pieces
            .into_iter()
            .map(|(bytes, remote, rkey)| RmaPiece { local: local(bytes), remote, rkey, mem: None })
            .collect();
        // SAFETY: the slices are borrowed for 'scope, and `Worker::scope` waits for the operation's end.
        let started = unsafe { put_list_raw(ep, pieces.iter().copied(), &RmaParams::default()) };
        self.track(started.map(with_empty_status))
    }

    /// Reads bytes at several addresses of a peer's memory, as [`get_list_raw`].
    pub fn get_list<'a>(
        &'scope self,
        ep: &Ep,
        pieces: impl IntoIterator<Item = (&'scope mut [u8], u64, &'a Rkey)>,
    ) -> ScopedRequest<'scope, RecvStatus> {
        assert!(ep.worker().is(self.worker), "the endpoint belongs to another worker");
        let local = |bytes: &mut [u8]| Iov { addr: bytes.as_mut_ptr(), len: bytes.len() };
        let pieces: Vec<_> = pieces
            .into_iter()
            .map(|(bytes, remote, rkey)| RmaPiece { local: local(bytes), remote, rkey, mem: None })
            .collect();
        // SAFETY: the slices are borrowed for 'scope, and `Worker::scope` waits for the operation's end.
        self.track(unsafe { get_list_raw(ep, pieces.iter().copied(), &RmaParams::default()) })
    }

    /// Receives a message whose tag equals `tag` in the bits of `mask`.
    pub fn tag_recv(
        &'scope self,
        tag: u64,
        mask: u64,
        buf: &'scope mut [u8],
    ) -> ScopedRequest<'scope, RecvStatus> {
        self.recv(Match::tagged(tag, mask), buf)
    }

    /// Receives a message accepted by `matching`.
    pub fn recv(&'scope self, matching: Match, buf: &'scope mut [u8]) -> ScopedRequest<'scope, RecvStatus> {
        // SAFETY: the slice is borrowed for 'scope, and `Worker::scope` waits for the operation's end.
        let started =
            unsafe { self.worker.recv_raw(buf.as_mut_ptr(), buf.len(), matching, &OpParams::default()) };
        self.track(started)
    }

    /// Receives a message accepted by `matching` into several buffers, filled in order.
    pub fn recv_iov(
        &'scope self,
        matching: Match,
        bufs: impl IntoIterator<Item = &'scope mut [u8]>,
    ) -> ScopedRequest<'scope, RecvStatus> {
        let iov = |buf: &'scope mut [u8]| Iov { addr: buf.as_mut_ptr(), len: buf.len() };
        let pieces: Vec<Iov> = bufs.into_iter().map(iov).collect();
        // SAFETY: the slices are borrowed for 'scope, and `Worker::scope` waits for the operation's end.
        let started = unsafe { self.worker.recv_layout_raw(&pieces, matching, &OpParams::default()) };
        self.track(started)
    }

    /// Sends a copy of `header`, and `data`, to handler `id` of the peer; ends when `data` may be reused.
    pub fn am_send(
        &'scope self,
        ep: &Ep,
        id: u16,
        header: &[u8],
        data: &'scope [u8],
    ) -> ScopedRequest<'scope, ()> {
        self.am_send_with(ep, AmProto::Auto, id, header, data)
    }

    /// Sends an active message with a chosen protocol.
    pub fn am_send_with(
        &'scope self,
        ep: &Ep,
        proto: AmProto,
        id: u16,
        header: &[u8],
        data: &'scope [u8],
    ) -> ScopedRequest<'scope, ()> {
        let params = AmParams { proto, ..AmParams::default() };
        self.start_on(ep, |ep| {
            // SAFETY: the slice is borrowed for 'scope, and `Worker::scope` waits for the operation's end.
            unsafe { ep.am_send_raw(id, header, data.as_ptr(), data.len(), &params) }.map(with_empty_status)
        })
    }

    /// Sends bytes to the peer's stream; ends when they may be reused.
    pub fn stream_send(&'scope self, ep: &Ep, bytes: &'scope [u8]) -> ScopedRequest<'scope, ()> {
        self.start_on(ep, |ep| {
            // SAFETY: the slice is borrowed for 'scope, and `Worker::scope` waits for the operation's end.
            unsafe { ep.stream_send_raw(bytes.as_ptr(), bytes.len(), &OpParams::default()) }
                .map(with_empty_status)
        })
    }

    /// Receives bytes of the peer's stream: at least one, or as many as there is room for.
    pub fn stream_recv(
        &'scope self,
        ep: &Ep,
        buf: &'scope mut [u8],
        mode: StreamRecvMode,
    ) -> ScopedRequest<'scope, RecvStatus> {
        self.start_on(ep, |ep| {
            // SAFETY: the slice is borrowed for 'scope, and `Worker::scope` waits for the operation's end.
            unsafe { ep.stream_recv_raw(buf.as_mut_ptr(), buf.len(), mode, &OpParams::default()) }
                .map(OpStatus::InProgress)
        })
    }

    /// Executes `op` on as many elements of the peer's memory at `remote` as there are operands; ends when
    /// `old` has their old values. [`Error::Invalid`] if the two differ in length.
    pub fn atomic_fetch<T: AtomicType>(
        &'scope self,
        ep: &Ep,
        op: AtomicOp,
        operands: &'scope [T],
        old: &'scope mut [T],
        remote: u64,
        rkey: &Rkey,
    ) -> ScopedRequest<'scope, ()> {
        self.atomic_compare(ep, op, operands, operands, old, remote, rkey)
    }

    /// Executes a compare operation, as [`Scope::atomic_fetch`]. [`AtomicOp::CompareSwap`] stores the operand
    /// if the element equals that of `compare`.
    #[expect(clippy::too_many_arguments, reason = "what the operation consists of")]
    pub fn atomic_compare<T: AtomicType>(
        &'scope self,
        ep: &Ep,
        op: AtomicOp,
        compare: &'scope [T],
        operands: &'scope [T],
        old: &'scope mut [T],
        remote: u64,
        rkey: &Rkey,
    ) -> ScopedRequest<'scope, ()> {
        self.start_on(ep, |ep| {
            let params = atomic_params(op, compare, operands, old)?;
            // SAFETY: the slices are borrowed for 'scope, and `Worker::scope` waits for the operation's end.
            unsafe { ep.atomic_raw(remote, rkey, &params) }
        })
    }

    fn start_on<T>(
        &'scope self,
        ep: &Ep,
        start: impl FnOnce(&Ep) -> Result<OpStatus<RecvStatus>, Error>,
    ) -> ScopedRequest<'scope, T> {
        assert!(ep.worker().is(self.worker), "the endpoint belongs to another worker");
        self.track(start(ep))
    }

    fn send(&'scope self, ep: &Ep, bytes: &'scope [u8], params: &SendParams) -> ScopedRequest<'scope, ()> {
        assert!(ep.worker().is(self.worker), "the endpoint belongs to another worker");
        // SAFETY: the slice is borrowed for 'scope, and `Worker::scope` waits for the operation's end.
        let started = unsafe { ep.send_raw(bytes.as_ptr(), bytes.len(), params) };
        self.track(started.map(with_empty_status))
    }

    fn track<T>(&'scope self, started: Result<OpStatus<RecvStatus>, Error>) -> ScopedRequest<'scope, T> {
        let state = match started {
            Ok(OpStatus::Done(status)) => State::Ended(Ok(status)),
            Err(e) => State::Ended(Err(e)),
            Ok(OpStatus::InProgress(id)) => {
                self.running.borrow_mut().push(id);
                State::Running(id)
            }
        };
        ScopedRequest { worker: self.worker, running: &self.running, state, out: PhantomData }
    }
}

/// Parameters of an operation on slices, which have one length. Types of elements have no padding, and every
/// bit pattern is a value.
pub(crate) fn atomic_params<T: AtomicType>(
    op: AtomicOp,
    compare: &[T],
    operands: &[T],
    old: &mut [T],
) -> Result<AtomicParams<'static>, Error> {
    if compare.len() != operands.len() || old.len() != operands.len() {
        return Err(Error::Invalid);
    }
    Ok(AtomicParams {
        op,
        ty: T::TYPE,
        count: operands.len(),
        operand: operands.as_ptr().cast(),
        compare: compare.as_ptr().cast(),
        result: old.as_mut_ptr().cast(),
        sync: DeliveryComplete::No,
        done: None,
        mem: None,
    })
}

pub(crate) fn with_empty_status(started: OpStatus<()>) -> OpStatus<RecvStatus> {
    match started {
        OpStatus::Done(()) => OpStatus::Done(crate::api::core::requests::EMPTY_STATUS),
        OpStatus::InProgress(id) => OpStatus::InProgress(id),
    }
}

impl<T> ScopedRequest<'_, T> {
    fn wait_end(&mut self) -> Ended {
        match self.state {
            State::Ended(ended) => ended,
            State::Running(id) => {
                let ended = self.worker.wait_borrowed(id);
                self.end(id, ended)
            }
        }
    }

    /// Takes the result if the operation has ended.
    fn take_end(&mut self) -> Option<Ended> {
        match self.state {
            State::Ended(ended) => Some(ended),
            State::Running(id) => self.worker.test(id).map(|ended| self.end(id, ended)),
        }
    }

    fn end(&mut self, id: RequestId, ended: Ended) -> Ended {
        // Another operation may get the same id.
        let mut running = self.running.borrow_mut();
        if let Some(at) = running.iter().rposition(|&other| other == id) {
            running.swap_remove(at);
        }
        self.state = State::Ended(ended);
        ended
    }

    /// Whether the operation has ended.
    pub fn is_done(&self) -> bool {
        match self.state {
            State::Ended(_) => true,
            State::Running(id) => self.worker.core_keep_idle().reqs.is_complete(id),
        }
    }

    /// Cancels the operation; returns false if it continues or has ended.
    pub fn cancel(&self) -> bool {
        matches!(self.state, State::Running(id) if self.worker.cancel(id))
    }
}

impl ScopedRequest<'_, ()> {
    /// Returns the result if the operation has ended, otherwise the request.
    pub fn test(mut self) -> Result<Result<(), Error>, Self> {
        self.take_end().map(|ended| ended.map(drop)).ok_or(self)
    }

    /// Makes progress until the bytes may be reused.
    pub fn wait(mut self) -> Result<(), Error> {
        self.wait_end().map(drop)
    }
}

impl ScopedRequest<'_, RecvStatus> {
    /// Returns the result if the operation has ended, otherwise the request.
    pub fn test(mut self) -> Result<Result<RecvStatus, Error>, Self> {
        self.take_end().ok_or(self)
    }

    /// Makes progress until the bytes have been received.
    pub fn wait(mut self) -> Result<RecvStatus, Error> {
        self.wait_end()
    }
}
