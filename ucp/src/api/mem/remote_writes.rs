//! Announced remote writes that the program has not asked for yet.

use std::collections::VecDeque;

use crate::rdm::io::PeerId;

/// A peer has written to our memory, and said so.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RemoteWrite {
    /// Which peer.
    pub from: PeerId,
    /// Bytes it wrote.
    pub len: u64,
    /// What it said with it.
    pub cq_data: u64,
}

/// Announced writes nobody has asked for yet. A peer decides how many there are, so there is a limit.
#[derive(Default)]
pub(crate) struct RemoteWrites {
    pub(crate) queue: VecDeque<RemoteWrite>,
    pub(crate) lost: u64,
}

impl RemoteWrites {
    /// Most that are kept.
    const MAX: usize = 1 << 20;

    pub(crate) fn push(&mut self, write: RemoteWrite) {
        if self.queue.len() < Self::MAX {
            self.queue.push_back(write);
        } else {
            self.lost += 1;
        }
    }

    pub(crate) fn take(&mut self) -> Option<RemoteWrite> {
        self.queue.pop_front()
    }
}
