//! A job of one seed: takes random steps until everything is sent, runs until idle, receives what is left,
//! and checks that nothing is left anywhere. Operations are started and ended by `step` and `completions`.

use super::active_messages::AmRecord;
use super::job_params::{JobParams, Limits};
use super::model::{StepNo, Violation};
use super::sim_worker::SimWorker;
use super::streams::Streams;
use super::{Failed, Outcome, Trace, Verbosity};
use crate::rng::Rng;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use ucp::rdm::{EngineSnapshot, Protocol};
use uct::efa::dev::soft::Fabric;

/// Random steps of all workers together, per message of a round.
const STEPS_PER_MESSAGE: u64 = 40;
const IDLE_REQUESTS: usize = 32;
/// Longer than any back-off.
const MAX_TIMER: Duration = Duration::from_secs(10);
/// Rounds after which an idle worker in zero-copy receive mode posts a receive.
const ROUNDS_TO_POST: u64 = 500;
/// Rounds within which a job becomes idle.
const MAX_ROUNDS: u64 = 200_000;

pub struct Job {
    pub(super) seed: u64,
    pub(super) params: JobParams,
    pub(super) limits: Limits,
    pub(super) rng: Rng,
    pub(super) workers: Vec<SimWorker>,
    pub(super) fabric: Fabric,
    pub(super) step: StepNo,
    pub(super) trace: Trace,
    pub(super) outcome: Outcome,
    /// Sender and number of each message, by its first word.
    pub(super) words: BTreeMap<u64, (usize, u64)>,
    /// Data for the receiver's completion, by sender and number.
    pub(super) cq_data: BTreeMap<(usize, u64), u64>,
    pub(super) ams: Vec<AmRecord>,
    pub(super) streams: Streams,
    /// Pairs that expect nothing more of each other.
    pub(super) disconnected: BTreeSet<(usize, usize)>,
    /// Pairs (n, to) in which `n` cannot tell what it has written to `to`, since a NIC failed.
    pub(super) uncertain: BTreeSet<(usize, usize)>,
    pub(super) dies_at: StepNo,
    pub(super) nic_fails_at: StepNo,
    /// Draws for later scopes, so that earlier scopes' seeds stay the same.
    pub(super) scope_rng: Rng,
    /// Streams are drawn from until they give nothing more.
    pub(super) drains_streams: bool,
    regions: usize,
}

impl Job {
    pub fn new(seed: u64, limits: Limits, verbosity: Verbosity) -> Result<Job, Failed> {
        let params = JobParams::draw(&mut Rng::new(seed, 0), limits);
        let mut rng = Rng::new(seed, 1);
        let mut scope_rng = Rng::new(seed, 2);
        let fabric = Fabric::new(seed, params.faults);
        fabric.capture(&std::env::var("SOFTEFA_PCAP").unwrap_or_default());
        let mut job = Job {
            seed,
            limits,
            dies_at: rng.below(limits.messages * STEPS_PER_MESSAGE),
            nic_fails_at: scope_rng.below(limits.messages * STEPS_PER_MESSAGE),
            rng,
            scope_rng,
            workers: Vec::new(),
            fabric,
            step: 0,
            trace: Trace::new(verbosity),
            outcome: Outcome::default(),
            words: BTreeMap::new(),
            cq_data: BTreeMap::new(),
            ams: Vec::new(),
            streams: Streams::new(),
            disconnected: BTreeSet::new(),
            uncertain: BTreeSet::new(),
            drains_streams: false,
            regions: 0,
            params,
        };
        job.trace.record(&[seed], format_args!("seed {seed}: {:?}", job.params));
        for n in 0..job.params.workers.len() {
            let sim_worker = SimWorker::open(n, &job.workers, &job.fabric, &job.params);
            job.workers.push(sim_worker.map_err(|e| job.fail(format!("worker {n} does not open: {e}")))?);
        }
        job.regions = job.fabric.regions();
        if job.params.refusal > 0.0 {
            job.fabric.refuse_registrations(job.params.refusal);
        }
        Ok(job)
    }

    pub fn run(mut self) -> Result<Outcome, Failed> {
        for from in 0..self.workers.len() {
            for to in 0..self.workers.len() {
                if self.rng.percent(self.params.connected) {
                    self.connect(from, to)?;
                }
            }
        }
        // Windows full of waiting sends may send nothing; the next round starts with empty ones.
        let total = self.limits.messages * self.workers.len() as u64;
        for _ in 0..=total {
            for _ in 0..total * STEPS_PER_MESSAGE {
                if self.all_sent() {
                    break;
                }
                self.random_step()?;
            }
            self.run_until_idle()?;
            self.receive_remaining()?;
            if self.all_sent() {
                return self.finish();
            }
        }
        Err(self.fail("workers do not get to send"))
    }

    fn all_sent(&self) -> bool {
        self.workers.iter().all(|sim_worker| sim_worker.dead || sim_worker.seq >= self.limits.messages)
    }

    pub(super) fn run_until_idle(&mut self) -> Result<(), Failed> {
        let mut quiet = 0;
        // Keep-alive finds dead peers, and resends a HANDSHAKE that a device has failed.
        let asks = self.outcome.died > 0 || self.outcome.nic_down > 0 || self.params.failing();
        let mut asking = if asks { self.living() } else { Vec::new() };
        let mut again = BTreeSet::new();
        for round in 1..=MAX_ROUNDS {
            if round % ROUNDS_TO_POST == 0 {
                self.post_missing_recvs()?;
            }
            let living = self.living();
            let first = self.rng.below(living.len() as u64) as usize;
            let mut events = 0;
            for n in 0..living.len() {
                events += self.progress(living[(first + n) % living.len()])?;
            }
            let due = events == 0 && (self.fabric.step() || self.advance_to_timer());
            quiet = if events > 0 || due { 0 } else { quiet + 1 };
            if quiet == 3 {
                if asking.is_empty() && !self.close_disconnected(&mut again)? {
                    return Ok(());
                }
                self.run_keepalive(&mut asking);
                quiet = 0;
            }
        }
        Err(self.fail("does not become idle"))
    }

    /// Advances time to the next timer; answers whether there was one. Timers of long closes do not count.
    fn advance_to_timer(&mut self) -> bool {
        let timers = self.living().into_iter().filter_map(|n| self.workers[n].worker.next_timer());
        let next = timers.filter(|timer| *timer < MAX_TIMER).min();
        if let Some(timer) = next {
            self.fabric.advance((timer.as_nanos() as u64).max(1));
        }
        next.is_some()
    }

    /// Cancels the receives that no message matches, and receives all messages that are left.
    fn receive_remaining(&mut self) -> Result<(), Failed> {
        for n in self.living() {
            self.receive_all_claimed(n)?;
        }
        self.run_until_idle()?;
        self.drains_streams = true;
        while self.drain_streams()? {
            self.run_until_idle()?;
        }
        self.drains_streams = false;
        self.cancel_stream_recvs()?;
        for n in self.living() {
            let at_rest = self.workers[n].model.at_rest();
            at_rest.map_err(|e| self.violation(n, e))?;
            self.cancel_all(n)?;
        }
        for _ in 0..=self.limits.messages * self.workers.len() as u64 {
            let mut posted = 0;
            for n in self.living() {
                posted += self.post_for_all_waiting(n)?;
            }
            self.run_until_idle()?;
            let mut due = 0;
            for n in self.living() {
                self.cancel_all(n)?;
                due += self.workers[n].model.required().count();
            }
            if posted == 0 || due == 0 {
                return self.consume_posted_recvs();
            }
        }
        Err(self.fail("messages keep waiting though everything is received"))
    }

    fn finish(mut self) -> Result<Outcome, Failed> {
        for n in self.living() {
            self.check_idle(n)?;
            self.check_none_unexpected(n)?;
            if self.orphan_recvs(n) == 0 {
                let audit = self.workers[n].model.audit();
                audit.map_err(|e| self.violation(n, e))?;
            }
            let rare = self.workers[n].worker.stats().rare;
            self.outcome.unexpected += rare.unexpected;
            self.outcome.out_of_order += rare.out_of_order;
            self.outcome.queue_full += rare.full;
            self.outcome.nacked += rare.nacks_received;
            self.outcome.not_ready += rare.not_ready;
            self.outcome.peer_errors += rare.errors_received;
            self.outcome.passed_on += rare.forwarded;
            self.outcome.zcopy_received += self.workers[n].worker.stats().received(Protocol::UserQp).msgs;
            self.outcome.striped += rare.striped;
            self.outcome.cts_striped += rare.ctsdata_striped;
            self.outcome.failed_over += rare.failovers;
            self.outcome.resent_on_other_nic += rare.resent_after_failover;
            self.outcome.uncertain += rare.outcome_unknown;
        }
        for sim_worker in &self.workers {
            self.outcome.coverage.add_packets_of(&sim_worker.worker.stats());
        }
        self.check_ams()?;
        self.check_streams()?;
        self.check_memory()?;
        self.check_revocable()?;
        let orphan_recvs: usize = self.living().into_iter().map(|n| self.orphan_recvs(n)).sum();
        if self.outcome.died == 0 && self.fabric.regions() != self.regions + orphan_recvs {
            let regions = (self.regions, self.fabric.regions());
            return Err(self.fail(format!("memory regions before and after: {regions:?}")));
        }
        self.outcome.registrations_refused = self.fabric.refused();
        self.outcome.workers = self.workers.len() as u64;
        for (n, worker_params) in self.params.workers.iter().enumerate() {
            self.outcome.of_one_context += u64::from(self.params.context_of(n).count() > 1);
            self.outcome.shared += u64::from(worker_params.shared.is_some());
        }
        self.outcome.steps = self.step;
        self.outcome.virtual_ns = self.fabric.now();
        self.trace.record(&[self.fabric.now()], format_args!("end at {} ns", self.fabric.now()));
        self.outcome.digest = self.trace.digest();
        Ok(self.outcome)
    }

    /// Checks that worker `n` has nothing left, and got no wrong packet.
    fn check_idle(&self, n: usize) -> Result<(), Failed> {
        let sim_worker = &self.workers[n];
        let orphan_recvs = self.orphan_recvs(n);
        // A lost peer may have streamed over a later connection, or have been met anew by other NICs.
        let unread = self.has_losses(n);
        let own = [
            ("sends", sim_worker.sends.len()),
            ("receives", sim_worker.recvs.len() - orphan_recvs),
            ("multi-receives", sim_worker.multi_recvs.len()),
            ("probed messages", sim_worker.claimed.len()),
            ("flushes", sim_worker.flushes.len()),
            ("operations on memory", sim_worker.rma.open()),
            ("operations on revocable memory", sim_worker.revocable.open()),
            ("active messages", sim_worker.ams.open()),
            ("bytes of held messages", sim_worker.worker.diagnostics().held_bytes() * usize::from(!unread)),
            ("registrations", sim_worker.worker.diagnostics().registrations() - orphan_recvs),
        ];
        if let Some((what, left)) = own.iter().find(|(_, left)| *left > 0) {
            return Err(self.fail(format!("worker {n}: {left} {what} left")));
        }
        let idle = if sim_worker.zcopy_recv { orphan_recvs } else { IDLE_REQUESTS };
        if sim_worker.worker.diagnostics().requests() != idle {
            return Err(self
                .fail(format!("worker {n}: {} requests left", sim_worker.worker.diagnostics().requests())));
        }
        let mut snapshot = sim_worker.worker.diagnostics().snapshot();
        if unread {
            // Some of it was to be read from its sender's memory.
            snapshot.rma_reads = snapshot.rma_reads.saturating_sub(snapshot.unexpected);
            (snapshot.unexpected, snapshot.held_bytes) = (0, 0);
            snapshot.reordering_peers = 0;
        }
        if snapshot != (EngineSnapshot { receives: idle, ..EngineSnapshot::EMPTY }) {
            return Err(self.fail(format!("worker {n}: the engine holds {snapshot:?}")));
        }
        let rare = sim_worker.worker.stats().rare;
        // Operations given up at one end may be on their way from the other.
        let peer_failed = rare.peers_failed + rare.peer_failed + rare.duplicate;
        // Doubly refused operations count twice, and packets resent over another NIC may have arrived.
        let twice = self.outcome.nic_down > 0 || self.workers.iter().any(|sim_worker| sim_worker.zcopy_recv);
        let nic_down = self.outcome.nic_down > 0;
        // What a sender withdraws may be answered before that is known, and arrive behind it.
        let withdrawn = self.workers.iter().any(|sim_worker| sim_worker.model.has_cancelled_any());
        let peer_failed = peer_failed - rare.duplicate * u64::from(withdrawn);
        let twice = twice || withdrawn;
        let late = rare.bad_id * u64::from(!self.has_losses(n) && !self.any_revoked() && !twice);
        let access_denied = rare.bad_access * u64::from(!sim_worker.revocable.any_revoked());
        let bad = rare.malformed
            + rare.unsupported * u64::from(!sim_worker.zcopy_recv)
            + rare.unknown_sender
            + rare.no_path
            + rare.bad_segment * u64::from(!nic_down)
            + rare.bad_window
            + rare.no_room;
        // With several NICs one may be lost, and its packets may arrive twice.
        let rails = self.params.nics > 1 && (nic_down || self.params.failing());
        match bad + late + access_denied + peer_failed * u64::from(!self.has_losses(n) && !rails) {
            0 => Ok(()),
            _ => Err(self.fail(format!("worker {n}: packets that nobody should have sent: {rare:?}"))),
        }
    }

    /// Whether any memory was revoked: accesses to it may be in flight.
    fn any_revoked(&self) -> bool {
        self.workers.iter().any(|sim_worker| sim_worker.revocable.any_revoked())
    }

    #[cold]
    pub(super) fn violation(&self, n: usize, violation: Violation) -> Failed {
        self.fail(format!("worker {n}: {violation}"))
    }

    #[cold]
    pub(super) fn fail(&self, what: impl Into<String>) -> Failed {
        let state: Vec<String> =
            self.workers.iter().enumerate().map(|(n, sim_worker)| sim_worker.state(n)).collect();
        Failed { seed: self.seed, step: self.step, what: what.into(), state: state.join("\n") }
    }
}
