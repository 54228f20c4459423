//! Looks after peers that say nothing: a peer that died after the last packet to it was accepted would be waited for
//! for ever. Called by progress when the clock was read; asks the transports, decides nothing itself.

use std::time::Duration;

use ucs::time::Nanos;
use uct::api::{Ep as _, Error as WireError, Refused};

use crate::lane::{comp_of_check, fault_of};
use crate::rdm::io::PeerId;

use super::core::Core;

/// Peers asked in one turn; the next turn goes on with the next ones.
const CHECKS: usize = 128;

/// When to look, and how far the last look came.
pub(crate) struct Alive {
    /// `None`: never.
    every: Option<Duration>,
    next: Nanos,
    at: usize,
    /// Peers asked by [`Core::check_peers`] in this turn.
    asked: usize,
}

impl Alive {
    /// Looks `every` so often; never if that is zero.
    pub(crate) fn new(every: Duration, now: Nanos) -> Alive {
        Alive { every: (!every.is_zero()).then_some(every), next: now + every, at: 0, asked: 0 }
    }

    /// When it is time; `None` if never.
    pub(crate) fn due(&self) -> Option<Nanos> {
        self.every.map(|_| self.next)
    }
}

impl Core {
    /// Asks the transports whether peers still live, if it is time. An answer that comes later comes as the endpoint's
    /// failure.
    pub(crate) fn look_after_peers(&mut self, now: Nanos) {
        let Some(every) = self.alive.every.filter(|_| now >= self.alive.next) else { return };
        self.alive.next = now + every;
        let peers = self.paths.slots();
        for _ in 0..CHECKS.min(peers) {
            let peer = (self.alive.at + 1) % peers;
            if !self.check_peer(PeerId(peer as u32)) {
                return;
            }
            self.alive.at = peer;
        }
    }

    /// Asks of every peer that there is a way to: also those that have introduced themselves by a message, the rest of
    /// which may never come. False: there was no room to ask all; the next call goes on with the others.
    pub(crate) fn check_peers(&mut self) -> bool {
        while self.alive.asked < self.paths.slots() {
            if !self.check_peer(PeerId(self.alive.asked as u32)) {
                return false;
            }
            self.alive.asked += 1;
        }
        self.alive.asked = 0;
        true
    }

    /// Whether there was room to ask.
    fn check_peer(&mut self, peer: PeerId) -> bool {
        let Some(path) = self.paths.get(peer) else { return true };
        // A device would answer for a peer that has not: that is asked itself.
        if self.engine.awaits_handshake(peer) {
            let (engine, mut wire, _) = self.split();
            return engine.nudge(&mut wire, peer);
        }
        match path.ep.check(comp_of_check(peer)) {
            Ok(_) => return true,
            Err(Refused::NoResource) => return false,
            Err(Refused::Failed(WireError::Unsupported(_))) => {
                let (engine, mut wire, _) = self.split();
                return engine.nudge(&mut wire, peer);
            }
            Err(Refused::Failed(e)) => {
                let (engine, mut wire, _) = self.split();
                engine.on_peer_dead(&mut wire, peer, fault_of(e));
            }
        }
        true
    }
}
