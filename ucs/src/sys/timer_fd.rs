//! A timer that pollers see: a descriptor that becomes readable at a time.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};

use crate::Errno;

/// A timer behind a descriptor: readable from its end on. Non-blocking, closed on exec.
#[derive(Debug)]
pub struct TimerFd {
    fd: OwnedFd,
}

impl TimerFd {
    /// Not set.
    pub fn new() -> Result<TimerFd, Errno> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        Ok(TimerFd { fd: rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags)? })
    }

    /// Sets the timer, or none. It is unreadable until then.
    pub fn set(&self, after: Option<Duration>) -> Result<(), Errno> {
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        // Zero would be no timer.
        let value = after.map_or(none, |after| Timespec {
            tv_sec: after.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: after.subsec_nanos().max(u32::from(after.is_zero())).into(),
        });
        let new = Itimerspec { it_interval: none, it_value: value };
        rustix::time::timerfd_settime(&self.fd, TimerfdTimerFlags::empty(), &new)?;
        Ok(())
    }
}

impl AsFd for TimerFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::fd::wait_readable;

    fn is_readable(timer: &TimerFd) -> bool {
        wait_readable(&[timer.as_fd()], Some(Duration::ZERO)).unwrap()
    }

    #[test]
    fn a_timer_is_readable_when_it_is_due() {
        let timer = TimerFd::new().unwrap();
        timer.set(None).unwrap();
        assert!(!is_readable(&timer));
        timer.set(Some(Duration::ZERO)).unwrap();
        std::thread::sleep(Duration::from_millis(5));
        assert!(is_readable(&timer));
        timer.set(Some(Duration::from_secs(3600))).unwrap();
        assert!(!is_readable(&timer));
        timer.set(Some(Duration::MAX)).unwrap();
        assert!(!is_readable(&timer));
        timer.set(Some(Duration::from_millis(1))).unwrap();
        std::thread::sleep(Duration::from_millis(10));
        assert!(is_readable(&timer));
        timer.set(None).unwrap();
        assert!(!is_readable(&timer), "it is due no more");
    }
}
