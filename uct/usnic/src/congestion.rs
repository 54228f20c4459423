//! Response to congestion, which the document leaves to its switches: a loss makes the window smaller, sends
//! are paced until it has recovered, and it grows by what is acknowledged (RFC 5681, and RFC 9002 for the
//! pace).
//!
//! If the round-trip time shows a standing queue, a loss halves the window. Otherwise each lost segment
//! shrinks it by one, down to half: the window shrinks in proportion to the loss rate, as RFC 8257 does for
//! ECN marks. A path with random loss thus keeps its goodput.

use crate::config::Config;
use crate::seq::Seq;

/// Smallest window, segments: those behind a lost one tell of it. With fewer the timer has to, which waits
/// for many round trips. As many may be the first of a connection (RFC 5681).
const MIN_WINDOW: u32 = 4;
/// A queue stands if the smoothed round-trip time is more than a quarter above the shortest.
const QUEUE: (u64, u64) = (5, 4);
/// Time whose segments may be sent ahead of their pace, ns: in batches, which cost less. TCP of Linux hands
/// as much over at once.
const BURST_NS: u64 = 1_000_000;
/// Segments that may be sent ahead of their pace, fewest and most.
const BURST: (u64, u64) = (4, 64);
/// Batches of a round trip, at least: each makes the peer acknowledge, and one acknowledgement may be lost.
const BATCHES: u32 = 8;
/// The pace is a quarter above a window in a round trip (RFC 9002, 7.7): else it would never fill the window.
const GAIN: (u64, u64) = (5, 4);

/// Congestion window of one peer, segments.
#[derive(Clone, Copy, Debug)]
pub struct Congestion {
    window: u32,
    limit: u32,
    /// Window below which it grows by each acknowledged segment.
    ssthresh: u32,
    /// Acknowledged segments toward the next growth by one.
    counted: u32,
    /// Losses before this number belong to the one that is recovered from.
    recovery_point: Option<Seq>,
    /// Whether sends are paced: from a loss on until the window is as large as it was.
    paced_until: u32,
    next_send: u64,
    /// Whether the pace has held sends up since the last acknowledgement.
    was_held: bool,
    /// When a recovery last began, or halved the window again.
    began: u64,
    /// Whether each loss of the recovery takes one from the window, and down to which.
    is_gradual: bool,
    least: u32,
    /// As it was before the recovery; `None` if it cannot become so again.
    before: Option<Before>,
    /// Segments sent again in the recovery that the peer has not told to be spurious.
    resent: u32,
}

/// A window before a recovery.
#[derive(Clone, Copy, Debug)]
struct Before {
    window: u32,
    ssthresh: u32,
    paced_until: u32,
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
    /// Whether its timer told, and nothing that was acknowledged.
    pub by_timer: bool,
    /// Time.
    pub now: u64,
    /// Smoothed round-trip time.
    pub rtt: u64,
    /// Shortest round-trip time.
    pub min_rtt: u64,
}

impl Loss {
    /// Whether there was a queue on the way.
    fn had_queue(&self) -> bool {
        self.rtt * QUEUE.1 > self.min_rtt * QUEUE.0
    }
}

impl Congestion {
    /// Creates the window of a new connection.
    pub fn new(config: &Config) -> Self {
        Congestion {
            window: config.initial_window.clamp(MIN_WINDOW, config.window),
            limit: config.window,
            ssthresh: u32::MAX,
            counted: 0,
            recovery_point: None,
            paced_until: 0,
            next_send: 0,
            was_held: false,
            began: 0,
            is_gradual: false,
            least: 0,
            before: None,
            resent: 0,
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
        if self.recovery_point.is_some_and(|end| !first.is_before(end)) {
            self.recovery_point = None;
        }
        // A window that was not used tells nothing about the network, unless it was the pace that kept it
        // from being used (RFC 9002, 7.8).
        let was_used = std::mem::take(&mut self.was_held) || in_flight * 2 >= self.window;
        let is_halved = self.recovery_point.is_some() && !self.is_gradual;
        if is_halved || !was_used {
            return;
        }
        if self.window < self.ssthresh {
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

    /// Handles a loss. With a standing queue: halves the window once per round trip, and again in a recovery
    /// if a retransmission is lost. Otherwise: shrinks the window by one, down to half in one recovery, and
    /// halves it if a retransmitted segment times out. Returns whether a recovery began or the window was
    /// halved again.
    pub fn on_loss(&mut self, loss: Loss) -> bool {
        let recovers = self.recovery_point.is_some_and(|end| loss.seq.is_before(end));
        let halves = loss.had_queue() || (loss.again && loss.by_timer);
        let again = loss.again && loss.now >= self.began + loss.rtt && (halves || !self.is_gradual);
        if recovers && !again {
            if self.is_gradual {
                self.shrink(self.window - 1);
            }
            return false;
        }
        if self.recovery_point.is_none() {
            let (ssthresh, paced_until) = (self.ssthresh, self.paced_until);
            self.before = Some(Before { window: self.window, ssthresh, paced_until });
            self.resent = 0;
        }
        self.began = loss.now;
        self.recovery_point = Some(loss.next);
        self.paced_until = self.paced_until.max(self.window);
        self.least = (self.window / 2).max(MIN_WINDOW);
        self.is_gradual = !halves;
        if halves {
            self.shrink(self.least);
            self.counted = 0;
        } else {
            self.shrink(self.window - 1);
        }
        true
    }

    fn shrink(&mut self, to: u32) {
        self.window = to.max(self.least);
        self.ssthresh = self.window;
    }

    /// Takes a segment that is sent again.
    #[inline]
    pub fn on_resent(&mut self) {
        self.resent = self.resent.saturating_add(1);
    }

    /// Handles the peer's count of spurious retransmissions. If all of this recovery were spurious, restores
    /// the window (RFC 4015). Returns whether it did.
    pub fn on_spurious(&mut self, count: u32) -> bool {
        // Of an earlier recovery: nothing has been sent again in this one.
        if self.resent == 0 {
            return false;
        }
        self.resent = self.resent.saturating_sub(count);
        if self.resent != 0 {
            return false;
        }
        let Some(before) = self.before.take() else { return false };
        self.window = self.window.max(before.window);
        self.ssthresh = before.ssthresh;
        self.paced_until = if self.window < before.paced_until { before.paced_until } else { 0 };
        self.recovery_point = None;
        true
    }

    /// Time before which the next segment is not sent: a whole window takes one round trip.
    pub fn send_time(&self) -> Option<u64> {
        (self.paced_until != 0).then_some(self.next_send)
    }

    /// Holds sends up for their pace. Returns the time until which: then a batch of them may go, at once. One
    /// by one they would cost a system call each.
    pub fn hold(&mut self, rtt: Option<u64>) -> u64 {
        self.was_held = true;
        let interval = self.interval(rtt);
        let batch = self.burst(interval).min(u64::from(self.window / BATCHES)).max(1);
        self.next_send + (batch - 1) * interval
    }

    /// Time between two sends.
    fn interval(&self, rtt: Option<u64>) -> u64 {
        rtt.unwrap_or(0) * GAIN.1 / (u64::from(self.window) * GAIN.0)
    }

    /// Segments that may be sent ahead of their pace.
    fn burst(&self, interval: u64) -> u64 {
        let (fewest, most) = BURST;
        (BURST_NS / interval.max(1)).clamp(fewest, most.min(u64::from(self.window / BATCHES)).max(fewest))
    }

    /// Takes a send.
    #[inline]
    pub fn on_sent(&mut self, now: u64, rtt: Option<u64>) {
        if self.paced_until != 0 {
            let interval = self.interval(rtt);
            let ahead = self.burst(interval) * interval;
            self.next_send = self.next_send.max(now.saturating_sub(ahead)) + interval;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loss(seq: Seq, next: Seq) -> Loss {
        Loss { seq, next, again: false, by_timer: false, now: 0, rtt: 100, min_rtt: 50 }
    }

    #[test]
    fn halves_once_a_round_trip_and_recovers() {
        let config = Config { initial_window: 64, ..Config::default() };
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
    fn without_a_queue_each_loss_takes_one_and_half_at_most() {
        let config = Config { initial_window: 64, ..Config::default() };
        let mut congestion = Congestion::new(&config);
        let chance = |n| Loss { min_rtt: 80, ..loss(Seq(n), Seq(164)) };
        assert!(congestion.on_loss(chance(100)) && !congestion.on_loss(chance(110)));
        assert_eq!(congestion.window(), 62);
        congestion.on_acked(64, 62, Seq(140));
        assert_eq!(congestion.window(), 63, "grows meanwhile, by one a round trip");
        assert!(!congestion.on_loss(Loss { again: true, now: 100, ..chance(110) }));
        (111..160).for_each(|n| _ = congestion.on_loss(chance(n)));
        assert_eq!(congestion.window(), 32, "half of what it was");
        let by_timer = Loss { again: true, by_timer: true, now: 100, ..chance(111) };
        assert!(congestion.on_loss(by_timer));
        assert_eq!(congestion.window(), 16, "what was sent again is lost too, and nothing else arrives");
        assert!(congestion.on_loss(loss(Seq(170), Seq(180))));
        assert_eq!(congestion.window(), 8, "a queue stands");
    }

    #[test]
    fn a_recovery_from_nothing_is_undone() {
        let config = Config { initial_window: 64, ..Config::default() };
        let mut congestion = Congestion::new(&config);
        assert!(congestion.on_loss(loss(Seq(0), Seq(64))));
        (0..3).for_each(|_| congestion.on_resent());
        let again = Loss { again: true, now: 500, ..loss(Seq(0), Seq(70)) };
        assert!(congestion.on_loss(again), "it has not ended");
        congestion.on_resent();
        assert!(!congestion.on_spurious(3));
        assert_eq!(congestion.window(), 16);
        assert!(congestion.on_spurious(1), "all four were spurious");
        assert_eq!((congestion.window(), congestion.send_time()), (64, None));
        assert!(!congestion.on_spurious(1), "once");
        // A late count of an earlier recovery tells nothing of one that has sent nothing again yet.
        assert!(congestion.on_loss(loss(Seq(72), Seq(78))) && !congestion.on_spurious(1));
        assert_eq!(congestion.window(), 32);
        congestion.on_resent();
        assert!(congestion.on_spurious(1));
        // Of two, one was lost.
        assert!(congestion.on_loss(loss(Seq(80), Seq(144))));
        (0..2).for_each(|_| congestion.on_resent());
        assert!(!congestion.on_spurious(1));
        assert_eq!(congestion.window(), 32);
    }

    #[test]
    fn paces_after_a_loss() {
        let config = Config { initial_window: 10, ..Config::default() };
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
        assert!(
            (12..=18).contains(&sent),
            "two round trips of five segments, a quarter more, a burst: {sent}"
        );
    }

    #[test]
    fn a_pace_goes_in_batches_and_ends() {
        let config = Config { initial_window: 1000, ..Config::default() };
        let mut congestion = Congestion::new(&config);
        congestion.on_loss(loss(Seq(0), Seq(1000)));
        congestion.on_acked(1000, 1000, Seq(1000));
        let (mut now, mut seq, mut batches) = (10_000_000, 1000, 0);
        let rtt = Some(1_000_000);
        // No more than a fifth of the window is on its way, as the receiver is fast.
        while congestion.send_time().is_some() && batches < 100_000 {
            let mut sent = 0;
            while congestion.send_time().is_some_and(|time| time <= now) {
                congestion.on_sent(now, rtt);
                (sent, seq) = (sent + 1, seq + 1);
            }
            assert!(sent >= 32, "a batch of {sent}");
            batches += 1;
            now = congestion.hold(rtt);
            congestion.on_acked(sent, 100, Seq(seq));
        }
        assert_eq!((congestion.window(), congestion.send_time()), (1000, None));
    }
}
