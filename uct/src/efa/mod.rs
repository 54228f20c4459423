//! The `efa` transport: SRD over a device trait.
//!
//! An active message is one datagram whose byte 0 is the id; no other header, so that EFA RDM v4 packets of `ucp` are
//! the packets libfabric's EFA provider speaks. Delivery is reliable and nothing is ordered: neither messages, nor
//! their data, nor completions. Queues are finite and say *no resource*.
//!
//! | file | what it holds |
//! |---|---|
//! | [`dev`] | what SRD hardware does, as a trait, and the software device |
//! | `iface` | [`Iface`]: one queue pair, one completion queue, its buffers and attributes |
//! | `ep` | [`Ep`]: posting of messages, also those without an id |
//! | `rdma`, `parts`, `long` | put and get; operations of several work requests, and of more than there is room for |
//! | `cq` | polling: arrivals to handlers, completions to whoever waits |
//! | `tx`, `epoch` | what is on its way; flush and fence |
//! | `rx`, `region` | receive buffers; registered slots |
//! | `bare` | the queue pair for receives of the program's own memory |
//! | `md` | [`Md`], [`Mem`], [`Rkey`]: memory |
//! | `addr`, `ah` | [`RawAddr`]; address handles |
//!
//! # RDMA and address handles
//!
//! A device serves RDMA only to initiators it has an address handle for. So before `put_zcopy` or `get_zcopy` to a
//! peer works, the peer must have made an endpoint back to this interface; until then the operation fails with
//! [`Error::Device`]`(14)`. Protocols arrange that with a handshake.
//!
//! [`Error::Device`]: crate::api::Error::Device

mod addr;
mod ah;
mod buffers;
mod cq;
pub mod dev;
mod ep;
mod epoch;
mod iface;
mod md;
mod multi_wr;
mod rdma;
mod rx;
#[cfg(test)]
mod tests;
mod tx;
mod user_recv_qp;
mod wr_group;

pub use addr::{DEVICE_ADDR_LEN, RAW_ADDR_LEN, RawAddr};
pub use ep::Ep;
pub use iface::{Config, Iface, Params, Stats};
pub use md::{Md, Mem, Rkey};

/// Name of the transport.
pub const TL: &str = "efa";
