//! Streams of bytes.

pub(crate) mod ops;
