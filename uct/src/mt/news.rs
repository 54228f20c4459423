//! Who sleeps while others are inside is told of what they do: of events that they take in, since a completion or a message
//! kept for callers may be what the sleeper waits for, and of operations that begin to wait for room, which nobody else tells
//! of. What the interface's own descriptor says is not enough: whoever looks first takes it back.
//!
//! Sleepers say so inside the gate, where the others count and look for them: so one of the two sees the other. The
//! descriptor stays readable until the last of them is up, so that none takes it from another one.

use crate::api::Error;
use std::cell::Cell;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use ucs::sync::{AtomicU32, Ordering};
use ucs::sys::fd::{Epoll, EventFd};

/// Among those to be woken: somebody has armed the descriptor that is handed out.
const OUTSIDE: u32 = 1 << 31;

/// Of one interface.
pub(super) struct News {
    /// Events taken in so far, by whomever. Inside the gate.
    count: Cell<u64>,
    /// Callers, who want to know of what others take in; and perhaps [`OUTSIDE`].
    callers: Room,
    /// Progress threads, who want to know of what there is to do.
    threads: Room,
    /// Made for the first who asks for a descriptor.
    outside: OnceLock<Outside>,
}

/// Where some of them sleep.
struct Room {
    /// Who is to be woken.
    beds: AtomicU32,
    /// Held by who lies down and who gets up, for as long as that takes.
    door: Mutex<()>,
    /// Made by the first that sleeps.
    wake: OnceLock<EventFd>,
}

/// The interface's descriptor and one that tells of what others do, as one.
struct Outside {
    both: Epoll,
    bell: EventFd,
}

/// Somebody who is about to sleep, until it is dropped.
pub(super) struct Sleeper<'a> {
    room: &'a Room,
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

impl Room {
    fn new() -> Room {
        Room { beds: AtomicU32::new(0), door: Mutex::new(()), wake: OnceLock::new() }
    }

    fn door(&self) -> MutexGuard<'_, ()> {
        self.door.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sleeper(&self) -> Result<Sleeper<'_>, Error> {
        if self.wake.get().is_none() {
            let _ = self.wake.set(EventFd::new().map_err(failed("eventfd"))?);
        }
        let wake = self.wake.get().ok_or(Error::NoMemory)?;
        let _door = self.door();
        self.beds.fetch_add(1, Ordering::Relaxed);
        Ok(Sleeper { room: self, wake })
    }

    /// True if [`OUTSIDE`] is to be told too.
    #[cold]
    fn wake(&self) -> bool {
        let before = self.beds.fetch_and(!OUTSIDE, Ordering::Relaxed);
        if before & !OUTSIDE != 0 {
            self.wake.get().into_iter().for_each(signal);
        }
        before & OUTSIDE != 0
    }
}

impl News {
    pub(super) fn new() -> News {
        let (callers, threads) = (Room::new(), Room::new());
        News { count: Cell::new(0), callers, threads, outside: OnceLock::new() }
    }

    /// Events taken in so far. Inside the gate.
    #[inline]
    pub(super) fn count(&self) -> u64 {
        self.count.get()
    }

    /// So many more were taken in. Inside the gate. // HOT
    #[inline]
    pub(super) fn took(&self, events: usize) {
        self.count.set(self.count.get() + events as u64);
        if self.callers.beds.load(Ordering::Relaxed) != 0 {
            self.wake_callers();
        }
    }

    /// There is something to do or to see for all that sleep. Inside the gate.
    pub(super) fn ring(&self) {
        self.wake_callers();
        self.threads.wake();
    }

    #[cold]
    fn wake_callers(&self) {
        if self.callers.wake() {
            self.outside.get().into_iter().for_each(|outside| signal(&outside.bell));
        }
    }

    /// A caller is about to sleep. Inside the gate, having looked that there is nothing to do.
    pub(super) fn caller(&self) -> Result<Sleeper<'_>, Error> {
        self.callers.sleeper()
    }

    /// The same of a progress thread.
    pub(super) fn thread(&self) -> Result<Sleeper<'_>, Error> {
        self.threads.sleeper()
    }

    fn outside(&self, own: BorrowedFd<'_>) -> Result<&Outside, Error> {
        if self.outside.get().is_none() {
            let bell = EventFd::new().map_err(failed("eventfd"))?;
            let both = Epoll::new().map_err(failed("epoll_create"))?;
            both.add(own, 0).and_then(|()| both.add(&bell, 1)).map_err(failed("epoll_ctl"))?;
            let _ = self.outside.set(Outside { both, bell });
        }
        self.outside.get().ok_or(Error::NoMemory)
    }

    /// A descriptor for who is no [`Sleeper`]: readable if `own` is, which is the interface's, or there is news. Inside the gate.
    pub(super) fn event_fd(&self, own: BorrowedFd<'_>) -> Result<BorrowedFd<'_>, Error> {
        self.outside(own).map(|outside| outside.both.as_fd())
    }

    /// That descriptor tells of news from now on, once. Inside the gate.
    pub(super) fn arm(&self, own: BorrowedFd<'_>) -> Result<(), Error> {
        self.outside(own)?.bell.clear().map_err(failed("read"))?;
        self.callers.beds.fetch_or(OUTSIDE, Ordering::Relaxed);
        Ok(())
    }
}

impl Sleeper<'_> {
    /// Readable when there is news.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

impl Drop for Sleeper<'_> {
    fn drop(&mut self) {
        let _door = self.room.door();
        let before = self.room.beds.fetch_sub(1, Ordering::Relaxed);
        // Who rings meanwhile is heard all the same: whoever gets up looks for news before it lies down again.
        if before & !OUTSIDE == 1 {
            let _ = self.wake.clear();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn all_who_sleep_are_woken_and_the_last_one_up_clears() {
        let news = News::new();
        let is_readable = |fd: BorrowedFd<'_>| {
            let mut fds = [rustix::event::PollFd::from_borrowed_fd(fd, rustix::event::PollFlags::IN)];
            rustix::event::poll(&mut fds, Some(&Default::default())).unwrap() > 0
        };
        news.took(1);
        let (one, two) = (news.caller().unwrap(), news.caller().unwrap());
        assert!(!is_readable(one.fd()), "what was before they have seen");
        news.took(2);
        assert!(is_readable(one.fd()) && is_readable(two.fd()));
        drop(one);
        assert!(is_readable(two.fd()), "it is still to get up");
        drop(two);
        let (three, thread) = (news.caller().unwrap(), news.thread().unwrap());
        assert!(!is_readable(three.fd()));
        news.took(1);
        assert!(is_readable(three.fd()) && !is_readable(thread.fd()), "nothing to do for a thread");
        drop(three);
        let three = news.caller().unwrap();
        let own = EventFd::new().unwrap();
        let outside = news.event_fd(own.as_fd()).unwrap();
        news.ring();
        assert!(is_readable(three.fd()) && is_readable(thread.fd()));
        assert!(!is_readable(outside), "it is not armed");
        news.arm(own.as_fd()).unwrap();
        news.ring();
        assert!(is_readable(outside));
        news.arm(own.as_fd()).unwrap();
        assert!(!is_readable(outside));
        own.signal().unwrap();
        assert!(is_readable(outside));
        assert_eq!(news.count(), 4);
    }
}
