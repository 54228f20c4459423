//! Sleeping for events.

use std::ffi::{c_int, c_void};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering};

use ::ucs::Status;

use crate::entry::CStatus;
use crate::handle::{checked, given, store};
use crate::worker::Worker;

entry! {
    /// Descriptor that becomes readable at an event after `ucp_worker_arm`.
    fn ucp_worker_get_efd(worker: *mut Worker, fd: *mut c_int) -> CStatus {
        let worker = checked(worker)?;
        worker.inside(|_| ())?;
        let found = worker.shared.event_fd().map_err(|_| Status::Busy)?;
        store(fd, found.ok_or(Status::Unsupported)?.as_raw_fd())
    }

    /// Arms the descriptor; busy: there may be something to progress.
    fn ucp_worker_arm(worker: *mut Worker) -> CStatus {
        let worker = given(worker)?;
        worker.inside(|_| ())?;
        match worker.shared.arm() {
            Ok(true) => Ok(()),
            _ => Err(Status::Busy),
        }
    }

    /// Sleeps until there may be something to progress.
    fn ucp_worker_wait(worker: *mut Worker) -> CStatus {
        let worker = given(worker)?;
        worker.inside(|_| ())?;
        worker.shared.wait(None).map(drop).map_err(|_| Status::IoError)
    }

    /// Waits a while for a change of a word, which may have come when it returns.
    fn ucp_worker_wait_mem(worker: *mut Worker, address: *mut c_void) {
        given(worker)?;
        let word = address.cast::<u64>();
        if word.is_null() || !word.is_aligned() {
            return Err(Status::InvalidParam);
        }
        // SAFETY: the caller passes a word that peers change; it is read as an atomic one.
        let word = unsafe { AtomicU64::from_ptr(word) };
        ucp::wait_mem(word, word.load(Ordering::Acquire));
        Ok(())
    }

    /// Ends the sleep of a worker, from any thread.
    fn ucp_worker_signal(worker: *mut Worker) -> CStatus {
        given(worker)?.shared.signal();
        Ok(())
    }
}
