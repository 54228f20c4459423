//! Parameters of atomic operations.

use crate::api::core::error::Error;
use crate::api::core::requests::Callback;
use crate::api::data::iov::Iov;
use crate::api::data::params::check_mem;
use crate::api::mem::memory::Mem;

use crate::rdm::amo::Form;
use crate::select::DeliveryComplete;
use crate::wire::{AtomicOp, Datatype};

/// Parameters of [`Ep::atomic_raw`](crate::Ep::atomic_raw): one operation on `count` contiguous elements.
#[derive(Clone, Copy, Debug)]
pub struct AtomicParams<'a> {
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
    pub sync: DeliveryComplete,
    /// Called at completion, unless the operation completes in the call.
    pub done: Option<Callback>,
    /// Registered memory that receives the old values, as in [`OpParams::mem`](crate::OpParams::mem).
    /// Operands may be anywhere: short ones are copied in the call.
    pub mem: Option<&'a Mem>,
}

impl AtomicParams<'_> {
    /// Checks that the old values go to the memory that the parameters name, if they name one.
    // HOT
    #[inline(always)]
    pub(crate) fn check_mem(&self) -> Result<(), Error> {
        if self.mem.is_none() || self.result.is_null() {
            return Ok(());
        }
        let len = self.count.checked_mul(self.ty.size()).ok_or(Error::Invalid)?;
        check_mem(self.mem, self.result, len)
    }

    /// Parameters of an operation that is deferred: its callback and memory are kept and checked apart.
    pub(crate) fn without_borrows(&self) -> AtomicParams<'static> {
        let AtomicParams { op, ty, count, operand, compare, result, sync, .. } = *self;
        AtomicParams { op, ty, count, operand, compare, result, sync, done: None, mem: None }
    }

    pub(crate) fn form(&self) -> Form {
        match (self.op as u32 >= AtomicOp::CompareSwap as u32, self.result.is_null()) {
            (true, _) => Form::Compare,
            (false, true) => Form::Write,
            (false, false) => Form::Fetch,
        }
    }
}

/// Parameters of [`Ep::atomic_iov_raw`](crate::Ep::atomic_iov_raw). Lists have any number of pieces.
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
    pub sync: DeliveryComplete,
    /// Called at completion, unless the operation completes in the call.
    pub done: Option<Callback>,
    /// Registered memory that receives the old values, as in [`OpParams::mem`](crate::OpParams::mem).
    /// Operands may be anywhere: short ones are copied in the call.
    pub mem: Option<&'a Mem>,
}
