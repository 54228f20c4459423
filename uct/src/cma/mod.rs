//! Transport `cma`, device `memory`: put and get in the memory of another process of this host by one system call, a
//! single copy with nothing in between. For memory that the peer did not get from an allocator of ours; what it did
//! is mapped and copied to without a system call. Carries no active messages: it serves beside `posix`.
//!
//! | File | What |
//! |---|---|
//! | `probe.rs` | is it permitted, and if not, by whom? |
//! | `vm.rs` | the two system calls |
//! | `batch.rs` | operations that wait to be done by one of them, and their ends |
//! | `md.rs` | registered and allocated memory, and keys |
//! | `iface.rs`, `ep.rs` | the contract |
//!
//! # Who is at the other end
//!
//! The system calls name a process by its pid, and pids are used again. An address therefore carries a random number and
//! where its interface keeps it: connecting reads it there, which proves the right and the process in one. From then
//! on the process is watched; once it has died no call is made any more, and what is mapped of it is not touched. Proof
//! and watch are shared by all endpoints to a process.

mod batch;
mod ep;
mod iface;
mod md;
mod probe;
#[cfg(all(test, not(loom)))]
mod tests;
mod vm;

pub use ep::Ep;
pub use iface::{Config, Iface};
pub use md::{Md, Mem, Rkey};
pub use probe::unavailable_reason;

/// Transport name.
pub const TL: &str = "cma";
/// Name of its one device.
pub const DEV: &str = "memory";
