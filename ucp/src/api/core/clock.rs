//! Clock of a worker: the system's monotonic clock, or one that a simulation provides.

use ucs::time::{Clock, Monotonic, Nanos};

pub(crate) enum Time {
    System,
    Given(Box<dyn Clock>),
}

impl Clock for Time {
    #[inline]
    fn now(&self) -> Nanos {
        match self {
            Time::System => Monotonic.now(),
            Time::Given(clock) => clock.now(),
        }
    }
}
