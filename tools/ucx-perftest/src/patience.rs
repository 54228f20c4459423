//! What a loop does while nothing happens: spin, then let others run, now and then ask whether the peer lives.
//! Called by the measured loops after an empty poll. Costs one increment and one branch unless it is due.

use std::time::{Duration, Instant};

use crate::fail::Failure;
use crate::link::Link;

/// Empty polls before the core is offered to somebody else: some fifty microseconds, longer than any wait of two sides
/// that have a core each. There the loops only spin, as those of ucx_perftest always do; on a shared core they would
/// never end without this.
const YIELD_EVERY: u32 = 1 << 14;
/// Empty polls between two looks at the peer.
const LOOK_EVERY: u32 = 1 << 19;
/// How long nothing may happen at all.
const LONGEST: Duration = Duration::from_secs(60);

/// Counts empty polls.
#[derive(Default)]
pub struct Patience {
    empty: u32,
    since: Option<Instant>,
}

impl Patience {
    /// Something happened. HOT
    #[inline(always)]
    pub fn renew(&mut self) {
        self.empty = 0;
    }

    /// Nothing happened. An error when it makes no sense to go on. HOT
    #[inline(always)]
    pub fn lose(&mut self, link: &mut Link) -> Result<(), Failure> {
        self.empty += 1;
        if self.empty.is_multiple_of(YIELD_EVERY) { self.rest(link) } else { Ok(()) }
    }

    /// Whether it is time for another look at the peer.
    #[inline(always)]
    pub fn is_due(&self) -> bool {
        self.empty.is_multiple_of(LOOK_EVERY)
    }

    #[cold]
    fn rest(&mut self, link: &mut Link) -> Result<(), Failure> {
        std::thread::yield_now();
        if self.empty == YIELD_EVERY {
            self.since = Some(Instant::now());
        }
        if !self.empty.is_multiple_of(LOOK_EVERY) {
            return Ok(());
        }
        link.alive()?;
        match self.since {
            Some(since) if since.elapsed() > LONGEST => {
                Err(Failure::Run(format!("nothing happened for {} s", LONGEST.as_secs())))
            }
            _ => Ok(()),
        }
    }
}
