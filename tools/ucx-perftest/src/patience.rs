//! What a loop does while nothing happens: spin, then let others run, now and then ask whether the peer lives.
//! Called by the measured loops after an empty poll. Costs one increment and one branch unless it is due.

use std::time::{Duration, Instant};

use crate::fail::Failure;
use crate::link::{Cores, Link};

/// Empty polls before the core is offered to somebody else, as a power of two: some fifty microseconds, longer than any
/// wait of two sides that have a core each. There the loops only spin, as those of ucx_perftest always do; on a shared
/// core they would never end without this.
const SPIN: u32 = 14;
/// The same where it is known that sides share cores.
const SPIN_SHARED: u32 = 5;
/// Times the core is offered between two looks at the peer, as a power of two.
const LOOK: u32 = 5;
/// Most polls that a loop counts by itself.
const STRIDE: u64 = 1 << 10;
/// How long nothing may happen at all.
const LONGEST: Duration = Duration::from_secs(60);

/// Counts empty polls.
pub struct Patience {
    /// Wide enough for any wait: a narrower count would begin anew before the time is over, and the time with it.
    empty: u64,
    /// The core is offered when `empty` has none of these bits.
    mask: u64,
    since: Option<Instant>,
    longest: Duration,
}

impl Patience {
    /// As fits the cores that the sides of `link` have.
    pub fn new(link: &Link) -> Patience {
        let spin = match link.cores() {
            Cores::Enough => SPIN,
            Cores::Shared => SPIN_SHARED,
        };
        Patience { empty: 0, mask: (1 << spin) - 1, since: None, longest: LONGEST }
    }

    /// Something happened. HOT
    #[inline(always)]
    pub fn renew(&mut self) {
        self.empty = 0;
    }

    /// Nothing happened. An error when it makes no sense to go on. HOT
    #[inline(always)]
    pub fn lose(&mut self, link: &mut Link) -> Result<(), Failure> {
        self.empty += 1;
        if self.empty & self.mask == 0 { self.rest(link) } else { Ok(()) }
    }

    /// Polls that a loop may do before it says here what came of them. A loop that waits for one cache line does nothing else
    /// between two looks at it: counting in memory each time makes a ping-pong of 40 ns a third slower, since the processor is
    /// then still busy with counting when the line has come.
    #[inline(always)]
    pub fn stride(&self) -> u64 {
        STRIDE.min(self.mask + 1)
    }

    /// Nothing happened in [`Patience::stride`] polls. An error when it makes no sense to go on.
    #[cold]
    pub fn lose_stride(&mut self, link: &mut Link) -> Result<(), Failure> {
        self.empty = (self.empty & !(self.stride() - 1)) + self.stride();
        if self.empty & self.mask == 0 { self.rest(link) } else { Ok(()) }
    }

    /// Whether it is time for another look at the peer.
    #[inline(always)]
    pub fn is_due(&self) -> bool {
        self.empty & (self.mask << LOOK | self.mask) == 0
    }

    #[cold]
    fn rest(&mut self, link: &mut Link) -> Result<(), Failure> {
        std::thread::yield_now();
        if self.empty == self.mask + 1 {
            self.since = Some(Instant::now());
        }
        if !self.is_due() {
            return Ok(());
        }
        link.alive()?;
        match self.since {
            Some(since) => self.bear(since),
            None => Ok(()),
        }
    }

    /// Nothing happened although whoever waits has slept. An error when it makes no sense to go on.
    pub fn slept(&mut self) -> Result<(), Failure> {
        if self.empty == 0 {
            (self.empty, self.since) = (1, Some(Instant::now()));
        }
        self.since.map_or(Ok(()), |since| self.bear(since))
    }

    fn bear(&self, since: Instant) -> Result<(), Failure> {
        if since.elapsed() <= self.longest {
            return Ok(());
        }
        Err(Failure::Run(format!("nothing happened for {} s", self.longest.as_secs())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waited(empty: u64, seconds: u64) -> Patience {
        let since = Instant::now().checked_sub(Duration::from_secs(seconds));
        Patience { empty, mask: (1 << SPIN) - 1, since, longest: LONGEST }
    }

    #[test]
    fn who_polls_fast_does_not_wait_for_ever() {
        let mut link = Link::loopback();
        for empty in [1u64 << 32, 3 << 32, 1 << 40] {
            let told = waited(empty - 1, 61).lose(&mut link).unwrap_err().to_string();
            assert!(told.contains("nothing happened for 60 s"), "{told}");
            let mut patience = waited(empty - STRIDE, 61);
            assert!(patience.lose_stride(&mut link).is_err());
            // Some polls later the time has not begun anew.
            let all = (0..32u64 << SPIN).map(|_| patience.lose(&mut link));
            assert!(all.fold(Ok(()), Result::and).is_err());
            assert!(waited(empty - 1, 1).lose(&mut link).is_ok());
        }
    }

    #[test]
    fn a_sleeper_does_not_wait_for_ever() {
        let mut patience = Patience { empty: 0, mask: 1, since: None, longest: Duration::from_secs(60) };
        assert!(patience.slept().is_ok());
        patience.since = Instant::now().checked_sub(Duration::from_secs(61));
        patience.renew();
        assert!(patience.slept().is_ok(), "something has happened since");
        patience.since = Instant::now().checked_sub(Duration::from_secs(61));
        let told = patience.slept().unwrap_err().to_string();
        assert!(told.contains("nothing happened for 60 s"), "{told}");
    }
}
