//! How long to leave a word alone, between two looks at it, that somebody else is about to write.
//!
//! Each look in vain fetches the word's line, which the writer has to have thrown away again before it can
//! write: who looks as fast as it can is told later. Where the processor's hint for loops that spin takes
//! some 20 ns, as on AMD's, one between two looks takes a seventh off the time in which a word of 8 bytes
//! goes to another core. On processors where it takes several times that, the wait for the hint to end would
//! cost more than is gained.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The longest hint that is worth its time.
const MAX_HINT: Duration = Duration::from_nanos(30);
/// Hints that are timed at once, and how often: who is interrupted meanwhile takes longer.
const HINTS: u32 = 64;
const SAMPLES: usize = 8;

/// What to do between two looks at a word, if nothing else is to be done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SpinHint {
    hints: bool,
}

impl SpinHint {
    /// As this processor needs it: that is found out by the first call, within some 20 us.
    pub fn measured() -> SpinHint {
        static MEASURED: OnceLock<SpinHint> = OnceLock::new();
        *MEASURED.get_or_init(|| SpinHint::of(shortest_hint()))
    }

    fn of(hint: Duration) -> SpinHint {
        SpinHint { hints: hint <= MAX_HINT }
    }

    /// Leaves the word alone, for 30 ns at most. // HOT
    #[inline(always)]
    pub fn pause(self) {
        if self.hints {
            std::hint::spin_loop();
        }
    }
}

fn shortest_hint() -> Duration {
    let time = |_| {
        let start = Instant::now();
        (0..HINTS).for_each(|_| std::hint::spin_loop());
        start.elapsed() / HINTS
    };
    (0..SAMPLES).map(time).min().unwrap_or(Duration::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hint_that_takes_long_is_left_out() {
        assert!(SpinHint::of(Duration::from_nanos(20)).hints);
        assert!(!SpinHint::of(Duration::from_nanos(45)).hints);
        assert_eq!(SpinHint::measured(), SpinHint::measured());
        SpinHint::measured().pause();
    }
}
