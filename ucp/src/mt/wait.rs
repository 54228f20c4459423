//! Waiting for the end of an operation: of the threads that wait, one progresses and sleeps on the worker's
//! descriptor; the others sleep until their own operation has ended or it is their turn to progress.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use ucs::Errno;
use ucs::sync::{Follower, LeaderGroup};
use ucs::sys::Sleeper;
use ucs::sys::fd::wait_readable;

use super::shared::Shared;
use crate::WaitStatus;
use crate::api::SleepPlan;

/// Longest sleep of the thread that progresses.
const MAX_SLEEP: Duration = Duration::from_millis(100);

/// A thread that waits, as its operation's waker knows it.
struct Parker {
    follower: Arc<Follower>,
    shared: Weak<Shared>,
}

impl Wake for Parker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.follower.wake()
            && let Some(shared) = self.shared.upgrade()
        {
            shared.wakeup.wake_for_work();
        }
    }
}

/// Membership of a waiting thread, which ends even if a callback panics.
struct Member<'a> {
    group: Option<&'a LeaderGroup>,
    follower: &'a Arc<Follower>,
}

impl Drop for Member<'_> {
    fn drop(&mut self) {
        self.group.into_iter().for_each(|group| group.leave(self.follower));
    }
}

impl Shared {
    /// Calls `poll` until it is ready, with progress and sleep between. `poll` goes in by itself.
    pub(super) fn block_on<T>(self: &Arc<Self>, mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>) -> T {
        let follower = Follower::current();
        let shared = Arc::downgrade(self);
        let waker = Waker::from(Arc::new(Parker { follower: follower.clone(), shared }));
        let mut cx = Context::from_waker(&waker);
        // In a handler nobody else can progress.
        let group = if self.is_held_here() { None } else { Some(&self.waiters) };
        match group {
            Some(group) => group.join(&follower),
            None => follower.lead(),
        }
        let _member = Member { group, follower: &follower };
        let mut idle = 0;
        loop {
            // A handler's own wakers are called when it has returned, so that it looks by itself.
            if (follower.take_wake() || group.is_none())
                && let Poll::Ready(value) = poll(&mut cx)
            {
                return value;
            }
            if follower.leads() {
                self.lead(&follower, &mut idle);
            } else {
                follower.park();
            }
        }
    }

    /// Progresses once, and sleeps after many empty calls.
    fn lead(self: &Arc<Self>, follower: &Follower, idle: &mut u32) {
        if let Ok(Some(inside)) = self.enter_to_progress()
            && inside.progress() > 0
        {
            *idle = 0;
            return;
        }
        *idle += 1;
        if *idle < self.spin() {
            std::hint::spin_loop();
        } else if self.sleep_for_work(Some(MAX_SLEEP), || !follower.is_woken()).is_err() {
            thread::yield_now();
        }
    }

    /// Sleeps until there may be something to progress, unless `may_sleep` says that there already is.
    pub(super) fn sleep_for_work(
        self: &Arc<Self>,
        limit: Option<Duration>,
        may_sleep: impl FnOnce() -> bool,
    ) -> Result<WaitStatus, Errno> {
        self.sleep(limit, || self.wakeup.work_sleeper().map(Some), may_sleep)
    }

    /// Sleeps until there may be something to progress, another thread has received events, a signal, or the
    /// timeout. `has_unseen`, called inside, says whether there are events that the caller has not seen.
    pub(super) fn sleep_for_events(
        self: &Arc<Self>,
        timeout: Option<Duration>,
        has_unseen: impl FnOnce() -> bool,
    ) -> Result<WaitStatus, Errno> {
        let register = || match has_unseen() {
            true => Ok(None),
            false => self.wakeup.event_sleeper().map(Some),
        };
        let is_signalled = || self.is_signalled.swap(false, Ordering::SeqCst);
        let slept = self.sleep(timeout, register, || !is_signalled());
        // The signal that ended the sleep.
        is_signalled();
        slept
    }

    fn sleep<'a>(
        self: &'a Arc<Self>,
        timeout: Option<Duration>,
        register: impl FnOnce() -> Result<Option<Sleeper<'a>>, Errno>,
        may_sleep: impl FnOnce() -> bool,
    ) -> Result<WaitStatus, Errno> {
        let Some(inside) = self.enter_waiting() else { return Ok(WaitStatus::Ready) };
        let Some(sleeper) = register()? else { return Ok(WaitStatus::Ready) };
        let plan = SleepPlan::begin(inside.worker(), timeout);
        inside.leave_idle();
        let (Some(plan), Some(lanes)) = (plan, self.lanes_fd()) else {
            thread::yield_now();
            return Ok(WaitStatus::Ready);
        };
        if !may_sleep() {
            return Ok(WaitStatus::Ready);
        }
        let woken = wait_readable(&[lanes, sleeper.fd()], plan.time)?;
        drop(sleeper);
        let Some(inside) = self.enter_waiting() else { return Ok(WaitStatus::Ready) };
        let status = plan.end(inside.worker(), woken);
        inside.leave_idle();
        Ok(status)
    }
}
