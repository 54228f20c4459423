//! Source bytes of sends in the program's memory, which is only read. All copies from there into packets are
//! made here, within its bounds; the rest of the engine holds no pointer.

#![allow(unsafe_code)]

use std::ptr::NonNull;

use crate::rdm::op::generic::GenericData;
use crate::rdm::op::piece::Piece;
use crate::rdm::status::DatatypeError;

/// Source bytes of a send: one piece, a list of pieces taken as one run, or data that callbacks pack.
#[derive(Clone, Copy, Debug)]
pub struct SendBuf {
    /// The bytes, the list, or the [`GenericData`].
    ptr: NonNull<u8>,
    len: usize,
    /// Pieces in the list; 0: contiguous bytes; [`GENERIC`]: packed by callbacks.
    pieces: usize,
}

/// [`SendBuf::pieces`] of data that callbacks pack. No list is so long.
const GENERIC: usize = usize::MAX;

// SAFETY: the constructors promise that any thread may read the bytes until the operation is over.
unsafe impl Send for SendBuf {}

impl SendBuf {
    /// An empty buffer.
    pub const EMPTY: SendBuf = SendBuf { ptr: NonNull::dangling(), len: 0, pieces: 0 };

    /// Names the `len` bytes at `ptr`.
    /// # Safety
    /// They stay readable and unchanged, from any thread, until the operation is over: its call returned
    /// `Done` or `Failed`, `cancel_send` returned true, its `EngineEvent` was taken, or the engine and its
    /// wires were dropped. If `len` is 0, `ptr` may be anything.
    #[inline]
    pub unsafe fn new(ptr: *const u8, len: usize) -> SendBuf {
        match NonNull::new(ptr.cast_mut()) {
            Some(ptr) if len > 0 => SendBuf { ptr, len, pieces: 0 },
            _ => SendBuf::EMPTY,
        }
    }

    /// Joins the pieces of `list` into one run. `None` if the total length overflows.
    /// # Safety
    /// As for [`SendBuf::new`], for the list as well; its pieces were made by that.
    #[inline]
    pub unsafe fn of_list(list: &[SendBuf]) -> Option<SendBuf> {
        let len = list.iter().try_fold(0usize, |len, piece| len.checked_add(piece.len))?;
        match list {
            [] => Some(SendBuf::EMPTY),
            [one] => Some(*one),
            _ => Some(SendBuf { ptr: NonNull::from(list).cast(), len, pieces: list.len() }),
        }
    }

    /// Names data that callbacks pack.
    /// # Safety
    /// As for [`SendBuf::new`], for `data`, which stays where it is and has one operation at a time.
    #[inline]
    pub unsafe fn of_generic(data: &GenericData) -> SendBuf {
        SendBuf { ptr: NonNull::from_ref(data).cast(), len: data.len(), pieces: GENERIC }
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

    /// Returns the error of a callback that has packed these bytes.
    #[inline]
    pub(crate) fn error(&self) -> Option<DatatypeError> {
        if self.pieces == 0 { None } else { self.error_of_pieces() }
    }

    #[cold]
    fn error_of_pieces(&self) -> Option<DatatypeError> {
        match self.generic() {
            Some(data) => data.error(),
            None => self.list().iter().find_map(SendBuf::error),
        }
    }

    /// Whether callbacks pack some of the bytes.
    // HOT
    #[inline(always)]
    pub(crate) fn has_callbacks(&self) -> bool {
        self.pieces != 0 && self.has_generic_piece()
    }

    #[inline(never)]
    fn has_generic_piece(&self) -> bool {
        self.pieces == GENERIC || self.list().iter().any(SendBuf::has_callbacks)
    }

    fn generic(&self) -> Option<&GenericData> {
        // SAFETY: `of_generic` promised data that stays as long as the operation.
        (self.pieces == GENERIC).then(|| unsafe { self.ptr.cast::<GenericData>().as_ref() })
    }

    /// The pieces of a list.
    fn list(&self) -> &[SendBuf] {
        debug_assert!(self.pieces != GENERIC);
        // SAFETY: `of_list` promised a list of so many pieces that stays unchanged as long as the bytes do.
        unsafe { std::slice::from_raw_parts(self.ptr.cast::<SendBuf>().as_ptr(), self.pieces) }
    }

    /// Returns the bytes for use in place by the wire, valid until the operation ends. `None` unless they are
    /// contiguous.
    #[inline]
    pub const fn piece(&self) -> Option<Piece> {
        if self.pieces == 0 { Some(Piece { ptr: self.ptr, len: self.len }) } else { None }
    }

    /// Copies the bytes from `at` on to `to`, up to the end of either. Returns how many.
    // HOT
    #[inline]
    pub fn copy_to(&self, at: usize, to: &mut [u8]) -> usize {
        match self.whole() {
            Some(whole) => whole.copy_to(at, to),
            None => self.gather(at, to),
        }
    }

    /// Returns the bytes if they are contiguous.
    // HOT
    #[inline(always)]
    pub const fn whole(&self) -> Option<ContigBuf> {
        if self.pieces == 0 { Some(ContigBuf { ptr: self.ptr.as_ptr(), len: self.len }) } else { None }
    }

    /// Copies from a list, or packs, as [`SendBuf::copy_to`] does.
    // HOT
    #[inline(never)]
    fn gather(&self, at: usize, to: &mut [u8]) -> usize {
        if let Some(data) = self.generic() {
            return data.pack(at, to);
        }
        let (mut skip, mut done) = (at, 0);
        for piece in self.list() {
            if skip >= piece.len {
                skip -= piece.len;
                continue;
            }
            done += piece.copy_to(skip, &mut to[done..]);
            if done == to.len() {
                break;
            }
            skip = 0;
        }
        done
    }
}

/// Contiguous source bytes: a [`SendBuf`] that is no list, small enough for registers.
#[derive(Clone, Copy, Debug)]
pub struct ContigBuf {
    ptr: *const u8,
    len: usize,
}

impl ContigBuf {
    /// Names the `len` bytes at `ptr`.
    /// # Safety
    /// As for [`SendBuf::new`].
    // HOT
    #[inline(always)]
    #[cfg(feature = "lanes")]
    pub(crate) const unsafe fn new(ptr: *const u8, len: usize) -> ContigBuf {
        ContigBuf { ptr, len }
    }

    /// Copies `header`, and these bytes behind it, to `to`. Returns the length of both.
    /// # Safety
    /// `to` has room for both, and overlaps neither.
    // HOT
    #[inline(always)]
    #[cfg(feature = "lanes")]
    pub(crate) unsafe fn copy_behind(self, header: &[u8], to: *mut u8) -> usize {
        // SAFETY: this function's contract.
        unsafe { ucs::mem::copy_word_or_bytes(header.as_ptr(), to, header.len()) };
        if self.len > 0 {
            // SAFETY: this function's contract, and `SendBuf::new` promised `len` readable bytes.
            unsafe { ucs::mem::copy_word_or_bytes(self.ptr, to.wrapping_add(header.len()), self.len) };
        }
        header.len() + self.len
    }

    /// Returns the bytes while the message is sent. Nobody changes them meanwhile, not even a local receiver.
    #[inline]
    pub(in crate::rdm) fn bytes(&self) -> &[u8] {
        if self.len == 0 {
            return &[];
        }
        // SAFETY: `SendBuf::new` promised `len` readable bytes that nobody changes until the operation's end.
        unsafe { std::slice::from_raw_parts(self.ptr, self.len) }
    }

    #[inline(always)]
    fn copy_to(self, at: usize, to: &mut [u8]) -> usize {
        let n = self.len.saturating_sub(at).min(to.len());
        if n == 0 {
            return 0;
        }
        // SAFETY: n > 0 means at < len, so the sum stays inside the user's buffer.
        let from = unsafe { self.ptr.add(at) };
        // SAFETY: at + n <= len readable bytes; `to` is part of a packet, which never overlaps user memory.
        unsafe { ucs::mem::copy_word_or_bytes(from, to.as_mut_ptr(), n) };
        n
    }
}

/// Source bytes of one packet.
pub trait Payload: Copy {
    /// Whether callbacks pack some of the bytes.
    fn has_callbacks(&self) -> bool {
        false
    }
    /// The bytes, if they are known to lie in one piece.
    fn contiguous(&self) -> Option<ContigBuf> {
        None
    }
    /// Length, bytes.
    fn size(&self) -> usize;
    /// Copies as many bytes to `to` as fit. Returns how many.
    // HOT
    fn copy_all(self, to: &mut [u8]) -> usize;
}

impl Payload for ContigBuf {
    #[inline(always)]
    fn contiguous(&self) -> Option<ContigBuf> {
        Some(*self)
    }
    #[inline(always)]
    fn size(&self) -> usize {
        self.len
    }
    #[inline(always)]
    fn copy_all(self, to: &mut [u8]) -> usize {
        self.copy_to(0, to)
    }
}

impl Payload for SendBuf {
    #[inline(always)]
    fn has_callbacks(&self) -> bool {
        SendBuf::has_callbacks(self)
    }
    #[inline(always)]
    fn size(&self) -> usize {
        self.len
    }
    #[inline]
    fn copy_all(self, to: &mut [u8]) -> usize {
        self.copy_to(0, to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_stay_in_bounds() {
        let bytes = [1u8, 2, 3, 4];
        // SAFETY: `bytes` outlives the buffer.
        let buf = unsafe { SendBuf::new(bytes.as_ptr(), 4) };
        let mut to = [0u8; 3];
        assert_eq!(buf.copy_to(2, &mut to), 2);
        assert_eq!(to, [3, 4, 0]);
        assert_eq!(buf.copy_to(4, &mut to) + buf.copy_to(usize::MAX, &mut to), 0);
    }

    #[test]
    fn list_reads_as_contiguous_bytes() {
        let bytes: Vec<u8> = (0..20).collect();
        let mut rest = &bytes[..];
        let list: Vec<SendBuf> =
            [3usize, 0, 1, 16].map(|len| rest.split_off(..len).unwrap()).map(lend).to_vec();
        // SAFETY: list and bytes outlive the buffer.
        let buf = unsafe { SendBuf::of_list(&list) }.unwrap();
        assert_eq!((buf.len(), buf.piece()), (20, None));
        for (at, room) in (0..22).flat_map(|at| (0..24).map(move |room| (at, room))) {
            let mut to = vec![0xffu8; room];
            let n = buf.copy_to(at, &mut to);
            let want = &bytes[at.min(20)..(at + room).min(20).max(at.min(20))];
            assert_eq!((n, &to[..n]), (want.len(), want), "{room} bytes from {at}");
            assert!(to[n..].iter().all(|byte| *byte == 0xff));
        }
        // SAFETY: no byte is read.
        let huge = [unsafe { SendBuf::new(bytes.as_ptr(), usize::MAX) }, list[0]];
        // SAFETY: as above.
        assert!(unsafe { SendBuf::of_list(&huge) }.is_none());
        // SAFETY: as above.
        let one = unsafe { SendBuf::of_list(&list[..1]) }.unwrap();
        assert_eq!(one.piece(), list[0].piece());
    }

    fn lend(bytes: &[u8]) -> SendBuf {
        // SAFETY: the test keeps the bytes.
        unsafe { SendBuf::new(bytes.as_ptr(), bytes.len()) }
    }
}
