//! One worker and many peers: tagged messages (others: `many_mail`) from everybody to the first, or to everybody else; one-sided operations likewise.
//! Run by `tests_ucp` on every seat of a group. Sends and receives go on side by side: who waited for one of them only
//! could wait for somebody who waits for the other.

use std::rc::Rc;
use std::time::Duration;

use tools_common::boot::Blob;
use tools_common::meter::Meter;
use ucp::select::Sync;
use ucp::{ANY_TAG, EXACT, Ep, Match, Woken, Worker};

use super::many_rma::{self, Memories};
use super::ring::{Buffers, Ring};
use super::tag::tagged;
use super::{connect, mail_path, open, tag_path};
use crate::fail::Failure;
use crate::link::Link;
use crate::patience::Patience;
use crate::pattern;
use crate::pulse::Pulse;
use crate::report::{Done, Report};
use crate::spec::{Pattern, Spec, TagMatch, Test, Validate, Waiting};
use ucs::config::Source;

/// Tag of measured messages; the lower half says who sends.
const MSG: u64 = 0x6d73_6700_0000_0000;

/// Everything a seat has.
pub struct Crowd<'a> {
    /// What is measured.
    pub spec: &'a Spec,
    link: &'a mut Link,
    /// The worker.
    pub worker: Worker,
    /// The ways to all seats, except this one.
    pub eps: Rc<Vec<Option<Ep>>>,
    /// Seats that this one works on.
    pub targets: Vec<usize>,
    /// Seats that work on this one.
    pub sources: Vec<usize>,
    /// Counts iterations.
    pub pulse: Pulse<'a>,
    patience: Patience,
    memories: Option<Memories>,
    /// What swaps of this seat have changed in each seat's word, to be summed up where it is checked.
    pub deltas: Vec<u64>,
}

/// Runs one test; answers what this seat did.
pub fn run(spec: &Spec, source: &Source, link: &mut Link, report: &Report) -> Result<Done, Failure> {
    let (me, size) = (link.rank(), link.size());
    let opened = open(spec, source);
    let mine = opened.as_ref().map(|w| Blob(w.address().pack())).map_err(|e| Failure::Cannot(e.to_string()));
    let all = link.gather_result(mine)?;
    let worker = opened?;
    let one = |(n, to): (usize, &Blob)| (n != me).then(|| connect(spec, &worker, to)).transpose();
    let connected: Result<Vec<Option<Ep>>, Failure> = all.iter().enumerate().map(one).collect();
    link.gather_result(connected.as_ref().map(drop).map_err(|e| Failure::Run(e.to_string())))?;
    let eps = Rc::new(connected?);
    let mut path = eps.iter().flatten().next().map(|ep| tag_path(spec, &worker, ep)).unwrap_or_default();
    let memories = match spec.test.is_ucp_rma() {
        true => Some(many_rma::exchange(spec, &worker, &eps, link)?),
        false => None,
    };
    if spec.test.is_mail() {
        path.data_path = mail_path(spec).into();
    }
    if let Some(memories) = &memories {
        path.data_path = memories.data_path(spec, &eps).into();
    }
    let others = || (0..size).filter(|n| *n != me);
    let (targets, sources): (Vec<usize>, Vec<usize>) = match (spec.pattern, me) {
        (Pattern::Incast, 0) => (Vec::new(), others().collect()),
        (Pattern::Incast, _) => (vec![0], Vec::new()),
        _ => (others().collect(), others().collect()),
    };
    let mut show = |meter: &mut Meter| report.progress(spec, &path, meter.read(spec.rank));
    let (patience, pulse) = (Patience::new(link), Pulse::new(&mut show));
    let deltas = vec![0; size];
    let mut crowd = Crowd { spec, link, worker, eps, targets, sources, pulse, patience, memories, deltas };
    if spec.warmup > 0 {
        crowd.measure(spec.warmup, me)?;
    }
    crowd.measure(spec.iters, me)?;
    let meter = &mut crowd.pulse.meter;
    let (reading, hist) = (meter.read(spec.rank), Report::histogram(spec, meter));
    let done = Done::new(spec, path.clone(), reading, hist);
    crowd.barrier()?;
    Ok(done)
}

impl Crowd<'_> {
    /// Buffers for a window.
    pub fn ring(&self) -> Result<Ring, Failure> {
        let buffers = match self.spec.validate {
            Validate::Yes => Buffers::Each,
            Validate::No => Buffers::One,
        };
        let mut ring =
            Ring::new(&self.worker, self.spec.window as usize, self.spec.size(), buffers, self.spec.memory)?;
        (0..ring.len()).for_each(|slot| pattern::fill(ring.bytes(slot), 0));
        Ok(ring)
    }

    fn measure(&mut self, iters: u64, me: usize) -> Result<(), Failure> {
        let share = |targets: usize| (iters / targets.max(1) as u64).max(1);
        let each = share(self.targets.len());
        let from_each = share(if self.spec.pattern == Pattern::AllToAll { self.link.size() - 1 } else { 1 });
        if let Some(memories) = self.memories.take() {
            let done = self.one_sided(&memories, each, from_each, me);
            self.memories = Some(memories);
            return done;
        }
        if self.spec.test.is_mail() {
            return self.mail(each, from_each, me);
        }
        let (out, inward) = (each * self.targets.len() as u64, from_each * self.sources.len() as u64);
        let (mut sends, mut recvs) = (self.ring()?, self.ring()?);
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
        while posted < inward.min(window) {
            recvs.recv(posted as usize, any)?;
            posted += 1;
        }
        self.pulse.start();
        let (mut sent, mut received) = (0, 0);
        while sent < out || received < inward {
            let mut moved = false;
            let slot = (sent % window) as usize;
            if sent < out && sends.is_idle(slot)? {
                let to = self.targets[(sent % self.targets.len() as u64) as usize];
                if checks {
                    pattern::fill(sends.bytes(slot), sent / self.targets.len() as u64);
                }
                let ep = self.eps[to].as_ref().ok_or_else(|| Failure::Run("a seat without a way".into()))?;
                sends.send(slot, ep, &tagged(MSG | me as u64, sync))?;
                sent += 1;
                self.pulse.beat();
                moved = true;
            }
            let slot = (received % window) as usize;
            if received < inward
                && let Some(status) = recvs.poll(slot)?
            {
                if checks {
                    let from = (status.tag & (u64::MAX >> 32)) as usize;
                    let seq =
                        next.get_mut(from).ok_or_else(|| Failure::Corrupt(format!("from seat {from}")))?;
                    pattern::check(recvs.bytes(slot), *seq, self.spec.size())
                        .map_err(|why| Failure::Corrupt(format!("from seat {from}: {why}")))?;
                    *seq += 1;
                    recvs.bytes(slot).fill(0xee);
                }
                received += 1;
                if posted < inward {
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
            self.patience.renew();
            return Ok(());
        }
        if self.spec.waiting == Waiting::Sleep {
            return self.sleep();
        }
        self.patience.lose(self.link)?;
        if self.patience.is_due() { self.look() } else { Ok(()) }
    }

    /// Until something happens; a tenth of a second at most, then a look at the others.
    #[cold]
    fn sleep(&mut self) -> Result<(), Failure> {
        let woken = self.worker.wait(Some(Duration::from_millis(100)));
        match woken.map_err(|e| Failure::Run(format!("cannot sleep: {e}")))? {
            Woken::Ready => Ok(()),
            Woken::TimedOut => {
                self.link.alive()?;
                self.patience.slept()?;
                self.look()
            }
        }
    }

    /// A receive from anybody does not end because one peer has failed.
    #[cold]
    fn look(&self) -> Result<(), Failure> {
        let fault = |ep: &Ep| ep.peer_view().and_then(|peer| peer.fault);
        match self.eps.iter().flatten().find_map(fault) {
            Some(fault) => Err(Failure::Run(format!("an endpoint failed: {fault}"))),
            None => Ok(()),
        }
    }

    /// What all seats have changed in this one's word.
    pub fn changes(&mut self, me: usize) -> Result<u64, Failure> {
        let worker = &self.worker;
        let all = self.link.gather(&self.deltas, || worker.progress())?;
        Ok(all.iter().fold(0, |sum, deltas| sum.wrapping_add(deltas.get(me).copied().unwrap_or(0))))
    }

    /// Waits for all seats.
    pub fn barrier(&mut self) -> Result<(), Failure> {
        let worker = &self.worker;
        Ok(self.link.barrier(|| worker.progress())?)
    }
}
