//! Lanes: the engine's wires, made of uct interfaces and endpoints.
//! Opened by `api::context`, polled by `api::worker`. Makes no protocol decision and keeps no message.
//!
//! A worker has a list of lanes, one for each interface. A peer of the engine is one remote interface on one
//! lane; an endpoint of the API may hold several peers.

mod beside;
mod bind;
mod connect_error;
mod pack;
mod regs;
mod rx;
mod wireup;

use uct::api::{AddrBuf, Iface as _, OpenError};

use crate::rdm::WireId;

pub(crate) use beside::{Beside, Reach};
pub(crate) use bind::{Bound, Paths, fault_of};
pub use connect_error::ConnectError;
pub(crate) use pack::{AddrForm, RawBytes, connid, source};
pub use regs::Keep;
pub(crate) use regs::{Regs, can_keep, device_key, needs_alloc, rdma};
pub(crate) use rx::{FlushEnd, Intake, Short};
pub(crate) use wireup::{Route, further, routes, together};

/// The interface type of every lane: a transport chosen at run time, called without indirection.
pub type Iface = uct::any::Iface;
/// Its endpoints.
pub(crate) type Ep = <Iface as uct::api::Iface>::Ep;

/// Its memory domain.
pub(crate) type Md = <Iface as uct::api::Iface>::Md;
/// Its registered memory.
pub(crate) type Mem = <<Iface as uct::api::Iface>::Md as uct::api::Md>::Mem;
/// Its unpacked remote keys.
pub(crate) type Rkey = <<Iface as uct::api::Iface>::Md as uct::api::Md>::Rkey;

/// A lane of a worker.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct LaneIdx(pub u8);

/// An interface that serves as a wire of the engine.
pub(crate) struct Lane {
    pub iface: Iface,
    /// The engine's name for it.
    pub wire: WireId,
    /// Its raw address.
    pub raw: RawBytes,
    /// How its interface address stands to the raw one.
    pub form: AddrForm,
    /// Its device, for in-band connecting.
    pub device: AddrBuf,
}

impl Lane {
    /// Looks an interface over: its form of address and its raw address, with `nonce` as connection id where the
    /// transport has none of its own.
    pub(crate) fn identity(iface: &Iface, nonce: u32) -> Result<(AddrForm, RawBytes), OpenError> {
        let attr = iface.attr();
        AddrForm::of(attr).and_then(|form| Some((form, form.raw(&iface.iface_addr(), nonce)?))).ok_or_else(
            || OpenError::Config(format!("transport '{}' has no address this layer can use", attr.tl)),
        )
    }
}
