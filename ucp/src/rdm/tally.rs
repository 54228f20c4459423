//! Short messages are counted by peer in a small table of their own, and added to the counters of the engine and of that
//! peer when another peer needs the place: two additions a message instead of four and a look-up of the peer. Whoever
//! reads counters gets both. Called by `rooms::eager` for what takes its shortest way, and never by anybody else.

use super::Engine;
use super::io::PeerId;
use super::room::Row;
use super::stats::{PeerStats, RdmStats};
use crate::wire::PktType;

/// Short tagged messages to or from one peer that its counters do not have yet. Found by a shift, and its two numbers lie apart:
/// side by side, compilers add to both by instructions that take longer to set up than two additions.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(32))]
struct Tally {
    msgs: u64,
    peer: PeerId,
    bytes: u64,
}

/// Tallies of one direction, each at the place that its peer's number names.
#[derive(Debug)]
struct Board([Tally; Board::PLACES]);

impl Board {
    /// As many peers as may be served in turn without an addition to their counters at each message.
    const PLACES: usize = 64;

    const EMPTY: Board = Board([Tally { peer: PeerId(u32::MAX), msgs: 0, bytes: 0 }; Board::PLACES]);

    /// The place of a peer, whoever has it. // HOT
    #[inline(always)]
    fn place(&mut self, peer: PeerId) -> &mut Tally {
        &mut self.0[peer.0 as usize % Self::PLACES]
    }

    /// Gives the place of a peer to it; answers what the counters do not have yet of the one that had it.
    fn give(&mut self, peer: PeerId) -> Option<Tally> {
        let before = std::mem::replace(self.place(peer), Tally { peer, msgs: 0, bytes: 0 });
        Some(before).filter(|before| before.msgs > 0)
    }

    /// The tally of a peer, if there is one.
    fn of(&self, peer: PeerId) -> Option<Tally> {
        Some(self.0[peer.0 as usize % Self::PLACES]).filter(|tally| tally.peer == peer)
    }
}

/// Both directions.
#[derive(Debug)]
pub(super) struct Tallies {
    sent: Board,
    received: Board,
}

/// What short messages are, to the counters.
const TY: usize = PktType::EAGER_TAGRTM.0 as usize;
const ROW: usize = Row::Eager as usize;

impl Tallies {
    pub(super) const EMPTY: Tallies = Tallies { sent: Board::EMPTY, received: Board::EMPTY };
}

impl RdmStats {
    fn add_sent(&mut self, tally: &Tally) {
        self.tx_pkts[TY] += tally.msgs;
        self.sent[ROW].msgs += tally.msgs;
        self.sent[ROW].bytes += tally.bytes;
    }

    fn add_received(&mut self, tally: &Tally) {
        self.rx_pkts[TY] += tally.msgs;
        self.received[ROW].msgs += tally.msgs;
        self.received[ROW].bytes += tally.bytes;
    }
}

impl PeerStats {
    fn add_sent(&mut self, tally: &Tally) {
        self.tx_pkts += tally.msgs;
        self.tx_bytes += tally.bytes;
    }

    fn add_received(&mut self, tally: &Tally) {
        self.rx_pkts += tally.msgs;
        self.rx_bytes += tally.bytes;
    }
}

impl Engine {
    /// Counts a short message sent. // HOT
    #[inline(always)]
    pub(super) fn count_short_sent(&mut self, to: PeerId, len: usize) {
        if self.tallies.sent.place(to).peer != to {
            self.begin_sent(to);
        }
        let tally = self.tallies.sent.place(to);
        tally.msgs += 1;
        tally.bytes += len as u64;
    }

    /// Counts a short message received. // HOT
    #[inline(always)]
    pub(super) fn count_short_received(&mut self, from: PeerId, len: usize) {
        if self.tallies.received.place(from).peer != from {
            self.begin_received(from);
        }
        let tally = self.tallies.received.place(from);
        tally.msgs += 1;
        tally.bytes += len as u64;
    }

    /// Gives the place of a peer to it; the counters get what is there of another.
    #[inline(never)]
    fn begin_sent(&mut self, to: PeerId) {
        if let Some(before) = self.tallies.sent.give(to) {
            self.stats.add_sent(&before);
            self.by_peer.of(before.peer).add_sent(&before);
        }
        // Now, so that counting allocates at the first message and not at some later one.
        self.by_peer.of(to);
    }

    /// The same of messages received.
    #[inline(never)]
    fn begin_received(&mut self, from: PeerId) {
        if let Some(before) = self.tallies.received.give(from) {
            self.stats.add_received(&before);
            self.by_peer.of(before.peer).add_received(&before);
        }
        self.by_peer.of(from);
    }

    /// The name goes to another peer: nothing is counted of it yet.
    pub(super) fn forget_counts(&mut self, peer: PeerId) {
        let Tallies { sent, received } = &mut self.tallies;
        if let Some(tally) = sent.of(peer) {
            self.stats.add_sent(&tally);
            *sent.place(peer) = Tally { msgs: 0, bytes: 0, ..tally };
        }
        if let Some(tally) = received.of(peer) {
            self.stats.add_received(&tally);
            *received.place(peer) = Tally { msgs: 0, bytes: 0, ..tally };
        }
        self.by_peer.forget(peer);
    }

    /// What was counted since the engine was made.
    pub fn stats(&self) -> RdmStats {
        let mut all = self.stats.clone();
        self.tallies.sent.0.iter().for_each(|tally| all.add_sent(tally));
        self.tallies.received.0.iter().for_each(|tally| all.add_received(tally));
        all
    }

    /// What went to one peer and came from it since it was named.
    pub fn peer_stats(&self, peer: PeerId) -> PeerStats {
        let mut its = self.by_peer.get(peer);
        self.tallies.sent.of(peer).iter().for_each(|tally| its.add_sent(tally));
        self.tallies.received.of(peer).iter().for_each(|tally| its.add_received(tally));
        its
    }
}
