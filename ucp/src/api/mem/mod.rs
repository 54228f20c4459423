//! Memory that peers may reach.

pub(crate) mod memory;
pub(crate) mod remote_writes;
