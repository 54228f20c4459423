//! Queue of remote writes with data, until the program takes them.

use std::collections::VecDeque;

use crate::rdm::io::PeerId;

/// Completed write of a peer to local memory that carried data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct RemoteWrite {
    /// Writing peer.
    pub from: PeerId,
    /// Bytes written.
    pub len: u64,
    /// Data sent with the write.
    pub cq_data: u64,
}

/// Bounded queue of remote writes: the peer decides how many there are.
#[derive(Default)]
pub(crate) struct RemoteWrites {
    pub(crate) queue: VecDeque<RemoteWrite>,
    pub(crate) lost: u64,
}

impl RemoteWrites {
    /// Capacity; further writes are counted as lost.
    const MAX: usize = 1 << 20;

    pub(crate) fn push(&mut self, write: RemoteWrite) {
        if self.queue.len() < Self::MAX {
            self.queue.push_back(write);
        } else {
            self.lost += 1;
        }
    }

    // HOT
    #[inline]
    pub(crate) fn take(&mut self) -> Option<RemoteWrite> {
        if self.queue.is_empty() { None } else { self.queue.pop_front() }
    }
}
