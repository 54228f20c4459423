//! Destination bytes of receives in the program's memory, which is only written. All copies from packets to
//! there are made here, within its bounds; the rest of the engine holds no pointer.

#![allow(unsafe_code)]

use std::ptr::NonNull;

use crate::rdm::op::generic::GenericData;
use crate::rdm::op::piece::{Piece, for_each_overlap, piece_at};
use crate::rdm::status::DatatypeError;

/// Destination bytes of a receive: one piece, or a list of pieces taken as one run, or unpacked by callbacks.
#[derive(Debug)]
pub struct RecvBuf {
    /// The bytes, or the list.
    ptr: NonNull<u8>,
    /// Bytes of the one piece; 0: a list. The fast path thus needs no further test than that of the room.
    len: usize,
}

/// Destination for the first bytes of a receive; see [`RecvBuf::contig_target`]. Used at once.
#[derive(Debug)]
pub(in crate::rdm) struct WriteTarget {
    ptr: NonNull<u8>,
    len: usize,
}

impl WriteTarget {
    /// Writes as many bytes as there is room for.
    // HOT
    #[inline(always)]
    pub(in crate::rdm) fn fill(self, from: &[u8]) {
        let n = self.len.min(from.len());
        // SAFETY: `len` writable bytes that nobody else touches now; `from` is part of a packet.
        unsafe { ucs::mem::copy_word_or_bytes(from.as_ptr(), self.ptr.as_ptr(), n) };
    }
}

static NOWHERE: RecvList = RecvList::NONE;

// SAFETY: `new` and `of_list` promise that any thread may write the bytes until the operation is over.
unsafe impl Send for RecvBuf {}

impl RecvBuf {
    /// An empty buffer: drops everything written to it.
    pub const EMPTY: RecvBuf = RecvBuf { ptr: NonNull::from_ref(&NOWHERE).cast(), len: 0 };

    /// Names the `len` bytes at `ptr`.
    /// # Safety
    /// They stay writable, from any thread, nobody reads them and only receives of the engine write them,
    /// until the operation is over: its call returned `Done` or `Failed`, its `EngineEvent` was taken, or the
    /// engine and its wires were dropped. If `len` is 0, `ptr` may be anything.
    #[inline]
    pub unsafe fn new(ptr: *mut u8, len: usize) -> RecvBuf {
        match NonNull::new(ptr) {
            Some(ptr) if len > 0 => RecvBuf { ptr, len },
            _ => RecvBuf::empty(),
        }
    }

    /// [`RecvBuf::EMPTY`], by a branch: else each word is chosen by itself.
    #[cold]
    #[inline(never)]
    const fn empty() -> RecvBuf {
        RecvBuf::EMPTY
    }

    /// Joins the pieces of `list` into one run, or unpacks with its callbacks.
    /// # Safety
    /// As for [`RecvBuf::new`], for each piece; the list stays unchanged as long.
    #[inline]
    pub unsafe fn of_list(list: &RecvList) -> RecvBuf {
        match list.pieces() {
            [one] => RecvBuf { ptr: one.ptr, len: one.len },
            _ => RecvBuf { ptr: NonNull::from_ref(list).cast(), len: 0 },
        }
    }

    /// Returns the pieces of a list; `None` if the buffer is contiguous.
    #[inline]
    pub fn list(&self) -> Option<&RecvList> {
        if self.len > 0 {
            return None;
        }
        // SAFETY: length 0 means `EMPTY`, a static list, or a list that `of_list` promised to stay.
        Some(unsafe { self.ptr.cast::<RecvList>().as_ref() })
    }

    /// Total length, bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.list().map_or(self.len, RecvList::len)
    }

    /// Returns the error of a callback that has unpacked received bytes.
    #[inline]
    pub fn error(&self) -> Option<DatatypeError> {
        self.list().and_then(RecvList::error)
    }

    /// Whether callbacks unpack the received bytes.
    pub(in crate::rdm) fn is_generic(&self) -> bool {
        self.list().is_some_and(|list| list.generic().is_some())
    }

    /// Whether the length is 0.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the bytes for the wire, valid until the operation ends. `None` if empty or a list.
    #[inline]
    pub const fn piece(&self) -> Option<Piece> {
        if self.len > 0 { Some(Piece { ptr: self.ptr, len: self.len }) } else { None }
    }

    /// Returns at most `len` contiguous bytes from `at` on. Parts in use at a time must not overlap.
    pub(crate) fn part(&self, at: usize, len: usize) -> RecvBuf {
        let part = self.piece().map(|piece| piece.part(at, len)).filter(|part| !part.is_empty());
        part.map_or(RecvBuf::EMPTY, |Piece { ptr, len }| RecvBuf { ptr, len })
    }

    /// Returns the destination of `len` bytes; `None` if they do not fit or it is a list.
    // HOT
    #[inline(always)]
    pub(in crate::rdm) fn contig_target(&self, len: usize) -> Option<WriteTarget> {
        // A list has length 0 here, so no byte is written to it.
        if len <= self.len { Some(WriteTarget { ptr: self.ptr, len }) } else { None }
    }

    /// Writes `from` at offset `at`, up to the end. Returns the total length.
    // HOT
    // [M5.7]
    #[inline]
    pub fn put(&mut self, at: u64, from: &[u8]) -> usize {
        if at >= self.len as u64 {
            return self.scatter(at, from);
        }
        self.put_whole(at, from)
    }

    /// Writes to a list as [`RecvBuf::put`] does, never past the end of a piece.
    #[inline(never)]
    fn scatter(&mut self, at: u64, from: &[u8]) -> usize {
        let Some(list) = self.list() else { return self.len };
        list.put(at, from);
        list.len()
    }

    /// Writes to contiguous bytes as [`RecvBuf::put`] does; nothing for a list.
    // HOT
    #[inline(always)]
    pub(in crate::rdm) fn put_whole(&self, at: u64, from: &[u8]) -> usize {
        let at = at.min(self.len as u64) as usize;
        let n = from.len().min(self.len - at);
        // SAFETY: at <= len, so the sum stays inside the user's buffer, or one past it; for a list it adds 0.
        let to = unsafe { self.ptr.add(at) };
        // SAFETY: at + n <= len writable bytes (0 for a list) that nobody else touches now; `from` is part of
        // a packet.
        unsafe { ucs::mem::copy_word_or_bytes(from.as_ptr(), to.as_ptr(), n) };
        self.len
    }
}

/// Destination of a message: any number of pieces, or callbacks that unpack it. The poster of the receive
/// keeps it until the end.
#[derive(Debug, Default)]
pub struct RecvList {
    /// None is empty or a list.
    pieces: Vec<RecvBuf>,
    len: usize,
    generic: Option<NonNull<GenericData>>,
}

// SAFETY: sharing reads addresses and lengths only; `RecvBuf::of_list` covers writes through them.
unsafe impl Sync for RecvList {}
// SAFETY: `of_generic` promises that any thread may call the callbacks; the pieces may be sent.
unsafe impl Send for RecvList {}

impl RecvList {
    /// An empty list.
    pub const NONE: RecvList = RecvList { pieces: Vec::new(), len: 0, generic: None };

    /// Makes a list whose bytes callbacks unpack.
    /// # Safety
    /// As for [`RecvBuf::new`], for `data`, which stays where it is and has one operation at a time.
    pub unsafe fn of_generic(data: &GenericData) -> RecvList {
        RecvList { pieces: Vec::new(), len: data.len(), generic: Some(NonNull::from_ref(data)) }
    }

    /// Returns the callbacks that unpack the bytes, if there are any.
    pub(in crate::rdm) fn generic(&self) -> Option<&GenericData> {
        // SAFETY: `of_generic` promised data that stays as long as the operation.
        self.generic.map(|data| unsafe { data.as_ref() })
    }

    /// Returns the error of a callback that has unpacked received bytes.
    pub fn error(&self) -> Option<DatatypeError> {
        self.generic().and_then(GenericData::error)
    }

    /// Replaces the pieces, without empty ones. False if the length overflows or a piece is a list.
    pub fn fill(&mut self, pieces: impl Iterator<Item = RecvBuf>) -> bool {
        self.pieces.clear();
        (self.len, self.generic) = (0, None);
        for buf in pieces.filter(|buf| !buf.is_empty()) {
            match self.len.checked_add(buf.len()) {
                Some(len) if buf.piece().is_some() => self.len = len,
                _ => return false,
            }
            self.pieces.push(buf);
        }
        true
    }

    /// Returns the pieces, none of them empty.
    #[inline]
    pub fn pieces(&self) -> &[RecvBuf] {
        &self.pieces
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
        piece_at(self.pieces.iter().filter_map(RecvBuf::piece), at)
    }

    /// Writes or unpacks `from` at offset `at` of the run, up to the end.
    pub(super) fn put(&self, at: u64, from: &[u8]) {
        if let Some(data) = self.generic() {
            return data.unpack(at, from);
        }
        for_each_overlap(self.pieces.iter().map(RecvBuf::len), at, from.len(), |piece, to, out, n| {
            self.pieces[piece].put_whole(to as u64, &from[out..out + n]);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn puts_are_clipped() {
        let mut bytes = [0u8; 6];
        // SAFETY: the first four bytes of `bytes`, not touched while the buffer is used.
        let mut buf = unsafe { RecvBuf::new(bytes.as_mut_ptr(), 4) };
        buf.put(3, &[7, 8, 9]);
        buf.put(4, &[5]);
        buf.put(u64::MAX, &[5]);
        buf.put(0, &[1]);
        assert_eq!(bytes, [1, 0, 0, 7, 0, 0]);
        let mut none = RecvBuf::EMPTY;
        none.put(0, &[1]);
    }
}
