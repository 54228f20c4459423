//! Streams of bytes.

pub(crate) mod ops;
pub(crate) mod state;
