//! Looks after peers that say nothing: a peer that died after the last packet to it was accepted would be waited for
//! for ever. Called by progress when the clock was read; asks the transports, decides nothing itself.

use std::time::Duration;

use ucs::time::Nanos;
use uct::api::{Ep as _, Error as WireError, Refused};

use crate::lane::{comp_of_check, fault_of};
use crate::rdm::io::PeerId;

use crate::api::core::worker_core::Core;

/// Most peers asked in one turn; the next turn goes on with the next ones.
const CHECKS: usize = 128;

/// How soon HANDSHAKEs that something waits for are called for again, whatever keep-alive is set to: one may have been lost at
/// the peer, which then forgets it until it hears of us, or the peer may be lost, which only a packet to it shows.
const CALL_AGAIN: Duration = Duration::from_secs(1);
/// The same after many times in vain: each wait is twice the one before. The peer lives, but makes no progress.
const CALL_SELDOM: Duration = Duration::from_secs(64);

/// When to look, and how far the last look came.
pub(crate) struct Alive {
    /// `None`: never.
    every: Option<Duration>,
    next: Nanos,
    /// When to call for HANDSHAKEs again, and how long after that for the next time.
    call: Nanos,
    pace: Duration,
    at: usize,
    /// Peers asked by [`Core::check_peers`] in this turn.
    asked: usize,
}

impl Alive {
    /// Looks `every` so often; never if that is zero.
    pub(crate) fn new(every: Duration, now: Nanos) -> Alive {
        let every = (!every.is_zero()).then_some(every);
        let next = every.map_or(Nanos::NEVER, |every| now + every);
        Alive { every, next, call: now + CALL_AGAIN, pace: CALL_AGAIN, at: 0, asked: 0 }
    }

    /// Whether it is time for either.
    pub(crate) fn is_due(&self, now: Nanos) -> bool {
        now >= self.next.min(self.call)
    }

    /// When peers are to be asked; `None` if never.
    pub(crate) fn due(&self) -> Option<Nanos> {
        self.every.map(|_| self.next)
    }

    /// How long until the next turn, so that each of so many peers is asked once in an interval.
    fn turn(every: Duration, peers: usize) -> Duration {
        // No more than the peer numbers that there are.
        every / (peers.div_ceil(CHECKS).max(1) as u32)
    }

    /// When HANDSHAKEs are to be called for.
    pub(crate) fn call(&self) -> Nanos {
        self.call
    }
}

impl Core {
    /// Calls for the HANDSHAKEs that something waits for once more, if it is time.
    // [M10.2]
    pub(crate) fn call_again(&mut self, now: Nanos) {
        if now < self.alive.call {
            return;
        }
        let mut awaited: Vec<PeerId> = self.engine.awaited_handshakes().collect();
        awaited.sort_unstable();
        awaited.dedup();
        self.alive.pace = match awaited.is_empty() {
            true => CALL_AGAIN,
            false => (self.alive.pace * 2).min(CALL_SELDOM),
        };
        self.alive.call = now + self.alive.pace;
        let (engine, mut wire, _) = self.split();
        for peer in awaited.into_iter().take(CHECKS) {
            if !engine.send_keepalive(&mut wire, peer) {
                return;
            }
        }
    }

    /// Asks the transports whether peers still live, if it is time. An answer that comes later comes as the endpoint's
    /// failure.
    pub(crate) fn look_after_peers(&mut self, now: Nanos) {
        let Some(every) = self.alive.every.filter(|_| now >= self.alive.next) else { return };
        let peers = self.paths.slots();
        self.alive.next = now + Alive::turn(every, peers);
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
            return engine.send_keepalive(&mut wire, peer);
        }
        match path.ep.check(comp_of_check(peer)) {
            Ok(_) => return true,
            Err(Refused::NoResource) => return false,
            Err(Refused::Failed(WireError::Unsupported(_))) => {
                let (engine, mut wire, _) = self.split();
                return engine.send_keepalive(&mut wire, peer);
            }
            Err(Refused::Failed(e)) => {
                let (engine, mut wire, _) = self.split();
                if !engine.fail_over(&mut wire, peer, fault_of(e)) {
                    engine.on_keepalive_error(&mut wire, peer, fault_of(e));
                }
            }
        }
        true
    }
}
