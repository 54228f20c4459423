//! The poll interval: how many polls pass between two rounds of housekeeping, in which `rx.rs` looks for dead
//! peers: rare for a program that polls all the time, frequent for one that polls now and then.

use super::tick_duration::TickDuration;
use std::cell::Cell;
use std::time::Duration;

const MAX_POLLS: u32 = 1024;
/// Polls before the first round.
pub const INITIAL_POLLS: u32 = 16;
/// Time between two rounds, unless [`MAX_POLLS`] come first.
const TARGET_TIME: Duration = Duration::from_millis(10);

#[derive(Debug)]
pub struct PollInterval {
    polls: Cell<u32>,
    /// When the last round was, in [ticks](ucs::time::ticks).
    last_check: Cell<u64>,
    target: TickDuration,
}

impl PollInterval {
    pub fn new(now: u64) -> PollInterval {
        PollInterval {
            polls: Cell::new(INITIAL_POLLS),
            last_check: Cell::new(now),
            target: TickDuration::new(TARGET_TIME),
        }
    }

    pub fn next(&self, now: u64) -> u32 {
        let elapsed = now.wrapping_sub(self.last_check.replace(now));
        let polls = next(self.polls.get(), elapsed, self.target.ticks());
        self.polls.set(polls);
        polls
    }
}

fn next(polls: u32, elapsed: u64, target: u64) -> u32 {
    if elapsed <= target {
        return (polls * 2).min(MAX_POLLS);
    }
    // Less than `polls`, so it fits.
    (u128::from(polls) * u128::from(target) / u128::from(elapsed)).max(1) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The time between two rounds once each poll has taken `each` for a while.
    fn settled(each: u64, target: u64) -> u64 {
        let mut polls = INITIAL_POLLS;
        (0..40).for_each(|_| polls = next(polls, u64::from(polls) * each, target));
        u64::from(polls) * each
    }

    #[test]
    fn interval_adapts_to_the_poll_rate() {
        const TARGET_TIME: u64 = 10_000_000;
        for each in [1, 2, 100, 9000] {
            assert_eq!(settled(each, TARGET_TIME), 1024 * each);
        }
        for each in [10_000, 33_333, 1_000_000, 9_999_999] {
            assert!((1..=2 * TARGET_TIME).contains(&settled(each, TARGET_TIME)), "{each}");
        }
        assert_eq!(settled(2 * TARGET_TIME, TARGET_TIME), 2 * TARGET_TIME, "every poll");
        assert_eq!(next(1024, u64::MAX, TARGET_TIME), 1);
    }
}
