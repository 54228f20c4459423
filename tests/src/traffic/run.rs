//! One process of a run: opens a worker, exchanges addresses over the pipe, runs both halves, and checks that
//! nothing is left. A partner that is gone or a run that stands still becomes a [`Failure`] within seconds.

use super::plan::Plan;
use super::recv::Receiver;
use super::rma::{self, MemInfo, Rma};
use super::send::Sender;
use super::{Failure, Report};
use crate::partner::{Partner, PartnerError};
use crate::sizes::Sizes;
use serde::{Deserialize, Serialize};
use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};
use ucp::select::{DeliveryComplete, Kind};
use ucp::{ANY_TAG, Address, Context, Ep, EpParams, ErrorMode, Match, Mem, Worker};
use ucs::config::Source;
use ucs::sys::cpu::{self, CpuSet};

/// A run that stands still for this long has stalled.
pub(super) const STALL_TIMEOUT: Duration = Duration::from_secs(20);
/// A dead partner must be reported by the transport within this.
pub(super) const NOTIFY_TIMEOUT: Duration = Duration::from_secs(20);
/// For the other process to start or to end.
pub(super) const START_TIMEOUT: Duration = Duration::from_secs(30);

/// Polls that find nothing before a run that sleeps does so.
const IDLE_POLLS: u32 = 8;

/// Parameters of a run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Transports, as `UCX_TLS` takes them.
    pub tls: String,
    /// Messages each way.
    pub messages: u64,
    /// The seed.
    pub seed: u64,
    /// Sends in flight, and receives open before the next block is posted.
    pub window: usize,
    /// Longest message, bytes.
    pub max: usize,
    /// Puts, as many gets, and at least as many atomics each way.
    pub rma: u64,
    /// Program and arguments that start the other process: its own follow. Empty: it is started directly.
    pub launcher: Vec<String>,
    /// Pins each process to a cpu, if there are two.
    pub pinned: bool,
    /// Sleeps for a moment when nothing has moved for a while, instead of polling on.
    pub sleeps: bool,
}

#[derive(Debug, Serialize, Deserialize)]
enum Line {
    ChildAddress {
        address: Vec<u8>,
    },
    /// The parent's address, and the lengths at which its protocols change.
    ParentAddress {
        address: Vec<u8>,
        thresholds: Vec<usize>,
    },
    /// Memory for puts, gets and atomics.
    Memory(MemInfo),
    Done(Box<Report>),
}

/// Runs the first process, which starts the other one with `args`. Answers both reports, its own first.
pub fn parent(options: &Options, args: &[String]) -> Result<(Report, Report), Failure> {
    pin(options, 0);
    let worker = open(options)?;
    let launcher: Vec<&str> = options.launcher.iter().map(String::as_str).collect();
    let mut partner = Partner::start_under(&launcher, args)?;
    let Line::ChildAddress { address } = partner.recv(START_TIMEOUT)? else { return Err(unexpected_line()) };
    let (ep, failed) = connect(&worker, &address)?;
    let thresholds = thresholds(&ep);
    partner
        .send(&Line::ParentAddress { address: worker.address().pack(), thresholds: thresholds.clone() })?;
    let mut run = Run::new(options, worker, (ep, failed), partner, 0, thresholds)?;
    let mine = run.drive()?;
    let theirs = run.finish(&mine)?;
    match run.partner.exited_ok() {
        true => Ok((mine, theirs)),
        false => Err(PartnerError::Gone.into()),
    }
}

/// Runs the process that [`parent`] started.
pub fn child(options: &Options) -> Result<(), Failure> {
    pin(options, 1);
    let worker = open(options)?;
    let mut partner = Partner::parent();
    partner.send(&Line::ChildAddress { address: worker.address().pack() })?;
    let Line::ParentAddress { address, thresholds } = partner.recv(START_TIMEOUT)? else {
        return Err(unexpected_line());
    };
    let (ep, failed) = connect(&worker, &address)?;
    let mut run = Run::new(options, worker, (ep, failed), partner, 1, thresholds)?;
    let mine = run.drive()?;
    run.finish(&mine).map(drop)
}

pub(super) fn unexpected_line() -> Failure {
    PartnerError::Unexpected("a line out of turn".into()).into()
}

fn pin(options: &Options, at: usize) {
    let Ok(cpus) = CpuSet::allowed() else { return };
    if options.pinned && cpus.len() >= 2 {
        // Unpinned is slower, not wrong.
        let _ = cpu::pin(cpus.as_slice()[at]);
    }
}

/// A context with the transports of the options.
pub(super) fn context(options: &Options) -> Result<Context, Failure> {
    let source = Source::from_env()?.with("UCX_TLS", &options.tls);
    Ok(Context::configured(source)?)
}

fn open(options: &Options) -> Result<Worker, Failure> {
    Ok(context(options)?.worker()?)
}

/// Error that an endpoint has reported.
pub(super) type Failed = Rc<Cell<Option<ucp::Error>>>;

pub(super) fn connect(worker: &Worker, address: &[u8]) -> Result<(Ep, Failed), Failure> {
    let address = Address::unpack(address).map_err(ucp::ConnectError::from)?;
    let failed = Failed::default();
    let tell = failed.clone();
    let errors = ErrorMode::Peer(Box::new(move |error| tell.set(Some(error))));
    Ok((worker.connect(&address, EpParams { errors, ..EpParams::default() })?, failed))
}

pub(super) fn thresholds(ep: &Ep) -> Vec<usize> {
    let mut thresholds = Vec::new();
    for sync in [DeliveryComplete::No, DeliveryComplete::Yes] {
        thresholds.extend(
            ep.protocols()
                .table(Kind::Tagged, sync)
                .ranges()
                .map(|range| range.to)
                .filter(|to| *to < usize::MAX),
        );
    }
    thresholds.dedup();
    thresholds
}

struct Run {
    worker: Worker,
    ep: Ep,
    failed: Failed,
    partner: Partner,
    sender: Sender,
    receiver: Receiver,
    /// Operations on the other's memory, and the memory for its ones.
    rma: Option<(Rma, Mem)>,
    sleeps: bool,
}

impl Run {
    fn new(
        options: &Options,
        worker: Worker,
        (ep, failed): (Ep, Failed),
        mut partner: Partner,
        me: u64,
        thresholds: Vec<usize>,
    ) -> Result<Run, Failure> {
        let sizes = Sizes::new(options.max, thresholds);
        let mut rma = None;
        if options.rma != 0 {
            let (mem, info) = rma::alloc(&worker, options.max)?;
            partner.send(&Line::Memory(info))?;
            let Line::Memory(theirs) = partner.recv(START_TIMEOUT)? else { return Err(unexpected_line()) };
            let seeds = (options.seed, me, options.rma);
            rma = Some((Rma::new(&ep, &theirs, sizes.clone(), seeds)?, mem));
        }
        let plan = |sender| Plan::new(options.seed, sender, options.messages, sizes.clone());
        Ok(Run {
            worker,
            ep,
            failed,
            partner,
            sender: Sender::new(plan(me), options.seed, me, options.window),
            receiver: Receiver::new(plan(1 - me), options.seed, 1 - me, options.window),
            rma,
            sleeps: options.sleeps,
        })
    }

    fn drive(&mut self) -> Result<Report, Failure> {
        let start = Instant::now();
        let mut timer = StallTimer::new(self.sleeps);
        let rma_is_done = |run: &Run| run.rma.as_ref().is_none_or(|(rma, _)| rma.is_done());
        while !(self.sender.is_done() && self.receiver.is_done() && rma_is_done(self)) {
            let events = self.worker.progress();
            let sent = self.sender.step(&self.worker, &self.ep)?;
            let received = self.receiver.step(&self.worker, &self.ep)?;
            let rma = match &mut self.rma {
                Some((rma, _)) => rma.step(&self.ep)?,
                None => false,
            };
            self.check_progress(&mut timer, events > 0 || sent || received || rma)?;
        }
        let flush = self.ep.flush();
        while !flush.is_done() {
            let events = self.worker.progress();
            self.check_progress(&mut timer, events > 0)?;
        }
        flush.wait().map_err(|error| Failure::Reported { what: "flush".into(), error })?;
        let mut report = Report {
            messages: self.receiver.received,
            bytes: self.receiver.bytes,
            seconds: start.elapsed().as_secs_f64(),
            truncated: self.receiver.truncated,
            sync: self.sender.sync,
            late_blocks: self.receiver.late_blocks,
            rma: self.rma.as_ref().map(|(rma, _)| rma.report).unwrap_or_default(),
            ..Report::default()
        };
        report.add_stats(&self.worker.stats());
        Ok(report)
    }

    /// Exchanges reports, and progresses until the partner is done too; then checks that nothing is left.
    fn finish(&mut self, mine: &Report) -> Result<Report, Failure> {
        self.partner.send(&Line::Done(Box::new(mine.clone())))?;
        let mut timer = StallTimer::new(self.sleeps);
        let theirs = loop {
            let events = self.worker.progress();
            match self.partner.try_recv()? {
                Some(Line::Done(theirs)) => break *theirs,
                Some(_) => return Err(unexpected_line()),
                None => {}
            }
            if let Err(failure) = self.check_progress(&mut timer, events > 0) {
                // A partner that is done may leave, and its report may arrive after the news of its end.
                match failure.is_peer_gone().then(|| self.partner.recv(NOTIFY_TIMEOUT)) {
                    Some(Ok(Line::Done(theirs))) => break *theirs,
                    _ => return Err(failure),
                }
            }
        };
        let mut idle = 0;
        while idle < 1000 {
            idle = if self.worker.progress() > 0 { 0 } else { idle + 1 };
        }
        for any in [Match::tagged(0, ANY_TAG), Match::untagged()] {
            if let Some(extra) = self.worker.probe(any) {
                return Err(Failure::Violation(format!("a message too many: {extra:?}")));
            }
        }
        self.sender.close()?;
        match self.worker.diagnostics().requests() {
            0 => Ok(theirs),
            n => Err(Failure::Violation(format!("{n} requests are left after everything has ended"))),
        }
    }

    /// Checks for reported errors, stalls, and a partner process that is gone. Cheap while the run moves.
    fn check_progress(&mut self, timer: &mut StallTimer, moved: bool) -> Result<(), Failure> {
        if let Some(error) = self.failed.take() {
            return Err(Failure::Reported { what: "endpoint".into(), error });
        }
        let Some(idle) = timer.idle_for(moved) else { return timer.sleep_on(&self.worker) };
        if self.partner.is_gone() {
            let gone = *timer.gone.get_or_insert_with(Instant::now);
            if gone.elapsed() > NOTIFY_TIMEOUT {
                return Err(Failure::NotNotified { after: gone.elapsed(), state: self.state() });
            }
        } else if idle > STALL_TIMEOUT {
            return Err(Failure::Stalled { after: idle, state: self.state() });
        }
        Ok(())
    }

    #[cold]
    fn state(&self) -> String {
        format!(
            "sent {} (ended {}, acknowledged {}), received {} (open {}), requests {}, peer {:?}, unexpected now: {:?}",
            self.sender.started,
            self.sender.ended,
            self.sender.acknowledged(),
            self.receiver.received,
            self.receiver.open(),
            self.worker.diagnostics().requests(),
            self.ep.peer_view(),
            self.worker.probe(Match::tagged(0, ANY_TAG)),
        )
    }
}

/// Reads the clock now and then while nothing moves.
pub(super) struct StallTimer {
    sleeps: bool,
    idle_polls: u32,
    since: Option<Instant>,
    gone: Option<Instant>,
}

impl StallTimer {
    pub(super) fn new(sleeps: bool) -> Self {
        StallTimer { sleeps, idle_polls: 0, since: None, gone: None }
    }

    /// Sleeps until something comes for the worker, for a millisecond at most, each time that many polls have
    /// found nothing; if the run sleeps at all.
    pub(super) fn sleep_on(&self, worker: &Worker) -> Result<(), Failure> {
        if self.sleeps && self.idle_polls % IDLE_POLLS == IDLE_POLLS - 1 {
            let waited = worker.wait(Some(Duration::from_millis(1)));
            waited.map_err(|e| Failure::Violation(format!("waiting for events: {e}")))?;
        }
        Ok(())
    }

    /// How long nothing has moved; `None` most of the time.
    pub(super) fn idle_for(&mut self, moved: bool) -> Option<Duration> {
        if moved {
            self.idle_polls = 0;
            self.since = None;
            return None;
        }
        self.idle_polls += 1;
        if !self.idle_polls.is_multiple_of(1 << 14) {
            // The partner may need this cpu.
            match self.idle_polls.is_multiple_of(1 << 10) {
                true => std::thread::yield_now(),
                false => std::hint::spin_loop(),
            }
            return None;
        }
        Some(self.since.get_or_insert_with(Instant::now).elapsed())
    }
}
