//! Timers of keepalive: when peers are checked, and when outstanding HANDSHAKEs are requested again. Asks nobody itself.

use std::time::Duration;

use ucs::time::Nanos;

/// Most peers asked in one turn; the next turn goes on with the next ones.
pub(crate) const CHECKS: usize = 128;

/// How soon HANDSHAKEs that something waits for are called for again, whatever keep-alive is set to: one may have been lost at
/// the peer, which then forgets it until it hears of us, or the peer may be lost, which only a packet to it shows.
pub(crate) const CALL_AGAIN: Duration = Duration::from_secs(1);

/// The same after many times in vain: each wait is twice the one before. The peer lives, but makes no progress.
pub(crate) const CALL_SELDOM: Duration = Duration::from_secs(64);

/// When to look, and how far the last look came.
pub(crate) struct Alive {
    /// `None`: never.
    pub(crate) every: Option<Duration>,
    pub(crate) next: Nanos,
    /// When to call for HANDSHAKEs again, and how long after that for the next time.
    pub(crate) call: Nanos,
    pub(crate) pace: Duration,
    pub(crate) at: usize,
    /// Peers asked by [`Core::check_peers`] in this turn.
    pub(crate) asked: usize,
}

impl Alive {
    /// Looks `every` so often; never if that is zero.
    pub(crate) fn new(every: Duration, now: Nanos) -> Alive {
        let every = (!every.is_zero()).then_some(every);
        let next = every.map_or(Nanos::NEVER, |every| now + every);
        Alive { every, next, call: now + CALL_AGAIN, pace: CALL_AGAIN, at: 0, asked: 0 }
    }

    /// Whether it is time for either.
    pub(crate) fn is_due(&self, now: Nanos) -> bool {
        now >= self.next.min(self.call)
    }

    /// When peers are to be asked; `None` if never.
    pub(crate) fn due(&self) -> Option<Nanos> {
        self.every.map(|_| self.next)
    }

    /// How long until the next turn, so that each of so many peers is asked once in an interval.
    pub(crate) fn turn(every: Duration, peers: usize) -> Duration {
        // No more than the peer numbers that there are.
        every / (peers.div_ceil(CHECKS).max(1) as u32)
    }

    /// When HANDSHAKEs are to be called for.
    pub(crate) fn call(&self) -> Nanos {
        self.call
    }
}
