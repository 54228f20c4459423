//! Bytes of a message that come in windows: what was granted, what came. Used by `talk` and `ids`.

use super::Finding;

/// Message of a message, none twice.
#[derive(Default)]
pub struct Ranges(std::collections::BTreeMap<u64, u64>);

impl Ranges {
    /// Adds a part; false if some of it is there already.
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

/// The receiving side of a transfer in windows.
pub struct Window {
    /// The data sender's id, where it is known.
    pub send_id: Option<u32>,
    total: u64,
    granted: u64,
    got: u64,
    ranges: Ranges,
}

impl Window {
    /// A transfer of `total` bytes, of which `granted` may come unasked and `got`, at the start, came.
    pub fn new(send_id: Option<u32>, total: u64, granted: u64, got: u64) -> Window {
        let mut ranges = Ranges::default();
        ranges.add(0, got);
        Window { send_id, total, granted, got, ranges }
    }

    /// A CTS.
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

    /// Data.
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
            // Each byte too many is reported once.
            self.granted = self.got;
        }
    }

    /// Whether everything came.
    pub fn is_full(&self) -> bool {
        self.got >= self.total
    }
}
