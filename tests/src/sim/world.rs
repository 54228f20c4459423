//! The world of one seed and its course: act at random until everything is sent, come to rest, receive what is left,
//! and look whether all is as it must be. Calls `act.rs` and `settle.rs`; nothing here starts or ends an operation.

use super::knobs::{Knobs, Limits};
use super::ledger::{Broken, Step};
use super::node::Node;
use super::{Failed, Outcome, Trace, Voice};
use crate::dice::Dice;
use std::collections::BTreeMap;
use uct::efa::dev::soft::Fabric;

/// Random steps of all workers together, per message of one round.
const STEPS_PER_MESSAGE: u64 = 40;
/// Rounds of progress within which a world comes to rest, or it never does.
const ROUNDS_TO_REST: u64 = 200_000;

/// A job under way.
pub struct World {
    pub(super) seed: u64,
    pub(super) knobs: Knobs,
    pub(super) limits: Limits,
    pub(super) dice: Dice,
    pub(super) nodes: Vec<Node>,
    pub(super) fabric: Fabric,
    pub(super) step: Step,
    pub(super) trace: Trace,
    pub(super) outcome: Outcome,
    /// First word of each message: sender and number.
    pub(super) words: BTreeMap<u64, (usize, u64)>,
}

impl World {
    /// Opens all devices and workers.
    pub fn new(seed: u64, limits: Limits, voice: Voice) -> Result<World, Failed> {
        let knobs = Knobs::draw(&mut Dice::new(seed, 0));
        let fabric = Fabric::new(seed, knobs.faults);
        fabric.capture(&std::env::var("SOFTEFA_PCAP").unwrap_or_default());
        let mut world = World {
            seed,
            limits,
            dice: Dice::new(seed, 1),
            nodes: Vec::new(),
            fabric,
            step: 0,
            trace: Trace::new(voice),
            outcome: Outcome::default(),
            words: BTreeMap::new(),
            knobs,
        };
        world.trace.tell(&[seed], format_args!("seed {seed}: {:?}", world.knobs));
        for n in 0..limits.workers {
            let node = Node::open(n, &world.fabric, &world.knobs, limits);
            world.nodes.push(node.map_err(|e| world.fail(format!("worker {n} does not open: {e}")))?);
        }
        Ok(world)
    }

    /// From the first action to the last check.
    pub fn run(mut self) -> Result<Outcome, Failed> {
        for from in 0..self.nodes.len() {
            for to in 0..self.nodes.len() {
                if self.dice.percent(self.knobs.connected) {
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
        self.nodes.iter().all(|node| node.seq == self.limits.messages)
    }

    /// Progress for everybody until nothing happens any more.
    fn rest(&mut self) -> Result<(), Failed> {
        let mut quiet = 0;
        for _ in 0..ROUNDS_TO_REST {
            let first = self.dice.below(self.nodes.len() as u64) as usize;
            let mut events = 0;
            for n in 0..self.nodes.len() {
                events += self.progress((first + n) % self.nodes.len())?;
            }
            let due = events == 0 && self.fabric.step();
            quiet = if events > 0 || due { 0 } else { quiet + 1 };
            if quiet == 3 {
                return Ok(());
            }
        }
        Err(self.fail("does not come to rest"))
    }

    /// At rest: cancels the receives that no message fits, and receives every message that is left.
    fn take_in_the_rest(&mut self) -> Result<(), Failed> {
        for n in 0..self.nodes.len() {
            self.receive_taken(n)?;
        }
        self.rest()?;
        for n in 0..self.nodes.len() {
            let at_rest = self.nodes[n].ledger.at_rest();
            at_rest.map_err(|e| self.broken(n, e))?;
            self.cancel_all(n)?;
        }
        for _ in 0..=self.limits.messages * self.nodes.len() as u64 {
            let mut posted = 0;
            for n in 0..self.nodes.len() {
                posted += self.post_for_all_waiting(n)?;
            }
            self.rest()?;
            if posted == 0 {
                return Ok(());
            }
        }
        Err(self.fail("messages keep waiting though everything is received"))
    }

    /// Everything is sent and at rest: nothing may be left anywhere, and the ledgers must be in order.
    fn finish(mut self) -> Result<Outcome, Failed> {
        for n in 0..self.nodes.len() {
            let node = &self.nodes[n];
            let left = (node.sends.len(), node.recvs.len(), node.taken.len(), node.flushes.len());
            if left != (0, 0, 0, 0) {
                return Err(self.fail(format!("worker {n}: sends, receives, probes, flushes left: {left:?}")));
            }
            if node.shore.open() != 0 {
                return Err(self.fail(format!("worker {n}: {} operations on memory left", node.shore.open())));
            }
            if node.worker.requests() != 0 {
                return Err(self.fail(format!("worker {n}: {} requests left", node.worker.requests())));
            }
            let outstanding: u32 =
                node.eps.iter().flatten().filter_map(|ep| ep.peer_view()).map(|v| v.outstanding).sum();
            if outstanding != 0 {
                return Err(self.fail(format!("worker {n}: {outstanding} sends outstanding in the engine")));
            }
            self.nothing_to_probe(n)?;
            let audit = self.nodes[n].ledger.audit();
            audit.map_err(|e| self.broken(n, e))?;
            let rare = self.nodes[n].worker.stats().rare;
            let bad = rare.malformed
                + rare.unsupported
                + rare.unknown_sender
                + rare.no_path
                + rare.duplicate
                + rare.bad_segment
                + rare.bad_id
                + rare.bad_window
                + rare.bad_access
                + rare.peers_failed;
            if bad != 0 {
                return Err(self.fail(format!("worker {n}: packets that nobody should have sent: {rare:?}")));
            }
            self.outcome.unexpected += rare.unexpected;
            self.outcome.out_of_order += rare.out_of_order;
            self.outcome.full += rare.full;
        }
        self.look_at_shores()?;
        self.outcome.steps = self.step;
        self.outcome.virtual_ns = self.fabric.now();
        self.trace.tell(&[self.fabric.now()], format_args!("end at {} ns", self.fabric.now()));
        self.outcome.digest = self.trace.digest();
        Ok(self.outcome)
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
