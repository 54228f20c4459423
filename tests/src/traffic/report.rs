//! Counters of one process of a run: sent by the child to the parent, which prints them.

use super::RmaReport;
use serde::{Deserialize, Serialize};
use ucp::rdm::RdmStats;
use ucp::select::Protocol;

/// Messages by protocol, as the engine counted them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BySend {
    pub eager: u64,
    pub medium: u64,
    pub long: u64,
}

/// The counters of one process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Messages received and checked.
    pub messages: u64,
    /// Bytes of these messages, as sent.
    pub bytes: u64,
    /// From the first send to the last check.
    pub seconds: f64,
    /// Receives truncated as planned.
    pub truncated: u64,
    /// Synchronous sends.
    pub sync: u64,
    /// Blocks whose first message was unexpected.
    pub late_blocks: u64,
    /// Puts, gets and atomics in the other's memory.
    pub rma: RmaReport,
    /// Sends by protocol.
    pub sent: BySend,
    /// Unexpected messages.
    pub unexpected: u64,
    /// Packets out of order.
    pub out_of_order: u64,
    /// Sends that found the wire full.
    pub wire_full: u64,
}

impl Report {
    /// Copies the engine's counters.
    pub fn add_stats(&mut self, stats: &RdmStats) {
        let sent = |rows: [Protocol; 2]| rows.iter().map(|row| stats.sent(*row).msgs).sum();
        self.sent = BySend {
            eager: sent([Protocol::Eager, Protocol::DcEager]),
            medium: sent([Protocol::Medium, Protocol::DcMedium]),
            long: sent([Protocol::LongCts, Protocol::DcLongCts]),
        };
        self.unexpected = stats.rare.unexpected;
        self.out_of_order = stats.rare.out_of_order;
        self.wire_full = stats.rare.full;
    }
}
