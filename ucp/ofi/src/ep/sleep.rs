//! Descriptors on which a thread or program sleeps until an endpoint may have something to do.

use std::os::fd::{AsFd, AsRawFd, RawFd};

use ucs::sys::TimerFd;

use super::Ep;
use crate::errno::Errno;
use crate::wait::LONGEST_BLIND_SLEEP;

impl Ep {
    /// Descriptors that become readable when there may be something to do: that of the worker, which knows
    /// the worker's timers, and a timer if the endpoint keeps events of which nothing else tells.
    /// [`Errno::NOSYS`]: a transport has none.
    pub(crate) fn descriptors(&self) -> Result<impl Iterator<Item = RawFd>, Errno> {
        self.adopt();
        let fd = self.shared.event_fd().map_err(|_| Errno::BUSY)?.ok_or(Errno::NOSYS)?;
        let timer = if self.keeps_unreported { Some(self.kept_events_timer()?) } else { None };
        Ok([Some(fd.as_raw_fd()), timer.map(|timer| timer.as_fd().as_raw_fd())].into_iter().flatten())
    }

    fn kept_events_timer(&self) -> Result<&TimerFd, Errno> {
        if self.kept_events_timer.get().is_none() {
            // Another thread may have been faster.
            let _ = self.kept_events_timer.set(TimerFd::new().map_err(|_| Errno(libc::EMFILE))?);
        }
        self.kept_events_timer.get().ok_or(Errno::NOMEM)
    }

    /// Arms the descriptors and makes them unreadable. False: there may be something to do.
    ///
    /// All sleepers of the endpoint share the descriptors, so arming consumes a wake-up that was meant for
    /// another sleeper. That is safe: at this moment nothing is left to do, every completed or kept event has
    /// woken the sleepers of its own queue or counter, and later arrivals and timers make the descriptors
    /// readable again.
    pub(crate) fn arm(&self) -> bool {
        self.adopt();
        self.inside(|plain| {
            self.await_shared();
            self.collect_kept(plain);
            self.shared.arm().unwrap_or(false) && (!self.keeps_unreported || self.arm_kept_events_timer())
        })
    }

    fn arm_kept_events_timer(&self) -> bool {
        self.kept_events_timer().is_ok_and(|timer| timer.set(Some(LONGEST_BLIND_SLEEP)).is_ok())
    }
}
