//! Transport `self`, device `memory`: this process. The transport to read first. A message is copied into a
//! slot of the receiver's pool and delivered by its poll. Put, get and atomics act on memory directly. No
//! system calls on the data path.
//!
//! Messages stay among the interfaces of one thread; an interface that threads share under a lock sends to
//! itself only. Memory and keys belong to the process: any thread uses a key that another has made.
//!
//! | File | Contents |
//! |---|---|
//! | `iface.rs` | enqueue, poll, wake-up |
//! | `queue.rs` | messages to poll, bounded in number and bytes |
//! | `slots.rs` | memory of messages until they are delivered or released |
//! | `ep.rs` | sending, and remote memory |
//! | `md.rs` | memory, and keys that die with their registration |
//! | `regions.rs` | the registrations of the process |

mod ep;
mod iface;
mod md;
mod queue;
mod regions;
mod slots;
#[cfg(all(test, not(loom)))]
mod tests;

pub use ep::Ep;
#[cfg(not(loom))]
pub(crate) use iface::PERF;
pub use iface::{Config, Iface};
pub use md::{Md, Mem, Rkey};

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

/// Transport name.
pub const TL: &str = "self";
/// Name of its one device.
pub const DEV: &str = "memory";

/// A new id of an interface or a registration, unique between processes and forked children too.
fn new_id() -> u64 {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    RandomState::new().hash_one((std::process::id(), count))
}
