//! Decorators: an interface around another one, for who wants to see what passes, or to connect otherwise.
//! Who does not wrap pays nothing. Used by programs and tools; any transport can be inside. Only `Paired`
//! adds to what is sent.

mod forward;
mod locked;
mod paired;

pub use crate::base::lock::ThreadMode;
pub use locked::{Locked, LockedEp};
pub use paired::{Paired, PairedEp};
