//! Waiting for the end of an operation: of the threads that wait, one progresses and sleeps on the worker's
//! descriptor; the others sleep until their own operation has ended or it is their turn to progress.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use ucs::Errno;
use ucs::sync::Follower;
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

/// Membership of a waiting thread in its worker's group.
struct Member {
    shared: Arc<Shared>,
    follower: Arc<Follower>,
    is_in: Cell<bool>,
}

impl Member {
    fn join(&self) {
        if !self.is_in.replace(true) {
            self.shared.waiters.join(&self.follower);
        }
    }

    fn leave(&self) {
        if self.is_in.replace(false) {
            self.shared.waiters.leave(&self.follower);
        }
    }
}

thread_local! {
    /// Memberships of the thread, the outermost wait first.
    static MEMBERS: RefCell<Vec<Rc<Member>>> = const { RefCell::new(Vec::new()) };
}

/// A wait, whose membership ends with it even if a callback panics.
struct Wait(Option<Rc<Member>>);

impl Wait {
    /// Begins a wait of the calling thread. What it is in (a future of a worker's `block_on`, a waker, a
    /// handler of another worker) makes no progress meanwhile, so its wait must not lead a group, nor get the
    /// lead: the thread leaves these groups until this wait is over.
    fn begin(shared: &Arc<Shared>, follower: &Arc<Follower>) -> Wait {
        // Inside its lock nobody else can progress a worker.
        let leave = |outer: &Rc<Member>| {
            if !outer.shared.is_held_here() {
                outer.leave();
            }
        };
        // A thread that ends has no list any more.
        let _ = MEMBERS.try_with(|members| members.borrow().iter().for_each(leave));
        if shared.is_held_here() {
            follower.lead();
            return Wait(None);
        }
        let (shared, follower) = (shared.clone(), follower.clone());
        let member = Rc::new(Member { shared, follower, is_in: Cell::new(false) });
        member.join();
        let _ = MEMBERS.try_with(|members| members.borrow_mut().push(member.clone()));
        Wait(Some(member))
    }

    /// Joins the group again if a wait within this one has left it.
    fn rejoin(&self) {
        if let Some(member) = &self.0 {
            member.join();
        }
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        let Some(member) = self.0.take() else { return };
        member.leave();
        let _ = MEMBERS.try_with(|members| members.borrow_mut().pop());
    }
}

impl Shared {
    /// Calls `poll` until it is ready, with progress and sleep between. `poll` goes in by itself.
    pub(super) fn block_on<T>(self: &Arc<Self>, poll: impl FnMut(&mut Context<'_>) -> Poll<T>) -> T {
        self.block_on_with(poll, || {})
    }

    /// As above; calls `after` outside the lock, behind each progress call and sleep.
    pub(super) fn block_on_with<T>(
        self: &Arc<Self>,
        mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>,
        mut after: impl FnMut(),
    ) -> T {
        let follower = Follower::current();
        let shared = Arc::downgrade(self);
        let waker = Waker::from(Arc::new(Parker { follower: follower.clone(), shared }));
        let mut cx = Context::from_waker(&waker);
        let wait = Wait::begin(self, &follower);
        let mut idle = 0;
        loop {
            // A handler's own wakers are called when it has returned, so that it looks by itself.
            if (follower.take_wake() || wait.0.is_none())
                && let Poll::Ready(value) = poll(&mut cx)
            {
                return value;
            }
            wait.rejoin();
            if follower.leads() {
                self.lead(&follower, &mut idle);
            } else {
                follower.park();
            }
            after();
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
        // A waker that waits may have given the lead away, and nobody ends the sleep of a thread without it.
        if !follower.leads() {
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
