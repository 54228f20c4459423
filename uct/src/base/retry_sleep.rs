//! Sleep between retries of pending operations: doubles from 50 us to 1 ms.

use std::cell::Cell;
use std::time::Duration;

const MIN_SLEEP: Duration = Duration::from_micros(50);
const MAX_SLEEP: Duration = Duration::from_millis(1);

/// The next sleep.
pub struct RetrySleep(Cell<Duration>);

impl Default for RetrySleep {
    fn default() -> Self {
        RetrySleep(Cell::new(MIN_SLEEP))
    }
}

impl RetrySleep {
    pub fn take(&self) -> Duration {
        self.0.replace((self.0.get() * 2).min(MAX_SLEEP))
    }

    /// There was room, or nothing waits for any.
    pub fn reset(&self) {
        self.0.set(MIN_SLEEP);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleeps_double_until_reset() {
        let sleep = RetrySleep::default();
        let slept: Vec<_> = (0..6).map(|_| sleep.take().as_micros()).collect();
        assert_eq!(slept, [50, 100, 200, 400, 800, 1000]);
        sleep.reset();
        assert_eq!(sleep.take(), MIN_SLEEP);
    }
}
