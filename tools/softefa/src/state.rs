//! What lies behind a context: the device and all its objects, under one lock, named by ids with a generation.
//! Used by every verb. The lock is never held while a caller's code runs, nor across the start and end of a session.

use crate::abi::{IbvContext, VerbsContext};
use crate::ah::AhnTable;
use crate::cq::CqState;
use crate::progress_thread::{ProgressThread, ThreadState};
use rustix::event::{EventfdFlags, eventfd};
use std::mem::offset_of;
use std::os::fd::OwnedFd;
use std::sync::MutexGuard;
use ucs::coll::slots::{SlotId, Slots};
use uct::api::{Error, OpenError};
use uct::efa::dev::soft::{Device, Mr, Pd, Qp, Shm};
use uct::efa::dev::{Dev, DevAttr, DevQp, Gid};

/// An error number of the C library.
pub type Errno = i32;

/// A queue pair as its context knows it.
pub struct QpState {
    pub qp: Qp<Shm>,
    pub pd: Pd,
    /// Datagrams without promises.
    pub datagram: bool,
    /// Writes with immediate use up no receive.
    pub unsolicited: bool,
    pub send_cq: SlotId,
    pub recv_cq: SlotId,
    pub attrs: QpAttrs,
}

/// What a program has set of a queue pair's attributes, for it to ask.
#[derive(Clone, Copy, Default)]
pub struct QpAttrs {
    pub qkey: u32,
    pub sq_psn: u32,
    pub rnr_retry: u8,
}

/// A device and its objects.
pub struct State {
    pub dev: Device<Shm>,
    pub mrs: Slots<Mr<Shm>>,
    pub cqs: Slots<CqState>,
    pub qps: Slots<QpState>,
    /// Queue pairs by number modulo the length, a power of two: the device keeps them distinct so.
    by_qpn: Vec<SlotId>,
    pub ahs: AhnTable,
    /// What the engine does.
    pub thread: ThreadState,
}

// SAFETY: the parts of a soft device share counted references and cells without synchronisation. All of them, of one
// context, are inside one `State`, which hands out nothing but copies of plain values and borrows bound to its guard;
// so whoever holds the context's lock is the only one to touch any of them.
unsafe impl Send for State {}

impl State {
    fn new(dev: Device<Shm>) -> State {
        let numbers = (dev.attr().max_qp.max(1) as usize).next_power_of_two();
        State {
            dev,
            mrs: Slots::with_limit(1 << 16),
            cqs: Slots::with_limit(1 << 16),
            qps: Slots::with_limit(1 << 16),
            by_qpn: vec![SlotId::NONE; numbers],
            ahs: AhnTable::default(),
            thread: ThreadState::default(),
        }
    }

    fn qpn_slot(&self, qpn: u16) -> usize {
        usize::from(qpn) & (self.by_qpn.len() - 1)
    }

    /// Adds a queue pair.
    pub fn insert_qp(&mut self, row: QpState) -> Result<SlotId, Errno> {
        let slot = self.qpn_slot(row.qp.qpn());
        let id = self.qps.insert(row).map_err(|_| libc::ENOMEM)?;
        self.by_qpn[slot] = id;
        Ok(id)
    }

    /// Takes a queue pair out; the device destroys it.
    pub fn remove_qp(&mut self, id: SlotId) -> Option<QpState> {
        let row = self.qps.remove(id)?;
        let slot = self.qpn_slot(row.qp.qpn());
        self.by_qpn[slot] = SlotId::NONE;
        Some(row)
    }

    /// The queue pair of a number. // HOT
    #[inline]
    pub fn qp_by_number(&self, qpn: u16) -> Option<&QpState> {
        self.qps.get(self.by_qpn[self.qpn_slot(qpn)])
    }

    fn is_idle(&self) -> bool {
        let empty = |n: usize| n == 0;
        empty(self.mrs.iter().count()) && empty(self.cqs.iter().count()) && empty(self.qps.iter().count())
    }
}

/// A context: what C sees, and behind it what it does not.
#[repr(C)]
pub struct Context {
    verbs: VerbsContext,
    progress: ProgressThread,
    /// What the device is; it never changes.
    pub attr: DevAttr,
    /// Its GID; it never changes.
    pub gid: Gid,
    /// Shown as the descriptor of asynchronous events, of which there are none.
    _events: OwnedFd,
}

impl Context {
    /// A context on `dev`; `fill` makes its C part, given the descriptor for events. Freed by [`Context::close`].
    pub fn open(dev: Device<Shm>, fill: impl FnOnce(i32) -> VerbsContext) -> Result<*mut IbvContext, Errno> {
        use std::os::fd::AsRawFd;
        let events = eventfd(0, EventfdFlags::CLOEXEC).map_err(|e| e.raw_os_error())?;
        let (attr, gid) = (dev.attr().clone(), dev.gid());
        let verbs = fill(events.as_raw_fd());
        let whole = Box::new(Context {
            verbs,
            progress: ProgressThread::new(State::new(dev)),
            attr,
            gid,
            _events: events,
        });
        let whole = Box::into_raw(whole);
        Ok(whole.cast::<u8>().wrapping_add(offset_of!(Context, verbs.context)).cast())
    }

    /// The context of a pointer that [`Context::open`] gave.
    ///
    /// # Safety
    /// `ctx` is such a pointer and was not closed; the reference is not kept beyond the verb.
    #[inline]
    pub unsafe fn of<'a>(ctx: *mut IbvContext) -> &'a Context {
        let whole = ctx.cast::<u8>().wrapping_sub(offset_of!(Context, verbs.context)).cast::<Context>();
        // SAFETY: by this function's contract `whole` is the live allocation made in `open`.
        unsafe { &*whole }
    }

    /// Frees a context. One whose objects live on is left as it is: a late call must find it.
    ///
    /// # Safety
    /// As for [`Context::of`]; no other thread uses it, and nobody does afterwards.
    pub unsafe fn close(ctx: *mut IbvContext) {
        // SAFETY: by this function's contract.
        let idle = unsafe { Context::of(ctx) }.lock().is_idle();
        if idle {
            let whole = ctx.cast::<u8>().wrapping_sub(offset_of!(Context, verbs.context));
            // SAFETY: made by Box::into_raw in `open`, and given back once (contract).
            drop(unsafe { Box::from_raw(whole.cast::<Context>()) });
        }
    }

    /// Everything behind it. // HOT
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.progress.lock()
    }

    /// Called after a post: sees to it that what the post left undone is done even if the program polls no more. // HOT
    #[inline]
    pub fn wake_if_deferred(&self, state: &mut State, qp: SlotId) {
        if state.qps.get(qp).is_some_and(|row| row.qp.has_deferred()) {
            self.progress.wake(state);
        }
    }
}

/// The error number of an error of the device.
pub fn errno_of(e: Error) -> Errno {
    match e {
        Error::Sys { errno, .. } => errno.0,
        Error::NoMemory | Error::Exhausted(_) => libc::ENOMEM,
        Error::NoDescriptor => libc::EMFILE,
        Error::Unsupported(_) => libc::EOPNOTSUPP,
        _ => libc::EINVAL,
    }
}

/// The error number of a failed opening; what a number cannot say goes to standard error.
pub fn errno_of_open(e: &OpenError) -> Errno {
    match e {
        OpenError::Op(e) => errno_of(*e),
        OpenError::Environment(_) => {
            eprintln!("softefa: {e}");
            libc::EIO
        }
        OpenError::Exhausted { errno, .. } => {
            eprintln!("softefa: {e}");
            errno.0
        }
        _ => libc::EINVAL,
    }
}

/// Sets the C library's error number.
pub fn set_errno(e: Errno) {
    // SAFETY: the location of the calling thread's errno is always valid.
    let at = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    unsafe { *at = e };
}

/// What a verb that answers with a pointer answers: the object, or null and errno.
pub fn pointer<T>(made: Result<*mut T, Errno>) -> *mut T {
    made.unwrap_or_else(|e| {
        set_errno(e);
        std::ptr::null_mut()
    })
}

/// What a verb that answers with a number answers: 0, or the error number, which is in errno too.
pub fn number(done: Result<(), Errno>) -> i32 {
    match done {
        Ok(()) => 0,
        Err(e) => {
            set_errno(e);
            e
        }
    }
}
