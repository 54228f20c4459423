//! The send window. *"each endpoint has a send window, currently 4096 entries"*, *"once a segment is sent, it
//! is saved in window array until ACK is received"*, *"ACKs acknowledge all packets <= specified sequence #"*
//! (Reliability).

use crate::segment::SegId;
use crate::seq::Seq;
use std::collections::VecDeque;

/// Segments sent and not acknowledged, by sequence number.
pub struct SendWindow {
    /// Oldest number not acknowledged.
    first: Seq,
    /// From `first` on; `None` if acknowledged selectively.
    slots: VecDeque<Option<SegId>>,
    limit: u32,
}

/// Where an acknowledged number stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AckRange {
    /// Before what was acknowledged: ignored.
    Old,
    /// Nothing new.
    Same,
    /// Acknowledges segments.
    New,
    /// Never sent: the peer errs.
    Unsent,
}

impl SendWindow {
    /// Creates an empty window of `limit` entries.
    pub fn new(first: Seq, limit: u32) -> Self {
        SendWindow { first, slots: VecDeque::new(), limit }
    }

    /// Oldest number not acknowledged.
    pub fn first(&self) -> Seq {
        self.first
    }

    /// Number of the next segment.
    #[inline]
    pub fn next(&self) -> Seq {
        self.first.add(self.slots.len() as u32)
    }

    /// Numbers from the oldest not acknowledged to the newest sent.
    #[inline]
    pub fn len(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Whether everything sent is acknowledged.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Whether another segment may be sent. *"the endpoint's send window is open"* (Sending).
    #[inline]
    pub fn is_open(&self) -> bool {
        self.len() < self.limit
    }

    /// Most entries.
    pub fn limit(&self) -> u32 {
        self.limit
    }

    /// Shrinks the window to what both sides agree on, before anything is sent.
    pub fn set_limit(&mut self, limit: u32) {
        debug_assert!(self.slots.is_empty());
        self.limit = limit;
    }

    /// Saves a segment under the next number.
    #[inline]
    pub fn push(&mut self, seg: SegId) -> Seq {
        debug_assert!(self.is_open());
        let seq = self.next();
        self.slots.push_back(Some(seg));
        seq
    }

    /// Judges the number of an acknowledgement.
    pub fn judge(&self, ack: Seq) -> AckRange {
        let last = self.first.before();
        if ack == last {
            AckRange::Same
        } else if ack.is_before(last) {
            AckRange::Old
        } else if ack.is_before(self.next()) {
            AckRange::New
        } else {
            AckRange::Unsent
        }
    }

    /// Segment of a number, if it waits for its acknowledgement.
    pub fn get(&self, seq: Seq) -> Option<SegId> {
        self.slots.get(seq.since(self.first) as usize).copied().flatten()
    }

    /// Takes the segment of a number, which was acknowledged selectively.
    pub fn take(&mut self, seq: Seq) -> Option<SegId> {
        self.slots.get_mut(seq.since(self.first) as usize)?.take()
    }

    /// Takes the next segment up to `ack`, which must be [`AckRange::New`] or [`AckRange::Same`]; `None`
    /// when none is left.
    pub fn pop_up_to(&mut self, ack: Seq) -> Option<SegId> {
        while !ack.is_before(self.first) {
            let slot = self.slots.pop_front()?;
            self.first = self.first.add(1);
            if slot.is_some() {
                return slot;
            }
        }
        None
    }

    /// Takes every segment: the peer is dead.
    pub fn drain(&mut self) -> impl Iterator<Item = SegId> + '_ {
        self.first = self.next();
        self.slots.drain(..).flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acks_are_cumulative_and_old_ones_ignored() {
        let mut window = SendWindow::new(Seq(u32::MAX - 1), 4);
        for n in 0..4 {
            assert!(window.is_open());
            assert_eq!(window.push(SegId(n)), Seq(u32::MAX - 1).add(n));
        }
        assert!(!window.is_open(), "four of four");
        assert_eq!(window.judge(Seq(u32::MAX - 2)), AckRange::Same);
        assert_eq!(window.judge(Seq(u32::MAX - 3)), AckRange::Old);
        assert_eq!(window.judge(Seq(0)), AckRange::New);
        assert_eq!(window.judge(Seq(2)), AckRange::Unsent);
        assert_eq!(window.take(Seq(u32::MAX)), Some(SegId(1)));
        let freed: Vec<SegId> = std::iter::from_fn(|| window.pop_up_to(Seq(0))).collect();
        assert_eq!(freed, [SegId(0), SegId(2)], "the one between was acknowledged selectively");
        assert_eq!((window.first(), window.len()), (Seq(1), 1));
        assert_eq!(window.judge(Seq(u32::MAX)), AckRange::Old);
        assert_eq!(window.get(Seq(1)), Some(SegId(3)));
        assert_eq!(window.get(Seq(2)), None);
    }
}
