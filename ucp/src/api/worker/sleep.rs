//! Sleeps of a worker that has nothing to progress.

use std::time::{Duration, Instant};

use crate::api::worker::armed::arm_lanes;
use crate::api::worker::handle::Worker;

/// Result of a wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WaitStatus {
    /// There may be something to progress, or a signal handler ran.
    Ready,
    /// The timeout expired.
    TimedOut,
}

/// A sleep on [`Worker::event_fd`], which is armed.
pub(crate) struct SleepPlan {
    /// Longest time; `None`: without limit.
    pub(crate) time: Option<Duration>,
    /// When the time is over, if it is the caller's and not that of a timer of the worker.
    users_end: Option<Instant>,
}

impl SleepPlan {
    /// Arms [`Worker::event_fd`] for a sleep of at most `timeout`. `None` if there may be something to do.
    pub(crate) fn begin(worker: &Worker, timeout: Option<Duration>) -> Option<SleepPlan> {
        worker.core().engine.receives().expect_arrivals();
        if !arm_lanes(worker) {
            return None;
        }
        let timer = worker.next_timer();
        let users = timeout.filter(|at| timer.is_none_or(|timer| *at <= timer));
        let users_end = users.and_then(|users| Instant::now().checked_add(users));
        Some(SleepPlan { time: users.or(timer), users_end })
    }

    /// Ends the sleep, by an event, by a signal of the system, or at the end of its time.
    pub(crate) fn end(&self, worker: &Worker, woken: bool) -> WaitStatus {
        worker.inner.signals.take();
        worker.core().on_wakeup();
        let is_over = || self.users_end.is_some_and(|end| Instant::now() >= end);
        if !woken && is_over() { WaitStatus::TimedOut } else { WaitStatus::Ready }
    }
}

/// Makes progress, or sleeps a while after `idle` calls without events.
pub(crate) fn progress_or_wait(worker: &Worker, idle: &mut u32) {
    if worker.progress() > 0 {
        *idle = 0;
        return;
    }
    *idle += 1;
    if *idle < worker.inner.spin {
        std::hint::spin_loop();
    } else if worker.wait(Some(Duration::from_millis(100))).is_err() {
        std::thread::yield_now();
    }
}
