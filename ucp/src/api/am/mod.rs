//! Active messages.

pub(crate) mod handlers;
pub(crate) mod pool;
pub(crate) mod recv;
pub(crate) mod send;
