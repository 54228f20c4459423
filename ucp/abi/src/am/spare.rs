//! Memory of a worker for headers and data of active messages, which later messages use again.

use std::cell::{Cell, RefCell};

/// Bytes that are kept at most. What a longer message needs comes from the allocator each time.
const MAX_BYTES: usize = 4 << 20;
/// Pieces that are kept at most.
const MAX_PIECES: usize = 64;

/// Pieces that no message uses.
#[derive(Default)]
pub(super) struct Spare {
    pieces: RefCell<Vec<Vec<u8>>>,
    bytes: Cell<usize>,
}

impl Spare {
    /// An empty piece with room for `len` bytes: the smallest that has it. `None`: no memory.
    pub(super) fn take(&self, len: usize) -> Option<Vec<u8>> {
        let mut pieces = self.pieces.borrow_mut();
        let fits = pieces.iter().enumerate().filter(|(_, piece)| piece.capacity() >= len);
        if let Some((at, _)) = fits.min_by_key(|(_, piece)| piece.capacity()) {
            let piece = pieces.swap_remove(at);
            self.bytes.set(self.bytes.get() - piece.capacity());
            return Some(piece);
        }
        let mut piece = Vec::new();
        piece.try_reserve_exact(len).ok()?;
        Some(piece)
    }

    /// A piece of this length as an array, which has no spare room: longer ones stay. `None`: no memory.
    #[cold]
    pub(super) fn take_array<const N: usize>(&self) -> Option<Box<[u8; N]>> {
        let mut pieces = self.pieces.borrow_mut();
        let mut piece = match pieces.iter().position(|piece| piece.capacity() == N) {
            Some(at) => pieces.swap_remove(at),
            None => Vec::new(),
        };
        self.bytes.set(self.bytes.get() - piece.capacity());
        piece.try_reserve_exact(N).ok()?;
        piece.resize(N, 0);
        piece.into_boxed_slice().try_into().ok()
    }

    /// Takes a piece back.
    pub(super) fn give_back(&self, mut piece: Vec<u8>) {
        piece.clear();
        let bytes = self.bytes.get() + piece.capacity();
        let mut pieces = self.pieces.borrow_mut();
        if piece.capacity() > 0 && bytes <= MAX_BYTES && pieces.len() < MAX_PIECES {
            self.bytes.set(bytes);
            pieces.push(piece);
        }
    }

    /// A copy of bytes.
    pub(super) fn copy(&self, bytes: &[u8]) -> Option<Vec<u8>> {
        let mut piece = self.take(bytes.len())?;
        piece.extend_from_slice(bytes);
        Some(piece)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_used_again() {
        let spare = Spare::default();
        let first = spare.copy(&[7; 100]).expect("memory");
        let at = first.as_ptr();
        spare.give_back(first);
        let small = spare.copy(&[1; 10]).expect("memory");
        assert_eq!((small.as_ptr(), &small[..]), (at, &[1; 10][..]));
        spare.give_back(small);
        // The smaller piece serves what fits into it.
        spare.give_back(Vec::with_capacity(20));
        let fits = spare.take(20).expect("memory");
        assert_ne!(fits.as_ptr(), at);
        assert!(spare.take_array::<16>().is_some(), "none of this length");
        let larger = spare.take(100).expect("memory");
        assert_eq!(larger.as_ptr(), at);
        let word = Vec::from(spare.take_array::<16>().expect("memory") as Box<[u8]>);
        let at = word.as_ptr();
        spare.give_back(word);
        let again = spare.take_array::<16>().expect("memory");
        assert_eq!((again.as_ptr(), spare.bytes.get()), (at, 0));
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let spare = Spare::default();
        for _ in 0..100 {
            spare.give_back(Vec::with_capacity(1 << 20));
        }
        assert_eq!((spare.pieces.borrow().len(), spare.bytes.get()), (4, MAX_BYTES));
        assert!(spare.take(usize::MAX / 2).is_none());
    }
}
