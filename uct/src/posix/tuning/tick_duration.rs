//! A duration in [ticks]. Ticks are calibrated against the clock by the time that has passed, so this costs nothing when it is made.

use std::cell::OnceCell;
use std::time::{Duration, Instant};
use ucs::time::ticks;

/// A duration that is converted to [ticks] when it is first needed.
#[derive(Debug)]
pub struct TickDuration {
    duration: Duration,
    /// One moment by both clocks, from which the rate is calculated later.
    reference: (Instant, u64),
    ticks: OnceCell<u64>,
}

impl TickDuration {
    /// The ticks of `duration`, not yet calculated.
    pub fn new(duration: Duration) -> TickDuration {
        TickDuration { duration, reference: (Instant::now(), ticks()), ticks: OnceCell::new() }
    }

    /// The duration in ticks.
    pub fn ticks(&self) -> u64 {
        *self.ticks.get_or_init(|| {
            let (start, start_ticks) = self.reference;
            let elapsed = start.elapsed().as_nanos().max(1) as f64;
            let per_nano = ticks().wrapping_sub(start_ticks) as f64 / elapsed;
            (self.duration.as_nanos() as f64 * per_nano) as u64
        })
    }
}
