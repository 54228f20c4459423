//! Connecting by socket address: listeners, accepting, and endpoints to a socket address. `crate::cm` has the
//! exchange itself.

pub(crate) mod connect;
pub(crate) mod listener;
pub(crate) mod progress;
