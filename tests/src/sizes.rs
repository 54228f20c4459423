//! Message lengths that hit everything: empty messages, every size class up to 1 MiB, and both sides of each length at
//! which the protocol changes. Skewed towards short ones, so that millions of messages take minutes, not hours.

use crate::rng::Rng;

/// Longest message of the suites.
pub const MAX: usize = 1 << 20;

/// A class of lengths and how often it is drawn, out of 1000.
struct Class {
    from: usize,
    to: usize,
    weight: u64,
}

const CLASSES: [Class; 8] = [
    Class { from: 0, to: 0, weight: 50 },
    Class { from: 1, to: 8, weight: 250 },
    Class { from: 9, to: 64, weight: 250 },
    Class { from: 65, to: 1024, weight: 270 },
    Class { from: 1025, to: 8192, weight: 125 },
    Class { from: 8193, to: 65_536, weight: 40 },
    Class { from: 65_537, to: 262_144, weight: 3 },
    Class { from: 262_145, to: MAX, weight: 1 },
];

/// Draws lengths.
#[derive(Clone, Debug)]
pub struct Sizes {
    max: usize,
    /// Lengths at which something changes.
    cuts: Vec<usize>,
}

impl Sizes {
    /// Lengths up to `max`, with `cuts` (and their neighbours) in 1 % of the messages.
    pub fn new(max: usize, mut cuts: Vec<usize>) -> Sizes {
        cuts.retain(|cut| *cut < max);
        Sizes { max, cuts }
    }

    /// No message is longer.
    pub fn max(&self) -> usize {
        self.max
    }

    /// The lengths at which something changes.
    pub fn cuts(&self) -> &[usize] {
        &self.cuts
    }

    /// The next length.
    pub fn draw(&self, rng: &mut Rng) -> usize {
        let mut at = rng.below(1000);
        for class in &CLASSES {
            if at < class.weight {
                return log_uniform(rng, class.from, class.to).min(self.max);
            }
            at -= class.weight;
        }
        if self.cuts.is_empty() {
            return rng.range(1, 64).min(self.max as u64) as usize;
        }
        let cut = *rng.pick(&self.cuts) as u64;
        (rng.range(cut.saturating_sub(2), cut + 2) as usize).min(self.max)
    }
}

/// A length of `from..=to` whose logarithm is roughly evenly spread: half of the draws from each lower half.
fn log_uniform(rng: &mut Rng, from: usize, to: usize) -> usize {
    let top = rng.range(from as u64, to as u64);
    rng.range(from as u64, top) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_leave_one_percent_for_the_cuts() {
        let total: u64 = CLASSES.iter().map(|c| c.weight).sum();
        assert_eq!(total, 989);
    }

    #[test]
    fn every_class_and_both_sides_of_every_cut_come_up() {
        let cuts = vec![8872, 65_536];
        let sizes = Sizes::new(MAX, cuts.clone());
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
        for cut in cuts {
            for len in cut - 2..=cut + 2 {
                assert!(drawn.contains(&len), "{len}");
            }
        }
        let mean = drawn.iter().sum::<usize>() / drawn.len();
        assert!((500..5000).contains(&mean), "{mean}");
        assert!(drawn.iter().all(|len| *len <= MAX));
    }

    #[test]
    fn the_limit_holds() {
        let sizes = Sizes::new(100, vec![50, 5000]);
        assert_eq!(sizes.cuts(), [50]);
        let mut rng = Rng::new(3, 0);
        assert!((0..10_000).all(|_| sizes.draw(&mut rng) <= 100));
    }
}
