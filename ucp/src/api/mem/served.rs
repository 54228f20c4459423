//! Counts of what peers have done with memory of this process by packets.

use crate::api::worker::handle::Worker;
use crate::rdm::{RmaProtocol, served};

/// Number of operations of peers that were served by packets: by a worker ([`ServedOps::of`]), or on one
/// piece of memory ([`Mem::served`](crate::Mem::served)).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct ServedOps {
    /// Reads, and atomic operations with a result.
    pub reads: u64,
    /// Writes, and atomic operations without one.
    pub writes: u64,
}

impl ServedOps {
    /// Counts operations of peers on memory of this process that a worker has served by packets. Operations
    /// of devices, kernel copies and mappings are in no count.
    pub fn of(worker: &Worker) -> ServedOps {
        let core = worker.core_keep_idle();
        let served = served(core.engine.peers());
        let mut all = ServedOps::default();
        for (protocol, traffic) in RmaProtocol::ALL.into_iter().zip(served) {
            *(if protocol.is_read() { &mut all.reads } else { &mut all.writes }) += traffic.msgs;
        }
        all
    }
}
