//! Containers for single-threaded hot paths: no hashing, no allocation per operation.

pub mod growth;
pub mod list;
pub mod ring;
pub mod slots;
pub mod window;
