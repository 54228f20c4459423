//! User memory behind two fences: read-only for sends, write-only for receives. All copies between packets and user
//! buffers go through here, bounds-checked; the rest of the engine holds no pointer.

use std::ptr::NonNull;

/// Copies `n` bytes; the commonest small message, one word, without a call. // HOT
///
/// # Safety
/// As for `std::ptr::copy_nonoverlapping`.
#[inline(always)]
unsafe fn copy(from: *const u8, to: *mut u8, n: usize) {
    if n == 8 {
        // SAFETY: eight bytes may be read by the caller's promise.
        let word = unsafe { from.cast::<u64>().read_unaligned() };
        // SAFETY: eight bytes may be written by the caller's promise.
        unsafe { to.cast::<u64>().write_unaligned(word) };
    } else {
        // SAFETY: the caller's promise.
        unsafe { ucs::mem::copy_bytes(from, to, n) };
    }
}

/// Bytes lent to the wire, to be registered, read to or written from in place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    ptr: NonNull<u8>,
    len: usize,
}

impl Piece {
    /// No bytes.
    pub const EMPTY: Piece = Piece { ptr: NonNull::dangling(), len: 0 };

    /// The `len` bytes at `ptr`; `None` if `ptr` is null.
    ///
    /// # Safety
    /// They stay valid for what they are registered for, until the registration is released or the wire is gone.
    pub unsafe fn new(ptr: *mut u8, len: usize) -> Option<Piece> {
        Some(Piece { ptr: NonNull::new(ptr)?, len })
    }

    /// First byte.
    #[inline]
    pub const fn ptr(self) -> *mut u8 {
        self.ptr.as_ptr()
    }

    /// Bytes in all.
    #[inline]
    pub const fn len(self) -> usize {
        self.len
    }

    /// No bytes at all.
    #[inline]
    pub const fn is_empty(self) -> bool {
        self.len == 0
    }

    /// The piece of it from `at` on, of at most `len` bytes.
    #[inline]
    pub fn part(self, at: usize, len: usize) -> Piece {
        let at = at.min(self.len);
        let len = len.min(self.len - at);
        // SAFETY: at <= self.len, so the sum lies inside the bytes of `new`, or one past them.
        Piece { ptr: unsafe { self.ptr.add(at) }, len }
    }
}

/// Bytes a send reads from: in one piece, or in a list of pieces, as one run.
#[derive(Clone, Copy, Debug)]
pub struct SendBuf {
    /// The bytes, or the list.
    ptr: NonNull<u8>,
    /// Bytes in all.
    len: usize,
    /// Pieces in the list; 0: there is none.
    pieces: usize,
}

// SAFETY: `new` and `of_list` promise that the bytes may be read until the operation is over, from whichever thread drives the
// engine.
unsafe impl Send for SendBuf {}

impl SendBuf {
    /// No bytes.
    pub const EMPTY: SendBuf = SendBuf { ptr: NonNull::dangling(), len: 0, pieces: 0 };

    /// The `len` bytes at `ptr`.
    ///
    /// # Safety
    /// They stay readable and unchanged, from any thread, until the operation they are given to is over: its call
    /// answered `Done` or `Failed`, or `cancel_send` answered true, or its `EngineEvent` was taken, or the engine and its wires are dropped.
    /// If `len` is 0, `ptr` may be anything.
    #[inline]
    pub unsafe fn new(ptr: *const u8, len: usize) -> SendBuf {
        match NonNull::new(ptr.cast_mut()) {
            Some(ptr) if len > 0 => SendBuf { ptr, len, pieces: 0 },
            _ => SendBuf::EMPTY,
        }
    }

    /// The bytes of the pieces in `list`, one behind the other. `None`: their lengths together overflow.
    ///
    /// # Safety
    /// As for [`SendBuf::new`], of the list as well; its pieces were made by that.
    #[inline]
    pub unsafe fn of_list(list: &[SendBuf]) -> Option<SendBuf> {
        let len = list.iter().try_fold(0usize, |len, piece| len.checked_add(piece.len))?;
        match list {
            [] => Some(SendBuf::EMPTY),
            [one] => Some(*one),
            _ => Some(SendBuf { ptr: NonNull::from(list).cast(), len, pieces: list.len() }),
        }
    }

    /// Bytes in all.
    #[inline]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// No bytes at all.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes in place, for the wire: the operation's until it is over, so a registration ends before it. `None`: they
    /// are in several.
    #[inline]
    pub const fn piece(&self) -> Option<Piece> {
        if self.pieces == 0 { Some(Piece { ptr: self.ptr, len: self.len }) } else { None }
    }

    /// Copies the bytes from `at` on to `to`: as many as there are and as fit. Answers how many. // HOT
    #[inline]
    pub fn copy_to(&self, at: usize, to: &mut [u8]) -> usize {
        match self.whole() {
            Some(whole) => whole.copy_to(at, to),
            None => self.gather(at, to),
        }
    }

    /// The bytes, if they are in one piece. // HOT
    #[inline(always)]
    pub const fn whole(&self) -> Option<ContigBuf> {
        if self.pieces == 0 { Some(ContigBuf { ptr: self.ptr.as_ptr(), len: self.len }) } else { None }
    }

    /// The same of a list. // HOT
    #[inline(never)]
    fn gather(&self, at: usize, to: &mut [u8]) -> usize {
        // SAFETY: `of_list` promised a list of so many pieces that stays where it is, unchanged, as long as the bytes do.
        let list = unsafe { std::slice::from_raw_parts(self.ptr.cast::<SendBuf>().as_ptr(), self.pieces) };
        let (mut skip, mut done) = (at, 0);
        for piece in list {
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

/// Bytes a send reads from, in one piece: a [`SendBuf`] that is no list, and small enough for registers.
#[derive(Clone, Copy, Debug)]
pub struct ContigBuf {
    ptr: *const u8,
    len: usize,
}

impl ContigBuf {
    /// The `len` bytes at `ptr`. // HOT
    ///
    /// # Safety
    /// As for [`SendBuf::new`].
    #[inline(always)]
    #[cfg(feature = "lanes")]
    pub(crate) const unsafe fn new(ptr: *const u8, len: usize) -> ContigBuf {
        ContigBuf { ptr, len }
    }

    /// They, while the message is sent. Nobody changes them meanwhile: neither does its receiver, if that is here.
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
        // SAFETY: `SendBuf::new` promised `len` readable bytes and at + n <= len; `to` has n bytes and is a slice of a packet,
        // which never overlaps memory that the user promised to leave unchanged.
        unsafe { copy(from, to.as_mut_ptr(), n) };
        n
    }
}

/// Bytes that go into one packet.
pub trait Payload: Copy {
    /// How many.
    fn size(&self) -> usize;
    /// Copies them to `to`: as many as fit. Answers how many. // HOT
    fn copy_all(self, to: &mut [u8]) -> usize;
}

impl Payload for ContigBuf {
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
    fn size(&self) -> usize {
        self.len
    }
    #[inline]
    fn copy_all(self, to: &mut [u8]) -> usize {
        self.copy_to(0, to)
    }
}

/// Bytes a receive writes to: in one piece, or in a list of pieces, as one run.
#[derive(Debug)]
pub struct RecvBuf {
    /// The bytes, or the list.
    ptr: NonNull<u8>,
    /// Bytes of the one piece; 0: it is a list. So the short way, which asks whether there is room for a byte, asks no more.
    len: usize,
}

/// Room for so many bytes at the beginning of a receive's: see [`RecvBuf::spot`]. Used while the receive is looked at.
#[derive(Debug)]
pub(in crate::rdm) struct WriteTarget {
    ptr: NonNull<u8>,
    len: usize,
}

impl WriteTarget {
    /// Writes as many bytes as there is room for. // HOT
    #[inline(always)]
    pub(in crate::rdm) fn fill(self, from: &[u8]) {
        let n = self.len.min(from.len());
        // SAFETY: `RecvBuf::new` promised at least `len` writable bytes that nobody else touches during this call; `from` has n bytes
        // and is a slice of a packet, which is not the user's buffer.
        unsafe { copy(from.as_ptr(), self.ptr.as_ptr(), n) };
    }
}

/// The list of no pieces.
static NOWHERE: RecvList = RecvList::NONE;

// SAFETY: `new` and `of_list` promise that the bytes may be written until the operation is over, from whichever thread drives
// the engine.
unsafe impl Send for RecvBuf {}

impl RecvBuf {
    /// No bytes: everything put here is dropped.
    pub const EMPTY: RecvBuf = RecvBuf { ptr: NonNull::from_ref(&NOWHERE).cast(), len: 0 };

    /// The `len` bytes at `ptr`.
    ///
    /// # Safety
    /// They stay writable, from any thread, and nobody but other receives of the engine writes them, and nobody reads
    /// them, until the operation they are given to is over: its call answered `Done` or `Failed`, or its `EngineEvent` was
    /// taken, or the engine and its wires are dropped. If `len` is 0, `ptr` may be anything.
    #[inline]
    pub unsafe fn new(ptr: *mut u8, len: usize) -> RecvBuf {
        match NonNull::new(ptr) {
            Some(ptr) if len > 0 => RecvBuf { ptr, len },
            _ => RecvBuf::EMPTY,
        }
    }

    /// The bytes of the pieces in `list`, one behind the other.
    ///
    /// # Safety
    /// As for [`RecvBuf::new`], of each piece; the list stays where it is, unchanged, as long.
    #[inline]
    pub unsafe fn of_list(list: &RecvList) -> RecvBuf {
        match list.pieces() {
            [one] => RecvBuf { ptr: one.ptr, len: one.len },
            _ => RecvBuf { ptr: NonNull::from_ref(list).cast(), len: 0 },
        }
    }

    /// The pieces, if it is a list.
    #[inline]
    pub fn list(&self) -> Option<&RecvList> {
        if self.len > 0 {
            return None;
        }
        // SAFETY: of length 0 are `EMPTY`, which points to a static list, and what `of_list` makes, which promised that the list
        // stays.
        Some(unsafe { self.ptr.cast::<RecvList>().as_ref() })
    }

    /// Bytes in all.
    #[inline]
    pub fn len(&self) -> usize {
        self.list().map_or(self.len, RecvList::len)
    }

    /// No bytes at all.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes in place, for the wire: the operation's until it is over, so a registration ends before it. `None`: there are
    /// none, or they are in several pieces.
    #[inline]
    pub const fn piece(&self) -> Option<Piece> {
        if self.len > 0 { Some(Piece { ptr: self.ptr, len: self.len }) } else { None }
    }

    /// `len` of the bytes from `at` on, as far as there are any in one piece, under the same promise. The parts of one buffer
    /// that are in use at a time do not overlap.
    pub(crate) fn part(&self, at: usize, len: usize) -> RecvBuf {
        let part = self.piece().map(|piece| piece.part(at, len)).filter(|part| !part.is_empty());
        part.map_or(RecvBuf::EMPTY, |Piece { ptr, len }| RecvBuf { ptr, len })
    }

    /// Where all of `len` bytes go that are in one piece. `None`: there is no room for them, or it is in several. // HOT
    #[inline(always)]
    pub(in crate::rdm) fn contig_target(&self, len: usize) -> Option<WriteTarget> {
        // A list is of length 0 here, and no byte is written to it.
        if len <= self.len { Some(WriteTarget { ptr: self.ptr, len }) } else { None }
    }

    /// Writes `from` at offset `at`; what lies behind the end is dropped. Answers how many bytes there are in all. // HOT
    // [M5.7]
    #[inline]
    pub fn put(&mut self, at: u64, from: &[u8]) -> usize {
        if at >= self.len as u64 {
            return self.scatter(at, from);
        }
        self.put_whole(at, from)
    }

    /// The same, to a list. Nothing is written behind the end of one piece.
    #[inline(never)]
    fn scatter(&mut self, at: u64, from: &[u8]) -> usize {
        let Some(list) = self.list() else { return self.len };
        list.put(at, from);
        list.len()
    }

    /// The same, to bytes in one piece; to a list, nothing. // HOT
    #[inline(always)]
    pub(super) fn put_whole(&self, at: u64, from: &[u8]) -> usize {
        let at = at.min(self.len as u64) as usize;
        let n = from.len().min(self.len - at);
        // SAFETY: at <= len, so the sum stays inside the user's buffer, or one past it; of a list nothing is added.
        let to = unsafe { self.ptr.add(at) };
        // SAFETY: `new` promised `len` writable bytes that nobody else touches during this call, and at + n <= len, of a list 0; `from`
        // has n bytes and is a slice of a packet, which is not the user's buffer.
        unsafe { copy(from.as_ptr(), to.as_ptr(), n) };
        self.len
    }
}

/// Calls `each(piece, offset in the piece, offset in the run, bytes)` for the part of every piece that lies within
/// `at..at + len`. Bytes behind the last piece are left out. // HOT
#[inline]
pub fn for_each_overlap(
    lens: impl Iterator<Item = usize>,
    at: u64,
    len: usize,
    mut each: impl FnMut(usize, usize, usize, usize),
) {
    let Ok(mut skip) = usize::try_from(at) else { return };
    let mut done = 0;
    for (piece, size) in lens.enumerate() {
        if done == len {
            return;
        }
        if skip >= size {
            skip -= size;
            continue;
        }
        let n = (size - skip).min(len - done);
        each(piece, skip, done, n);
        done += n;
        skip = 0;
    }
}

/// The piece that byte `at` of the run lies in, its number, and how far into it.
pub fn piece_at(pieces: impl Iterator<Item = Piece>, at: u64) -> Option<(usize, Piece, usize)> {
    let mut skip = usize::try_from(at).ok()?;
    for (n, piece) in pieces.enumerate() {
        if skip < piece.len() {
            return Some((n, piece, skip));
        }
        skip -= piece.len();
    }
    None
}

/// Room for a message, in any number of pieces; kept by whoever posts the receive, until it ends.
#[derive(Debug, Default)]
pub struct RecvList {
    /// None of them is empty, or a list.
    pieces: Vec<RecvBuf>,
    len: usize,
}

// SAFETY: of a shared list only addresses and lengths are read. What is written through them is promised by `RecvBuf::of_list`,
// of whose buffers each is used by one thread at a time.
unsafe impl Sync for RecvList {}

impl RecvList {
    /// No room.
    pub const NONE: RecvList = RecvList { pieces: Vec::new(), len: 0 };

    /// Takes these pieces instead of what it had; empty ones are left out. False: their lengths together overflow, or one is
    /// a list itself.
    pub fn fill(&mut self, pieces: impl Iterator<Item = RecvBuf>) -> bool {
        self.pieces.clear();
        self.len = 0;
        for buf in pieces.filter(|buf| !buf.is_empty()) {
            match self.len.checked_add(buf.len()) {
                Some(len) if buf.piece().is_some() => self.len = len,
                _ => return false,
            }
            self.pieces.push(buf);
        }
        true
    }

    /// The pieces, none of them empty.
    #[inline]
    pub fn pieces(&self) -> &[RecvBuf] {
        &self.pieces
    }

    /// Bytes in all.
    #[inline]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// No room at all.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The piece that byte `at` of the run lies in, its number, and how far into it.
    pub fn piece_at(&self, at: u64) -> Option<(usize, Piece, usize)> {
        piece_at(self.pieces.iter().filter_map(RecvBuf::piece), at)
    }

    /// Writes `from` at offset `at` of the run; what lies behind the end is dropped.
    pub(super) fn put(&self, at: u64, from: &[u8]) {
        for_each_overlap(self.pieces.iter().map(RecvBuf::len), at, from.len(), |piece, to, out, n| {
            self.pieces[piece].put_whole(to as u64, &from[out..out + n]);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_stay_inside() {
        let bytes = [1u8, 2, 3, 4];
        // SAFETY: `bytes` survives the buffer.
        let buf = unsafe { SendBuf::new(bytes.as_ptr(), 4) };
        let mut to = [0u8; 3];
        assert_eq!(buf.copy_to(2, &mut to), 2);
        assert_eq!(to, [3, 4, 0]);
        assert_eq!(buf.copy_to(4, &mut to) + buf.copy_to(usize::MAX, &mut to), 0);
    }

    #[test]
    fn a_list_is_one_run() {
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
