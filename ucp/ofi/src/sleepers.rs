//! Sleepers of a queue or counter: threads in calls of the provider, and programs on its descriptor.
//!
//! Each has a descriptor of its own. A wake-up makes all of them readable, and each is made unreadable only
//! for its owner: those that sleep on one endpoint, or for one queue, take no wake-up from each other.

use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ucs::sys::fd::EventFd;

use crate::errno::Errno;

/// Those that sleep for a queue or counter. They register before they look for something new: whoever adds
/// some finds them, or they find it.
pub(crate) struct Sleepers {
    /// Whether somebody is to be woken. Changed inside the lock of the list.
    any: AtomicBool,
    list: Mutex<List>,
    /// For programs: readable from a wake-up until it is armed again.
    event: Option<EventFd>,
}

#[derive(Default)]
struct List {
    /// Threads that no wake-up has reached.
    threads: Vec<Arc<EventFd>>,
    /// Descriptors that no thread uses.
    spare: Vec<Arc<EventFd>>,
    /// Whether the descriptor for programs is to be made readable.
    is_armed: bool,
}

/// A thread that sleeps, or is about to, until it drops this.
pub(crate) struct SleepingThread<'a> {
    of: &'a Sleepers,
    event: Arc<EventFd>,
}

fn signal(event: &EventFd) {
    if let Err(errno) = event.signal() {
        tracing::warn!(%errno, "cannot wake a sleeper");
    }
}

impl Sleepers {
    /// Nobody sleeps. With a descriptor for programs if they are to have one.
    pub(crate) fn new(has_descriptor: bool) -> Result<Sleepers, Errno> {
        let event = has_descriptor.then(EventFd::new).transpose().map_err(|errno| Errno(errno.0))?;
        Ok(Sleepers { any: AtomicBool::new(false), list: Mutex::default(), event })
    }

    fn list(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The descriptor for programs.
    pub(crate) fn fd(&self) -> Option<RawFd> {
        self.event.as_ref().map(|event| event.as_fd().as_raw_fd())
    }

    /// Wakes all, inside the lock of an endpoint in which they look, too.
    // HOT
    #[inline(always)]
    pub(crate) fn wake(&self) {
        if self.any.load(Ordering::Relaxed) {
            self.wake_all();
        }
    }

    /// Wakes all.
    #[cold]
    #[inline(never)]
    pub(crate) fn wake_all(&self) {
        let mut list = self.list();
        list.threads.drain(..).for_each(|thread| signal(&thread));
        if std::mem::take(&mut list.is_armed) {
            self.event.iter().for_each(signal);
        }
        self.any.store(false, Ordering::Relaxed);
    }

    /// Makes the descriptor for programs unreadable until the next wake-up.
    pub(crate) fn arm(&self) {
        let Some(event) = &self.event else { return };
        let mut list = self.list();
        let _ = event.clear();
        list.is_armed = true;
        self.any.store(true, Ordering::Relaxed);
    }

    /// Registers a thread that is about to sleep.
    pub(crate) fn add_thread(&self) -> Result<SleepingThread<'_>, Errno> {
        let mut list = self.list();
        let event = match list.spare.pop() {
            Some(event) => event,
            None => Arc::new(EventFd::new().map_err(|errno| Errno(errno.0))?),
        };
        list.threads.push(event.clone());
        self.any.store(true, Ordering::Relaxed);
        Ok(SleepingThread { of: self, event })
    }
}

impl SleepingThread<'_> {
    /// Readable when the thread is to wake up.
    pub(crate) fn fd(&self) -> RawFd {
        self.event.as_fd().as_raw_fd()
    }
}

impl Drop for SleepingThread<'_> {
    fn drop(&mut self) {
        let mut list = self.of.list();
        let before = list.threads.len();
        list.threads.retain(|thread| !Arc::ptr_eq(thread, &self.event));
        if list.threads.len() == before {
            let _ = self.event.clear();
        }
        list.spare.push(self.event.clone());
        self.of.any.store(list.is_armed || !list.threads.is_empty(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_readable(fd: RawFd) -> bool {
        let mut fd = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: one descriptor.
        unsafe { libc::poll(&mut fd, 1, 0) == 1 }
    }

    #[test]
    fn no_sleeper_takes_the_wake_up_of_another() {
        let sleepers = Sleepers::new(true).unwrap();
        let program = sleepers.fd().unwrap();
        sleepers.wake();
        sleepers.wake_all();
        assert!(!is_readable(program), "it is not armed");
        let (one, two) = (sleepers.add_thread().unwrap(), sleepers.add_thread().unwrap());
        sleepers.arm();
        assert!(!is_readable(one.fd()) && !is_readable(two.fd()) && !is_readable(program));
        sleepers.wake();
        assert!(is_readable(one.fd()) && is_readable(two.fd()) && is_readable(program));
        drop(one);
        let three = sleepers.add_thread().unwrap();
        assert!(is_readable(two.fd()) && !is_readable(three.fd()) && is_readable(program));
        sleepers.arm();
        assert!(is_readable(two.fd()) && !is_readable(program));
        drop(three);
        sleepers.wake();
        assert!(is_readable(program));
        drop(two);
        assert!(!sleepers.any.load(Ordering::Relaxed), "nobody sleeps");
        let four = sleepers.add_thread().unwrap();
        assert!(!is_readable(four.fd()), "a descriptor that was used before");
    }
}
