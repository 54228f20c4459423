//! The state of one buffer of a window. Used by `window` and `single_buffer`.

use ucp::{RequestId, Started};

use super::waiter::op_failed;
use crate::fail::Failure;

/// What a buffer is doing. Small: it is written and read for each message.
#[derive(Clone, Copy)]
pub enum Slot {
    /// Nothing; whatever it did has been seen.
    Idle,
    /// An operation has the buffer.
    Running(RequestId),
    /// A receive ended in the call that began it.
    Ended,
}

impl Slot {
    /// What the buffer of an operation without a status is doing. HOT
    #[inline(always)]
    pub fn of(started: Result<Started<()>, ucp::Error>) -> Result<Slot, Failure> {
        Ok(match started.map_err(op_failed)? {
            Started::Done(()) => Slot::Idle,
            Started::Running(id) => Slot::Running(id),
        })
    }
}
