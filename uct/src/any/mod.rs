//! Transports chosen at run time: one enum over all of them for each kind of object, and the list of what
//! there is. Used by `ucp` and by programs that take the transport's name from a user. Each call is one
//! predictable branch and then the transport's own code, inlined; nothing is boxed.
//!
//! Adding a transport: a line in `dispatch.rs`, a row in `transports.rs`.

mod dispatch;
mod ep;
mod iface;
mod md;
mod mem_set;
#[cfg(test)]
mod tests;
mod transports;

pub use dispatch::{Ep, Iface, Md, Mem, Rkey};
pub use iface::Visit;
pub use mem_set::{MemSet, registration_order};
pub use transports::{
    open, resources, tables, unusable, with_deep_queues, with_rnr_resend, with_user_receives,
};
