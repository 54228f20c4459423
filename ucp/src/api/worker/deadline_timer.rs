//! The worker's next deadline as a descriptor.

use std::cell::{Cell, OnceCell};
use std::time::Duration;

use ucs::Errno;
use ucs::sys::fd::Epoll;
use ucs::sys::timer_fd::TimerFd;

/// Token of the timer in the worker's set, beside those of `Signals`.
const TOKEN: u64 = u64::MAX - 3;

/// The worker's next deadline as a descriptor, once a program has asked for the worker's.
#[derive(Default)]
pub(crate) struct DeadlineTimer {
    timer: OnceCell<TimerFd>,
    is_set: Cell<bool>,
}

impl DeadlineTimer {
    /// Adds the timer to the set of the worker, once.
    pub(super) fn add_to(&self, events: &Epoll) -> Result<(), Errno> {
        if self.timer.get().is_none() {
            let timer = TimerFd::new()?;
            events.add(&timer, TOKEN)?;
            _ = self.timer.set(timer);
        }
        Ok(())
    }

    /// Makes the descriptor unreadable until then.
    pub(super) fn set(&self, after: Option<Duration>) -> Result<(), Errno> {
        match self.timer.get() {
            Some(timer) if self.is_set.replace(after.is_some()) || after.is_some() => timer.set(after),
            _ => Ok(()),
        }
    }
}
