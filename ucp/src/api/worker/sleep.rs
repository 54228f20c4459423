//! Sleeps of a worker that has nothing to progress.

use std::time::Duration;

use crate::api::worker::handle::Worker;

/// Result of a wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WaitStatus {
    /// There may be something to progress.
    Ready,
    /// The timeout expired.
    TimedOut,
}

/// A sleep on [`Worker::event_fd`], which is armed.
pub(crate) struct SleepPlan {
    /// Longest time; `None`: without limit.
    pub(crate) time: Option<Duration>,
    /// Whether the time is the caller's, not that of a timer of the worker.
    is_users: bool,
}

impl SleepPlan {
    /// Arms [`Worker::event_fd`] for a sleep of at most `timeout`. `None` if there may be something to do.
    pub(crate) fn begin(worker: &Worker, timeout: Option<Duration>) -> Option<SleepPlan> {
        worker.core().engine.receives().expect_arrivals();
        if !worker.arm() {
            return None;
        }
        let timer = worker.next_timer();
        let users = timeout.filter(|at| timer.is_none_or(|timer| *at <= timer));
        Some(SleepPlan { time: users.or(timer), is_users: users.is_some() })
    }

    /// Ends the sleep, by an event or at the end of its time.
    pub(crate) fn end(&self, worker: &Worker, woken: bool) -> WaitStatus {
        worker.inner.signals.take();
        worker.core().on_wakeup();
        if self.is_users && !woken { WaitStatus::TimedOut } else { WaitStatus::Ready }
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
