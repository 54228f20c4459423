//! A worker that dies in the middle of a job: its device does nothing any more, and nobody is told. What the others had to
//! do with it must end, well or with an error that names it; what they have to do with each other must not be touched.
//! Called by `act`; asked by everybody who looks at ends.

use super::node::Node;
use super::world::World;
use ucp::Error;

/// Workers that must be left.
const LEFT: usize = 2;

impl World {
    /// Whether a worker has died.
    pub(super) fn is_dead(&self, n: usize) -> bool {
        self.nodes[n].dead
    }

    /// Whether an error of an operation of `n` says that a peer is lost, and that one has died.
    pub(super) fn is_bereaved(&self, n: usize, error: Error) -> bool {
        match error {
            Error::PeerGone(peer) | Error::Unreachable(peer) => {
                // Who never sent a message has no name here but its number.
                self.nodes[n].peers.get(&peer).map_or(self.outcome.died > 0, |who| self.is_dead(*who))
            }
            _ => false,
        }
    }

    /// Any worker, dead ones included: nobody knows that they are.
    pub(super) fn any_worker(&mut self) -> usize {
        self.dice.below(self.nodes.len() as u64) as usize
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
        let victim = *self.dice.pick(&living);
        self.trace.tell(&[50, victim as u64], format_args!("{}: {victim} dies", self.step));
        self.fabric.kill(Node::gid(victim));
        self.nodes[victim].dead = true;
        self.outcome.died += 1;
        for n in self.living() {
            self.nodes[n].ledger.bereave(victim);
        }
        self.forget_reach(victim);
    }

    /// Has workers ask whether their peers are alive, as they do now and then by the clock; `asking` keeps those that had
    /// no room for it.
    pub(super) fn look_after_each_other(&mut self, asking: &mut Vec<usize>) {
        asking.retain(|n| !self.nodes[*n].worker.check_peers());
    }
}
