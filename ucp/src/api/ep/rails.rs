//! Several NICs: the further lanes of a worker that an endpoint's long transfers take beside its first one. Made by
//! `Worker::connect`; what goes over them is the engine's affair (`rdm::rails`). Never on the way of a message.

use uct::api::Iface as _;

use crate::address::Address;
use crate::api::core::ep_state::Rails;
use crate::api::core::worker_core::{Ask, Core};
use crate::api::ep::protocols::EpProtocols;
use crate::api::rma::rkey::Parts;

use crate::lane::{Route, further, source};
use crate::rdm::io::{PeerError, PeerId};
use crate::rdm::{LaneRank, PeerView, RailKeys, WireId};
use crate::select::Striping;
use crate::wire::RawAddr;

/// Which transfers [`EpProtocols::rail_plan`] is asked about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TransferKind {
    /// Long messages, which their receiver reads or has sent to it as it grants.
    Messages,
    /// Puts and gets that the device does, and long ones by packets.
    Rma,
}

/// A NIC that long transfers of an endpoint may go over.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rail {
    /// Our device.
    pub device: String,
    /// The peer's lane.
    pub peer: RawAddr,
    /// Whether the two lanes have met: until then it carries nothing. The first one always carries what there is.
    pub met: bool,
    /// Why it is lost, if it is.
    pub fault: Option<PeerError>,
}

impl std::fmt::Display for Rail {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} to {}: ", self.device, self.peer)?;
        match self.fault {
            Some(fault) => write!(f, "{fault}"),
            None => f.write_str(if self.met { "met" } else { "not met yet" }),
        }
    }
}

impl Core {
    /// Makes the further lanes of a peer known to the engine. One that cannot be connected to is left out.
    pub(crate) fn add_rails(&mut self, peer: PeerId, main: &Route<'_>, address: &Address) -> Rails {
        let mut rails = Rails::new();
        for route in further(&self.lanes, main, address).into_iter().take(rails.capacity()) {
            match self.add_peer(&route, Ask::Now) {
                Ok(rail) => rails.push(rail),
                Err(why) => {
                    let device = &self.lanes[usize::from(route.lane.0)].iface.attr().dev;
                    tracing::debug!(peer = peer.0, device, "no further lane: {why}");
                }
            }
        }
        let (engine, mut wire, _) = self.split();
        engine.set_peer_rails(&mut wire, peer, &rails);
        rails
    }

    /// How good a route is, beside its cost: one by which the two go on is better than another, and one of which a NIC was
    /// lost is taken only if there is no other.
    pub(crate) fn rank(&self, route: &Route<'_>) -> LaneRank {
        let wire = self.lanes[usize::from(route.lane.0)].wire;
        self.engine.lane_rank(wire, &RawAddr::from_bytes(&route.raw), source(&route.raw))
    }

    /// The keys of a peer's memory on its further lanes.
    pub(crate) fn rail_keys(&self, rails: &Rails, parts: &Parts<'_>) -> RailKeys {
        std::array::from_fn(|n| {
            let connid = self.engine.peer_info(*rails.get(n)?)?.addr.connid;
            let (.., word) = parts.lanes.iter().find(|(id, ..)| *id == connid)?;
            *word
        })
    }

    /// Fewest bytes of a put or get that may go over several lanes of a peer.
    pub(crate) fn rail_from(&self, keys: &RailKeys) -> u64 {
        if keys.iter().all(Option::is_none) {
            u64::MAX
        } else {
            self.engine.config().rma_chunk.saturating_mul(2)
        }
    }
}

impl EpProtocols<'_> {
    /// Over how many NICs long messages go, or puts and gets. What fits a packet, or few, goes over one.
    pub fn rail_plan(&self, of: TransferKind) -> Striping {
        let core = self.ep.worker().core();
        let (cfg, nics) = (core.engine.config(), 1 + self.ep.further_lanes().len());
        let (most, chunk) = match of {
            TransferKind::Messages => (cfg.rndv_rails, cfg.rndv_chunk),
            TransferKind::Rma => (cfg.rma_rails, cfg.rma_chunk),
        };
        Striping { nics, max_rails: usize::from(most), min_chunk: chunk }
    }

    /// The NICs that long transfers to this peer may go over: the first is the one that everything else takes. FenceScope them
    /// are those that the peer has left because they, or the peer's, were lost.
    pub fn rails(&self) -> Vec<Rail> {
        let core = self.ep.worker().core();
        let view = |peer: PeerId| core.engine.peer_info(peer);
        let device = |wire: WireId| {
            let lane = core.lanes.iter().find(|lane| lane.wire == wire)?;
            Some(lane.iface.attr().dev.clone())
        };
        let rail = |view: PeerView| {
            let device = device(view.wire)?;
            Some(Rail { device, peer: view.addr, met: view.features.is_some(), fault: view.fault })
        };
        let Some(main) = view(self.ep.peer()) else { return Vec::new() };
        let further = self.ep.further_lanes().iter().filter_map(|&peer| view(peer));
        // A peer that goes on over a further lane is where that is.
        let (taken, others): (Vec<_>, Vec<_>) = further.partition(|view| view.wire == main.wire);
        let first = PeerView { addr: taken.first().map_or(main.addr, |view| view.addr), ..main };
        let left = core.engine.failed_lanes(self.ep.peer()).iter().filter_map(|left| {
            let device = device(left.wire)?;
            Some(Rail { device, peer: left.addr, met: true, fault: Some(left.fault) })
        });
        let others = others.into_iter().filter(|view| {
            core.engine.failed_lanes(self.ep.peer()).iter().all(|left| left.wire != view.wire)
        });
        [first].into_iter().chain(others).filter_map(rail).chain(left).collect()
    }
}
