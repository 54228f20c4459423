//! User memory in up to [`MAX_IOV`] pieces, taken as one run of bytes: sources of writes, destinations of
//! reads. More pieces are one buffer that is a list, which devices do not take.

#![allow(unsafe_code)]

use crate::rdm::op::piece::{Piece, for_each_overlap, piece_at};
use crate::rdm::op::recv_buf::RecvBuf;
use crate::rdm::op::send_buf::SendBuf;
use crate::wire::MAX_IOV;

/// Source bytes of a write, in up to four pieces.
#[derive(Clone, Copy, Debug)]
pub struct Gather {
    list: [SendBuf; MAX_IOV],
    count: u8,
    len: usize,
}

impl Gather {
    /// An empty list.
    pub const EMPTY: Gather = Gather { list: [SendBuf::EMPTY; MAX_IOV], count: 0, len: 0 };

    /// Wraps one buffer.
    #[inline]
    pub const fn one(buf: SendBuf) -> Gather {
        let none = SendBuf::EMPTY;
        Gather { list: [buf, none, none, none], count: 1, len: buf.len() }
    }

    /// Adds a piece; false if there are four already, the length overflows, or it is a list itself.
    pub fn push(&mut self, buf: SendBuf) -> bool {
        if buf.piece().is_none() {
            return false;
        }
        let Some(len) = self.len.checked_add(buf.len()) else { return false };
        let Some(place) = self.list.get_mut(usize::from(self.count)) else { return false };
        *place = buf;
        self.count += 1;
        self.len = len;
        true
    }

    /// Returns the pieces.
    pub fn pieces(&self) -> &[SendBuf] {
        &self.list[..usize::from(self.count).min(MAX_IOV)]
    }

    /// Total length, bytes.
    #[inline]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether the length is 0.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the number of the piece that holds byte `at` of the run, the piece, and the offset into it.
    pub fn piece_at(&self, at: u64) -> Option<(usize, Piece, usize)> {
        piece_at(self.pieces().iter().filter_map(SendBuf::piece), at)
    }

    /// Copies the bytes from `at` on to `to`, up to the end of either. Returns how many.
    // HOT
    #[inline]
    pub fn copy_to(&self, at: usize, to: &mut [u8]) -> usize {
        if self.count <= 1 {
            return self.list[0].copy_to(at, to);
        }
        let lens = self.pieces().iter().map(SendBuf::len);
        let (mut done, room) = (0, to.len());
        for_each_overlap(lens, at as u64, room, |piece, from, into, n| {
            done += self.list[piece].copy_to(from, &mut to[into..into + n]);
        });
        done
    }
}

/// Destination bytes of a read, in up to four pieces.
#[derive(Debug)]
pub struct Scatter {
    list: [RecvBuf; MAX_IOV],
    count: u8,
    len: usize,
}

impl Scatter {
    /// An empty list.
    pub const EMPTY: Scatter = Scatter { list: [const { RecvBuf::EMPTY }; MAX_IOV], count: 0, len: 0 };

    /// Wraps one buffer.
    #[inline]
    pub fn one(buf: RecvBuf) -> Scatter {
        let mut scatter = Scatter::EMPTY;
        (scatter.count, scatter.len) = (1, buf.len());
        scatter.list[0] = buf;
        scatter
    }

    /// Adds a piece; false if there are four already, the length overflows, or it is a list itself.
    pub fn push(&mut self, buf: RecvBuf) -> bool {
        if buf.piece().is_none() && !buf.is_empty() {
            return false;
        }
        let Some(len) = self.len.checked_add(buf.len()) else { return false };
        let Some(place) = self.list.get_mut(usize::from(self.count)) else { return false };
        *place = buf;
        self.count += 1;
        self.len = len;
        true
    }

    /// Returns the only piece; `None` if there are more.
    #[inline]
    pub fn into_one(self) -> Option<RecvBuf> {
        let [first, ..] = self.list;
        (self.count == 1).then_some(first)
    }

    /// Total length, bytes.
    #[inline]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Number of pieces.
    #[inline]
    pub const fn pieces(&self) -> usize {
        self.count as usize
    }

    /// Whether the length is 0.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the number of the piece that holds byte `at` of the run, the piece, and the offset into it.
    pub fn piece_at(&self, at: u64) -> Option<(usize, Piece, usize)> {
        let list = &self.list[..usize::from(self.count).min(MAX_IOV)];
        piece_at(list.iter().map(|buf| buf.piece().unwrap_or(Piece::EMPTY)), at)
    }

    /// Writes `from` at offset `at` of the run, up to the end.
    // HOT
    #[inline]
    pub fn put(&mut self, at: u64, from: &[u8]) {
        if self.count <= 1 {
            self.list[0].put(at, from);
            return;
        }
        let mut sizes = [0; MAX_IOV];
        for (size, buf) in sizes.iter_mut().zip(&self.list) {
            *size = buf.len();
        }
        for_each_overlap(sizes.into_iter(), at, from.len(), |piece, to, out, n| {
            self.list[piece].put(to as u64, &from[out..out + n]);
        });
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn pieces_behave_as_contiguous_bytes(lens in prop::collection::vec(0usize..20, 0..5), at in 0usize..90, n in 0usize..90) {
            let total: usize = lens.iter().sum();
            let source: Vec<u8> = (0..total as u8).collect();
            let mut target = vec![0xffu8; total];
            let (mut gather, mut scatter, mut from) = (Gather::EMPTY, Scatter::EMPTY, 0);
            let base = target.as_mut_ptr();
            for &len in &lens {
                // SAFETY: within `source`, which outlives the run.
                let piece = unsafe { SendBuf::new(source[from..].as_ptr(), len) };
                prop_assert!(gather.push(piece));
                // SAFETY: within `target`, which is not read before the run is over.
                let room = unsafe { RecvBuf::new(base.wrapping_add(from), len) };
                prop_assert!(scatter.push(room));
                from += len;
            }
            prop_assert_eq!((gather.len(), scatter.len()), (total, total));
            let mut out = vec![0u8; n];
            let copied = gather.copy_to(at, &mut out);
            let want = &source[at.min(total)..(at + n).min(total).max(at.min(total))];
            prop_assert_eq!(&out[..copied], want);
            scatter.put(at as u64, &out[..copied]);
            for (i, &byte) in target.iter().enumerate() {
                let hit = i >= at && i < at + copied;
                prop_assert_eq!(byte, if hit { i as u8 } else { 0xff });
            }
        }
    }

    #[test]
    fn four_pieces_at_most() {
        let mut gather = Gather::EMPTY;
        for n in 0..6 {
            assert_eq!(gather.push(SendBuf::EMPTY), n < 4);
        }
    }
}
