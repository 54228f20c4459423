//! How long to sleep before what waits for room is tried again, where nobody tells of room: a little at first, twice as long
//! each time in vain. RecvDesc by an interface; asked when it is armed.

use std::cell::Cell;
use std::time::Duration;

/// About what a sleep costs by itself.
const FIRST: Duration = Duration::from_micros(50);
const LAST: Duration = Duration::from_millis(1);

/// The next nap.
pub struct RetrySleep(Cell<Duration>);

impl Default for RetrySleep {
    fn default() -> Self {
        RetrySleep(Cell::new(FIRST))
    }
}

impl RetrySleep {
    /// The time to sleep now; the next one is longer.
    pub fn take(&self) -> Duration {
        self.0.replace((self.0.get() * 2).min(LAST))
    }

    /// There was room, or nothing waits for any.
    pub fn reset(&self) {
        self.0.set(FIRST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn naps_grow_until_there_is_room() {
        let nap = RetrySleep::default();
        let slept: Vec<_> = (0..6).map(|_| nap.take().as_micros()).collect();
        assert_eq!(slept, [50, 100, 200, 400, 800, 1000]);
        nap.reset();
        assert_eq!(nap.take(), FIRST);
    }
}
