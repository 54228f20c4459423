//! Retry policy after a receiver was not ready (RNR), and the packets of one peer that wait to be sent again.

use std::collections::VecDeque;
use std::time::Duration;

use ucs::time::Nanos;

use crate::rdm::recv::held_bytes::HeldBytes;

/// Delays between retries to a receiver that is not ready.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RetryPolicy {
    /// The delay after the second failed try; zero: drawn between 40 and 120 µs, as libfabric does.
    pub first_delay: Duration,
    /// The longest delay.
    pub max_delay: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        RetryPolicy { first_delay: Duration::ZERO, max_delay: Duration::from_secs(1) }
    }
}

impl RetryPolicy {
    /// Bounds of a random first delay, ns.
    const RANDOM_FIRST: (u64, u64) = (40_000, 120_000);

    /// Returns the delay that follows `before`; zero stands for the first retry, which is immediate.
    pub(in crate::rdm) fn after(&self, before: Duration, rng: &mut u64) -> Duration {
        let next = match before {
            Duration::ZERO if self.first_delay.is_zero() => {
                let (min, max) = Self::RANDOM_FIRST;
                Duration::from_nanos(min + draw(rng) % (max - min + 1))
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
    /// A message without a header, with this immediate data: to the user receive QP.
    UserQp(Option<u32>),
}

/// Packets to one peer that was not ready, and the state of their retries.
#[derive(Debug, Default)]
pub struct BackOff {
    /// In the order in which they came back.
    pub(super) packets: VecDeque<(HeldBytes, ResendTo)>,
    /// During a retry: the number of packets that have come back since it began.
    pub(super) returned: Option<u32>,
    /// Earliest time of the next retry.
    pub(in crate::rdm) until: Nanos,
    /// The delay that ends then; zero for an immediate retry.
    pub(super) delay: Duration,
}

impl BackOff {
    /// True if a retry is under way.
    pub(in crate::rdm) const fn is_retrying(&self) -> bool {
        self.returned.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delay_doubles_up_to_limit() {
        let mut rng = 1;
        let retry =
            RetryPolicy { first_delay: Duration::from_micros(50), max_delay: Duration::from_micros(300) };
        let mut delay = Duration::ZERO;
        let delays = [50, 100, 200, 300, 300].map(Duration::from_micros);
        for expected in delays {
            delay = retry.after(delay, &mut rng);
            assert_eq!(delay, expected);
        }
    }

    #[test]
    fn random_first_delay_stays_in_bounds_and_varies() {
        let (mut rng, retry) = (7, RetryPolicy::default());
        let delays: Vec<u128> =
            (0..1000).map(|_| retry.after(Duration::ZERO, &mut rng).as_micros()).collect();
        assert!(delays.iter().all(|delay| (40..=120).contains(delay)), "{delays:?}");
        assert!(delays.iter().any(|&delay| delay < 60) && delays.iter().any(|&delay| delay > 100));
        let capped = RetryPolicy { max_delay: Duration::from_micros(10), ..retry };
        assert_eq!(capped.after(Duration::ZERO, &mut rng).as_micros(), 10, "a limit below the bounds wins");
    }
}
