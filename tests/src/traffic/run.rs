//! The run of one process: opens a worker, meets the partner over the pipe, drives both halves to their end, and looks
//! whether anything is left. Called by the binary in both roles. Never waits for ever: a partner that is gone or a run
//! that does not move becomes a [`Failure`] within seconds.

use super::plan::Plan;
use super::recv::Receiver;
use super::send::Sender;
use super::{Failure, Report};
use crate::partner::{Partner, PartnerError};
use crate::sizes::Sizes;
use serde::{Deserialize, Serialize};
use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};
use ucp::select::{Kind, Sync};
use ucp::{ANY_TAG, Address, Context, Ep, EpParams, ErrorMode, Match, Worker};
use ucs::config::Source;
use ucs::sys::cpu::{self, CpuSet};

/// A living partner without anything moving for this long is a stall.
const STALL: Duration = Duration::from_secs(20);
/// A dead partner must be told by the transport within this.
const TELL: Duration = Duration::from_secs(5);
/// Patience with the other process where it only has to start or to end.
const START: Duration = Duration::from_secs(30);

/// What is to be run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Transports, as `UCX_TLS` takes them.
    pub tls: String,
    /// Messages each way.
    pub messages: u64,
    /// Names the run.
    pub seed: u64,
    /// Sends running, and receives open before the next block is posted.
    pub window: usize,
    /// Longest message, bytes.
    pub max: usize,
    /// Each process on a cpu of its own, if there are two.
    pub pinned: bool,
}

/// What the processes say to each other out of band.
#[derive(Debug, Serialize, Deserialize)]
enum Line {
    /// The child's address.
    Here { address: Vec<u8> },
    /// The parent's address, and the lengths at which its protocols change.
    Meet { address: Vec<u8>, cuts: Vec<usize> },
    /// Everything I had to do is done.
    Done(Box<Report>),
}

/// The process that was started by hand: starts the other one with `args`. Answers both reports, its own first.
pub fn parent(options: &Options, args: &[String]) -> Result<(Report, Report), Failure> {
    pin(options, 0);
    let worker = open(options)?;
    let mut partner = Partner::start(args)?;
    let Line::Here { address } = partner.recv(START)? else { return Err(garbled()) };
    let (ep, failed) = connect(&worker, &address)?;
    let cuts = cuts(&ep);
    partner.send(&Line::Meet { address: worker.address().pack(), cuts: cuts.clone() })?;
    let mut run = Run::new(options, worker, ep, failed, partner, 0, cuts);
    let mine = run.drive()?;
    let theirs = run.part(&mine)?;
    match run.partner.exited_ok() {
        true => Ok((mine, theirs)),
        false => Err(PartnerError::Gone.into()),
    }
}

/// The process that was started by [`parent`].
pub fn child(options: &Options) -> Result<(), Failure> {
    pin(options, 1);
    let worker = open(options)?;
    let mut partner = Partner::parent();
    partner.send(&Line::Here { address: worker.address().pack() })?;
    let Line::Meet { address, cuts } = partner.recv(START)? else { return Err(garbled()) };
    let (ep, failed) = connect(&worker, &address)?;
    let mut run = Run::new(options, worker, ep, failed, partner, 1, cuts);
    let mine = run.drive()?;
    run.part(&mine).map(drop)
}

fn garbled() -> Failure {
    PartnerError::Unexpected("a line out of turn".into()).into()
}

fn pin(options: &Options, at: usize) {
    let Ok(cpus) = CpuSet::allowed() else { return };
    if options.pinned && cpus.len() >= 2 {
        // Unpinned is slower, not wrong.
        let _ = cpu::pin(cpus.as_slice()[at]);
    }
}

fn open(options: &Options) -> Result<Worker, Failure> {
    let source = Source::from_env()?.with("UCX_TLS", &options.tls);
    Ok(Context::configured(source)?.worker()?)
}

type Failed = Rc<Cell<Option<ucp::Error>>>;

fn connect(worker: &Worker, address: &[u8]) -> Result<(Ep, Failed), Failure> {
    let address = Address::unpack(address).map_err(ucp::ConnectError::from)?;
    let failed = Failed::default();
    let tell = failed.clone();
    let errors = ErrorMode::Peer(Box::new(move |error| tell.set(Some(error))));
    Ok((worker.connect(&address, EpParams { errors })?, failed))
}

/// Lengths at which the protocol changes, for tagged messages of either kind.
fn cuts(ep: &Ep) -> Vec<usize> {
    let mut cuts = Vec::new();
    for sync in [Sync::No, Sync::Yes] {
        cuts.extend(
            ep.table(Kind::Tagged, sync).ranges().map(|range| range.to).filter(|to| *to < usize::MAX),
        );
    }
    cuts.dedup();
    cuts
}

struct Run {
    worker: Worker,
    ep: Ep,
    failed: Failed,
    partner: Partner,
    sender: Sender,
    receiver: Receiver,
}

impl Run {
    fn new(
        options: &Options,
        worker: Worker,
        ep: Ep,
        failed: Failed,
        partner: Partner,
        me: u64,
        cuts: Vec<usize>,
    ) -> Run {
        let sizes = Sizes::new(options.max, cuts);
        let plan = |sender| Plan::new(options.seed, sender, options.messages, sizes.clone());
        Run {
            worker,
            ep,
            failed,
            partner,
            sender: Sender::new(plan(me), options.seed, me, options.window),
            receiver: Receiver::new(plan(1 - me), options.seed, 1 - me, options.window),
        }
    }

    fn drive(&mut self) -> Result<Report, Failure> {
        let start = Instant::now();
        let mut watch = Watch::default();
        while !(self.sender.is_done() && self.receiver.is_done()) {
            let events = self.worker.progress();
            let sent = self.sender.step(&self.worker, &self.ep)?;
            let received = self.receiver.step(&self.worker, &self.ep)?;
            self.look(&mut watch, events > 0 || sent || received)?;
        }
        let flush = self.ep.flush();
        while !flush.is_done() {
            let events = self.worker.progress();
            self.look(&mut watch, events > 0)?;
        }
        flush.wait().map_err(|error| Failure::Reported { what: "flush".into(), error })?;
        let mut report = Report {
            messages: self.receiver.received,
            bytes: self.receiver.bytes,
            seconds: start.elapsed().as_secs_f64(),
            truncated: self.receiver.truncated,
            sync: self.sender.sync,
            late_blocks: self.receiver.late_blocks,
            ..Report::default()
        };
        report.add_stats(&self.worker.stats());
        Ok(report)
    }

    /// Tells the partner, answers what it asks until it is done too, then looks whether anything is left.
    fn part(&mut self, mine: &Report) -> Result<Report, Failure> {
        self.partner.send(&Line::Done(Box::new(mine.clone())))?;
        let mut watch = Watch::default();
        let theirs = loop {
            let events = self.worker.progress();
            match self.partner.try_recv()? {
                Some(Line::Done(theirs)) => break *theirs,
                Some(_) => return Err(garbled()),
                None => {}
            }
            if let Err(failure) = self.look(&mut watch, events > 0) {
                // Who has heard that we are done, and is, may leave; and what it has said last comes by a thread, of its end tells
                // the kernel: either may be first.
                match failure.is_of_a_death().then(|| self.partner.recv(TELL)) {
                    Some(Ok(Line::Done(theirs))) => break *theirs,
                    _ => return Err(failure),
                }
            }
        };
        // Both have everything: what still comes is too much.
        let mut idle = 0;
        while idle < 1000 {
            idle = if self.worker.progress() > 0 { 0 } else { idle + 1 };
        }
        for any in [Match::tagged(0, ANY_TAG), Match::untagged()] {
            if let Some(extra) = self.worker.probe(any) {
                return Err(Failure::Broken(format!("a message too many: {extra:?}")));
            }
        }
        self.sender.close()?;
        match self.worker.requests() {
            0 => Ok(theirs),
            n => Err(Failure::Broken(format!("{n} requests are left after everything has ended"))),
        }
    }

    /// Errors told by callback; stalls; a partner process that is gone. // Called in every turn: cheap if it moves.
    fn look(&mut self, watch: &mut Watch, moved: bool) -> Result<(), Failure> {
        if let Some(error) = self.failed.take() {
            return Err(Failure::Reported { what: "endpoint".into(), error });
        }
        let Some(still) = watch.still(moved) else { return Ok(()) };
        if self.partner.is_gone() {
            let gone = *watch.gone.get_or_insert_with(Instant::now);
            if gone.elapsed() > TELL {
                return Err(Failure::Untold { after: gone.elapsed(), state: self.state() });
            }
        } else if still > STALL {
            return Err(Failure::Stalled { after: still, state: self.state() });
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
            self.worker.requests(),
            self.ep.peer_view(),
            self.worker.probe(Match::tagged(0, ANY_TAG)),
        )
    }
}

/// Looks at the clock now and then while nothing moves.
#[derive(Default)]
struct Watch {
    turns: u32,
    since: Option<Instant>,
    gone: Option<Instant>,
}

impl Watch {
    /// How long nothing has moved; `None` most of the time.
    fn still(&mut self, moved: bool) -> Option<Duration> {
        if moved {
            self.turns = 0;
            self.since = None;
            return None;
        }
        self.turns += 1;
        if !self.turns.is_multiple_of(1 << 14) {
            // The partner may need this cpu.
            match self.turns.is_multiple_of(1 << 10) {
                true => std::thread::yield_now(),
                false => std::hint::spin_loop(),
            }
            return None;
        }
        Some(self.since.get_or_insert_with(Instant::now).elapsed())
    }
}
