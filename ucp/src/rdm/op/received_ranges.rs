//! The received bytes of a message. Segments come in any order; one that overlaps received bytes is refused,
//! so a message never completes with a hole. In-order arrival costs a compare and an add.

/// Received bytes of one message: `0..contiguous`, and `ranges` above it.
#[derive(Debug, Default)]
pub struct ReceivedRanges {
    contiguous: u64,
    total: u64,
    /// Ascending, disjoint, touching neither each other nor `contiguous`.
    ranges: Vec<(u64, u64)>,
}

/// Most ranges kept: more than any window of packets can make, few enough to bound the cost of a peer.
const MAX_RANGES: usize = 65536;

impl ReceivedRanges {
    pub const fn new() -> ReceivedRanges {
        ReceivedRanges { contiguous: 0, total: 0, ranges: Vec::new() }
    }

    #[inline]
    pub const fn bytes(&self) -> u64 {
        self.total
    }

    /// Adds `len` bytes at `at`; false, with nothing changed, if any of them have been received.
    // HOT
    #[inline]
    pub fn add(&mut self, at: u64, len: u64) -> bool {
        if at == self.contiguous && self.ranges.is_empty() {
            self.contiguous += len;
            self.total += len;
            return true;
        }
        self.add_out_of_order(at, len)
    }

    /// Whether any of `len` bytes at `at` have been received.
    #[cold]
    pub fn touches(&self, at: u64, len: u64) -> bool {
        let end = at.saturating_add(len);
        let i = self.ranges.partition_point(|&(_, to)| to <= at);
        len > 0 && (at < self.contiguous || self.ranges.get(i).is_some_and(|&(from, _)| from < end))
    }

    fn add_out_of_order(&mut self, at: u64, len: u64) -> bool {
        let Some(end) = at.checked_add(len) else { return false };
        if len == 0 {
            return true;
        }
        let i = self.ranges.partition_point(|&(_, to)| to <= at);
        if at < self.contiguous || self.ranges.get(i).is_some_and(|&(from, _)| from < end) {
            return false;
        }
        let joins_left = i > 0 && self.ranges[i - 1].1 == at;
        let joins_right = self.ranges.get(i).is_some_and(|&(from, _)| from == end);
        match (joins_left, joins_right) {
            (true, true) => {
                self.ranges[i - 1].1 = self.ranges[i].1;
                self.ranges.remove(i);
            }
            (true, false) => self.ranges[i - 1].1 = end,
            (false, true) => self.ranges[i].0 = at,
            (false, false) if self.ranges.len() == MAX_RANGES => return false,
            (false, false) => self.ranges.insert(i, (at, end)),
        }
        self.total += len;
        if self.ranges[0].0 == self.contiguous {
            self.contiguous = self.ranges.remove(0).1;
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
