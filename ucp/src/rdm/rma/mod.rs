//! One-sided operations: their arguments, how they start, move on and end, memory that peers may reach, and
//! reads of a peer's memory.

pub mod args;
mod data;
mod fast_path;
pub mod mem;
pub(super) mod ops;
pub(super) mod progress;
pub(super) mod remote_read;

pub use args::*;
