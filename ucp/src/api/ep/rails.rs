//! Multi-rail: further lanes for long transfers of an endpoint (see `rdm::rails`).

use uct::api::{ConnectError, Ep as _, Iface as _};

use crate::address::Address;
use crate::api::core::ep_state::Rails;
use crate::api::core::worker_core::WorkerCore;
use crate::api::ep::protocols::EpProtocols;
use crate::api::rma::packed_rkey::PackedRkey;

use crate::lane::{Route, further_routes, source};
use crate::rdm::io::{LaneId, PeerError, PeerId};
use crate::rdm::{LaneRank, PeerView, RailKeys, WireId};
use crate::select::Striping;
use crate::wire::RawAddr;

/// Kind of transfer of a [`EpProtocols::rail_plan`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum TransferKind {
    /// Long messages, read by the receiver or sent as it grants.
    Messages,
    /// Puts and gets by the device, and long ones by packets.
    Rma,
}

/// NIC for long transfers of an endpoint.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Rail {
    /// Local device.
    pub device: String,
    /// Address of the peer's lane.
    pub peer: RawAddr,
    /// Whether the lanes have completed a handshake. A further lane carries nothing before.
    pub has_handshake: bool,
    /// Error of a failed lane.
    pub fault: Option<PeerError>,
}

impl std::fmt::Display for Rail {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} to {}: ", self.device, self.peer)?;
        match self.fault {
            Some(fault) => write!(f, "{fault}"),
            None => f.write_str(if self.has_handshake { "connected" } else { "no handshake yet" }),
        }
    }
}

/// Adds the further lanes of a peer. Skips lanes that cannot connect.
pub(crate) fn add_rails(core: &mut WorkerCore, peer: PeerId, main: &Route<'_>, address: &Address) -> Rails {
    let mut rails = Rails::new();
    for route in further_routes(&core.ifaces, main, address).into_iter().take(rails.capacity()) {
        match add_lane(core, peer, &route) {
            Ok(lane) => rails.extend(lane),
            Err(why) => {
                let device = &core.ifaces[usize::from(route.lane.0)].iface.attr().dev;
                tracing::debug!(peer = peer.0, device, "no further lane: {why}");
            }
        }
    }
    let (engine, mut wire, _) = core.split();
    engine.set_peer_lanes(&mut wire, peer, &rails);
    rails
}

/// Adds a further lane of a peer. `None`: it is a peer of its own.
fn add_lane(core: &mut WorkerCore, peer: PeerId, route: &Route<'_>) -> Result<Option<LaneId>, ConnectError> {
    let lane = &core.ifaces[usize::from(route.lane.0)];
    let ep = lane.iface.connect(&route.entry.device, &route.entry.iface)?;
    ep.begin_connecting()?;
    let (wire, addr) = (lane.wire, RawAddr::from_bytes(&route.raw));
    let added = core.engine.peers_mut().add_lane(peer, wire, addr, source(&route.raw));
    if let Some(id) = added
        && core.peer_eps.on_lane(id).is_none()
    {
        core.peer_eps.set(id, route.lane, ep);
    }
    Ok(added)
}

/// Rank of a route apart from its cost: prefers the lane in use after failover, avoids failed lanes.
pub(crate) fn rank(core: &WorkerCore, route: &Route<'_>) -> LaneRank {
    let wire = core.ifaces[usize::from(route.lane.0)].wire;
    core.engine.peers().lane_rank(wire, &RawAddr::from_bytes(&route.raw), source(&route.raw))
}

/// Returns the label of the memory domain that the other end of a lane is of.
pub(crate) fn remote_domain(core: &WorkerCore, lane: impl Into<LaneId>) -> Option<u32> {
    let view = core.engine.peers().lane_info(lane.into())?;
    let lane = core.ifaces.iter().find(|lane| lane.wire == view.wire)?;
    Some(lane.remote_domain(&view.addr.to_bytes()))
}

pub(crate) fn rail_keys(core: &WorkerCore, rails: &Rails, packed: &PackedRkey<'_>) -> RailKeys {
    std::array::from_fn(|n| {
        let label = remote_domain(core, *rails.get(n)?)?;
        let (.., device_key) = packed.domains.iter().find(|(of, ..)| *of == label)?;
        *device_key
    })
}

/// Shortest put or get that may use several lanes, bytes.
pub(crate) fn min_striped_len(core: &WorkerCore, keys: &RailKeys) -> u64 {
    if keys.iter().all(Option::is_none) {
        u64::MAX
    } else {
        core.engine.peers().config().rma_chunk.saturating_mul(2)
    }
}

impl EpProtocols<'_> {
    /// Number of NICs for long transfers. A transfer of few packets takes one.
    pub fn rail_plan(&self, of: TransferKind) -> Striping {
        let core = self.ep.worker().core();
        let (cfg, nics) = (core.engine.peers().config(), 1 + self.ep.state().rails().len());
        let (most, chunk) = match of {
            TransferKind::Messages => (cfg.rndv_rails, cfg.rndv_chunk),
            TransferKind::Rma => (cfg.rma_rails, cfg.rma_chunk),
        };
        Striping { nics, max_rails: usize::from(most), min_chunk: chunk }
    }

    /// NICs for long transfers to this peer. The first carries everything else; failed lanes come last.
    pub fn rails(&self) -> Vec<Rail> {
        let core = self.ep.worker().core();
        let view = |peer: PeerId| core.engine.peers().info(peer);
        let device = |wire: WireId| {
            let lane = core.ifaces.iter().find(|lane| lane.wire == wire)?;
            Some(lane.iface.attr().dev.clone())
        };
        let rail = |view: PeerView| {
            let device = device(view.wire)?;
            Some(Rail { device, peer: view.addr, has_handshake: view.features.is_some(), fault: view.fault })
        };
        let Some(main) = view(self.ep.peer()) else { return Vec::new() };
        let further = self.ep.state().rails().iter();
        let further = further.filter_map(|&lane| core.engine.peers().lane_info(lane));
        // After failover, the peer's address is that of the further lane in use.
        let (in_use, others): (Vec<_>, Vec<_>) = further.partition(|view| view.wire == main.wire);
        let first = PeerView { addr: in_use.first().map_or(main.addr, |view| view.addr), ..main };
        let failed = core.engine.peers().failed_lanes(self.ep.peer()).iter().filter_map(|failed| {
            let device = device(failed.wire)?;
            Some(Rail { device, peer: failed.addr, has_handshake: true, fault: Some(failed.fault) })
        });
        let others = others.into_iter().filter(|view| {
            core.engine.peers().failed_lanes(self.ep.peer()).iter().all(|failed| failed.wire != view.wire)
        });
        [first].into_iter().chain(others).filter_map(rail).chain(failed).collect()
    }
}
