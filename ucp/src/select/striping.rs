//! Striping of long transfers over NICs: how many are used, and why not more. Asked by `api` for tools; the
//! engine computes with the same function.

use std::fmt;

/// Inputs of the number of NICs of a transfer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Striping {
    /// Number of NICs that both ends have.
    pub nics: usize,
    /// Maximum number of NICs (`UCX_MAX_RNDV_RAILS`, `UCX_MAX_RMA_RAILS`).
    pub max_rails: usize,
    /// Minimum bytes for each NIC (`UCX_MIN_RNDV_CHUNK_SIZE`, `UCX_MIN_RMA_CHUNK_SIZE`).
    pub min_chunk: u64,
}

/// Why a transfer does not go over more NICs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum StripingLimit {
    /// There are no more.
    Nics,
    /// The settings allow no more.
    Setting,
    /// Each would get less than this, bytes.
    Chunk(u64),
}

impl fmt::Display for StripingLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StripingLimit::Nics => f.write_str("the two have no more in common"),
            StripingLimit::Setting => f.write_str("the settings allow no more"),
            StripingLimit::Chunk(bytes) => write!(f, "another would carry less than {bytes} bytes"),
        }
    }
}

impl Striping {
    /// Number of NICs for `len` bytes that are read or written in place, and what prevents one more.
    pub fn rails_for(&self, len: u64) -> (usize, StripingLimit) {
        let rails = self.nics.min(self.max_rails).max(1);
        let used = crate::rdm::rails_for(len, self.min_chunk, rails);
        let bound = match used {
            _ if used < rails => StripingLimit::Chunk(self.min_chunk),
            _ if self.max_rails < self.nics => StripingLimit::Setting,
            _ => StripingLimit::Nics,
        };
        (used, bound)
    }

    /// Fewest bytes that use `rails` NICs; `None` if no length does.
    pub fn min_len(&self, rails: usize) -> Option<u64> {
        let there = rails >= 1 && rails <= self.nics.min(self.max_rails).max(1);
        there.then_some(if rails == 1 { 0 } else { self.min_chunk.saturating_mul(rails as u64) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn borders_and_counts_agree() {
        let four = Striping { nics: 4, max_rails: 3, min_chunk: 1000 };
        assert_eq!(four.rails_for(1999), (1, StripingLimit::Chunk(1000)));
        assert_eq!(four.rails_for(2000), (2, StripingLimit::Chunk(1000)));
        assert_eq!(four.rails_for(3000), (3, StripingLimit::Setting));
        assert_eq!(Striping { max_rails: 4, ..four }.rails_for(u64::MAX), (4, StripingLimit::Nics));
        assert_eq!(Striping { nics: 1, ..four }.rails_for(u64::MAX), (1, StripingLimit::Nics));
        for rails in 1..=3 {
            let from = four.min_len(rails).unwrap();
            assert_eq!(four.rails_for(from).0, rails);
            assert!(from == 0 || four.rails_for(from - 1).0 == rails - 1);
        }
        assert_eq!((four.min_len(4), four.min_len(0)), (None, None));
    }
}
