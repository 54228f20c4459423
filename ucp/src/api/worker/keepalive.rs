//! Keepalive: asks transports whether silent peers that operations wait for still live.

use ucs::time::Nanos;
use uct::api::{Ep as _, Error as WireError, Refused};

use crate::api::core::keepalive::{HANDSHAKE_RETRY_MAX, HANDSHAKE_RETRY_MIN, KeepaliveTimer, MAX_CHECKS};
use crate::api::core::worker_core::WorkerCore;

use crate::lane::fault_of;
use crate::rdm::io::PeerId;
use crate::token::CompletionToken;

impl WorkerCore {
    // [M10.2]
    pub(crate) fn request_handshakes(&mut self, now: Nanos) {
        if now < self.keepalive.next_request {
            return;
        }
        let mut awaited: Vec<PeerId> = self.engine.awaited_handshakes().collect();
        awaited.sort_unstable();
        awaited.dedup();
        self.keepalive.request_delay = match awaited.is_empty() {
            true => HANDSHAKE_RETRY_MIN,
            false => (self.keepalive.request_delay * 2).min(HANDSHAKE_RETRY_MAX),
        };
        self.keepalive.next_request = now + self.keepalive.request_delay;
        let (engine, mut wire, _) = self.split();
        for peer in awaited.into_iter().take(MAX_CHECKS) {
            if !engine.send_keepalive(&mut wire, peer) {
                return;
            }
        }
    }

    /// Checks some peers, if due. Later answers arrive as endpoint failures.
    pub(crate) fn check_due_peers(&mut self, now: Nanos) {
        let Some(interval) = self.keepalive.interval.filter(|_| now >= self.keepalive.next_check) else {
            return;
        };
        let peers = self.peer_eps.slots();
        self.keepalive.next_check = now + KeepaliveTimer::check_delay(interval, peers);
        for _ in 0..MAX_CHECKS.min(peers) {
            let peer = (self.keepalive.last_checked + 1) % peers;
            if !self.check_peer(PeerId(peer as u32)) {
                return;
            }
            self.keepalive.last_checked = peer;
        }
    }

    /// Checks every connected peer. Returns false if resources ran out: the next call continues.
    pub(crate) fn check_peers(&mut self) -> bool {
        while self.keepalive.checked_now < self.peer_eps.slots() {
            if !self.check_peer(PeerId(self.keepalive.checked_now as u32)) {
                return false;
            }
            self.keepalive.checked_now += 1;
        }
        self.keepalive.checked_now = 0;
        true
    }

    /// Checks a peer. Returns false if resources ran out.
    fn check_peer(&mut self, peer: PeerId) -> bool {
        let Some(path) = self.peer_eps.get(peer) else { return true };
        // A device would answer for its process: before the handshake, ask the process.
        if self.engine.peers().awaits_handshake(peer) {
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
                engine.on_keepalive_error(&mut wire, peer, fault_of(e));
            }
        }
        true
    }
}
