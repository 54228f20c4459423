//! Protection domains, with a count of the objects in each.

use crate::abi::{IbvContext, IbvPd};
use crate::context::Context;
use crate::errno::{Errno, report, ret_int, ret_ptr};
use std::sync::atomic::{AtomicU32, Ordering};
use uct::efa::dev::Dev;
use uct::efa::dev::soft::Pd;

#[repr(C)]
pub struct PdObj {
    pub abi: IbvPd,
    pub pd: Pd,
    users: AtomicU32,
}

impl PdObj {
    /// The object behind a pointer. Unsafe: it is alive; the reference is not kept beyond the verb.
    pub unsafe fn of<'a>(pd: *mut IbvPd) -> &'a PdObj {
        // SAFETY: by this function's contract.
        unsafe { &*pd.cast::<PdObj>() }
    }

    pub fn context(&self) -> &Context {
        // SAFETY: a context outlives its domains (rule of verbs), and this one came from `Context::open`.
        unsafe { Context::of(self.abi.context) }
    }

    pub fn add_user(&self) {
        self.users.fetch_add(1, Ordering::Relaxed);
    }

    pub fn remove_user(&self) {
        self.users.fetch_sub(1, Ordering::Relaxed);
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_alloc_pd(ctx: *mut IbvContext) -> *mut IbvPd {
    // SAFETY: by this function's contract.
    let context = unsafe { Context::of(ctx) };
    let make = || -> Result<*mut IbvPd, Errno> {
        let pd = context.lock().dev.alloc_pd().map_err(|e| report(&e))?;
        let abi = IbvPd { context: ctx, number: 0 };
        Ok(Box::into_raw(Box::new(PdObj { abi, pd, users: AtomicU32::new(0) })).cast())
    };
    ret_ptr(make())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_dealloc_pd(pd: *mut IbvPd) -> i32 {
    // SAFETY: by this function's contract.
    if unsafe { PdObj::of(pd) }.users.load(Ordering::Relaxed) > 0 {
        return ret_int(Err(libc::EBUSY));
    }
    // SAFETY: made by Box::into_raw in `ibv_alloc_pd`, given back once.
    drop(unsafe { Box::from_raw(pd.cast::<PdObj>()) });
    0
}
