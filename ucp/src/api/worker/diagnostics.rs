//! What a worker holds at this moment, for tests, tools and bug reports. Reads the core and changes nothing.

use uct::rcache::CacheStats;

use crate::api::worker::handle::Worker;

use crate::rdm::EngineSnapshot;
use crate::rdm::io::PeerId;
use crate::rdm::stats::PeerStats;

impl Worker {
    /// Resources in use and counters by peer, for tests and bug reports.
    pub fn diagnostics(&self) -> Diagnostics<'_> {
        Diagnostics { worker: self }
    }
}

/// Resources of a worker in use, and counters by peer. See [`Worker::diagnostics`].
#[derive(Clone, Copy)]
pub struct Diagnostics<'a> {
    worker: &'a Worker,
}

impl Diagnostics<'_> {
    /// Bytes held of messages that nobody has received yet, and of packets that wait for their turn.
    pub fn held_bytes(&self) -> usize {
        self.worker.core().engine.held_bytes()
    }

    /// What messages cost that nobody has received yet, bytes: what `UCX_UNEXP_MEM` limits.
    pub fn unexpected_bytes(&self) -> usize {
        self.worker.core().engine.unexpected_bytes()
    }

    /// Everything that the protocol engine holds at this moment.
    pub fn snapshot(&self) -> EngineSnapshot {
        self.worker.core().engine.snapshot()
    }

    /// Memory that is registered for messages under way.
    pub fn registrations(&self) -> usize {
        self.worker.core().regs.len()
    }

    /// Registrations that messages, puts and gets have made so far: those that did not find their memory registered, by
    /// [`Worker::mem_map`] and [`Worker::mem_alloc`] or in a cache.
    pub fn registrations_made(&self) -> u64 {
        self.worker.core().regs.made()
    }

    /// What the caches of registrations of all transports did, together, and what they hold.
    pub fn registration_cache(&self) -> CacheStats {
        self.worker.core().regs.cache_stats()
    }

    /// Operations that are running, or have ended and not been picked up.
    pub fn requests(&self) -> usize {
        self.worker.core().reqs.len()
    }

    /// What went to one peer and came from it.
    pub fn peer_stats(&self, peer: PeerId) -> PeerStats {
        self.worker.core().engine.peer_stats(peer)
    }

    /// Announced writes that were forgotten since nobody asked for a million of them.
    pub fn lost_remote_writes(&self) -> u64 {
        self.worker.core().written.lost
    }
}
