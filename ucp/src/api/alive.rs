//! Looks after peers that say nothing: a peer that died after the last packet to it was accepted would be waited for
//! for ever. Called by progress when the clock was read; asks the transports, decides nothing itself.

use std::rc::Weak;
use std::time::Duration;

use ucs::time::Nanos;
use uct::api::{Comp, Ep as _, Error as WireError, Refused};

use crate::lane::fault_of;

use super::core::Core;

/// Endpoints asked in one turn; the next turn goes on with the next ones.
const CHECKS: usize = 128;

/// When to look, and how far the last look came.
pub(crate) struct Alive {
    /// `None`: never.
    every: Option<Duration>,
    next: Nanos,
    at: usize,
}

impl Alive {
    /// Looks `every` so often; never if that is zero.
    pub(crate) fn new(every: Duration, now: Nanos) -> Alive {
        Alive { every: (!every.is_zero()).then_some(every), next: now + every, at: 0 }
    }

    /// When it is time; `None` if never.
    pub(crate) fn due(&self) -> Option<Nanos> {
        self.every.map(|_| self.next)
    }
}

impl Core {
    /// Asks the transports whether the peers of endpoints still live, if it is time. An answer that comes later comes
    /// as the endpoint's failure.
    pub(crate) fn look_after_peers(&mut self, now: Nanos) {
        let Some(every) = self.alive.every.filter(|_| now >= self.alive.next) else { return };
        self.alive.next = now + every;
        self.eps.retain(|ep| ep.strong_count() > 0);
        for _ in 0..CHECKS.min(self.eps.len()) {
            self.alive.at = (self.alive.at + 1) % self.eps.len();
            let Some(ep) = Weak::upgrade(&self.eps[self.alive.at]) else { continue };
            let Some(path) = self.paths.get(ep.peer) else { continue };
            match path.ep.check(Comp::None) {
                // No resource: packets are on their way, and they will tell.
                Ok(_) | Err(Refused::NoResource | Refused::Failed(WireError::Unsupported(_))) => {}
                Err(Refused::Failed(e)) => {
                    let (engine, mut wire, _) = self.split();
                    engine.on_peer_fault(&mut wire, ep.peer, fault_of(e));
                }
            }
        }
    }
}
