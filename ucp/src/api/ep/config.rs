//! Looks up or makes the protocol tables of an endpoint, from its lane's attributes and its peer's features.

use std::rc::Rc;

use uct::api::{DevKind, Iface as _, Md as _, OrderKind};

use crate::api::core::ep_config::{EpConfig, EpConfigKey, ProcessTables, keys};
use crate::api::core::worker_core::WorkerCore;

use crate::lane::{IfaceIdx, needs_alloc};
use crate::rdm::SendBuf;
use crate::rdm::io::{PeerId, Rdma};
use crate::rdm::rma::PacketOrder;
use crate::select::thresholds::kernel_choice_from;
use crate::select::{
    MemKind, PeerCaps, ReadSupport, RmaTables, RmaWire, SelectKey, Table, Thresholds, WireCaps,
};

pub(crate) fn is_allocated(core: &WorkerCore, lane: Option<IfaceIdx>, buf: &SendBuf) -> bool {
    match (lane, buf.piece()) {
        (Some(at), Some(piece)) => {
            core.ifaces[usize::from(at.0)].iface.md().has_allocated(piece.ptr(), piece.len())
        }
        _ => false,
    }
}

pub(crate) fn wire_caps(core: &WorkerCore, peer: PeerId) -> WireCaps {
    let RmaWire { mtu, rdma, costs, kernel, .. } = rma_wire(core, peer);
    let reads = |rdma: Rdma| if rdma.read > 0 { ReadSupport::Yes } else { ReadSupport::No };
    WireCaps {
        mtu,
        reads: reads(rdma),
        reads_allocated: reads(core.engine.peers().rdma(peer)),
        kernel: kernel.map(|[_, get]| get),
        costs,
    }
}

pub(crate) fn rma_wire(core: &WorkerCore, peer: PeerId) -> RmaWire {
    let path = core.peer_eps.get(peer);
    let lane = path.map(|path| usize::from(path.lane.0));
    let order = lane.map_or(OrderKind::Unordered, |at| core.ifaces[at].iface.attr().order);
    RmaWire {
        mtu: path.map_or(0, |path| path.mtu()),
        // Reads that need allocated memory serve messages only.
        rdma: match lane {
            Some(at) if needs_alloc(&core.ifaces[at].iface) => Rdma::NONE,
            _ => core.engine.peers().rdma(peer),
        },
        order: if order == OrderKind::Ordered { PacketOrder::Kept } else { PacketOrder::None },
        emulation: core.engine.peers().emulation(),
        costs: lane.and_then(|at| core.ep_configs.costs.get(at).copied()).unwrap_or_default(),
        // Kernel copies reach only processes that shared memory reaches.
        kernel: core
            .ep_configs
            .kernel
            .filter(|_| lane.is_some_and(|at| core.ifaces[at].iface.attr().kind == DevKind::Shm)),
    }
}

/// Thresholds for messages to this peer.
pub(crate) fn limits_to(core: &WorkerCore, peer: PeerId, limits: &Thresholds) -> Thresholds {
    let kind = core.peer_eps.get(peer).map(|path| core.ifaces[usize::from(path.lane.0)].iface.attr().kind);
    if kind == Some(DevKind::Net) { limits.to_other_host() } else { *limits }
}

/// Cached tables of a peer's endpoint.
pub(crate) fn tables(core: &mut WorkerCore, peer: PeerId, limits: &Thresholds) -> Rc<EpConfig> {
    let limits = &limits_to(core, peer, limits);
    let rndv_thresh = limits.rndv_thresh;
    let key = EpConfigKey { messages: wire_caps(core, peer), rma: rma_wire(core, peer), rndv_thresh };
    if let Some((_, tables)) = core.ep_configs.cached.iter().find(|(cached, _)| *cached == key) {
        return tables.clone();
    }
    // The header is longest before the handshake: sizes chosen for it always fit.
    let wire = key.messages;
    let keys = keys(wire, PeerCaps::default());
    let of = |mem| keys.map(|key| Table::new(&SelectKey { mem, ..key }, limits));
    let process = |_| ProcessTables {
        tables: of(MemKind::Process),
        kernel_choice_from: keys.map(|key| kernel_choice_from(&key, limits)),
        read: keys.map(|key| limits.read_protocol().with(key.sync)),
    };
    let tables = Rc::new(EpConfig {
        send: of(MemKind::Host),
        allocated: (wire.reads != wire.reads_allocated).then(|| Box::new(of(MemKind::Allocated))),
        process: wire.kernel.map(process).map(Box::new),
        rma: RmaTables::new(&key.rma, limits),
    });
    core.ep_configs.cached.push((key, tables.clone()));
    tables
}
