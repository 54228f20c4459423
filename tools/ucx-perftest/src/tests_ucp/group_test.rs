//! One worker and an endpoint to each other member of a group: what the tests with `--pattern` share. Made by
//! `group_run`; the loops are in `group_tag`, `group_messages` and `group_rma`.

use std::rc::Rc;
use std::time::Duration;

use ucp::{Ep, WaitStatus};

use super::test_worker::TestWorker;
use super::window::{Sharing, WindowBuffers};
use crate::backoff::Backoff;
use crate::fail::Failure;
use crate::iteration_counter::IterationCounter;
use crate::link::Link;
use crate::payload;
use crate::spec::{Spec, Validate, Waiting};

pub struct GroupTest<'a> {
    pub spec: &'a Spec,
    pub link: &'a mut Link,
    pub worker: TestWorker,
    /// Endpoints by rank; `None` for this member.
    pub eps: Rc<Vec<Option<Ep>>>,
    pub targets: Vec<usize>,
    pub sources: Vec<usize>,
    pub counter: IterationCounter<'a>,
    pub backoff: Backoff,
    /// Sum of changes by this member's swaps, for the word of each rank.
    pub deltas: Vec<u64>,
}

impl GroupTest<'_> {
    pub fn buffers(&self) -> Result<WindowBuffers, Failure> {
        let sharing = match self.spec.validate {
            Validate::Yes => Sharing::PerSlot,
            Validate::No => Sharing::Shared,
        };
        let mut buffers = WindowBuffers::new(
            &self.worker,
            self.spec.window as usize,
            self.spec.size(),
            sharing,
            self.spec.memory,
        )?;
        (0..buffers.len()).for_each(|slot| payload::fill(buffers.bytes(slot), 0));
        Ok(buffers)
    }

    // HOT
    #[inline(always)]
    pub fn progress(&mut self) -> Result<(), Failure> {
        if self.worker.call(|worker| worker.progress()) > 0 {
            self.backoff.reset();
            return Ok(());
        }
        if self.spec.waiting == Waiting::Sleep {
            return self.sleep();
        }
        self.backoff.idle(self.link)?;
        if self.backoff.is_peer_check_due() { self.check_peer() } else { Ok(()) }
    }

    /// Sleeps until an event, 0.1 s at most; after a timeout checks the peers.
    #[cold]
    fn sleep(&mut self) -> Result<(), Failure> {
        let woken = self.worker.call(|worker| worker.wait(Some(Duration::from_millis(100))));
        match woken.map_err(|e| Failure::Run(format!("cannot sleep: {e}")))? {
            WaitStatus::Ready => Ok(()),
            WaitStatus::TimedOut => {
                self.link.check_alive()?;
                self.backoff.wait_timed_out()?;
                self.check_peer()
            }
        }
    }

    /// A receive from any source does not fail when one peer does.
    #[cold]
    fn check_peer(&self) -> Result<(), Failure> {
        let fault = |ep: &Ep| ep.peer_view().and_then(|peer| peer.fault);
        match self.eps.iter().flatten().find_map(fault) {
            Some(fault) => Err(Failure::Run(format!("an endpoint failed: {fault}"))),
            None => Ok(()),
        }
    }

    /// Sum of changes by all members' swaps to this member's word.
    pub fn sum_of_deltas(&mut self, me: usize) -> Result<u64, Failure> {
        let worker = &self.worker;
        let all = self.link.allgather(&self.deltas, || worker.call(|worker| worker.progress()))?;
        Ok(all.iter().fold(0, |sum, deltas| sum.wrapping_add(deltas.get(me).copied().unwrap_or(0))))
    }

    pub fn barrier(&mut self) -> Result<(), Failure> {
        let worker = &self.worker;
        Ok(self.link.barrier(|| worker.call(|worker| worker.progress()))?)
    }
}
