//! The `efa` transport: SRD (scalable reliable datagram) over a device trait.
//!
//! An active message is one datagram whose byte 0 is the id, without another header, so that `ucp`'s EFA RDM
//! v4 packets are those of libfabric's EFA provider. Delivery is reliable and unordered: messages, their data
//! and completions. Queues are finite; a full one answers *no resource*.
//!
//! | file | what it holds |
//! |---|---|
//! | [`dev`] | the device trait, the software device and the verbs backend |
//! | `iface` | [`Iface`]: one queue pair, one completion queue, buffers, attributes |
//! | `ep` | [`Ep`]: posting of messages |
//! | `rdma`, `wr_group`, `multi_wr` | put and get; operations of several work requests |
//! | `cq` | polling: arrivals to handlers, completions to their owners |
//! | `tx`, `epoch` | TX slots; flush and fence |
//! | `rx`, `buffers` | receive buffers; registered buffers |
//! | `user_recv_qp` | queue pair for receives into user memory |
//! | `amo` | atomics, by a thread at the target |
//! | `md` | [`Md`], [`Mem`], [`Rkey`] |
//! | `addr`, `ah` | [`RawAddr`]; address handles |
//!
//! A device serves RDMA only to initiators for which it has an address handle. Until the peer has made an
//! endpoint back to this interface, `put_zcopy` and `get_zcopy` fail with
//! [`Error::Device`](crate::api::Error::Device)`(14)`; protocols arrange this by a handshake.

mod addr;
mod ah;
mod amo;
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
pub use amo::RESERVED_AM_IDS;
pub use ep::Ep;
pub use iface::{Config, Iface, Params, Stats};
pub use md::{Md, Mem, Rkey};

/// Name of the transport.
pub const TL: &str = "efa";
