//! Workers: progress, flush, keepalive, counters, and workers on threads of their own.

pub(crate) mod armed;
pub(crate) mod close;
pub(crate) mod deadline_timer;
pub(crate) mod diagnostics;
pub(crate) mod dispatch;
pub(crate) mod flush;
pub(crate) mod forks;
pub(crate) mod handle;
pub(crate) mod keepalive;
pub(crate) mod progress;
pub(crate) mod signal;
pub(crate) mod sleep;
pub(crate) mod thread;
pub(crate) mod wakers;
