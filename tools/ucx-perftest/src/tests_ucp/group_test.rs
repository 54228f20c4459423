//! One worker and many peers: tagged messages (others: `group_messages`) from everybody to the first, or to everybody else; one-sided operations likewise.
//! Run by `tests_ucp` on every seat of a group. Sends and receives go on side by side: who waited for one of them only
//! could wait for somebody who waits for the other.

use std::rc::Rc;
use std::time::Duration;

use tools_common::boot::HexBytes;
use tools_common::meter::Meter;
use ucp::select::Sync;
use ucp::{ANY_TAG, EXACT, Ep, Match, Woken, Worker};

use super::group_rma::{self, GroupMemory};
use super::tag::tagged;
use super::window::{Sharing, WindowBuffers};
use super::{connect, message_path, open, tag_path};
use crate::backoff::Backoff;
use crate::fail::Failure;
use crate::iteration_counter::IterationCounter;
use crate::link::Link;
use crate::payload;
use crate::report::{Report, TestResult};
use crate::spec::{Pattern, Spec, TagMatch, Test, Validate, Waiting};
use ucs::config::Source;

/// Tag of measured messages; the lower half says who sends.
const MSG: u64 = 0x6d73_6700_0000_0000;

/// Everything a seat has.
pub struct GroupTest<'a> {
    /// What is measured.
    pub spec: &'a Spec,
    link: &'a mut Link,
    /// The worker.
    pub worker: Worker,
    /// The channels to all seats, except this one.
    pub eps: Rc<Vec<Option<Ep>>>,
    /// Seats that this one works on.
    pub targets: Vec<usize>,
    /// Seats that work on this one.
    pub sources: Vec<usize>,
    /// Counts iterations.
    pub counter: IterationCounter<'a>,
    backoff: Backoff,
    memory: Option<GroupMemory>,
    /// What swaps of this seat have changed in each seat's word, to be summed up where it is checked.
    pub deltas: Vec<u64>,
}

/// Runs one test; answers what this seat did.
pub fn run(spec: &Spec, source: &Source, link: &mut Link, report: &Report) -> Result<TestResult, Failure> {
    let (me, size) = (link.rank(), link.size());
    let opened = open(spec, source);
    let mine = opened
        .as_ref()
        .map(|w| HexBytes(w.address().pack()))
        .map_err(|e| Failure::Unsupported(e.to_string()));
    let all = link.allgather_result(mine)?;
    let worker = opened?;
    let one = |(n, to): (usize, &HexBytes)| (n != me).then(|| connect(spec, &worker, to)).transpose();
    let connected: Result<Vec<Option<Ep>>, Failure> = all.iter().enumerate().map(one).collect();
    link.allgather_result(connected.as_ref().map(drop).map_err(|e| Failure::Run(e.to_string())))?;
    let eps = Rc::new(connected?);
    let mut path = eps.iter().flatten().next().map(|ep| tag_path(spec, &worker, ep)).unwrap_or_default();
    let memory = match spec.test.is_ucp_rma() {
        true => Some(group_rma::exchange(spec, &worker, &eps, link)?),
        false => None,
    };
    if spec.test.is_am_or_stream() {
        path.data_path = message_path(spec).into();
    }
    if let Some(memory) = &memory {
        path.data_path = memory.data_path(spec, &eps).into();
    }
    let others = || (0..size).filter(|n| *n != me);
    let (targets, sources): (Vec<usize>, Vec<usize>) = match (spec.pattern, me) {
        (Pattern::Incast, 0) => (Vec::new(), others().collect()),
        (Pattern::Incast, _) => (vec![0], Vec::new()),
        _ => (others().collect(), others().collect()),
    };
    let mut show = |meter: &mut Meter| report.progress(spec, &path, meter.read(spec.rank));
    let (backoff, counter) = (Backoff::new(link), IterationCounter::new(&mut show));
    let deltas = vec![0; size];
    let mut test = GroupTest { spec, link, worker, eps, targets, sources, counter, backoff, memory, deltas };
    if spec.warmup > 0 {
        test.measure(spec.warmup, me)?;
    }
    test.measure(spec.iters, me)?;
    let meter = &mut test.counter.meter;
    let (reading, hist) = (meter.read(spec.rank), Report::histogram(spec, meter));
    let done = TestResult::new(spec, path.clone(), reading, hist);
    test.barrier()?;
    Ok(done)
}

impl GroupTest<'_> {
    /// Sharing for a window.
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

    fn measure(&mut self, iters: u64, me: usize) -> Result<(), Failure> {
        let operations_each = |targets: usize| (iters / targets.max(1) as u64).max(1);
        let each = operations_each(self.targets.len());
        let from_each =
            operations_each(if self.spec.pattern == Pattern::AllToAll { self.link.size() - 1 } else { 1 });
        if let Some(memory) = self.memory.take() {
            let done = self.rma(&memory, each, from_each, me);
            self.memory = Some(memory);
            return done;
        }
        if self.spec.test.is_am_or_stream() {
            return self.messages(each, from_each, me);
        }
        let (out, incoming) = (each * self.targets.len() as u64, from_each * self.sources.len() as u64);
        let (mut sends, mut recvs) = (self.buffers()?, self.buffers()?);
        let window = self.spec.window as u64;
        let sync = if self.spec.test == Test::TagSyncBw { Sync::Yes } else { Sync::No };
        let checks = self.spec.validate == Validate::Yes;
        let any = Match::tagged(
            MSG,
            match self.spec.tag_match {
                TagMatch::Exact => EXACT << 32,
                TagMatch::Any => ANY_TAG,
            },
        );
        let mut next = vec![0u64; self.eps.len()];
        self.barrier()?;
        // From here on there is room for what comes first.
        let mut posted = 0;
        while posted < incoming.min(window) {
            recvs.recv(posted as usize, any)?;
            posted += 1;
        }
        self.counter.start();
        let (mut sent, mut received) = (0, 0);
        while sent < out || received < incoming {
            let mut moved = false;
            let slot = (sent % window) as usize;
            if sent < out && sends.is_idle(slot)? {
                let to = self.targets[(sent % self.targets.len() as u64) as usize];
                if checks {
                    payload::fill(sends.bytes(slot), sent / self.targets.len() as u64);
                }
                let ep =
                    self.eps[to].as_ref().ok_or_else(|| Failure::Run("no endpoint to that rank".into()))?;
                sends.send(slot, ep, &tagged(MSG | me as u64, sync))?;
                sent += 1;
                self.counter.tick_stream();
                moved = true;
            }
            let slot = (received % window) as usize;
            if received < incoming
                && let Some(status) = recvs.poll(slot)?
            {
                if checks {
                    let from = (status.tag & (u64::MAX >> 32)) as usize;
                    let seq =
                        next.get_mut(from).ok_or_else(|| Failure::Validation(format!("from rank {from}")))?;
                    payload::check(recvs.bytes(slot), *seq, self.spec.size())
                        .map_err(|why| Failure::Validation(format!("from rank {from}: {why}")))?;
                    *seq += 1;
                    recvs.bytes(slot).fill(0xee);
                }
                received += 1;
                if posted < incoming {
                    recvs.recv(slot, any)?;
                    posted += 1;
                }
                moved = true;
            }
            if !moved {
                self.progress()?;
            }
        }
        for slot in 0..sends.len() {
            while !sends.is_idle(slot)? {
                self.progress()?;
            }
        }
        Ok(())
    }

    /// HOT
    #[inline(always)]
    pub fn progress(&mut self) -> Result<(), Failure> {
        if self.worker.progress() > 0 {
            self.backoff.reset();
            return Ok(());
        }
        if self.spec.waiting == Waiting::Sleep {
            return self.sleep();
        }
        self.backoff.idle(self.link)?;
        if self.backoff.is_peer_check_due() { self.check_peer() } else { Ok(()) }
    }

    /// Until something happens; a tenth of a second at most, then a look at the others.
    #[cold]
    fn sleep(&mut self) -> Result<(), Failure> {
        let woken = self.worker.wait(Some(Duration::from_millis(100)));
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
        let fault = |ep: &Ep| ep.peer_view().and_then(|peer| peer.fault);
        match self.eps.iter().flatten().find_map(fault) {
            Some(fault) => Err(Failure::Run(format!("an endpoint failed: {fault}"))),
            None => Ok(()),
        }
    }

    /// What all seats have changed in this one's word.
    pub fn sum_of_deltas(&mut self, me: usize) -> Result<u64, Failure> {
        let worker = &self.worker;
        let all = self.link.allgather(&self.deltas, || worker.progress())?;
        Ok(all.iter().fold(0, |sum, deltas| sum.wrapping_add(deltas.get(me).copied().unwrap_or(0))))
    }

    /// Waits for all seats.
    pub fn barrier(&mut self) -> Result<(), Failure> {
        let worker = &self.worker;
        Ok(self.link.barrier(|| worker.progress())?)
    }
}
