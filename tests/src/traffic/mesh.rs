//! Several processes, each of which exchanges messages, puts, gets and atomics with each other one, all at
//! the same time. A process has a worker of one context for each of the others; the first starts the others.

use super::plan::Plan;
use super::recv::Receiver;
use super::rma::{self, MemInfo, Rma};
use super::run::{
    Failed, NOTIFY_TIMEOUT, Options, STALL_TIMEOUT, START_TIMEOUT, StallTimer, connect, context, thresholds,
    unexpected_line,
};
use super::send::Sender;
use super::{Failure, Report};
use crate::partner::{Partner, PartnerError};
use crate::sizes::Sizes;
use serde::{Deserialize, Serialize};
use std::time::Instant;
use ucp::{Ep, Mem, Worker};

/// Address and memory of a process for one of the others.
#[derive(Debug, Serialize, Deserialize)]
struct Contact {
    address: Vec<u8>,
    memory: MemInfo,
}

#[derive(Debug, Serialize, Deserialize)]
enum Line {
    /// One for each other process, in their order.
    Contacts(Vec<Contact>),
    /// The others' contacts, and the lengths at which the protocols change.
    Start {
        contacts: Vec<Contact>,
        thresholds: Vec<usize>,
    },
    Done(Box<Report>),
    /// All processes are done.
    Leave,
}

/// Place of a process among all.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// Number of the process, from 0.
    pub me: usize,
    /// Number of processes.
    pub procs: usize,
}

impl Place {
    fn others(self) -> impl Iterator<Item = usize> {
        (0..self.procs).filter(move |n| *n != self.me)
    }

    /// Index of process `n` among the others of process `of`.
    fn index(of: usize, n: usize) -> usize {
        n - usize::from(n > of)
    }
}

/// Runs the first process, which starts one under each of the `launchers` with `args` and its place. Answers
/// all reports, in the order of the processes.
pub fn first(options: &Options, launchers: &[Vec<String>], args: &[String]) -> Result<Vec<Report>, Failure> {
    let place = Place { me: 0, procs: launchers.len() + 1 };
    let (ends, mine) = open(options, place)?;
    let mut partners = Vec::new();
    for (n, launcher) in launchers.iter().enumerate() {
        let place = [format!("--place={}", n + 1), format!("--procs={}", place.procs)];
        let launcher: Vec<&str> = launcher.iter().map(String::as_str).collect();
        partners.push(Partner::start_under(&launcher, &[args, &place].concat())?);
    }
    let mut contacts = vec![mine.into_iter().map(Some).collect::<Vec<_>>()];
    for partner in &mut partners {
        let Line::Contacts(all) = partner.recv(START_TIMEOUT)? else { return Err(unexpected_line()) };
        contacts.push(all.into_iter().map(Some).collect());
    }
    let mut contacts_for = |me: usize| -> Result<Vec<Contact>, Failure> {
        let of = |n: usize| contacts[n].get_mut(Place::index(n, me)).and_then(Option::take);
        Place { me, ..place }.others().map(of).collect::<Option<_>>().ok_or_else(unexpected_line)
    };
    let (mut pairs, sizes) = join(options, place, ends, contacts_for(0)?, None)?;
    for (n, partner) in partners.iter_mut().enumerate() {
        partner.send(&Line::Start { contacts: contacts_for(n + 1)?, thresholds: sizes.clone() })?;
    }
    let mut reports = vec![drive(&mut pairs, options.sleeps)?];
    for partner in &mut partners {
        let Line::Done(report) = wait(&mut pairs, partner, options.sleeps)? else {
            return Err(unexpected_line());
        };
        reports.push(*report);
    }
    for partner in &mut partners {
        partner.send(&Line::Leave)?;
    }
    finish(pairs)?;
    match partners.into_iter().all(Partner::exited_ok) {
        true => Ok(reports),
        false => Err(PartnerError::Gone.into()),
    }
}

/// Runs a process that [`first`] started.
pub fn other(options: &Options, place: Place) -> Result<(), Failure> {
    let (ends, mine) = open(options, place)?;
    let mut partner = Partner::parent();
    partner.send(&Line::Contacts(mine))?;
    let Line::Start { contacts, thresholds } = partner.recv(START_TIMEOUT)? else {
        return Err(unexpected_line());
    };
    let (mut pairs, _) = join(options, place, ends, contacts, Some(thresholds))?;
    let report = drive(&mut pairs, options.sleeps)?;
    partner.send(&Line::Done(Box::new(report)))?;
    let Line::Leave = wait(&mut pairs, &mut partner, options.sleeps)? else { return Err(unexpected_line()) };
    finish(pairs)
}

/// A worker for one other process, with memory for its operations.
type End = (Worker, Mem);

/// A worker for each other process, with memory for its operations, and what it has to know of them.
fn open(options: &Options, place: Place) -> Result<(Vec<End>, Vec<Contact>), Failure> {
    let context = context(options)?;
    let (mut ends, mut contacts) = (Vec::new(), Vec::new());
    for _ in place.others() {
        let worker = context.worker()?;
        let (mem, memory) = rma::alloc(&worker, options.max)?;
        contacts.push(Contact { address: worker.address().pack(), memory });
        ends.push((worker, mem));
    }
    Ok((ends, contacts))
}

/// This process and one of the others.
struct Pair {
    worker: Worker,
    ep: Ep,
    failed: Failed,
    sender: Sender,
    receiver: Receiver,
    rma: Rma,
    /// Memory for the other one's operations.
    _mem: Mem,
}

/// Connects to the others. Answers the lengths at which protocols change, too: those given, or its own.
fn join(
    options: &Options,
    place: Place,
    ends: Vec<End>,
    contacts: Vec<Contact>,
    given: Option<Vec<usize>>,
) -> Result<(Vec<Pair>, Vec<usize>), Failure> {
    let mut eps = Vec::new();
    for ((worker, _), contact) in ends.iter().zip(&contacts) {
        eps.push(connect(worker, &contact.address)?);
    }
    let bounds = given.unwrap_or_else(|| eps.first().map(|(ep, _)| thresholds(ep)).unwrap_or_default());
    let sizes = Sizes::new(options.max, bounds.clone());
    let mut pairs = Vec::new();
    for ((((worker, mem), contact), (ep, failed)), n) in
        ends.into_iter().zip(contacts).zip(eps).zip(place.others())
    {
        let (low, high) = (place.me.min(n) as u64, place.me.max(n) as u64);
        // Each pair has messages of its own.
        let seed = options.seed.wrapping_add((high << 40) + (low << 32));
        let me = u64::from(place.me > n);
        let plan = |sender| Plan::new(seed, sender, options.messages, sizes.clone());
        pairs.push(Pair {
            sender: Sender::new(plan(me), seed, me, options.window),
            receiver: Receiver::new(plan(1 - me), seed, 1 - me, options.window),
            rma: Rma::new(&ep, &contact.memory, sizes.clone(), (seed, me, options.rma))?,
            worker,
            ep,
            failed,
            _mem: mem,
        });
    }
    Ok((pairs, bounds))
}

impl Pair {
    fn is_done(&self) -> bool {
        self.sender.is_done() && self.receiver.is_done() && self.rma.is_done()
    }

    /// Does what it can; answers whether anything moved.
    fn step(&mut self) -> Result<bool, Failure> {
        let events = self.worker.progress();
        if let Some(error) = self.failed.take() {
            return Err(Failure::Reported { what: "endpoint".into(), error });
        }
        let sent = self.sender.step(&self.worker, &self.ep)?;
        let received = self.receiver.step(&self.worker, &self.ep)?;
        let rma = self.rma.step(&self.ep)?;
        Ok(events > 0 || sent || received || rma)
    }

    #[cold]
    fn state(&self) -> String {
        format!(
            "sent {} (ended {}), received {} (open {}), {:?}; requests {}",
            self.sender.started,
            self.sender.ended,
            self.receiver.received,
            self.receiver.open(),
            self.rma.report,
            self.worker.diagnostics().requests()
        )
    }
}

/// One step of all pairs; fails where nothing has moved for long.
fn step(pairs: &mut [Pair], timer: &mut StallTimer) -> Result<(), Failure> {
    let mut moved = false;
    for pair in pairs.iter_mut() {
        moved |= pair.step()?;
    }
    match timer.idle_for(moved) {
        Some(after) if after > STALL_TIMEOUT => {
            let state = pairs.iter().map(Pair::state).collect::<Vec<_>>().join("; ");
            Err(Failure::Stalled { after, state })
        }
        Some(_) => Ok(()),
        // Each worker gets its turn: what comes for the others waits a millisecond at most.
        None => pairs.iter().try_for_each(|pair| timer.sleep_on(&pair.worker)),
    }
}

/// Runs all pairs until everything is sent, received and flushed.
fn drive(pairs: &mut [Pair], sleeps: bool) -> Result<Report, Failure> {
    let (start, mut timer) = (Instant::now(), StallTimer::new(sleeps));
    while !pairs.iter().all(Pair::is_done) {
        step(pairs, &mut timer)?;
    }
    let flushes: Vec<_> = pairs.iter().map(|pair| pair.ep.flush()).collect();
    while !flushes.iter().all(|flush| flush.is_done()) {
        step(pairs, &mut timer)?;
    }
    for flush in flushes {
        flush.wait().map_err(|error| Failure::Reported { what: "flush".into(), error })?;
    }
    let mut report = Report { seconds: start.elapsed().as_secs_f64(), ..Report::default() };
    for pair in pairs {
        report.messages += pair.receiver.received;
        report.bytes += pair.receiver.bytes;
        report.truncated += pair.receiver.truncated;
        report.rma.puts += pair.rma.report.puts;
        report.rma.gets += pair.rma.report.gets;
        report.rma.atomics += pair.rma.report.atomics;
    }
    Ok(report)
}

/// The next line of a process. Meanwhile all pairs go on.
fn wait(pairs: &mut [Pair], partner: &mut Partner, sleeps: bool) -> Result<Line, Failure> {
    let mut timer = StallTimer::new(sleeps);
    loop {
        if let Some(line) = partner.try_recv()? {
            return Ok(line);
        }
        if let Err(failure) = step(pairs, &mut timer) {
            // A process that has heard that all are done may leave before this one hears it.
            return match failure.is_peer_gone().then(|| partner.recv(NOTIFY_TIMEOUT)) {
                Some(Ok(line)) => Ok(line),
                _ => Err(failure),
            };
        }
    }
}

/// Checks that nothing is left.
fn finish(pairs: Vec<Pair>) -> Result<(), Failure> {
    for mut pair in pairs {
        pair.sender.close()?;
        if let n @ 1.. = pair.worker.diagnostics().requests() {
            return Err(Failure::Violation(format!("{n} requests are left after everything has ended")));
        }
    }
    Ok(())
}
