//! Low-level transports.
//!
//! `uct` moves bytes between processes and says truthfully what each wire can do. It knows nothing of tags,
//! message ids or handshakes; that is `ucp`. A runtime that wants active messages, put/get and atomics
//! without a protocol on top uses this crate directly.
//!
//! # The contract in words
//!
//! Objects open as a chain: a *component* (a kind of memory domain) opens an [`api::Md`]; an [`api::Md`] and
//! a worker open an [`api::Iface`] on one device with one transport; an interface connects [`api::Ep`]s.
//!
//! Data moves in three ways, and an interface says in its [`api::IfaceAttr`] which it has and up to what
//! size:
//!
//! * **short**: the bytes are in the call and are copied before it returns;
//! * **bcopy**: the caller writes the bytes, by a closure, straight into the transport's buffer;
//! * **zcopy**: the transport reads the caller's registered memory itself, and says later when it is done.
//!
//! Every communication call answers one of four things ([`api::Outcome`]): *done* (the buffer is yours
//! again),
//! *in progress* (the completion fires once, from progress), *no resource* (nothing happened; progress and
//! retry, or queue on the endpoint's pending queue) or an error that says who is to blame.
//!
//! # Active messages
//!
//! On every transport an active message is **its id byte followed by its data, contiguous in memory**.
//! Nothing else is added: on EFA the id is byte 0 of the datagram, which is what makes `ucp`'s packets
//! libfabric's packets. See [`api::Am`].
//!
//! # Threads
//!
//! An interface and its endpoints belong to one thread; the types are neither `Send` nor `Sync`. [`mt`] has
//! the same behind a gate, for several threads and for a thread that progresses while the program computes.

#![deny(unsafe_code)]

#[cfg(not(loom))]
pub mod any;
pub mod api;
#[cfg_attr(loom, allow(dead_code, reason = "transports without a model are left out"))]
mod base;
#[cfg(not(loom))]
pub mod cma;
mod delegate;
#[cfg(not(loom))]
pub mod efa;
#[cfg(not(loom))]
mod host;
pub mod loopback;
#[cfg(not(loom))]
pub mod mt;
pub mod posix;
pub mod worker;
pub mod wrap;

/// Under the model checker only what threads and processes share.
#[cfg(all(test, loom))]
mod efa {
    #[path = "dev/soft/link/shm/loom.rs"]
    mod loom;
    #[path = "dev/soft/mr_entry.rs"]
    mod mr_entry;
    #[path = "dev/soft/link/shm/ring.rs"]
    mod ring;
}
#[cfg(all(test, loom))]
mod host {
    mod fd_server {
        mod notifier;
    }
}
#[cfg(all(test, loom))]
mod mt {
    #[expect(dead_code, reason = "what has no model")]
    mod comp;
}

pub use base::{op_pool, rcache};
pub use ucs::{Blame, Errno, Status};
pub use worker::Worker;

/// Configuration: what [`any::open`] and the transports read their keys from.
pub mod config {
    pub use ucs::config::{ConfigError, Source, Table, TableDesc};
}
