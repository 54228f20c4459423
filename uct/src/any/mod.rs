//! Transports chosen at run time: an enum over all of them per object; a call is one predictable branch.
//!
//! Adding a transport: a line in `dispatch.rs`, an entry in `transports.rs`.

mod dispatch;
mod ep;
mod host_mem;
mod iface;
mod md;
mod mem_set;
#[cfg(test)]
mod tests;
mod transports;

pub use dispatch::{Ep, Iface, Md, Mem, Rkey};
pub use host_mem::HostMem;
pub use iface::Visit;
pub use mem_set::{MemSet, registration_order};
pub use transports::{
    open, open_iface, open_iface_for_threads, open_md, resources, tables, unusable, with_deep_queues,
    with_rnr_resend, with_user_receives, without_emulated_atomics,
};
