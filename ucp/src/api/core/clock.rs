//! Clock of a worker: the system's monotonic clock, or one that a simulation provides.

use ucs::time::{Clock, Monotonic, Nanos};

pub(crate) enum WorkerClock {
    System,
    Simulated(Box<dyn Clock>),
}

impl Clock for WorkerClock {
    #[inline]
    fn now(&self) -> Nanos {
        match self {
            WorkerClock::System => Monotonic.now(),
            WorkerClock::Simulated(clock) => clock.now(),
        }
    }
}
