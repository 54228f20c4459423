//! Two processes that send each other tagged messages, both ways at once, and check every one.
//! Used by the binary `traffic` and by the tests that kill one of the two. Knows no transport by name.
//!
//! Sender and receiver draw the same `plan` from the same seed, so the receiver knows of each receive which message
//! must match it, whatever the timing: a message lost, doubled, overtaken or damaged shows at once.

mod buffers;
mod failure;
mod plan;
mod recv;
mod report;
mod run;
mod send;

pub use failure::Failure;
pub use report::Report;
pub use run::{Options, child, parent};

/// Messages received between two credits given back to the sender.
const CREDIT_EVERY: u64 = 32;
