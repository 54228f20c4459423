//! Counters and histograms of one worker: plain numbers, never atomic. Readers subtract snapshots.

mod counter;
mod hist;

pub use counter::Counters;
pub use hist::Hist;

#[doc(hidden)]
pub use serde;
