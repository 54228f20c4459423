//! Progress of an interface: what it reports goes to the handlers and completions of the program.

use std::ffi::{c_uint, c_void};

use ::ucs::Status;
use ::uct::api::{Am, EpTag, Error, Iface as _, Sink};

use super::iface::Iface;
use super::types::{AmCallback, Completion};
use crate::entry::{CStatus, guard};
use crate::handle::from_ptr;

/// Events of an interface in one call of progress.
const BUDGET: usize = 64;

/// Handler of an active message id.
#[derive(Clone, Copy)]
pub(crate) struct Handler {
    pub call: AmCallback,
    pub arg: *mut c_void,
}

/// Counts an operation as ended, and calls back after the last.
/// # Safety
/// The completion is the program's, which keeps it until its operations have ended.
// HOT
#[inline(always)]
unsafe fn complete(completion: *mut Completion, status: Status) {
    // SAFETY: this function's contract.
    unsafe {
        if status != Status::Ok && (*completion).status == CStatus(0) {
            (*completion).status = status.into();
        }
        (*completion).count -= 1;
        if (*completion).count == 0
            && let Some(func) = (*completion).func
        {
            func(completion);
        }
    }
}

/// Passes what an interface reports to the program.
struct Reports<'a>(&'a Iface);

impl Sink for Reports<'_> {
    // HOT
    #[inline(always)]
    fn on_am(&mut self, am: Am<'_>) {
        self.0.on_am(am);
    }

    // HOT
    #[inline(always)]
    fn on_comp(&mut self, token: u64, result: Result<(), Error>) {
        let status = result.map_or_else(Error::status, |()| Status::Ok);
        // SAFETY: tokens are addresses of completions, by `comp_of`.
        unsafe { complete(std::ptr::with_exposed_provenance_mut(token as usize), status) };
    }

    fn on_ep_error(&mut self, ep: EpTag, error: Error) {
        self.0.report_error(ep, error);
    }
}

#[cold]
fn dropped(id: u8) {
    tracing::warn!("active message {id} has no handler and is dropped");
}

#[cold]
fn answered(id: u8, status: CStatus) {
    tracing::error!("the handler of active message {id} answers {}: the message is freed", status.0);
}

/// The completion of an operation, by its address.
/// # Safety
/// It is null, or valid until the operation has ended.
// HOT
#[inline(always)]
pub(crate) unsafe fn comp_of(completion: *mut Completion) -> ::uct::api::Comp {
    if completion.is_null() {
        ::uct::api::Comp::None
    } else {
        ::uct::api::Comp::Token(completion.expose_provenance() as u64)
    }
}

impl Iface {
    /// Passes a message to its handler.
    // HOT
    #[inline(always)]
    pub(crate) fn on_am(&self, am: Am<'_>) {
        let handler = self.handlers.get(usize::from(am.id())).and_then(|handler| handler.get());
        let Some(handler) = handler else { return dropped(am.id()) };
        let data = am.data();
        // SAFETY: the program's handler gets the message for the time of the call. It may not be kept: the
        // flags do not say that it is a descriptor.
        let status = unsafe { (handler.call)(handler.arg, data.as_ptr().cast_mut().cast(), data.len(), 0) };
        if status != CStatus(0) {
            answered(am.id(), status);
        }
    }

    /// Progresses the interface, unless a handler or completion that it calls does so.
    // HOT
    #[inline(always)]
    pub(crate) fn progress(&self) -> c_uint {
        if self.delivers_within_send.get() && self.inner.is_idle() {
            return 0;
        }
        self.poll()
    }

    // HOT
    #[inline(never)]
    fn poll(&self) -> c_uint {
        if self.is_progressing.replace(true) {
            return 0;
        }
        let _ended = Ended(&self.is_progressing);
        self.inner.poll(BUDGET, &mut Reports(self)) as c_uint
    }
}

/// Marks a call of progress as ended when it is dropped, also after a panic.
struct Ended<'a>(&'a std::cell::Cell<bool>);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

/// Called by a worker for each of its interfaces.
// HOT
pub(crate) unsafe extern "C" fn progress_member(iface: *mut c_void) -> c_uint {
    // An interface leaves its worker before it is freed.
    // SAFETY: so that it is live.
    guard("uct_worker_progress", || Ok(unsafe { from_ptr(iface.cast::<Iface>()) }?.progress()))
}

operation! {
    /// Progresses one interface.
    fn iface_progress(iface: *mut Iface) -> c_uint {
        // SAFETY: the caller's contract.
        Ok(unsafe { from_ptr(iface) }?.progress())
    }
}
