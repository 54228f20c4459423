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

/// Whether two peers are one, or are of one worker.
pub fn is_same_worker(peers: &Peers, a: PeerId, b: PeerId) -> bool {
    let worker = |id| peers.table.get(id).map(|peer| peer.worker);
    a == b || peers.wires.len() > 1 && worker(a).is_some_and(|a| worker(b) == Some(a))
}

/// Returns the number of the worker that has a lane at this address, which a peer on `wire` has too.
pub(in crate::rdm) fn worker_at(peers: &mut Peers, wire: WireId, addr: &RawAddr) -> u32 {
    let known = peers_at(peers, wire, *addr).next();
    known.map(|other| peers.table[other].worker).unwrap_or_else(|| peers.table.new_worker())
}

/// Gives the peers at the address of a further lane the worker of the lane's peer.
pub(in crate::rdm) fn join_worker(peers: &mut Peers, wire: WireId, addr: RawAddr, of: PeerId) {
    let worker = peers.table[of].worker;
    let others: Vec<PeerId> = peers_at(peers, wire, addr).collect();
    others.into_iter().for_each(|peer| peers.table[peer].worker = worker);
}

/// Iterates over the peers that have this address on the other rail wires.
fn peers_at(peers: &Peers, wire: WireId, addr: RawAddr) -> impl Iterator<Item = PeerId> {
    let others = peers.wires[wire].rail_wires.iter();
    others.filter_map(move |wire| {
        let lane = peers.lookup.known(*wire, Source::from(&addr))?;
        let Some(peer) = lane.first_of() else {
            return peers.table.lanes.get(lane).filter(|lane| lane.addr == addr)?.peer;
        };
        let candidate = &peers.table[peer];
        // A peer that has failed over is found by its present lane.
        let moved_here = candidate.wire == *wire && candidate.has_failed_over();
        (candidate.addr == addr || moved_here).then_some(peer)
    })
}

/// Returns the other peers of a peer's worker.
pub(in crate::rdm) fn others_of_worker(peers: &Peers, id: PeerId) -> Vec<PeerId> {
    let Some(peer) = peers.table.get(id).filter(|_| peers.wires.len() > 1) else { return Vec::new() };
    let is_other = |(other, of): &(PeerId, &Peer)| *other != id && of.worker == peer.worker;
    peers.table.iter().filter(is_other).map(|(other, _)| other).collect()
}
