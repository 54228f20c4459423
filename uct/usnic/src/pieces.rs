//! Segments in pieces. The document has none: its paths carry what they carried at the start. A segment that
//! was sent before its path became short cannot be cut into others: its number is taken, and an earlier copy
//! of it may still arrive. So it goes again in pieces, each a datagram, and is put together here before
//! anything else sees it. Pieces have no numbers of their own: if one is lost, all go again.

use crate::header::PieceHeader;
use crate::seq::Seq;

/// Pieces of a segment, at most.
pub const MOST: u32 = 32;
/// Segments of one peer that are incomplete at once, at most; the oldest makes way.
const MAX_SEGMENTS: usize = 64;

/// A segment some of whose pieces have arrived.
struct Incomplete {
    seq: Seq,
    of: PieceHeader,
    /// A bit for each piece that has arrived.
    have: u32,
    bytes: Vec<u8>,
}

/// Incomplete segments of one peer.
#[derive(Default)]
pub struct Pieces(Vec<Incomplete>);

/// How many pieces a segment of `total` bytes has, of up to `unit` bytes.
pub fn count(total: u32, unit: u32) -> u32 {
    total.div_ceil(unit.max(1))
}

impl Pieces {
    /// Takes a piece of a segment of up to `longest` bytes behind its header. Returns these bytes if it is
    /// the last one that was missing. A piece that contradicts itself is dropped: the answer is `Err`.
    pub fn take(
        &mut self,
        seq: Seq,
        piece: &PieceHeader,
        bytes: &[u8],
        longest: u32,
    ) -> Result<Option<Vec<u8>>, ()> {
        let (unit, total, at) = (u32::from(piece.unit.get()), piece.total.get(), piece.at.get());
        if unit == 0 || total > longest || at >= total || at % unit != 0 {
            return Err(());
        }
        let (nth, all) = (at / unit, count(total, unit));
        if all > MOST || bytes.len() as u32 != unit.min(total - at) {
            return Err(());
        }
        let whole = PieceHeader { at: 0.into(), ..*piece };
        // Of another length of pieces: the path has become shorter still.
        self.0.retain(|segment| segment.seq != seq || segment.of == whole);
        let found = self.0.iter().position(|segment| segment.seq == seq).unwrap_or_else(|| {
            if self.0.len() >= MAX_SEGMENTS {
                self.0.remove(0);
            }
            self.0.push(Incomplete { seq, of: whole, have: 0, bytes: vec![0; total as usize] });
            self.0.len() - 1
        });
        let segment = &mut self.0[found];
        segment.bytes[at as usize..][..bytes.len()].copy_from_slice(bytes);
        segment.have |= 1 << nth;
        let is_whole = segment.have.count_ones() == all;
        Ok(is_whole.then(|| self.0.remove(found).bytes))
    }

    /// Forgets segments that are not wanted: they have come whole.
    pub fn retain(&mut self, is_wanted: impl Fn(Seq) -> bool) {
        self.0.retain(|segment| is_wanted(segment.seq));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn piece(unit: u16, total: u32, at: u32) -> PieceHeader {
        PieceHeader { kind: 1, flags: 0, unit: unit.into(), total: total.into(), at: at.into() }
    }

    #[test]
    fn pieces_in_any_order_and_more_than_once_are_a_segment() {
        let whole: Vec<u8> = (0..=255).collect();
        let mut pieces = Pieces::default();
        for at in [200, 0, 200, 0] {
            let bytes = &whole[at..256.min(at + 100)];
            assert_eq!(pieces.take(Seq(7), &piece(100, 256, at as u32), bytes, 1000), Ok(None));
        }
        assert_eq!(pieces.take(Seq(7), &piece(100, 256, 100), &whole[100..200], 1000), Ok(Some(whole)));
        assert_eq!(pieces.take(Seq(8), &piece(9, 0, 0), &[], 1000), Err(()), "a segment has bytes");
        // Those of an earlier length of pieces do not mix with the later ones.
        assert_eq!(pieces.take(Seq(9), &piece(2, 4, 2), b"cd", 1000), Ok(None));
        assert_eq!(pieces.take(Seq(9), &piece(3, 4, 0), b"abc", 1000), Ok(None));
        assert_eq!(pieces.take(Seq(9), &piece(3, 4, 3), b"d", 1000), Ok(Some(b"abcd".to_vec())));
    }

    #[test]
    fn segments_that_stay_incomplete_are_few() {
        let mut pieces = Pieces::default();
        for seq in 0..1000 {
            assert_eq!(pieces.take(Seq(seq), &piece(2, 4, 0), b"ab", 1000), Ok(None));
        }
        assert_eq!(pieces.0.len(), MAX_SEGMENTS);
        pieces.retain(|seq| seq == Seq(999));
        assert_eq!(pieces.take(Seq(999), &piece(2, 4, 2), b"cd", 1000), Ok(Some(b"abcd".to_vec())));
        assert!(pieces.0.is_empty());
    }

    proptest! {
        #[test]
        fn any_piece_is_taken_or_refused(
            all in proptest::collection::vec((0u32..3, 0u16..40, 0u32..200, 0u32..200, 0usize..50), 0..60),
        ) {
            let mut pieces = Pieces::default();
            for (seq, unit, total, at, len) in all {
                if let Ok(Some(whole)) = pieces.take(Seq(seq), &piece(unit, total, at), &[1; 50][..len], 150) {
                    prop_assert_eq!(whole, vec![1; total as usize]);
                }
            }
        }
    }
}
