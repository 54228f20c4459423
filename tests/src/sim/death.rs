//! Who is lost to whom: workers that die without a word, endpoints closed by force or after a time, devices that fail a
//! request. What two have to do with each other must then end, well or with an error that says so; what they have to do
//! with others must not be touched. Called by `act` and `settle`; asked by everybody who looks at ends.
//!
//! EFA RDM has no packet that says goodbye: who has closed by force tells only of what is half done. The program of the
//! other side hears of it in some way of its own and closes too; here, when nothing else happens any more.

use super::Failed;
use super::node::Node;
use super::world::World;
use ucp::rdm::io::{Fault, PeerId};
use ucp::rdm::trace::Event;
use ucp::wire::Features;
use ucp::{Close, Error};

/// Workers that must be left.
const LEFT: usize = 2;

/// Two workers, in any order.
fn pair(a: usize, b: usize) -> (usize, usize) {
    (a.min(b), a.max(b))
}

impl World {
    /// Whether a worker has died.
    pub(super) fn is_dead(&self, n: usize) -> bool {
        self.nodes[n].dead
    }

    /// Whether these two have nothing to expect of each other any more.
    pub(super) fn is_lost(&self, a: usize, b: usize) -> bool {
        self.is_dead(a) || self.is_dead(b) || self.severed.contains(&pair(a, b))
    }

    /// Whether a worker has lost anybody.
    pub(super) fn has_losses(&self, n: usize) -> bool {
        (0..self.nodes.len()).any(|other| self.is_lost(n, other))
    }

    /// Whether a worker has lost anybody, or cannot say what it has written to somebody.
    pub(super) fn is_unsure_of_any(&self, n: usize) -> bool {
        (0..self.nodes.len()).any(|other| self.is_unsure(n, other))
    }

    /// Whether an error of an operation of `n` says that a peer is lost, and that one is.
    pub(super) fn is_bereaved(&self, n: usize, error: Error) -> bool {
        match error {
            Error::PeerGone(peer) | Error::Unreachable(peer) | Error::Aborted(peer, _) => {
                self.who(n, peer).is_some_and(|who| self.is_lost(n, who))
            }
            Error::Device(Some(peer), _) => {
                self.who(n, peer).is_some_and(|who| self.is_unplugged(n, who) || self.is_lost(n, who))
            }
            // It names nobody: what was given up here.
            // Who is given up may have died before: that is no loss of its own.
            Error::Cancelled => {
                let gave_up = self.nodes[n].giving_up.iter().any(|who| self.is_lost(n, *who));
                gave_up || self.parted_from(n).next().is_some()
            }
            // Who closes by force takes back what is being read. If it knows no READ_NACK, it cannot be asked to send.
            Error::Unsupported => {
                let deaf = |who: usize| self.nodes[who].withheld.contains(Features::READ_NACK);
                self.parted_from(n).any(deaf)
            }
            _ => false,
        }
    }

    /// Those of whom `n` has nothing to expect though they did not die then.
    fn parted_from(&self, n: usize) -> impl Iterator<Item = usize> {
        let other = move |&(a, b): &(usize, usize)| match (a == n, b == n) {
            (true, _) => Some(b),
            (_, true) => Some(a),
            _ => None,
        };
        self.severed.iter().filter_map(other)
    }

    /// Which worker a peer of `n` is: as messages have shown, or by its address.
    fn who(&self, n: usize, peer: PeerId) -> Option<usize> {
        let by_address = || {
            let addr = self.nodes[n].worker.peer_view(peer)?.addr;
            (0..self.nodes.len()).find(|who| Node::gids(*who, self.knobs.nics).any(|gid| gid.0 == addr.gid))
        };
        self.nodes[n].peers.get(&peer).copied().or_else(by_address)
    }

    /// Any worker, dead ones included: nobody knows that they are.
    pub(super) fn any_worker(&mut self) -> usize {
        self.rng.below(self.nodes.len() as u64) as usize
    }

    /// Those that live.
    pub(super) fn living(&self) -> Vec<usize> {
        (0..self.nodes.len()).filter(|n| !self.is_dead(*n)).collect()
    }

    /// One dies: with everything it had under way, and without a word.
    pub(super) fn kill_one(&mut self) {
        let living = self.living();
        if living.len() <= LEFT {
            return;
        }
        let victim = *self.rng.pick(&living);
        self.trace.tell(&[50, victim as u64], format_args!("{}: {victim} dies", self.step));
        Node::gids(victim, self.knobs.nics).for_each(|gid| self.fabric.kill(gid));
        self.nodes[victim].dead = true;
        self.outcome.died += 1;
        for n in self.living() {
            self.nodes[n].ledger.bereave(victim, self.step);
            self.forget_reach(victim, n);
        }
    }

    /// Has workers ask whether their peers are alive, as they do now and then by the clock; `asking` keeps those that had
    /// no room for it.
    pub(super) fn look_after_each_other(&mut self, asking: &mut Vec<usize>) {
        asking.retain(|n| !self.nodes[*n].worker.check_peers());
    }

    /// Takes note of the peers that worker `n` has lost, before anybody looks at what has ended.
    pub(super) fn note_losses(&mut self, n: usize) -> Result<(), Failed> {
        while let Some(event) = self.nodes[n].worker.take_event() {
            let (peer, fault, lost) = match event {
                Event::PeerFailed(peer, fault) => (peer, fault, true),
                Event::Unsure(peer, fault) => (peer, fault, false),
                _ => continue,
            };
            let Some(who) = self.who(n, peer) else {
                return Err(self.fail(format!("worker {n} has lost {peer:?}, whoever that is: {fault}")));
            };
            if who == n && self.is_in_place(n) && fault != Fault::Gone {
                self.go_deaf(n);
            }
            if self.is_lost(n, who) || self.is_rail(n, who, peer) {
                continue;
            }
            if !lost {
                self.be_unsure(n, who)?;
                continue;
            }
            let gave_up = self.nodes[n].giving_up.contains(&who);
            let excused = gave_up || self.is_unplugged(n, who) || self.was_hasty(n, who);
            if !self.knobs.failing() && !excused {
                return Err(self.fail(format!("worker {n} has lost {who}, who is alive: {fault}")));
            }
            self.sever(n, who);
        }
        Ok(())
    }

    /// What worker `n` was writing to `to` over a NIC that was lost is written, or not, and nobody can say: all else that they
    /// have to do with each other goes on.
    fn be_unsure(&mut self, n: usize, to: usize) -> Result<(), Failed> {
        if !self.is_unplugged(n, to) && !self.knobs.failing() {
            return Err(self.fail(format!("worker {n} is unsure of {to}, and no NIC was lost")));
        }
        self.trace.tell(&[54, n as u64, to as u64], format_args!("{}: {n} is unsure of {to}", self.step));
        self.unsure.insert((n, to));
        self.forget_writes(n, to);
        Ok(())
    }

    /// Whether what `n` reads of or writes to the memory of `to` may end with an error though they have not lost each other.
    pub(super) fn is_unsure(&self, n: usize, to: usize) -> bool {
        self.is_lost(n, to) || self.unsure.contains(&(n, to))
    }

    /// The device has failed a request of worker `n` to itself: what comes to it in packets is passed on no more, and who sends
    /// it does not know.
    fn go_deaf(&mut self, n: usize) {
        for other in (0..self.nodes.len()).filter(|other| *other != n) {
            if !self.is_lost(n, other) {
                self.sever(n, other);
            }
        }
    }

    /// Whether a peer of `n` is but a further NIC of worker `who`, which carries what it can and is missed by nobody.
    fn is_rail(&self, n: usize, who: usize, peer: PeerId) -> bool {
        let node = &self.nodes[n];
        let first = Node::gids(who, 1).next().map(|gid| gid.0);
        let is_first = node.worker.peer_view(peer).is_none_or(|view| Some(view.addr.gid) == first);
        let is_met_by = node.eps[who].as_ref().is_some_and(|ep| ep.peer() == peer);
        !is_first && !is_met_by && !node.peers.contains_key(&peer)
    }

    /// Whether one of the two has lost a NIC.
    pub(super) fn is_unplugged(&self, n: usize, who: usize) -> bool {
        self.nodes[n].unplugged || self.nodes[who].unplugged
    }

    /// A NIC of a worker goes down, the worker lives on.
    pub(super) fn unplug_one(&mut self) {
        // Whoever has one NIC would be as good as dead.
        let living: Vec<_> = self.living().into_iter().filter(|n| self.nodes[*n].nics.len() > 1).collect();
        if living.is_empty() {
            return;
        }
        let n = living[self.course.below(living.len() as u64) as usize];
        let nic = self.course.below(self.knobs.nics as u64) as usize;
        self.trace
            .tell(&[53, n as u64, nic as u64], format_args!("{}: NIC {nic} of {n} goes down", self.step));
        self.nodes[n].nics[nic].take_down();
        self.nodes[n].unplugged = true;
        self.outcome.unplugged += 1;
    }

    /// Whether a write of `n` that it did not wait for may have met memory that `who` had taken back: the device says so when
    /// there is nobody left to tell but the endpoint.
    fn was_hasty(&self, n: usize, who: usize) -> bool {
        self.nodes[n].loans.hasty.contains(&who) && self.nodes[who].loans.any_gone()
    }

    /// From now on two workers expect nothing of each other.
    pub(super) fn sever(&mut self, a: usize, b: usize) {
        self.severed.insert(pair(a, b));
        self.outcome.severed += 1;
        self.trace.tell(&[51, a as u64, b as u64], format_args!("{}: {a} has lost {b}", self.step));
        for (n, other) in [(a, b), (b, a)] {
            self.nodes[n].ledger.bereave(other, self.step);
            self.forget_reach(other, n);
        }
    }

    /// Worker `n` closes its endpoint to `to` by force: all they have to do with each other ends there at once.
    pub(super) fn give_up(&mut self, n: usize, to: usize) -> Result<(), Failed> {
        if self.nodes[n].eps[to].is_none() && !self.reconnect(n, to)? {
            return Ok(());
        }
        self.nodes[n].giving_up.insert(to);
        self.nodes[n].parted.insert(to);
        let Some(ep) = self.nodes[n].eps[to].take() else { return Err(self.fail("just connected")) };
        self.trace.tell(&[52, n as u64, to as u64], format_args!("{}: {n} gives {to} up", self.step));
        let request = ep.close(Close::Force);
        if !request.is_done() {
            return Err(self.fail(format!("worker {n}: a close by force to {to} takes time")));
        }
        self.outcome.forced += 1;
        self.note_losses(n)
    }

    /// Nothing moves: those that somebody has given up learn of it. Answers whether there were any.
    pub(super) fn part_for_good(&mut self) -> Result<bool, Failed> {
        let mut any = false;
        for (a, b) in self.severed.clone() {
            for (n, other) in [(a, b), (b, a)] {
                if !self.is_dead(n) && self.nodes[n].parted.insert(other) {
                    self.give_up(n, other)?;
                    any = true;
                }
            }
        }
        Ok(any)
    }
}
