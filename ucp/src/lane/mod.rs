//! Lanes: the engine's wires, one per uct interface of a worker. A peer of the engine is one remote interface
//! on one lane; an endpoint may hold several peers. Makes no protocol decision and keeps no message.

mod bind;
mod connect_error;
mod domains;
mod errors;
mod peer_eps;
mod raw_addr;
mod regs;
mod rma_only;
mod rx;
mod wireup;

use uct::api::{AddrBuf, Iface as _, OpenError};

use crate::rdm::{DomainId, WireId};

pub(crate) use bind::Bound;
pub use connect_error::ConnectError;
pub(crate) use domains::{Domain, Domains, Registrations, domain_label};
pub(crate) use errors::fault_of;
pub(crate) use peer_eps::PeerEps;
pub(crate) use raw_addr::{AddrForm, RawBytes, connid, source};
pub use regs::RcacheMode;
pub(crate) use regs::{RegTable, check_rcache, needs_alloc, rdma};
pub(crate) use rma_only::{RmaOnlyEp, RmaOnlyLane};
pub(crate) use rx::{FastPollSink, FlushEnd, PollSink};
pub(crate) use wireup::{Route, further_routes, rail_lanes, routes};

/// The interface type of every transport: a transport chosen at run time, called without indirection.
pub type Iface = uct::any::Iface;
pub(crate) type Ep = <Iface as uct::api::Iface>::Ep;

pub(crate) type Md = <Iface as uct::api::Iface>::Md;
pub(crate) type Mem = <<Iface as uct::api::Iface>::Md as uct::api::Md>::Mem;
pub(crate) type Rkey = <<Iface as uct::api::Iface>::Md as uct::api::Md>::Rkey;

/// Position of an interface among those of its worker.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct IfaceIdx(pub u8);

/// An interface that a worker has opened, with the wire it is to the engine, and its memory domain.
pub(crate) struct WorkerIface {
    pub iface: Iface,
    pub wire: WireId,
    /// Memory domain.
    pub domain: DomainId,
    pub raw: RawBytes,
    pub form: AddrForm,
    /// Device address, for in-band connecting.
    pub device: AddrBuf,
}

impl WorkerIface {
    /// Returns the label of the memory domain of the lane at this raw address, which this interface reaches.
    pub(crate) fn remote_domain(&self, raw: &RawBytes) -> u32 {
        let attr = self.iface.attr();
        domain_label(attr.tl, attr.kind, &self.form.addrs(raw, &self.device).0)
    }

    /// Returns an interface's address form and raw address; `nonce` is the connection id if it has none.
    pub(crate) fn identity(iface: &Iface, nonce: u32) -> Result<(AddrForm, RawBytes), OpenError> {
        let attr = iface.attr();
        AddrForm::of(attr).and_then(|form| Some((form, form.raw(&iface.iface_addr(), nonce)?))).ok_or_else(
            || OpenError::Config(format!("transport '{}' has no address this layer can use", attr.tl)),
        )
    }
}
