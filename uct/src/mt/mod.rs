//! Interfaces for several threads: the transports of this crate behind a gate, with types that are `Send` and `Sync`.
//! For programs that share an interface between threads, or want a thread that progresses it while they compute. Who
//! has one thread per interface uses the transports directly, which pay for nothing.
//!
//! The [`ThreadMode`] is chosen when an interface is opened:
//!
//! | mode | another thread | cost of a call |
//! |---|---|---|
//! | [`ThreadMode::Single`] | gets an error | a compare |
//! | [`ThreadMode::Serialized`] | may use it, but gets an error while one is inside | an exchange |
//! | [`ThreadMode::Multi`] | may use it, and waits while one is inside | an exchange |
//!
//! Every interface has a gate of its own: interfaces progress in different threads without a common lock. Handlers and
//! completions run inside, from `progress`; they may send on the same interface, whatever the mode.
//!
//! Why this is sound: an interface is made here, by name, and everything that shares state with it (endpoints, memory,
//! keys) is only ever reached through the gate; none of the transports that are let in keeps anything in thread locals.
//! `self` does, since it is the memory of one thread, and is refused.

mod comp;
mod ep;
mod iface;
mod mem;
mod sleep;
#[cfg(test)]
mod sleep_tests;
#[cfg(test)]
mod tests;
mod thread;
mod trace;
mod wakeup;

pub use crate::base::lock::ThreadMode;
pub use comp::Completion;
pub use ep::Ep;
pub use iface::{AmHandler, HandlerThread, Iface, Tracer};
pub use mem::{Mem, Rkey};
pub use thread::ProgressThread;
pub use trace::{TraceEvent, TraceKind};
