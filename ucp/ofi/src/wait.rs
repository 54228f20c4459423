//! Endpoints that report to a queue or counter: their progress, and sleep until one of them has something.
//!
//! Each sleeper has a descriptor of its own ([`Sleepers`]), which entries and changes of the list make
//! readable. Those of an endpoint tell that there may be something to do. All that sleep on the endpoint
//! share them, and any of them may arm them again: see [`Ep::arm`].

use std::cell::{Cell, UnsafeCell};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ucp::mt::ThreadMode;

use crate::abi::flags;
use crate::ep::Ep;
use crate::errno::Errno;
use crate::sleepers::Sleepers;

/// Longest sleep without a look, for endpoints whose transports have no descriptor.
pub(crate) const LONGEST_BLIND_SLEEP: Duration = Duration::from_millis(1);

/// Endpoints bound to an object, behind a lock that is taken where threads share the domain.
pub(crate) struct Members {
    lock: Option<Mutex<()>>,
    eps: UnsafeCell<Vec<*const Ep>>,
    /// The only endpoint, where there is no lock; else null.
    only: Cell<*const Ep>,
    sleepers: Sleepers,
    /// A thread that sleeps in a call is to return at once.
    is_signalled: AtomicBool,
    /// A program that sleeps on the descriptor is to look first.
    is_fd_signalled: AtomicBool,
    /// Descriptors of the sleepers and of the endpoints in one, for programs that sleep on it themselves.
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
        let sleepers = Sleepers::new(has_fd)?;
        if let (Some(fd), Some(event)) = (&fd, sleepers.fd()) {
            add_to_epoll(fd, event);
        }
        Ok(Members {
            lock: (mode == ThreadMode::Multi).then(Mutex::default),
            eps: UnsafeCell::default(),
            only: Cell::new(std::ptr::null()),
            sleepers,
            is_signalled: AtomicBool::new(false),
            is_fd_signalled: AtomicBool::new(false),
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

    /// Changes the list. Those that sleep do so on other endpoints from then on.
    fn change(&self, change: impl FnOnce(&mut Vec<*const Ep>)) {
        let guard = self.guard();
        // SAFETY: inside the lock.
        let eps = unsafe { &mut *self.eps.get() };
        change(eps);
        if let (None, [one]) = (&self.lock, &eps[..]) {
            self.only.set(*one);
        } else {
            self.only.set(std::ptr::null());
        }
        drop(guard);
        self.sleepers.wake_all();
    }

    /// Adds an endpoint, once.
    pub(crate) fn add(&self, ep: &Ep) -> Result<(), Errno> {
        if let Some(fd) = &self.fd {
            ep.descriptors()?.for_each(|of_ep| add_to_epoll(fd, of_ep));
        }
        self.change(|eps| {
            if !eps.iter().any(|known| std::ptr::eq(*known, ep)) {
                eps.push(ep);
            }
        });
        Ok(())
    }

    pub(crate) fn remove(&self, ep: &Ep) {
        if let Some(fd) = &self.fd
            && let Ok(of_ep) = ep.descriptors()
        {
            for of_ep in of_ep {
                // SAFETY: no memory is passed; the kernel checks both descriptors.
                unsafe { libc::epoll_ctl(fd.as_raw_fd(), libc::EPOLL_CTL_DEL, of_ep, std::ptr::null_mut()) };
            }
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
        self.is_fd_signalled.store(true, Ordering::Release);
        self.sleepers.wake_all();
    }

    pub(crate) fn takes_signal(&self) -> bool {
        self.is_signalled.swap(false, Ordering::AcqRel)
    }

    /// Wakes those that sleep, inside the lock of an endpoint which has something new for them.
    // HOT
    #[inline(always)]
    pub(crate) fn wake(&self) {
        self.sleepers.wake();
    }

    /// Wakes those that sleep, after a change that no endpoint has made.
    pub(crate) fn wake_all(&self) {
        self.sleepers.wake_all();
    }

    /// Whether a program may sleep on the descriptor. False: there may be something to do, or `is_ready` says
    /// so.
    pub(crate) fn try_wait(&self, is_ready: impl Fn() -> bool) -> bool {
        self.sleepers.arm();
        let is_signalled = self.is_fd_signalled.swap(false, Ordering::AcqRel);
        let is_armed = self.inside().eps().all(Ep::arm);
        if is_signalled || is_ready() {
            // Another thread may sleep on the descriptor, which has been made unreadable.
            self.sleepers.wake_all();
            return false;
        }
        is_armed
    }

    /// Sleeps until an endpoint may have something to do, `is_ready` says so, a signal, or the deadline.
    pub(crate) fn sleep(&self, deadline: &Deadline, is_ready: impl Fn() -> bool) {
        let mut limit = deadline.left();
        let mut look_soon = || limit = limit.into_iter().chain([LONGEST_BLIND_SLEEP]).min();
        let mut fds = Vec::new();
        let mut add = |fd| fds.push(libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
        let thread = self.sleepers.add_thread();
        match &thread {
            Ok(thread) => add(thread.fd()),
            Err(_) => look_soon(),
        }
        if self.is_signalled.load(Ordering::Acquire) {
            return;
        }
        for ep in self.inside().eps() {
            match ep.descriptors() {
                Ok(_) if !ep.arm() => return,
                Ok(of_ep) => of_ep.for_each(&mut add),
                Err(_) => look_soon(),
            }
        }
        // What has ended before an endpoint was armed is seen here; what ends later wakes.
        if is_ready() {
            return;
        }
        let milliseconds = limit.map_or(-1, |limit| limit.as_micros().div_ceil(1000).min(60_000) as i32);
        // SAFETY: the list has this length.
        unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, milliseconds) };
    }
}

/// Adds a descriptor to a set, once.
fn add_to_epoll(set: &OwnedFd, fd: RawFd) {
    let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
    // SAFETY: the event outlives the call; the kernel checks both descriptors.
    unsafe { libc::epoll_ctl(set.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &mut event) };
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
