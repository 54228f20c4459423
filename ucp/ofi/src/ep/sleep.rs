//! Descriptors on which a thread or program sleeps until an endpoint may have something to do.

use std::os::fd::{AsRawFd, RawFd};

use super::Ep;
use crate::errno::Errno;
use crate::sleepers::TimerFd;
use crate::wait::LONGEST_BLIND_SLEEP;

impl Ep {
    /// Descriptors that become readable when there may be something to do: that of the worker, and that of
    /// its next timer. [`Errno::NOSYS`]: a transport has none.
    pub(crate) fn descriptors(&self) -> Result<[RawFd; 2], Errno> {
        self.adopt();
        let fd = self.shared.event_fd().map_err(|_| Errno::BUSY)?.ok_or(Errno::NOSYS)?;
        Ok([fd.as_raw_fd(), self.timer()?.fd()])
    }

    fn timer(&self) -> Result<&TimerFd, Errno> {
        if self.timer.get().is_none() {
            // Another thread may have been faster.
            let _ = self.timer.set(TimerFd::new()?);
        }
        self.timer.get().ok_or(Errno::NOMEM)
    }

    /// Arms the descriptors, which are unreadable then. False: there may be something to do.
    ///
    /// All that sleep on the endpoint share them, so that whoever arms them takes a wake-up from the others.
    /// They have no need of it: nothing is to be done then, what has ended or was kept has woken those whose
    /// queue or counter it is for, and from then on the descriptors tell of arrivals and timers.
    pub(crate) fn arm(&self) -> bool {
        let Ok(timer) = self.timer() else { return false };
        self.adopt();
        self.inside(|plain| {
            self.await_shared();
            self.collect_kept(plain);
            if !self.shared.arm().unwrap_or(false) {
                return false;
            }
            let next = self.shared.next_timer().unwrap_or(Some(LONGEST_BLIND_SLEEP));
            if next.is_some_and(|next| next.is_zero()) {
                // Progress looks at the clock now and then, and always after a sleep.
                let _ = self.shared.wait(next);
                return false;
            }
            timer.set(next.into_iter().chain(self.keeps_unreported.then_some(LONGEST_BLIND_SLEEP)).min());
            true
        })
    }
}
