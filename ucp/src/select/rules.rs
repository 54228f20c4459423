//! The limits a user may set, and how they meet what the wire can do. Read by `table.rs` and `explain.rs` only.

use super::key::{CqData, Key, Reads};
use crate::rdm::room::Row;

/// Sizes at which protocols change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Thresholds {
    /// Largest message sent as MEDIUM, bytes (libfabric's default as well).
    pub medium_max: usize,
    /// Size from which messages ask before they send (long-CTS): takes the place of `medium_max` when set
    /// (`UCX_RNDV_THRESH`). A message that fits one packet is always sent in one.
    pub rndv_thresh: Option<usize>,
    /// Size from which the receiver reads a message, where both ends can: the same default as libfabric's
    /// `FI_EFA_INTER_MIN_READ_MESSAGE_SIZE`.
    pub min_read: usize,
    /// Size from which the target reads a write that would go by packets, where both ends can: the same default as
    /// libfabric's `FI_EFA_INTER_MIN_READ_WRITE_SIZE`.
    pub min_read_write: usize,
    /// Bytes of the head that travels in packets while the rest is read; 0: none (libfabric: `FI_EFA_RUNT_SIZE`).
    pub runt_size: usize,
}

impl Thresholds {
    /// libfabric's limit between MEDIUM and LONGCTS for host memory.
    pub const MEDIUM_MAX: usize = 65536;

    /// libfabric's size from which host memory is read.
    pub const MIN_READ: usize = 1 << 20;

    /// libfabric's size from which writes of host memory are read.
    pub const MIN_READ_WRITE: usize = 65536;

    /// Smallest message that the receiver reads, if it and the wire can.
    pub(super) fn read_from(&self, key: &Key) -> Option<usize> {
        let both = key.wire.reads == Reads::Yes && key.peer.reads != Reads::No;
        both.then_some(self.min_read)
    }

    /// How it is read.
    pub(super) fn read_row(&self) -> Row {
        if self.runt_size > 0 { Row::RuntRead } else { Row::LongRead }
    }

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
        Thresholds {
            medium_max: Self::MEDIUM_MAX,
            rndv_thresh: None,
            min_read: Self::MIN_READ,
            min_read_write: Self::MIN_READ_WRITE,
            runt_size: 0,
        }
    }
}

/// Payload room of one packet of `row`.
pub(super) fn capacity(key: &Key, row: Row) -> usize {
    row.capacity(key.kind, key.peer.hdr, key.cq_data == CqData::Yes, key.wire.mtu)
}
