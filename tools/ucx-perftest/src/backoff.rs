//! Backoff of a measured loop after empty polls: spin, then yield the core, now and then check that the peer
//! lives, and give up after a minute. Costs one increment and one branch per empty poll.

use std::time::{Duration, Instant};

use crate::fail::Failure;
use crate::link::{CoreSharing, Link};

/// Empty polls before the first yield, as a power of two: some 50 us, longer than any wait of two sides with
/// a core each. On a shared core the other side would never run without the yield.
const SPIN_SHIFT: u32 = 14;
const SPIN_SHIFT_SHARED: u32 = 5;
/// Yields between two checks of the peer, as a power of two.
const PEER_CHECK_SHIFT: u32 = 5;
const MAX_BATCH: u64 = 1 << 10;
const TIMEOUT: Duration = Duration::from_secs(60);

pub struct Backoff {
    /// 64 bits: a narrower count would wrap and restart the timeout.
    empty_polls: u64,
    /// A yield is due when `empty_polls` has none of these bits.
    spin_mask: u64,
    since: Option<Instant>,
    timeout: Duration,
}

impl Backoff {
    pub fn new(link: &Link) -> Backoff {
        let spin = match link.cores() {
            CoreSharing::Dedicated => SPIN_SHIFT,
            CoreSharing::Shared => SPIN_SHIFT_SHARED,
        };
        Backoff { empty_polls: 0, spin_mask: (1 << spin) - 1, since: None, timeout: TIMEOUT }
    }

    /// Something happened.
    // HOT
    #[inline(always)]
    pub fn reset(&mut self) {
        self.empty_polls = 0;
    }

    /// Counts an empty poll. An error ends the wait: the peer is gone, or the timeout has passed.
    // HOT
    #[inline(always)]
    pub fn idle(&mut self, link: &mut Link) -> Result<(), Failure> {
        self.empty_polls += 1;
        if self.empty_polls & self.spin_mask == 0 { self.yield_core(link) } else { Ok(()) }
    }

    /// Polls of a loop per [`idle_batch`](Self::idle_batch): counting each slows a 40 ns ping-pong a lot.
    #[inline(always)]
    pub fn batch(&self) -> u64 {
        MAX_BATCH.min(self.spin_mask + 1)
    }

    /// Counts [`batch`](Self::batch) empty polls, as [`idle`](Self::idle) does one.
    #[cold]
    pub fn idle_batch(&mut self, link: &mut Link) -> Result<(), Failure> {
        self.empty_polls = (self.empty_polls & !(self.batch() - 1)) + self.batch();
        if self.empty_polls & self.spin_mask == 0 { self.yield_core(link) } else { Ok(()) }
    }

    #[inline(always)]
    pub fn is_peer_check_due(&self) -> bool {
        self.empty_polls & (self.spin_mask << PEER_CHECK_SHIFT | self.spin_mask) == 0
    }

    #[cold]
    fn yield_core(&mut self, link: &mut Link) -> Result<(), Failure> {
        std::thread::yield_now();
        if self.empty_polls == self.spin_mask + 1 {
            self.since = Some(Instant::now());
        }
        if !self.is_peer_check_due() {
            return Ok(());
        }
        link.check_alive()?;
        match self.since {
            Some(since) => self.check_timeout(since),
            None => Ok(()),
        }
    }

    /// Counts a sleep that timed out. An error when the timeout has passed.
    pub fn wait_timed_out(&mut self) -> Result<(), Failure> {
        if self.empty_polls == 0 {
            (self.empty_polls, self.since) = (1, Some(Instant::now()));
        }
        self.since.map_or(Ok(()), |since| self.check_timeout(since))
    }

    fn check_timeout(&self, since: Instant) -> Result<(), Failure> {
        if since.elapsed() <= self.timeout {
            return Ok(());
        }
        Err(Failure::Run(format!("nothing happened for {} s", self.timeout.as_secs())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waited(empty_polls: u64, seconds: u64) -> Backoff {
        let since = Instant::now().checked_sub(Duration::from_secs(seconds));
        Backoff { empty_polls, spin_mask: (1 << SPIN_SHIFT) - 1, since, timeout: TIMEOUT }
    }

    #[test]
    fn polling_wait_times_out() {
        let mut link = Link::loopback();
        for empty_polls in [1u64 << 32, 3 << 32, 1 << 40] {
            let text = waited(empty_polls - 1, 61).idle(&mut link).unwrap_err().to_string();
            assert!(text.contains("nothing happened for 60 s"), "{text}");
            let mut backoff = waited(empty_polls - MAX_BATCH, 61);
            assert!(backoff.idle_batch(&mut link).is_err());
            // A few polls later the timeout has not restarted.
            let all = (0..32u64 << SPIN_SHIFT).map(|_| backoff.idle(&mut link));
            assert!(all.fold(Ok(()), Result::and).is_err());
            assert!(waited(empty_polls - 1, 1).idle(&mut link).is_ok());
        }
    }

    #[test]
    fn sleeping_wait_times_out() {
        let mut backoff =
            Backoff { empty_polls: 0, spin_mask: 1, since: None, timeout: Duration::from_secs(60) };
        assert!(backoff.wait_timed_out().is_ok());
        backoff.since = Instant::now().checked_sub(Duration::from_secs(61));
        backoff.reset();
        assert!(backoff.wait_timed_out().is_ok(), "something has happened since");
        backoff.since = Instant::now().checked_sub(Duration::from_secs(61));
        let text = backoff.wait_timed_out().unwrap_err().to_string();
        assert!(text.contains("nothing happened for 60 s"), "{text}");
    }
}
