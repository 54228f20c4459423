//! Interfaces shared by threads: transports inside a lock, with `Send` and `Sync` types, and a progress
//! thread. Programs with one thread per interface use the transports directly.
//!
//! | mode, set when opened | another thread | cost of a call |
//! |---|---|---|
//! | [`ThreadMode::Single`] | gets an error | a compare |
//! | [`ThreadMode::Serialized`] | may use it, but gets an error while one is inside | an exchange |
//! | [`ThreadMode::Multi`] | may use it, and waits while one is inside | an exchange |
//!
//! Each interface has its own lock. Handlers and completions run inside, and may send on the interface.
//! Memory and keys are those of [`crate::any`], for any thread and every interface on the domain, and need no
//! lock.
//!
//! Soundness: an interface is made here, and all that shares its state is reached only through the lock; what
//! it shares with other interfaces, its memory domain, is for any thread.

mod comp;
mod ep;
mod iface;
mod inner;
mod sleep;
#[cfg(test)]
mod sleep_tests;
#[cfg(test)]
mod tests;
mod thread;
mod trace;

pub use comp::Completion;
pub use ep::Ep;
pub use iface::{AmHandler, HandlerThread, Iface, Tracer};
pub use thread::ProgressThread;
pub use trace::{TraceEvent, TraceKind};
pub use ucs::sync::ThreadMode;
