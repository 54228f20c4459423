//! Selection tables: a few size limits and as many protocols. Operations call `pick`; `Table::cheapest`
//! computes the limits.

use arrayvec::ArrayVec;

use super::cost::{self, Curve};
use crate::rdm::protocol::Protocol;

/// Maximum number of ranges in a table.
const MAX_RANGES: usize = 8;

/// Factor on the cost of a method that uses the peer's processor: it takes the time of two processors and
/// waits for the peer's next progress call.
pub(super) const TARGET_CPU_FACTOR: f64 = 4.0 / 3.0;

/// Protocol by size, for one [`SelectKey`](super::SelectKey) or for puts or gets of one kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Table<R = Protocol> {
    /// Upper ends of all ranges but the last.
    ends: [usize; MAX_RANGES - 1],
    protocols: [R; MAX_RANGES],
}

/// A range of sizes and its protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Range<R = Protocol> {
    /// Smallest size, bytes.
    pub from: usize,
    /// Largest size, bytes.
    pub to: usize,
    /// Protocol of the range.
    pub protocol: R,
}

/// Whether a method uses the peer's processor more than others do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum TargetCpu {
    Unused,
    Used,
}

/// A protocol, where it is allowed and its cost there.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct AllowedProtocol<R> {
    pub protocol: R,
    pub curve: Curve,
    pub target_cpu: TargetCpu,
}

impl<R: Copy> AllowedProtocol<R> {
    /// Cost for comparisons; `None` where the protocol is not allowed.
    pub fn score(&self, len: usize) -> Option<f64> {
        let cost = cost::at(&self.curve, len)?;
        Some(if self.target_cpu == TargetCpu::Used { cost * TARGET_CPU_FACTOR } else { cost })
    }
}

/// Index of the cheapest protocol for `len` bytes; the first of equals. Not for the hot path.
pub(super) fn best<R: Copy>(allowed: &[AllowedProtocol<R>], len: usize) -> Option<usize> {
    let scores = allowed.iter().enumerate().filter_map(|(n, protocol)| Some((n, protocol.score(len)?)));
    scores.reduce(|best, next| if next.1 < best.1 { next } else { best }).map(|(n, _)| n)
}

impl<R: Copy + PartialEq> Table<R> {
    /// Uses one protocol for all sizes.
    pub fn of(protocol: R) -> Table<R> {
        Table { ends: [usize::MAX; MAX_RANGES - 1], protocols: [protocol; MAX_RANGES] }
    }

    /// Takes the cheapest of `allowed` for each length, and `fallback` where there is none or the table is
    /// full: it must be legal for every message longer than one packet.
    pub(super) fn cheapest(allowed: &[AllowedProtocol<R>], fallback: R) -> Table<R> {
        let protocol = |len: usize| best(allowed, len).map_or(fallback, |n| allowed[n].protocol);
        // Between neighbouring borders each cost is one line, so two of them cross at most once.
        let mut borders: Vec<usize> =
            allowed.iter().flat_map(|o| &o.curve).map(|segment| segment.from).collect();
        borders.extend(allowed.iter().flat_map(|o| &o.curve).filter_map(|segment| segment.to.checked_add(1)));
        borders.push(0);
        borders.sort_unstable();
        borders.dedup();
        let mut found: Vec<(usize, R)> = Vec::new();
        for (n, &first) in borders.iter().enumerate() {
            let last = borders.get(n + 1).map_or(usize::MAX, |next| next - 1);
            let mut from = first;
            loop {
                let here = protocol(from);
                if found.last().is_none_or(|(_, before)| *before != here) {
                    found.push((from, here));
                }
                match next_change(protocol, from, last) {
                    Some(next) => from = next,
                    None => break,
                }
            }
        }
        let mut table = Table::of(fallback);
        let few = found.len() <= MAX_RANGES;
        for (n, (from, protocol)) in found.iter().enumerate().take(MAX_RANGES) {
            if n > 0 {
                table.ends[n - 1] = from - 1;
            }
            table.protocols[n] = if few || n < MAX_RANGES - 1 { *protocol } else { fallback };
        }
        let used = found.len().clamp(1, MAX_RANGES);
        let last = table.protocols[used - 1];
        table.protocols[used..].fill(last);
        table
    }

    /// Picks the protocol for `len` bytes.
    // HOT
    #[inline]
    pub const fn pick(&self, len: usize) -> R {
        let mut n = 0;
        while n < MAX_RANGES - 1 && len > self.ends[n] {
            n += 1;
        }
        self.protocols[n]
    }

    /// The whole table: ascending, without gaps, from 0 to `usize::MAX`.
    pub fn ranges(&self) -> impl Iterator<Item = Range<R>> + use<R> {
        let mut all = ArrayVec::<Range<R>, MAX_RANGES>::new();
        let mut from = 0;
        for n in 0..MAX_RANGES {
            let to = if n < MAX_RANGES - 1 { self.ends[n] } else { usize::MAX };
            match all.last_mut() {
                Some(last) if last.protocol == self.protocols[n] => last.to = to,
                _ => all.push(Range { from, to, protocol: self.protocols[n] }),
            }
            if to == usize::MAX {
                break;
            }
            from = to + 1;
        }
        all.into_iter()
    }
}

impl Table<Protocol> {
    /// Largest message that goes in one packet, bytes.
    pub const fn eager_max(&self) -> usize {
        self.ends[0]
    }
}

/// First length in `from..=last` that uses another protocol than `from` does.
fn next_change<R: Copy + PartialEq>(
    protocol: impl Fn(usize) -> R,
    from: usize,
    last: usize,
) -> Option<usize> {
    let here = protocol(from);
    // The minimum of lines is concave: a line that was left does not come back.
    let (mut same, mut other) = (from, last);
    if protocol(last) == here {
        return None;
    }
    while other - same > 1 {
        let mid = same + (other - same) / 2;
        if protocol(mid) == here { same = mid } else { other = mid }
    }
    Some(other)
}
