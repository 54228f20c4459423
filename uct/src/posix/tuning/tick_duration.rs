//! A duration in [ticks], converted when it is first needed: the rate is measured by the time since it was
//! made.

use std::cell::OnceCell;
use std::time::{Duration, Instant};
use ucs::time::ticks;

#[derive(Debug)]
pub struct TickDuration {
    duration: Duration,
    reference: (Instant, u64),
    ticks: OnceCell<u64>,
}

impl TickDuration {
    pub fn new(duration: Duration) -> TickDuration {
        TickDuration { duration, reference: (Instant::now(), ticks()), ticks: OnceCell::new() }
    }

    pub fn ticks(&self) -> u64 {
        *self.ticks.get_or_init(|| {
            let (start, start_ticks) = self.reference;
            let elapsed = start.elapsed().as_nanos().max(1) as f64;
            let per_nano = ticks().wrapping_sub(start_ticks) as f64 / elapsed;
            (self.duration.as_nanos() as f64 * per_nano) as u64
        })
    }
}
