//! Operations with the flag `FI_TRIGGER`: each waits for the counter that its context names. It completes
//! like any other operation.

use std::sync::atomic::Ordering;

use super::Ep;
use super::owned_op::OwnedOp;
use crate::abi::{Fid, flags};
use crate::cntr::Cntr;
use crate::errno::Errno;
use crate::object::checked;

impl Ep {
    /// Makes an operation wait for the counter that its context names.
    #[cold]
    #[inline(never)]
    pub(super) fn trigger(&self, op: Result<OwnedOp, Errno>) -> Result<isize, Errno> {
        let mut op = op?;
        if self.caps & flags::TRIGGER == 0 {
            tracing::debug!("FI_TRIGGER: the endpoint was opened without this capability");
            return Err(Errno::BADFLAGS);
        }
        if !self.is_enabled.load(Ordering::Relaxed) {
            return Err(Errno::OPBADSTATE);
        }
        // SAFETY: only operations with the flag come here.
        let asked = unsafe { op.take_trigger() }?;
        if asked.event_type != flags::TRIGGER_THRESHOLD {
            tracing::debug!("FI_TRIGGER: event {} is not supported", asked.event_type);
            return Err(Errno::NOSYS);
        }
        // SAFETY: the counter of a triggered operation is open, by the contract of its call.
        let cntr: &Cntr = unsafe { checked(asked.cntr.cast::<Fid>()) }?;
        self.domain().trigger(cntr, asked.threshold as u64, self, op)?;
        Ok(0)
    }
}
