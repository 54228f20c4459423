//! Two processes that send each other tagged messages in both directions and check every one. At the same
//! time each may put, get and execute atomics in memory of the other (`rma`). Used by the binary `traffic`
//! and by tests that kill a process. Knows no transport by name.
//!
//! Sender and receiver draw the same `plan` from the same seed, so the receiver knows which message must
//! match each receive: a lost, doubled, overtaken or damaged message shows at once.

mod buffers;
mod failure;
pub mod mesh;
mod plan;
mod recv;
mod report;
mod rma;
mod run;
mod send;

pub use failure::Failure;
pub use report::Report;
pub use rma::RmaReport;
pub use run::{Options, child, parent};

/// Messages received between two credits given back to the sender.
const CREDIT_EVERY: u64 = 32;
