//! Workers: queues of callbacks that an inline function of programs calls.

use std::cell::RefCell;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Mutex, PoisonError};

use ::ucs::Status;

use super::types::{CallbackQueue, QueueElement};
use crate::arg::OutPtr;
use crate::entry::{CStatus, invalid};
use crate::handle::{Named, found, free_read_inline, into_handle};
use crate::types::thread_mode;

/// `uct_worker_t`, and behind it what is progressed.
#[repr(C)]
pub(crate) struct Worker {
    /// Has one callback, [`progress`].
    queue: CallbackQueue,
    /// `ucs_thread_mode_t`.
    pub(crate) mode: c_int,
    /// Only the thread that makes progress uses them.
    members: RefCell<Vec<Member>>,
    /// Changes of `members` that progress has not made, in order. Any thread adds some.
    changes: Mutex<Vec<Change>>,
    /// Whether there are changes.
    has_changes: AtomicBool,
    next_id: AtomicI32,
}

impl Named for Worker {
    const NAME: &'static str = "uct worker";
    const IS_STATIC: bool = false;
}

/// `ucs_callback_t`.
pub(crate) type Callback = unsafe extern "C" fn(arg: *mut c_void) -> c_uint;

/// Member of a worker: an interface, or a callback of the program.
#[derive(Clone, Copy)]
struct Member {
    id: c_int,
    call: Callback,
    arg: *mut c_void,
    once: bool,
}

/// Change of what a worker progresses.
enum Change {
    Add(Member),
    Remove(c_int),
}

/// `UCS_CALLBACKQ_FLAG_ONESHOT`.
const ONESHOT: c_uint = 1 << 1;
/// `UCS_CALLBACKQ_ID_NULL`.
const NO_ID: c_int = -1;
/// The number of an element of the queue, which nobody reads. In UCX 1.23 elements have no flags and number:
/// the place is the next element's callback, and there is none.
const UNUSED: c_int = 0;

impl Worker {
    /// Adds a callback to what progress calls. Returns its id. Any thread may call this.
    /// # Safety
    /// `call` may be called with `arg` until it is removed.
    pub(crate) unsafe fn add(&self, call: Callback, arg: *mut c_void, once: bool) -> c_int {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed) & c_int::MAX;
        self.change(Change::Add(Member { id, call, arg, once }));
        id
    }

    /// Removes a callback. Any thread may call this; a progress call in another thread may still run it once.
    pub(crate) fn remove(&self, id: c_int) {
        self.change(Change::Remove(id));
    }

    fn change(&self, change: Change) {
        let mut changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        // One that progress has not seen needs no change.
        if let Change::Remove(id) = change
            && let Some(at) = changes.iter().position(|of| matches!(of, Change::Add(added) if added.id == id))
        {
            changes.remove(at);
        } else {
            changes.push(change);
        }
        self.has_changes.store(true, Ordering::Release);
    }

    #[cold]
    fn make_changes(&self) {
        let mut changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        self.has_changes.store(false, Ordering::Relaxed);
        let mut members = self.members.borrow_mut();
        for change in changes.drain(..) {
            match change {
                Change::Add(member) => members.push(member),
                Change::Remove(id) => members.retain(|member| member.id != id),
            }
        }
    }

    /// Number of what is progressed, for the thread that makes progress.
    fn count(&self) -> usize {
        self.make_changes();
        self.members.borrow().len()
    }

    /// The member at an index, or behind the last.
    // HOT
    #[inline(always)]
    fn member(&self, at: usize) -> Option<Member> {
        if self.has_changes.load(Ordering::Acquire) {
            self.make_changes();
        }
        self.members.borrow().get(at).copied()
    }

    /// Calls each member: by index and without a borrow held, since a callback may add and remove some.
    fn progress(&self) -> c_uint {
        let (mut at, mut events) = (0, 0);
        while let Some(member) = self.member(at) {
            if member.once {
                self.members.borrow_mut().remove(at);
            } else {
                at += 1;
            }
            // SAFETY: the contract of `add`.
            events += unsafe { (member.call)(member.arg) };
        }
        events
    }
}

/// Called by the inline function of programs.
// HOT
unsafe extern "C" fn progress(worker: *mut c_void) -> c_uint {
    crate::entry::guard("uct_worker_progress", || {
        // SAFETY: the queue's argument is its worker.
        Ok(unsafe { &*worker.cast::<Worker>() }.progress())
    })
}

/// In place of [`progress`] in a worker that has been destroyed, with the checks of `UCX_CHECK=y`.
unsafe extern "C" fn progress_of_freed(worker: *mut c_void) -> c_uint {
    crate::check::use_after_free("uct_worker_progress", worker.addr())
}

/// A worker of the caller: it has our callback.
pub(crate) fn checked_worker<'a>(worker: *mut Worker) -> Result<&'a Worker, Status> {
    found(worker)
}

entry! {
    /// Makes a worker. The context of asynchronous events is not used: nothing here needs it. A worker for
    /// several threads at a time opens no interface.
    fn uct_worker_create(_context: *mut c_void, mode: c_int, worker: OutPtr<*mut Worker>) -> CStatus {
        if worker.is_null() || !(thread_mode::SINGLE..=thread_mode::MULTI).contains(&mode) {
            return Err(invalid("uct_worker_create: worker is null, or there is no such thread mode"));
        }
        crate::log::init_from_env();
        let nothing = QueueElement { cb: None, arg: std::ptr::null_mut(), flags: 0, id: UNUSED };
        let made = into_handle(Worker {
            queue: CallbackQueue { fast_elems: [nothing; 8], private: [0; 72] },
            mode,
            members: RefCell::default(),
            changes: Mutex::default(),
            has_changes: AtomicBool::new(false),
            next_id: AtomicI32::new(0),
        });
        let first = QueueElement { cb: Some(progress), arg: made.cast(), ..nothing };
        // SAFETY: the worker has just been made, and nobody else has it.
        unsafe { (&raw mut (*made).queue.fast_elems[0]).write(first) };
        worker.store(made)
    }

    /// Frees a worker. Its interfaces have been closed.
    fn uct_worker_destroy(worker: *mut Worker) {
        let left = checked_worker(worker)?.count();
        if left > 0 {
            tracing::warn!("uct_worker_destroy: {left} interfaces or callbacks are still progressed");
        }
        let after = QueueElement { cb: Some(progress_of_freed), arg: worker.cast(), flags: 0, id: UNUSED };
        // SAFETY: it is a worker of `uct_worker_create`, and was live until now.
        unsafe { free_read_inline(worker, |worker| (&raw mut (*worker).queue.fast_elems[0]).write(after)) };
        Ok(())
    }

    /// Adds a callback to what progress calls.
    fn uct_worker_progress_register_safe(
        worker: *mut Worker, func: Option<Callback>, arg: *mut c_void, flags: c_uint, id: *mut c_int,
    ) {
        let worker = checked_worker(worker)?;
        let call = func.ok_or_else(|| invalid("uct_worker_progress_register_safe: the function is null"))?;
        // SAFETY: the caller passes a number, which is the null number before a registration, or null.
        let id = unsafe { id.as_mut() }.ok_or_else(|| invalid("uct_worker_progress_register_safe: id is null"))?;
        if *id == NO_ID {
            // SAFETY: the caller's contract.
            *id = unsafe { worker.add(call, arg, flags & ONESHOT != 0) };
        }
        Ok(())
    }

    /// Removes a callback.
    fn uct_worker_progress_unregister_safe(worker: *mut Worker, id: *mut c_int) {
        let worker = checked_worker(worker)?;
        // SAFETY: the caller passes the number of a callback, or the null number.
        let id = unsafe { id.as_mut() }.ok_or_else(|| invalid("uct_worker_progress_unregister_safe: id is null"))?;
        if *id != NO_ID {
            worker.remove(*id);
            *id = NO_ID;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    unsafe extern "C" fn count(arg: *mut c_void) -> c_uint {
        // SAFETY: the argument is a counter of the test.
        unsafe { *arg.cast::<c_uint>() += 1 };
        1
    }

    /// As the inline function of programs does.
    fn dispatch(worker: *mut Worker) -> c_uint {
        // SAFETY: the worker is of this test.
        let element = unsafe { (*worker).queue.fast_elems[0] };
        // SAFETY: as above.
        element.cb.map_or(0, |cb| unsafe { cb(element.arg) })
    }

    #[test]
    fn callbacks_are_called_until_they_are_removed() {
        let (mut worker, mut calls, mut id) = (std::ptr::null_mut::<Worker>(), 0 as c_uint, NO_ID);
        // SAFETY: memory and callbacks are of this test.
        unsafe {
            assert_eq!(uct_worker_create(std::ptr::null_mut(), 1, (&mut worker).into()), CStatus(0));
            assert_eq!(dispatch(worker), 0);
            let arg = (&raw mut calls).cast();
            uct_worker_progress_register_safe(worker, Some(count), arg, 0, &mut id);
            let mut once = NO_ID;
            uct_worker_progress_register_safe(worker, Some(count), arg, ONESHOT, &mut once);
            assert_eq!((dispatch(worker), dispatch(worker)), (2, 1));
            uct_worker_progress_unregister_safe(worker, &mut id);
            assert_eq!((id, dispatch(worker), calls), (NO_ID, 0, 3));
            uct_worker_destroy(worker);
            assert_eq!(
                uct_worker_create(std::ptr::null_mut(), 7, (&mut worker).into()),
                Status::InvalidParam.into()
            );
        }
    }
}
