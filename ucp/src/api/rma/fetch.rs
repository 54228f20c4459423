//! Requests of atomic operations with a result.

use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::api::core::error::Error;
use crate::api::request::handles::RecvRequest;
use crate::api::rma::atomic_type::{AtomicType, MAX};
use crate::api::worker::handle::Worker;

use crate::rdm::RecvStatus;

/// Most buffers that a worker keeps for results.
const MAX_KEPT: usize = 256;

/// Running atomic operation, a future of the old value. Dropping it cancels the operation if none of it has
/// been sent; [`FetchRequest::detach`] lets it take effect.
#[must_use = "the operation may not take effect unless you wait for it, await it, or detach it"]
pub struct FetchRequest<T: AtomicType> {
    request: RecvRequest<Box<[u8]>>,
    /// Keeps the result's memory for the next operation.
    worker: Worker,
    of: PhantomData<T>,
}

/// Memory for a result.
pub(crate) fn take_buf(worker: &Worker) -> Box<[u8]> {
    let kept = worker.inner.fetch_bufs.borrow_mut().pop();
    kept.unwrap_or_else(|| Box::new([0; MAX]))
}

/// The value of an ended operation, whose memory serves the next one.
fn value<T: AtomicType>(
    worker: &Worker,
    (result, bytes): (Result<RecvStatus, Error>, Box<[u8]>),
) -> Result<T, Error> {
    let mut old = [0; MAX];
    let len = T::TYPE.size();
    old[..len].copy_from_slice(&bytes[..len]);
    let mut kept = worker.inner.fetch_bufs.borrow_mut();
    if kept.len() < MAX_KEPT {
        kept.push(bytes);
    }
    result.map(|_| T::from_bytes(old))
}

impl<T: AtomicType> FetchRequest<T> {
    pub(crate) fn new(worker: &Worker, request: RecvRequest<Box<[u8]>>) -> Self {
        FetchRequest { request, worker: worker.clone(), of: PhantomData }
    }

    /// Whether the operation has completed.
    pub fn is_done(&self) -> bool {
        self.request.is_done()
    }

    /// Returns the old value if the operation has ended, otherwise the request.
    pub fn test(self) -> Result<Result<T, Error>, Self> {
        let FetchRequest { request, worker, of } = self;
        match request.test() {
            Ok(ended) => Ok(value(&worker, ended)),
            Err(request) => Err(FetchRequest { request, worker, of }),
        }
    }

    /// Takes the old value, once, if the operation has ended.
    pub(crate) fn take(&mut self) -> Option<Result<T, Error>> {
        let ended = self.request.take()?;
        Some(value(&self.worker, ended))
    }

    /// Cancels the operation if none of it has been sent; true if it ends as cancelled.
    pub fn cancel(&self) -> bool {
        self.request.cancel()
    }

    /// Calls `then` from progress when the operation ends, or at once if it has ended. Allocates.
    pub fn then(self, then: impl FnOnce(Result<T, Error>) + 'static) {
        let worker = self.worker.downgrade();
        self.request.then(move |result, bytes| match worker.upgrade() {
            Some(worker) => then(value(&worker, (result, bytes))),
            None => then(Err(Error::Cancelled)),
        });
    }

    /// Lets the operation continue; its result is dropped.
    pub fn detach(self) {
        self.request.detach();
    }

    /// Makes progress until the old value has arrived.
    pub fn wait(self) -> Result<T, Error> {
        let FetchRequest { request, worker, .. } = self;
        value(&worker, request.wait())
    }
}

impl<T: AtomicType> Unpin for FetchRequest<T> {}

impl<T: AtomicType> Future for FetchRequest<T> {
    type Output = Result<T, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        Pin::new(&mut this.request).poll(cx).map(|ended| value(&this.worker, ended))
    }
}
