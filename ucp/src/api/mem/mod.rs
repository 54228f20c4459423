//! Memory that peers may access.

pub(crate) mod export;
pub(crate) mod map_params;
pub(crate) mod memory;
pub(crate) mod remote_writes;
pub(crate) mod served;
