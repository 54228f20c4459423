//! Workers behind peers: a worker with several NICs may be known by several pairs of NICs, each of which has
//! its own order of messages and is a peer of its own. Peers of one worker have one number. A receive that
//! takes messages of one of them takes those of all, and a close by force closes all.

use crate::rdm::ids::{PeerId, Source, WireId};
use crate::rdm::peers::Peers;
use crate::rdm::peers::peer::Peer;
use crate::rdm::protocol::Kind;
use crate::rdm::recv::matching::Sender;
use crate::wire::RawAddr;

/// The sender of a message of this kind, compared by its worker.
#[derive(Clone, Copy)]
pub(in crate::rdm) struct WorkerSender<'a> {
    id: PeerId,
    kind: Kind,
    peers: &'a Peers,
}

impl<'a> WorkerSender<'a> {
    #[inline]
    pub const fn new(peers: &'a Peers, kind: Kind, id: PeerId) -> WorkerSender<'a> {
        WorkerSender { id, kind, peers }
    }
}

impl Sender for WorkerSender<'_> {
    #[inline]
    fn is(self, only: PeerId) -> bool {
        // Streams and active messages belong to one peer.
        self.id == only
            || matches!(self.kind, Kind::Tagged | Kind::Untagged) && is_same_worker(self.peers, self.id, only)
    }
}

fn is_same_worker(peers: &Peers, a: PeerId, b: PeerId) -> bool {
    let worker = |id| peers.table.get(id).map(|peer| peer.worker);
    peers.wires.len() > 1 && worker(a).is_some_and(|a| worker(b) == Some(a))
}

impl Peers {
    /// Returns the number of the worker that has a lane at this address, which a peer on `wire` has too.
    pub(in crate::rdm) fn worker_at(&mut self, wire: WireId, addr: &RawAddr) -> u32 {
        let known = self.peers_at(wire, *addr).next();
        known.map(|other| self.table[other].worker).unwrap_or_else(|| self.table.new_worker())
    }

    /// Gives a lane, and the peers at the same address, the worker of the peer `of`.
    pub(in crate::rdm) fn join_worker(&mut self, lane: PeerId, of: PeerId) {
        let worker = self.table[of].worker;
        let (wire, addr) = (self.table[lane].home, self.table[lane].addr);
        let others: Vec<PeerId> = self.peers_at(wire, addr).collect();
        others.into_iter().chain([lane]).for_each(|peer| self.table[peer].worker = worker);
    }

    /// Iterates over the peers of this address on the other rail wires, by their first lanes.
    fn peers_at(&self, wire: WireId, addr: RawAddr) -> impl Iterator<Item = PeerId> {
        let others = self.wires[wire].rail_wires.iter();
        others.filter_map(move |wire| {
            let other = self.lookup.known(*wire, Source::from(&addr))?;
            let candidate = &self.table[other];
            // A peer that has failed over is found by its present lane.
            let moved_here = candidate.wire == *wire && candidate.home != *wire;
            (candidate.addr == addr || moved_here).then_some(other)
        })
    }

    /// Returns the other peers of a peer's worker, without further lanes.
    pub(in crate::rdm) fn others_of_worker(&self, id: PeerId) -> Vec<PeerId> {
        let Some(peer) = self.table.get(id).filter(|_| self.wires.len() > 1) else { return Vec::new() };
        let is_other =
            |(other, of): &(PeerId, &Peer)| *other != id && of.worker == peer.worker && !of.is_further_lane();
        self.table.iter().filter(is_other).map(|(other, _)| other).collect()
    }
}
