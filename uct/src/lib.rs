//! Low-level transports: active messages, puts, gets and atomics over shared memory and EFA.
//!
//! `uct` moves bytes between processes and says what each transport can do. It has no tags, message ids or
//! handshakes: those are `ucp`'s. Runtimes that bring their own protocol use this crate directly. It is not
//! published; a program names it by its path or repository:
//! ```toml
//! [dependencies]
//! uct = { path = "PATH OF THIS REPOSITORY/uct" }      # or { git = "URL OF THIS REPOSITORY" }
//! ```
//! # Objects
//!
//! [`any::resources`] lists transports and devices. [`any::open`] opens an interface on one of them: it has
//! an address, a memory domain ([`api::Md`]), queues, and attributes ([`api::IfaceAttr`]) that say what it
//! can do. An interface connects endpoints ([`api::Ep`]) to others, on which every send starts. The traits
//! are in [`api`]; a program that knows its transport names the type, such as [`posix::Iface`].
//! ```
//! use std::{cell::Cell, rc::Rc};
//! use uct::api::{Am, Caps, Ep, Iface};
//!
//! let iface = uct::any::open("self", "memory", &uct::Source::from_env()?)?;
//! assert!(iface.attr().has(Caps::AM_SHORT | Caps::CONNECT_TO_IFACE));
//! let got = Rc::new(Cell::new(0));
//! let seen = got.clone();
//! iface.set_am_handler(7, Some(Box::new(move |am: Am<'_>| seen.set(am.data().len()))));
//!
//! // In a job the addresses travel by other means; "self" reaches itself.
//! let ep = iface.connect(&iface.device_addr(), &iface.iface_addr())?;
//! ep.am_short(7, 0x1234, b"payload")?;               // an id, a header of 8 bytes, and data
//! while got.get() == 0 {
//!     iface.progress(16);
//! }
//! assert_eq!(got.get(), 8 + 7);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//! # Forms of an operation
//!
//! * **short**: the bytes are in the call and are copied before it returns;
//! * **bcopy**: a closure writes the bytes into the transport's buffer;
//! * **zcopy**: the transport reads or writes registered memory itself, and completes later.
//!
//! Every call returns an [`api::Outcome`]: *done* (the buffer is free), *in progress* (the completion fires
//! once, from progress), or [`api::Refused`]: *no resource* (nothing happened: progress and try again, or
//! queue it), or an error that says whose fault it is.
//! ```
//! use uct::api::{AllocReq, Comp, Completion, Ep, Iface, Iov, Md, Memory};
//! use uct::api::{PendingQueued, Refused, Retry, Sent};
//!
//! let iface = uct::any::open("self", "memory", &uct::Source::from_env()?)?;
//! let ep = std::rc::Rc::new(iface.connect(&iface.device_addr(), &iface.iface_addr())?);
//! let mem = iface.md().alloc(&AllocReq::new(4096, "example"))?;
//! let rkey = iface.md().unpack_rkey(&iface.md().pack_rkey(&mem)?)?;
//! let ended = Completion::new(1, |result| println!("the put has ended: {result:?}"));
//! let half = [Iov::new(mem.addr(), 2048, Some(&mem))];
//! // SAFETY: the memory stays valid and unchanged until the completion.
//! match unsafe { ep.put_zcopy(&half, mem.addr() as u64 + 2048, &rkey, Comp::Handle(ended)) } {
//!     Ok(Sent::Done) => println!("done within the call: the completion does not fire"),
//!     Ok(Sent::InProgress) => println!("progress until the completion fires"),
//!     Err(Refused::NoResource) => println!("a queue is full: progress and try again"),
//!     Err(Refused::Failed(error)) => return Err(error.into()),
//! }
//! // Or it waits on the endpoint, and progress tries it again.
//! let again = ep.clone();
//! let op = move || match again.am_short(1, 0, &[]) {
//!     Err(Refused::NoResource) => Retry::NoResource,
//!     _ => Retry::Done,
//! };
//! if ep.am_short(1, 0, &[]) == Err(Refused::NoResource) {
//!     assert_eq!(ep.pending_add(Box::new(op))?, PendingQueued::Queued);
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//! An active message is **its id byte followed by its data, contiguous in memory**, on every transport. On
//! EFA the id is byte 0 of the datagram, so `ucp`'s packets are libfabric's. See [`api::Am`].
//! # Progress, sleep, threads
//!
//! Handlers and completions are called from [`api::Iface::progress`] and [`api::Iface::poll`] only. Handlers
//! are `FnMut`: progress of an interface does nothing inside its own handlers. A [`Worker`] progresses
//! several interfaces and sleeps on one descriptor for all of them. Interfaces and endpoints belong to one
//! thread; [`mt`] has shared ones, and a progress thread.
//!
//! | Module | Contents |
//! |---|---|
//! | [`api`] | the contract: traits, attributes, outcomes, errors |
//! | [`any`] | transports by name |
//! | [`loopback`], [`posix`], [`cma`], [`efa`] | the transports `self`, `posix`, `cma`, `efa` |
//! | [`mt`] | interfaces that threads share |
//! | [`wrap`] | decorators: endpoint-to-endpoint connections, locks |
//! | [`op_pool`], [`rcache`] | operation handles with user data, registrations that are kept |
//! | [`word`] | atomic instructions on mapped memory |
//! | [`config`], [`ucs`] | types of the services below |

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
    #[path = "dev/soft/link/shm/mark.rs"]
    mod mark;
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
    #[expect(dead_code, reason = "what has no model")]
    mod joint;
    mod loom;
}
#[cfg(all(test, loom))]
mod mt {
    #[expect(dead_code, reason = "what has no model")]
    mod comp;
}

pub use base::{op_pool, rcache, word};
/// The crate of the services whose types appear here: a user of `uct` needs no dependency of its own on it.
pub use ucs;
pub use ucs::config::Source;
pub use ucs::sync::{LockError, ThreadMode};
pub use ucs::{Blame, Errno, Status};
pub use worker::Worker;

/// Configuration: what [`any::open`] and the transports read their keys from.
pub mod config {
    pub use ucs::config::{ConfigError, Source, Table, TableDesc};
}
