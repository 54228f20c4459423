//! The requests that a completion queue takes.

use crate::api::am::send::AmSend;
use crate::api::request::handles::{FlushRequest, RecvRequest, SendRequest};
use crate::api::request::tracked::TrackedOp;
use crate::api::worker::handle::Worker;

/// A request that a [`CompletionQueue`](crate::CompletionQueue) takes: of a send, a receive, a put, a get, an
/// active message, of data of a stream, or of a flush.
pub trait Tracked<B: 'static>: sealed::Sealed {
    /// The worker at which it runs.
    #[doc(hidden)]
    fn running_at(&self) -> Option<&Worker>;

    #[doc(hidden)]
    fn into_tracked(self) -> TrackedOp<B>;
}

mod sealed {
    pub trait Sealed {}
}

impl<B: 'static> sealed::Sealed for SendRequest<B> {}
impl<B: 'static> Tracked<B> for SendRequest<B> {
    #[inline]
    fn running_at(&self) -> Option<&Worker> {
        SendRequest::running_at(self)
    }

    #[inline]
    fn into_tracked(self) -> TrackedOp<B> {
        SendRequest::into_tracked(self)
    }
}

impl<B: 'static> sealed::Sealed for RecvRequest<B> {}
impl<B: 'static> Tracked<B> for RecvRequest<B> {
    #[inline]
    fn running_at(&self) -> Option<&Worker> {
        RecvRequest::running_at(self)
    }

    #[inline]
    fn into_tracked(self) -> TrackedOp<B> {
        RecvRequest::into_tracked(self)
    }
}

impl<B: 'static> sealed::Sealed for AmSend<B> {}
impl<B: 'static> Tracked<B> for AmSend<B> {
    #[inline]
    fn running_at(&self) -> Option<&Worker> {
        self.as_send().running_at()
    }

    #[inline]
    fn into_tracked(self) -> TrackedOp<B> {
        self.into_send().into_tracked()
    }
}

/// The end of a flush has no buffer.
impl sealed::Sealed for FlushRequest {}
impl<B: 'static> Tracked<B> for FlushRequest {
    fn running_at(&self) -> Option<&Worker> {
        FlushRequest::running_at(self)
    }

    fn into_tracked(self) -> TrackedOp<B> {
        TrackedOp { state: self.into_state(), buf: None, set_filled: None }
    }
}
