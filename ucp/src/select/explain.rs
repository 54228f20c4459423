//! Why a size goes the way it goes: each candidate with its verdict, as data for tools to print.
//! Must agree with `table.rs`; a test holds them together.

use std::fmt;

use super::key::{Key, Reads};
use super::rules::{Thresholds, capacity};
use super::table::Table;
use crate::rdm::room::{Row, Sync};

/// What became of one candidate for one size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Chosen.
    Taken,
    /// The message does not fit one packet of `max` payload bytes.
    TooLong {
        /// Most bytes it can carry.
        max: usize,
    },
    /// Above the size up to which messages are sent without asking.
    AboveLimit {
        /// That size.
        max: usize,
    },
    /// The wire reads no memory of peers.
    NoReadHere,
    /// The peer's handshake says that it does not read ours.
    NoReadThere,
    /// Below the size from which messages are read.
    BelowRead {
        /// That size.
        min: usize,
    },
    /// Long enough to be read: one copy less.
    ReadInstead,
    /// No head is configured to travel in packets.
    NoRunt,
    /// A head in packets does not go with a completion at the receiver.
    NotSync,
    /// The head in packets gets the reading going sooner.
    RuntInstead,
    /// Possible, but the candidate before it needs fewer packets or fewer turns.
    Dearer,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Taken => f.write_str("taken"),
            Verdict::TooLong { max } => write!(f, "one packet carries at most {max} bytes"),
            Verdict::AboveLimit { max } => write!(f, "only up to {max} bytes without asking the receiver"),
            Verdict::NoReadHere => f.write_str("the wire has no RDMA read"),
            Verdict::NoReadThere => f.write_str("the peer does not do RDMA reads"),
            Verdict::BelowRead { min } => write!(f, "only from {min} bytes on (UCX_MIN_READ)"),
            Verdict::ReadInstead => f.write_str("possible, but reading in place saves a copy"),
            Verdict::NoRunt => f.write_str("no bytes travel ahead of the read (UCX_RUNT_SIZE)"),
            Verdict::NotSync => f.write_str("not for sends that end at the receiver"),
            Verdict::RuntInstead => f.write_str("possible, but part of the message can travel at once"),
            Verdict::Dearer => f.write_str("possible, but needs more packets or a turn more"),
        }
    }
}

/// One candidate and its verdict.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Candidate {
    /// The protocol.
    pub row: Row,
    /// Taken, or why not.
    pub verdict: Verdict,
}

/// All candidates for a message of `len` bytes, in the order they are tried; exactly one is taken.
pub fn explain(key: &Key, limits: &Thresholds, len: usize) -> [Candidate; 5] {
    let taken = Table::new(key, limits).pick(len);
    let rows = [Row::Eager, Row::Medium, Row::LongCts].map(|row| row.with(key.sync));
    let [eager, medium, long] = rows;
    [eager, medium, long, Row::LongRead, Row::RuntRead].map(|row| {
        let verdict = match row {
            _ if row == taken => Verdict::Taken,
            Row::Eager | Row::DcEager => Verdict::TooLong { max: capacity(key, row) },
            Row::LongRead | Row::RuntRead => not_read(key, limits, len, taken, row),
            _ if matches!(taken, Row::LongRead | Row::RuntRead) => Verdict::ReadInstead,
            Row::Medium | Row::DcMedium if taken == long => {
                Verdict::AboveLimit { max: limits.medium_limit() }
            }
            _ => Verdict::Dearer,
        };
        Candidate { row, verdict }
    })
}

/// Why a message is not read by `row`.
fn not_read(key: &Key, limits: &Thresholds, len: usize, taken: Row, row: Row) -> Verdict {
    if key.wire.reads != Reads::Yes {
        Verdict::NoReadHere
    } else if key.peer.reads == Reads::No {
        Verdict::NoReadThere
    } else if row == Row::RuntRead && limits.runt_size == 0 {
        Verdict::NoRunt
    } else if row == Row::RuntRead && key.sync == Sync::Yes {
        Verdict::NotSync
    } else if len < limits.min_read {
        Verdict::BelowRead { min: limits.min_read }
    } else if taken == Row::RuntRead {
        Verdict::RuntInstead
    } else {
        Verdict::Dearer
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Kind, PeerCaps, WireCaps};
    use super::*;

    #[test]
    fn one_is_taken_and_it_is_the_tables() {
        let key =
            Key::new(Kind::Tagged, Sync::Yes, WireCaps { mtu: 4096, reads: Reads::Yes }, PeerCaps::default());
        let limits = Thresholds::default();
        for len in [0, 1, 4032, 4033, 65536, 65537, 1 << 20, usize::MAX] {
            let taken: Vec<Row> = explain(&key, &limits, len)
                .iter()
                .filter(|c| c.verdict == Verdict::Taken)
                .map(|c| c.row)
                .collect();
            assert_eq!(taken, [Table::new(&key, &limits).pick(len)], "{len}");
        }
        assert_eq!(explain(&key, &limits, 5000)[0].verdict, Verdict::TooLong { max: 4032 });
        assert_eq!(explain(&key, &limits, 70000)[3].verdict, Verdict::BelowRead { min: 1 << 20 });
        assert_eq!(explain(&key, &limits, 1 << 20)[3].verdict, Verdict::Taken);
        assert_eq!(explain(&key, &limits, 1 << 20)[4].verdict, Verdict::NoRunt);
        assert_eq!(explain(&key, &limits, 70000)[1].verdict, Verdict::AboveLimit { max: 65536 });
    }
}
