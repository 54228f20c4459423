//! Snapshot: counts of what an engine holds at this moment. All are zero when nothing is in progress. For
//! tests that look for leaks and for people that look at a stuck job. Goes through all peers, so it is never
//! called on the data path.

use crate::rdm::Engine;

/// Counts of the operations, messages and packets that an engine holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineSnapshot {
    /// Sends that are not complete.
    pub sends: usize,
    /// Receives that are posted or not complete.
    pub receives: usize,
    /// Receives with some of their packets.
    pub rx_entries: usize,
    /// Messages of peers to read by RDMA.
    pub rma_reads: usize,
    /// RMA operations, of this engine or of peers.
    pub rma_ops: usize,
    /// Messages that no receive has matched.
    pub unexpected: usize,
    /// Bytes held by unexpected messages and by packets that arrived out of order.
    pub held_bytes: usize,
    /// Control packets and HANDSHAKEs that wait to be sent.
    pub queued_ctl: usize,
    /// Peers with packets that arrived out of order.
    pub reordering_peers: usize,
    /// Messages of several packets whose first packet has arrived.
    pub partial_msgs: usize,
    /// Local messages that peers may be reading.
    pub exposed: usize,
    /// Events that the caller has not taken.
    pub queued_events: usize,
}

impl EngineSnapshot {
    /// Nothing is held.
    pub const EMPTY: EngineSnapshot = EngineSnapshot {
        sends: 0,
        receives: 0,
        rx_entries: 0,
        rma_reads: 0,
        rma_ops: 0,
        unexpected: 0,
        held_bytes: 0,
        queued_ctl: 0,
        reordering_peers: 0,
        partial_msgs: 0,
        exposed: 0,
        queued_events: 0,
    };
}

impl Engine {
    /// Counts what is held.
    pub fn snapshot(&self) -> EngineSnapshot {
        let mut snapshot = EngineSnapshot {
            sends: self.ops.sends.table.len(),
            receives: self.ops.recvs.table.len(),
            rx_entries: self.ops.recvs.entries.len(),
            rma_reads: self.ops.reads.table.len(),
            rma_ops: self.ops.rma_ops.table.len(),
            unexpected: self.ops.recvs.unexpected.len(),
            held_bytes: self.pending.held_packets.in_use(),
            queued_events: self.pending.events.len(),
            ..EngineSnapshot::EMPTY
        };
        for (_, lane) in self.peers.table.lanes.iter() {
            let waits = [lane.state.is_handshake_queued(), lane.announces_first, lane.announces_loss];
            snapshot.queued_ctl += waits.into_iter().filter(|waits| *waits).count();
        }
        for (_, peer) in self.peers.table.iter() {
            snapshot.queued_ctl += usize::from(peer.state.is_handshake_queued());
            let Some(queue) = &peer.queue else { continue };
            // Error packets to a peer that was closed by force are not counted: nobody waits for them.
            let is_closed = peer.state.is_closed();
            snapshot.queued_ctl += queue.ctl.len() + if is_closed { 0 } else { queue.unsent_errors.len() };
            snapshot.reordering_peers += usize::from(!queue.reorder.is_empty());
            snapshot.partial_msgs += queue.partial_msgs.len();
            snapshot.exposed += queue.exposed as usize;
        }
        snapshot
    }
}
