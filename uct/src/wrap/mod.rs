//! Decorators: an interface around another one, for who wants to see what passes. Who does not wrap pays nothing.
//! Used by programs and tools; any transport can be inside. Never changes what is sent or received.

mod trace;

pub use trace::{Passed, TraceEvent, Traced, TracedEp};
