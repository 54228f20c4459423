//! The received bytes of a message. Segments come in any order; one that overlaps received bytes is refused,
//! so a message never completes with a hole. In-order arrival costs a compare and an add.

/// Received bytes of one message: `0..low`, and islands above it.
#[derive(Debug, Default)]
pub struct ReceivedRanges {
    low: u64,
    arrived: u64,
    /// Ascending, disjoint, touching neither each other nor `low`.
    islands: Vec<(u64, u64)>,
}

/// Most islands kept: more than any window of packets can make, few enough to bound the cost of a peer.
const MAX_ISLANDS: usize = 65536;

impl ReceivedRanges {
    pub const fn new() -> ReceivedRanges {
        ReceivedRanges { low: 0, arrived: 0, islands: Vec::new() }
    }

    #[inline]
    pub const fn bytes(&self) -> u64 {
        self.arrived
    }

    /// Adds `len` bytes at `at`; false, with nothing changed, if any of them have been received. // HOT
    #[inline]
    pub fn add(&mut self, at: u64, len: u64) -> bool {
        if at == self.low && self.islands.is_empty() {
            self.low += len;
            self.arrived += len;
            return true;
        }
        self.add_apart(at, len)
    }

    /// Whether any of `len` bytes at `at` have been received.
    #[cold]
    pub fn touches(&self, at: u64, len: u64) -> bool {
        let end = at.saturating_add(len);
        let i = self.islands.partition_point(|&(_, to)| to <= at);
        len > 0 && (at < self.low || self.islands.get(i).is_some_and(|&(from, _)| from < end))
    }

    fn add_apart(&mut self, at: u64, len: u64) -> bool {
        let Some(end) = at.checked_add(len) else { return false };
        if len == 0 {
            return true;
        }
        let i = self.islands.partition_point(|&(_, to)| to <= at);
        if at < self.low || self.islands.get(i).is_some_and(|&(from, _)| from < end) {
            return false;
        }
        let joins_left = i > 0 && self.islands[i - 1].1 == at;
        let joins_right = self.islands.get(i).is_some_and(|&(from, _)| from == end);
        match (joins_left, joins_right) {
            (true, true) => {
                self.islands[i - 1].1 = self.islands[i].1;
                self.islands.remove(i);
            }
            (true, false) => self.islands[i - 1].1 = end,
            (false, true) => self.islands[i].0 = at,
            (false, false) if self.islands.len() == MAX_ISLANDS => return false,
            (false, false) => self.islands.insert(i, (at, end)),
        }
        self.arrived += len;
        if self.islands[0].0 == self.low {
            self.low = self.islands.remove(0).1;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn empty_segments_are_harmless() {
        let mut received = ReceivedRanges::new();
        assert!(received.add(0, 0) && received.add(5, 0) && received.add(2, 1) && received.add(0, 0));
        assert_eq!(received.bytes(), 1);
        assert!(!received.add(u64::MAX, 2));
    }

    proptest! {
        #[test]
        fn agrees_with_a_bitmap(segs in prop::collection::vec((0u64..64, 1u64..9), 0..60)) {
            let mut received = ReceivedRanges::new();
            let mut map = [false; 80];
            for (at, len) in segs {
                let bits = &mut map[at as usize..(at + len) as usize];
                let free = bits.iter().all(|b| !b);
                prop_assert_eq!(received.touches(at, len), !free);
                prop_assert_eq!(received.add(at, len), free);
                if free {
                    bits.fill(true);
                }
                prop_assert_eq!(received.bytes(), map.iter().filter(|b| **b).count() as u64);
            }
        }
    }
}
