//! Retry policy after a receiver was not ready (RNR), and the packets of one peer that wait to be sent again.

use std::collections::VecDeque;
use std::time::Duration;

use ucs::time::Nanos;

use crate::rdm::recv::held_bytes::HeldBytes;

/// Delays between retries to a receiver that is not ready.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RetryPolicy {
    /// The wait after the second try in vain; zero: drawn between 40 and 120 µs, as libfabric does.
    pub first_delay: Duration,
    /// The longest wait.
    pub max_delay: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        RetryPolicy { first_delay: Duration::ZERO, max_delay: Duration::from_secs(1) }
    }
}

impl RetryPolicy {
    /// Bounds of a first wait that is drawn, ns.
    const DRAWN: (u64, u64) = (40_000, 120_000);

    /// Returns the delay that follows `before`; zero stands for the first retry, which is immediate.
    pub(in crate::rdm) fn after(&self, before: Duration, rng: &mut u64) -> Duration {
        let next = match before {
            Duration::ZERO if self.first_delay.is_zero() => {
                let (least, most) = Self::DRAWN;
                Duration::from_nanos(least + draw(rng) % (most - least + 1))
            }
            Duration::ZERO => self.first_delay,
            before => before.saturating_mul(2),
        };
        next.min(self.max_delay)
    }
}

/// Steps a linear congruential generator, so that the delays of several senders differ.
fn draw(rng: &mut u64) -> u64 {
    *rng = rng.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *rng >> 33
}

/// Queue pair to which a returned packet is sent again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::rdm) enum ResendTo {
    /// A packet: to the peer's main queue pair.
    MainQp,
    /// A message without a header with this word: to its other one.
    UserQp(Option<u32>),
}

/// Packets that one peer was not ready for, and the state of their retries.
#[derive(Debug, Default)]
pub struct BackOff {
    /// In the order in which they came back.
    pub(super) again: VecDeque<(HeldBytes, ResendTo)>,
    /// A try is under way: how many packets have come back since it began.
    pub(super) tried: Option<u32>,
    /// The next try: not before this.
    pub(in crate::rdm) until: Nanos,
    /// The wait that ends then; zero for a try at once.
    pub(super) wait: Duration,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_doubles_up_to_its_limit() {
        let mut rng = 1;
        let retry =
            RetryPolicy { first_delay: Duration::from_micros(50), max_delay: Duration::from_micros(300) };
        let mut wait = Duration::ZERO;
        let waits = [50, 100, 200, 300, 300].map(Duration::from_micros);
        for expected in waits {
            wait = retry.after(wait, &mut rng);
            assert_eq!(wait, expected);
        }
    }

    #[test]
    fn a_drawn_first_wait_lies_in_its_bounds_and_varies() {
        let (mut rng, retry) = (7, RetryPolicy::default());
        let waits: Vec<u128> = (0..1000).map(|_| retry.after(Duration::ZERO, &mut rng).as_micros()).collect();
        assert!(waits.iter().all(|wait| (40..=120).contains(wait)), "{waits:?}");
        assert!(waits.iter().any(|&wait| wait < 60) && waits.iter().any(|&wait| wait > 100));
        let most = RetryPolicy { max_delay: Duration::from_micros(10), ..retry };
        assert_eq!(most.after(Duration::ZERO, &mut rng).as_micros(), 10, "a limit below the bounds wins");
    }
}
