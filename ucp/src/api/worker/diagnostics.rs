//! Snapshot of a worker's resources for tests, tools and bug reports.

use uct::api::DeviceCounters;
use uct::rcache::CacheStats;

use crate::api::core::report::device_counters;
use crate::api::worker::handle::Worker;

use crate::rdm::io::PeerId;
use crate::rdm::stats::PeerStats;
use crate::rdm::{EngineSnapshot, PeerView};

impl Worker {
    /// Resources in use and counters by peer.
    pub fn diagnostics(&self) -> Diagnostics<'_> {
        Diagnostics { worker: self }
    }
}

/// Resources in use and counters by peer of a worker. See [`Worker::diagnostics`].
#[derive(Clone, Copy)]
pub struct Diagnostics<'a> {
    worker: &'a Worker,
}

impl Diagnostics<'_> {
    /// Memory of unexpected messages and of reordered packets, bytes.
    pub fn held_bytes(&self) -> usize {
        self.worker.core().engine.pending().held_bytes()
    }

    /// Memory of unexpected messages, bytes, as limited by `UCX_UNEXP_MEM`.
    pub fn unexpected_bytes(&self) -> usize {
        self.worker.core().engine.pending().unexpected_bytes()
    }

    /// Contents of the protocol engine.
    pub fn snapshot(&self) -> EngineSnapshot {
        self.worker.core().engine.snapshot()
    }

    /// Memory regions registered for running operations.
    pub fn registrations(&self) -> usize {
        self.worker.core().regs.len()
    }

    /// Registrations made so far by operations of this worker on memory that was not registered or cached.
    pub fn registrations_made(&self) -> u64 {
        self.worker.core().regs.registered()
    }

    /// Counters and contents of the registration caches of all transports, which the context's workers share.
    pub fn registration_cache(&self) -> CacheStats {
        self.worker.core().regs.cache_stats()
    }

    /// Counters of the devices of the lanes by name and part, each device once: for the software EFA device
    /// over UDP what was sent again and why, acknowledgements, stalls, and round-trip times.
    pub fn device_counters(&self) -> Vec<(String, Vec<DeviceCounters>)> {
        device_counters(&self.worker.core().ifaces)
    }

    /// Operations that are running, or completed and not yet freed.
    pub fn requests(&self) -> usize {
        self.worker.core().reqs.len()
    }

    /// Engine's view of a peer, also of one without endpoint. `None` once the peer is removed.
    pub fn peer_view(&self, peer: PeerId) -> Option<PeerView> {
        self.worker.core().engine.peers().info(peer)
    }

    /// Traffic to and from a peer.
    pub fn peer_stats(&self, peer: PeerId) -> PeerStats {
        self.worker.core().engine.peers().peer_stats(peer)
    }

    /// Remote writes discarded because the queue of [`Worker::take_remote_write`] was full.
    pub fn lost_remote_writes(&self) -> u64 {
        self.worker.core().remote_writes.lost
    }
}
