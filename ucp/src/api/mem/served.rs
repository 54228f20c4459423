//! Counts of what peers have done with memory of this process by packets.

use crate::api::worker::handle::Worker;
use crate::rdm::RmaProtocol;

/// Number of operations of peers that a worker has served by packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct ServedOps {
    /// Reads, and atomic operations with a result.
    pub reads: u64,
    /// Writes, and atomic operations without one.
    pub writes: u64,
}

impl Worker {
    /// Counts operations of peers on memory of this process that the worker has served by packets. Operations
    /// of devices, kernel copies and mappings are in no count.
    pub fn served_ops(&self) -> ServedOps {
        let core = self.core();
        let served = core.engine.peers().served();
        let mut all = ServedOps::default();
        for (protocol, traffic) in RmaProtocol::ALL.into_iter().zip(served) {
            *(if protocol.is_read() { &mut all.reads } else { &mut all.writes }) += traffic.msgs;
        }
        all
    }
}
