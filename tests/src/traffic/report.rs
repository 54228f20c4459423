//! What one process of a run counted. Said by the child to the parent, printed by the parent.
//! Plain numbers.

use serde::{Deserialize, Serialize};
use ucp::rdm::RdmStats;
use ucp::select::Row;

/// Messages by how they went, as the engine counted them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BySend {
    /// In one packet.
    pub eager: u64,
    /// In several packets at once.
    pub medium: u64,
    /// As the receiver granted.
    pub long: u64,
}

/// One process's half of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Messages received and checked.
    pub messages: u64,
    /// Their bytes, as sent.
    pub bytes: u64,
    /// From the first send to the last check.
    pub seconds: f64,
    /// Received into too short a buffer, as planned.
    pub truncated: u64,
    /// Sent with an end at the receiver.
    pub sync: u64,
    /// Blocks whose first message was found by a probe before any receive for it.
    pub late_blocks: u64,
    /// Sends by protocol.
    pub sent: BySend,
    /// Messages that came before their receive.
    pub unexpected: u64,
    /// Packets that came before their turn.
    pub out_of_order: u64,
    /// Sends that found the wire full.
    pub wire_full: u64,
}

impl Report {
    /// Takes over what the engine counted.
    pub fn add_stats(&mut self, stats: &RdmStats) {
        let sent = |rows: [Row; 2]| rows.iter().map(|row| stats.sent(*row).msgs).sum();
        self.sent = BySend {
            eager: sent([Row::Eager, Row::DcEager]),
            medium: sent([Row::Medium, Row::DcMedium]),
            long: sent([Row::LongCts, Row::DcLongCts]),
        };
        self.unexpected = stats.rare.unexpected;
        self.out_of_order = stats.rare.out_of_order;
        self.wire_full = stats.rare.full;
    }
}
