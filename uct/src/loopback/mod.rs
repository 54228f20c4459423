//! Transport `self`, device `memory`: interfaces of one thread. The transport to read first.
//! A message is copied into a slot of the receiver's pool and queued; the receiver's poll delivers it, never the
//! send call itself. Put, get and atomics act on the registered memory directly. No system calls on the data path.
//!
//! | File | What |
//! |---|---|
//! | `iface.rs` | the bounded queue, poll, keep, wake-up |
//! | `ep.rs` | sending, and remote memory |
//! | `md.rs` | memory, and keys that die with their registration |

mod ep;
mod iface;
mod md;
#[cfg(all(test, not(loom)))]
mod tests;

pub use ep::Ep;
pub use iface::{Config, Iface};
pub use md::{Md, Mem, Rkey};

/// Transport name.
pub const TL: &str = "self";
/// Name of its one device.
pub const DEV: &str = "memory";
