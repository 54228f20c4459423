//! Receivers that are not ready: packets that a device handed back are kept, tried again at once, and then after a time
//! that doubles (RDM v4, wire facts 12). Meanwhile nothing else goes to that peer; other peers go on.
//! Called by `lane` through the public methods, by `outgoing` when it is time, by `people` for peers that end.
//!
//! One try is at most a burst of packets, and the next waits until the device has decided about all of them: a peer that
//! takes nothing costs the wire no more than that, however much was sent to it before.

use std::collections::VecDeque;
use std::time::Duration;

use ucs::time::Nanos;

use crate::rdm::Engine;
use crate::rdm::io::{Flushed, NotPosted, PeerError, PeerId, TxToken, Wire};
use crate::rdm::peers::peer::{Peer, PeerFlags};
use crate::rdm::recv::held_packets::HeldBytes;
use crate::wire::PktType;

/// How long a receiver that is not ready is left alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RetryPolicy {
    /// The wait after the second try in vain; zero: drawn between 40 and 120 µs, as libfabric does.
    pub first_delay: Duration,
    /// The longest wait.
    pub max_delay: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        RetryPolicy { first_delay: Duration::ZERO, max_delay: Duration::from_secs(1) }
    }
}

impl RetryPolicy {
    /// Bounds of a first wait that is drawn, ns.
    const DRAWN: (u64, u64) = (40_000, 120_000);

    /// The wait after `before`; zero stands for the try that is made at once.
    pub(in crate::rdm) fn after(&self, before: Duration, rng: &mut u64) -> Duration {
        let next = match before {
            Duration::ZERO if self.first_delay.is_zero() => {
                let (least, most) = Self::DRAWN;
                Duration::from_nanos(least + draw(rng) % (most - least + 1))
            }
            Duration::ZERO => self.first_delay,
            before => before.saturating_mul(2),
        };
        next.min(self.max_delay)
    }
}

/// A step of a linear congruential generator: waits of several senders shall differ, no more.
fn draw(rng: &mut u64) -> u64 {
    *rng = rng.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *rng >> 33
}

/// Where something that came back goes again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ResendTo {
    /// A packet: to the peer's main queue pair.
    MainQp,
    /// A headerless message with this word: to its other one.
    UserQp(Option<u32>),
}

/// What has come back from one peer.
#[derive(Debug, Default)]
pub struct BackOff {
    /// In the order in which they came back.
    again: VecDeque<(HeldBytes, ResendTo)>,
    /// A try is under way: how many packets have come back since it began.
    tried: Option<u32>,
    /// The next try: not before this.
    pub(in crate::rdm) until: Nanos,
    /// The wait that ends then; zero for a try at once.
    wait: Duration,
}

impl Engine {
    /// A packet to `to` was accepted by the wire and could not be delivered, since the peer had no receive posted: it is
    /// sent again, and nothing new before it. A packet to a failed peer is forgotten.
    // [M10.5]
    #[cold]
    pub fn on_rnr(&mut self, now: Nanos, to: PeerId, packet: &[u8]) {
        self.on_returned(now, to, packet, ResendTo::MainQp);
    }

    /// As [`Engine::on_rnr`], for a headerless message and the word that went with it.
    // [M5.11]
    #[cold]
    pub fn on_rnr_user_qp(&mut self, now: Nanos, to: PeerId, data: &[u8], imm: Option<u32>) {
        if !self.forward_again(now, to) {
            self.on_returned(now, to, data, ResendTo::UserQp(imm));
        }
    }

    fn on_returned(&mut self, now: Nanos, to: PeerId, packet: &[u8], way: ResendTo) {
        let Some(peer) = self.peers.get(to) else { return };
        // Who was cut off, and is there, waits for what it is told.
        let told = [PktType::PEER_ERROR.0, PktType::HANDSHAKE.0];
        let told = way == ResendTo::MainQp && packet.first().is_some_and(|ty| told.contains(ty));
        if peer.flags.contains(PeerFlags::FAILED) && !(told && peer.flags.contains(PeerFlags::FORCE_CLOSED)) {
            self.resend_on_main_lane(to, packet);
            return;
        }
        self.stats.rare.not_ready += 1;
        self.queue_resend(now, to, packet, way);
        if let Some(came) = &mut self.peers[to].queue_mut().backoff.tried {
            *came += 1;
        }
    }

    /// A packet that came back from a way that is lost goes over the one that the peer takes now, before anything new.
    #[cold]
    pub(in crate::rdm) fn resend_on_lane(&mut self, to: PeerId, packet: &[u8]) {
        self.stats.rare.sent_elsewhere += 1;
        self.queue_resend(Nanos(0), to, packet, ResendTo::MainQp);
        self.schedule(to);
    }

    fn queue_resend(&mut self, now: Nanos, to: PeerId, packet: &[u8], way: ResendTo) {
        let held = self.held_packets.keep(packet);
        let peer = &mut self.peers[to];
        let first = !peer.flags.contains(PeerFlags::BACKED_OFF);
        peer.flags |= PeerFlags::BACKED_OFF;
        let back = &mut peer.queue_mut().backoff;
        back.again.push_back((held, way));
        if first {
            back.until = now;
            self.backed_off.push(to);
        }
    }

    /// All that was sent to `to` before [`Wire::flush_peer`] has been delivered or handed back.
    #[cold]
    pub fn on_peer_flushed(&mut self, now: Nanos, to: PeerId) {
        let retry = self.cfg.retry;
        if self.peers.get(to).is_none_or(|peer| !peer.flags.contains(PeerFlags::BACKED_OFF)) {
            return;
        }
        let back = &mut self.peers[to].queue_mut().backoff;
        match back.tried.take() {
            None => {}
            Some(0) => {
                (back.wait, back.until) = (Duration::ZERO, now);
                if back.again.is_empty() {
                    self.peers[to].flags.remove(PeerFlags::BACKED_OFF);
                    self.backed_off.retain(|&away| away != to);
                    self.schedule(to);
                }
            }
            Some(_) => {
                back.wait = retry.after(back.wait, &mut self.rng);
                back.until = now + back.wait;
            }
        }
    }

    /// Tries again at the peers whose time has come. Answers how many packets were sent.
    #[cold]
    pub(in crate::rdm) fn resend_due<W: Wire>(&mut self, w: &mut W, now: Nanos) -> usize {
        let mut sent = 0;
        for n in (0..self.backed_off.len()).rev() {
            // A fault ends a peer's back-off, and with it its place in the list.
            let Some(&to) = self.backed_off.get(n) else { continue };
            let back = &self.peers[to].queue_mut().backoff;
            if back.tried.is_none() && now >= back.until && !self.forward_now(w, to) {
                sent += self.resend_to(w, now, to);
            }
        }
        sent
    }

    fn resend_to<W: Wire>(&mut self, w: &mut W, now: Nanos, to: PeerId) -> usize {
        let mut sent = 0;
        for _ in 0..self.cfg.burst {
            let Some(queue) = &mut self.peers[to].queue else { break };
            let Some((held, way)) = queue.backoff.again.front() else { break };
            let bytes = held.bytes();
            let fill = |slot: &mut [u8]| {
                slot[..bytes.len()].copy_from_slice(bytes);
                bytes.len()
            };
            let posted = match (*way, queue.user_qp) {
                (ResendTo::MainQp, _) => w.send(to, bytes.len(), TxToken::NONE, fill),
                (ResendTo::UserQp(imm), Some(qp)) => w.send_to_user_qp(to, qp, bytes.len(), imm, fill),
                (ResendTo::UserQp(_), None) => Err(NotPosted::Peer(PeerError::Unreachable)),
            };
            match posted {
                Ok(_) => {
                    if let Some((held, _)) = queue.backoff.again.pop_front() {
                        self.held_packets.release(held);
                    }
                    self.stats.rare.sent_again += 1;
                    sent += 1;
                }
                Err(NotPosted::Full) => {
                    self.stats.rare.full += 1;
                    break;
                }
                Err(NotPosted::Peer(fault)) => {
                    if !self.try_failover(w, to, fault) {
                        self.fail_peer(w, to, fault);
                    }
                    return sent;
                }
            }
        }
        if sent > 0 {
            self.peers[to].queue_mut().backoff.tried = Some(0);
            if w.flush_peer(to) == Flushed::Now {
                self.on_peer_flushed(now, to);
            }
        }
        sent
    }

    /// The peer's end ends its back-off. What a further lane did not get to carry goes over the first.
    pub(in crate::rdm) fn end_backoff(&mut self, to: PeerId) {
        if self.peers[to].flags.contains(PeerFlags::BACKED_OFF) {
            self.peers[to].flags.remove(PeerFlags::BACKED_OFF);
            self.backed_off.retain(|&away| away != to);
            let back = self.peers[to].queue.as_mut().map(|queue| std::mem::take(&mut queue.backoff));
            for (held, _) in back.into_iter().flat_map(|back| back.again) {
                self.resend_on_main_lane(to, held.bytes());
                self.held_packets.release(held);
            }
        }
    }

    /// Whether packets to this peer (to anybody, if `None`) have come back and not been delivered since.
    pub fn is_backed_off(&self, peer: Option<PeerId>) -> bool {
        match peer {
            Some(id) => {
                // What one is told that was cut off is nobody's affair any more.
                let away = |peer: &Peer| {
                    peer.flags & (PeerFlags::BACKED_OFF | PeerFlags::FORCE_CLOSED) == PeerFlags::BACKED_OFF
                };
                let away = |id: PeerId| self.peers.get(id).is_some_and(away);
                away(id) || self.further_lanes(id).iter().any(|&lane| away(lane))
            }
            None => self.is_any_backed_off(),
        }
    }

    /// Whether anything waits to be tried again that is more than a word to who was cut off.
    pub(in crate::rdm) fn is_any_backed_off(&self) -> bool {
        self.backed_off.iter().any(|&away| !self.peers[away].flags.contains(PeerFlags::FORCE_CLOSED))
    }

    /// Whether times passed to the engine have to be exact: some peer's wait is measured. // HOT
    #[inline(always)]
    pub fn needs_time(&self) -> bool {
        !self.backed_off.is_empty()
    }

    /// When [`Engine::resume`] must be called at the latest, if ever.
    pub fn next_deadline(&self) -> Option<Nanos> {
        let waiting = self.backed_off.iter().filter_map(|&to| self.peers[to].queue.as_ref());
        waiting.filter(|queue| queue.backoff.tried.is_none()).map(|queue| queue.backoff.until).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_doubles_up_to_its_limit() {
        let mut rng = 1;
        let retry =
            RetryPolicy { first_delay: Duration::from_micros(50), max_delay: Duration::from_micros(300) };
        let mut wait = Duration::ZERO;
        let waits = [50, 100, 200, 300, 300].map(Duration::from_micros);
        for expected in waits {
            wait = retry.after(wait, &mut rng);
            assert_eq!(wait, expected);
        }
    }

    #[test]
    fn a_drawn_first_wait_lies_in_its_bounds_and_varies() {
        let (mut rng, retry) = (7, RetryPolicy::default());
        let waits: Vec<u128> = (0..1000).map(|_| retry.after(Duration::ZERO, &mut rng).as_micros()).collect();
        assert!(waits.iter().all(|wait| (40..=120).contains(wait)), "{waits:?}");
        assert!(waits.iter().any(|&wait| wait < 60) && waits.iter().any(|&wait| wait > 100));
        let most = RetryPolicy { max_delay: Duration::from_micros(10), ..retry };
        assert_eq!(most.after(Duration::ZERO, &mut rng).as_micros(), 10, "a limit below the bounds wins");
    }
}
