//! Parameters of atomic operations.

use crate::api::core::requests::Callback;
use crate::api::data::iov::Iov;

use crate::rdm::amo::Form;
use crate::select::Sync;
use crate::wire::{AtomicOp, Datatype};

/// Parameters of [`Ep::atomic_raw`](crate::Ep::atomic_raw): one operation on `count` contiguous elements.
#[derive(Clone, Copy, Debug)]
pub struct AtomicParams {
    /// Operation.
    pub op: AtomicOp,
    /// Element type.
    pub ty: Datatype,
    /// Number of elements.
    pub count: usize,
    /// One operand per element; unused by [`AtomicOp::Read`].
    pub operand: *const u8,
    /// One compare value per element, for compare operations.
    pub compare: *const u8,
    /// Receives the old values; null for an operation without result.
    pub result: *mut u8,
    /// When an operation without result is complete.
    pub sync: Sync,
    /// Called at completion, unless the operation completes in the call.
    pub done: Option<Callback>,
}

impl AtomicParams {
    pub(crate) fn form(&self) -> Form {
        match (self.op as u32 >= AtomicOp::CompareSwap as u32, self.result.is_null()) {
            (true, _) => Form::Compare,
            (false, true) => Form::Write,
            (false, false) => Form::Fetch,
        }
    }
}

/// Parameters of [`Ep::atomic_iov_raw`](crate::Ep::atomic_iov_raw). Each list has up to four pieces.
#[derive(Clone, Copy, Debug)]
pub struct AtomicIovParams<'a> {
    /// Operation.
    pub op: AtomicOp,
    /// Element type.
    pub ty: Datatype,
    /// One operand per element; empty for [`AtomicOp::Read`].
    pub operand: &'a [Iov],
    /// One compare value per element; empty for other operations.
    pub compare: &'a [Iov],
    /// Receives the old values; `None`: they are not returned.
    pub result: Option<&'a [Iov]>,
    /// When an operation without result is complete.
    pub sync: Sync,
    /// Called at completion, unless the operation completes in the call.
    pub done: Option<Callback>,
}
