//! How long a peer has held something, without most of the time in which nobody looked: this process may have
//! been stopped meanwhile, and the peer with it.

use std::time::{Duration, Instant};

/// Longest time between two looks that counts.
const MAX_GAP: Duration = Duration::from_secs(1);

/// Something that a peer holds, looked at now and then.
#[derive(Clone, Copy, Debug)]
pub struct HoldTime {
    held: Duration,
    seen: Instant,
}

impl HoldTime {
    /// Seen for the first time.
    pub fn new(now: Instant) -> HoldTime {
        HoldTime { held: Duration::ZERO, seen: now }
    }

    /// Seen again.
    pub fn look(&mut self, now: Instant) {
        self.held += now.saturating_duration_since(self.seen).min(MAX_GAP);
        self.seen = now;
    }

    /// Time for which it has been held, up to the last look.
    pub fn held(&self) -> Duration {
        self.held
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_without_looks_does_not_count() {
        let start = Instant::now();
        let mut hold = HoldTime::new(start);
        hold.look(start + Duration::from_millis(300));
        assert_eq!(hold.held(), Duration::from_millis(300));
        // The whole job was stopped for an hour.
        hold.look(start + Duration::from_secs(3600));
        assert_eq!(hold.held(), Duration::from_millis(1300));
        // A process that looks rarely sees it in the end.
        (1..=3).for_each(|n| hold.look(start + Duration::from_secs(3600 + 2 * n)));
        assert_eq!(hold.held(), Duration::from_millis(4300));
    }
}
