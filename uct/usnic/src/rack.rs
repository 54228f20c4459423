//! Loss told by time, for peers with several flows, which reorder by design. The document's rule, which takes
//! a repeated acknowledgement for a loss, holds for one flow. Here a segment is lost if one sent later, by
//! more than a reordering window, has arrived (RACK, RFC 8985).

/// Round trips after which the reordering window narrows again.
const KEEP_WIDE: u32 = 16;
/// Widest reordering window, in units of the narrowest: 3.2 ms where the delay of an acknowledgement is the
/// unit, which is less than the shortest retransmit timer.
const MAX_STEPS: u64 = 64;

/// Times of the newest delivery.
#[derive(Clone, Copy, Default, Debug)]
pub struct Rack {
    /// When the newest delivered segment was sent.
    sent: u64,
    /// Round-trip time of that segment.
    rtt: u64,
    /// Reordering window in units of the narrowest one.
    steps: u64,
    /// Segments sent again, of which no repeated arrival was told yet.
    unjudged: u32,
    left: u32,
}

impl Rack {
    /// Takes the delivery of a segment sent at `sent`. One that was sent twice and is acknowledged sooner
    /// than any round trip was delivered by its first sending: it tells nothing.
    pub fn on_delivered(&mut self, now: u64, sent: u64, again: bool, min_rtt: u64) {
        let rtt = now.saturating_sub(sent);
        if (again && rtt < min_rtt) || sent < self.sent {
            return;
        }
        (self.sent, self.rtt) = (sent, rtt);
    }

    /// Takes a segment that is sent again.
    pub fn on_resent(&mut self) {
        self.unjudged = self.unjudged.saturating_add(1);
    }

    /// Takes the word that segments have arrived twice. If one was sent again, it was not lost, and the
    /// reordering window doubles. Else the network repeats datagrams, which tells nothing.
    pub fn on_repeated(&mut self) {
        if self.unjudged != 0 {
            self.unjudged -= 1;
            self.steps = (self.steps.max(1) * 2).min(MAX_STEPS);
            self.left = KEEP_WIDE;
        }
    }

    /// Narrows the reordering window after some recoveries without a spurious one.
    pub fn on_recovery(&mut self) {
        self.left = self.left.saturating_sub(1);
        if self.left == 0 {
            self.steps = 1;
        }
    }

    /// Whether segments were held for lost lately that were not: the network reorders, or a process was not
    /// scheduled.
    pub fn was_wrong(&self) -> bool {
        self.steps > 1
    }

    /// Reordering window, ns: a quarter of the shortest round-trip time, at least `floor`, and wider after
    /// segments were held for lost that were not. Unlike RFC 8985's it may exceed a round trip, up to `most`:
    /// where round trips take microseconds, one datagram overtakes others by many.
    pub fn window(&self, min_rtt: u64, floor: u64, most: u64) -> u64 {
        let narrowest = (min_rtt / 4).max(floor);
        (narrowest * self.steps.max(1)).min(most.max(narrowest))
    }

    /// Time at which a segment sent at `sent` is lost if it is not acknowledged; `None` if none sent later
    /// has arrived.
    pub fn lost_at(&self, sent: u64, window: u64) -> Option<u64> {
        (sent < self.sent).then(|| sent + self.rtt + window)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reordering_is_no_loss() {
        let mut rack = Rack::default();
        assert_eq!(rack.lost_at(0, 10), None, "nothing delivered");
        rack.on_delivered(150, 50, false, 100);
        assert_eq!(rack.lost_at(60, 25), None, "sent later");
        assert_eq!(rack.lost_at(40, 25), Some(165), "a round trip and a reordering window");
        rack.on_delivered(160, 30, false, 100);
        assert_eq!(rack.lost_at(40, 25), Some(165), "an older delivery tells nothing");
        rack.on_delivered(160, 155, true, 100);
        assert_eq!(rack.lost_at(40, 25), Some(165), "the first sending has arrived, not the second");
    }

    #[test]
    fn window_widens_and_narrows() {
        let mut rack = Rack::default();
        assert_eq!(rack.window(1000, 0, 9000), 250);
        rack.on_repeated();
        assert_eq!(rack.window(1000, 0, 9000), 250, "nothing was sent again");
        (0..20).for_each(|_| rack.on_resent());
        rack.on_repeated();
        assert_eq!(rack.window(1000, 0, 9000), 500);
        (0..20).for_each(|_| rack.on_repeated());
        assert_eq!(rack.window(1000, 0, 9000), 9000, "the widest");
        assert_eq!(rack.window(1000, 0, u64::MAX), 250 * MAX_STEPS);
        (0..KEEP_WIDE).for_each(|_| rack.on_recovery());
        assert_eq!(rack.window(1000, 0, 9000), 250);
        assert_eq!(rack.window(0, 99, 50), 99, "the floor");
    }
}
