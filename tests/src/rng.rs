//! A seeded random number generator: integers, chances and choices from ChaCha8. Never seeded from the clock,
//! as a seed names a run.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng as _, SeedableRng};

/// A generator that gives the same numbers for the same seed and stream.
#[derive(Clone, Debug)]
pub struct Rng(ChaCha8Rng);

impl Rng {
    /// An independent generator for each `stream` of a `seed`.
    pub fn new(seed: u64, stream: u64) -> Rng {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(stream);
        Rng(rng)
    }

    /// Draws 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Draws a number below `n`; 0 if `n` is 0.
    pub fn below(&mut self, n: u64) -> u64 {
        // Biased by less than n / 2^64.
        ((u128::from(self.bits()) * u128::from(n)) >> 64) as u64
    }

    /// Draws a number in `from..=to`.
    pub fn range(&mut self, from: u64, to: u64) -> u64 {
        debug_assert!(from <= to && to - from < u64::MAX);
        from + self.below(to - from + 1)
    }

    /// Draws true in `percent` of 100 cases.
    pub fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// Draws an element of `from`, which is not empty.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len() as u64) as usize]
    }

    /// Puts `items` in random order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last as u64 + 1) as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_seeds_give_equal_numbers() {
        let run = |seed, stream| {
            let mut rng = Rng::new(seed, stream);
            (0..50).map(|_| rng.below(1000)).collect::<Vec<_>>()
        };
        assert_eq!(run(7, 0), run(7, 0));
        assert_ne!(run(7, 0), run(7, 1));
        assert_ne!(run(7, 0), run(8, 0));
    }

    #[test]
    fn range_bounds_are_inclusive() {
        let mut rng = Rng::new(1, 0);
        let mut seen = [false; 5];
        for _ in 0..1000 {
            seen[rng.range(3, 7) as usize - 3] = true;
        }
        assert_eq!(seen, [true; 5]);
        assert_eq!(rng.below(0), 0);
        let mut items: Vec<u32> = (0..20).collect();
        rng.shuffle(&mut items);
        assert_ne!(items, (0..20).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..20).collect::<Vec<_>>());
    }
}
