//! What a worker takes for the time: the system's monotonic clock, or one that it is given, so that a simulation decides
//! when a back-off, a close or a question to a peer is due. Read by `core` and by whoever sets a deadline; moves nothing.

use ucs::time::{Clock, Monotonic, Nanos};

/// The clock of one worker.
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
