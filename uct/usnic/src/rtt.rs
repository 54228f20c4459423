//! The retransmit timer's length. *"each pkt has dflt retrans timer of 100ms"* (Reliability) holds until the
//! round-trip time is known; from then on the rules of RFC 6298 do, with Karn's: a segment that was sent
//! twice tells nothing.

use crate::config::Config;

/// Most doublings of the timer.
const MAX_BACKOFF: u32 = 10;
/// Most doublings of the shortest timer: 5 ms become 40.
const MAX_PATIENCE: u32 = 3;
/// The shortest round-trip time is that of the last one or two of these, ns: a route may have become longer.
const MIN_PERIOD: u64 = 10_000_000_000;

/// Round-trip time of a peer, ns.
#[derive(Clone, Copy, Default, Debug)]
pub struct Rtt {
    smoothed: Option<u64>,
    variation: u64,
    /// Shortest round-trip time of this period and of the one before.
    mins: [u64; 2],
    /// When this period began.
    period: u64,
    backoff: u32,
    /// Doublings of the shortest timer.
    patience: u32,
    /// Whether the last recovery that a timer began was from nothing.
    was_spurious: bool,
}

impl Rtt {
    /// Smoothed round-trip time.
    pub fn smoothed(&self) -> Option<u64> {
        self.smoothed
    }

    /// Shortest round-trip time of the last 10 to 20 seconds, 0 before the first.
    pub fn min(&self) -> u64 {
        self.mins[0].min(self.mins[1])
    }

    /// Takes a sample at time `now` (RFC 6298, 2.2 and 2.3). It ends a back-off. One that is longer than the
    /// longest timer tells of a pause of this process, not of the network, and counts as that timer.
    pub fn sample(&mut self, rtt: u64, now: u64, config: &Config) {
        let rtt = rtt.min(config.max_rto).max(1);
        self.backoff = 0;
        match self.smoothed {
            None => {
                (self.smoothed, self.variation) = (Some(rtt), rtt / 2);
                (self.mins, self.period) = ([rtt; 2], now);
            }
            Some(smoothed) => {
                self.variation = self.variation - self.variation / 4 + smoothed.abs_diff(rtt) / 4;
                self.smoothed = Some(smoothed - smoothed / 8 + rtt / 8);
                if now.saturating_sub(self.period) >= MIN_PERIOD {
                    (self.mins, self.period) = ([rtt, self.mins[0]], now);
                } else {
                    self.mins[0] = self.mins[0].min(rtt);
                }
            }
        }
    }

    /// Takes the word that the timer expired for nothing: the shortest timer doubles, as peers that are not
    /// scheduled for longer than it will be so again.
    pub fn on_spurious(&mut self) {
        self.was_spurious = true;
        self.patience = (self.patience + 1).min(MAX_PATIENCE);
    }

    /// Doubles the timer after it expired (RFC 6298, 5.5). If it did so with reason before, the shortest
    /// timer shrinks again.
    pub fn back_off(&mut self) {
        if !std::mem::take(&mut self.was_spurious) {
            self.patience = self.patience.saturating_sub(1);
        }
        self.backoff = (self.backoff + 1).min(MAX_BACKOFF);
    }

    /// Retransmit timer of a segment whose timer has expired so many times. One that was sent again since
    /// others have arrived has the timer of a new one: the peer is heard.
    pub fn timeout(&self, config: &Config, timeouts: u32) -> u64 {
        let shortest = (config.min_rto << self.patience).min(config.max_rto);
        let base = match self.smoothed {
            None => config.initial_rto,
            // The receiver acknowledges after a delay. At least a second round trip: a steady network would
            // leave no margin, and the timer would be faster than the rules for losses.
            Some(smoothed) => {
                let margin = smoothed.max(4 * self.variation);
                (smoothed + margin + config.ack_delay).clamp(shortest, config.max_rto)
            }
        };
        let doublings = self.backoff.max(timeouts).min(MAX_BACKOFF);
        (base << doublings).min(config.max_rto.max(base))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timer_is_100_ms_until_the_first_sample() {
        let (config, mut rtt) = (Config::default(), Rtt::default());
        assert_eq!(rtt.timeout(&config, 0), 100_000_000);
        assert_eq!(rtt.timeout(&config, 1), 200_000_000);
        rtt.sample(10_000_000, 0, &config);
        // SRTT + 4 × RTT/2, and the delay of the acknowledgement.
        assert_eq!(rtt.timeout(&config, 0), 30_050_000);
        for _ in 0..200 {
            rtt.sample(10_000_000, 0, &config);
        }
        assert!(rtt.timeout(&config, 0) < 20_100_000, "{rtt:?}");
        assert_eq!(rtt.min(), 10_000_000);
    }

    #[test]
    fn min_rtt_expires_after_a_route_change() {
        let (config, mut rtt) = (Config::default(), Rtt::default());
        rtt.sample(1_000_000, 0, &config);
        rtt.sample(3_000_000, MIN_PERIOD, &config);
        assert_eq!(rtt.min(), 1_000_000);
        rtt.sample(2_000_000, 2 * MIN_PERIOD - 1, &config);
        rtt.sample(4_000_000, 2 * MIN_PERIOD, &config);
        assert_eq!(rtt.min(), 2_000_000);
    }

    #[test]
    fn an_rtt_sample_is_capped_at_the_longest_rto() {
        let (config, mut rtt) = (Config::default(), Rtt::default());
        rtt.sample(1_000_000, 0, &config);
        rtt.sample(3_600_000_000_000, 3_600_000_000_000, &config);
        assert!(rtt.smoothed() < Some(config.max_rto / 4), "{rtt:?}");
    }

    #[test]
    fn timer_has_bounds_and_backs_off() {
        let (config, mut rtt) = (Config::default(), Rtt::default());
        rtt.sample(1_000, 0, &config);
        assert_eq!(rtt.timeout(&config, 0), config.min_rto);
        rtt.back_off();
        assert_eq!(rtt.timeout(&config, 0), 2 * config.min_rto);
        assert_eq!(rtt.timeout(&config, 2), 4 * config.min_rto);
        assert_eq!(rtt.timeout(&config, 98), (config.min_rto << MAX_BACKOFF).min(config.max_rto));
        rtt.sample(1_000, 0, &config);
        assert_eq!(rtt.timeout(&config, 0), config.min_rto, "a sample ends the back-off");
    }

    #[test]
    fn min_rto_grows_on_spurious_timeouts() {
        let (config, mut rtt) = (Config::default(), Rtt::default());
        rtt.sample(1_000, 0, &config);
        for doublings in [1, 2, 3, 3] {
            rtt.back_off();
            rtt.sample(1_000, 0, &config);
            rtt.on_spurious();
            assert_eq!(rtt.timeout(&config, 0), config.min_rto << doublings);
        }
        for doublings in [3, 2, 1, 0, 0] {
            rtt.back_off();
            rtt.sample(1_000, 0, &config);
            assert_eq!(rtt.timeout(&config, 0), config.min_rto << doublings);
        }
    }
}
