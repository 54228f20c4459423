//! Counters and histograms that cost one add: plain numbers owned by one worker. Used by interfaces, devices
//! and the engine; printed by tools. Never atomic, never shared, never reset by readers (take a snapshot and
//! subtract).

mod counter;
mod hist;

pub use counter::Counters;
pub use hist::Hist;

// For the derive in `counters!`.
#[doc(hidden)]
pub use serde;
