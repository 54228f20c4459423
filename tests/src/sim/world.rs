//! The world of one seed and its course: act at random until everything is sent, come to rest, receive what is left,
//! and look whether all is as it must be. Calls `act.rs` and `settle.rs`; nothing here starts or ends an operation.

use super::brook::Brooks;
use super::knobs::{Knobs, Limits};
use super::ledger::{Broken, Step};
use super::letters::Letter;
use super::node::Node;
use super::{Failed, Outcome, Trace, Voice};
use crate::rng::Rng;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use ucp::rdm::{Census, Row};
use uct::efa::dev::soft::Fabric;

/// Random steps of all workers together, per message of one round.
const STEPS_PER_MESSAGE: u64 = 40;
/// Receives that active messages keep posted.
const IDLE_REQUESTS: usize = 32;
/// Longer than any back-off.
const SOON: Duration = Duration::from_secs(10);
/// Rounds after which a worker in zero-copy receive mode that has no receive posts one.
const ROUNDS_TO_A_PLACE: u64 = 500;
/// Rounds of progress within which a world comes to rest, or it never does.
const ROUNDS_TO_REST: u64 = 200_000;

/// A job under way.
pub struct World {
    pub(super) seed: u64,
    pub(super) knobs: Knobs,
    pub(super) limits: Limits,
    pub(super) rng: Rng,
    pub(super) nodes: Vec<Node>,
    pub(super) fabric: Fabric,
    pub(super) step: Step,
    pub(super) trace: Trace,
    pub(super) outcome: Outcome,
    /// First word of each message: sender and number.
    pub(super) words: BTreeMap<u64, (usize, u64)>,
    /// Data for the receiver's completion, by sender and number.
    pub(super) cq_data: BTreeMap<(usize, u64), u64>,
    pub(super) letters: Vec<Letter>,
    pub(super) brooks: Brooks,
    /// Pairs that expect nothing of each other any more.
    pub(super) severed: BTreeSet<(usize, usize)>,
    /// Who cannot say what it has written to whom, since a NIC was lost.
    pub(super) unsure: BTreeSet<(usize, usize)>,
    /// The step from which on a worker dies.
    pub(super) dies_at: Step,
    /// The step from which on a NIC goes down.
    pub(super) unplugs_at: Step,
    /// Rng of what scopes after the first few have brought: what those play is what it was without.
    pub(super) course: Rng,
    /// Memory regions when nothing was under way yet.
    regions: usize,
}

impl World {
    /// Opens all devices and workers.
    pub fn new(seed: u64, limits: Limits, voice: Voice) -> Result<World, Failed> {
        let knobs = Knobs::draw(&mut Rng::new(seed, 0), limits);
        let mut rng = Rng::new(seed, 1);
        let mut course = Rng::new(seed, 2);
        let fabric = Fabric::new(seed, knobs.faults);
        fabric.capture(&std::env::var("SOFTEFA_PCAP").unwrap_or_default());
        let mut world = World {
            seed,
            limits,
            dies_at: rng.below(limits.messages * STEPS_PER_MESSAGE),
            unplugs_at: course.below(limits.messages * STEPS_PER_MESSAGE),
            rng,
            course,
            nodes: Vec::new(),
            fabric,
            step: 0,
            trace: Trace::new(voice),
            outcome: Outcome::default(),
            words: BTreeMap::new(),
            cq_data: BTreeMap::new(),
            letters: Vec::new(),
            brooks: Brooks::new(),
            severed: BTreeSet::new(),
            unsure: BTreeSet::new(),
            regions: 0,
            knobs,
        };
        world.trace.tell(&[seed], format_args!("seed {seed}: {:?}", world.knobs));
        for n in 0..world.knobs.habits.len() {
            let node = Node::open(n, &world.fabric, &world.knobs);
            world.nodes.push(node.map_err(|e| world.fail(format!("worker {n} does not open: {e}")))?);
        }
        world.regions = world.fabric.regions();
        if world.knobs.refusal > 0.0 {
            world.fabric.refuse_registrations(world.knobs.refusal);
        }
        Ok(world)
    }

    /// From the first action to the last check.
    pub fn run(mut self) -> Result<Outcome, Failed> {
        for from in 0..self.nodes.len() {
            for to in 0..self.nodes.len() {
                if self.rng.percent(self.knobs.connected) {
                    self.connect(from, to)?;
                }
            }
        }
        // A round that sends nothing can happen (windows full of sends that wait for a receive); the next one starts
        // with empty windows.
        let total = self.limits.messages * self.nodes.len() as u64;
        for _ in 0..=total {
            for _ in 0..total * STEPS_PER_MESSAGE {
                if self.all_sent() {
                    break;
                }
                self.act()?;
            }
            self.rest()?;
            self.take_in_the_rest()?;
            if self.all_sent() {
                return self.finish();
            }
        }
        Err(self.fail("workers do not get to send"))
    }

    fn all_sent(&self) -> bool {
        self.nodes.iter().all(|node| node.dead || node.seq >= self.limits.messages)
    }

    /// Progress for everybody until nothing happens any more.
    pub(super) fn rest(&mut self) -> Result<(), Failed> {
        let mut quiet = 0;
        // Keep-alive finds the dead, and brings back a HANDSHAKE that a device has failed: nobody waits for either but who
        // sends nothing more.
        let asks = self.outcome.died > 0 || self.outcome.unplugged > 0 || self.knobs.failing();
        let mut asking = if asks { self.living() } else { Vec::new() };
        for round in 1..=ROUNDS_TO_REST {
            if round % ROUNDS_TO_A_PLACE == 0 {
                self.make_places()?;
            }
            let living = self.living();
            let first = self.rng.below(living.len() as u64) as usize;
            let mut events = 0;
            for n in 0..living.len() {
                events += self.progress(living[(first + n) % living.len()])?;
            }
            let due = events == 0 && (self.fabric.step() || self.wait_for_a_timer());
            quiet = if events > 0 || due { 0 } else { quiet + 1 };
            if quiet == 3 {
                if asking.is_empty() && !self.part_for_good()? {
                    return Ok(());
                }
                self.look_after_each_other(&mut asking);
                quiet = 0;
            }
        }
        Err(self.fail("does not come to rest"))
    }

    /// Nothing moves: time passes until somebody wants to try again. Closes that are to wait for long do not count.
    fn wait_for_a_timer(&mut self) -> bool {
        let timers = self.living().into_iter().filter_map(|n| self.nodes[n].worker.next_timer());
        let next = timers.filter(|timer| *timer < SOON).min();
        if let Some(timer) = next {
            self.fabric.advance((timer.as_nanos() as u64).max(1));
        }
        next.is_some()
    }

    /// At rest: cancels the receives that no message fits, and receives every message that is left.
    fn take_in_the_rest(&mut self) -> Result<(), Failed> {
        for n in self.living() {
            self.receive_taken(n)?;
        }
        self.rest()?;
        while self.drain_brooks()? {
            self.rest()?;
        }
        self.stop_brooks()?;
        for n in self.living() {
            let at_rest = self.nodes[n].ledger.at_rest();
            at_rest.map_err(|e| self.broken(n, e))?;
            self.cancel_all(n)?;
        }
        for _ in 0..=self.limits.messages * self.nodes.len() as u64 {
            let mut posted = 0;
            for n in self.living() {
                posted += self.post_for_all_waiting(n)?;
            }
            self.rest()?;
            // What the dead have sent need not come.
            let mut due = 0;
            for n in self.living() {
                self.cancel_all(n)?;
                due += self.nodes[n].ledger.due().count();
            }
            if posted == 0 || due == 0 {
                return self.use_receives_up();
            }
        }
        Err(self.fail("messages keep waiting though everything is received"))
    }

    /// Everything is sent and at rest: nothing may be left anywhere, and the ledgers must be in order.
    fn finish(mut self) -> Result<Outcome, Failed> {
        for n in self.living() {
            self.nothing_left(n)?;
            self.nothing_to_probe(n)?;
            if self.abandoned(n) == 0 {
                let audit = self.nodes[n].ledger.audit();
                audit.map_err(|e| self.broken(n, e))?;
            }
            let rare = self.nodes[n].worker.stats().rare;
            self.outcome.unexpected += rare.unexpected;
            self.outcome.out_of_order += rare.out_of_order;
            self.outcome.full += rare.full;
            self.outcome.nacked += rare.nacks_received;
            self.outcome.not_ready += rare.not_ready;
            self.outcome.told += rare.errors_received;
            self.outcome.passed_on += rare.passed_on;
            self.outcome.placed += self.nodes[n].worker.stats().received(Row::Headerless).msgs;
            self.outcome.striped += rare.striped;
            self.outcome.abreast += rare.data_abreast;
            self.outcome.moved += rare.peers_moved;
            self.outcome.sent_elsewhere += rare.sent_elsewhere;
            self.outcome.unsure += rare.unsure;
        }
        for node in &self.nodes {
            self.outcome.coverage.note(&node.worker.stats());
        }
        self.look_at_letters()?;
        self.look_at_brooks()?;
        self.look_at_shores()?;
        self.look_at_loans()?;
        let abandoned: usize = self.living().into_iter().map(|n| self.abandoned(n)).sum();
        if self.outcome.died == 0 && self.fabric.regions() != self.regions + abandoned {
            let regions = (self.regions, self.fabric.regions());
            return Err(self.fail(format!("memory regions before and after: {regions:?}")));
        }
        self.outcome.refused = self.fabric.refused();
        self.outcome.workers = self.nodes.len() as u64;
        self.outcome.steps = self.step;
        self.outcome.virtual_ns = self.fabric.now();
        self.trace.tell(&[self.fabric.now()], format_args!("end at {} ns", self.fabric.now()));
        self.outcome.digest = self.trace.digest();
        Ok(self.outcome)
    }

    /// Nothing is under way at worker `n`: no operation, request, buffer or registration, and no packet was wrong.
    fn nothing_left(&self, n: usize) -> Result<(), Failed> {
        let node = &self.nodes[n];
        let abandoned = self.abandoned(n);
        // Who met a lost one anew by other NICs has no endpoint left to read what the old one's stream held, and with one NIC
        // of its own does not know that both are one worker.
        let unread = self.knobs.nics > 1 && self.has_losses(n);
        let own = [
            ("sends", node.sends.len()),
            ("receives", node.recvs.len() - abandoned),
            ("receives of many", node.many.len()),
            ("probed messages", node.taken.len()),
            ("flushes", node.flushes.len()),
            ("operations on memory", node.shore.open()),
            ("operations on memory lent", node.loans.open()),
            ("active messages", node.letters.open()),
            ("bytes of held messages", node.worker.held_bytes() * usize::from(!unread)),
            ("registrations", node.worker.registrations() - abandoned),
        ];
        if let Some((what, left)) = own.iter().find(|(_, left)| *left > 0) {
            return Err(self.fail(format!("worker {n}: {left} {what} left")));
        }
        let idle = if node.in_place { abandoned } else { IDLE_REQUESTS };
        if node.worker.requests() != idle {
            return Err(self.fail(format!("worker {n}: {} requests left", node.worker.requests())));
        }
        let mut census = node.worker.census();
        if unread {
            // Some of it was to be read from its sender's memory.
            census.readings = census.readings.saturating_sub(census.unexpected);
            (census.unexpected, census.held_bytes) = (0, 0);
            census.early *= usize::from(node.nics.len() > 1);
        }
        if census != (Census { receives: idle, ..Census::EMPTY }) {
            return Err(self.fail(format!("worker {n}: the engine holds {census:?}")));
        }
        let rare = node.worker.stats().rare;
        // What is given up at one end may still be on its way from the other.
        let bereaved = rare.peers_failed + rare.peer_failed + rare.duplicate;
        // What is refused for two reasons is so twice, and what is sent over another NIC may have been there.
        let twice = self.outcome.unplugged > 0 || self.nodes.iter().any(|node| node.in_place);
        let unplugged = self.outcome.unplugged > 0;
        let late = rare.bad_id * u64::from(!self.has_losses(n) && !self.any_gone() && !twice);
        let denied = rare.bad_access * u64::from(!node.loans.any_gone());
        let bad = rare.malformed
            + rare.unsupported * u64::from(!node.in_place)
            + rare.unknown_sender
            + rare.no_path
            + rare.bad_segment * u64::from(!unplugged)
            + rare.bad_window
            + rare.no_room;
        // A NIC that is only one of several may be lost, and packets that it had carried may come once more.
        let rails = self.knobs.nics > 1 && (unplugged || self.knobs.failing());
        match bad + late + denied + bereaved * u64::from(!self.has_losses(n) && !rails) {
            0 => Ok(()),
            _ => Err(self.fail(format!("worker {n}: packets that nobody should have sent: {rare:?}"))),
        }
    }

    /// Whether anybody has taken memory back: what was going on there may still be on its way.
    fn any_gone(&self) -> bool {
        self.nodes.iter().any(|node| node.loans.any_gone())
    }

    #[cold]
    pub(super) fn broken(&self, n: usize, broken: Broken) -> Failed {
        self.fail(format!("worker {n}: {broken}"))
    }

    #[cold]
    pub(super) fn fail(&self, what: impl Into<String>) -> Failed {
        let state: Vec<String> = self.nodes.iter().enumerate().map(|(n, node)| node.state(n)).collect();
        Failed { seed: self.seed, step: self.step, what: what.into(), state: state.join("\n") }
    }
}
