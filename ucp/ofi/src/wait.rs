//! Endpoints that report to a queue or counter: their progress, and sleep until one of them has something.

use std::cell::{Cell, UnsafeCell};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ucp::mt::ThreadMode;

use crate::abi::flags;
use crate::ep::Ep;
use crate::errno::Errno;

/// Longest sleep without a look, for endpoints whose transports have no descriptor.
const LONGEST_BLIND_SLEEP: Duration = Duration::from_millis(1);

/// Endpoints bound to an object, behind a lock that is taken where threads share the domain.
pub(crate) struct Members {
    lock: Option<Mutex<()>>,
    eps: UnsafeCell<Vec<*const Ep>>,
    /// The only endpoint, where there is no lock; else null.
    only: Cell<*const Ep>,
    /// A thread may sleep, and is to be told of what ends within a call of another one.
    has_sleeper: AtomicBool,
    /// A sleeper is to return at once.
    is_signalled: AtomicBool,
    /// Descriptors of the endpoints in one, for programs that sleep on it themselves.
    fd: Option<OwnedFd>,
}

// SAFETY: the list is used inside the lock. Without one, the program uses the domain in one thread at a time.
unsafe impl Send for Members {}
// SAFETY: as above.
unsafe impl Sync for Members {}

/// The members, while nobody else may use them.
pub(crate) struct Inside<'a> {
    _guard: Option<MutexGuard<'a, ()>>,
    eps: &'a [*const Ep],
}

impl Inside<'_> {
    /// The endpoint, if there is one.
    // HOT
    #[inline(always)]
    pub(crate) fn only(&self) -> Option<&Ep> {
        match self.eps {
            // SAFETY: an endpoint leaves the list before it is freed.
            [one] => Some(unsafe { &**one }),
            _ => None,
        }
    }

    /// The endpoints.
    // HOT
    #[inline(always)]
    pub(crate) fn eps(&self) -> impl Iterator<Item = &Ep> + Clone {
        // SAFETY: an endpoint leaves the list before it is freed.
        self.eps.iter().map(|ep| unsafe { &**ep })
    }
}

/// Time limit of a call, in milliseconds as libfabric has it: negative is none.
pub(crate) struct Deadline(Option<Instant>);

impl Deadline {
    pub(crate) fn after(timeout: i32) -> Deadline {
        let limit = u64::try_from(timeout).ok().map(Duration::from_millis);
        Deadline(limit.and_then(|limit| Instant::now().checked_add(limit)))
    }

    /// Time that is left; `None`: there is no limit.
    pub(crate) fn left(&self) -> Option<Duration> {
        self.0.map(|until| until.saturating_duration_since(Instant::now()))
    }

    pub(crate) fn is_over(&self) -> bool {
        self.left().is_some_and(|left| left.is_zero())
    }
}

/// Whether a wait object of this kind is there.
pub(crate) fn check_wait_object(kind: u32) -> Result<(), Errno> {
    match kind {
        flags::WAIT_NONE | flags::WAIT_UNSPEC | flags::WAIT_FD | flags::WAIT_SET | flags::WAIT_YIELD => {
            Ok(())
        }
        kind => Err(crate::refused::log_refusal(&format!("wait object {kind} is not supported"))),
    }
}

impl Members {
    pub(crate) fn new(mode: ThreadMode, wait_obj: u32) -> Result<Members, Errno> {
        check_wait_object(wait_obj)?;
        let has_fd = [flags::WAIT_FD, flags::WAIT_SET].contains(&wait_obj);
        let fd = if has_fd { Some(new_epoll()?) } else { None };
        Ok(Members {
            lock: (mode == ThreadMode::Multi).then(Mutex::default),
            eps: UnsafeCell::default(),
            only: Cell::new(std::ptr::null()),
            has_sleeper: AtomicBool::new(false),
            is_signalled: AtomicBool::new(false),
            fd,
        })
    }

    fn guard(&self) -> Option<MutexGuard<'_, ()>> {
        self.lock.as_ref().map(|lock| lock.lock().unwrap_or_else(PoisonError::into_inner))
    }

    // HOT
    #[inline(always)]
    pub(crate) fn inside(&self) -> Inside<'_> {
        let guard = self.guard();
        // SAFETY: inside the lock.
        Inside { _guard: guard, eps: unsafe { &*self.eps.get() } }
    }

    /// The only endpoint, where there is no lock. `None`: there are several, none, or a lock.
    // HOT
    #[inline(always)]
    pub(crate) fn only_unlocked(&self) -> Option<&Ep> {
        // SAFETY: an endpoint leaves the list, and this place, before it is freed.
        unsafe { self.only.get().as_ref() }
    }

    /// Changes the list.
    fn change(&self, change: impl FnOnce(&mut Vec<*const Ep>)) {
        let _guard = self.guard();
        // SAFETY: inside the lock.
        let eps = unsafe { &mut *self.eps.get() };
        change(eps);
        if let (None, [one]) = (&self.lock, &eps[..]) {
            self.only.set(*one);
        } else {
            self.only.set(std::ptr::null());
        }
    }

    /// Adds an endpoint, once.
    pub(crate) fn add(&self, ep: &Ep) -> Result<(), Errno> {
        if let Some(fd) = &self.fd {
            let events = ep.event_fd()?;
            let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
            // SAFETY: the event outlives the call; the kernel checks both descriptors.
            unsafe { libc::epoll_ctl(fd.as_raw_fd(), libc::EPOLL_CTL_ADD, events, &mut event) };
        }
        self.change(|eps| {
            if !eps.iter().any(|known| std::ptr::eq(*known, ep)) {
                eps.push(ep);
            }
        });
        Ok(())
    }

    pub(crate) fn remove(&self, ep: &Ep) {
        if let (Some(fd), Ok(events)) = (&self.fd, ep.event_fd()) {
            // SAFETY: no memory is passed; the kernel checks both descriptors.
            unsafe { libc::epoll_ctl(fd.as_raw_fd(), libc::EPOLL_CTL_DEL, events, std::ptr::null_mut()) };
        }
        self.change(|eps| eps.retain(|known| !std::ptr::eq(*known, ep)));
    }

    /// Progress of all endpoints.
    pub(crate) fn progress(&self) {
        for ep in self.inside().eps() {
            ep.progress();
        }
    }

    /// The descriptor for programs.
    pub(crate) fn fd(&self) -> Result<RawFd, Errno> {
        self.fd.as_ref().map(AsRawFd::as_raw_fd).ok_or(Errno::NOSYS)
    }

    /// Ends the sleep of a thread, or the next one at once.
    pub(crate) fn signal(&self) {
        self.is_signalled.store(true, Ordering::Release);
        for ep in self.inside().eps() {
            ep.shared.signal();
        }
    }

    pub(crate) fn takes_signal(&self) -> bool {
        self.is_signalled.swap(false, Ordering::AcqRel)
    }

    /// Wakes a thread that sleeps, inside the lock of an endpoint which has something new for it.
    // HOT
    #[inline(always)]
    pub(crate) fn wake(&self, ep: &Ep) {
        if self.has_sleeper.load(Ordering::Relaxed) {
            self.wake_sleeper(ep);
        }
    }

    #[cold]
    #[inline(never)]
    fn wake_sleeper(&self, ep: &Ep) {
        self.has_sleeper.store(false, Ordering::Relaxed);
        ep.shared.signal();
    }

    /// Arms the descriptors of all endpoints. False: there may be something to do, or `is_ready` says so.
    pub(crate) fn arm(&self, is_ready: impl Fn() -> bool) -> bool {
        // Stored before the endpoints are looked at inside their locks, in which `wake` reads it.
        self.has_sleeper.store(true, Ordering::SeqCst);
        let is_armed = self.inside().eps().all(|ep| {
            ep.adopt();
            ep.shared.arm().unwrap_or(false)
        });
        // What has ended before an endpoint was armed is seen here; what ends later wakes. A wake in between
        // may have been taken by another thread that sleeps on the endpoint: it has cleared the mark.
        is_armed && !is_ready() && self.has_sleeper.load(Ordering::Relaxed)
    }

    /// Sleeps until an endpoint may have something to do, `is_ready` says so, a signal, or the deadline.
    pub(crate) fn sleep(&self, deadline: &Deadline, is_ready: impl Fn() -> bool) {
        if self.is_signalled.load(Ordering::Acquire) || !self.arm(is_ready) {
            return;
        }
        let mut limit = deadline.left();
        let mut fds = Vec::new();
        for ep in self.inside().eps() {
            ep.adopt();
            let timer = ep.shared.next_timer().unwrap_or(Some(LONGEST_BLIND_SLEEP));
            limit = limit
                .into_iter()
                .chain(timer)
                .chain(ep.keeps_unreported.then_some(LONGEST_BLIND_SLEEP))
                .min();
            match ep.event_fd() {
                Ok(fd) => fds.push(libc::pollfd { fd, events: libc::POLLIN, revents: 0 }),
                Err(_) => limit = limit.into_iter().chain([LONGEST_BLIND_SLEEP]).min(),
            }
        }
        if fds.is_empty() {
            limit = limit.into_iter().chain([LONGEST_BLIND_SLEEP]).min();
        }
        let milliseconds = limit.map_or(-1, |limit| limit.as_micros().div_ceil(1000).min(60_000) as i32);
        // SAFETY: the list has this length.
        unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, milliseconds) };
    }
}

/// A set of descriptors, without any.
pub(crate) fn new_epoll() -> Result<OwnedFd, Errno> {
    // SAFETY: no memory is passed.
    let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
    if fd < 0 {
        return Err(Errno(libc::EMFILE));
    }
    // SAFETY: the descriptor is new and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
