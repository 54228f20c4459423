//! Layouts of sent and received data beside contiguous bytes: blocks at a stride, and data that callbacks
//! pack and unpack.

pub(crate) mod bound;
pub(crate) mod iov;
pub(crate) mod ops;
pub(crate) mod packed;
pub(crate) mod params;
pub(crate) mod raw;
pub(crate) mod start;
pub(crate) mod strided;
pub(crate) mod view;
