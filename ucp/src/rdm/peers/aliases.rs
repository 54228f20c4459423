//! Peer aliases: a worker with several NICs may be known by several of its lanes, each of which is a peer of
//! the engine. A receive that takes messages of one peer takes those of its aliases too, and a peer that is
//! closed by force is closed under all aliases. Called where messages are matched and peers closed.

use crate::rdm::ids::{PeerId, Source};
use crate::rdm::peers::Peers;
use crate::rdm::peers::peer::Peer;
use crate::rdm::protocol::Kind;
use crate::rdm::recv::matching::Sender;

/// Resolves the peers under which one worker is known.
#[derive(Clone, Copy)]
pub(in crate::rdm) struct Aliases<'a> {
    peers: &'a Peers,
    kind: Kind,
}

/// A sender with its aliases.
#[derive(Clone, Copy)]
pub(in crate::rdm) struct AliasedSender<'a> {
    id: PeerId,
    aliases: Aliases<'a>,
}

impl Sender for AliasedSender<'_> {
    #[inline]
    fn is(self, only: PeerId) -> bool {
        self.id == only || self.aliases.is_same_worker(self.id, only)
    }
}

impl<'a> Aliases<'a> {
    pub(in crate::rdm) const fn new(peers: &'a Peers, kind: Kind) -> Aliases<'a> {
        Aliases { peers, kind }
    }

    /// Returns a peer as a sender.
    #[inline]
    pub(in crate::rdm) const fn sender(self, id: PeerId) -> AliasedSender<'a> {
        AliasedSender { id, aliases: self }
    }

    /// Whether two peers are of one worker. False for streams and active messages, which
    /// belong to one lane.
    fn is_same_worker(self, a: PeerId, b: PeerId) -> bool {
        self.peers.wires.len() > 1
            && matches!(self.kind, Kind::Tagged | Kind::Untagged)
            && self.main_peer_of(a) == self.main_peer_of(b)
    }

    /// Returns the main peer of a worker: the one that the others are further lanes of.
    fn main_peer_of(self, id: PeerId) -> PeerId {
        let Some(peer) = self.peers.table.get(id) else { return id };
        let others = || self.peers.wires[peer.home].rail_wires.iter();
        let others = others().filter_map(|wire| {
            let source = Source { node: peer.addr.node(), port: u32::from(peer.addr.qpn) };
            let other = self.peers.lookup.known(*wire, source)?;
            let candidate = &self.peers[other];
            // A peer that has failed over is found by its present lane.
            let moved_here = candidate.wire == *wire && candidate.home != *wire;
            (candidate.addr == peer.addr || moved_here).then_some(other)
        });
        let of = |id: PeerId| self.peers.table.get(id).and_then(Peer::further_lane_of);
        let mut peers = std::iter::once(id).chain(others);
        peers.clone().find_map(of).or_else(|| peers.by_ref().min()).unwrap_or(id)
    }
}

impl Peers {
    /// Returns the aliases for messages of this kind.
    #[inline]
    pub(in crate::rdm) fn aliases(&self, kind: Kind) -> Aliases<'_> {
        Aliases::new(self, kind)
    }
}

/// Returns the other peers of a peer's worker, without further lanes.
pub(in crate::rdm) fn other_aliases(peers: &Peers, id: PeerId) -> Vec<PeerId> {
    if peers.wires.len() < 2 {
        return Vec::new();
    }
    let aliases = peers.aliases(Kind::Tagged);
    let other = |(other, peer): &(PeerId, &Peer)| {
        *other != id && !peer.is_further_lane() && aliases.is_same_worker(*other, id)
    };
    peers.table.iter().filter(other).map(|(other, _)| other).collect()
}
