//! Workers: progress, flush, keepalive, counters, and workers on threads of their own.

pub(crate) mod diagnostics;
pub(crate) mod flush;
pub(crate) mod handle;
pub(crate) mod keepalive;
pub(crate) mod progress;
pub(crate) mod signal;
pub(crate) mod thread;
