//! Decorators: an interface around another one, for who wants to see what passes, or to connect otherwise. Who does
//! not wrap pays nothing. Used by programs and tools; any transport can be inside. Only `Paired` adds
//! to what is sent.

mod forward;
mod gated;
mod paired;
mod trace;

pub use crate::base::lock::ThreadMode;
pub use gated::{Gated, GatedEp};
pub use paired::{Paired, PairedEp};
pub use trace::{Passed, TraceEvent, Traced, TracedEp};
#[cfg(not(loom))]
pub(crate) use trace::{Shown, Tracer, Watched};
