//! The buffer of a window of one, in one piece, of a run that looks at no byte: a ping-pong's, which asks nothing else of a
//! [`Ring`](super::ring::Ring) for each message. Made by `ring`, used by `tag`.

use ucp::{Ep, Match, SendParams, Started, Worker};

use super::ring::{Slot, Waiter, failed};
use crate::fail::Failure;

/// One buffer.
pub struct Lone<'a> {
    worker: &'a Worker,
    at: *mut u8,
    size: usize,
    slot: &'a mut Slot,
}

impl<'a> Lone<'a> {
    /// # Safety
    /// `at` starts `size` bytes that nobody touches while `slot`, which is theirs, says that an operation of `worker` has them, nor
    /// as long as this lives.
    pub unsafe fn new(worker: &'a Worker, at: *mut u8, size: usize, slot: &'a mut Slot) -> Lone<'a> {
        Lone { worker, at, size, slot }
    }

    /// Sends it. It is idle. HOT
    #[inline(always)]
    pub fn send(&mut self, ep: &Ep, params: &SendParams) -> Result<(), Failure> {
        debug_assert!(matches!(self.slot, Slot::Idle));
        // SAFETY: `new`'s contract; the slot says what has begun.
        match unsafe { ep.send_raw(self.at, self.size, params) } {
            Ok(Started::Done(())) => Ok(()),
            Ok(Started::Running(id)) => {
                *self.slot = Slot::Running(id);
                Ok(())
            }
            Err(e) => Err(failed(e)),
        }
    }

    /// Receives into it. It is idle. HOT
    #[inline(always)]
    pub fn recv(&mut self, what: Match) -> Result<(), Failure> {
        debug_assert!(matches!(self.slot, Slot::Idle));
        // SAFETY: as in `send`.
        match unsafe { self.worker.recv_raw(self.at, self.size, what, None) } {
            Ok(Started::Running(id)) => {
                *self.slot = Slot::Running(id);
                Ok(())
            }
            // Nobody asks what has come.
            Ok(Started::Done(_)) => Ok(()),
            Err(e) => Err(failed(e)),
        }
    }

    /// Waits until it is idle. HOT
    #[inline(always)]
    pub fn wait(&mut self, wait: &mut Waiter<'_>) -> Result<(), Failure> {
        let Slot::Running(id) = *self.slot else { return Ok(()) };
        let ended = loop {
            match self.worker.test(id) {
                Some(ended) => break ended,
                // What has not ended can only end when something happens.
                None => while !wait.progress(self.worker)? {},
            }
        };
        *self.slot = Slot::Idle;
        ended.map(drop).map_err(failed)
    }
}
