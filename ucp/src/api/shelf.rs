//! Memory of active messages: boards on which messages are copied side by side, and used again when all of a board are gone.
//! Used by `ams` and `am`. A message that is kept keeps its board, at most [`BOARD`] bytes, from being used.

use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::rc::Rc;

use super::am::POSTED_LEN;

/// Bytes of a board for messages that come in their turn.
const BOARD: usize = 32 << 10;
/// Boards looked at before a new one is made.
const LOOK: usize = 4;
/// Boards of either kind that are known, in use or not; of more than these, the oldest go with their messages.
const KNOWN: usize = 96;

/// A stretch of memory. Parts of it are written while nobody has them, and only read afterwards.
struct Board(Box<[UnsafeCell<u8>]>);

impl Board {
    fn of(bytes: Box<[u8]>) -> Rc<Board> {
        let bytes = Box::into_raw(bytes) as *mut [UnsafeCell<u8>];
        // SAFETY: the box's own memory; a cell is laid out as what it holds.
        Rc::new(Board(unsafe { Box::from_raw(bytes) }))
    }

    fn zeroed(len: usize) -> Rc<Board> {
        Board::of(vec![0; len].into_boxed_slice())
    }

    #[inline(always)]
    fn at(&self, at: usize) -> *mut u8 {
        self.0.as_ptr().wrapping_add(at).cast_mut().cast()
    }
}

/// The bytes of one message. Nobody else has them.
pub(super) struct Book {
    board: Rc<Board>,
    at: u32,
    len: u32,
}

impl Book {
    /// A message's own memory. At most 4 GiB of it are used.
    pub(super) fn own(bytes: Box<[u8]>) -> Book {
        let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        Book { board: Board::of(bytes), at: 0, len }
    }

    /// The bytes. // HOT
    #[inline(always)]
    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: at + len lies within the board (`copy`, `room`, `own`, `cut`), whose bytes are initialised; they are this
        // book's, and written through `as_mut_ptr` only, whose users say that they hold no reference.
        unsafe { std::slice::from_raw_parts(self.board.at(self.at as usize), self.len as usize) }
    }

    /// Bytes. // HOT
    #[inline(always)]
    pub(super) fn len(&self) -> usize {
        self.len as usize
    }

    /// First byte, for a receive to write to; nobody looks at the bytes meanwhile.
    pub(super) fn as_mut_ptr(&mut self) -> *mut u8 {
        self.board.at(self.at as usize)
    }

    /// Its first `len` bytes.
    pub(super) fn cut(self, len: usize) -> Book {
        let len = (self.len as usize).min(len) as u32;
        Book { len, ..self }
    }
}

/// The boards of a worker.
#[derive(Default)]
pub(super) struct Shelf {
    /// The one that is filled, and how far.
    open: Option<Rc<Board>>,
    filled: usize,
    /// Those that were filled, the oldest first.
    full: VecDeque<Rc<Board>>,
    /// Those for one message each.
    single: VecDeque<Rc<Board>>,
}

impl Shelf {
    /// A copy of a message of at most [`POSTED_LEN`] bytes. // HOT
    #[inline]
    pub(super) fn copy(&mut self, message: &[u8]) -> Book {
        let len = message.len();
        assert!(len <= POSTED_LEN);
        let board = match &self.open {
            Some(board) if self.filled + len <= BOARD => board,
            _ => self.turn(),
        };
        let (board, at) = (board.clone(), self.filled);
        self.filled += len;
        let to = board.at(at);
        // The commonest message, one word, without a call.
        if let Some(word) = message.first_chunk::<8>().filter(|_| len == 8) {
            // SAFETY: at + 8 <= BOARD, and nobody has these bytes: the board was nobody's when its filling began.
            unsafe { to.cast::<[u8; 8]>().write(*word) };
        } else {
            // SAFETY: as above, of `len` bytes; a packet lies on no board.
            unsafe { std::ptr::copy_nonoverlapping(message.as_ptr(), to, len) };
        }
        Book { board, at: at as u32, len: len as u32 }
    }

    /// The open board is full: an empty one takes its place.
    #[cold]
    fn turn(&mut self) -> &Rc<Board> {
        self.filled = 0;
        let next = match self.open.take() {
            Some(board) if Rc::strong_count(&board) == 1 => board,
            Some(board) => {
                note(&mut self.full, board);
                vacant(&mut self.full).unwrap_or_else(|| Board::zeroed(BOARD))
            }
            None => Board::zeroed(BOARD),
        };
        self.open.insert(next)
    }

    /// Room for a message of [`POSTED_LEN`] bytes, alone on a board.
    pub(super) fn room(&mut self) -> Book {
        let board = vacant(&mut self.single).unwrap_or_else(|| Board::zeroed(POSTED_LEN));
        note(&mut self.single, board.clone());
        Book { board, at: 0, len: POSTED_LEN as u32 }
    }
}

fn note(boards: &mut VecDeque<Rc<Board>>, board: Rc<Board>) {
    if boards.len() == KNOWN {
        boards.pop_front();
    }
    boards.push_back(board);
}

/// Takes out a board that nobody else has, if one of the first ones is such.
fn vacant(boards: &mut VecDeque<Rc<Board>>) -> Option<Rc<Board>> {
    for _ in 0..LOOK.min(boards.len()) {
        let board = boards.pop_front()?;
        if Rc::strong_count(&board) == 1 {
            return Some(board);
        }
        boards.push_back(board);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn kept_messages_keep_their_bytes(steps in prop::collection::vec((0usize..=POSTED_LEN, any::<u8>(), 0usize..40), 1..200)) {
            let (mut shelf, mut kept) = (Shelf::default(), Vec::<(Book, Vec<u8>)>::new());
            for (len, byte, gone) in steps {
                let bytes: Vec<u8> = (0..len).map(|n| byte.wrapping_add(n as u8)).collect();
                kept.push((shelf.copy(&bytes), bytes));
                if gone < kept.len() {
                    kept.swap_remove(gone);
                }
                for (book, bytes) in &kept {
                    prop_assert_eq!(book.bytes(), &bytes[..]);
                }
            }
        }
    }

    #[test]
    fn boards_are_used_again() {
        let mut shelf = Shelf::default();
        for _ in 0..1000 {
            let books: Vec<Book> = (0..20).map(|_| shelf.copy(&[1; 5000])).collect();
            let rooms = [shelf.room(), shelf.room()];
            drop((books, rooms));
        }
        assert!(shelf.full.len() + shelf.single.len() <= 12, "{} {}", shelf.full.len(), shelf.single.len());
    }

    #[test]
    fn what_was_received_is_cut_out() {
        let mut book = Shelf::default().room();
        // SAFETY: the book has room for them, and nobody looks.
        unsafe { book.as_mut_ptr().copy_from_nonoverlapping(b"hello".as_ptr(), 5) };
        assert_eq!((book.len(), book.cut(5).bytes()), (POSTED_LEN, &b"hello"[..]));
        assert_eq!(Book::own(vec![7; 3].into()).cut(9).bytes(), [7; 3]);
    }
}
