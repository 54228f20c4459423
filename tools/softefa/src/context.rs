//! A context (`struct ibv_context`), and behind it the state, its lock and its progress thread.

use crate::abi::{IbvContext, VerbsContext};
use crate::errno::Errno;
use crate::progress_thread::ProgressThread;
use crate::state::State;
use rustix::event::{EventfdFlags, eventfd};
use std::mem::offset_of;
use std::os::fd::OwnedFd;
use std::sync::MutexGuard;
use ucs::coll::slots::SlotId;
use uct::efa::dev::soft::{Device, Net};
use uct::efa::dev::{Dev, DevAttr, Gid};

#[repr(C)]
pub struct Context {
    verbs: VerbsContext,
    progress: ProgressThread,
    pub attr: DevAttr,
    pub gid: Gid,
    /// Descriptor of asynchronous events, of which there are none.
    _events: OwnedFd,
}

impl Context {
    /// Opens a context on `dev`, with `watch` one that notices unmapping; `fill` makes the C part from the
    /// events descriptor.
    pub fn open(
        dev: Device<Net>,
        watch: bool,
        fill: impl FnOnce(i32) -> VerbsContext,
    ) -> Result<*mut IbvContext, Errno> {
        use std::os::fd::AsRawFd;
        let events = eventfd(0, EventfdFlags::CLOEXEC).map_err(|e| e.raw_os_error())?;
        let (attr, gid) = (dev.attr().clone(), dev.gid());
        let verbs = fill(events.as_raw_fd());
        let whole = Box::new(Context {
            verbs,
            progress: ProgressThread::new(State::new(dev, watch)),
            attr,
            gid,
            _events: events,
        });
        let whole = Box::into_raw(whole);
        Ok(whole.cast::<u8>().wrapping_add(offset_of!(Context, verbs.context)).cast())
    }

    /// The context of a pointer from [`Context::open`]. Unsafe: it is open, and not kept beyond the verb.
    #[inline]
    pub unsafe fn of<'a>(ctx: *mut IbvContext) -> &'a Context {
        let whole = ctx.cast::<u8>().wrapping_sub(offset_of!(Context, verbs.context)).cast::<Context>();
        // SAFETY: by this function's contract `whole` is the live allocation made in `open`.
        unsafe { &*whole }
    }

    /// Frees a context, unless objects of it are alive or its lock cannot be had. Unsafe: nobody uses it
    /// afterwards.
    pub unsafe fn close(ctx: *mut IbvContext) {
        // SAFETY: by this function's contract.
        let idle = unsafe { Context::of(ctx) }.lock_to_free().is_some_and(|state| state.is_idle());
        if idle {
            let whole = ctx.cast::<u8>().wrapping_sub(offset_of!(Context, verbs.context));
            // SAFETY: made by Box::into_raw in `open`, and given back once (contract).
            drop(unsafe { Box::from_raw(whole.cast::<Context>()) });
        }
    }

    // HOT
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.progress.lock()
    }

    /// Locks to free an object, or answers that it stays ([`ProgressThread::lock_to_free`]).
    pub fn lock_to_free(&self) -> Option<MutexGuard<'_, State>> {
        self.progress.lock_to_free()
    }

    /// Wakes the progress thread if the post left deferred requests, which move even if the program stops
    /// polling.
    // HOT
    #[inline]
    pub fn wake_if_deferred(&self, state: &mut State, qp: SlotId) {
        if state.qps.get(qp).is_some_and(|qp_state| qp_state.qp.has_deferred()) {
            self.progress.wake(state);
        }
    }
}
