//! Requests that programs hold, and the buffers that they own.

pub(crate) mod buf;
pub(crate) mod handles;
pub(crate) mod memory;
pub(crate) mod scope;
pub(crate) mod tracked;
pub(crate) mod triggers;
