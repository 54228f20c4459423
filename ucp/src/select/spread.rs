//! Over how many NICs a long transfer goes side by side, and why not over more. Asked by `api` for tools; the engine
//! computes with the same function.

use std::fmt;

use crate::rdm::rails_for;

/// What decides over how many NICs a transfer goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Spread {
    /// NICs that both ends have.
    pub nics: usize,
    /// Most that may be used (`UCX_MAX_RNDV_RAILS`, `UCX_MAX_RMA_RAILS`).
    pub most: usize,
    /// Fewest bytes for each (`UCX_MIN_RNDV_CHUNK_SIZE`, `UCX_MIN_RMA_CHUNK_SIZE`).
    pub chunk: u64,
}

/// Why a transfer does not go over more NICs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bound {
    /// There are no more.
    Nics,
    /// The settings allow no more.
    Most,
    /// Each would get less than this, bytes.
    Chunk(u64),
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Bound::Nics => f.write_str("the two have no more in common"),
            Bound::Most => f.write_str("the settings allow no more"),
            Bound::Chunk(bytes) => write!(f, "another would carry less than {bytes} bytes"),
        }
    }
}

impl Spread {
    /// Over how many NICs `len` bytes go, where they are read or written in place, and what keeps them from going over
    /// one more.
    pub fn over(&self, len: u64) -> (usize, Bound) {
        let rails = self.nics.min(self.most).max(1);
        let used = rails_for(len, self.chunk, rails);
        let bound = match used {
            _ if used < rails => Bound::Chunk(self.chunk),
            _ if self.most < self.nics => Bound::Most,
            _ => Bound::Nics,
        };
        (used, bound)
    }

    /// Fewest bytes that go over `rails` NICs; `None` if nothing does.
    pub fn from(&self, rails: usize) -> Option<u64> {
        let there = rails >= 1 && rails <= self.nics.min(self.most).max(1);
        there.then_some(if rails == 1 { 0 } else { self.chunk.saturating_mul(rails as u64) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn borders_and_counts_agree() {
        let four = Spread { nics: 4, most: 3, chunk: 1000 };
        assert_eq!(four.over(1999), (1, Bound::Chunk(1000)));
        assert_eq!(four.over(2000), (2, Bound::Chunk(1000)));
        assert_eq!(four.over(3000), (3, Bound::Most));
        assert_eq!(Spread { most: 4, ..four }.over(u64::MAX), (4, Bound::Nics));
        assert_eq!(Spread { nics: 1, ..four }.over(u64::MAX), (1, Bound::Nics));
        for rails in 1..=3 {
            let from = four.from(rails).unwrap();
            assert_eq!(four.over(from).0, rails);
            assert!(from == 0 || four.over(from - 1).0 == rails - 1);
        }
        assert_eq!((four.from(4), four.from(0)), (None, None));
    }
}
