//! Transports chosen at run time: one enum over all of them for each kind of object, and the list of what there is.
//! Used by `ucp` and by programs that take the transport's name from a user. Each call is one predictable branch and
//! then the transport's own code, inlined; nothing is boxed.
//!
//! Adding a transport: a line in `kinds.rs`, a row in `rows.rs`.

mod ep;
mod iface;
mod kinds;
mod md;
mod rows;
#[cfg(test)]
mod tests;
mod together;

pub use iface::Visit;
pub use kinds::{Ep, Iface, Md, Mem, Rkey};
pub use rows::{open, resources, tables, unusable, with_deep_queues, with_rnr_resend, with_user_receives};
pub use together::{MemSet, order};
