//! Memory that peers may access.

pub(crate) mod export;
pub(crate) mod memory;
pub(crate) mod remote_writes;
