//! Progress while a test waits: polls or sleeps as `-E` says, and fails when the peer is gone or the timeout
//! has passed.

use std::time::Duration;

use ucp::{Ep, WaitStatus, Worker};

use super::test_worker::TestWorker;
use crate::backoff::Backoff;
use crate::fail::Failure;
use crate::link::Link;
use crate::spec::{Spec, Waiting};

pub fn op_failed(e: ucp::Error) -> Failure {
    Failure::Run(format!("an operation failed: {e}"))
}

pub struct Waiter<'a> {
    link: &'a mut Link,
    ep: &'a Ep,
    backoff: Backoff,
    waiting: Waiting,
}

impl<'a> Waiter<'a> {
    pub fn new(spec: &Spec, link: &'a mut Link, ep: &'a Ep) -> Waiter<'a> {
        let backoff = Backoff::new(link);
        Waiter { link, ep, backoff, waiting: spec.waiting }
    }

    /// One call of progress; returns whether anything happened.
    // HOT
    #[inline(always)]
    pub fn progress(&mut self, worker: &TestWorker) -> Result<bool, Failure> {
        if worker.call(Worker::progress) > 0 {
            self.backoff.reset();
            return Ok(true);
        }
        self.idle(worker)?;
        Ok(false)
    }

    /// Progress until `done`, which is asked between any two calls.
    // HOT
    #[inline(always)]
    pub fn until(&mut self, worker: &TestWorker, mut done: impl FnMut() -> bool) -> Result<(), Failure> {
        loop {
            if self.waiting == Waiting::Sleep {
                if done() {
                    return Ok(());
                }
                self.progress(worker)?;
                continue;
            }
            let mut events = 0;
            for _ in 0..self.backoff.batch() {
                if done() {
                    return Ok(());
                }
                events += worker.call(Worker::progress);
            }
            self.after_batch(events)?;
        }
    }

    #[cold]
    fn after_batch(&mut self, events: usize) -> Result<(), Failure> {
        if events > 0 {
            self.backoff.reset();
            return Ok(());
        }
        self.backoff.idle_batch(self.link)?;
        if self.backoff.is_peer_check_due() { self.check_peer() } else { Ok(()) }
    }

    #[inline(always)]
    fn idle(&mut self, worker: &TestWorker) -> Result<(), Failure> {
        if self.waiting == Waiting::Sleep {
            return self.sleep(worker);
        }
        self.backoff.idle(self.link)?;
        if self.backoff.is_peer_check_due() { self.check_peer() } else { Ok(()) }
    }

    /// Sleeps until an event, 0.1 s at most; after a timeout checks the other side.
    fn sleep(&mut self, worker: &TestWorker) -> Result<(), Failure> {
        let woken = worker.call(|worker| worker.wait(Some(Duration::from_millis(100))));
        match woken.map_err(|e| Failure::Run(format!("cannot sleep: {e}")))? {
            WaitStatus::Ready => Ok(()),
            WaitStatus::TimedOut => {
                self.link.check_alive()?;
                self.backoff.wait_timed_out()?;
                self.check_peer()
            }
        }
    }

    /// A receive from any source does not fail when the peer does.
    #[cold]
    fn check_peer(&self) -> Result<(), Failure> {
        match self.ep.peer_view().and_then(|peer| peer.fault) {
            Some(fault) => Err(Failure::Run(format!("the endpoint failed: {fault}"))),
            None => Ok(()),
        }
    }

    pub fn barrier(&mut self, worker: &TestWorker) -> Result<(), Failure> {
        Ok(self.link.barrier(|| worker.call(Worker::progress))?)
    }

    /// A barrier in which the other side may access memory of this one, which makes no event here. A sleep
    /// would hold its operations up.
    pub fn busy_barrier(&mut self, worker: &TestWorker) -> Result<(), Failure> {
        Ok(self.link.busy_barrier(|| worker.call(Worker::progress))?)
    }

    pub fn barrier_idle(&mut self) -> Result<(), Failure> {
        Ok(self.link.barrier(|| 0)?)
    }
}
