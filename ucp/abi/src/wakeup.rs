//! Sleeping for events.

use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use ::ucs::Status;
use ucp::mt::SharedWorker;

use crate::arg::OutPtr;
use crate::entry::{CStatus, invalid};
use crate::handle::checked;
use crate::worker::Worker;

/// `UCP_WAKEUP_EDGE`.
pub(crate) const WAKEUP_EDGE: c_uint = 1 << 16;

/// The transports of a worker have no descriptor to wait on.
#[cold]
fn has_no_events() -> Status {
    tracing::error!("the worker has no descriptor to wait on");
    Status::Unsupported
}

/// Waits a while for another value than the first.
fn watch<T: PartialEq>(value: impl Fn() -> T) {
    let seen = value();
    ucp::wait_while(|| value() == seen);
}

/// Adds a worker's events to a descriptor of the program, which is one of epoll.
pub(crate) fn report_to(
    fd: c_int,
    worker: &SharedWorker,
    by_edge: bool,
    user_data: *mut c_void,
) -> Result<(), Status> {
    let ours = worker.event_fd().map_err(|_| Status::Busy)?.ok_or_else(has_no_events)?;
    let edge = if by_edge { libc::EPOLLET as u32 } else { 0 };
    let mut event = libc::epoll_event { events: libc::EPOLLIN as u32 | edge, u64: user_data.addr() as u64 };
    // SAFETY: the event outlives the call; the kernel checks both descriptors.
    match unsafe { libc::epoll_ctl(fd, libc::EPOLL_CTL_ADD, ours.as_raw_fd(), &mut event) } {
        0 => Ok(()),
        _ => {
            tracing::error!("no events can be added to descriptor {fd}: {}", std::io::Error::last_os_error());
            Err(Status::InvalidParam)
        }
    }
}

/// Takes a worker's events out of a descriptor of the program, which may be closed already.
pub(crate) fn stop_reporting(fd: c_int, worker: &SharedWorker) {
    if let Ok(Some(ours)) = worker.event_fd() {
        // SAFETY: no memory is passed; the kernel checks both descriptors.
        unsafe { libc::epoll_ctl(fd, libc::EPOLL_CTL_DEL, ours.as_raw_fd(), std::ptr::null_mut()) };
    }
}

entry! {
    /// Descriptor that becomes readable at an event after `ucp_worker_arm`.
    fn ucp_worker_get_efd(worker: *mut Worker, fd: OutPtr<c_int>) -> CStatus {
        let worker = checked(worker)?;
        if worker.reports_to.is_some() {
            tracing::error!("ucp_worker_get_efd: the worker reports to the descriptor of the program (event_fd)");
            return Err(Status::Unsupported);
        }
        let found = worker.shared_here().event_fd().map_err(|_| Status::Busy)?;
        fd.store(found.ok_or_else(has_no_events)?.as_raw_fd())
    }

    /// Arms the descriptor; busy: there may be something to progress.
    fn ucp_worker_arm(worker: *mut Worker) -> CStatus {
        let worker = checked(worker)?;
        match worker.shared_here().arm() {
            Ok(true) => Ok(()),
            _ => Err(Status::Busy),
        }
    }

    /// Sleeps until there may be something to progress.
    fn ucp_worker_wait(worker: *mut Worker) -> CStatus {
        let worker = checked(worker)?;
        worker.shared_here().wait(None).map(drop).map_err(|_| Status::IoError)
    }

    /// Waits a while for a change of memory, which may have come when it returns. It looks at as many bytes
    /// as the address is aligned to, up to 8: variables of programs have 1, 2, 4 or 8.
    fn ucp_worker_wait_mem(worker: *mut Worker, address: *mut c_void) {
        checked(worker)?;
        if address.is_null() {
            return Err(invalid("ucp_worker_wait_mem: the address is null"));
        }
        // SAFETY: the caller passes the address of a variable that peers change. It is aligned for the type,
        // the bytes lie in the page of the variable, and they are read as an atomic value.
        unsafe {
            match address.addr() % 8 {
                0 => watch(|| AtomicU64::from_ptr(address.cast()).load(Ordering::Acquire)),
                4 => watch(|| AtomicU32::from_ptr(address.cast()).load(Ordering::Acquire)),
                2 | 6 => watch(|| AtomicU16::from_ptr(address.cast()).load(Ordering::Acquire)),
                _ => watch(|| AtomicU8::from_ptr(address.cast()).load(Ordering::Acquire)),
            }
        }
        Ok(())
    }

    /// Ends the sleep of a worker, from any thread.
    fn ucp_worker_signal(worker: *mut Worker) -> CStatus {
        checked(worker)?.shared.signal();
        Ok(())
    }
}
