//! A message of an operation, and its header.

use crate::rdm::io::PeerId;

/// Bytes of the header of a message: group and number of the operation, u64 each, and the sender's rank, u32.
const HEADER: usize = 20;

/// An operation of a group: the group, and its number there.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct OpKey {
    pub group: u64,
    pub number: u64,
}

impl OpKey {
    /// Header of a message of the member with this rank.
    pub(super) fn header(self, rank: usize) -> [u8; HEADER] {
        let mut header = [0; HEADER];
        header[..8].copy_from_slice(&self.group.to_le_bytes());
        header[8..16].copy_from_slice(&self.number.to_le_bytes());
        header[16..].copy_from_slice(&(rank as u32).to_le_bytes());
        header
    }

    /// The operation, and the rank of the member, of a header.
    pub(super) fn of_header(header: &[u8]) -> Option<(OpKey, usize)> {
        let header: &[u8; HEADER] = header.try_into().ok()?;
        let word = |at: usize| header[at..].first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
        let rank = header[16..].first_chunk().map(|bytes| u32::from_le_bytes(*bytes))?;
        Some((OpKey { group: word(0)?, number: word(8)? }, rank as usize))
    }
}

/// A message of an operation.
pub(super) struct Part {
    pub(super) from: PeerId,
    /// Rank of the sender, as the message tells it.
    pub(super) rank: usize,
    pub(super) data: Vec<u8>,
}
