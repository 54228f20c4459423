//! State of one buffer of a window.

use ucp::{OpStatus, RequestId};

use super::waiter::op_failed;
use crate::fail::Failure;

/// Small, as it is read and written for each message.
#[derive(Clone, Copy)]
pub enum Slot {
    Idle,
    Running(RequestId),
    /// A receive ended in the call that began it.
    Ended,
}

impl Slot {
    // HOT
    #[inline(always)]
    pub fn of(started: Result<OpStatus<()>, ucp::Error>) -> Result<Slot, Failure> {
        Ok(match started.map_err(op_failed)? {
            OpStatus::Done(()) => Slot::Idle,
            OpStatus::InProgress(id) => Slot::Running(id),
        })
    }
}
