//! Back-off from receivers that are not ready (RNR): returned packets are sent again at once, then after a
//! delay that doubles (RDM v4, wire facts 12). Meanwhile nothing else goes to that peer. A retry is one burst
//! at most, and the next waits until all of it is decided, which bounds the load of an unresponsive peer.

use ucs::time::Nanos;

use std::time::Duration;

use crate::rdm::Engine;
use crate::rdm::flow::retry::{BackOff, ResendTo};
use crate::rdm::ids::{LaneId, PeerId, TxToken};
use crate::rdm::io::{Flushed, NotPosted, Wire};
use crate::rdm::peers::Peers;
use crate::rdm::peers::lane::Lane;
use crate::rdm::peers::peer::Peer;
use crate::rdm::peers::state::PeerFlags;
use crate::rdm::pending::Pending;
use crate::rdm::protocols::zcopy_recv;
use crate::rdm::protocols::zcopy_recv::ZcopyRecv;
use crate::rdm::status::PeerError;
use crate::wire::{PktType, peek_type};

impl Engine {
    /// Returns the parts that take back packets to receivers that were not ready.
    #[inline]
    pub fn returns(&mut self) -> Returns<'_> {
        Returns { zcopy_recv: &mut self.zcopy_recv, peers: &mut self.peers, pending: &mut self.pending }
    }
}

/// The parts of an engine that take back packets to receivers that were not ready.
pub struct Returns<'a> {
    zcopy_recv: &'a mut Option<Box<ZcopyRecv>>,
    peers: &'a mut Peers,
    pending: &'a mut Pending,
}

impl Returns<'_> {
    /// Takes back a packet that the peer had no receive for (RNR). It is sent again before anything new. A
    /// packet to a failed peer is dropped.
    // [M10.5]
    #[cold]
    pub fn on_rnr(&mut self, now: Nanos, to: impl Into<LaneId>, packet: &[u8]) {
        self.pending.on_returned(self.peers, now, to.into(), packet, ResendTo::MainQp);
    }

    /// Takes back a message without a header, as [`Returns::on_rnr`] does.
    // [M5.11]
    #[cold]
    pub fn on_rnr_user_qp(&mut self, now: Nanos, to: PeerId, data: &[u8], imm: Option<u32>) {
        if !zcopy_recv::forward_again(self.zcopy_recv, self.peers, self.pending, now, to) {
            self.pending.on_returned(self.peers, now, to.into(), data, ResendTo::UserQp(imm));
        }
    }

    /// Continues the back-off of `to`: all that was sent to it before [`Wire::flush_lane`] is delivered or
    /// handed back.
    #[cold]
    pub fn on_flushed(&mut self, now: Nanos, to: impl Into<LaneId>) {
        self.pending.on_flushed(self.peers, now, to.into());
    }
}

/// Returns the packets that have come back from a lane.
fn backoff_of(peers: &mut Peers, id: LaneId) -> Option<&mut BackOff> {
    match id.first_of() {
        Some(peer) => Some(&mut peers.table.get_mut(peer)?.queue_mut().backoff),
        None => Some(&mut peers.table.lanes.get_mut(id)?.backoff),
    }
}

fn resend_to<W: Wire>(e: &mut Engine, w: &mut W, now: Nanos, to: LaneId) -> usize {
    let mut sent = 0;
    let peer = to.first_of();
    let user_qp = peer.and_then(|peer| e.peers.table[peer].queue.as_ref()?.user_qp);
    for _ in 0..e.peers.cfg.burst {
        let Some(backoff) = backoff_of(&mut e.peers, to) else { break };
        let Some((held, target)) = backoff.packets.front() else { break };
        let bytes = held.bytes();
        let fill = |slot: &mut [u8]| {
            slot[..bytes.len()].copy_from_slice(bytes);
            bytes.len()
        };
        let posted = match (*target, peer.zip(user_qp)) {
            (ResendTo::MainQp, _) => w.send(to, bytes.len(), TxToken::Packet, fill),
            (ResendTo::UserQp(imm), Some((to, qp))) => w.send_to_user_qp(to, qp, bytes.len(), imm, fill),
            (ResendTo::UserQp(_), None) => Err(NotPosted::Peer(PeerError::Unreachable)),
        };
        match posted {
            Ok(_) => {
                if let Some((held, _)) = backoff.packets.pop_front() {
                    e.pending.held_packets.release(held);
                }
                e.peers.counters.stats.rare.sent_again += 1;
                sent += 1;
            }
            Err(NotPosted::Full) => {
                e.peers.counters.stats.rare.full += 1;
                break;
            }
            Err(NotPosted::Peer(fault)) => {
                if !peer.is_some_and(|peer| e.try_failover(w, peer, fault)) {
                    e.fail_peer(w, to, fault);
                }
                return sent;
            }
        }
    }
    if sent > 0 {
        if let Some(backoff) = backoff_of(&mut e.peers, to) {
            backoff.returned = Some(0);
        }
        if w.flush_lane(to) == Flushed::Now {
            e.returns().on_flushed(now, to);
        }
    }
    sent
}

/// Sends again to the peers whose delay is over. Returns the number of packets sent.
#[cold]
pub(in crate::rdm) fn resend_due<W: Wire>(e: &mut Engine, w: &mut W, now: Nanos) -> usize {
    let mut sent = 0;
    for n in (0..e.pending.backed_off.len()).rev() {
        // An error ends the back-off and removes the list entry.
        let Some(&to) = e.pending.backed_off.get(n) else { continue };
        let Some(backoff) = backoff_of(&mut e.peers, to) else { continue };
        let is_due = backoff.returned.is_none() && now >= backoff.until;
        if is_due && !zcopy_recv::forward_now(e, w, to) {
            sent += resend_to(e, w, now, to);
        }
    }
    sent
}

impl Pending {
    /// True if the engine needs exact times: some peer's delay is measured.
    // HOT
    #[inline(always)]
    pub fn needs_time(&self) -> bool {
        !self.backed_off.is_empty()
    }

    /// True if packets wait to be sent again, other than errors to peers closed by force.
    pub(in crate::rdm) fn is_any_backed_off(&self, peers: &Peers) -> bool {
        self.backed_off.iter().any(|&lane| peers.table.lane(lane).is_some_and(|lane| !lane.state.is_closed()))
    }

    /// True if packets to this peer (to any, if `None`) have come back and not been delivered since.
    pub fn is_backed_off(&self, peers: &Peers, peer: Option<PeerId>) -> bool {
        match peer {
            Some(id) => {
                // Errors to a peer closed by force do not count.
                let is_backed_off =
                    |lane: &Lane| lane.state.has(PeerFlags::BACKED_OFF) && !lane.state.is_closed();
                peers.table.get(id).is_some_and(|peer| {
                    let mut lanes = peer.lanes().iter().filter_map(|&lane| peers.table.lane(lane));
                    is_backed_off(peer) || lanes.any(is_backed_off)
                })
            }
            None => self.is_any_backed_off(peers),
        }
    }

    /// Returns the latest time of the next [`Engine::resume`], if there is one.
    pub fn next_deadline(&self, peers: &Peers) -> Option<Nanos> {
        let backoff = |&id: &LaneId| match id.first_of() {
            Some(peer) => peers.table[peer].queue.as_ref().map(|queue| &queue.backoff),
            None => peers.table.lanes.get(id).map(|lane| &lane.backoff),
        };
        let waiting = self.backed_off.iter().filter_map(backoff);
        waiting.filter(|backoff| backoff.returned.is_none()).map(|backoff| backoff.until).min()
    }

    pub(in crate::rdm) fn on_flushed(&mut self, peers: &mut Peers, now: Nanos, to: LaneId) {
        let retry = peers.cfg.retry;
        if peers.table.lane(to).is_none_or(|lane| !lane.state.has(PeerFlags::BACKED_OFF)) {
            return;
        }
        let Some(backoff) = backoff_of(peers, to) else { return };
        match backoff.returned.take() {
            None => {}
            Some(0) => {
                (backoff.delay, backoff.until) = (Duration::ZERO, now);
                if backoff.packets.is_empty() {
                    if let Some(lane) = peers.table.lane_mut(to) {
                        lane.state.remove(PeerFlags::BACKED_OFF);
                    }
                    self.backed_off.retain(|&lane| lane != to);
                    self.schedule(peers, to);
                }
            }
            Some(_) => {
                backoff.delay = retry.after(backoff.delay, &mut self.rng);
                backoff.until = now + backoff.delay;
            }
        }
    }

    fn queue_resend(&mut self, peers: &mut Peers, now: Nanos, to: LaneId, packet: &[u8], target: ResendTo) {
        let Some(lane) = peers.table.lane_mut(to) else { return };
        let first = !lane.state.has(PeerFlags::BACKED_OFF);
        lane.state.insert(PeerFlags::BACKED_OFF);
        let Some(backoff) = backoff_of(peers, to) else { return };
        backoff.packets.push_back((self.held_packets.copy(packet), target));
        if first {
            backoff.until = now;
            self.backed_off.push(to);
        }
    }

    /// Queues a packet that came back from a failed lane, before anything new, for the peer's current lane.
    #[cold]
    pub(in crate::rdm) fn resend_on_lane(&mut self, peers: &mut Peers, to: PeerId, packet: &[u8]) {
        peers.counters.stats.rare.resent_after_failover += 1;
        self.queue_resend(peers, Nanos(0), to.into(), packet, ResendTo::MainQp);
        self.schedule(peers, to);
    }

    pub(in crate::rdm) fn on_returned(
        &mut self,
        peers: &mut Peers,
        now: Nanos,
        to: LaneId,
        packet: &[u8],
        target: ResendTo,
    ) {
        let Some(lane) = peers.table.lane(to) else { return };
        // A peer closed by force still gets its errors.
        let error_types = [PktType::PEER_ERROR, PktType::HANDSHAKE];
        let is_error =
            target == ResendTo::MainQp && peek_type(packet).is_some_and(|ty| error_types.contains(&ty));
        // Also its messages: their order goes on.
        let is_kept = |peer: PeerId| peers.table.get(peer).is_some_and(Peer::may_reopen);
        let is_kept = is_error || to.first_of().is_some_and(is_kept);
        if lane.state.is_failed() && !(is_kept && lane.state.is_closed()) {
            self.resend_on_main_lane(peers, to, packet);
            return;
        }
        peers.counters.stats.rare.not_ready += 1;
        self.queue_resend(peers, now, to, packet, target);
        if let Some(returned) = backoff_of(peers, to).and_then(|backoff| backoff.returned.as_mut()) {
            *returned += 1;
        }
    }

    /// Ends the back-off of a lane that ends. Data of a further lane goes over the first one.
    pub(in crate::rdm) fn end_backoff(&mut self, peers: &mut Peers, to: LaneId) {
        let Some(lane) = peers.table.lane_mut(to).filter(|lane| lane.state.has(PeerFlags::BACKED_OFF)) else {
            return;
        };
        lane.state.remove(PeerFlags::BACKED_OFF);
        self.backed_off.retain(|&lane| lane != to);
        let backoff = backoff_of(peers, to).map(std::mem::take);
        for (held, _) in backoff.into_iter().flat_map(|backoff| backoff.packets) {
            self.resend_on_main_lane(peers, to, held.bytes());
            self.held_packets.release(held);
        }
    }
}
