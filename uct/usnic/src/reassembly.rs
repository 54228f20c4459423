//! Fragments on their way in. *"chunk packets are parts of a larger fragment. If an active fragment receive
//! for the matching fragment ID cannot be found, and new fragment info descriptor is allocated"*, *"each
//! subsequent chunk is copied"* to where the fragment belongs, and *"when the last chunk of a fragment
//! arrives"* the descriptor is released (Receive dataflow).
//!
//! There is no buffer here: the layer above names a target when the first chunk comes, and gets each chunk
//! with its place in it.

use crate::header::Head;
use rustc_hash::FxHashMap;

/// Descriptor of a fragment that arrives in chunks.
#[derive(Clone, Copy, Debug)]
pub struct Assembly {
    /// Head of the fragment, as in its first chunk.
    pub head: Head,
    /// Bytes.
    pub total: u32,
    /// Bytes that are still to come.
    pub left: u32,
    /// Whether some of them will not come.
    pub aborted: bool,
    /// Where they go; `None`: nowhere, the layer above refused them.
    pub target: Option<u64>,
}

/// Why a chunk is not accepted: the peer errs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BadChunk {
    /// It has another length or head than the first one of its fragment.
    Differs,
    /// More bytes than the fragment has.
    TooMuch,
    /// More fragments at once than allowed.
    TooMany,
}

/// Fragments of one peer that arrive in chunks, by number.
#[derive(Default)]
pub struct Reassembly {
    active: FxHashMap<u32, Assembly>,
}

impl Reassembly {
    /// Descriptor of a chunk's fragment. A new one takes its target from `first`.
    pub fn find(
        &mut self,
        id: u32,
        head: &Head,
        total: u32,
        most: usize,
        first: impl FnOnce() -> Option<u64>,
    ) -> Result<&mut Assembly, BadChunk> {
        if !self.active.contains_key(&id) {
            if self.active.len() >= most {
                return Err(BadChunk::TooMany);
            }
            let target = first();
            self.active.insert(id, Assembly { head: *head, total, left: total, aborted: false, target });
        }
        let found = self.active.get_mut(&id).ok_or(BadChunk::TooMany)?;
        if found.total != total || found.head != *head { Err(BadChunk::Differs) } else { Ok(found) }
    }

    /// Releases a descriptor.
    pub fn finish(&mut self, id: u32) -> Option<Assembly> {
        self.active.remove(&id)
    }

    /// Releases every descriptor: the peer is dead.
    pub fn drain(&mut self) -> impl Iterator<Item = Assembly> + '_ {
        self.active.drain().map(|(_, assembly)| assembly)
    }
}

impl Assembly {
    /// Takes a chunk of `len` bytes; returns whether it was the last.
    pub fn take(&mut self, len: u32) -> Result<bool, BadChunk> {
        self.left = self.left.checked_sub(len).ok_or(BadChunk::TooMuch)?;
        Ok(self.left == 0)
    }

    /// Takes the word that nothing comes from `offset` on. Earlier chunks may still be on their way. Returns
    /// whether none is.
    pub fn abort(&mut self, offset: u32) -> Result<bool, BadChunk> {
        self.aborted = true;
        self.take(self.total.checked_sub(offset).ok_or(BadChunk::TooMuch)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_of_two_fragments_in_any_order() {
        let mut all = Reassembly::default();
        let (one, two) = ([1; 32], [2; 32]);
        assert_eq!(all.find(7, &one, 100, 2, || Some(11)).unwrap().take(60), Ok(false));
        assert_eq!(all.find(8, &two, 50, 2, || None).unwrap().take(20), Ok(false));
        assert_eq!(all.find(9, &one, 5, 2, || Some(1)).err(), Some(BadChunk::TooMany));
        let found = all.find(7, &one, 100, 2, || unreachable!("known")).unwrap();
        assert_eq!((found.target, found.take(40)), (Some(11), Ok(true)));
        assert!(all.finish(7).is_some());
        assert_eq!(all.find(8, &one, 50, 2, || None).err(), Some(BadChunk::Differs));
        assert_eq!(all.find(8, &two, 51, 2, || None).err(), Some(BadChunk::Differs));
        assert_eq!(all.find(8, &two, 50, 2, || None).unwrap().take(31), Err(BadChunk::TooMuch));
        let found = all.find(8, &two, 50, 2, || None).unwrap();
        assert_eq!((found.abort(35), found.take(15)), (Ok(false), Ok(true)), "the word overtakes a chunk");
        assert_eq!((found.abort(51), found.take(1)), (Err(BadChunk::TooMuch), Err(BadChunk::TooMuch)));
        assert_eq!(all.drain().count(), 1);
        assert!(all.active.is_empty());
    }
}
