//! Wakes sleepers when other threads receive events or queue operations: the interface's descriptor is not
//! enough, since the first to look clears it.
//!
//! Sleepers register inside the lock, where others count and look for them. The descriptor stays readable
//! until the last of them is up.

use crate::api::Error;
use std::cell::Cell;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use ucs::sync::{AtomicU32, Ordering};
use ucs::sys::fd::{Epoll, EventFd};

/// Bit of the sleepers: the descriptor handed out is armed.
const FD_ARMED: u32 = 1 << 31;

pub(super) struct Wakeup {
    count: Cell<u64>,
    callers: Sleepers,
    threads: Sleepers,
    armed_fd: OnceLock<ArmedFd>,
}

struct Sleepers {
    sleepers: AtomicU32,
    sleep_lock: Mutex<()>,
    wake: OnceLock<EventFd>,
}

struct ArmedFd {
    both: Epoll,
    event: EventFd,
}

pub(super) struct Sleeper<'a> {
    group: &'a Sleepers,
    wake: &'a EventFd,
}

fn failed(call: &'static str) -> impl Fn(ucs::Errno) -> Error {
    move |errno| Error::Sys { call, errno }
}

fn signal(fd: &EventFd) {
    if let Err(errno) = fd.signal() {
        tracing::warn!(%errno, "cannot wake a thread");
    }
}

impl Sleepers {
    fn new() -> Sleepers {
        Sleepers { sleepers: AtomicU32::new(0), sleep_lock: Mutex::new(()), wake: OnceLock::new() }
    }

    fn sleep_lock(&self) -> MutexGuard<'_, ()> {
        self.sleep_lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sleeper(&self) -> Result<Sleeper<'_>, Error> {
        if self.wake.get().is_none() {
            let _ = self.wake.set(EventFd::new().map_err(failed("eventfd"))?);
        }
        let wake = self.wake.get().ok_or(Error::NoMemory)?;
        let _guard = self.sleep_lock();
        self.sleepers.fetch_add(1, Ordering::Relaxed);
        Ok(Sleeper { group: self, wake })
    }

    /// True if the armed descriptor is to be signalled too.
    #[cold]
    fn wake(&self) -> bool {
        let before = self.sleepers.fetch_and(!FD_ARMED, Ordering::Relaxed);
        if before & !FD_ARMED != 0 {
            self.wake.get().into_iter().for_each(signal);
        }
        before & FD_ARMED != 0
    }
}

impl Wakeup {
    pub(super) fn new() -> Wakeup {
        let (callers, threads) = (Sleepers::new(), Sleepers::new());
        Wakeup { count: Cell::new(0), callers, threads, armed_fd: OnceLock::new() }
    }

    #[inline]
    pub(super) fn count(&self) -> u64 {
        self.count.get()
    }

    /// Counts received events. Inside the lock. // HOT
    #[inline]
    pub(super) fn count_events(&self, events: usize) {
        self.count.set(self.count.get() + events as u64);
        if self.callers.sleepers.load(Ordering::Relaxed) != 0 {
            self.wake_callers();
        }
    }

    pub(super) fn wake_all(&self) {
        self.wake_callers();
        self.threads.wake();
    }

    #[cold]
    fn wake_callers(&self) {
        if self.callers.wake() {
            self.armed_fd.get().into_iter().for_each(|armed_fd| signal(&armed_fd.event));
        }
    }

    pub(super) fn caller_sleeper(&self) -> Result<Sleeper<'_>, Error> {
        self.callers.sleeper()
    }

    pub(super) fn thread_sleeper(&self) -> Result<Sleeper<'_>, Error> {
        self.threads.sleeper()
    }

    fn armed_fd(&self, own: BorrowedFd<'_>) -> Result<&ArmedFd, Error> {
        if self.armed_fd.get().is_none() {
            let event = EventFd::new().map_err(failed("eventfd"))?;
            let both = Epoll::new().map_err(failed("epoll_create"))?;
            both.add(own, 0).and_then(|()| both.add(&event, 1)).map_err(failed("epoll_ctl"))?;
            let _ = self.armed_fd.set(ArmedFd { both, event });
        }
        self.armed_fd.get().ok_or(Error::NoMemory)
    }

    /// Descriptor readable when `own`, the interface's, is or others received events. Inside the lock.
    pub(super) fn event_fd(&self, own: BorrowedFd<'_>) -> Result<BorrowedFd<'_>, Error> {
        self.armed_fd(own).map(|armed_fd| armed_fd.both.as_fd())
    }

    pub(super) fn arm(&self, own: BorrowedFd<'_>) -> Result<(), Error> {
        self.armed_fd(own)?.event.clear().map_err(failed("read"))?;
        self.callers.sleepers.fetch_or(FD_ARMED, Ordering::Relaxed);
        Ok(())
    }
}

impl Sleeper<'_> {
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

impl Drop for Sleeper<'_> {
    fn drop(&mut self) {
        let _guard = self.group.sleep_lock();
        let before = self.group.sleepers.fetch_sub(1, Ordering::Relaxed);
        // A wake-up meanwhile is not lost: sleepers look for events before they sleep again.
        if before & !FD_ARMED == 1 {
            let _ = self.wake.clear();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn all_sleepers_are_woken_and_the_last_one_clears() {
        let wakeup = Wakeup::new();
        let is_readable = |fd: BorrowedFd<'_>| {
            let mut fds = [rustix::event::PollFd::from_borrowed_fd(fd, rustix::event::PollFlags::IN)];
            rustix::event::poll(&mut fds, Some(&Default::default())).unwrap() > 0
        };
        wakeup.count_events(1);
        let (one, two) = (wakeup.caller_sleeper().unwrap(), wakeup.caller_sleeper().unwrap());
        assert!(!is_readable(one.fd()), "what was before they have seen");
        wakeup.count_events(2);
        assert!(is_readable(one.fd()) && is_readable(two.fd()));
        drop(one);
        assert!(is_readable(two.fd()), "it is still to get up");
        drop(two);
        let (three, thread) = (wakeup.caller_sleeper().unwrap(), wakeup.thread_sleeper().unwrap());
        assert!(!is_readable(three.fd()));
        wakeup.count_events(1);
        assert!(is_readable(three.fd()) && !is_readable(thread.fd()), "nothing to do for a thread");
        drop(three);
        let three = wakeup.caller_sleeper().unwrap();
        let own = EventFd::new().unwrap();
        let armed_fd = wakeup.event_fd(own.as_fd()).unwrap();
        wakeup.wake_all();
        assert!(is_readable(three.fd()) && is_readable(thread.fd()));
        assert!(!is_readable(armed_fd), "it is not armed");
        wakeup.arm(own.as_fd()).unwrap();
        wakeup.wake_all();
        assert!(is_readable(armed_fd));
        wakeup.arm(own.as_fd()).unwrap();
        assert!(!is_readable(armed_fd));
        own.signal().unwrap();
        assert!(is_readable(armed_fd));
        assert_eq!(wakeup.count(), 4);
    }
}
