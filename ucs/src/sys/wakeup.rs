//! Wakes threads that sleep on what threads share, an interface or a worker, when another thread receives
//! events or adds work: the descriptor of what is shared is not enough, since the first to look clears it.
//!
//! Sleepers register inside the owner's lock, where others count events. The descriptor of a group stays
//! readable until the last of its sleepers is up.

use crate::Errno;
use crate::sync::{AtomicU32, Ordering};
use crate::sys::fd::{Epoll, EventFd};
use std::cell::Cell;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// Bit of the sleepers: the descriptor handed out is armed.
const FD_ARMED: u32 = 1 << 31;
/// Among the sleepers for work: one that sleeps for events, and is woken for work as well.
const FOR_BOTH: u32 = 1 << 16;
/// The sleepers of the group itself.
const OWN: u32 = FOR_BOTH - 1;

/// Two groups of sleepers and a count of events. Counting and registering is for the holder of the owner's
/// lock; any thread may wake.
pub struct Wakeup {
    count: Cell<u64>,
    for_events: Sleepers,
    for_work: Sleepers,
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

/// A thread that sleeps, or is about to, until it drops this.
pub struct Sleeper<'a> {
    group: &'a Sleepers,
    /// The other group, if it counts there as [`FOR_BOTH`].
    also: Option<&'a Sleepers>,
    wake: &'a EventFd,
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

    fn sleeper(&self) -> Result<Sleeper<'_>, Errno> {
        if self.wake.get().is_none() {
            let _ = self.wake.set(EventFd::new()?);
        }
        let wake = self.wake.get().ok_or(Errno(libc::ENOMEM))?;
        let _guard = self.sleep_lock();
        // SYNC(wakeup): either `wake` sees this sleeper, or the sleeper sees what was done before `wake`.
        self.sleepers.fetch_add(1, Ordering::AcqRel);
        Ok(Sleeper { group: self, also: None, wake })
    }

    /// Wakes the threads, and takes `disarmed` of the bits. True if the armed descriptor was among these.
    #[cold]
    fn wake(&self, disarmed: u32) -> bool {
        // SYNC(wakeup)
        let before = self.sleepers.fetch_and(!disarmed, Ordering::AcqRel);
        if before & OWN != 0 {
            self.wake.get().into_iter().for_each(signal);
        }
        before & disarmed != 0
    }

    fn disarm(&self) -> bool {
        self.sleepers.load(Ordering::Relaxed) & FD_ARMED != 0
            && self.sleepers.fetch_and(!FD_ARMED, Ordering::AcqRel) & FD_ARMED != 0
    }
}

impl Default for Wakeup {
    fn default() -> Wakeup {
        Wakeup::new()
    }
}

impl Wakeup {
    /// No event, no sleeper, no descriptor.
    pub fn new() -> Wakeup {
        let (for_events, for_work) = (Sleepers::new(), Sleepers::new());
        Wakeup { count: Cell::new(0), for_events, for_work, armed_fd: OnceLock::new() }
    }

    /// Events counted so far.
    #[inline]
    pub fn count(&self) -> u64 {
        self.count.get()
    }

    /// Counts received events, and wakes those that sleep for events.
    // HOT
    #[inline]
    pub fn count_events(&self, events: usize) {
        self.count.set(self.count.get() + events as u64);
        if self.for_events.sleepers.load(Ordering::Relaxed) != 0 {
            self.wake_for_events();
        }
    }

    /// Wakes all sleepers.
    pub fn wake_all(&self) {
        self.wake_for_events();
        self.wake_for_work();
        self.wake_armed_fd();
    }

    /// Wakes the threads that sleep for work.
    pub fn wake_for_work(&self) {
        self.for_work.wake(0);
    }

    /// Makes [`Wakeup::event_fd`] readable if it is armed for work ([`Wakeup::arm_for_work`]).
    pub fn wake_armed_fd(&self) {
        if self.for_work.disarm() {
            self.signal_armed_fd();
        }
    }

    /// Wakes the threads that sleep for events, as other work has been added that no arrival will start.
    pub fn wake_event_sleepers(&self) {
        // SYNC(wakeup)
        if self.for_work.sleepers.load(Ordering::Acquire) & !FD_ARMED >= FOR_BOTH {
            self.for_events.wake(0);
        }
    }

    /// Whether a thread sleeps for work or for events, or the descriptor is armed for work.
    // HOT
    #[inline]
    pub fn has_work_sleepers(&self) -> bool {
        self.for_work.sleepers.load(Ordering::Relaxed) != 0
    }

    #[cold]
    fn wake_for_events(&self) {
        if self.for_events.wake(FD_ARMED) {
            self.signal_armed_fd();
        }
    }

    fn signal_armed_fd(&self) {
        self.armed_fd.get().into_iter().for_each(|armed_fd| signal(&armed_fd.event));
    }

    /// Registers a thread that sleeps until another one has counted events, or wakes it for added work by
    /// [`Wakeup::wake_event_sleepers`].
    pub fn event_sleeper(&self) -> Result<Sleeper<'_>, Errno> {
        let mut sleeper = self.for_events.sleeper()?;
        // SYNC(wakeup)
        self.for_work.sleepers.fetch_add(FOR_BOTH, Ordering::AcqRel);
        sleeper.also = Some(&self.for_work);
        Ok(sleeper)
    }

    /// Registers a thread that sleeps until another one has added work.
    pub fn work_sleeper(&self) -> Result<Sleeper<'_>, Errno> {
        self.for_work.sleeper()
    }

    fn armed_fd(&self, own: BorrowedFd<'_>) -> Result<&ArmedFd, Errno> {
        if self.armed_fd.get().is_none() {
            let (event, both) = (EventFd::new()?, Epoll::new()?);
            both.add(own, 0)?;
            both.add(&event, 1)?;
            let _ = self.armed_fd.set(ArmedFd { both, event });
        }
        self.armed_fd.get().ok_or(Errno(libc::ENOMEM))
    }

    /// Descriptor that is readable when `own`, the owner's, is, or when others have counted events since
    /// [`Wakeup::arm`].
    pub fn event_fd(&self, own: BorrowedFd<'_>) -> Result<BorrowedFd<'_>, Errno> {
        self.armed_fd(own).map(|armed_fd| armed_fd.both.as_fd())
    }

    /// Arms [`Wakeup::event_fd`] for the next events of others.
    pub fn arm(&self, own: BorrowedFd<'_>) -> Result<(), Errno> {
        self.armed_fd(own)?.event.clear()?;
        self.for_events.sleepers.fetch_or(FD_ARMED, Ordering::Relaxed);
        Ok(())
    }

    /// Arms [`Wakeup::event_fd`], which is armed for events, for [`Wakeup::wake_armed_fd`] too.
    pub fn arm_for_work(&self) {
        self.for_work.sleepers.fetch_or(FD_ARMED, Ordering::Relaxed);
    }
}

impl Sleeper<'_> {
    /// Readable when the thread is to wake up.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

impl Drop for Sleeper<'_> {
    fn drop(&mut self) {
        if let Some(also) = self.also {
            also.sleepers.fetch_sub(FOR_BOTH, Ordering::AcqRel);
        }
        let _guard = self.group.sleep_lock();
        let before = self.group.sleepers.fetch_sub(1, Ordering::AcqRel);
        // A wake-up meanwhile is not lost: sleepers look for events before they sleep again.
        if before & OWN == 1 {
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
        let (one, two) = (wakeup.event_sleeper().unwrap(), wakeup.event_sleeper().unwrap());
        assert!(!is_readable(one.fd()), "what was before they have seen");
        wakeup.count_events(2);
        assert!(is_readable(one.fd()) && is_readable(two.fd()));
        drop(one);
        assert!(is_readable(two.fd()), "it is still to get up");
        drop(two);
        let (three, thread) = (wakeup.event_sleeper().unwrap(), wakeup.work_sleeper().unwrap());
        assert!(!is_readable(three.fd()));
        wakeup.count_events(1);
        assert!(is_readable(three.fd()) && !is_readable(thread.fd()), "nothing to do for a thread");
        drop(three);
        let three = wakeup.event_sleeper().unwrap();
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
        own.clear().unwrap();
        drop(thread);
        let (four, thread) = (wakeup.work_sleeper().unwrap(), wakeup.event_sleeper().unwrap());
        assert!(is_readable(three.fd()), "since it was woken");
        drop((three, thread));
        let three = wakeup.event_sleeper().unwrap();
        assert!(wakeup.has_work_sleepers() && !is_readable(three.fd()) && !is_readable(four.fd()));
        wakeup.wake_event_sleepers();
        assert!(is_readable(three.fd()) && !is_readable(four.fd()), "each group by itself");
        drop(three);
        assert!(wakeup.has_work_sleepers());
        wakeup.wake_event_sleepers();
        wakeup.wake_for_work();
        assert!(is_readable(four.fd()));
        drop(four);
        wakeup.wake_armed_fd();
        assert!(!is_readable(armed_fd) && !wakeup.has_work_sleepers(), "not armed for work");
        wakeup.arm_for_work();
        wakeup.wake_for_work();
        assert!(!is_readable(armed_fd) && wakeup.has_work_sleepers(), "that is for threads");
        wakeup.wake_armed_fd();
        assert!(is_readable(armed_fd) && !wakeup.has_work_sleepers());
    }
}
