//! Keepalive: asks transports whether silent peers that operations wait for still live.

use ucs::time::Nanos;
use uct::api::{Ep as _, Error as WireError, Refused};

use crate::api::core::keepalive::{CALL_AGAIN, CALL_SELDOM, CHECKS, KeepaliveTimers};
use crate::api::core::worker_core::WorkerCore;

use crate::lane::fault_of;
use crate::rdm::io::PeerId;
use crate::token::CompletionToken;

impl WorkerCore {
    // [M10.2]
    pub(crate) fn call_again(&mut self, now: Nanos) {
        if now < self.keepalive.call {
            return;
        }
        let mut awaited: Vec<PeerId> = self.engine.awaited_handshakes().collect();
        awaited.sort_unstable();
        awaited.dedup();
        self.keepalive.pace = match awaited.is_empty() {
            true => CALL_AGAIN,
            false => (self.keepalive.pace * 2).min(CALL_SELDOM),
        };
        self.keepalive.call = now + self.keepalive.pace;
        let (engine, mut wire, _) = self.split();
        for peer in awaited.into_iter().take(CHECKS) {
            if !engine.send_keepalive(&mut wire, peer) {
                return;
            }
        }
    }

    /// Checks some peers, if due. Later answers arrive as endpoint failures.
    pub(crate) fn look_after_peers(&mut self, now: Nanos) {
        let Some(every) = self.keepalive.every.filter(|_| now >= self.keepalive.next) else { return };
        let peers = self.paths.slots();
        self.keepalive.next = now + KeepaliveTimers::turn(every, peers);
        for _ in 0..CHECKS.min(peers) {
            let peer = (self.keepalive.at + 1) % peers;
            if !self.check_peer(PeerId(peer as u32)) {
                return;
            }
            self.keepalive.at = peer;
        }
    }

    /// Checks every connected peer. Returns false if resources ran out: the next call continues.
    pub(crate) fn check_peers(&mut self) -> bool {
        while self.keepalive.asked < self.paths.slots() {
            if !self.check_peer(PeerId(self.keepalive.asked as u32)) {
                return false;
            }
            self.keepalive.asked += 1;
        }
        self.keepalive.asked = 0;
        true
    }

    /// Checks a peer. Returns false if resources ran out.
    fn check_peer(&mut self, peer: PeerId) -> bool {
        let Some(path) = self.paths.get(peer) else { return true };
        // A device would answer for its process: before the handshake, ask the process.
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
