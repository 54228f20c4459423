//! A completion queue as C holds it, for `cq` (plain poll), `poll` (extended poll) and `channel` (events).

use crate::abi::{EfadvCq, IbvCqEx};
use crate::context::Context;
use crate::split_lock::SplitLock;
use crate::status::Completion;
use std::cell::UnsafeCell;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use ucs::coll::slots::SlotId;

#[repr(C)]
pub struct CqObj {
    pub ex: UnsafeCell<IbvCqEx>,
    pub efadv: EfadvCq,
    pub id: SlotId,
    /// Locked during an extended poll: its current entry.
    pub current: SplitLock<Completion>,
    pub events: UnackedEvents,
}

impl CqObj {
    /// The object behind a pointer of either C type. Unsafe: it is ours and alive; the reference is not kept.
    #[inline]
    pub unsafe fn of<'a, T>(cq: *mut T) -> &'a CqObj {
        // SAFETY: by this function's contract.
        unsafe { &*cq.cast::<CqObj>() }
    }

    #[inline]
    pub fn context(&self) -> &Context {
        // SAFETY: the field was written when the object was made and is never written again.
        let ctx = unsafe { (*self.ex.get()).base.context };
        // SAFETY: a context outlives its queues (rule of verbs), and this one came from `Context::open`.
        unsafe { Context::of(ctx) }
    }
}

/// Number of unacknowledged events of a queue, which is not destroyed before it is 0.
#[derive(Default)]
pub struct UnackedEvents {
    count: Mutex<u32>,
    acked: Condvar,
}

impl UnackedEvents {
    pub fn add(&self) {
        *locked(&self.count) += 1;
    }

    pub fn acknowledge(&self, n: u32) {
        let mut count = locked(&self.count);
        *count = count.saturating_sub(n);
        self.acked.notify_all();
    }

    pub fn wait(&self) {
        let mut count = locked(&self.count);
        while *count > 0 {
            count = self.acked.wait(count).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

pub fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic in a verb ends the process.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
