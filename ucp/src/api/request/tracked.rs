//! The operation of a request, as a completion queue takes it over.

use crate::api::core::requests::{Ended, RequestId};
use crate::api::request::buf::InFlightBuf;

/// `set_filled` of a container or a list of them.
pub(crate) type SetFilled<B> = unsafe fn(&mut B, usize);

/// A request of which nothing but its operation is left.
pub struct TrackedOp<B: 'static> {
    pub(crate) state: TrackedState,
    pub(crate) buf: Option<InFlightBuf<B>>,
    pub(crate) set_filled: Option<SetFilled<B>>,
}

impl<B: 'static> TrackedOp<B> {
    /// An operation that has ended, whose buffer is as long as it is to be.
    pub(crate) fn ended(ended: Ended, buf: Option<B>) -> TrackedOp<B> {
        TrackedOp { state: TrackedState::Ended(ended), buf: buf.map(InFlightBuf::new), set_filled: None }
    }
}

/// How far an operation is.
pub(crate) enum TrackedState {
    Ended(Ended),
    Running(RequestId),
}
