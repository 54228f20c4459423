//! Sliding window of the numbers that have arrived (as in RFC 6479): each is taken once.

/// Words of the window.
const WORDS: usize = 129;
/// Numbers below the highest one that are still told apart. Flows reorder by design, and a send window of
/// segments and as many acknowledgements may be on their way.
pub const WINDOW: u64 = 64 * (WORDS as u64 - 1);

/// Kinds of numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Number {
    /// It has not arrived yet.
    New,
    /// It has.
    Repeated,
    /// It is too far below the highest one to tell.
    Old,
}

/// Numbers that have arrived.
pub struct ReplayWindow {
    bits: [u64; WORDS],
    /// One more than the highest number that has arrived.
    end: u64,
}

impl ReplayWindow {
    /// Nothing has arrived.
    pub fn new() -> ReplayWindow {
        ReplayWindow { bits: [0; WORDS], end: 0 }
    }

    fn place(number: u64) -> (usize, u64) {
        ((number / 64 % WORDS as u64) as usize, 1 << (number % 64))
    }

    /// Tells what a number is, and remembers nothing.
    #[inline]
    pub fn check(&self, number: u64) -> Number {
        if number >= self.end {
            return Number::New;
        }
        if self.end - number > WINDOW {
            return Number::Old;
        }
        let (word, bit) = Self::place(number);
        if self.bits[word] & bit == 0 { Number::New } else { Number::Repeated }
    }

    /// Remembers a number that is new.
    #[inline]
    pub fn mark(&mut self, number: u64) {
        if number >= self.end {
            let (highest, new) = (self.end.saturating_sub(1) / 64, number / 64);
            for word in (highest + 1..=new).take(WORDS) {
                self.bits[(word % WORDS as u64) as usize] = 0;
            }
            if new - highest >= WORDS as u64 {
                self.bits = [0; WORDS];
            }
            self.end = number + 1;
        }
        let (word, bit) = Self::place(number);
        self.bits[word] |= bit;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    #[test]
    fn a_number_is_new_once_and_old_in_the_end() {
        let mut window = ReplayWindow::new();
        for number in [0, 5, 3, 63, 64, WINDOW] {
            assert_eq!(window.check(number), Number::New, "{number}");
            window.mark(number);
            assert_eq!(window.check(number), Number::Repeated, "{number}");
        }
        assert_eq!((window.check(0), window.check(1)), (Number::Old, Number::New));
        window.mark(u64::MAX - 1);
        assert_eq!(window.check(WINDOW), Number::Old);
        assert_eq!(window.check(u64::MAX - WINDOW + 1), Number::New);
    }

    proptest! {
        #[test]
        fn no_number_is_new_twice(
            steps in proptest::collection::vec((0u64..3 * WINDOW, any::<bool>()), 1..300),
        ) {
            let (mut window, mut seen, mut base) = (ReplayWindow::new(), HashSet::new(), 0);
            for (step, advance) in steps {
                base += if advance { step } else { 0 };
                let number = base + step % 200;
                let highest = seen.iter().max().copied();
                let old = highest.is_some_and(|highest| highest + 1 > number + WINDOW);
                let want = match (old, seen.contains(&number)) {
                    (true, _) => Number::Old,
                    (_, true) => Number::Repeated,
                    _ => Number::New,
                };
                prop_assert_eq!(window.check(number), want);
                if want == Number::New {
                    window.mark(number);
                    seen.insert(number);
                }
            }
        }
    }
}
