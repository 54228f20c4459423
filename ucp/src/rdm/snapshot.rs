//! Snapshot: counts of what an engine holds at this moment. Nothing is under way when all of it is zero. For
//! tests that look for leaks and for people that look at a stuck job. Never called on the data path: it goes
//! through all peers.

use crate::rdm::Engine;
use crate::rdm::peers::peer::PeerFlags;

/// Counts of the operations, messages and packets that an engine holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineSnapshot {
    /// Sends that are not complete.
    pub sends: usize,
    /// Receives that are posted or not complete.
    pub receives: usize,
    /// Receives of which some packets have come.
    pub rx_entries: usize,
    /// Messages of peers that are to be read by RDMA.
    pub rma_reads: usize,
    /// One-sided operations, asked of peers or by them.
    pub one_sided: usize,
    /// Messages that no receive has matched.
    pub unexpected: usize,
    /// Bytes held of those, and of packets before their turn.
    pub held_bytes: usize,
    /// Control packets that wait for room, and HANDSHAKEs that are owed.
    pub owed: usize,
    /// Peers of which packets wait for their turn.
    pub early: usize,
    /// Messages in several packets that are known by their first.
    pub parts: usize,
    /// Messages of ours that peers may be reading.
    pub exposed: usize,
    /// Ends that nobody has taken out yet.
    pub ends: usize,
}

impl EngineSnapshot {
    /// Nothing is held.
    pub const EMPTY: EngineSnapshot = EngineSnapshot {
        sends: 0,
        receives: 0,
        rx_entries: 0,
        rma_reads: 0,
        one_sided: 0,
        unexpected: 0,
        held_bytes: 0,
        owed: 0,
        early: 0,
        parts: 0,
        exposed: 0,
        ends: 0,
    };
}

impl Engine {
    /// Counts what is held.
    pub fn snapshot(&self) -> EngineSnapshot {
        let mut census = EngineSnapshot {
            sends: self.tx.len(),
            receives: self.rx.len(),
            rx_entries: self.rx_entries.len(),
            rma_reads: self.rma_reads.len(),
            one_sided: self.rma_ops.len(),
            unexpected: self.unexpected.len(),
            held_bytes: self.held_packets.in_use(),
            ends: self.events.len(),
            ..EngineSnapshot::EMPTY
        };
        for (_, peer) in self.peers.iter() {
            census.owed += usize::from(peer.flags.contains(PeerFlags::HANDSHAKE_QUEUED));
            let Some(queue) = &peer.queue else { continue };
            // What a peer is to hear that was closed by force is no longer anybody's.
            let told = peer.flags.contains(PeerFlags::FORCE_CLOSED);
            census.owed += queue.ctl.len() + if told { 0 } else { queue.unsent_errors.len() };
            census.early += usize::from(!queue.reorder.is_empty());
            census.parts += queue.partial_msgs.len();
            census.exposed += queue.exposed as usize;
        }
        census
    }
}
