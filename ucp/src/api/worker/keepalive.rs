//! Keepalive: asks transports whether silent peers that operations wait for still live.

use ucs::time::Nanos;
use uct::api::{Ep as _, Error as WireError, Op, Refused};

use crate::api::core::ep_state::Rails;
use crate::api::core::keepalive::{HANDSHAKE_RETRY_MAX, HANDSHAKE_RETRY_MIN, KeepaliveTimer, MAX_CHECKS};
use crate::api::core::worker_core::WorkerCore;

use crate::lane::fault_of;
use crate::rdm::io::{LaneId, PeerId};
use crate::rdm::{Conversation, notify_lost_peers};
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
        notify_lost(self);
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
        notify_lost(self);
        self.keepalive.checked_now = 0;
        true
    }

    /// Checks the lanes of a peer. Returns false if resources ran out for the one that it uses. A further
    /// lane without resources is checked the next time: repeating the first check would use them up again.
    fn check_peer(&mut self, peer: PeerId) -> bool {
        let peers = self.engine.peers();
        let Some(view) = peers.info(peer).filter(|_| self.peer_eps.get(peer).is_some()) else { return true };
        // After a failover, the lane in use is a further one.
        let is_other = |lane: &LaneId| peers.lane_info(*lane).is_some_and(|lane| lane.wire != view.wire);
        let further: Rails = peers.further_lanes(peer).iter().copied().filter(is_other).collect();
        if !self.check_lane(peer.into()) {
            return false;
        }
        for lane in further {
            self.check_lane(lane);
        }
        true
    }

    fn check_lane(&mut self, lane: LaneId) -> bool {
        let Some(path) = self.peer_eps.on_lane(lane) else { return true };
        // A device would answer for its process: before the handshake, and after a close, ask the process.
        let peers = self.engine.peers();
        let waits =
            |peer: PeerId| peers.awaits_handshake(peer) || Conversation::with(peers, peer).awaits_close;
        let asks_process = lane.first_of().is_some_and(waits);
        let checked = match asks_process {
            true => Err(Refused::Failed(WireError::Unsupported(Op::Check))),
            false => path.ep.check(CompletionToken::LaneCheck(lane).comp()),
        };
        match checked {
            Ok(_) => return true,
            Err(Refused::NoResource) => return false,
            Err(Refused::Failed(WireError::Unsupported(_))) => {
                let (engine, mut wire, _) = self.split();
                return engine.send_keepalive(&mut wire, lane);
            }
            Err(Refused::Failed(e)) => {
                let (engine, mut wire, _) = self.split();
                engine.on_keepalive_error(&mut wire, lane, fault_of(e));
            }
        }
        true
    }
}

fn notify_lost(core: &mut WorkerCore) {
    let (engine, mut wire, _) = core.split();
    notify_lost_peers(engine.peers_mut(), &mut wire);
}
