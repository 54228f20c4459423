//! Active messages.

pub(crate) mod announced;
pub(crate) mod handlers;
pub(crate) mod pool;
pub(crate) mod queue;
pub(crate) mod recv;
pub(crate) mod send;
pub(crate) mod tag;
