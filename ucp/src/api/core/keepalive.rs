//! Timers of keepalive: when peers are checked, and when outstanding HANDSHAKEs are requested again.

use std::time::Duration;

use ucs::time::Nanos;

/// Most peers checked at a time; the next check continues with the next peers.
pub(crate) const CHECKS: usize = 128;

/// First delay before an awaited HANDSHAKE is requested again: the peer may have lost it, or be dead.
pub(crate) const CALL_AGAIN: Duration = Duration::from_secs(1);

/// Longest such delay; each is twice the one before.
pub(crate) const CALL_SELDOM: Duration = Duration::from_secs(64);

pub(crate) struct KeepaliveTimers {
    pub(crate) every: Option<Duration>,
    pub(crate) next: Nanos,
    /// Time of the next HANDSHAKE request, and delay to the one after it.
    pub(crate) call: Nanos,
    pub(crate) pace: Duration,
    pub(crate) at: usize,
    pub(crate) asked: usize,
}

impl KeepaliveTimers {
    pub(crate) fn new(every: Duration, now: Nanos) -> KeepaliveTimers {
        let every = (!every.is_zero()).then_some(every);
        let next = every.map_or(Nanos::NEVER, |every| now + every);
        KeepaliveTimers { every, next, call: now + CALL_AGAIN, pace: CALL_AGAIN, at: 0, asked: 0 }
    }

    pub(crate) fn is_due(&self, now: Nanos) -> bool {
        now >= self.next.min(self.call)
    }

    pub(crate) fn due(&self) -> Option<Nanos> {
        self.every.map(|_| self.next)
    }

    /// Delay between two checks, such that each of `peers` is checked once per interval.
    pub(crate) fn turn(every: Duration, peers: usize) -> Duration {
        every / (peers.div_ceil(CHECKS).max(1) as u32)
    }

    pub(crate) fn call(&self) -> Nanos {
        self.call
    }
}
