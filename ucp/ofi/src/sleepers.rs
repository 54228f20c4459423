//! Sleepers of a queue or counter: threads in calls of the provider, and programs on its descriptor.
//!
//! Each has a descriptor of its own. A wake-up makes all of them readable, and each is made unreadable only
//! for its owner: those that sleep on one endpoint, or for one queue, take no wake-up from each other.

use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

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

/// The next timer of an endpoint, as a descriptor that is readable from then on. Used inside the lock of the
/// endpoint.
pub(crate) struct TimerFd(OwnedFd);

impl TimerFd {
    pub(crate) fn new() -> Result<TimerFd, Errno> {
        // SAFETY: no memory is passed.
        let fd =
            unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_CLOEXEC | libc::TFD_NONBLOCK) };
        if fd < 0 {
            return Err(Errno(libc::EMFILE));
        }
        // SAFETY: the descriptor is new and nobody else's.
        Ok(TimerFd(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Sets the timer, or none. It is unreadable until then.
    pub(crate) fn set(&self, after: Option<Duration>) {
        let none = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // Zero would be no timer.
        let value = after.map_or(none, |after| libc::timespec {
            tv_sec: after.as_secs().try_into().unwrap_or(libc::time_t::MAX),
            tv_nsec: after.subsec_nanos().max(u32::from(after.is_zero())).into(),
        });
        let new = libc::itimerspec { it_interval: none, it_value: value };
        // SAFETY: the value outlives the call; the old one is not asked for.
        if unsafe { libc::timerfd_settime(self.0.as_raw_fd(), 0, &new, std::ptr::null_mut()) } < 0 {
            tracing::warn!("a timer of an endpoint cannot be set");
        }
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

    #[test]
    fn a_timer_is_readable_when_it_is_due() {
        let timer = TimerFd::new().unwrap();
        timer.set(None);
        assert!(!is_readable(timer.fd()));
        timer.set(Some(Duration::ZERO));
        std::thread::sleep(Duration::from_millis(5));
        assert!(is_readable(timer.fd()));
        timer.set(Some(Duration::from_secs(3600)));
        assert!(!is_readable(timer.fd()));
        timer.set(Some(Duration::MAX));
        assert!(!is_readable(timer.fd()));
        timer.set(Some(Duration::from_millis(1)));
        std::thread::sleep(Duration::from_millis(10));
        assert!(is_readable(timer.fd()));
        timer.set(None);
        assert!(!is_readable(timer.fd()), "it is due no more");
    }
}
