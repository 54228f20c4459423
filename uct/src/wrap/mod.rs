//! Decorators of interfaces: a thread mode, and connections between endpoints. Any transport can be inside.

mod forward;
mod locked;
mod paired;

pub use locked::{Locked, LockedEp};
pub use paired::{Paired, PairedEp};
pub use ucs::sync::ThreadMode;
