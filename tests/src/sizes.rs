//! Message lengths: 0, size classes up to 1 MiB, and both sides of each length at which the protocol changes.
//! Skewed towards short ones, so that millions of messages take minutes.

use crate::rng::Rng;

/// Longest message of the suites.
pub const MAX: usize = 1 << 20;

/// A class of lengths, and its weight out of 1000.
struct SizeClass {
    from: usize,
    to: usize,
    weight: u64,
}

const CLASSES: [SizeClass; 8] = [
    SizeClass { from: 0, to: 0, weight: 50 },
    SizeClass { from: 1, to: 8, weight: 250 },
    SizeClass { from: 9, to: 64, weight: 250 },
    SizeClass { from: 65, to: 1024, weight: 270 },
    SizeClass { from: 1025, to: 8192, weight: 125 },
    SizeClass { from: 8193, to: 65_536, weight: 40 },
    SizeClass { from: 65_537, to: 262_144, weight: 3 },
    SizeClass { from: 262_145, to: MAX, weight: 1 },
];

/// Draws lengths.
#[derive(Clone, Debug)]
pub struct Sizes {
    max: usize,
    thresholds: Vec<usize>,
}

impl Sizes {
    /// Lengths up to `max`, with `thresholds` and their neighbours in 1 % of the messages.
    pub fn new(max: usize, mut thresholds: Vec<usize>) -> Sizes {
        thresholds.retain(|threshold| *threshold < max);
        Sizes { max, thresholds }
    }

    /// The longest length.
    pub fn max(&self) -> usize {
        self.max
    }

    /// Lengths at which the protocol changes.
    pub fn thresholds(&self) -> &[usize] {
        &self.thresholds
    }

    /// Draws the next length.
    pub fn draw(&self, rng: &mut Rng) -> usize {
        let mut at = rng.below(1000);
        for class in &CLASSES {
            if at < class.weight {
                return log_uniform(rng, class.from, class.to).min(self.max);
            }
            at -= class.weight;
        }
        if self.thresholds.is_empty() {
            return rng.range(1, 64).min(self.max as u64) as usize;
        }
        let threshold = *rng.pick(&self.thresholds) as u64;
        (rng.range(threshold.saturating_sub(2), threshold + 2) as usize).min(self.max)
    }
}

/// Draws a length of `from..=to`, roughly uniform in its logarithm.
fn log_uniform(rng: &mut Rng, from: usize, to: usize) -> usize {
    let top = rng.range(from as u64, to as u64);
    rng.range(from as u64, top) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_leave_one_percent_for_thresholds() {
        let total: u64 = CLASSES.iter().map(|c| c.weight).sum();
        assert_eq!(total, 989);
    }

    #[test]
    fn all_classes_and_thresholds_are_drawn() {
        let thresholds = vec![8872, 65_536];
        let sizes = Sizes::new(MAX, thresholds.clone());
        let mut rng = Rng::new(3, 0);
        let drawn: Vec<usize> = (0..200_000).map(|_| sizes.draw(&mut rng)).collect();
        for class in &CLASSES {
            assert!(
                drawn.iter().any(|len| (class.from..=class.to).contains(len)),
                "{}..={}",
                class.from,
                class.to
            );
        }
        for threshold in thresholds {
            for len in threshold - 2..=threshold + 2 {
                assert!(drawn.contains(&len), "{len}");
            }
        }
        let mean = drawn.iter().sum::<usize>() / drawn.len();
        assert!((500..5000).contains(&mean), "{mean}");
        assert!(drawn.iter().all(|len| *len <= MAX));
    }

    #[test]
    fn sizes_respect_the_limit() {
        let sizes = Sizes::new(100, vec![50, 5000]);
        assert_eq!(sizes.thresholds(), [50]);
        let mut rng = Rng::new(3, 0);
        assert!((0..10_000).all(|_| sizes.draw(&mut rng) <= 100));
    }
}
