//! Response to congestion, which the document leaves to its switches: the window halves on a loss, sends are
//! paced until it has recovered, and it grows by what is acknowledged (RFC 5681 and, for the pace, RFC 9002).

use crate::config::Config;
use crate::seq::Seq;

/// Smallest window, segments.
const MIN_WINDOW: u32 = 2;
/// Time whose segments may be sent ahead of their pace, ns: in batches, which cost less. TCP of Linux hands
/// as much over at once.
const BURST_NS: u64 = 1_000_000;
/// Segments that may be sent ahead of their pace, fewest and most.
const BURST: (u64, u64) = (4, 64);

/// Congestion window of one peer, segments.
#[derive(Clone, Copy, Debug)]
pub struct Congestion {
    window: u32,
    limit: u32,
    /// Window below which it grows by each acknowledged segment.
    slow_start_until: u32,
    /// Acknowledged segments toward the next growth by one.
    counted: u32,
    /// Losses before this number belong to the one that is recovered from.
    recovery_end: Option<Seq>,
    /// Whether sends are paced: from a loss on until the window is as large as it was.
    paced_until: u32,
    next_send: u64,
    /// When the window was last halved.
    halved: u64,
}

/// A lost segment.
#[derive(Clone, Copy, Debug)]
pub struct Loss {
    /// Number of the segment.
    pub seq: Seq,
    /// Number of the next segment.
    pub next: Seq,
    /// Whether it had been sent again before.
    pub again: bool,
    /// Time.
    pub now: u64,
    /// Round-trip time.
    pub rtt: u64,
}

impl Congestion {
    /// Creates the window of a new connection.
    pub fn new(config: &Config) -> Self {
        Congestion {
            window: config.first_window.clamp(MIN_WINDOW, config.window),
            limit: config.window,
            slow_start_until: u32::MAX,
            counted: 0,
            recovery_end: None,
            paced_until: 0,
            next_send: 0,
            halved: 0,
        }
    }

    /// Segments that may be on their way.
    #[inline]
    pub fn window(&self) -> u32 {
        self.window
    }

    /// Takes `n` acknowledged segments, with `in_flight` on their way before; `first` is the oldest number
    /// not acknowledged now.
    pub fn on_acked(&mut self, n: u32, in_flight: u32, first: Seq) {
        if self.recovery_end.is_some_and(|end| !first.is_before(end)) {
            self.recovery_end = None;
        }
        // A window that was not used tells nothing about the network.
        if self.recovery_end.is_some() || in_flight * 2 < self.window {
            return;
        }
        if self.window < self.slow_start_until {
            self.window = (self.window + n).min(self.limit);
        } else {
            self.counted += n;
            let grown = self.counted / self.window;
            self.counted -= grown * self.window;
            self.window = (self.window + grown).min(self.limit);
        }
        if self.window >= self.paced_until {
            self.paced_until = 0;
        }
    }

    /// Takes a loss. Halves the window once per round trip; again in a recovery if what it sends is lost too:
    /// a window that does not shrink would be sent, and lost, at each timer. Returns whether it did.
    pub fn on_loss(&mut self, loss: Loss) -> bool {
        let recovers = self.recovery_end.is_some_and(|end| loss.seq.is_before(end));
        let again = loss.again && loss.now >= self.halved + loss.rtt;
        if recovers && !again {
            return false;
        }
        self.halved = loss.now;
        self.recovery_end = Some(loss.next);
        self.paced_until = self.paced_until.max(self.window);
        self.window = (self.window / 2).max(MIN_WINDOW);
        self.slow_start_until = self.window;
        self.counted = 0;
        true
    }

    /// Time before which the next segment is not sent: a whole window takes one round trip.
    pub fn send_time(&self) -> Option<u64> {
        (self.paced_until != 0).then_some(self.next_send)
    }

    /// Takes a send.
    #[inline]
    pub fn on_sent(&mut self, now: u64, rtt: Option<u64>) {
        if self.paced_until != 0 {
            let interval = rtt.unwrap_or(0) / u64::from(self.window);
            let (fewest, most) = BURST;
            let most = most.min(self.window.into()).max(fewest);
            let burst = (BURST_NS / interval.max(1)).clamp(fewest, most);
            self.next_send = self.next_send.max(now.saturating_sub(burst * interval)) + interval;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loss(seq: Seq, next: Seq) -> Loss {
        Loss { seq, next, again: false, now: 0, rtt: 100 }
    }

    #[test]
    fn halves_once_a_round_trip_and_recovers() {
        let config = Config { first_window: 64, ..Config::default() };
        let mut congestion = Congestion::new(&config);
        congestion.on_acked(64, 64, Seq(64));
        assert_eq!(congestion.window(), 128, "doubles a round trip");
        assert!(congestion.on_loss(loss(Seq(100), Seq(192))));
        assert!(!congestion.on_loss(loss(Seq(150), Seq(192))), "of the same round trip");
        assert_eq!(congestion.window(), 64);
        congestion.on_acked(50, 64, Seq(150));
        assert_eq!(congestion.window(), 64, "still recovers");
        congestion.on_acked(42, 64, Seq(192));
        congestion.on_acked(64, 64, Seq(256));
        assert_eq!(congestion.window(), 65, "by one a round trip");
        assert!(congestion.on_loss(loss(Seq(300), Seq(320))));
        assert_eq!(congestion.window(), 32);
        let again = |now| Loss { again: true, now, ..loss(Seq(300), Seq(320)) };
        assert!(!congestion.on_loss(again(99)) && congestion.on_loss(again(100)), "the recovery is lost too");
        assert_eq!(congestion.window(), 16);
        (0..20).for_each(|n| _ = congestion.on_loss(loss(Seq(400 + 10 * n), Seq(405 + 10 * n))));
        assert_eq!(congestion.window(), MIN_WINDOW);
    }

    #[test]
    fn paces_after_a_loss() {
        let config = Config { first_window: 10, ..Config::default() };
        let mut congestion = Congestion::new(&config);
        assert_eq!(congestion.send_time(), None);
        congestion.on_loss(loss(Seq(0), Seq(10)));
        let (mut now, mut sent) = (1_000_000, 0);
        while now < 2_000_000 {
            while congestion.send_time().is_some_and(|t| t <= now) {
                congestion.on_sent(now, Some(500_000));
                sent += 1;
            }
            now += 1_000;
        }
        assert!((10..=15).contains(&sent), "two round trips of five segments and a burst: {sent}");
    }
}
