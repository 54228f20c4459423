//! Protocol layer: EFA RDM v4 over `uct`, with tag matching and protocol selection.
//!
//! The crate is not published; a program names it by its path or repository:
//! ```toml
//! [dependencies]
//! ucp = { path = "PATH OF THIS REPOSITORY/ucp" }      # or { git = "URL OF THIS REPOSITORY" }
//! ```
//! A program creates a [`Context`], one [`Worker`] per thread, and [`Ep`]s to other workers by their
//! [`Address`]. It sends, receives, and calls [`Worker::progress`]:
//! ```no_run
//! use ucp::{Address, Context, TAG_MASK_FULL, EpParams};
//! # fn exchange(mine: Vec<u8>) -> Vec<u8> { mine }
//! let worker = Context::new()?.worker()?;
//! let theirs = exchange(worker.address().pack());             // by any means outside this library
//! let ep = worker.connect(&Address::unpack(&theirs)?, EpParams::default())?;
//!
//! let answer = worker.tag_recv(2, TAG_MASK_FULL, Vec::with_capacity(1 << 20));
//! let (sent, buf) = ep.tag_send(1, vec![7; 1000]).wait();      // or `.await`, or `.then(...)`, or `.test()`
//! sent?;
//! let (received, message) = answer.wait();
//! println!("{} bytes from {:?}", message.len(), received?.from);
//! # drop(buf);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//! # Three forms of every operation
//!
//! | Form | Memory | For |
//! |---|---|---|
//! | [`Ep::tag_send`], [`Worker::tag_recv`] | the request owns the buffer, may be dropped | most programs |
//! | [`Worker::scope`], [`Ep::tag_send_blocking`] | borrowed until the call returns | numerical code |
//! | [`Ep::send_raw`], [`Worker::recv_raw`] | pointer, length, plain callback | the C API, runtimes |
//!
//! No form allocates per operation in steady state, but for callbacks of `then` and detached buffers. A
//! request has `is_done`, `test`, `wait`, `cancel`, `then` and `detach`, and is a future; one on borrowed
//! memory, which its scope waits for, has `is_done`, `test`, `wait` and `cancel`.
//! # Modules, in the order in which a message passes them when it is sent
//!
//! | Module | Task |
//! |---|---|
//! | `api` (re-exported here) | checks arguments, allocates the request |
//! | [`select`] | maps size to protocol, by a table computed when the endpoint was created |
//! | [`rdm`] | the engine: message ids, matching, windows, receipts; independent of transports |
//! | [`wire`] | reads and writes packet headers |
//! | [`lane`] | connects peers to endpoints of `uct` interfaces, and arrivals to the engine |
//! # Threads
//!
//! A [`Worker`] belongs to one thread; its types are neither `Send` nor `Sync`. A [`WorkerThread`] runs a
//! worker on its own thread, which serves peers while the program computes. [`mt`] has workers that threads
//! share.
//! # Sleeping, event loops
//!
//! [`Worker::wait`] sleeps. An event loop arms [`Worker::event_fd`] (or the owner of
//! [`Worker::event_source`]) and sleeps on it. Timers of the worker wake it, and what other tasks begin
//! meanwhile, if that needs progress ([`Worker::arm`]).
//! # Handlers and ownership
//!
//! Handlers and callbacks live in the worker, and a worker lives as long as its last handle. A handler that
//! holds its own worker or endpoint needs [`Worker::close`], or a [`WeakWorker`].

#![cfg_attr(not(test), deny(unsafe_code))]

mod address;
#[cfg(feature = "lanes")]
mod api;
#[cfg(feature = "lanes")]
mod cm;
#[cfg(feature = "lanes")]
pub mod lane;
#[cfg(feature = "lanes")]
pub mod mt;
pub mod rdm;
pub mod select;
#[cfg(feature = "lanes")]
mod token;
pub mod wire;

pub use address::{Address, AddressError};
#[cfg(feature = "lanes")]
pub use api::*;
#[cfg(feature = "lanes")]
pub use lane::ConnectError;
pub use rdm::io::PeerId;
pub use rdm::{
    Access, DatatypeError, DeliveryComplete, GenericOps, Kind, PeerView, RecvKind, RecvStatus, in_callback,
};
pub use select::RmaOp;
/// The crate of the services whose types appear here: a user of `ucp` needs no dependency of its own on it.
pub use ucs;
pub use ucs::config::Source;
pub use ucs::sync::{LockError, ThreadMode};
pub use ucs::{Blame, Errno, Status};
/// The crate of the transports whose types appear here.
#[cfg(feature = "lanes")]
pub use uct;
#[cfg(feature = "lanes")]
pub use uct::api::{IfaceAttr, OpenError};
pub use wire::{AtomicOp, Datatype};
