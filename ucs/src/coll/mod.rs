//! Containers for single-threaded hot paths: no hashing, no allocation per operation. Used by workers,
//! interfaces and the protocol engine. Never shared between threads.

pub mod growth;
pub mod list;
pub mod ring;
pub mod slots;
pub mod window;
