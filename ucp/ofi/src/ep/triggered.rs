//! Operations with the flag `FI_TRIGGER`: each waits for the counter that its context names. Its end is that
//! of every other operation.

use super::Ep;
use super::atomics::Atomic;
use super::one_sided::OneSided;
use super::owned_op::OwnedOp;
use super::recv::Recv;
use super::send::Send;
use crate::abi::{Fid, flags};
use crate::cntr::Cntr;
use crate::errno::Errno;
use crate::object::checked;

impl Ep {
    #[cold]
    #[inline(never)]
    pub(super) fn trigger_send(&self, send: &Send<'_>) -> Result<isize, Errno> {
        self.trigger(OwnedOp::of_send(send)?)
    }

    #[cold]
    #[inline(never)]
    pub(super) fn trigger_recv(&self, recv: &Recv<'_>) -> Result<isize, Errno> {
        self.trigger(OwnedOp::of_recv(recv)?)
    }

    #[cold]
    #[inline(never)]
    pub(super) fn trigger_read(&self, read: &OneSided<'_>) -> Result<isize, Errno> {
        self.trigger(OwnedOp::of_read(read)?)
    }

    #[cold]
    #[inline(never)]
    pub(super) fn trigger_write(&self, write: &OneSided<'_>) -> Result<isize, Errno> {
        self.trigger(OwnedOp::of_write(write)?)
    }

    #[cold]
    #[inline(never)]
    pub(super) fn trigger_atomic(&self, atomic: &Atomic<'_>) -> Result<isize, Errno> {
        self.trigger(OwnedOp::of_atomic(atomic)?)
    }

    /// Makes an operation wait for the counter that its context names.
    fn trigger(&self, mut op: OwnedOp) -> Result<isize, Errno> {
        if self.caps & flags::TRIGGER == 0 {
            tracing::debug!("FI_TRIGGER: the endpoint was opened without this capability");
            return Err(Errno::BADFLAGS);
        }
        if !self.is_enabled.get() {
            return Err(Errno::OPBADSTATE);
        }
        let asked = op.take_trigger()?;
        if asked.event_type != flags::TRIGGER_THRESHOLD {
            tracing::debug!("FI_TRIGGER: event {} is not supported", asked.event_type);
            return Err(Errno::NOSYS);
        }
        let cntr: &Cntr = checked(asked.cntr.cast::<Fid>())?;
        self.domain().trigger(cntr, asked.threshold as u64, self, op)?;
        Ok(0)
    }
}
