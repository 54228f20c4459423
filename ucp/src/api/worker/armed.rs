//! The worker's armed descriptor: what it tells of, and the wake-up for what begins while a program sleeps on
//! it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ucs::Errno;
use uct::api::{Caps, Events, Iface as _};

use crate::api::core::armed::ArmedFor;
use crate::api::core::worker_core::WorkerCore;
use crate::api::worker::handle::Worker;

impl WorkerCore {
    /// Whether something is to be done that the sleeping program does not hear of otherwise: an operation
    /// began to wait, ended within its call, or has a deadline before all others.
    pub(crate) fn needs_wakeup(&self) -> bool {
        let began_to_wait = || self.waits_for_resources() && !self.armed_for.resources;
        let is_earlier = || match (self.next_deadline(), self.armed_for.deadline) {
            (Some(now), Some(before)) => now < before,
            (now, _) => now.is_some(),
        };
        self.has_completions() || began_to_wait() || is_earlier()
    }
}

impl Worker {
    /// Descriptor that becomes readable after [`Worker::arm`] at an event, and when a back-off, close or
    /// check is due; `None` if a lane lacks one, or the process has no descriptor left.
    pub fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        let events = self.inner.events.as_ref()?;
        match self.inner.timer.add_to(events) {
            Ok(()) => Some(events.as_fd()),
            Err(errno) => {
                tracing::debug!(%errno, "the worker has no event descriptor: no timer can be made");
                None
            }
        }
    }

    /// Arms [`Worker::event_fd`] for one wakeup: by an arrival, by a signal ([`Worker::signaller`]), at the
    /// next deadline ([`Worker::next_timer`]), and by an operation that another task of this thread begins
    /// meanwhile and that has to wait, or has a deadline before all others. False if there may be something
    /// to do, a deadline has passed, or a signal has come: call progress again.
    pub fn arm(&self) -> bool {
        let Some(events) = &self.inner.events else { return false };
        if let Err(errno) = self.inner.timer.add_to(events).and_then(|()| self.inner.signals.prepare(events))
        {
            tracing::debug!(%errno, "cannot sleep: no descriptor for wake-ups");
            return false;
        }
        let is_armed = arm_lanes(self);
        self.inner.core_in_progress().is_armed = is_armed;
        is_armed
    }

    /// An owner of the descriptor of [`Worker::event_fd`], for event loops that keep one (`AsyncFd` of
    /// tokio). It stays valid after the worker is dropped, and is then never readable. `None` as there.
    pub fn event_source(&self) -> Result<Option<WorkerEvents>, Errno> {
        let Some(events) = &self.inner.events else { return Ok(None) };
        self.inner.timer.add_to(events)?;
        let copy = events.as_fd().try_clone_to_owned().map_err(Errno::from)?;
        Ok(Some(WorkerEvents(copy)))
    }
}

/// Arms the lanes, for a sleep in which this thread begins nothing or wakes by other means.
pub(crate) fn arm_lanes(worker: &Worker) -> bool {
    let mut core = worker.inner.core_in_progress();
    if worker.inner.signals.take()
        || worker.inner.events.is_none()
        || core.has_completions()
        || worker.inner.am_handlers.queue.has_messages()
    {
        return false;
    }
    let deadline = core.next_deadline();
    let after = deadline.map(|at| at.since(core.now()));
    if core.cm.is_ready() || after.is_some_and(|after| after.is_zero()) {
        core.on_wakeup();
        return false;
    }
    if let Err(errno) = worker.inner.timer.set(after) {
        tracing::debug!(%errno, "the worker cannot be armed: its timer cannot be set");
        return false;
    }
    let armed_for = ArmedFor { resources: core.waits_for_resources(), deadline };
    let is_armed = core.ifaces.iter().all(|lane| {
        // Some interfaces cannot signal free resources and need polling.
        let signals_send = lane.iface.attr().has(Caps::EVENT_SEND);
        let events = if signals_send { Events::RECV | Events::SEND } else { Events::RECV };
        (signals_send || !armed_for.resources) && lane.iface.arm(events) == Ok(true)
    });
    // The descriptor, or the time of a wait, tells of these from now on. Otherwise a thread that sleeps
    // already still hears of what has begun since it armed.
    if is_armed {
        core.armed_for = armed_for;
    }
    is_armed
}

/// Owner of a worker's event descriptor: see [`Worker::event_source`].
#[derive(Debug)]
pub struct WorkerEvents(OwnedFd);

impl WorkerEvents {
    pub(crate) fn new(fd: OwnedFd) -> WorkerEvents {
        WorkerEvents(fd)
    }
}

impl AsFd for WorkerEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl std::os::fd::AsRawFd for WorkerEvents {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.0.as_raw_fd()
    }
}

impl From<WorkerEvents> for OwnedFd {
    fn from(events: WorkerEvents) -> OwnedFd {
        events.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Context, EpParams, Source};

    /// One thread sleeps; another begins what has to wait for room, and cannot sleep. The first one is to be
    /// woken.
    #[test]
    fn a_failed_arm_hides_nothing_from_a_thread_that_sleeps() {
        let context = Context::configured(Source::empty().with("UCX_TLS", "posix")).unwrap();
        let [a, b] = [(); 2].map(|()| context.worker().unwrap());
        let ep = a.connect(&b.address(), EpParams::default()).unwrap();
        let first = ep.tag_send(1, vec![1]);
        while !first.is_done() || !arm_lanes(&a) {
            a.progress();
            b.progress();
        }
        assert!(!a.inner.needs_wakeup());
        (0..2000).for_each(|_| ep.tag_send(1, vec![1; 3000]).detach());
        assert!(a.inner.needs_wakeup());
        assert!(!arm_lanes(&a), "posix signals no room");
        assert!(a.inner.needs_wakeup());
    }
}
