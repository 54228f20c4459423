//! Waiting of several threads, each for an end of its own: one of them, the leader, makes progress for all;
//! the others sleep until their own end has come or it is their turn to lead.

use super::{Arc, AtomicBool, Mutex, MutexGuard, Ordering, thread};
use std::sync::PoisonError;

/// The threads that wait.
#[derive(Debug, Default)]
pub struct LeaderGroup(Mutex<Members>);

#[derive(Debug, Default)]
struct Members {
    has_leader: bool,
    /// Behind the leader, in the order in which they came.
    followers: Vec<Arc<Follower>>,
}

/// A thread that waits, for those who wake it.
#[derive(Debug)]
pub struct Follower {
    is_woken: AtomicBool,
    leads: AtomicBool,
    thread: Parked,
}

/// A thread that parks and is unparked, by the standard library.
#[cfg(not(loom))]
#[derive(Debug)]
struct Parked(thread::Thread);

#[cfg(not(loom))]
impl Parked {
    fn current() -> Parked {
        Parked(thread::current())
    }

    fn park(&self) {
        thread::park();
    }

    fn unpark(&self) {
        self.0.unpark();
    }
}

/// A thread that parks and is unparked, in models: the `unpark` of loom also ends the wait for a mutex.
#[cfg(loom)]
#[derive(Debug)]
struct Parked(AtomicBool);

#[cfg(loom)]
impl Parked {
    fn current() -> Parked {
        Parked(AtomicBool::new(false))
    }

    fn park(&self) {
        while !self.0.load(Ordering::Acquire) {
            thread::yield_now();
        }
        self.0.swap(false, Ordering::AcqRel);
    }

    fn unpark(&self) {
        self.0.swap(true, Ordering::AcqRel);
    }
}

impl Follower {
    /// The calling thread. It is woken: it has to look for its end before it sleeps.
    pub fn current() -> Arc<Follower> {
        let (is_woken, leads) = (AtomicBool::new(true), AtomicBool::new(false));
        Arc::new(Follower { is_woken, leads, thread: Parked::current() })
    }

    /// Tells the thread that its end may have come. Returns true if it leads: then the caller has to end its
    /// sleep, too.
    #[must_use = "the sleep of a leader has to be ended"]
    pub fn wake(&self) -> bool {
        // SYNC(leader): `leads` is stored before `is_woken` is looked at, so one of the two sees the other.
        self.is_woken.swap(true, Ordering::SeqCst);
        self.thread.unpark();
        self.leads.load(Ordering::SeqCst)
    }

    /// Whether it has been woken since the last call.
    pub fn take_wake(&self) -> bool {
        self.is_woken.swap(false, Ordering::SeqCst)
    }

    /// Whether it has been woken. A leader looks behind what makes its sleep end, before it sleeps.
    pub fn is_woken(&self) -> bool {
        // SYNC(leader)
        self.is_woken.load(Ordering::SeqCst)
    }

    /// Whether the thread has to make progress.
    pub fn leads(&self) -> bool {
        self.leads.load(Ordering::SeqCst)
    }

    /// Makes it lead without a group.
    pub fn lead(&self) {
        self.leads.store(true, Ordering::SeqCst);
    }

    /// Sleeps until it is woken or leads, or for no reason. For its own thread, which may have parked for
    /// something else since: what ended that sleep may have been meant for this one.
    pub fn park(&self) {
        if !self.is_woken() && !self.leads() {
            self.thread.park();
        }
    }
}

impl LeaderGroup {
    fn members(&self) -> MutexGuard<'_, Members> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Joins the group: as its leader if it has none.
    pub fn join(&self, me: &Arc<Follower>) {
        let mut members = self.members();
        if std::mem::replace(&mut members.has_leader, true) {
            members.followers.push(me.clone());
        } else {
            me.lead();
        }
    }

    /// Leaves the group, which the thread may join again. The thread that has waited longest leads the group
    /// after its leader.
    pub fn leave(&self, me: &Arc<Follower>) {
        let mut members = self.members();
        if !me.leads.swap(false, Ordering::SeqCst) {
            members.followers.retain(|other| !Arc::ptr_eq(other, me));
        } else if members.followers.is_empty() {
            members.has_leader = false;
        } else {
            let next = members.followers.remove(0);
            next.lead();
            next.thread.unpark();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::AtomicU32;

    /// Two threads, and what they wait for.
    struct Waits {
        group: LeaderGroup,
        /// Of each thread, as inside a worker's lock: whether its end has come, and whom to wake.
        ends: [Mutex<(bool, Option<Arc<Follower>>)>; 2],
        /// Threads that sleep or are about to, as `Wakeup` counts them.
        sleepers: AtomicU32,
        /// The sleepers' descriptor is readable.
        is_readable: AtomicBool,
        /// Work that progress does: the end of both threads.
        arrived: AtomicBool,
    }

    impl Waits {
        fn new(arrived: bool) -> Arc<Waits> {
            Arc::new(Waits {
                group: LeaderGroup::default(),
                ends: [Mutex::new((false, None)), Mutex::new((false, None))],
                sleepers: AtomicU32::new(0),
                is_readable: AtomicBool::new(false),
                arrived: AtomicBool::new(arrived),
            })
        }

        fn end(&self, n: usize) {
            let mut end = self.ends[n].lock().unwrap();
            end.0 = true;
            let waiting = end.1.take();
            drop(end);
            if waiting.is_some_and(|follower| follower.wake())
                && self.sleepers.fetch_add(0, Ordering::AcqRel) > 0
            {
                self.is_readable.swap(true, Ordering::AcqRel);
            }
        }

        fn progress(&self) {
            if self.arrived.swap(false, Ordering::AcqRel) {
                self.end(0);
                self.end(1);
            }
        }

        fn sleep(&self, me: &Follower) {
            self.sleepers.fetch_add(1, Ordering::AcqRel);
            if !me.is_woken() {
                while !self.is_readable.load(Ordering::Acquire) {
                    thread::yield_now();
                }
            }
            self.sleepers.fetch_sub(1, Ordering::AcqRel);
            self.is_readable.swap(false, Ordering::AcqRel);
        }

        fn poll(&self, n: usize, me: &Arc<Follower>) -> bool {
            let mut end = self.ends[n].lock().unwrap();
            if !end.0 {
                end.1 = Some(me.clone());
            }
            end.0
        }

        /// Thread `n` waits, as `Shared::block_on` of `ucp` does.
        fn wait(&self, n: usize) {
            self.wait_as(&Follower::current(), n, || {});
        }

        /// Thread `n` waits, and leaves the group for a wait within its poll.
        fn wait_and_leave_meanwhile(&self, n: usize) {
            let me = Follower::current();
            self.wait_as(&me, n, || {
                self.group.leave(&me);
                self.group.join(&me);
            });
        }

        fn wait_as(&self, me: &Arc<Follower>, n: usize, after_poll: impl Fn()) {
            self.group.join(me);
            while !(me.take_wake() && self.poll(n, me)) {
                after_poll();
                if me.leads() {
                    self.progress();
                    self.sleep(me);
                } else {
                    me.park();
                }
            }
            self.group.leave(me);
        }
    }

    /// One thread makes progress, which ends the wait of both.
    #[test]
    fn loom_leader_ends_the_waits_of_others() {
        crate::sync::model(|| {
            let waits = Waits::new(true);
            let other = {
                let waits = waits.clone();
                thread::spawn(move || waits.wait(1))
            };
            waits.wait(0);
            other.join().unwrap();
            assert!(!waits.group.members().has_leader);
        });
    }

    /// A thread that does not wait ends the wait of a leader, which may be about to sleep.
    #[test]
    fn loom_leader_is_woken_by_a_thread_that_does_not_wait() {
        crate::sync::model(|| {
            let waits = Waits::new(false);
            let other = {
                let waits = waits.clone();
                thread::spawn(move || waits.wait(0))
            };
            waits.end(0);
            other.join().unwrap();
            assert!(!waits.group.members().has_leader);
        });
    }

    /// The lead passes to a thread while another one ends its wait.
    #[test]
    fn loom_lead_is_handed_on_while_the_next_is_woken() {
        crate::sync::model_bounded(2, || {
            let (waits, leader) = (Waits::new(false), Follower::current());
            waits.group.join(&leader);
            let others = [waits.clone(), waits.clone()];
            let [waiting, leaving] = others;
            let waiting = thread::spawn(move || waiting.wait(0));
            let leaving = thread::spawn(move || leaving.group.leave(&leader));
            waits.end(0);
            leaving.join().unwrap();
            waiting.join().unwrap();
            assert!(!waits.group.members().has_leader);
        });
    }

    /// A thread leaves the group and joins it again while its end comes, and the lead to it or from it.
    #[test]
    fn loom_leader_that_leaves_and_comes_back_is_woken() {
        crate::sync::model_bounded(2, || {
            let waits = Waits::new(true);
            let other = {
                let waits = waits.clone();
                thread::spawn(move || waits.wait_and_leave_meanwhile(1))
            };
            waits.wait(0);
            other.join().unwrap();
            assert!(!waits.group.members().has_leader);
        });
    }
}
