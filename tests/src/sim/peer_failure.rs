//! Lost peers: workers that die silently, endpoints closed by force or by a limit, devices that fail a
//! request. The operations of a lost pair must end, well or with an error that says so; others must not be
//! affected. Called by `step` and `completions`.
//!
//! A forced close ends what both sides have begun. Both go on with new endpoints, whose messages may or may
//! not arrive, until both have closed once more, when the job is idle.

use super::Failed;
use super::job::Job;
use super::sim_worker::Flushing;
use std::collections::BTreeSet;
use ucp::rdm::io::{PeerError, PeerId};
use ucp::rdm::trace::TraceEvent;
use ucp::wire::Features;
use ucp::{CloseMode, Error};
use uct::efa::RawAddr;
use uct::efa::dev::Dev as _;
use uct::efa::dev::soft::Device;

/// Workers that stay alive, at least.
const LEFT: usize = 2;

fn pair(a: usize, b: usize) -> (usize, usize) {
    (a.min(b), a.max(b))
}

impl Job {
    pub(super) fn is_dead(&self, n: usize) -> bool {
        self.workers[n].dead
    }

    /// Whether two workers expect nothing more of each other.
    pub(super) fn is_lost(&self, a: usize, b: usize) -> bool {
        self.is_dead(a) || self.is_dead(b) || self.disconnected.contains(&pair(a, b))
    }

    pub(super) fn has_losses(&self, n: usize) -> bool {
        (0..self.workers.len()).any(|other| self.is_lost(n, other))
    }

    pub(super) fn is_uncertain_of_any(&self, n: usize) -> bool {
        (0..self.workers.len()).any(|other| self.is_uncertain(n, other))
    }

    /// Whether an error of an operation of `n` is explained by a lost peer.
    pub(super) fn is_peer_failure(&self, n: usize, error: Error) -> bool {
        match error {
            Error::PeerGone(peer)
            | Error::Reset(peer)
            | Error::Unreachable(peer)
            | Error::Unresponsive(peer)
            | Error::Aborted(peer, _) => self.worker_of_peer(n, peer).is_some_and(|who| self.is_lost(n, who)),
            Error::Device(Some(peer), _) => self
                .worker_of_peer(n, peer)
                .is_some_and(|who| self.has_lost_nic(n, who) || self.is_lost(n, who)),
            // Names no peer: the operation was given up here. The peer may have died before.
            Error::Cancelled => {
                let gave_up = self.workers[n].closing_early.iter().any(|who| self.is_lost(n, *who));
                gave_up || self.disconnected_from(n).next().is_some()
            }
            // A forced close revokes memory being read; a sender without READ_NACK cannot be asked to send.
            Error::Unsupported => {
                let deaf = |who: usize| self.workers[who].withheld.contains(Features::READ_NACK);
                self.disconnected_from(n).any(deaf)
            }
            _ => false,
        }
    }

    fn disconnected_from(&self, n: usize) -> impl Iterator<Item = usize> {
        let other = move |&(a, b): &(usize, usize)| match (a == n, b == n) {
            (true, _) => Some(b),
            (_, true) => Some(a),
            _ => None,
        };
        self.disconnected.iter().filter_map(other)
    }

    /// The worker that a peer of `n` is, as messages have shown or by its address.
    pub(super) fn worker_of_peer(&self, n: usize, peer: PeerId) -> Option<usize> {
        let by_address = || {
            let addr = self.workers[n].worker.diagnostics().peer_view(peer)?.addr;
            let is_of = |own: &RawAddr| (own.gid.0, own.qpn) == (addr.gid, addr.qpn);
            self.workers.iter().position(|sim_worker| sim_worker.raw_addrs.iter().any(is_of))
        };
        self.workers[n].peers.get(&peer).copied().or_else(by_address)
    }

    /// A random worker, dead or alive: nobody knows who is dead.
    pub(super) fn any_worker(&mut self) -> usize {
        self.rng.below(self.workers.len() as u64) as usize
    }

    pub(super) fn living(&self) -> Vec<usize> {
        (0..self.workers.len()).filter(|n| !self.is_dead(*n)).collect()
    }

    pub(super) fn kill_worker(&mut self) {
        let living = self.living();
        if living.len() <= LEFT {
            return;
        }
        let victim = *self.rng.pick(&living);
        let victims: Vec<usize> = self.params.context_of(victim).collect();
        if living.len() < LEFT + victims.len() {
            return;
        }
        // The devices of a context die with all its workers.
        for nic in self.workers[victim].nics() {
            self.fabric.kill(nic.gid());
        }
        for victim in victims {
            self.trace.record(&[50, victim as u64], format_args!("{}: {victim} dies", self.step));
            self.workers[victim].dead = true;
            self.outcome.died += 1;
            for n in self.living() {
                self.workers[n].model.sender_lost(victim, self.step);
                self.forget_rma(victim, n);
            }
        }
    }

    /// Starts a keep-alive check at each worker of `asking`, and keeps those that had no resources for it.
    pub(super) fn run_keepalive(&mut self, asking: &mut Vec<usize>) {
        asking.retain(|n| !self.workers[*n].worker.check_peers());
    }

    /// Records the peers that worker `n` has lost. Called before ends are checked.
    pub(super) fn take_peer_failures(&mut self, n: usize) -> Result<(), Failed> {
        self.take_closes_out_of_time(n);
        while let Some(event) = self.workers[n].worker.take_trace_event() {
            let (peer, fault, lost) = match event {
                TraceEvent::PeerFailed(peer, fault) => (peer, fault, true),
                TraceEvent::Uncertain(peer, fault) => (peer, fault, false),
                _ => continue,
            };
            let Some(who) = self.worker_of_peer(n, peer) else {
                return Err(self.fail(format!("worker {n} has lost {peer:?}, whoever that is: {fault}")));
            };
            if who == n && self.is_zcopy_recv(n) && fault != PeerError::Gone {
                self.lose_all_senders(n);
            }
            if self.is_lost(n, who) || self.is_rail(n, who, peer) {
                continue;
            }
            if !lost {
                self.mark_uncertain(n, who)?;
                continue;
            }
            let gave_up = self.workers[n].closing_early.contains(&who);
            let excused = gave_up || self.has_lost_nic(n, who) || self.has_unconfirmed_write(n, who);
            if !self.params.failing() && !excused {
                return Err(self.fail(format!("worker {n} has lost {who}, who is alive: {fault}")));
            }
            self.disconnect(n, who);
        }
        Ok(())
    }

    /// Records the peers whose endpoint was closed with a limit, which is over. Where another endpoint to the
    /// peer is being closed, only this one's operations have ended.
    fn take_closes_out_of_time(&mut self, n: usize) {
        let ended = |flush: &mut Flushing| {
            let is_over =
                flush.closes && flush.is_done() && matches!(flush.end, Some(Err(Error::TimedOut(_))));
            flush.of.filter(|_| is_over)
        };
        let lost: Vec<usize> = self.workers[n].flushes.iter_mut().filter_map(ended).collect();
        for to in lost {
            if !self.is_lost(n, to) {
                self.disconnect(n, to);
            }
        }
    }

    /// Whether an endpoint of `n` to `to` is being closed with a limit. What it streams may be given up, and
    /// then what a later endpoint streams follows.
    pub(super) fn is_closing_early(&self, n: usize, to: usize) -> bool {
        self.workers[n].flushes.iter().any(|flush| flush.closes && flush.limited && flush.of == Some(to))
    }

    /// Cancels the closes of endpoints of `n` to `to`: they would count as endpoints to the peer.
    fn cancel_closes(&mut self, n: usize, to: usize) {
        for flush in self.workers[n].flushes.iter_mut().filter(|flush| flush.closes && flush.of == Some(to)) {
            flush.cancelled |= flush.request.as_ref().is_some_and(|request| request.cancel());
        }
    }

    /// Records that `n` cannot tell whether its writes to `to` over a failed NIC arrived.
    fn mark_uncertain(&mut self, n: usize, to: usize) -> Result<(), Failed> {
        if !self.has_lost_nic(n, to) && !self.params.failing() {
            return Err(self.fail(format!("worker {n} is unsure of {to}, and no NIC was lost")));
        }
        self.trace.record(&[54, n as u64, to as u64], format_args!("{}: {n} is unsure of {to}", self.step));
        self.uncertain.insert((n, to));
        self.forget_writes(n, to);
        Ok(())
    }

    /// Whether operations of `n` on the memory of `to` may fail though the pair is not lost.
    pub(super) fn is_uncertain(&self, n: usize, to: usize) -> bool {
        self.is_lost(n, to) || self.uncertain.contains(&(n, to))
    }

    /// Disconnects worker `n`, whose device failed a loopback request, from all senders.
    fn lose_all_senders(&mut self, n: usize) {
        for other in (0..self.workers.len()).filter(|other| *other != n) {
            if !self.is_lost(n, other) {
                self.disconnect(n, other);
            }
        }
    }

    /// Whether a peer of `n` is only a further NIC of worker `who`.
    fn is_rail(&self, n: usize, who: usize, peer: PeerId) -> bool {
        let sim_worker = &self.workers[n];
        let first = self.workers[who].first_gid().map(|gid| gid.0);
        let is_first =
            sim_worker.worker.diagnostics().peer_view(peer).is_none_or(|view| Some(view.addr.gid) == first);
        let is_met_by = sim_worker.eps[who].as_ref().is_some_and(|ep| ep.peer() == peer);
        !is_first && !is_met_by && !sim_worker.peers.contains_key(&peer)
    }

    pub(super) fn has_lost_nic(&self, n: usize, who: usize) -> bool {
        self.workers[n].nic_down || self.workers[who].nic_down
    }

    pub(super) fn fail_nic(&mut self) {
        let living: Vec<_> =
            self.living().into_iter().filter(|n| self.workers[*n].nics().len() > 1).collect();
        if living.is_empty() {
            return;
        }
        let n = living[self.scope_rng.below(living.len() as u64) as usize];
        let nic = self.scope_rng.below(self.params.nics as u64) as usize;
        self.trace
            .record(&[53, n as u64, nic as u64], format_args!("{}: NIC {nic} of {n} goes down", self.step));
        self.workers[n].nics().nth(nic).into_iter().for_each(Device::take_down);
        for sibling in self.params.context_of(n) {
            self.workers[sibling].nic_down = true;
        }
        self.outcome.nic_down += 1;
    }

    /// Whether an unconfirmed write of `n` may have met revoked memory of `who`.
    fn has_unconfirmed_write(&self, n: usize, who: usize) -> bool {
        self.workers[n].revocable.unconfirmed_to.contains(&who) && self.workers[who].revocable.any_revoked()
    }

    /// Whether a flush of `n` with `of`, or with everybody, may report such a write.
    pub(super) fn may_report_refusal(&self, n: usize, of: Option<usize>) -> bool {
        let all = 0..self.workers.len();
        all.filter(|who| of.is_none_or(|of| of == *who)).any(|who| self.has_unconfirmed_write(n, who))
    }

    pub(super) fn disconnect(&mut self, a: usize, b: usize) {
        self.disconnected.insert(pair(a, b));
        self.outcome.disconnected += 1;
        self.trace.record(&[51, a as u64, b as u64], format_args!("{}: {a} has lost {b}", self.step));
        for (n, other) in [(a, b), (b, a)] {
            self.workers[n].model.sender_lost(other, self.step);
            self.forget_rma(other, n);
        }
    }

    pub(super) fn close_by_force(&mut self, n: usize, to: usize) -> Result<(), Failed> {
        if self.workers[n].eps[to].is_none() && !self.reconnect(n, to)? {
            return Ok(());
        }
        self.close_stream(to, n);
        self.workers[n].closing_early.insert(to);
        self.workers[n].force_closed.insert(to);
        let Some(ep) = self.workers[n].eps[to].take() else { return Err(self.fail("just connected")) };
        self.trace.record(&[52, n as u64, to as u64], format_args!("{}: {n} gives {to} up", self.step));
        let request = ep.close(CloseMode::Force);
        if !request.is_done() {
            return Err(self.fail(format!("worker {n}: a close by force to {to} takes time")));
        }
        self.outcome.force_closed += 1;
        self.take_peer_failures(n)?;
        // Where another endpoint to the peer is being closed, only this one's operations have ended.
        if !self.is_lost(n, to) {
            self.disconnect(n, to);
        }
        Ok(())
    }

    /// Closes the other ends of forced closes; answers whether there were any. A side that still waits for
    /// something closes again, once until the job is idle: these are the `again`. Not while streams are drawn
    /// from, which a close ends, so that they would be drawn from again.
    pub(super) fn close_disconnected(
        &mut self,
        again: &mut BTreeSet<(usize, usize)>,
    ) -> Result<bool, Failed> {
        let mut any = false;
        for (a, b) in self.disconnected.clone() {
            for (n, other) in [(a, b), (b, a)] {
                if self.is_dead(n) {
                    continue;
                }
                let is_first = self.workers[n].force_closed.insert(other);
                let waits = || {
                    self.workers[n].waits_for(other)
                        || self.draws_from(other, n)
                        || self.streams_in_vain(n, other)
                };
                if is_first || !self.drains_streams && waits() && again.insert((n, other)) {
                    self.cancel_closes(n, other);
                    self.close_by_force(n, other)?;
                    any = true;
                }
            }
        }
        Ok(any)
    }
}
