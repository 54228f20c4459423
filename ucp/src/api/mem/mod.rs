//! Memory that peers may reach.

pub(crate) mod memory;
