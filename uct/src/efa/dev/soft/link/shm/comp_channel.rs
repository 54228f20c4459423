//! A completion channel between processes: a pipe that peers open by number, and a retry timer, in an epoll
//! set.

use super::super::CompChannel;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use ucs::Errno;
use ucs::sys::{Epoll, WakePipe};

use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};

/// A completion channel that other processes can signal.
pub struct ShmCompChannel {
    set: Epoll,
    pipe: WakePipe,
    timer: OwnedFd,
}

impl ShmCompChannel {
    pub(super) fn new() -> Result<ShmCompChannel, Errno> {
        let (set, pipe) = (Epoll::new()?, WakePipe::new()?);
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags)?;
        set.add(&pipe, 0)?;
        set.add(&timer, 1)?;
        Ok(ShmCompChannel { set, pipe, timer })
    }

    pub(super) fn pipe_fd(&self) -> i32 {
        self.pipe.fd()
    }

    fn set_timer(&self, ns: u64) -> bool {
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        let once = Timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 };
        let spec = Itimerspec { it_interval: none, it_value: once };
        rustix::time::timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &spec).is_ok()
    }
}

impl CompChannel for ShmCompChannel {
    fn fd(&self) -> BorrowedFd<'_> {
        self.set.as_fd()
    }

    fn signal(&self) {
        let _ = self.pipe.wake();
    }

    /// Setting a timer to zero disarms it and clears its expirations.
    fn clear(&self) {
        let _ = self.pipe.clear();
        self.set_timer(0);
    }

    fn timer(&self, ns: u64) -> bool {
        self.set_timer(ns)
    }
}
