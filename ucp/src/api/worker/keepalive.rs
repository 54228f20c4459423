//! Looks after peers that say nothing: a peer that died after the last packet to it was accepted would be waited for
//! for ever. Called by progress when the clock was read; asks the transports, decides nothing itself.

use ucs::time::Nanos;
use uct::api::{Ep as _, Error as WireError, Refused};

use crate::api::core::keepalive::{Alive, CALL_AGAIN, CALL_SELDOM, CHECKS};
use crate::api::core::worker_core::Core;

use crate::lane::fault_of;
use crate::rdm::io::PeerId;
use crate::token::CompletionToken;

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
        match path.ep.check(CompletionToken::PeerCheck(peer).comp()) {
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
