//! Combines the results of a group: counts and rates are summed over the time in which members worked; times
//! are the average of members.

use serde::{Deserialize, Serialize};
use tools_common::meter::{Bin, Reading};
use ucs::sys::host::HostKey;

use super::TestResult;
use crate::spec::Pattern;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MemberResult {
    pub iters: u64,
    /// Duration of the loop, seconds; also of members that only receive.
    pub seconds: f64,
    /// Time of the end on the host's monotonic clock, seconds.
    pub ended: f64,
    pub host: u64,
    pub p50: f64,
    pub p99_9: f64,
    pub rank: f64,
    /// Distribution of times: upper bounds, seconds, and counts.
    pub bins: Vec<(f64, u64)>,
}

impl MemberResult {
    pub fn of(done: &TestResult, active: bool) -> MemberResult {
        let r = done.reading;
        let iters = if active { r.iters } else { 0 };
        let host = HostKey::current().0;
        MemberResult {
            iters,
            seconds: done.seconds,
            ended: done.ended,
            host,
            p50: r.p50,
            p99_9: r.p99_9,
            rank: r.rank,
            bins: if active {
                done.hist.iter().map(|bin| (bin.upto, bin.count)).collect()
            } else {
                Vec::new()
            },
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct GroupResult {
    pub pattern: Pattern,
    pub members: usize,
    /// Rank, iterations and seconds of the members that drove any.
    pub each: Vec<(usize, u64, f64)>,
    /// Iterations of all per second, from the first start to the last end.
    pub rate: f64,
    /// Averages of members, `p99_9` of the worst.
    pub reading: Reading,
    pub hist: Vec<Bin>,
}

/// Bounds of bins within this factor are the same: the clocks of members differ a little.
const SAME_BIN: f64 = 1.02;

fn merge_bins<'a>(bins: impl Iterator<Item = &'a (f64, u64)>) -> Vec<Bin> {
    let mut all: Vec<(f64, u64)> = bins.copied().collect();
    all.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut merged: Vec<Bin> = Vec::new();
    let mut first = 0.0;
    for (upto, count) in all {
        match merged.last_mut() {
            Some(last) if upto <= first * SAME_BIN => (last.upto, last.count) = (upto, last.count + count),
            _ => {
                first = upto;
                merged.push(Bin { upto, count });
            }
        }
    }
    merged
}

impl GroupResult {
    pub fn new(pattern: Pattern, results: Vec<MemberResult>) -> GroupResult {
        let span = span(&results);
        let iters = results.iter().map(|s| s.iters).sum::<u64>();
        let active: Vec<(usize, &MemberResult)> =
            results.iter().enumerate().filter(|(_, s)| s.iters > 0).collect();
        let mean = |of: &dyn Fn(&MemberResult) -> f64| {
            active.iter().map(|(_, s)| of(s)).sum::<f64>() / active.len().max(1) as f64
        };
        let overall = mean(&|s| s.seconds / s.iters as f64);
        GroupResult {
            hist: merge_bins(results.iter().flat_map(|s| &s.bins)),
            pattern,
            members: results.len(),
            each: active.iter().map(|(n, s)| (*n, s.iters, s.seconds)).collect(),
            rate: if span > 0.0 { iters as f64 / span } else { 0.0 },
            reading: Reading {
                iters,
                rank: mean(&|s| s.rank),
                p50: mean(&|s| s.p50),
                p99_9: active.iter().map(|(_, s)| s.p99_9).fold(0.0, f64::max),
                recent: overall,
                overall,
            },
        }
    }
}

/// Duration of the group, seconds: from the first start to the last end on one host, which includes time
/// without a core; the slowest member's on several hosts.
fn span(results: &[MemberResult]) -> f64 {
    let worked: Vec<&MemberResult> = results.iter().filter(|s| s.seconds > 0.0).collect();
    let slowest = worked.iter().map(|s| s.seconds).fold(0.0, f64::max);
    let one_clock = worked.windows(2).all(|w| w[0].host == w[1].host);
    let begun = worked.iter().map(|s| s.ended - s.seconds).fold(f64::INFINITY, f64::min);
    let ended = worked.iter().map(|s| s.ended).fold(0.0, f64::max);
    if one_clock && !worked.is_empty() { ended - begun } else { slowest }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_of_members_are_merged() {
        let one = [(1.0, 5), (1.09, 1), (1.19, 2)];
        let other = [(1.0001, 3), (1.1901, 4), (8.0, 1)];
        let all = merge_bins(one.iter().chain(&other));
        let of = |upto, count| Bin { upto, count };
        assert_eq!(all, [of(1.0001, 8), of(1.09, 1), of(1.1901, 6), of(8.0, 1)]);
    }

    #[test]
    fn rates_add_up_and_times_do_not() {
        let result = |iters, seconds, p50| MemberResult {
            iters,
            seconds,
            ended: 10.0 + seconds,
            host: 1,
            p50,
            p99_9: 2.0 * p50,
            rank: p50,
            bins: Vec::new(),
        };
        let idle = result(0, 3.0, 0.0);
        let group = GroupResult::new(
            Pattern::Pairs,
            vec![idle.clone(), idle, result(100, 1.0, 0.01), result(100, 2.0, 0.02)],
        );
        assert_eq!((group.members, group.reading.iters), (4, 200));
        assert_eq!(group.each, [(2, 100, 1.0), (3, 100, 2.0)]);
        // The receiver ended last.
        assert_eq!(group.rate, 200.0 / 3.0);
        assert_eq!((group.reading.p50, group.reading.p99_9), (0.015, 0.04));
        assert_eq!(group.reading.overall, 0.015);
        // One after the other.
        let late = MemberResult { ended: 14.0, ..result(100, 1.0, 0.01) };
        let elsewhere = MemberResult { host: 2, ..late.clone() };
        assert_eq!(GroupResult::new(Pattern::Pairs, vec![result(100, 1.0, 0.01), late]).rate, 50.0);
        assert_eq!(GroupResult::new(Pattern::Pairs, vec![result(100, 1.0, 0.01), elsewhere]).rate, 200.0);
    }
}
