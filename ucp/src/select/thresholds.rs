//! What a user has said, and what the wire can do: where a message may go by which row at all. Costs decide among what is left.
//! Read by `table.rs`'s callers and `explain.rs` only.

use super::cost::{self, Curve, copied};
use super::key::{CqData, ReadSupport, SelectKey};
use super::table::{AllowedProtocol, Table, TargetCpu};
use crate::rdm::protocol::{Protocol, Sync};

/// What a user has said of sizes at which protocols change; `None`: the cost model says.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Thresholds {
    /// Largest message sent as MEDIUM, bytes (`UCX_MAX_MEDIUM`).
    pub medium_max: Option<usize>,
    /// Size from which messages ask before they send: takes the place of `medium_max` when set (`UCX_RNDV_THRESH`). A
    /// message that fits one packet is sent in one, unless its receiver reads it in place, or has the kernel read it.
    pub rndv_thresh: Option<usize>,
    /// Size from which the receiver reads a message, where both ends can (`UCX_MIN_READ`).
    pub min_read: Option<usize>,
    /// Size from which the target reads a write that goes by packets, where both ends can (`UCX_MIN_READ_WRITE`).
    pub min_read_write: Option<usize>,
    /// Size from which the device does a put by itself, where it can, or the kernel in memory of another process
    /// (`UCX_MIN_RDMA_PUT`).
    pub min_rdma_put: Option<usize>,
    /// The same of a get (`UCX_MIN_RDMA_GET`).
    pub min_rdma_get: Option<usize>,
    /// Bytes of the head that travels in packets while the rest is read; 0: none (libfabric: `FI_EFA_RUNT_SIZE`).
    pub runt_size: usize,
}

/// Most bytes that are sent without being asked for unless a user says otherwise, whatever would be faster: a receiver that
/// does not wait for them has to keep them (libfabric's limit between MEDIUM and LONGCTS for host memory).
pub const PUSH_MAX: usize = 65536;

impl Thresholds {
    /// libfabric's own borders: what its EFA provider has as defaults for memory of the processor.
    pub const LIBFABRIC: Thresholds = Thresholds {
        medium_max: Some(PUSH_MAX),
        rndv_thresh: None,
        min_read: Some(1 << 20),
        min_read_write: Some(65536),
        min_rdma_put: Some(0),
        min_rdma_get: Some(0),
        runt_size: 0,
    };

    /// Largest message that is pushed in any case, if a user has said: none, if none is.
    pub(super) fn push_limit(&self) -> Option<usize> {
        self.rndv_thresh.map(|from| from.saturating_sub(1)).or(self.medium_max)
    }

    /// Largest message that may be pushed.
    pub(super) fn medium_limit(&self) -> usize {
        self.push_limit().unwrap_or(PUSH_MAX)
    }

    /// How a message is read.
    pub fn read_row(&self) -> Protocol {
        if self.runt_size > 0 { Protocol::RuntRead } else { Protocol::LongRead }
    }

    /// The name of the setting that [`Thresholds::push_limit`] is from.
    pub(super) fn push_limit_key(&self) -> &'static str {
        if self.rndv_thresh.is_some() { "UCX_RNDV_THRESH" } else { "UCX_MAX_MEDIUM" }
    }
}

/// Payload room of one packet of `row`.
pub(super) fn capacity(key: &SelectKey, row: Protocol) -> usize {
    row.capacity(key.kind, key.peer.hdr, key.cq_data == CqData::Yes, key.wire.mtu)
}

/// The length from which on it is open whether the kernel reads a message or packets carry it: both can, and nobody has said.
pub fn kernel_choice_from(key: &SelectKey, limits: &Thresholds) -> usize {
    if limits.min_read.is_some() {
        return usize::MAX;
    }
    let one = capacity(key, Protocol::Eager.with(key.sync));
    limits.push_limit().unwrap_or(0).max(one).saturating_add(1)
}

/// Whether a message can be read, as far as is known.
pub(super) fn can_read(key: &SelectKey) -> bool {
    key.wire_reads() == ReadSupport::Yes && key.peer.reads != ReadSupport::No
}

/// The rows of messages in the order in which equals are preferred.
pub(super) fn rows(sync: Sync) -> [Protocol; 5] {
    let [eager, medium, long] =
        [Protocol::Eager, Protocol::Medium, Protocol::LongCts].map(|row| row.with(sync));
    [eager, medium, long, Protocol::LongRead, Protocol::RuntRead]
}

/// The lengths for which the protocol and the user allow a row.
fn allowed_range(key: &SelectKey, limits: &Thresholds, row: Protocol) -> Option<(usize, usize)> {
    let eager = capacity(key, Protocol::Eager.with(key.sync));
    let first = eager.checked_add(1)?;
    // What fits one packet is read only without a device.
    let by_host = key.is_read_by_host() && can_read(key);
    let least = if by_host { 1 } else { first };
    // What a user has said of reading counts more than what he has said of pushing.
    let read_from = limits.min_read.filter(|_| can_read(key)).map(|from| from.max(least));
    let unread = read_from.map_or(usize::MAX, |from| from.saturating_sub(1));
    let push_limit = limits.push_limit().unwrap_or(0);
    match row.plain() {
        Protocol::Eager => {
            let unasked = limits
                .rndv_thresh
                .filter(|_| by_host && read_from.is_none())
                .map(|from| from.saturating_sub(1));
            Some((0, eager.min(unread).min(unasked.unwrap_or(eager))))
        }
        Protocol::Medium => Some((first, limits.medium_limit().min(unread))),
        Protocol::LongCts => Some((first.max(push_limit.saturating_add(1)), unread)),
        row if !can_read(key) || row != limits.read_row().with(key.sync) => None,
        _ => Some((read_from.unwrap_or(least.max(push_limit.saturating_add(1))), usize::MAX)),
    }
    .filter(|(from, to)| from <= to)
}

/// What `row` costs where it is possible at all, whatever a user has said.
pub(super) fn curve(
    key: &SelectKey,
    limits: &Thresholds,
    row: Protocol,
    (from, to): (usize, usize),
) -> Curve {
    let costs = key.costs();
    let room = capacity(key, Protocol::Medium.with(key.sync));
    let line = cost::message(&costs, row, room, limits.runt_size);
    let by_device = !key.is_read_by_host();
    match row {
        Protocol::LongRead | Protocol::RuntRead if by_device => cost::one_line(line, from, to),
        _ => copied(&costs, line, from, to),
    }
}

/// Every row that may be taken, where, and for what it costs. Whether the receiver copies or reads, its processor is asked.
pub(super) fn allowed_protocols(key: &SelectKey, limits: &Thresholds) -> Vec<AllowedProtocol<Protocol>> {
    let offer = |row| {
        let curve = curve(key, limits, row, allowed_range(key, limits, row)?);
        Some(AllowedProtocol { row, curve, target_cpu: TargetCpu::Unused })
    };
    rows(key.sync).into_iter().filter_map(offer).collect()
}

impl Table {
    /// Works out the table for `key`.
    pub fn new(key: &SelectKey, limits: &Thresholds) -> Table {
        Table::cheapest(&allowed_protocols(key, limits), Protocol::LongCts.with(key.sync))
    }
}
