//! The transport's endpoints of all peers.

use std::time::{Duration, Instant};

use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;
use ucs::coll::growth;
use uct::api::{Ep as _, EpTag, Error};

use super::errors::{is_shortage, refused};
use super::{Ep, IfaceIdx};
use crate::rdm::io::{LaneId, NotPosted, PeerId};

/// A peer's endpoint and its lane.
pub(crate) struct PeerEp {
    pub ep: Ep,
    mtu: u32,
    pub lane: IfaceIdx,
}

impl PeerEp {
    pub(crate) fn mtu(&self) -> usize {
        self.mtu as usize
    }
}

/// Endpoints of all peers, by peer id, and of further lanes.
#[derive(Default)]
pub(crate) struct PeerEps {
    by_peer: Vec<Option<PeerEp>>,
    further: HashMap<LaneId, PeerEp, FxBuildHasher>,
    /// Endpoints abandoned after a NIC failure. Packets sent on them may still come back.
    abandoned: Vec<(PeerId, Ep)>,
    /// Lanes whose sends fail for want of memory or descriptors, and since when. Nearly always empty.
    shortages: Vec<(LaneId, Instant)>,
}

/// Longest local shortage; sends to the peer wait meanwhile, then the peer fails.
const MAX_SHORTAGE: Duration = Duration::from_secs(1);

impl PeerEps {
    #[inline(always)]
    pub(crate) fn get(&self, peer: PeerId) -> Option<&PeerEp> {
        self.by_peer.get(peer.0 as usize)?.as_ref()
    }

    /// Returns the endpoint of a lane; of a first lane, that of the lane which its peer uses.
    // HOT
    #[inline(always)]
    pub(crate) fn on_lane(&self, lane: LaneId) -> Option<&PeerEp> {
        match lane.first_of() {
            Some(peer) => self.get(peer),
            None => self.further.get(&lane),
        }
    }

    pub(crate) fn set(&mut self, id: impl Into<LaneId>, lane: IfaceIdx, ep: Ep) {
        let id = id.into();
        ep.set_tag(EpTag(u64::from(id.0)));
        let mtu = u32::try_from(1 + ep.max_bcopy()).unwrap_or(u32::MAX);
        let new = PeerEp { ep, mtu, lane };
        let Some(peer) = id.first_of() else {
            self.further.insert(id, new);
            return;
        };
        let at = peer.0 as usize;
        while self.by_peer.len() <= at {
            growth::push(&mut self.by_peer, None);
        }
        self.by_peer[at] = Some(new);
    }

    /// Maps an error of the endpoint: a local shortage delays the send until [`MAX_SHORTAGE`] has passed.
    #[cold]
    #[inline(never)]
    pub(super) fn send_error(&mut self, to: LaneId, e: Error) -> NotPosted {
        if !is_shortage(&e) {
            return refused(e);
        }
        let now = Instant::now();
        // A shortage that has ended and returns later counts anew.
        self.shortages.retain(|(_, since)| now - *since < 2 * MAX_SHORTAGE);
        match self.shortages.iter().find(|(lane, _)| *lane == to) {
            Some((_, since)) if now - *since >= MAX_SHORTAGE => refused(e),
            Some(_) => NotPosted::Full,
            None => {
                tracing::warn!(lane = to.0, "cannot reach a peer yet: {e}");
                self.shortages.push((to, now));
                NotPosted::Full
            }
        }
    }

    /// Moves a peer to another endpoint and keeps the old one among those abandoned.
    pub(super) fn replace(&mut self, peer: PeerId, lane: IfaceIdx, ep: Ep) {
        let old = self.by_peer.get_mut(peer.0 as usize).and_then(Option::take);
        self.abandoned.extend(old.map(|peer_ep| (peer, peer_ep.ep)));
        self.set(peer, lane, ep);
    }

    /// Takes the endpoint of a further lane, which becomes the first one of its peer.
    pub(super) fn take_further(&mut self, lane: LaneId) -> Option<PeerEp> {
        self.further.remove(&lane)
    }

    pub(crate) fn abandoned(&self, peer: PeerId) -> impl Iterator<Item = &Ep> {
        self.abandoned.iter().filter(move |(of, _)| *of == peer).map(|(_, ep)| ep)
    }

    /// Returns the upper bound of peer ids that have or had an endpoint.
    pub(crate) fn slots(&self) -> usize {
        self.by_peer.len()
    }

    pub(crate) fn forget(&mut self, peer: PeerId) {
        if let Some(peer_ep) = self.by_peer.get_mut(peer.0 as usize) {
            *peer_ep = None;
        }
        self.abandoned.retain(|(of, _)| *of != peer);
    }

    /// Drops the endpoint of a lane that the engine has removed.
    pub(crate) fn forget_lane(&mut self, lane: LaneId) {
        match lane.first_of() {
            Some(peer) => self.forget(peer),
            None => drop(self.further.remove(&lane)),
        }
    }
}
