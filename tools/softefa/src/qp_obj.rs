//! A queue pair as C holds it, for `qp` (life cycle), `post` and `wr_batch` (posting).

use crate::abi::{EfadvQp, IbvQpCap, IbvQpEx};
use crate::context::Context;
use crate::send_wr::WrBatch;
use crate::split_lock::SplitLock;
use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::sync::atomic::{AtomicU8, Ordering};
use ucs::coll::slots::SlotId;

pub const RESET: c_int = 0;
pub const INIT: c_int = 1;
pub const RTR: c_int = 2;
pub const RTS: c_int = 3;
pub const SQD: c_int = 4;
pub const ERR: c_int = 6;

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Srd {
        /// Writes with immediate consume no receive.
        unsolicited: bool,
    },
    Datagram,
}

#[repr(C)]
pub struct QpObj {
    pub ex: UnsafeCell<IbvQpEx>,
    pub efadv: EfadvQp,
    pub id: SlotId,
    pub kind: Kind,
    /// Actual capacities.
    pub cap: IbvQpCap,
    pub sig_all: bool,
    /// State for posts; the C field is for the program to read.
    pub state: AtomicU8,
    /// Locked during a batch of work requests.
    pub batch: SplitLock<WrBatch>,
}

impl QpObj {
    /// The object behind a pointer of either C type. Unsafe: it is ours and alive; the reference is not kept.
    #[inline]
    pub unsafe fn of<'a, T>(qp: *mut T) -> &'a QpObj {
        // SAFETY: by this function's contract.
        unsafe { &*qp.cast::<QpObj>() }
    }

    #[inline]
    pub fn context(&self) -> &Context {
        // SAFETY: the field was written when the object was made and is never written again.
        let ctx = unsafe { (*self.ex.get()).base.context };
        // SAFETY: a context outlives its queue pairs (rule of verbs), and this one came from `Context::open`.
        unsafe { Context::of(ctx) }
    }

    #[inline]
    pub fn may_send(&self) -> bool {
        matches!(c_int::from(self.state.load(Ordering::Relaxed)), RTS | SQD)
    }

    #[inline]
    pub fn may_recv(&self) -> bool {
        matches!(c_int::from(self.state.load(Ordering::Relaxed)), INIT | RTR | RTS | SQD)
    }

    /// Whether every send completes, signalled or not.
    #[inline]
    pub fn signals_all(&self) -> bool {
        self.sig_all
    }

    pub fn set_state(&self, state: c_int) {
        self.state.store(state as u8, Ordering::Relaxed);
        // SAFETY: the program changes the state from one thread at a time and reads the field afterwards.
        unsafe { (*self.ex.get()).base.state = state };
    }
}
