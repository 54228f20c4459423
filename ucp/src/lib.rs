//! Protocols: EFA RDM v4 over `uct`, with tag matching and protocol selection.
//!
//! A program makes a [`Context`], from it a [`Worker`] for each thread, and [`Ep`]s to the workers of others, by their
//! [`Address`]. Then it sends, receives, and calls [`Worker::progress`]:
//!
//! ```no_run
//! use ucp::{Address, Context, TAG_MASK_FULL, EpParams};
//!
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
//!
//! # Three forms of every operation
//!
//! | Form | Memory | For |
//! |---|---|---|
//! | [`Ep::tag_send`], [`Worker::tag_recv`] | the request owns the buffer and gives it back; dropping it is safe at any time | most programs, `async` |
//! | [`Worker::scope`], [`Ep::tag_send_blocking`] | borrowed slices; the call returns when the engine is done with them | numerical code |
//! | [`Ep::send_raw`], [`Worker::recv_raw`] | pointer and length, `unsafe`; a plain callback | the C face, runtimes |
//!
//! No form allocates per operation once traffic is steady.
//!
//! # Where things are
//!
//! A message goes down this list when it is sent and up when it arrives:
//!
//! | Room | What happens there |
//! |---|---|
//! | `api` (re-exported here) | arguments checked, a request's slot taken |
//! | [`select`] | size → protocol, by a table worked out when the endpoint was made |
//! | [`rdm`] | the engine: message ids, matching, windows, receipts; sees no transport |
//! | [`wire`] | packet headers written and read |
//! | [`lane`] | peer → endpoint of a `uct` interface; arrivals → engine |
//!
//! # Threads
//!
//! A worker belongs to one thread; its types are neither `Send` nor `Sync`. Use one worker per thread. A [`WorkerThread`] is a
//! worker on a thread of its own, which serves its peers while the program computes.

#[cfg(feature = "lanes")]
mod address;
#[cfg(feature = "lanes")]
mod api;
#[cfg(feature = "lanes")]
pub mod lane;
pub mod rdm;
pub mod select;
#[cfg(feature = "lanes")]
mod token;
pub mod wire;

#[cfg(feature = "lanes")]
pub use address::{Address, AddressError};
#[cfg(feature = "lanes")]
pub use api::*;
#[cfg(feature = "lanes")]
pub use lane::ConnectError;
pub use rdm::Access;
pub use wire::{AtomicOp, Datatype};
