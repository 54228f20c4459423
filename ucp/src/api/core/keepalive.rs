//! Timers of keepalive: when peers are checked, and when outstanding HANDSHAKEs are requested again.

use std::time::Duration;

use ucs::time::Nanos;

/// Most peers checked at a time; the next check continues with the next peers.
pub(crate) const MAX_CHECKS: usize = 128;

/// First delay before an awaited HANDSHAKE is requested again: the peer may have lost it, or be dead.
pub(crate) const HANDSHAKE_RETRY_MIN: Duration = Duration::from_secs(1);

/// Longest such delay; each is twice the one before.
pub(crate) const HANDSHAKE_RETRY_MAX: Duration = Duration::from_secs(64);

pub(crate) struct KeepaliveTimer {
    pub(crate) interval: Option<Duration>,
    pub(crate) next_check: Nanos,
    /// Time of the next HANDSHAKE request, and delay to the one after it.
    pub(crate) next_request: Nanos,
    pub(crate) request_delay: Duration,
    pub(crate) last_checked: usize,
    /// Peers checked so far by `check_peers`.
    pub(crate) checked_now: usize,
}

impl KeepaliveTimer {
    /// A timer that checks peers at `interval`, or never.
    pub(crate) fn new(interval: Option<Duration>, now: Nanos) -> KeepaliveTimer {
        let next_check = interval.map_or(Nanos::NEVER, |interval| now + interval);
        KeepaliveTimer {
            interval,
            next_check,
            next_request: now + HANDSHAKE_RETRY_MIN,
            request_delay: HANDSHAKE_RETRY_MIN,
            last_checked: 0,
            checked_now: 0,
        }
    }

    pub(crate) fn is_due(&self, now: Nanos) -> bool {
        now >= self.next_check.min(self.next_request)
    }

    pub(crate) fn next_check(&self) -> Option<Nanos> {
        self.interval.map(|_| self.next_check)
    }

    /// Delay between two checks, such that each of `peers` is checked once per interval.
    pub(crate) fn check_delay(interval: Duration, peers: usize) -> Duration {
        interval / (peers.div_ceil(MAX_CHECKS).max(1) as u32)
    }

    pub(crate) fn next_request(&self) -> Nanos {
        self.next_request
    }
}
