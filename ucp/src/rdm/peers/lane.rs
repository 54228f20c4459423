//! Lanes: pairs of NICs, one of ours and one of a peer's worker. A peer's first lane is a part of the peer;
//! further ones carry data of long transfers, and everything once the first is lost (RDM v4 chapter 11).

use std::ops::{Deref, DerefMut};

use ucs::coll::slots::Slots;

use crate::rdm::features::ReqHdr;
use crate::rdm::flow::retry::BackOff;
use crate::rdm::ids::{LaneId, PeerId, Source, WireId};
use crate::rdm::io::Rdma;
use crate::rdm::peers::state::{PeerFlags, PeerState};
use crate::rdm::rails::rail_plan::RailList;
use crate::rdm::status::PeerError;
use crate::rdm::types::PeerView;
use crate::wire::{Features, RawAddr};

/// State of a lane.
#[derive(Debug)]
pub struct Lane {
    /// Lifecycle, progress of the HANDSHAKE exchange, and flags.
    pub state: PeerState,
    /// Wire of its packets now.
    pub wire: WireId,
    /// Wire on which it was met: our packets carry our connid there, also after a failover.
    pub home: WireId,
    from: PackedSource,
    /// Address of the peer's NIC; the connid tells it from others with the same source.
    pub addr: RawAddr,
    /// Feature word of the peer, valid once its HANDSHAKE has arrived.
    pub features: Features,
    /// Why it failed.
    pub fault: Option<PeerError>,
}

/// A [`Source`] without padding.
#[derive(Clone, Copy, Debug)]
#[repr(C, packed(4))]
struct PackedSource {
    node: u64,
    port: u32,
}

impl Lane {
    pub fn new(wire: WireId, addr: RawAddr, from: Source) -> Lane {
        let (features, fault) = (Features::empty(), None);
        let from = PackedSource { node: from.node, port: from.port };
        Lane { state: PeerState::NEW, wire, home: wire, from, addr, features, fault }
    }

    /// Returns the source of the lane's packets.
    pub fn from(&self) -> Source {
        Source { node: self.from.node, port: self.from.port }
    }

    /// Sets the source of the lane's packets.
    pub fn set_from(&mut self, Source { node, port }: Source) {
        self.from = PackedSource { node, port };
    }

    /// Returns the identity header of our REQ packets on this lane.
    #[inline]
    pub fn hdr(&self) -> ReqHdr {
        self.state.hdr()
    }

    /// Takes the feature word of the peer's HANDSHAKE.
    pub fn set_features(&mut self, features: Features) {
        self.features = features;
        self.state.set_hdr(ReqHdr::after(features));
        self.state.insert(PeerFlags::HANDSHAKE_RECEIVED);
    }

    /// Returns the public view.
    pub fn view(&self, rdma: Rdma, outstanding: u32) -> PeerView {
        PeerView {
            wire: self.wire,
            addr: self.addr,
            from: self.from(),
            features: self.state.has(PeerFlags::HANDSHAKE_RECEIVED).then_some(self.features),
            hdr: self.hdr(),
            rdma,
            outstanding,
            fault: self.fault,
        }
    }
}

/// A lane that is not the first of a peer.
#[derive(Debug)]
pub struct FurtherLane {
    lane: Lane,
    /// The peer whose further lane it is, once that is known.
    pub peer: Option<PeerId>,
    /// Lanes that the peer announced over it as its own.
    pub announced: RailList<RawAddr>,
    /// Packets that came back.
    pub backoff: BackOff,
    /// The first lane is to be announced over it.
    pub announces_first: bool,
    /// The loss of the first lane is to be announced over it.
    pub announces_loss: bool,
}

impl FurtherLane {
    pub fn new(lane: Lane, peer: Option<PeerId>) -> FurtherLane {
        FurtherLane {
            lane,
            peer,
            announced: RailList::new(),
            backoff: BackOff::default(),
            announces_first: false,
            announces_loss: false,
        }
    }

    /// Returns what a peer needs of a lane that becomes its first, and what was announced over it.
    pub fn into_first(self) -> (Lane, RailList<RawAddr>, BackOff) {
        (self.lane, self.announced, self.backoff)
    }
}

impl Deref for FurtherLane {
    type Target = Lane;
    #[inline(always)]
    fn deref(&self) -> &Lane {
        &self.lane
    }
}

impl DerefMut for FurtherLane {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut Lane {
        &mut self.lane
    }
}

/// All further lanes, of peers and not yet of a peer.
#[derive(Debug, Default)]
pub struct LaneTable(Slots<FurtherLane, 20, { ucs::coll::slots::LOWER }>);

impl LaneTable {
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Adds a lane; `None`: there are too many.
    pub fn add(&mut self, lane: FurtherLane) -> Option<LaneId> {
        self.0.insert(lane).ok().map(LaneId::further)
    }

    pub fn get(&self, id: LaneId) -> Option<&FurtherLane> {
        self.0.get(id.slot()?)
    }

    pub fn get_mut(&mut self, id: LaneId) -> Option<&mut FurtherLane> {
        self.0.get_mut(id.slot()?)
    }

    pub fn remove(&mut self, id: LaneId) -> Option<FurtherLane> {
        self.0.remove(id.slot()?)
    }

    pub fn iter(&self) -> impl Iterator<Item = (LaneId, &FurtherLane)> {
        self.0.iter().map(|(id, lane)| (LaneId::further(id), lane))
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = (LaneId, &mut FurtherLane)> {
        self.0.iter_mut().map(|(id, lane)| (LaneId::further(id), lane))
    }
}
