//! How many polls there are between two looks around: by rx.rs, which looks whether a peer has died. Who polls all the time looks
//! seldom, so that a poll costs nothing more; who polls now and then looks often, so that it is told in time all the same.

use super::holdoff::Limit;
use std::cell::Cell;
use std::time::Duration;

/// Most polls between two looks.
const MOST: u32 = 1024;
/// At first, when nothing is known of how often the program polls.
const FIRST: u32 = 16;
/// Time between two looks, if as many polls as that come in it.
const TIME: Duration = Duration::from_millis(10);

/// The polls of one interface.
#[derive(Debug)]
pub struct Pace {
    polls: Cell<u32>,
    /// When the last look was, in [ticks](ucs::time::ticks).
    then: Cell<u64>,
    time: Limit,
}

impl Pace {
    /// Polls begin now.
    pub fn new(now: u64) -> Pace {
        Pace { polls: Cell::new(FIRST), then: Cell::new(now), time: Limit::new(TIME) }
    }

    /// Polls until the first look.
    pub const fn first() -> u32 {
        FIRST
    }

    /// Polls until the next look, as this one is at `now`.
    pub fn next(&self, now: u64) -> u32 {
        let took = now.wrapping_sub(self.then.replace(now));
        let polls = next(self.polls.get(), took, self.time.ticks());
        self.polls.set(polls);
        polls
    }
}

/// After `polls` that took so long.
fn next(polls: u32, took: u64, time: u64) -> u32 {
    if took <= time {
        return (polls * 2).min(MOST);
    }
    // Less than `polls`, so it fits.
    (u128::from(polls) * u128::from(time) / u128::from(took)).max(1) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How long until the look after `each` has been the time of a poll for a while.
    fn settled(each: u64, time: u64) -> u64 {
        let mut polls = FIRST;
        (0..40).for_each(|_| polls = next(polls, u64::from(polls) * each, time));
        u64::from(polls) * each
    }

    #[test]
    fn who_polls_often_looks_seldom_and_who_polls_seldom_looks_in_time() {
        const TIME: u64 = 10_000_000;
        for each in [1, 2, 100, 9000] {
            assert_eq!(settled(each, TIME), 1024 * each);
        }
        for each in [10_000, 33_333, 1_000_000, 9_999_999] {
            assert!((1..=2 * TIME).contains(&settled(each, TIME)), "{each}");
        }
        assert_eq!(settled(2 * TIME, TIME), 2 * TIME, "every poll");
        assert_eq!(next(1024, u64::MAX, TIME), 1);
    }
}
