//! Histogram with a bucket per power of two, for distributions on a hot path. Tools have a finer one.

use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};

const BUCKETS: usize = 65;

/// Counts of values by number of significant bits: bucket 0 holds 0, bucket `b` holds `2^(b-1) ..= 2^b - 1`.
#[derive(Clone, PartialEq, Eq)]
pub struct Hist {
    counts: [u64; BUCKETS],
    sum: u64,
    max: u64,
}

impl Hist {
    /// Empty.
    pub const fn new() -> Hist {
        Hist { counts: [0; BUCKETS], sum: 0, max: 0 }
    }

    /// Counts one value.
    #[inline]
    // HOT
    pub fn record(&mut self, value: u64) {
        self.counts[(u64::BITS - value.leading_zeros()) as usize] += 1;
        self.sum = self.sum.wrapping_add(value);
        self.max = self.max.max(value);
    }

    /// Number of values.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Largest value.
    pub const fn max(&self) -> u64 {
        self.max
    }

    /// Arithmetic mean; 0 when empty.
    pub fn mean(&self) -> f64 {
        match self.count() {
            0 => 0.0,
            n => self.sum as f64 / n as f64,
        }
    }

    /// Upper bound of quantile `q` (0 to 1): its bucket's edge, at most [`max`](Self::max). 0 when empty.
    pub fn quantile(&self, q: f64) -> u64 {
        let rank = (q.clamp(0.0, 1.0) * self.count() as f64).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (bucket, n) in self.counts.iter().enumerate() {
            seen += n;
            if seen >= rank {
                return upper(bucket).min(self.max);
            }
        }
        self.max
    }

    /// Lower edge, upper edge and count of each bucket that is not empty, ascending.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64, u64)> {
        self.counts.iter().enumerate().filter(|(_, n)| **n > 0).map(|(b, n)| (lower(b), upper(b), *n))
    }

    /// Adds what another one counted.
    pub fn add(&mut self, other: &Hist) {
        self.counts.iter_mut().zip(other.counts).for_each(|(a, b)| *a += b);
        self.sum = self.sum.wrapping_add(other.sum);
        self.max = self.max.max(other.max);
    }
}

const fn lower(bucket: usize) -> u64 {
    if bucket == 0 { 0 } else { 1 << (bucket - 1) }
}

const fn upper(bucket: usize) -> u64 {
    if bucket == 0 { 0 } else { u64::MAX >> (64 - bucket) }
}

impl Default for Hist {
    fn default() -> Self {
        Hist::new()
    }
}

impl std::fmt::Debug for Hist {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_map().entries(self.buckets().map(|(low, _, n)| (low, n))).finish()
    }
}

impl Serialize for Hist {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let mut map = s.serialize_map(None)?;
        for (low, _, n) in self.buckets() {
            map.serialize_entry(&low, &n)?;
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edges_fall_into_their_buckets() {
        let mut hist = Hist::new();
        for v in [0, 1, 2, 3, 4, u64::MAX] {
            hist.record(v);
        }
        let all: Vec<_> = hist.buckets().collect();
        assert_eq!(all, [(0, 0, 1), (1, 1, 1), (2, 3, 2), (4, 7, 1), (1 << 63, u64::MAX, 1)]);
    }

    #[test]
    fn quantiles_bound_from_above() {
        let mut hist = Hist::new();
        assert_eq!((hist.quantile(0.5), hist.mean()), (0, 0.0));
        (1..=100).for_each(|v| hist.record(v));
        assert_eq!(hist.quantile(0.5), 63);
        assert_eq!(hist.quantile(1.0), 100);
        assert_eq!(hist.quantile(0.0), 1);
        assert_eq!((hist.count(), hist.max(), hist.mean()), (100, 100, 50.5));
        let mut two = hist.clone();
        two.add(&hist);
        assert_eq!(two.count(), 200);
    }
}
