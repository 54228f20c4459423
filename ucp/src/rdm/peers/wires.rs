//! Our wires: our address on each, its capabilities, and the wires of the same rail set.

use std::ops::{Index, IndexMut};

use crate::rdm::ids::{DomainId, WireId};
use crate::rdm::io::Rdma;
use crate::rdm::rails::rail_plan::{MAX_RAILS, RailList};
use crate::rdm::rma::args::PacketOrder;
use crate::rdm::types::Grant;
use crate::wire::RawAddr;

/// State of one wire.
#[derive(Debug)]
pub struct WireState {
    /// Our address on it.
    pub me: RawAddr,
    /// Memory domain of its device keys.
    pub domain: DomainId,
    /// How much a CTS grants to senders on it.
    pub grant: Grant,
    /// Order of packets on it.
    pub order: PacketOrder,
    /// RDMA capabilities.
    pub rdma: Rdma,
    /// Wires of the same rail set, in order.
    pub rail_wires: RailList<WireId>,
    /// The queue pair has failed. Only used with rail wires.
    pub down: bool,
}

/// The wires of an engine, by id.
#[derive(Debug, Default)]
pub struct Wires(Vec<WireState>);

impl Wires {
    /// Adds a wire on which `me` is our address.
    pub fn add(&mut self, me: RawAddr) -> WireId {
        let (grant, order, rdma) = (Grant::Window, PacketOrder::None, Rdma::NONE);
        let id = WireId(u8::try_from(self.0.len()).expect("at most 256 wires"));
        let (domain, rail_wires) = (DomainId(id.0), RailList::new());
        self.0.push(WireState { me, domain, grant, order, rdma, rail_wires, down: false });
        id
    }

    /// Sets the memory domain of `wire`; one of its own, with the wire's number, by default.
    pub fn set_domain(&mut self, wire: WireId, domain: DomainId) {
        self[wire].domain = domain;
    }

    /// Sets how much a CTS grants to senders on `wire`; [`Grant::Window`] by default.
    pub fn set_grant(&mut self, wire: WireId, grant: Grant) {
        self[wire].grant = grant;
    }

    /// Sets the RDMA capabilities of `wire`; [`Rdma::NONE`] by default. Call it before the first packet.
    pub fn set_rdma(&mut self, wire: WireId, rdma: Rdma) {
        self[wire].rdma = rdma;
    }

    /// Sets the packet order of `wire`; [`PacketOrder::None`] by default.
    pub fn set_packet_order(&mut self, wire: WireId, order: PacketOrder) {
        self[wire].order = order;
    }

    /// Declares the wires that share long transfers. Their order pairs them with a peer's.
    pub fn set_rails(&mut self, wires: &[WireId]) {
        for (n, wire) in wires.iter().enumerate() {
            let rail_wires = (1..wires.len().min(MAX_RAILS)).map(|k| wires[(n + k) % wires.len()]);
            self[*wire].rail_wires = rail_wires.collect();
        }
    }

    /// Number of wires.
    #[inline]
    pub(in crate::rdm) fn len(&self) -> usize {
        self.0.len()
    }
}

impl Index<WireId> for Wires {
    type Output = WireState;
    #[inline]
    fn index(&self, wire: WireId) -> &WireState {
        &self.0[usize::from(wire.0)]
    }
}

impl IndexMut<WireId> for Wires {
    #[inline]
    fn index_mut(&mut self, wire: WireId) -> &mut WireState {
        &mut self.0[usize::from(wire.0)]
    }
}
