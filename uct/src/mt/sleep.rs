//! Sleeping on a shared interface: by waiting, by descriptor, and as a progress thread. Woken by the
//! interface's descriptor and by other threads ([`Wakeup`]).

use super::Iface;
use super::inner::inner;
use crate::api::{ArmStatus, Error, Events, Iface as _};
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};
use ucs::Errno;
use ucs::sys::fd::wait_readable;
use ucs::sys::{Sleeper, Wakeup};

const BATCH: usize = 64;

pub(super) struct SleepPlan<'a> {
    pub(super) sleeper: Sleeper<'a>,
    pub(super) own: Option<BorrowedFd<'a>>,
    pub(super) time: Option<Duration>,
}

fn no_descriptor(errno: Errno) -> Error {
    Error::Sys { call: "eventfd", errno }
}

impl Iface {
    /// Progresses until events come, for at most `timeout`: `spin` empty polls, then asleep. Answers the
    /// events, 0 at the timeout. Events that others received since this handle's last wait count too: one
    /// handle per waiter.
    pub fn wait(&self, spin: u32, timeout: Option<Duration>) -> Result<usize, Error> {
        // A time that no clock reaches is no limit.
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            for _ in 0..=spin {
                let events = self.progress_or_unseen(BATCH)?;
                if events > 0 {
                    return Ok(events);
                }
                std::hint::spin_loop();
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Ok(0);
            }
            if let Some(plan) = self.plan_caller_sleep(left)? {
                sleep(&[plan], None)?;
            }
        }
    }

    /// The descriptor that [`Iface::arm`] arms; also reports events that others receive.
    pub fn event_fd(&self) -> Result<BorrowedFd<'_>, Error> {
        let _guard = self.shared.lock()?;
        self.shared
            .wakeup
            .event_fd(inner!(self.shared.iface, iface => iface.event_fd())?)
            .map_err(no_descriptor)
    }

    /// Arms the descriptor for one wake-up of one thread. `Ok(false)`: events are there, or were.
    pub fn arm(&self, events: Events) -> Result<bool, Error> {
        let _guard = self.shared.lock()?;
        if self.has_something_unseen() || !inner!(self.shared.iface, iface => iface.arm(events))? {
            return Ok(false);
        }
        self.shared
            .wakeup
            .arm(inner!(self.shared.iface, iface => iface.event_fd())?)
            .map_err(no_descriptor)?;
        Ok(true)
    }

    /// [`Iface::arm`] for a sleep of limited time, which pending operations need not prevent.
    pub fn arm_for(&self, events: Events) -> Result<ArmStatus, Error> {
        let _guard = self.shared.lock()?;
        if self.has_something_unseen() {
            return Ok(ArmStatus::Busy);
        }
        let armed = inner!(self.shared.iface, iface => iface.arm_for(events))?;
        if armed != ArmStatus::Busy {
            self.shared
                .wakeup
                .arm(inner!(self.shared.iface, iface => iface.event_fd())?)
                .map_err(no_descriptor)?;
        }
        Ok(armed)
    }

    /// Whether there are unseen events, which count as seen from now on.
    fn has_something_unseen(&self) -> bool {
        let has_unseen = self.has_unseen();
        self.take_unseen();
        has_unseen
    }

    pub(super) fn plan_caller_sleep(&self, left: Option<Duration>) -> Result<Option<SleepPlan<'_>>, Error> {
        let shared = &*self.shared;
        let _guard = shared.lock()?;
        if self.has_unseen() {
            return Ok(None);
        }
        self.plan_sleep(left, Wakeup::event_sleeper)
    }

    /// Prepares a progress thread's sleep without waiting; kept messages wake it only when too many.
    pub(super) fn plan_thread_sleep(&self) -> Result<Option<SleepPlan<'_>>, Error> {
        let shared = &*self.shared;
        let Some(_guard) = shared.try_lock()? else { return Ok(None) };
        if shared.keep_budget(1) == 0 {
            // A caller that takes some of it wakes the thread.
            return Ok(Some(SleepPlan {
                sleeper: shared.wakeup.work_sleeper().map_err(no_descriptor)?,
                own: None,
                time: None,
            }));
        }
        self.plan_sleep(None, Wakeup::work_sleeper)
    }

    fn plan_sleep(
        &self,
        left: Option<Duration>,
        who: impl Fn(&Wakeup) -> Result<Sleeper<'_>, Errno>,
    ) -> Result<Option<SleepPlan<'_>>, Error> {
        let shared = &*self.shared;
        let Some(time) = inner!(shared.iface, iface => iface.arm_for(Events::all()))?.sleep_time(left) else {
            return Ok(None);
        };
        Ok(Some(SleepPlan {
            sleeper: who(&shared.wakeup).map_err(no_descriptor)?,
            own: Some(inner!(shared.iface, iface => iface.event_fd())?),
            time,
        }))
    }
}

/// A worker of one thread has shared interfaces among its members, too: one descriptor for all of them.
impl crate::worker::Progress for Iface {
    fn progress(&self, max: usize) -> usize {
        self.progress_or_unseen(max).unwrap_or_else(|error| {
            tracing::debug!(%error, "cannot progress a shared interface");
            0
        })
    }

    fn event_fd(&self) -> Result<BorrowedFd<'_>, Error> {
        Iface::event_fd(self)
    }

    fn arm(&self, events: Events) -> Result<bool, Error> {
        Iface::arm(self, events)
    }

    fn arm_for(&self, events: Events) -> Result<ArmStatus, Error> {
        Iface::arm_for(self, events)
    }
}

pub(super) fn sleep(plans: &[SleepPlan<'_>], stop: Option<BorrowedFd<'_>>) -> Result<(), Error> {
    let told = plans.iter().flat_map(|plan| plan.own.into_iter().chain([plan.sleeper.fd()]));
    let fds: Vec<BorrowedFd<'_>> = told.chain(stop).collect();
    let time = plans.iter().filter_map(|plan| plan.time).min();
    wait_readable(&fds, time).map(drop).map_err(|errno| Error::Sys { call: "poll", errno })
}
