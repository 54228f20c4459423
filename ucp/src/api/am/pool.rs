//! Memory of active messages: chunks on which messages are copied side by side, and used again when all of a chunk are gone.
//! Used by `ams` and `am`. A message that is kept keeps its chunk, at most [`CHUNK`] bytes, from being used.

use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::rc::Rc;

use ucs::sync::scalar_load;

use crate::api::am::tag::POSTED_LEN;

/// Bytes of a chunk for messages that come in their turn.
const CHUNK: usize = 32 << 10;
/// Chunks looked at before a new one is made.
const LOOK: usize = 4;
/// Chunks of either kind that are known, in use or not; of more than these, the oldest go with their messages.
const KNOWN: usize = 96;

/// A stretch of memory. Parts of it are written while nobody has them, and only read afterwards.
struct Chunk(Box<[UnsafeCell<u8>]>);

impl Chunk {
    fn of(bytes: Box<[u8]>) -> Rc<Chunk> {
        let bytes = Box::into_raw(bytes) as *mut [UnsafeCell<u8>];
        // SAFETY: the box's own memory; a cell is laid out as what it holds.
        Rc::new(Chunk(unsafe { Box::from_raw(bytes) }))
    }

    fn zeroed(len: usize) -> Rc<Chunk> {
        Chunk::of(vec![0; len].into_boxed_slice())
    }

    #[inline(always)]
    fn at(&self, at: usize) -> *mut u8 {
        self.0.as_ptr().wrapping_add(at).cast_mut().cast()
    }
}

/// The bytes of one message. Nobody else has them.
pub(crate) struct AmBuf {
    /// Where they are, unless that is `word`.
    chunk: Option<Rc<Chunk>>,
    /// A message of one word, the commonest; else where it begins on its chunk.
    word: u64,
    len: u32,
}

/// Bytes of a message that is kept without a chunk.
const WORD: usize = size_of::<u64>();

impl AmBuf {
    /// A message's own memory. At most 4 GiB of it are used.
    pub(crate) fn own(bytes: Box<[u8]>) -> AmBuf {
        let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        AmBuf { chunk: Some(Chunk::of(bytes)), word: 0, len }
    }

    /// A copy of a message, if it has [`WORD`] bytes. // HOT
    #[inline(always)]
    pub(crate) fn of_word(message: &[u8]) -> Option<AmBuf> {
        let word = message.try_into().ok()?;
        Some(AmBuf { chunk: None, word: u64::from_ne_bytes(word), len: WORD as u32 })
    }

    /// The bytes. // HOT
    #[inline(always)]
    pub(crate) fn bytes(&self) -> &[u8] {
        let at = match &self.chunk {
            Some(chunk) => chunk.at(self.word as usize).cast_const(),
            None => std::ptr::from_ref(&self.word).cast(),
        };
        // SAFETY: `len` bytes there are initialised and this message's: on the chunk (`copy`, `room`, `own`, `cut`), where they
        // are written through `as_mut_ptr` only, whose users say that they hold no reference; or the word, then at most as
        // long as that (`of_word`, `cut`).
        unsafe { std::slice::from_raw_parts(at, self.len as usize) }
    }

    /// The same, read word by word. // HOT
    #[inline(always)]
    pub(crate) fn apart(self) -> AmBuf {
        let AmBuf { chunk, word, len } = self;
        AmBuf { chunk, word: scalar_load(word), len: scalar_load(len.into()) as u32 }
    }

    /// Bytes. // HOT
    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        self.len as usize
    }

    /// First byte of [room](AmPool::room), for a receive to write to; nobody looks at the bytes meanwhile.
    pub(crate) fn as_mut_ptr(&mut self) -> *mut u8 {
        match &self.chunk {
            Some(chunk) => chunk.at(self.word as usize),
            None => std::ptr::from_mut(&mut self.word).cast(),
        }
    }

    /// Its first `len` bytes.
    pub(crate) fn cut(self, len: usize) -> AmBuf {
        let len = (self.len as usize).min(len) as u32;
        AmBuf { len, ..self }
    }
}

/// The chunks of a worker.
#[derive(Default)]
pub(crate) struct AmPool {
    /// The one that is filled, and how far.
    open: Option<Rc<Chunk>>,
    filled: usize,
    /// Those that were filled, the oldest first.
    full: VecDeque<Rc<Chunk>>,
    /// Those for one message each.
    single: VecDeque<Rc<Chunk>>,
}

impl AmPool {
    /// A copy of a message of at most [`POSTED_LEN`] bytes. // HOT
    #[inline]
    pub(crate) fn copy(&mut self, message: &[u8]) -> AmBuf {
        let len = message.len();
        assert!(len <= POSTED_LEN);
        let chunk = match &self.open {
            Some(chunk) if self.filled + len <= CHUNK => chunk,
            _ => self.turn(),
        };
        let (chunk, at) = (chunk.clone(), self.filled);
        self.filled += len;
        // SAFETY: at + len <= CHUNK, and nobody has these bytes: the chunk was nobody's when its filling began; a packet lies on
        // no chunk.
        unsafe { ucs::mem::copy_bytes(message.as_ptr(), chunk.at(at), len) };
        AmBuf { chunk: Some(chunk), word: at as u64, len: len as u32 }
    }

    /// The open chunk is full: an empty one takes its place.
    #[cold]
    fn turn(&mut self) -> &Rc<Chunk> {
        self.filled = 0;
        let next = match self.open.take() {
            Some(chunk) if Rc::strong_count(&chunk) == 1 => chunk,
            Some(chunk) => {
                note(&mut self.full, chunk);
                vacant(&mut self.full).unwrap_or_else(|| Chunk::zeroed(CHUNK))
            }
            None => Chunk::zeroed(CHUNK),
        };
        self.open.insert(next)
    }

    /// Room for a message of [`POSTED_LEN`] bytes, alone on a chunk.
    pub(crate) fn room(&mut self) -> AmBuf {
        let chunk = vacant(&mut self.single).unwrap_or_else(|| Chunk::zeroed(POSTED_LEN));
        note(&mut self.single, chunk.clone());
        AmBuf { chunk: Some(chunk), word: 0, len: POSTED_LEN as u32 }
    }
}

fn note(chunks: &mut VecDeque<Rc<Chunk>>, chunk: Rc<Chunk>) {
    if chunks.len() == KNOWN {
        chunks.pop_front();
    }
    chunks.push_back(chunk);
}

/// Takes out a chunk that nobody else has, if one of the first ones is such.
fn vacant(chunks: &mut VecDeque<Rc<Chunk>>) -> Option<Rc<Chunk>> {
    for _ in 0..LOOK.min(chunks.len()) {
        let chunk = chunks.pop_front()?;
        if Rc::strong_count(&chunk) == 1 {
            return Some(chunk);
        }
        chunks.push_back(chunk);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn kept_messages_keep_their_bytes(steps in prop::collection::vec((prop_oneof![0usize..=POSTED_LEN, Just(WORD)], any::<u8>(), 0usize..40), 1..200)) {
            let (mut pool, mut kept) = (AmPool::default(), Vec::<(AmBuf, Vec<u8>)>::new());
            for (len, byte, gone) in steps {
                let bytes: Vec<u8> = (0..len).map(|n| byte.wrapping_add(n as u8)).collect();
                kept.push((AmBuf::of_word(&bytes).unwrap_or_else(|| pool.copy(&bytes)), bytes));
                if gone < kept.len() {
                    kept.swap_remove(gone);
                }
                for (buf, bytes) in &kept {
                    prop_assert_eq!(buf.bytes(), &bytes[..]);
                }
            }
        }
    }

    #[test]
    fn chunks_are_used_again() {
        let mut pool = AmPool::default();
        for _ in 0..1000 {
            let bufs: Vec<AmBuf> = (0..20).map(|_| pool.copy(&[1; 5000])).collect();
            let rooms = [pool.room(), pool.room()];
            drop((bufs, rooms));
        }
        assert!(pool.full.len() + pool.single.len() <= 12, "{} {}", pool.full.len(), pool.single.len());
    }

    #[test]
    fn what_was_received_is_cut_out() {
        let mut buf = AmPool::default().room();
        // SAFETY: the buf has room for them, and nobody looks.
        unsafe { buf.as_mut_ptr().copy_from_nonoverlapping(b"hello".as_ptr(), 5) };
        assert_eq!((buf.len(), buf.cut(5).bytes()), (POSTED_LEN, &b"hello"[..]));
        assert_eq!(AmBuf::own(vec![7; 3].into()).cut(9).bytes(), [7; 3]);
        assert_eq!(AmBuf::of_word(b"a word..").unwrap().cut(6).bytes(), b"a word");
        assert!(AmBuf::of_word(b"less").is_none());
    }
}
