//! The one buffer, in one piece, of a run that looks at no byte: all operations of the window have it, and nothing else is asked of a
//! [`WindowBuffers`](super::window::WindowBuffers) for each message. Made by `ring`, used by `tag`.

use ucp::{Ep, Match, SendParams, Started, Worker};

use super::slot::Slot;
use super::waiter::{Waiter, op_failed};
use crate::fail::Failure;

/// The buffer.
pub struct SingleBuffer<'a> {
    worker: &'a Worker,
    at: *mut u8,
    size: usize,
}

impl<'a> SingleBuffer<'a> {
    /// # Safety
    /// `at` starts `size` bytes that nobody looks at, and that live as long as one of the slots that are passed to the calls below says that
    /// an operation of `worker` has them.
    pub unsafe fn new(worker: &'a Worker, at: *mut u8, size: usize) -> SingleBuffer<'a> {
        SingleBuffer { worker, at, size }
    }

    /// Sends it for an idle slot. HOT
    #[inline(always)]
    pub fn send(&self, slot: &mut Slot, ep: &Ep, params: &SendParams) -> Result<(), Failure> {
        debug_assert!(matches!(slot, Slot::Idle));
        // SAFETY: `new`'s contract; the slot says what has set_started.
        match unsafe { ep.send_raw(self.at, self.size, params) } {
            Ok(Started::Done(())) => Ok(()),
            Ok(Started::Running(id)) => {
                *slot = Slot::Running(id);
                Ok(())
            }
            Err(e) => Err(op_failed(e)),
        }
    }

    /// Receives into it for an idle slot. HOT
    #[inline(always)]
    pub fn recv(&self, slot: &mut Slot, matching: Match) -> Result<(), Failure> {
        debug_assert!(matches!(slot, Slot::Idle));
        // SAFETY: as in `send`.
        match unsafe { self.worker.recv_raw(self.at, self.size, matching, None) } {
            Ok(Started::Running(id)) => {
                *slot = Slot::Running(id);
                Ok(())
            }
            // Nobody asks what has come.
            Ok(Started::Done(_)) => Ok(()),
            Err(e) => Err(op_failed(e)),
        }
    }

    /// Waits until a slot is idle. HOT
    #[inline(always)]
    pub fn wait(&self, slot: &mut Slot, wait: &mut Waiter<'_>) -> Result<(), Failure> {
        let Slot::Running(id) = *slot else { return Ok(()) };
        let ended = loop {
            match self.worker.test(id) {
                Some(ended) => break ended,
                // What has not ended can only end when something happens.
                None => while !wait.progress(self.worker)? {},
            }
        };
        *slot = Slot::Idle;
        ended.map(drop).map_err(op_failed)
    }
}
