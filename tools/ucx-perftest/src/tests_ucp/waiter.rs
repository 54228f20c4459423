//! Progress while a test waits: polls or sleeps as the test says, and gives up when the peer is gone or nothing happens.
//! Used by all tests of two sides.

use std::time::Duration;

use ucp::{Ep, Woken, Worker};

use crate::backoff::Backoff;
use crate::fail::Failure;
use crate::link::Link;
use crate::spec::{Spec, Waiting};

/// The error of an operation.
pub fn op_failed(e: ucp::Error) -> Failure {
    Failure::Run(format!("an operation failed: {e}"))
}

/// Progress while waiting, with an end to backoff.
pub struct Waiter<'a> {
    link: &'a mut Link,
    ep: &'a Ep,
    backoff: Backoff,
    waiting: Waiting,
}

impl<'a> Waiter<'a> {
    /// Looks at `link`, and whether the peer of `ep` has op_failed, when nothing happens for long.
    pub fn new(spec: &Spec, link: &'a mut Link, ep: &'a Ep) -> Waiter<'a> {
        let backoff = Backoff::new(link);
        Waiter { link, ep, backoff, waiting: spec.waiting }
    }

    /// One call of progress; whether anything happened. HOT
    #[inline(always)]
    pub fn progress(&mut self, worker: &Worker) -> Result<bool, Failure> {
        if worker.progress() > 0 {
            self.backoff.reset();
            return Ok(true);
        }
        self.idle(worker)?;
        Ok(false)
    }

    /// Progress until `done`, which is asked between any two calls. HOT
    #[inline(always)]
    pub fn until(&mut self, worker: &Worker, mut done: impl FnMut() -> bool) -> Result<(), Failure> {
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
                events += worker.progress();
            }
            self.after_batch(events)?;
        }
    }

    /// What a stride of calls has come to.
    #[cold]
    fn after_batch(&mut self, events: usize) -> Result<(), Failure> {
        if events > 0 {
            self.backoff.reset();
            return Ok(());
        }
        self.backoff.idle_batch(self.link)?;
        if self.backoff.is_peer_check_due() { self.check_peer() } else { Ok(()) }
    }

    /// Nothing has happened.
    #[inline(always)]
    fn idle(&mut self, worker: &Worker) -> Result<(), Failure> {
        if self.waiting == Waiting::Sleep {
            return self.sleep(worker);
        }
        self.backoff.idle(self.link)?;
        if self.backoff.is_peer_check_due() { self.check_peer() } else { Ok(()) }
    }

    /// Until something happens; a tenth of a second at most, then a look at the other side.
    fn sleep(&mut self, worker: &Worker) -> Result<(), Failure> {
        let woken = worker.wait(Some(Duration::from_millis(100)));
        match woken.map_err(|e| Failure::Run(format!("cannot sleep: {e}")))? {
            Woken::Ready => Ok(()),
            Woken::TimedOut => {
                self.link.check_alive()?;
                self.backoff.wait_timed_out()?;
                self.check_peer()
            }
        }
    }

    /// A receive from anybody does not end because one peer has failed.
    #[cold]
    fn check_peer(&self) -> Result<(), Failure> {
        match self.ep.peer_view().and_then(|peer| peer.fault) {
            Some(fault) => Err(Failure::Run(format!("the endpoint failed: {fault}"))),
            None => Ok(()),
        }
    }

    /// Waits for the other side, with progress meanwhile.
    pub fn barrier(&mut self, worker: &Worker) -> Result<(), Failure> {
        Ok(self.link.barrier(|| worker.progress())?)
    }

    /// Waits for the other side without progress.
    pub fn barrier_idle(&mut self) -> Result<(), Failure> {
        Ok(self.link.barrier(|| 0)?)
    }
}
