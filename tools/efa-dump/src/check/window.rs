//! Bytes of a message that come in windows: granted and received.

use super::Finding;

/// Disjoint ranges of bytes.
#[derive(Default)]
pub struct Ranges(std::collections::BTreeMap<u64, u64>);

impl Ranges {
    /// Adds a range; returns false if it overlaps another.
    pub fn add(&mut self, from: u64, to: u64) -> bool {
        if from >= to {
            return true;
        }
        if self.0.range(..to).next_back().is_some_and(|(_, end)| *end > from) {
            return false;
        }
        self.0.insert(from, to);
        true
    }
}

/// The receiving side of a windowed transfer.
pub struct Window {
    /// Id of the data sender, if known.
    pub send_id: Option<u32>,
    total: u64,
    granted: u64,
    got: u64,
    ranges: Ranges,
}

impl Window {
    /// A transfer of `total` bytes: `granted` may come before the first CTS, `got` have come.
    pub fn new(send_id: Option<u32>, total: u64, granted: u64, got: u64) -> Window {
        let mut ranges = Ranges::default();
        ranges.add(0, got);
        Window { send_id, total, granted, got, ranges }
    }

    pub fn grant(&mut self, bytes: u64, found: &mut Vec<Finding>) {
        let left = self.granted.saturating_sub(self.got);
        if left > 0 {
            found.push(Finding::EarlyCts { left });
        }
        let missing = self.total.saturating_sub(self.granted);
        if bytes == 0 || bytes > missing {
            found.push(Finding::WrongCts { granted: bytes, missing });
        }
        self.granted = self.granted.saturating_add(bytes);
    }

    pub fn data(&mut self, offset: u64, len: u64, found: &mut Vec<Finding>) {
        let to = offset.saturating_add(len);
        if to > self.total {
            found.push(Finding::Outside { from: offset, to, total: self.total });
        } else if !self.ranges.add(offset, to) {
            found.push(Finding::Again { from: offset, to });
        }
        self.got = self.got.saturating_add(len);
        if self.got > self.granted {
            found.push(Finding::Overrun { over: self.got - self.granted });
            // Each surplus byte is reported once.
            self.granted = self.got;
        }
    }

    pub fn is_full(&self) -> bool {
        self.got >= self.total
    }
}
