//! Size thresholds: which protocol may carry a message of which length, by the user's settings and the wire.
//! Costs decide among what is allowed. Used by `table` and `explain`.

use ucs::config::{Auto, ConfigValue};

use super::cost::{self, Curve, copied};
use super::key::{CqData, ReadSupport, SelectKey};
use super::table::{AllowedProtocol, Table, TargetCpu};
use crate::rdm::protocol::{DeliveryComplete, Protocol};

/// Sizes at which protocols change, as set by the user; `None`: by the cost model.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Thresholds {
    /// Largest message sent as MEDIUM, bytes (`UCX_MAX_MEDIUM`).
    pub medium_max: Option<usize>,
    /// Size from which messages use rendezvous: replaces `medium_max` when set (`UCX_RNDV_THRESH`). A message
    /// that fits one packet still goes in one, unless the receiver reads it in place or by its kernel.
    pub rndv_thresh: Option<usize>,
    /// Size from which messages to other hosts use rendezvous ([`Thresholds::to_other_host`]).
    pub rndv_thresh_inter: Option<usize>,
    /// Size from which the receiver reads a message, if both ends can (`UCX_MIN_READ`).
    pub min_read: Option<usize>,
    /// Size from which the target reads a write that is sent by packets, if both ends can
    /// (`UCX_MIN_READ_WRITE`).
    pub min_read_write: Option<usize>,
    /// Size from which a put uses the device, or the kernel for memory of another process
    /// (`UCX_MIN_RDMA_PUT`).
    pub min_rdma_put: Option<usize>,
    /// Size from which a get uses the device, or the kernel for memory of another process
    /// (`UCX_MIN_RDMA_GET`).
    pub min_rdma_get: Option<usize>,
    /// Bytes sent by packets while the rest is read; 0: none (libfabric: `FI_EFA_RUNT_SIZE`).
    pub runt_size: usize,
}

/// Value of `UCX_RNDV_THRESH`: one length, or `intra:LENGTH,inter:LENGTH`; the one left out is automatic.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RndvThresh {
    /// For peers on this host, bytes.
    pub intra: Auto<usize>,
    /// For peers on other hosts, bytes.
    pub inter: Auto<usize>,
}

impl ConfigValue for RndvThresh {
    fn parse(text: &str) -> Option<RndvThresh> {
        if let Some(one) = Auto::parse(text) {
            return Some(RndvThresh { intra: one, inter: one });
        }
        let mut both = RndvThresh::default();
        for item in text.split(',') {
            let (place, length) = item.split_once(':')?;
            let length = Auto::parse(length.trim())?;
            match place.trim() {
                "intra" => both.intra = length,
                "inter" => both.inter = length,
                _ => return None,
            }
        }
        Some(both)
    }

    fn expected() -> String {
        format!("{}, or intra:LENGTH,inter:LENGTH", Auto::<usize>::expected())
    }
}

/// Most bytes sent without rendezvous by default: an unexpected message must be kept by its receiver
/// (libfabric's limit between MEDIUM and LONGCTS for host memory).
pub const PUSH_MAX: usize = 65536;

impl Thresholds {
    /// Thresholds of libfabric's EFA provider for host memory.
    pub const LIBFABRIC: Thresholds = Thresholds {
        medium_max: Some(PUSH_MAX),
        rndv_thresh: None,
        rndv_thresh_inter: None,
        min_read: Some(1 << 20),
        min_read_write: Some(65536),
        min_rdma_put: Some(0),
        min_rdma_get: Some(0),
        runt_size: 0,
    };

    /// Thresholds of messages that go by a network device.
    #[must_use]
    pub fn to_other_host(self) -> Thresholds {
        Thresholds { rndv_thresh: self.rndv_thresh_inter, ..self }
    }

    /// Largest message sent without rendezvous, if the user has set it.
    pub(super) fn push_limit(&self) -> Option<usize> {
        self.rndv_thresh.map(|from| from.saturating_sub(1)).or(self.medium_max)
    }

    /// Largest message sent as MEDIUM.
    pub(super) fn medium_limit(&self) -> usize {
        self.push_limit().unwrap_or(PUSH_MAX)
    }

    /// Protocol of a message that is read.
    pub fn read_protocol(&self) -> Protocol {
        if self.runt_size > 0 { Protocol::RuntRead } else { Protocol::LongRead }
    }

    /// Name of the setting behind [`Thresholds::push_limit`].
    pub(super) fn push_limit_key(&self) -> &'static str {
        if self.rndv_thresh.is_some() { "UCX_RNDV_THRESH" } else { "UCX_MAX_MEDIUM" }
    }
}

pub(super) fn capacity(key: &SelectKey, protocol: Protocol) -> usize {
    protocol.capacity(key.kind, key.peer.hdr, key.cq_data == CqData::Yes, key.wire.mtu)
}

/// Length from which measurement chooses between kernel and packets: both can carry it and no setting
/// decides.
pub fn kernel_choice_from(key: &SelectKey, limits: &Thresholds) -> usize {
    if limits.min_read.is_some() {
        return usize::MAX;
    }
    let one = capacity(key, Protocol::Eager.with(key.sync));
    limits.push_limit().unwrap_or(0).max(one).saturating_add(1)
}

/// Whether the receiver can read the message, as far as is known.
pub(super) fn can_read(key: &SelectKey) -> bool {
    key.wire_reads() == ReadSupport::Yes && key.peer.reads != ReadSupport::No
}

/// Protocols of messages in order of preference among equals.
pub(super) fn message_protocols(sync: DeliveryComplete) -> [Protocol; 5] {
    let [eager, medium, long] =
        [Protocol::Eager, Protocol::Medium, Protocol::LongCts].map(|protocol| protocol.with(sync));
    [eager, medium, long, Protocol::LongRead, Protocol::RuntRead]
}

/// Range of lengths for which wire and settings allow a protocol.
fn allowed_range(key: &SelectKey, limits: &Thresholds, protocol: Protocol) -> Option<(usize, usize)> {
    let eager = capacity(key, Protocol::Eager.with(key.sync));
    let first = eager.checked_add(1)?;
    // A message that fits one packet is read only without a device.
    let by_host = key.is_read_by_host() && can_read(key);
    let least = if by_host { 1 } else { first };
    // A read threshold takes precedence over a push limit.
    let read_from = limits.min_read.filter(|_| can_read(key)).map(|from| from.max(least));
    let packets_max = read_from.map_or(usize::MAX, |from| from.saturating_sub(1));
    let push_limit = limits.push_limit().unwrap_or(0);
    match protocol.plain() {
        Protocol::Eager => {
            let eager_limit = limits
                .rndv_thresh
                .filter(|_| by_host && read_from.is_none())
                .map(|from| from.saturating_sub(1));
            Some((0, eager.min(packets_max).min(eager_limit.unwrap_or(eager))))
        }
        Protocol::Medium => Some((first, limits.medium_limit().min(packets_max))),
        Protocol::LongCts => Some((first.max(push_limit.saturating_add(1)), packets_max)),
        protocol if !can_read(key) || protocol != limits.read_protocol().with(key.sync) => None,
        _ => Some((read_from.unwrap_or(least.max(push_limit.saturating_add(1))), usize::MAX)),
    }
    .filter(|(from, to)| from <= to)
}

/// Cost of `protocol` wherever it is possible, whatever the settings.
pub(super) fn curve(
    key: &SelectKey,
    limits: &Thresholds,
    protocol: Protocol,
    (from, to): (usize, usize),
) -> Curve {
    let costs = key.costs();
    let payload = capacity(key, Protocol::Medium.with(key.sync));
    let line = cost::message(&costs, protocol, payload, limits.runt_size);
    let by_device = !key.is_read_by_host();
    match protocol {
        Protocol::LongRead | Protocol::RuntRead if by_device => cost::one_line(line, from, to),
        _ => copied(&costs, line, from, to),
    }
}

/// All allowed protocols with their ranges and costs. All of them use the receiver's processor.
pub(super) fn allowed_protocols(key: &SelectKey, limits: &Thresholds) -> Vec<AllowedProtocol<Protocol>> {
    let allowed = |protocol| {
        let curve = curve(key, limits, protocol, allowed_range(key, limits, protocol)?);
        Some(AllowedProtocol { protocol, curve, target_cpu: TargetCpu::Unused })
    };
    message_protocols(key.sync).into_iter().filter_map(allowed).collect()
}

impl Table {
    /// Works out the table for `key`.
    pub fn new(key: &SelectKey, limits: &Thresholds) -> Table {
        Table::cheapest(&allowed_protocols(key, limits), Protocol::LongCts.with(key.sync))
    }
}
