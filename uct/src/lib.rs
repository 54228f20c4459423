//! Low-level transports.
//!
//! `uct` moves bytes between processes and says what each wire can do. Tags, message ids and handshakes are
//! `ucp`'s. Runtimes that want active messages, put/get and atomics use this crate directly.
//! # The contract
//!
//! A *component* opens an [`api::Md`]; that and a worker open an [`api::Iface`] on one device with one
//! transport; an interface connects [`api::Ep`]s. Data moves in three ways, with limits in
//! [`api::IfaceAttr`]:
//!
//! * **short**: the bytes are in the call and are copied before it returns;
//! * **bcopy**: a closure writes the bytes into the transport's buffer;
//! * **zcopy**: the transport reads registered memory itself, and completes later.
//!
//! Every call answers an [`api::Outcome`]: *done* (the buffer is free), *in progress* (the completion fires
//! once, from progress), *no resource* (nothing happened; progress and retry, or queue) or an error with
//! blame.
//!
//! An active message is **its id byte followed by its data, contiguous in memory**, on every transport. On
//! EFA the id is byte 0 of the datagram, so `ucp`'s packets are libfabric's. See [`api::Am`].
//!
//! Interfaces and endpoints belong to one thread; [`mt`] has shared ones, and a progress thread.

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
