//! The receive window. *"rcvr only ACKs a sequence # when all packets up to that sequence have arrived"*
//! (Reliability).

use crate::header::MAX_SACK_WORDS;
use crate::seq::Seq;

/// How an arrival stands to those before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arrival {
    /// The one expected.
    Next,
    /// New, but others are missing before it.
    Early,
    /// Below the expected number: its acknowledgement was lost.
    Below,
    /// Has arrived before, and others are missing before it.
    Repeated,
    /// Beyond the window: the peer errs.
    Beyond,
}

impl Arrival {
    /// Whether it is to be delivered.
    pub fn is_new(self) -> bool {
        matches!(self, Arrival::Next | Arrival::Early)
    }
}

/// Arrivals of one peer.
pub struct RecvWindow {
    expected: Seq,
    /// A bit per number from `expected` on, at the number modulo the window. Made at the first early arrival.
    bits: Box<[u64]>,
    window: u32,
    /// Early arrivals.
    early: u32,
    /// Behind the last early arrival.
    end: Seq,
}

impl RecvWindow {
    /// Creates a window of `window` (a power of two, at least 64) numbers from `first` on.
    pub fn new(first: Seq, window: u32) -> Self {
        RecvWindow { expected: first, bits: Box::default(), window, early: 0, end: first }
    }

    /// Last number up to which everything has arrived.
    #[inline]
    pub fn last_in_order(&self) -> Seq {
        self.expected.before()
    }

    /// Whether something is missing before an arrival.
    #[inline]
    pub fn has_holes(&self) -> bool {
        self.early != 0
    }

    fn at(&self, seq: Seq) -> (usize, u64) {
        let bit = seq.0 & (self.window - 1);
        (bit as usize / 64, 1 << (bit % 64))
    }

    fn is_early(&self, seq: Seq) -> bool {
        let (word, bit) = self.at(seq);
        self.early != 0 && self.bits[word] & bit != 0
    }

    /// Judges an arrival, and changes nothing.
    #[inline]
    pub fn check(&self, seq: Seq) -> Arrival {
        if seq == self.expected {
            Arrival::Next
        } else if seq.is_before(self.expected) {
            Arrival::Below
        } else if seq.since(self.expected) >= self.window {
            Arrival::Beyond
        } else if self.is_early(seq) {
            Arrival::Repeated
        } else {
            Arrival::Early
        }
    }

    /// Notes a new arrival.
    pub fn mark(&mut self, seq: Seq) {
        debug_assert!(self.check(seq).is_new());
        if seq != self.expected {
            return self.mark_early(seq);
        }
        self.expected = seq.add(1);
        while self.early != 0 {
            let (word, bit) = self.at(self.expected);
            if self.bits[word] & bit == 0 {
                break;
            }
            self.bits[word] &= !bit;
            self.early -= 1;
            self.expected = self.expected.add(1);
        }
    }

    fn mark_early(&mut self, seq: Seq) {
        if self.bits.is_empty() {
            self.bits = vec![0; self.window as usize / 64].into_boxed_slice();
        }
        let (word, bit) = self.at(seq);
        self.bits[word] |= bit;
        if self.early == 0 || self.end.is_before(seq.add(1)) {
            self.end = seq.add(1);
        }
        self.early += 1;
    }

    /// Writes a selective acknowledgement: bit `n` stands for the number `n` behind the expected one.
    /// Returns its words.
    pub fn selective(&self, out: &mut [u64; MAX_SACK_WORDS]) -> usize {
        if self.early == 0 {
            return 0;
        }
        let words = (self.end.since(self.expected).div_ceil(64) as usize).min(MAX_SACK_WORDS);
        for (n, out) in out[..words].iter_mut().enumerate() {
            let first = self.expected.add(64 * n as u32).0 & (self.window - 1);
            let (word, shift) = (first as usize / 64, first % 64);
            *out = self.bits[word] >> shift;
            if shift != 0 {
                *out |= self.bits[(word + 1) % self.bits.len()] << (64 - shift);
            }
        }
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn only_what_is_in_order_is_acknowledged() {
        let mut recv = RecvWindow::new(Seq(u32::MAX), 64);
        assert_eq!(recv.last_in_order(), Seq(u32::MAX - 1));
        assert_eq!(recv.check(Seq(1)), Arrival::Early);
        recv.mark(Seq(1));
        assert_eq!(recv.check(Seq(1)), Arrival::Repeated);
        assert_eq!(recv.last_in_order(), Seq(u32::MAX - 1));
        recv.mark(Seq(u32::MAX));
        assert_eq!(recv.last_in_order(), Seq(u32::MAX));
        assert!(recv.has_holes());
        recv.mark(Seq(0));
        assert_eq!(recv.last_in_order(), Seq(1));
        assert!(!recv.has_holes());
        assert_eq!(recv.check(Seq(0)), Arrival::Below);
        assert_eq!(recv.check(Seq(2).add(64)), Arrival::Beyond);
    }

    proptest! {
        /// Compared with a set of numbers.
        #[test]
        fn as_a_set(first in any::<u32>(), steps in proptest::collection::vec(0u32..200, 1..400)) {
            let mut recv = RecvWindow::new(Seq(first), 128);
            let (mut arrived, mut expected) = (BTreeSet::new(), 0u32);
            for n in steps {
                // Near the window, before it and behind it.
                let Some(n) = (expected + n).checked_sub(40) else { continue };
                let want = match n {
                    n if n < expected => Arrival::Below,
                    n if n - expected >= 128 => Arrival::Beyond,
                    n if arrived.contains(&n) => Arrival::Repeated,
                    n if n == expected => Arrival::Next,
                    _ => Arrival::Early,
                };
                let seq = Seq(first).add(n);
                prop_assert_eq!(recv.check(seq), want);
                if want.is_new() {
                    recv.mark(seq);
                    arrived.insert(n);
                    while arrived.contains(&expected) {
                        expected += 1;
                    }
                }
                prop_assert_eq!(recv.last_in_order(), Seq(first).add(expected).before());
                let mut sack = [0; MAX_SACK_WORDS];
                let words = recv.selective(&mut sack);
                let bits: Vec<u32> =
                    (0..64 * words as u32).filter(|b| sack[*b as usize / 64] >> (b % 64) & 1 == 1).collect();
                let early: Vec<u32> = arrived.range(expected..).map(|n| n - expected).collect();
                prop_assert_eq!(bits, early);
                prop_assert_eq!(recv.has_holes(), arrived.range(expected..).next().is_some());
            }
        }
    }
}
