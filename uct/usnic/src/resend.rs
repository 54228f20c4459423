//! Segments to send again. *"Each module also maintains a list of segments that need to be retransmitted.
//! Note that the list of pending retrans is per-module, not per-endpoint"* (Sending).
//!
//! The list says whose turn it is; which segment of that endpoint goes is decided then: the oldest. Without
//! selective acknowledgement nothing but the oldest moves the window, and the others may have arrived.

use crate::segment::SegId;
use crate::seq::Seq;
use std::cmp::Ordering;
use std::collections::{BinaryHeap, VecDeque};

/// A lost segment, and its count of uses, by which an entry is known to be stale.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lost {
    /// Number of the segment.
    pub seq: Seq,
    /// The segment.
    pub id: SegId,
    /// Count of its uses.
    pub uses: u32,
}

impl Ord for Lost {
    /// The oldest is the greatest. All numbers of a window are comparable.
    fn cmp(&self, other: &Lost) -> Ordering {
        (other.seq.0.wrapping_sub(self.seq.0) as i32).cmp(&0)
    }
}

impl PartialOrd for Lost {
    fn partial_cmp(&self, other: &Lost) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Lost segments of one endpoint.
#[derive(Default)]
pub struct LostSegments {
    lost: BinaryHeap<Lost>,
    /// Turns given up since the congestion window had no room.
    parked: usize,
    /// The next turn does not wait for room in the congestion window.
    bypasses_window: bool,
}

impl LostSegments {
    /// Adds a segment.
    pub fn push(&mut self, lost: Lost) {
        self.lost.push(lost);
    }

    /// Takes the oldest.
    pub fn pop(&mut self) -> Option<Lost> {
        self.lost.pop()
    }

    /// Gives a turn up until [`unpark`](Self::unpark).
    pub fn park(&mut self) {
        self.parked += 1;
    }

    /// Has the next turn sent without room in the congestion window. Returns how many turns to take again.
    pub fn bypass_window(&mut self) -> usize {
        self.bypasses_window = true;
        self.unpark(1)
    }

    /// Begins a turn. Returns whether it does not wait for room.
    pub fn take_bypass(&mut self) -> bool {
        std::mem::take(&mut self.bypasses_window)
    }

    /// Takes up to `most` turns that were given up.
    pub fn unpark(&mut self, most: usize) -> usize {
        let n = most.min(self.parked);
        self.parked -= n;
        n
    }

    /// Turns given up.
    pub fn parked(&self) -> usize {
        self.parked
    }

    /// Every entry, stale ones too.
    pub fn iter(&self) -> impl Iterator<Item = &Lost> {
        self.lost.iter()
    }
}

/// The module's list: an endpoint, by index, for each lost segment.
pub type ReSendList = VecDeque<u32>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_goes_first() {
        let mut lost = LostSegments::default();
        for n in [3u32, 0, 5, 1] {
            lost.push(Lost { seq: Seq(u32::MAX - 2).add(n), id: SegId(n), uses: 0 });
        }
        let order: Vec<u32> = std::iter::from_fn(|| lost.pop()).map(|lost| lost.id.0).collect();
        assert_eq!(order, [0, 1, 3, 5]);
        lost.park();
        lost.park();
        assert_eq!((lost.unpark(1), lost.unpark(5), lost.parked()), (1, 1, 0));
    }
}
