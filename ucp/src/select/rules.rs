//! The limits a user may set, and how they meet what the wire can do. Read by `table.rs` and `explain.rs` only.

use super::key::{CqData, Key};
use crate::rdm::room::Row;

/// Sizes at which protocols change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Thresholds {
    /// Largest message sent as MEDIUM, bytes (libfabric's default as well).
    pub medium_max: usize,
    /// Size from which messages ask before they send (long-CTS): takes the place of `medium_max` when set
    /// (`UCX_RNDV_THRESH`). A message that fits one packet is always sent in one.
    pub rndv_thresh: Option<usize>,
}

impl Thresholds {
    /// libfabric's limit between MEDIUM and LONGCTS for host memory.
    pub const MEDIUM_MAX: usize = 65536;

    /// Largest message that goes as MEDIUM unless it fits one packet.
    pub(super) fn medium_limit(&self) -> usize {
        match self.rndv_thresh {
            Some(from) => from.saturating_sub(1),
            None => self.medium_max,
        }
    }
}

impl Default for Thresholds {
    fn default() -> Self {
        Thresholds { medium_max: Self::MEDIUM_MAX, rndv_thresh: None }
    }
}

/// Payload room of one packet of `row`.
pub(super) fn capacity(key: &Key, row: Row) -> usize {
    row.capacity(key.kind, key.peer.hdr, key.cq_data == CqData::Yes, key.wire.mtu)
}
