//! Our wires: our address on each, its capabilities, and the wires of the same rail set.

use std::ops::{Index, IndexMut};

use crate::rdm::ids::{DomainId, WireId};
use crate::rdm::io::Rdma;
use crate::rdm::rails::rail_plan::RailList;
use crate::rdm::rma::args::PacketOrder;
use crate::rdm::types::Grant;
use crate::wire::RawAddr;

/// State of one wire.
#[derive(Debug)]
pub(in crate::rdm) struct WireState {
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
pub(in crate::rdm) struct Wires(Vec<WireState>);

impl Wires {
    /// Adds a wire on which `me` is our address.
    pub fn add(&mut self, me: RawAddr) -> WireId {
        let (grant, order, rdma) = (Grant::Window, PacketOrder::None, Rdma::NONE);
        let id = WireId(u8::try_from(self.0.len()).expect("at most 256 wires"));
        let (domain, rail_wires) = (DomainId(id.0), RailList::new());
        self.0.push(WireState { me, domain, grant, order, rdma, rail_wires, down: false });
        id
    }

    /// Number of wires.
    #[inline]
    pub fn len(&self) -> usize {
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
