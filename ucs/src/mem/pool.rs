//! Pool of byte buffers of one size: LIFO, grows in chunks up to a limit, stable addresses. One thread.

#![allow(unsafe_code)]

use super::map::{MapOpts, Mapping, MemError};
use super::page::{CACHE_LINE, round_up};

const USED: u32 = u32::MAX;
const NIL: u32 = u32::MAX - 1;

/// Stack of free numbers `0..len` in one array, for a pool whose memory is elsewhere.
#[derive(Debug, Default)]
pub struct FreeList {
    next: Vec<u32>,
    head: u32,
    used: u32,
}

impl FreeList {
    /// Numbers `0..len`, all free; the lowest comes first.
    pub fn new(len: u32) -> FreeList {
        let mut list = FreeList { next: Vec::new(), head: NIL, used: 0 };
        list.extend(len);
        list
    }

    /// Adds `more` free numbers after the highest one. Only to be called when that keeps them below 2^32 - 2.
    pub fn extend(&mut self, more: u32) {
        let from = self.next.len() as u32;
        let to = from.checked_add(more).filter(|&to| to < NIL).expect("fewer than 2^32 - 2 numbers");
        self.next.reserve(more as usize);
        for n in from..to {
            self.next.push(if n + 1 == to { self.head } else { n + 1 });
        }
        if more > 0 {
            self.head = from;
        }
    }

    /// Takes the number freed last.
    #[inline]
    // HOT
    pub fn take(&mut self) -> Option<u32> {
        let n = self.head;
        if n == NIL {
            return None;
        }
        self.head = std::mem::replace(&mut self.next[n as usize], USED);
        self.used += 1;
        Some(n)
    }

    /// Gives a number back. Giving back one that is not taken is an error in the program and panics.
    #[inline]
    // HOT
    pub fn give(&mut self, n: u32) {
        let next = &mut self.next[n as usize];
        assert_eq!(*next, USED, "slot {n} freed twice");
        *next = self.head;
        self.head = n;
        self.used -= 1;
    }

    /// True while number `n` is taken; false for numbers out of range.
    #[inline]
    pub fn is_used(&self, n: u32) -> bool {
        self.next.get(n as usize) == Some(&USED)
    }

    /// How many are taken.
    #[inline]
    pub const fn used(&self) -> u32 {
        self.used
    }

    /// How many numbers there are, free or taken.
    #[inline]
    pub const fn total(&self) -> u32 {
        self.next.len() as u32
    }
}

/// Shape of a pool.
#[derive(Clone, Copy, Debug)]
pub struct PoolShape {
    /// Usable bytes of a slot.
    pub slot_len: usize,
    /// Alignment of each slot's first byte: a power of two, at most a page.
    pub align: usize,
    /// Slots made at a time (rounded up to a power of two).
    pub chunk_slots: u32,
    /// Most slots in all.
    pub max_slots: u32,
    /// How chunks are mapped.
    pub map: MapOpts,
}

impl PoolShape {
    /// Cache-line aligned slots in chunks of 64, on ordinary pages, at most `max_slots`.
    pub fn new(slot_len: usize, max_slots: u32) -> PoolShape {
        PoolShape {
            slot_len,
            align: CACHE_LINE,
            chunk_slots: 64.min(max_slots.max(1)),
            max_slots,
            map: MapOpts::default(),
        }
    }
}

/// Names one buffer of the pool that gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BufId(u32);

impl BufId {
    /// As a plain number: dense from 0.
    #[inline]
    pub const fn raw(self) -> u32 {
        self.0
    }

    /// From a number given by [`raw`](Self::raw); others make the pool panic, so never use a peer's.
    #[inline]
    pub const fn from_raw(raw: u32) -> BufId {
        BufId(raw)
    }
}

/// State of a pool at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct PoolStats {
    /// Slots made so far.
    pub slots: u32,
    /// Slots in use.
    pub in_use: u32,
    /// Most slots ever in use.
    pub peak: u32,
    /// Calls of `alloc` that found nothing.
    pub refused: u64,
    /// Bytes mapped.
    pub bytes: usize,
}

/// Pool of buffers of one size.
#[derive(Debug)]
pub struct Pool {
    shape: PoolShape,
    stride: usize,
    chunk_shift: u32,
    chunks: Vec<Mapping>,
    free: FreeList,
    peak: u32,
    refused: u64,
}

impl Pool {
    /// An empty pool; the first chunk comes with the first `alloc` or with [`grow`](Self::grow).
    pub fn new(shape: PoolShape) -> Result<Pool, MemError> {
        let bad = MemError::BadLength { len: shape.slot_len };
        if shape.slot_len == 0 || !shape.align.is_power_of_two() || shape.align > super::page::page_size() {
            return Err(bad);
        }
        let Some(stride) = round_up(shape.slot_len, shape.align) else { return Err(bad) };
        let chunk = shape.chunk_slots.max(1).checked_next_power_of_two().ok_or(bad.clone())?;
        stride.checked_mul(chunk as usize).ok_or(bad)?;
        Ok(Pool {
            shape,
            stride,
            chunk_shift: chunk.trailing_zeros(),
            chunks: Vec::new(),
            free: FreeList::new(0),
            peak: 0,
            refused: 0,
        })
    }

    /// Adds a chunk and gives its memory, to be registered before use. At the limit: `Ok(None)`.
    #[cold]
    pub fn grow(&mut self) -> Result<Option<&Mapping>, MemError> {
        let slots = (1u32 << self.chunk_shift).min(self.shape.max_slots - self.free.total());
        if slots == 0 {
            return Ok(None);
        }
        let map = Mapping::new(self.stride << self.chunk_shift, self.shape.map)?;
        self.chunks.push(map);
        self.free.extend(slots);
        Ok(self.chunks.last())
    }

    /// Allocates a buffer with undefined contents; `None` at the limit or without memory.
    #[inline]
    // HOT
    pub fn alloc(&mut self) -> Option<BufId> {
        if let Some(n) = self.free.take() {
            self.peak = self.peak.max(self.free.used());
            return Some(BufId(n));
        }
        self.alloc_slow()
    }

    #[cold]
    fn alloc_slow(&mut self) -> Option<BufId> {
        if let Err(e) = self.grow() {
            tracing::warn!("buffer pool of {} byte slots: {e}", self.shape.slot_len);
        }
        let taken = self.free.take();
        match taken {
            Some(_) => self.peak = self.peak.max(self.free.used()),
            None => self.refused += 1,
        }
        taken.map(BufId)
    }

    /// Gives a buffer back; freeing one twice panics.
    #[inline]
    // HOT
    pub fn free(&mut self, id: BufId) {
        self.free.give(id.0);
    }

    /// First byte, valid for [`slot_len`](Self::slot_len) bytes until the buffer is freed.
    #[inline]
    // HOT
    pub fn ptr(&self, id: BufId) -> *mut u8 {
        let chunk = &self.chunks[(id.0 >> self.chunk_shift) as usize];
        let slot = (id.0 & ((1 << self.chunk_shift) - 1)) as usize;
        chunk.as_ptr().wrapping_add(slot * self.stride)
    }

    /// Bytes of a used buffer; panics otherwise. While a device writes into it, use [`ptr`](Self::ptr).
    #[inline]
    pub fn slice(&self, id: BufId) -> &[u8] {
        assert!(self.free.is_used(id.0));
        // SAFETY: the slot is inside a live chunk (ptr indexes it), slot_len <= stride, chunks are
        // zero-initialised and private; &self excludes slice_mut.
        unsafe { std::slice::from_raw_parts(self.ptr(id), self.shape.slot_len) }
    }

    /// Bytes of a buffer in use, to write; panics when it is not.
    #[inline]
    pub fn slice_mut(&mut self, id: BufId) -> &mut [u8] {
        assert!(self.free.is_used(id.0));
        // SAFETY: as in `slice`; &mut self excludes every other slice made here.
        unsafe { std::slice::from_raw_parts_mut(self.ptr(id), self.shape.slot_len) }
    }

    /// Usable bytes of a slot.
    #[inline]
    pub const fn slot_len(&self) -> usize {
        self.shape.slot_len
    }

    /// Mapped chunks. Slot `n` lies in chunk `n / chunk_slots`, rounded up to a power of two.
    pub fn chunks(&self) -> &[Mapping] {
        &self.chunks
    }

    /// Chunk of a buffer, as an index into [`chunks`](Self::chunks): finds a registration made per chunk.
    #[inline]
    // HOT
    pub const fn chunk_of(&self, id: BufId) -> usize {
        (id.0 >> self.chunk_shift) as usize
    }

    /// Figures.
    pub fn stats(&self) -> PoolStats {
        PoolStats {
            slots: self.free.total(),
            in_use: self.free.used(),
            peak: self.peak,
            refused: self.refused,
            bytes: self.chunks.iter().map(Mapping::len).sum(),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn grows_in_chunks_up_to_the_limit() {
        let mut pool = Pool::new(PoolShape { chunk_slots: 4, ..PoolShape::new(100, 10) }).unwrap();
        let ids: Vec<BufId> = std::iter::from_fn(|| pool.alloc()).collect();
        assert_eq!(ids.len(), 10);
        let stats = pool.stats();
        assert_eq!((stats.slots, stats.in_use, stats.peak, stats.refused), (10, 10, 10, 1));
        assert_eq!(pool.chunks().len(), 3);
        assert_eq!(pool.chunk_of(ids[9]), 2);
        for &id in &ids {
            assert_eq!(pool.ptr(id) as usize % CACHE_LINE, 0);
            pool.slice_mut(id).fill(id.raw() as u8);
        }
        assert!(ids.iter().all(|&id| pool.slice(id).iter().all(|&b| b == id.raw() as u8)));
        pool.free(ids[3]);
        assert_eq!(pool.alloc(), Some(ids[3]), "last freed is used first");
    }

    #[test]
    #[should_panic(expected = "freed twice")]
    fn freeing_twice_is_noticed() {
        let mut pool = Pool::new(PoolShape::new(8, 2)).unwrap();
        let id = pool.alloc().unwrap();
        pool.free(id);
        pool.free(id);
    }

    #[test]
    fn bad_shapes_are_refused() {
        assert!(Pool::new(PoolShape::new(0, 1)).is_err());
        assert!(Pool::new(PoolShape { align: 3, ..PoolShape::new(8, 1) }).is_err());
        assert!(Pool::new(PoolShape { chunk_slots: u32::MAX, ..PoolShape::new(8, 1) }).is_err());
        assert!(Pool::new(PoolShape::new(usize::MAX, 1)).is_err());
        assert!(Pool::new(PoolShape::new(8, 0)).unwrap().alloc().is_none());
    }

    proptest! {
        #[test]
        fn never_gives_a_number_twice(len in 0u32..20, steps in prop::collection::vec(any::<(bool, u8)>(), 0..200)) {
            let mut list = FreeList::new(len);
            let mut held: Vec<u32> = Vec::new();
            for (take, at) in steps {
                if take {
                    match list.take() {
                        Some(n) => { prop_assert!(n < len && !held.contains(&n)); held.push(n); }
                        None => prop_assert_eq!(held.len() as u32, len),
                    }
                } else if !held.is_empty() {
                    list.give(held.swap_remove(at as usize % held.len()));
                }
                prop_assert_eq!(list.used() as usize, held.len());
                prop_assert!(held.iter().all(|&n| list.is_used(n)));
            }
        }
    }
}
