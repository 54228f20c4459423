//! Contents of test messages: bytes that identify run, sender, message and offset.

use std::fmt;

/// Distance of the words of a message: odd, so that no two words of a message are equal.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The bytes of one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pattern(u64);

/// The first wrong byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// The offset.
    pub at: usize,
    /// The byte sent.
    pub want: u8,
    /// The byte found.
    pub got: u8,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "byte {} is {:#04x}, sent was {:#04x}", self.at, self.got, self.want)
    }
}

impl Pattern {
    /// The bytes of message `seq` of `sender` in the run of `seed`.
    pub fn new(seed: u64, sender: u64, seq: u64) -> Pattern {
        Pattern(mix(mix(mix(seed) ^ sender) ^ seq))
    }

    /// The first word, which identifies a message in a run.
    pub fn first(self) -> u64 {
        self.0
    }

    #[inline(always)]
    fn word(self, n: usize) -> [u8; 8] {
        self.0.wrapping_add(STEP.wrapping_mul(n as u64)).to_le_bytes()
    }

    /// Writes the message over all of `to`.
    pub fn fill(self, to: &mut [u8]) {
        let (words, rest) = to.as_chunks_mut::<8>();
        for (n, word) in words.iter_mut().enumerate() {
            *word = self.word(n);
        }
        rest.copy_from_slice(&self.word(words.len())[..rest.len()]);
    }

    /// Compares all of `got` with the message.
    pub fn check(self, got: &[u8]) -> Result<(), Mismatch> {
        let (words, rest) = got.as_chunks::<8>();
        let mut diff = 0;
        for (n, word) in words.iter().enumerate() {
            diff |= u64::from_le_bytes(*word) ^ u64::from_le_bytes(self.word(n));
        }
        if diff == 0 && rest == &self.word(words.len())[..rest.len()] {
            return Ok(());
        }
        Err(self.first_difference(got))
    }

    #[cold]
    fn first_difference(self, got: &[u8]) -> Mismatch {
        let want = |at: usize| self.word(at / 8)[at % 8];
        let at = (0..got.len()).find(|at| got[*at] != want(*at)).unwrap_or(0);
        Mismatch { at, want: want(at), got: got[at] }
    }
}

/// Spreads every input bit over the result (finaliser of splitmix64).
pub fn mix(x: u64) -> u64 {
    let mut x = x.wrapping_add(STEP);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_changed_byte_is_found() {
        for len in [0usize, 1, 7, 8, 9, 64, 100] {
            let pattern = Pattern::new(1, 2, 3);
            let mut bytes = vec![0; len];
            pattern.fill(&mut bytes);
            assert_eq!(pattern.check(&bytes), Ok(()));
            for at in 0..len {
                bytes[at] ^= 0x40;
                let want = bytes[at] ^ 0x40;
                assert_eq!(pattern.check(&bytes), Err(Mismatch { at, want, got: bytes[at] }));
                bytes[at] ^= 0x40;
            }
        }
    }

    #[test]
    fn other_messages_differ() {
        let mut bytes = [0; 16];
        Pattern::new(1, 2, 3).fill(&mut bytes);
        for (seed, sender, seq) in [(2, 2, 3), (1, 3, 3), (1, 2, 4), (1, 3, 2)] {
            assert!(Pattern::new(seed, sender, seq).check(&bytes).is_err());
        }
        // A message shifted by a word is another message.
        assert!(Pattern::new(1, 2, 3).check(&bytes[8..]).is_err());
    }
}
