//! Memory pool of active messages, copied one after another into chunks that are reused when empty.

#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::rc::Rc;

use ucs::sync::scalar_load;

use crate::api::am::tag::POSTED_LEN;

const CHUNK: usize = 32 << 10;
/// Alignment of messages in a chunk. Each ends before the next begins, so that the address behind an empty
/// one is no other's.
const ALIGN: usize = 16;
/// Largest alignment of data in a chunk. A message whose data has a larger one gets memory of its own.
const MAX_ALIGN: usize = POSTED_LEN;
/// Chunks checked for reuse before a new one is allocated.
const REUSE_SCAN: usize = 4;
/// Limit of each chunk list; beyond it the oldest chunk is freed with its last message.
const MAX_CHUNKS: usize = 96;

/// Memory of messages. A part is written before its first reader exists, then only read.
struct Chunk(Box<[UnsafeCell<u8>]>);

impl Chunk {
    fn of(bytes: Box<[u8]>) -> Rc<Chunk> {
        let bytes = Box::into_raw(bytes) as *mut [UnsafeCell<u8>];
        // SAFETY: the pointer comes from the box above, and `UnsafeCell<u8>` has the layout of `u8`.
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

/// The bytes of one message; no other buffer covers them.
pub(crate) struct AmBuf {
    chunk: Option<Rc<Chunk>>,
    /// The message itself if `chunk` is `None`, otherwise its offset there.
    word: u64,
    len: u32,
}

const WORD: usize = size_of::<u64>();

impl AmBuf {
    /// Wraps the memory of a message; at most 4 GiB of it are used.
    pub(crate) fn from_box(bytes: Box<[u8]>) -> AmBuf {
        let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        AmBuf { chunk: Some(Chunk::of(bytes)), word: 0, len }
    }

    /// Copies a message of exactly [`WORD`] bytes; `None` for other lengths.
    // HOT
    #[inline(always)]
    pub(crate) fn try_inline(message: &[u8]) -> Option<AmBuf> {
        let word = message.try_into().ok()?;
        Some(AmBuf { chunk: None, word: u64::from_ne_bytes(word), len: WORD as u32 })
    }

    /// Returns the message.
    // HOT
    #[inline(always)]
    pub(crate) fn bytes(&self) -> &[u8] {
        let at = match &self.chunk {
            Some(chunk) => chunk.at(self.word as usize).cast_const(),
            None => std::ptr::from_ref(&self.word).cast(),
        };
        // SAFETY: `len` bytes there are initialised, and nobody writes through `as_mut_ptr` meanwhile.
        unsafe { std::slice::from_raw_parts(at, self.len as usize) }
    }

    /// The message, if it lies in this value: a word.
    // HOT
    #[inline(always)]
    pub(crate) fn inline_word(&self) -> Option<[u8; WORD]> {
        self.chunk.is_none().then(|| self.word.to_ne_bytes())
    }

    /// Reloads the fields one by one; one wide load right behind their stores would stall.
    // HOT
    #[inline(always)]
    pub(crate) fn scalar_reload(self) -> AmBuf {
        let AmBuf { chunk, word, len } = self;
        AmBuf { chunk, word: scalar_load(word), len: scalar_load(len.into()) as u32 }
    }

    /// Length in bytes.
    // HOT
    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        self.len as usize
    }

    /// Returns the first byte of a buffer from [`AmPool::reserve`], to receive into while no reader exists.
    pub(crate) fn as_mut_ptr(&mut self) -> *mut u8 {
        match &self.chunk {
            Some(chunk) => chunk.at(self.word as usize),
            None => std::ptr::from_mut(&mut self.word).cast(),
        }
    }

    /// The message at a place where what follows `lead` bytes is aligned: in its memory, if that has room,
    /// else in memory of its own. `None`: no memory. No reader exists.
    #[cold]
    pub(crate) fn aligned(mut self, lead: usize, align: usize) -> Option<AmBuf> {
        let Some(chunk) = self.chunk.clone() else { return AmBuf::aligned_copy(self.bytes(), lead, align) };
        let (from, len) = (self.word as usize, self.len());
        let at = aligned_offset(&chunk, 0, lead, align);
        if at + len > chunk.0.len() {
            return AmBuf::aligned_copy(self.bytes(), lead, align);
        }
        // SAFETY: both ranges are of the chunk, which has this message only, and nobody reads it yet.
        unsafe { std::ptr::copy(chunk.at(from), chunk.at(at), len) };
        self.word = at as u64;
        Some(self)
    }

    /// A copy in memory of its own, in which what follows `lead` bytes is aligned. `None`: no memory.
    #[cold]
    fn aligned_copy(message: &[u8], lead: usize, align: usize) -> Option<AmBuf> {
        let room = message.len().checked_add(align)?;
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(room).ok()?;
        bytes.resize(room, 0);
        let chunk = Chunk::of(bytes.into_boxed_slice());
        let at = aligned_offset(&chunk, 0, lead, align);
        // SAFETY: the memory is new, and has room for the message at any offset below the alignment.
        unsafe { std::ptr::copy_nonoverlapping(message.as_ptr(), chunk.at(at), message.len()) };
        Some(AmBuf { chunk: Some(chunk), word: at as u64, len: message.len() as u32 })
    }

    pub(crate) fn truncate(self, len: usize) -> AmBuf {
        let len = (self.len as usize).min(len) as u32;
        AmBuf { len, ..self }
    }
}

/// Least offset of a message in a chunk, from `from` on, at which what follows `lead` bytes is aligned.
fn aligned_offset(chunk: &Chunk, from: usize, lead: usize, align: usize) -> usize {
    let data = chunk.at(from).addr().wrapping_add(lead);
    from + (data.wrapping_neg() & (align - 1))
}

pub(crate) struct AmPool {
    /// Alignment of the data of messages, bytes: a power of two.
    align: usize,
    current: Option<Rc<Chunk>>,
    used: usize,
    full: VecDeque<Rc<Chunk>>,
    /// Chunks of [`POSTED_LEN`] bytes, for one message each.
    single_message_chunks: VecDeque<Rc<Chunk>>,
}

impl AmPool {
    /// A pool of messages whose data has this alignment, a power of two.
    pub(crate) fn new(align: usize) -> AmPool {
        debug_assert!(align.is_power_of_two());
        AmPool {
            align,
            current: None,
            used: 0,
            full: VecDeque::new(),
            single_message_chunks: VecDeque::new(),
        }
    }

    /// Alignment of the data of messages, bytes.
    pub(crate) fn align(&self) -> usize {
        self.align
    }

    /// Copies a message of at most [`POSTED_LEN`] bytes, whose data is not aligned.
    // HOT
    #[inline]
    pub(crate) fn copy(&mut self, message: &[u8]) -> AmBuf {
        let len = message.len();
        assert!(len <= POSTED_LEN);
        let chunk = match &self.current {
            Some(chunk) if self.used + len < CHUNK => chunk,
            _ => self.next_chunk(),
        };
        let (chunk, at) = (chunk.clone(), self.used);
        self.used = (at + len + ALIGN) & !(ALIGN - 1);
        // SAFETY: at + len < CHUNK, no buffer covers these bytes yet, and packets do not lie on chunks.
        unsafe { ucs::mem::copy_bytes(message.as_ptr(), chunk.at(at), len) };
        AmBuf { chunk: Some(chunk), word: at as u64, len: len as u32 }
    }

    /// [`AmPool::copy`] of data that is aligned, and begins behind `lead` bytes. `None`: no memory.
    pub(crate) fn copy_aligned(&mut self, message: &[u8], lead: usize) -> Option<AmBuf> {
        let (len, align) = (message.len(), self.align);
        if len > POSTED_LEN || align > MAX_ALIGN {
            return AmBuf::aligned_copy(message, lead, align);
        }
        let chunk = match &self.current {
            Some(chunk) if self.used + len + align < CHUNK => chunk,
            _ => self.next_chunk(),
        };
        let chunk = chunk.clone();
        let at = aligned_offset(&chunk, self.used, lead, align);
        self.used = (at + len + ALIGN) & !(ALIGN - 1);
        // SAFETY: at + len < CHUNK, as the alignment moves it by less than `align`; no buffer covers these
        // bytes yet, and packets do not lie on chunks.
        unsafe { ucs::mem::copy_bytes(message.as_ptr(), chunk.at(at), len) };
        Some(AmBuf { chunk: Some(chunk), word: at as u64, len: len as u32 })
    }

    #[cold]
    fn next_chunk(&mut self) -> &Rc<Chunk> {
        self.used = 0;
        let next = match self.current.take() {
            Some(chunk) if Rc::strong_count(&chunk) == 1 => chunk,
            Some(chunk) => {
                push_bounded(&mut self.full, chunk);
                take_free(&mut self.full).unwrap_or_else(|| Chunk::zeroed(CHUNK))
            }
            None => Chunk::zeroed(CHUNK),
        };
        self.current.insert(next)
    }

    /// Reserves [`POSTED_LEN`] bytes on a chunk of their own, in which [`AmBuf::aligned`] can move them.
    pub(crate) fn reserve(&mut self) -> AmBuf {
        let spare = if self.align > MAX_ALIGN { 0 } else { self.align - 1 };
        let free = take_free(&mut self.single_message_chunks);
        let chunk = free.unwrap_or_else(|| Chunk::zeroed(POSTED_LEN + spare));
        push_bounded(&mut self.single_message_chunks, chunk.clone());
        AmBuf { chunk: Some(chunk), word: 0, len: POSTED_LEN as u32 }
    }
}

fn push_bounded(chunks: &mut VecDeque<Rc<Chunk>>, chunk: Rc<Chunk>) {
    if chunks.len() == MAX_CHUNKS {
        chunks.pop_front();
    }
    chunks.push_back(chunk);
}

/// Removes and returns a chunk without messages, if the first [`REUSE_SCAN`] have one.
fn take_free(chunks: &mut VecDeque<Rc<Chunk>>) -> Option<Rc<Chunk>> {
    for _ in 0..REUSE_SCAN.min(chunks.len()) {
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

    /// A message that a reserved buffer has received.
    fn received(pool: &mut AmPool, bytes: &[u8]) -> AmBuf {
        let mut buf = pool.reserve();
        // SAFETY: the buffer has room for the longest message, and nobody reads it yet.
        unsafe { buf.as_mut_ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        buf.truncate(bytes.len())
    }

    proptest! {
        #[test]
        fn kept_messages_keep_their_bytes(steps in prop::collection::vec((prop_oneof![0usize..=POSTED_LEN, Just(WORD)], any::<u8>(), 0usize..40), 1..200), align in (0..16u32).prop_map(|log| 1usize << log)) {
            let (mut pool, mut kept) = (AmPool::new(align), Vec::<(AmBuf, Vec<u8>)>::new());
            for (len, byte, gone) in steps {
                let bytes: Vec<u8> = (0..len).map(|n| byte.wrapping_add(n as u8)).collect();
                let lead = len / 3;
                let buf = match AmBuf::try_inline(&bytes).filter(|_| align == 1) {
                    Some(buf) => buf,
                    None if align == 1 => pool.copy(&bytes),
                    None if byte & 1 == 0 => pool.copy_aligned(&bytes, lead).unwrap(),
                    None => received(&mut pool, &bytes).aligned(lead, align).unwrap(),
                };
                prop_assert!(buf.bytes()[lead..].as_ptr().addr().is_multiple_of(align));
                kept.push((buf, bytes));
                if gone < kept.len() {
                    kept.swap_remove(gone);
                }
                for (buf, bytes) in &kept {
                    prop_assert_eq!(buf.bytes(), &bytes[..]);
                }
            }
        }
    }

    /// Callers of the C interface know a message by the address of its data, which may be empty.
    #[test]
    fn no_message_begins_where_another_one_ends() {
        let mut pool = AmPool::new(1);
        let bufs: Vec<AmBuf> = (0..2000).map(|n| pool.copy(&vec![1; n % 40])).collect();
        let begins: std::collections::HashSet<_> = bufs.iter().map(|buf| buf.bytes().as_ptr()).collect();
        assert_eq!(begins.len(), bufs.len());
        for buf in &bufs {
            let range = buf.bytes().as_ptr_range();
            assert!(buf.len() == 0 || !begins.contains(&range.end));
        }
    }

    #[test]
    fn chunks_are_used_again() {
        let mut pool = AmPool::new(64);
        for _ in 0..1000 {
            let bufs: Vec<AmBuf> = (0..20).map(|_| pool.copy_aligned(&[1; 5000], 3).unwrap()).collect();
            let reserved = [pool.reserve(), pool.reserve()];
            drop((bufs, reserved));
        }
        assert!(
            pool.full.len() + pool.single_message_chunks.len() <= 12,
            "{} {}",
            pool.full.len(),
            pool.single_message_chunks.len()
        );
    }

    #[test]
    fn truncate_keeps_the_received_bytes() {
        let mut buf = AmPool::new(1).reserve();
        // SAFETY: the buffer has more than 5 bytes, and no reference to them exists.
        unsafe { buf.as_mut_ptr().copy_from_nonoverlapping(b"hello".as_ptr(), 5) };
        assert_eq!((buf.len(), buf.truncate(5).bytes()), (POSTED_LEN, &b"hello"[..]));
        assert_eq!(AmBuf::from_box(vec![7; 3].into()).truncate(9).bytes(), [7; 3]);
        assert_eq!(AmBuf::try_inline(b"a word..").unwrap().truncate(6).bytes(), b"a word");
        assert!(AmBuf::try_inline(b"less").is_none());
    }
}
