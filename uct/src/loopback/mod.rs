//! Transport `self`, device `memory`: interfaces of one thread. The transport to read first.
//! A message is copied into a slot of the receiver's pool and queued; the receiver's poll delivers it, the
//! send call itself only where the program has asked for that. Put, get and atomics act on the registered memory directly. No system calls on the data path.
//!
//! | File | What |
//! |---|---|
//! | `iface.rs` | taking messages in, poll, wake-up |
//! | `queue.rs` | what has come, bounded in number and bytes |
//! | `slots.rs` | where messages lie until they are delivered, or dropped by who kept them |
//! | `ep.rs` | sending, and remote memory |
//! | `md.rs` | memory, and keys that die with their registration |

mod ep;
mod iface;
mod md;
mod queue;
mod regions;
mod slots;
#[cfg(all(test, not(loom)))]
mod tests;

pub use ep::Ep;
pub use iface::{Config, Iface};
pub use md::{Md, Mem, Rkey};

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

/// Transport name.
pub const TL: &str = "self";
/// Name of its one device.
pub const DEV: &str = "memory";

/// What an interface or a registration is called. Counted numbers would be those of other processes too,
/// whose addresses and keys would then lead here. The system gives each process other bits; a child that was
/// forked has its parent's, but not its pid.
fn new_id() -> u64 {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    RandomState::new().hash_one((std::process::id(), count))
}
