//! Workers that threads share: a [`Worker`](crate::Worker) inside a lock, with `Send` and `Sync` types.
//! Programs with one thread a worker use [`Worker`](crate::Worker), which has no lock.
//!
//! | mode, set when created | another thread | cost of a call |
//! |---|---|---|
//! | [`ThreadMode::Single`] | gets an error | a compare |
//! | [`ThreadMode::Serialized`] | may use it, but gets an error while one is inside | an exchange |
//! | [`ThreadMode::Multi`] | may use it, and waits while one is inside | an exchange |
//!
//! Each worker has its own lock, which a thread may enter again. Handlers, callbacks and the drops of buffers
//! run inside, and may use the worker. Wakers of futures are woken outside. A handler that waits for the lock
//! of another worker can deadlock with one of that worker which waits for this.
//! ```no_run
//! use ucp::mt::ThreadMode;
//!
//! let worker = ucp::Context::new()?.shared_worker(ThreadMode::Multi)?;
//! let ep = worker.connect(&worker.address()?, Default::default())?;
//! std::thread::scope(|threads| {
//!     for tag in 0..4 {
//!         let (worker, ep) = (&worker, &ep);
//!         threads.spawn(move || {
//!             let message = worker.tag_recv(tag, ucp::TAG_MASK_FULL, Vec::with_capacity(100));
//!             let (sent, _) = ep.tag_send(tag, vec![7; 100]).wait()?;
//!             sent?;
//!             let (received, message) = { message }.wait()?;
//!             received.map(drop)
//!         });
//!     }
//! });
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//! All that the plain types offer is here, but for pointers and plain callbacks: there the caller vouches.
//!
//! | Plain | Here |
//! |---|---|
//! | `*_raw`, `*_nbi` of an endpoint | inside [`SharedEp::with`], unsafe |
//! | `*_raw` of a worker or message, `with_request_memory` | inside [`SharedWorker::with`], unsafe |
//! | `test`, `knows`, `cancel`, `free` of a `RequestId` | inside [`SharedWorker::with`], unsafe |
//! | `abandon`, `wait_for` of a `RequestId` | inside [`SharedWorker::with`], unsafe |
//! | `track_raw` of a completion queue | inside [`SharedCompletionQueue::with`], unsafe |
//! | `Counter` | the plain one, inside [`SharedWorker::with`], unsafe |
//! | `signaller` of a worker | [`SharedWorker::signal`], as any thread has the worker |
//!
//! A runtime that keeps to mode single by itself, because its interface asks that of the program, saves the
//! look at the thread with [`SharedWorker::unlocked`] and [`SharedWorker::progress_unlocked`].
//!
//! Soundness: a worker is made here, and all that shares its state is reached only inside its lock:
//! endpoints, requests and so on are wrapped here, and no plain one leaves a safe function. A closure with
//! the plain worker could put a clone into a thread local, whatever its bounds, and so [`SharedWorker::with`]
//! is unsafe.

mod blocking;
mod cm;
mod debug;
mod ep;
mod message;
mod queue;
mod request;
mod scope;
mod shared;
mod thread;
mod wait;
mod worker;

pub use cm::{SharedConnectParams, SharedListener};
pub use ep::{SharedEp, SharedEpConnector, SharedEpParams};
pub use message::{SharedAmMessage, SharedMessage, SharedMultiRecv};
pub use queue::{SharedCompletionQueue, SharedTracked};
pub use request::{Operation, SharedRequest};
pub use scope::{SharedScope, SharedScopedRequest};
pub use shared::{Unlocked, WorkerGuard};
pub use thread::ProgressThread;
pub use ucs::sync::{LockError, ThreadMode};
pub use worker::{SharedWorker, WeakSharedWorker};
