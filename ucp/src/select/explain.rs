//! Why a size goes the way it goes: each candidate with its verdict, as data for tools to print.
//! Must agree with `table.rs`; a test holds them together.

use std::fmt;

use super::key::Key;
use super::rules::{Thresholds, capacity};
use super::table::Table;
use crate::rdm::room::Row;

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
    /// Possible, but the candidate before it needs fewer packets or fewer turns.
    Dearer,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Taken => f.write_str("taken"),
            Verdict::TooLong { max } => write!(f, "one packet carries at most {max} bytes"),
            Verdict::AboveLimit { max } => write!(f, "only up to {max} bytes without asking the receiver"),
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
pub fn explain(key: &Key, limits: &Thresholds, len: usize) -> [Candidate; 3] {
    let taken = Table::new(key, limits).pick(len);
    [Row::Eager, Row::Medium, Row::LongCts].map(|plain| {
        let row = plain.with(key.sync);
        let verdict = if row == taken {
            Verdict::Taken
        } else if plain == Row::Eager {
            Verdict::TooLong { max: capacity(key, row) }
        } else if plain == Row::Medium && taken.plain() == Row::LongCts {
            Verdict::AboveLimit { max: limits.medium_limit() }
        } else {
            Verdict::Dearer
        };
        Candidate { row, verdict }
    })
}

#[cfg(test)]
mod tests {
    use super::super::{Kind, PeerCaps, Sync, WireCaps};
    use super::*;

    #[test]
    fn one_is_taken_and_it_is_the_tables() {
        let key = Key::new(Kind::Tagged, Sync::Yes, WireCaps { mtu: 4096 }, PeerCaps::default());
        let limits = Thresholds::default();
        for len in [0, 1, 4032, 4033, 65536, 65537, usize::MAX] {
            let taken: Vec<Row> = explain(&key, &limits, len)
                .iter()
                .filter(|c| c.verdict == Verdict::Taken)
                .map(|c| c.row)
                .collect();
            assert_eq!(taken, [Table::new(&key, &limits).pick(len)], "{len}");
        }
        assert_eq!(explain(&key, &limits, 5000)[0].verdict, Verdict::TooLong { max: 4032 });
        assert_eq!(explain(&key, &limits, 70000)[1].verdict, Verdict::AboveLimit { max: 65536 });
    }
}
