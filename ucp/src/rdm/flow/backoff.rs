//! Back-off from receivers that are not ready (RNR): returned packets are sent again at once, then after a
//! delay that doubles (RDM v4, wire facts 12). Meanwhile nothing else goes to that peer. A retry is one burst
//! at most, and the next waits until all of it is decided, which bounds the load of an unresponsive peer.

use ucs::time::Nanos;

use std::time::Duration;

use crate::rdm::Engine;
use crate::rdm::flow::retry::ResendTo;
use crate::rdm::ids::{PeerId, TxToken};
use crate::rdm::io::{Flushed, NotPosted, Wire};
use crate::rdm::peers::Peers;
use crate::rdm::peers::peer::Peer;
use crate::rdm::peers::state::PeerFlags;
use crate::rdm::pending::Pending;
use crate::rdm::protocols::zcopy_recv;
use crate::rdm::protocols::zcopy_recv::ZcopyRecv;
use crate::rdm::status::PeerError;
use crate::wire::PktType;

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
    pub fn on_rnr(&mut self, now: Nanos, to: PeerId, packet: &[u8]) {
        self.pending.on_returned(self.peers, now, to, packet, ResendTo::MainQp);
    }

    /// Takes back a message without a header, as [`Returns::on_rnr`] does.
    // [M5.11]
    #[cold]
    pub fn on_rnr_user_qp(&mut self, now: Nanos, to: PeerId, data: &[u8], imm: Option<u32>) {
        if !zcopy_recv::forward_again(self.zcopy_recv, self.peers, self.pending, now, to) {
            self.pending.on_returned(self.peers, now, to, data, ResendTo::UserQp(imm));
        }
    }

    /// Continues the back-off of `to`: all that was sent to it before [`Wire::flush_peer`] is delivered or
    /// handed back.
    #[cold]
    pub fn on_flushed(&mut self, now: Nanos, to: PeerId) {
        let retry = self.peers.cfg.retry;
        if self.peers.table.get(to).is_none_or(|peer| !peer.state.has(PeerFlags::BACKED_OFF)) {
            return;
        }
        let backoff = &mut self.peers.table[to].queue_mut().backoff;
        match backoff.returned.take() {
            None => {}
            Some(0) => {
                (backoff.delay, backoff.until) = (Duration::ZERO, now);
                if backoff.packets.is_empty() {
                    self.peers.table[to].state.remove(PeerFlags::BACKED_OFF);
                    self.pending.backed_off.retain(|&peer| peer != to);
                    self.pending.schedule(self.peers, to);
                }
            }
            Some(_) => {
                backoff.delay = retry.after(backoff.delay, &mut self.pending.rng);
                backoff.until = now + backoff.delay;
            }
        }
    }
}

fn resend_to<W: Wire>(e: &mut Engine, w: &mut W, now: Nanos, to: PeerId) -> usize {
    let mut sent = 0;
    for _ in 0..e.peers.cfg.burst {
        let Some(queue) = &mut e.peers.table[to].queue else { break };
        let Some((held, target)) = queue.backoff.packets.front() else { break };
        let bytes = held.bytes();
        let fill = |slot: &mut [u8]| {
            slot[..bytes.len()].copy_from_slice(bytes);
            bytes.len()
        };
        let posted = match (*target, queue.user_qp) {
            (ResendTo::MainQp, _) => w.send(to, bytes.len(), TxToken::Packet, fill),
            (ResendTo::UserQp(imm), Some(qp)) => w.send_to_user_qp(to, qp, bytes.len(), imm, fill),
            (ResendTo::UserQp(_), None) => Err(NotPosted::Peer(PeerError::Unreachable)),
        };
        match posted {
            Ok(_) => {
                if let Some((held, _)) = queue.backoff.packets.pop_front() {
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
                if !e.try_failover(w, to, fault) {
                    e.fail_peer(w, to, fault);
                }
                return sent;
            }
        }
    }
    if sent > 0 {
        e.peers.table[to].queue_mut().backoff.returned = Some(0);
        if w.flush_peer(to) == Flushed::Now {
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
        let backoff = &e.peers.table[to].queue_mut().backoff;
        if backoff.returned.is_none() && now >= backoff.until && !zcopy_recv::forward_now(e, w, to) {
            sent += resend_to(e, w, now, to);
        }
    }
    sent
}

impl Pending {
    /// True if the engine needs exact times: some peer's delay is measured. // HOT
    #[inline(always)]
    pub fn needs_time(&self) -> bool {
        !self.backed_off.is_empty()
    }

    /// True if packets wait to be sent again, other than errors to peers closed by force.
    pub(in crate::rdm) fn is_any_backed_off(&self, peers: &Peers) -> bool {
        self.backed_off.iter().any(|&peer| !peers.table[peer].state.is_closed())
    }

    /// True if packets to this peer (to any, if `None`) have come back and not been delivered since.
    pub fn is_backed_off(&self, peers: &Peers, peer: Option<PeerId>) -> bool {
        match peer {
            Some(id) => {
                // Errors to a peer closed by force do not count.
                let is_backed_off =
                    |peer: &Peer| peer.state.has(PeerFlags::BACKED_OFF) && !peer.state.is_closed();
                let is_backed_off = |id: PeerId| peers.table.get(id).is_some_and(is_backed_off);
                is_backed_off(id) || peers.table.further_lanes(id).iter().any(|&lane| is_backed_off(lane))
            }
            None => self.is_any_backed_off(peers),
        }
    }

    /// Returns the latest time of the next [`Engine::resume`], if there is one.
    pub fn next_deadline(&self, peers: &Peers) -> Option<Nanos> {
        let waiting = self.backed_off.iter().filter_map(|&to| peers.table[to].queue.as_ref());
        waiting.filter(|queue| queue.backoff.returned.is_none()).map(|queue| queue.backoff.until).min()
    }

    pub(in crate::rdm) fn queue_resend(
        &mut self,
        peers: &mut Peers,
        now: Nanos,
        to: PeerId,
        packet: &[u8],
        target: ResendTo,
    ) {
        let held = self.held_packets.copy(packet);
        let peer = &mut peers.table[to];
        let first = !peer.state.has(PeerFlags::BACKED_OFF);
        peer.state.insert(PeerFlags::BACKED_OFF);
        let backoff = &mut peer.queue_mut().backoff;
        backoff.packets.push_back((held, target));
        if first {
            backoff.until = now;
            self.backed_off.push(to);
        }
    }

    /// Queues a packet that came back from a failed lane, before anything new, for the peer's current lane.
    #[cold]
    pub(in crate::rdm) fn resend_on_lane(&mut self, peers: &mut Peers, to: PeerId, packet: &[u8]) {
        peers.counters.stats.rare.sent_elsewhere += 1;
        self.queue_resend(peers, Nanos(0), to, packet, ResendTo::MainQp);
        self.schedule(peers, to);
    }

    pub(in crate::rdm) fn on_returned(
        &mut self,
        peers: &mut Peers,
        now: Nanos,
        to: PeerId,
        packet: &[u8],
        target: ResendTo,
    ) {
        let Some(peer) = peers.table.get(to) else { return };
        // A peer closed by force still gets its errors.
        let error_types = [PktType::PEER_ERROR.0, PktType::HANDSHAKE.0];
        let is_error =
            target == ResendTo::MainQp && packet.first().is_some_and(|ty| error_types.contains(ty));
        if peer.state.is_failed() && !(is_error && peer.state.is_closed()) {
            self.resend_on_main_lane(peers, to, packet);
            return;
        }
        peers.counters.stats.rare.not_ready += 1;
        self.queue_resend(peers, now, to, packet, target);
        if let Some(returned) = &mut peers.table[to].queue_mut().backoff.returned {
            *returned += 1;
        }
    }

    /// Ends the back-off of a peer that ends. Data of a further lane goes over the main one.
    pub(in crate::rdm) fn end_backoff(&mut self, peers: &mut Peers, to: PeerId) {
        if peers.table[to].state.has(PeerFlags::BACKED_OFF) {
            peers.table[to].state.remove(PeerFlags::BACKED_OFF);
            self.backed_off.retain(|&peer| peer != to);
            let backoff = peers.table[to].queue.as_mut().map(|queue| std::mem::take(&mut queue.backoff));
            for (held, _) in backoff.into_iter().flat_map(|backoff| backoff.packets) {
                self.resend_on_main_lane(peers, to, held.bytes());
                self.held_packets.release(held);
            }
        }
    }
}
