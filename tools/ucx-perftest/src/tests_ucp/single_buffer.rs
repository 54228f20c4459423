//! One contiguous buffer shared by all operations of a window, in runs that check no bytes: the fast path of
//! `tag`.

use ucp::{Ep, Match, OpParams, OpStatus, SendParams, Worker};

use super::slot::Slot;
use super::test_worker::TestWorker;
use super::waiter::{Waiter, op_failed};
use crate::fail::Failure;

pub struct SingleBuffer<'a> {
    worker: &'a TestWorker,
    at: *mut u8,
    size: usize,
}

impl<'a> SingleBuffer<'a> {
    /// # Safety
    /// `at` starts `size` bytes that nobody reads or relies on. They live as long as a slot passed to the
    /// calls below is `Running`.
    pub unsafe fn new(worker: &'a TestWorker, at: *mut u8, size: usize) -> SingleBuffer<'a> {
        SingleBuffer { worker, at, size }
    }

    /// Sends the buffer for an idle slot.
    // HOT
    #[inline(always)]
    pub fn send(&self, slot: &mut Slot, ep: &Ep, params: &SendParams) -> Result<(), Failure> {
        debug_assert!(matches!(slot, Slot::Idle));
        // SAFETY: `new`'s contract; the slot records the operation.
        match self.worker.call(|_| unsafe { ep.send_raw(self.at, self.size, params) }) {
            Ok(OpStatus::Done(())) => Ok(()),
            Ok(OpStatus::InProgress(id)) => {
                *slot = Slot::Running(id);
                Ok(())
            }
            Err(e) => Err(op_failed(e)),
        }
    }

    /// Receives into the buffer for an idle slot.
    // HOT
    #[inline(always)]
    pub fn recv(&self, slot: &mut Slot, matching: Match) -> Result<(), Failure> {
        debug_assert!(matches!(slot, Slot::Idle));
        let (at, size) = (self.at, self.size);
        // SAFETY: as in `send`.
        let recv = |worker: &Worker| unsafe { worker.recv_raw(at, size, matching, &OpParams::default()) };
        match self.worker.call(recv) {
            Ok(OpStatus::InProgress(id)) => {
                *slot = Slot::Running(id);
                Ok(())
            }
            Ok(OpStatus::Done(_)) => Ok(()),
            Err(e) => Err(op_failed(e)),
        }
    }

    /// Waits until a slot is idle.
    // HOT
    #[inline(always)]
    pub fn wait(&self, slot: &mut Slot, wait: &mut Waiter<'_>) -> Result<(), Failure> {
        let Slot::Running(id) = *slot else { return Ok(()) };
        let ended = loop {
            match self.worker.call(|worker| worker.test(id)) {
                Some(ended) => break ended,
                // Only an event can end it: test again after one.
                None => while !wait.progress(self.worker)? {},
            }
        };
        *slot = Slot::Idle;
        ended.map(drop).map_err(op_failed)
    }
}
