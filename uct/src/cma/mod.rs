//! Transport `cma`, device `memory`: put and get in the memory of another process of this host by one system
//! call, a single copy. Memory that the peer allocated by a transport of this host is mapped instead and
//! copied without a system call. Carries no active messages: it serves beside `posix`.
//!
//! | File | Contents |
//! |---|---|
//! | `probe.rs` | whether the system calls are permitted, and their cost |
//! | `vm.rs` | the two system calls |
//! | `batch.rs` | operations that wait to be done by one system call |
//! | `joint_copy.rs` | long copies that both processes carry out |
//! | `md.rs` | registered and allocated memory, and keys |
//! | `iface.rs`, `ep.rs` | the interface and the endpoint |
//! # Identity of the peer
//!
//! The system calls name a process by its pid, and pids are reused. So an address carries a random key and
//! where its process keeps it: connecting reads the key there, which proves identity and permission at once.
//! From then on the process is watched; once it has died no call is made, and what is mapped of it is not
//! touched. All endpoints to a process share this.

mod batch;
mod ep;
mod iface;
mod joint_copy;
mod md;
mod probe;
#[cfg(all(test, not(loom)))]
mod tests;
mod vm;

pub use ep::Ep;
pub(crate) use iface::PERF;
pub use iface::{Config, Iface};
pub use md::{Md, Mem, Rkey};
pub use probe::unavailable_reason;

/// Transport name.
pub const TL: &str = "cma";
/// Name of its one device.
pub const DEV: &str = "memory";
