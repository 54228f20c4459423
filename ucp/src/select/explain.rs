//! Reasons of a selection: each candidate with its cost and verdict, as data for tools to print. Uses the
//! functions that build the table, so that the two agree; a test compares them.

use std::fmt;

use super::cost;
use super::key::{ReadSupport, RecvMode, SelectKey};
use super::table::Table;
use super::thresholds::{Thresholds, allowed_protocols, capacity, curve, message_protocols};
use crate::rdm::protocol::{DeliveryComplete, Kind, Protocol};

/// Result for one candidate at one size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Verdict {
    /// Chosen.
    Taken,
    /// The message does not fit one packet of `max` payload bytes.
    TooLong {
        /// Most payload bytes of one packet.
        max: usize,
    },
    /// One packet carries the message.
    OnePacket,
    /// Above the largest size sent without rendezvous.
    AboveLimit {
        /// The limit, bytes.
        max: usize,
    },
    /// The wire does not read memory of peers.
    NoRdmaRead,
    /// The wire reads only memory that its transport allocated.
    NotMapped,
    /// The peer announced no RDMA read.
    PeerNoRdmaRead,
    /// Below the read threshold.
    BelowRead {
        /// The threshold, bytes.
        min: usize,
    },
    /// The named setting selects another protocol for this size.
    Setting(&'static str),
    /// No runt is configured.
    NoRunt,
    /// A runt does not go with completion at the receiver.
    NotSync,
    /// A runt is configured.
    RuntInstead,
    /// The peer receives packets.
    PacketsOnly,
    /// The peer is in zero-copy receive mode: it takes untagged messages without headers.
    ZeroCopyRecv,
    /// Sends without headers have neither a tag nor completion at the receiver.
    NoHeaders,
    /// Estimated as the fastest, but measured to be slower.
    MeasuredSlower,
    /// Possible, but the chosen one is faster.
    Slower {
        /// Estimated time, ns.
        ns: u64,
        /// Estimated time of the chosen one, ns.
        best: u64,
    },
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Taken => f.write_str("taken"),
            Verdict::TooLong { max } => write!(f, "one packet carries at most {max} bytes"),
            Verdict::OnePacket => f.write_str("not needed: one packet carries it"),
            Verdict::AboveLimit { max } => write!(f, "only up to {max} bytes without asking the receiver"),
            Verdict::NoRdmaRead => f.write_str("the wire has no RDMA read"),
            Verdict::NotMapped => f.write_str("the wire reads only memory from `mem_alloc`"),
            Verdict::PeerNoRdmaRead => f.write_str("the peer does not do RDMA reads"),
            Verdict::BelowRead { min } => write!(f, "only from {min} bytes on (UCX_MIN_READ)"),
            Verdict::Setting(key) => write!(f, "{key} wants another way for this size"),
            Verdict::NoRunt => f.write_str("no bytes travel ahead of the read (UCX_RUNT_SIZE)"),
            Verdict::NotSync => f.write_str("not for sends that end at the receiver"),
            Verdict::RuntInstead => f.write_str("part of the message travels at once (UCX_RUNT_SIZE)"),
            Verdict::PacketsOnly => f.write_str("the peer takes messages in packets"),
            Verdict::ZeroCopyRecv => {
                f.write_str("the peer is in zero-copy receive mode, and takes no packets with messages")
            }
            Verdict::MeasuredSlower => f.write_str("slower, as was measured of late between the two"),
            Verdict::NoHeaders => {
                f.write_str("without headers there is neither a tag nor a completion at the receiver")
            }
            Verdict::Slower { ns, best } => write!(f, "slower: {ns} ns, {best} ns best"),
        }
    }
}

/// A candidate and its verdict.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Candidate {
    /// The protocol.
    pub protocol: Protocol,
    /// Estimated time, ns; `None` if it cannot carry the message.
    pub ns: Option<u64>,
    /// Chosen, or why not.
    pub verdict: Verdict,
}

/// Explains all candidates for a message of `len` bytes. One is chosen, or none if the peer is in zero-copy
/// receive mode and cannot take the message.
pub fn explain(key: &SelectKey, limits: &Thresholds, len: usize) -> [Candidate; 6] {
    let [a, b, c, d, e] = match key.peer.recv_mode {
        RecvMode::Packets => in_packets(key, limits, len),
        RecvMode::ZeroCopy => message_protocols(key.sync).map(|protocol| Candidate {
            protocol,
            ns: None,
            verdict: Verdict::ZeroCopyRecv,
        }),
    };
    let verdict = match key.peer.recv_mode {
        RecvMode::Packets => Verdict::PacketsOnly,
        RecvMode::ZeroCopy if key.kind != Kind::Untagged || key.sync == DeliveryComplete::Yes => {
            Verdict::NoHeaders
        }
        RecvMode::ZeroCopy if len > key.wire.mtu => Verdict::TooLong { max: key.wire.mtu },
        RecvMode::ZeroCopy => Verdict::Taken,
    };
    [a, b, c, d, e, Candidate { protocol: Protocol::UserQp, ns: None, verdict }]
}

/// Candidates in packets, for a peer that receives packets.
fn in_packets(key: &SelectKey, limits: &Thresholds, len: usize) -> [Candidate; 5] {
    let taken = Table::new(key, limits).pick(len);
    let allowed = allowed_protocols(key, limits);
    let is_allowed =
        |protocol| allowed.iter().any(|o| o.protocol == protocol && cost::at(&o.curve, len).is_some());
    let ns = |protocol| cost::at(&curve(key, limits, protocol, (0, usize::MAX)), len).map(|ns| ns as u64);
    let best = ns(taken).unwrap_or(0);
    message_protocols(key.sync).map(|protocol| {
        let impossible = why_impossible(key, limits, protocol, len);
        let verdict = match impossible {
            _ if protocol == taken => Verdict::Taken,
            Some(why) => why,
            None if is_allowed(protocol) => Verdict::Slower { ns: ns(protocol).unwrap_or(best), best },
            None => why_not_allowed(limits, protocol, len),
        };
        Candidate { protocol, ns: if impossible.is_none() { ns(protocol) } else { None }, verdict }
    })
}

/// Why a protocol cannot carry a message, whatever cost and settings.
fn why_impossible(key: &SelectKey, limits: &Thresholds, protocol: Protocol, len: usize) -> Option<Verdict> {
    let eager = capacity(key, Protocol::Eager.with(key.sync));
    let fits = (len <= eager).then_some(Verdict::OnePacket);
    let by_host = key.is_read_by_host() && len > 0;
    match protocol.plain() {
        Protocol::Eager => (len > eager).then_some(Verdict::TooLong { max: eager }),
        Protocol::Medium | Protocol::LongCts => fits,
        _ if key.wire_reads() != ReadSupport::Yes => Some(match key.wire.reads_allocated {
            ReadSupport::Yes => Verdict::NotMapped,
            _ => Verdict::NoRdmaRead,
        }),
        _ if key.peer.reads == ReadSupport::No => Some(Verdict::PeerNoRdmaRead),
        Protocol::RuntRead if limits.runt_size == 0 => Some(Verdict::NoRunt),
        Protocol::RuntRead if key.sync == DeliveryComplete::Yes => Some(Verdict::NotSync),
        _ => fits.filter(|_| !by_host),
    }
}

/// Why a protocol that could carry a message is not allowed.
fn why_not_allowed(limits: &Thresholds, protocol: Protocol, len: usize) -> Verdict {
    let reads = limits.min_read.is_some_and(|from| len >= from);
    match protocol {
        Protocol::LongRead | Protocol::RuntRead => match limits.min_read {
            Some(min) if len < min => Verdict::BelowRead { min },
            None if limits.push_limit().is_some_and(|max| len <= max) => {
                Verdict::Setting(limits.push_limit_key())
            }
            _ => Verdict::RuntInstead,
        },
        _ if reads => Verdict::Setting("UCX_MIN_READ"),
        Protocol::Medium | Protocol::DcMedium => Verdict::AboveLimit { max: limits.medium_limit() },
        _ => Verdict::Setting(limits.push_limit_key()),
    }
}
