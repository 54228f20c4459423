//! Pause between two looks at a word that another core is about to write.
//!
//! Each fruitless look fetches the line, which delays the writer. A spin hint of about 20 ns (AMD) between
//! looks takes a seventh off the transfer of a word; hints several times as long cost more than they gain.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The longest hint that is worth its time.
const MAX_HINT: Duration = Duration::from_nanos(30);
/// Hints timed at once, and samples: an interrupted one takes longer.
const HINTS: u32 = 64;
const SAMPLES: usize = 8;

/// Pause between two looks at a word.
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

    /// Leaves the word alone, for 30 ns at most.
    // HOT
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
