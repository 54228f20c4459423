//! Short messages are counted for one peer at a time, and added to the counters of the engine and of that peer when
//! another one's turn comes: two additions a message instead of four and a look-up of the peer. Whoever reads counters
//! gets both. Called by `rooms::eager` for what takes its shortest way, and never by anybody else.

use super::Engine;
use super::io::PeerId;
use super::room::Row;
use super::stats::{PeerStats, RdmStats};
use crate::wire::PktType;

/// Short tagged messages to or from one peer that its counters do not have yet.
#[derive(Clone, Copy, Debug)]
struct Tally {
    peer: PeerId,
    msgs: u64,
    bytes: u64,
}

impl Tally {
    const EMPTY: Tally = Tally { peer: PeerId(u32::MAX), msgs: 0, bytes: 0 };

    #[inline(always)]
    fn add(&mut self, len: usize) {
        self.msgs += 1;
        self.bytes += len as u64;
    }

    /// To the packets and bytes of a peer, in this direction.
    fn add_to(&self, (pkts, bytes): (&mut u64, &mut u64)) {
        (*pkts, *bytes) = (*pkts + self.msgs, *bytes + self.bytes);
    }

    fn clear(&mut self) {
        *self = Tally { peer: self.peer, ..Tally::EMPTY };
    }
}

/// Both directions.
#[derive(Debug)]
pub(super) struct Tallies {
    sent: Tally,
    received: Tally,
}

/// What short messages are, to the counters.
const TY: usize = PktType::EAGER_TAGRTM.0 as usize;
const ROW: usize = Row::Eager as usize;

impl Tallies {
    pub(super) const EMPTY: Tallies = Tallies { sent: Tally::EMPTY, received: Tally::EMPTY };

    fn add_to(&self, all: &mut RdmStats) {
        let Tallies { sent, received } = self;
        all.tx_pkts[TY] += sent.msgs;
        all.rx_pkts[TY] += received.msgs;
        for (traffic, tally) in [(&mut all.sent[ROW], sent), (&mut all.received[ROW], received)] {
            traffic.msgs += tally.msgs;
            traffic.bytes += tally.bytes;
        }
    }
}

impl Engine {
    /// Counts a short message sent. // HOT
    #[inline(always)]
    pub(super) fn count_short_sent(&mut self, to: PeerId, len: usize) {
        if self.tallies.sent.peer != to {
            self.settle_tallies();
            // Now, so that counting allocates at the first message and not at some later one.
            self.by_peer.of(to);
            self.tallies.sent.peer = to;
        }
        self.tallies.sent.add(len);
    }

    /// Counts a short message received. // HOT
    #[inline(always)]
    pub(super) fn count_short_received(&mut self, from: PeerId, len: usize) {
        if self.tallies.received.peer != from {
            self.settle_tallies();
            self.by_peer.of(from);
            self.tallies.received.peer = from;
        }
        self.tallies.received.add(len);
    }

    /// Adds what was tallied to the counters that it belongs to.
    #[inline(never)]
    pub(super) fn settle_tallies(&mut self) {
        self.tallies.add_to(&mut self.stats);
        let Tallies { sent, received } = &mut self.tallies;
        if sent.msgs > 0 {
            let its = self.by_peer.of(sent.peer);
            sent.add_to((&mut its.tx_pkts, &mut its.tx_bytes));
            sent.clear();
        }
        if received.msgs > 0 {
            let its = self.by_peer.of(received.peer);
            received.add_to((&mut its.rx_pkts, &mut its.rx_bytes));
            received.clear();
        }
    }

    /// What was counted since the engine was made.
    pub fn stats(&self) -> RdmStats {
        let mut all = self.stats.clone();
        self.tallies.add_to(&mut all);
        all
    }

    /// What went to one peer and came from it since it was named.
    pub fn peer_stats(&self, peer: PeerId) -> PeerStats {
        let (mut its, Tallies { sent, received }) = (self.by_peer.get(peer), &self.tallies);
        if sent.peer == peer {
            sent.add_to((&mut its.tx_pkts, &mut its.tx_bytes));
        }
        if received.peer == peer {
            received.add_to((&mut its.rx_pkts, &mut its.rx_bytes));
        }
        its
    }
}
