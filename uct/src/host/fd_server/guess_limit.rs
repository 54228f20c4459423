//! Bounds how often the names of memory can be guessed. An alias has 30 random bits: at this rate half of
//! them are tried in three weeks.

use std::time::{Duration, Instant};

/// Most wrong aliases in a period. Beyond it no alias is answered until the period is over.
pub const MAX_WRONG: u32 = 256;
pub const PERIOD: Duration = Duration::from_secs(1);

pub struct GuessLimit {
    start: Instant,
    wrong: u32,
}

impl GuessLimit {
    pub fn new() -> GuessLimit {
        GuessLimit { start: Instant::now(), wrong: 0 }
    }

    /// Whether an alias may be looked up now.
    pub fn may_look_up(&mut self) -> bool {
        if self.start.elapsed() >= PERIOD {
            *self = GuessLimit::new();
        }
        self.wrong < MAX_WRONG
    }

    /// An alias was not found.
    pub fn note_wrong(&mut self) {
        self.wrong += 1;
        if self.wrong == MAX_WRONG {
            tracing::warn!(
                "a process of this user asks for memory by names that do not exist: it may be guessing"
            );
        }
    }
}
