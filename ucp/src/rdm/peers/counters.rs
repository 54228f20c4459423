//! Counters of short messages by peer: two 16-bit numbers each way, next to what every packet reads of the
//! peer. Overflow is carried to the wide counters of engine and peer; readers get the sum. Only used by
//! `protocols::eager` and `Receives::recv_short`.

use crate::rdm::ids::PeerId;
use crate::rdm::peers::Peers;
use crate::rdm::protocol::Protocol;
use crate::rdm::stats::{Counters, Traffic};
use crate::rdm::stats::{PeerStats, RdmStats};
use crate::wire::PktType;

/// Short tagged messages one way, modulo 2^16.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(in crate::rdm) struct ShortCounter {
    msgs: u16,
    bytes: u16,
}

/// Short counters of both directions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(in crate::rdm) struct ShortCounters {
    pub sent: ShortCounter,
    pub received: ShortCounter,
}

/// An amount to add to the wide counters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::rdm) struct Carry {
    msgs: u64,
    bytes: u64,
}

/// Amount by which a 16-bit counter drops when it wraps.
const CARRY: u64 = 1 << 16;

impl ShortCounter {
    /// Counts a message. Returns the carry if a number has overflowed.
    // HOT
    #[inline(always)]
    pub(in crate::rdm) fn count(&mut self, len: usize) -> Option<Carry> {
        self.msgs = self.msgs.wrapping_add(1);
        let bytes = self.bytes as usize + len;
        self.bytes = bytes as u16;
        let (msgs, bytes) = (if self.msgs == 0 { CARRY } else { 0 }, bytes as u64 & !(CARRY - 1));
        (msgs | bytes != 0).then_some(Carry { msgs, bytes })
    }

    /// Takes back the last message, of `len` bytes.
    pub(in crate::rdm) fn undo(&mut self, len: usize) {
        self.msgs = self.msgs.wrapping_sub(1);
        self.bytes = self.bytes.wrapping_sub(len as u16);
    }

    fn sum(self) -> Carry {
        Carry { msgs: self.msgs.into(), bytes: self.bytes.into() }
    }
}

/// Packet type under which short messages are counted.
const TY: usize = PktType::EAGER_TAGRTM.0 as usize;
const EAGER: usize = Protocol::Eager as usize;

impl RdmStats {
    fn add_sent(&mut self, sum: Carry) {
        self.tx_pkts[TY] += sum.msgs;
        self.sent[EAGER].msgs += sum.msgs;
        self.sent[EAGER].bytes += sum.bytes;
    }

    fn add_received(&mut self, sum: Carry) {
        self.rx_pkts[TY] += sum.msgs;
        self.received[EAGER].msgs += sum.msgs;
        self.received[EAGER].bytes += sum.bytes;
    }

    fn add(&mut self, ShortCounters { sent, received }: ShortCounters) {
        self.add_sent(sent.sum());
        self.add_received(received.sum());
    }
}

impl PeerStats {
    fn add_sent(&mut self, sum: Carry) {
        self.tx_pkts += sum.msgs;
        self.tx_bytes += sum.bytes;
    }

    fn add_received(&mut self, sum: Carry) {
        self.rx_pkts += sum.msgs;
        self.rx_bytes += sum.bytes;
    }
}

impl Peers {
    /// Returns the traffic with one peer since it was added.
    pub fn peer_stats(&self, peer: PeerId) -> PeerStats {
        let mut stats = self.counters.by_peer.get(peer);
        let ShortCounters { sent, received } = self.table.short(peer);
        stats.add_sent(sent.sum());
        stats.add_received(received.sum());
        stats
    }

    /// Returns all counters since the engine was made. Goes over all peers.
    pub fn stats(&self) -> RdmStats {
        let mut all = self.counters.stats.clone();
        self.table.all_short_counters().for_each(|short| all.add(short));
        all
    }
}

/// One-sided operations served for peers, in order of
/// [`RmaProtocol::ALL`](crate::rdm::RmaProtocol::ALL).
pub fn served(peers: &Peers) -> &[Traffic] {
    &peers.counters.stats.served
}

impl Counters {
    /// Adds a carry of messages sent to the wide counters.
    #[cold]
    #[inline(never)]
    pub(in crate::rdm) fn carry_sent(&mut self, to: PeerId, sum: Carry) {
        self.stats.add_sent(sum);
        self.by_peer.of(to).add_sent(sum);
    }

    /// Adds a carry of messages received to the wide counters.
    #[cold]
    #[inline(never)]
    pub(in crate::rdm) fn carry_received(&mut self, from: PeerId, sum: Carry) {
        self.stats.add_received(sum);
        self.by_peer.of(from).add_received(sum);
    }

    /// Resets the counters of a slot for another peer; the engine keeps the sum of the old one.
    pub(in crate::rdm) fn forget(&mut self, peer: PeerId, before: ShortCounters) {
        self.stats.add(before);
        self.by_peer.forget(peer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overflow_is_carried() {
        let mut counter = ShortCounter { msgs: u16::MAX - 1, bytes: u16::MAX - 9 };
        assert_eq!(counter.count(9), None);
        assert_eq!(counter.count(3), Some(Carry { msgs: CARRY, bytes: CARRY }));
        assert_eq!(counter.sum(), Carry { msgs: 0, bytes: 2 });
        assert_eq!(counter.count(5 << 16 | 7), Some(Carry { msgs: 0, bytes: 5 << 16 }));
        assert_eq!(counter.sum(), Carry { msgs: 1, bytes: 9 });
        counter.undo(7);
        assert_eq!(counter.sum(), Carry { msgs: 0, bytes: 2 });
    }
}
