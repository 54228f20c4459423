//! A slab whose ids carry a generation: kept or forged ids are stale. Ids travel on the wire; elements never
//! move.

use std::fmt;

/// Id of an element: slot index low, generation high; never zero ([`SlotId::NONE`]), checked at use.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SlotId(u32);

impl SlotId {
    /// An id that never names an element.
    pub const NONE: SlotId = SlotId(0);

    /// The 32 bits that go on the wire.
    #[inline]
    pub const fn raw(self) -> u32 {
        self.0
    }

    /// An id as read from the wire: a claim, checked at every use.
    #[inline]
    pub const fn from_raw(raw: u32) -> SlotId {
        SlotId(raw)
    }
}

impl fmt::Debug for SlotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl fmt::Display for SlotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// Elements are kept in chunks of this many, allocated whole: growing never moves what is there.
const CHUNK_SHIFT: u32 = 8;
const CHUNK: usize = 1 << CHUNK_SHIFT;
const NIL: u32 = u32::MAX;

enum Body<T> {
    Free { next: u32 },
    Full(T),
}

struct Entry<T> {
    generation: u32,
    body: Body<T>,
}

/// Ids of all 32 bits: the `HALF` of [`Slots`] unless said.
pub const WHOLE: u8 = 0;
/// Ids whose top bit is clear only.
pub const LOWER: u8 = 1;
/// Ids whose top bit is set only.
pub const UPPER: u8 = 2;
/// The half of [`LOWER`] whose second bit from the top is clear.
pub const LOWER_EVEN: u8 = 3;
/// The half of [`LOWER`] whose second bit from the top is set.
pub const LOWER_ODD: u8 = 4;

/// Slab with generation ids: `INDEX_BITS` of 32 bits name the slot, the rest count its reuses.
///
/// The slot freed last is used next, so a stale id is mistaken for a live one only after a multiple of 4095
/// reuses (default split). [`LOWER`] and [`UPPER`] tables never issue the same id and have half the
/// generations.
pub struct Slots<T, const INDEX_BITS: u32 = 20, const HALF: u8 = WHOLE> {
    chunks: Vec<Box<Chunk<T>>>,
    free: u32,
    len: u32,
    limit: u32,
    /// Generation at which slots of a new chunk begin: none that a chunk given back has issued.
    first_generation: u32,
}

/// Of a fixed length, so that the low bits of an index need no check.
type Chunk<T> = [Entry<T>; CHUNK];

impl<T, const INDEX_BITS: u32, const HALF: u8> Slots<T, INDEX_BITS, HALF> {
    const VALID_SPLIT: () = {
        let most = if HALF == LOWER_EVEN || HALF == LOWER_ODD { 29 } else { 30 };
        assert!(
            INDEX_BITS >= 1 && INDEX_BITS <= most,
            "index needs 1 to 30 bits, or 29 where halves are halved"
        );
    };
    const INDEX_MASK: u32 = (1 << INDEX_BITS) - 1;
    /// First generation and the one behind the last. Zero is skipped: id 0 stays "none".
    const GENERATIONS: (u32, u32) = match HALF {
        LOWER => (1, 1 << (31 - INDEX_BITS)),
        LOWER_EVEN => (1, 1 << (30 - INDEX_BITS)),
        LOWER_ODD => (1 << (30 - INDEX_BITS), 1 << (31 - INDEX_BITS)),
        UPPER => (1 << (31 - INDEX_BITS), 1 << (32 - INDEX_BITS)),
        _ => (1, 1 << (32 - INDEX_BITS)),
    };
    /// Most elements that this split can name.
    pub const MAX: usize = 1 << INDEX_BITS;

    /// Empty, allowed to grow up to [`Self::MAX`] elements. Allocates nothing.
    pub const fn new() -> Self {
        let () = Self::VALID_SPLIT;
        let first_generation = Self::GENERATIONS.0;
        Slots { chunks: Vec::new(), free: NIL, len: 0, limit: 1 << INDEX_BITS, first_generation }
    }

    /// Empty, allowed to hold at most `limit` elements (or [`Self::MAX`], whichever is smaller).
    pub fn with_limit(limit: usize) -> Self {
        let mut slots = Self::new();
        slots.limit = limit.min(Self::MAX) as u32;
        slots
    }

    /// Makes room for at least `n` elements in all, so that inserting up to there allocates nothing.
    pub fn reserve_total(&mut self, n: usize) {
        let chunks = n.min(self.limit as usize).div_ceil(CHUNK);
        while self.chunks.len() < chunks {
            self.add_chunk();
        }
    }

    /// Number of elements that fit without an allocation.
    #[inline]
    pub const fn capacity(&self) -> usize {
        self.chunks.len() * CHUNK
    }

    /// Gives memory beyond that of `keep` elements back, if there is no element. Stale ids stay stale.
    #[cold]
    pub fn trim(&mut self, keep: usize) {
        let keep = keep.div_ceil(CHUNK);
        if self.len > 0 || self.chunks.len() <= keep {
            return;
        }
        let dropped = self.chunks.drain(keep..);
        let newest = dropped.filter_map(|chunk| chunk.iter().map(|entry| entry.generation).max()).max();
        self.first_generation = self.first_generation.max(newest.unwrap_or_default());
        self.chunks.shrink_to_fit();
        self.free = NIL;
        for index in (0..self.limit.min((self.chunks.len() * CHUNK) as u32)).rev() {
            let next = self.free;
            self.entry_mut(index).body = Body::Free { next };
            self.free = index;
        }
    }

    /// Number of elements.
    #[inline]
    pub const fn len(&self) -> usize {
        self.len as usize
    }

    /// True when there is no element.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Number of elements that can be inserted before one is removed.
    #[inline]
    pub const fn room(&self) -> usize {
        (self.limit - self.len) as usize
    }

    /// True when no further element can be inserted before one is removed.
    #[inline]
    pub const fn is_full(&self) -> bool {
        self.len == self.limit
    }

    /// Slot number of an id: dense, below [`Self::MAX`], usable as index of a side table.
    #[inline]
    pub const fn index_of(id: SlotId) -> usize {
        (id.0 & Self::INDEX_MASK) as usize
    }

    /// Inserts; gives the value back when the limit is reached.
    #[inline]
    // HOT
    pub fn insert(&mut self, value: T) -> Result<SlotId, T> {
        if self.free == NIL && !self.grow() {
            return Err(value);
        }
        Ok(self.insert_free(value))
    }

    /// Inserts what `make` builds from its own id; `None` (and `make` not called) when the limit is reached.
    /// Inlined, so that what `make` captures stays in registers.
    // HOT
    #[inline(always)]
    pub fn insert_with(&mut self, make: impl FnOnce(SlotId) -> T) -> Option<SlotId> {
        if self.free == NIL && !self.grow() {
            return None;
        }
        let index = self.free;
        let entry = self.entry_mut(index);
        let Body::Free { next } = entry.body else { unreachable!("free list names a used slot") };
        let id = Self::id(index, entry.generation);
        entry.body = Body::Full(make(id));
        self.free = next;
        self.len += 1;
        Some(id)
    }

    #[inline]
    fn insert_free(&mut self, value: T) -> SlotId {
        let index = self.free;
        let entry = self.entry_mut(index);
        let Body::Free { next } = entry.body else { unreachable!("free list names a used slot") };
        entry.body = Body::Full(value);
        let id = Self::id(index, entry.generation);
        self.free = next;
        self.len += 1;
        id
    }

    #[cold]
    fn grow(&mut self) -> bool {
        if self.len < self.limit {
            self.add_chunk();
        }
        self.free != NIL
    }

    fn add_chunk(&mut self) {
        let first = (self.chunks.len() * CHUNK) as u32;
        let last = (first + CHUNK as u32).min(self.limit) - 1;
        let next = |index| if index < last { index + 1 } else { self.free };
        let generation = self.first_generation;
        let free = |index| Entry { generation, body: Body::Free { next: next(index) } };
        let chunk: Box<[Entry<T>]> = (first..first + CHUNK as u32).map(free).collect();
        match chunk.try_into() {
            Ok(chunk) => self.chunks.push(chunk),
            Err(_) => unreachable!("as many as a chunk has"),
        }
        self.free = first;
    }

    #[inline]
    const fn id(index: u32, generation: u32) -> SlotId {
        SlotId(generation << INDEX_BITS | index)
    }

    #[inline]
    fn entry_mut(&mut self, index: u32) -> &mut Entry<T> {
        &mut self.chunks[index as usize / CHUNK][index as usize % CHUNK]
    }

    /// The element named by `id`, if it is still that one.
    #[inline]
    // HOT
    pub fn get(&self, id: SlotId) -> Option<&T> {
        let index = Self::index_of(id);
        match &self.chunks.get(index / CHUNK)?[index % CHUNK] {
            Entry { generation, body: Body::Full(value) } if *generation == id.0 >> INDEX_BITS => Some(value),
            _ => None,
        }
    }

    /// The element named by `id`, if it is still that one.
    #[inline]
    // HOT
    pub fn get_mut(&mut self, id: SlotId) -> Option<&mut T> {
        let index = Self::index_of(id);
        match &mut self.chunks.get_mut(index / CHUNK)?[index % CHUNK] {
            Entry { generation, body: Body::Full(value) } if *generation == id.0 >> INDEX_BITS => Some(value),
            _ => None,
        }
    }

    /// The element in this slot, whatever its id.
    #[inline]
    // HOT
    pub fn at(&self, index: usize) -> Option<&T> {
        match &self.chunks.get(index / CHUNK)?[index % CHUNK].body {
            Body::Full(value) => Some(value),
            Body::Free { .. } => None,
        }
    }

    /// The element in the slot of this number, to change.
    #[inline]
    // HOT
    pub fn at_mut(&mut self, index: usize) -> Option<&mut T> {
        match &mut self.chunks.get_mut(index / CHUNK)?[index % CHUNK].body {
            Body::Full(value) => Some(value),
            Body::Free { .. } => None,
        }
    }

    /// The id of the element in the slot of this number.
    #[inline]
    pub fn id_at(&self, index: usize) -> Option<SlotId> {
        match &self.chunks.get(index / CHUNK)?[index % CHUNK] {
            Entry { generation, body: Body::Full(_) } => Some(Self::id(index as u32, *generation)),
            Entry { .. } => None,
        }
    }

    /// True when `id` names a live element.
    #[inline]
    pub fn contains(&self, id: SlotId) -> bool {
        self.get(id).is_some()
    }

    /// Takes the element out; its id, and every copy of it, is stale from now on.
    #[inline]
    // HOT
    pub fn remove(&mut self, id: SlotId) -> Option<T> {
        let index = Self::index_of(id);
        let entry = &mut self.chunks.get_mut(index / CHUNK)?[index % CHUNK];
        if entry.generation != id.0 >> INDEX_BITS || matches!(entry.body, Body::Free { .. }) {
            return None;
        }
        entry.generation = Self::next_generation(entry.generation);
        let body = std::mem::replace(&mut entry.body, Body::Free { next: self.free });
        self.free = index as u32;
        self.len -= 1;
        match body {
            Body::Full(value) => Some(value),
            Body::Free { .. } => None,
        }
    }

    /// Drops the element where it is, as [`Slots::remove`] would after moving it out. False if `id` is stale.
    #[inline]
    // HOT
    pub fn discard(&mut self, id: SlotId) -> bool {
        let (index, free) = (Self::index_of(id), self.free);
        match self.chunks.get_mut(index / CHUNK).map(|chunk| &mut chunk[index % CHUNK]) {
            Some(entry) if entry.generation == id.0 >> INDEX_BITS && matches!(entry.body, Body::Full(_)) => {
                entry.generation = Self::next_generation(entry.generation);
                entry.body = Body::Free { next: free };
            }
            _ => return false,
        }
        self.free = index as u32;
        self.len -= 1;
        true
    }

    /// The element in this slot, to look at and perhaps drop in place.
    // HOT
    #[inline(always)]
    pub fn occupied(&mut self, index: usize) -> Option<OccupiedSlot<'_, T, INDEX_BITS, HALF>> {
        let entry = &mut self.chunks.get_mut(index / CHUNK)?[index % CHUNK];
        match entry.body {
            Body::Full(_) => {
                Some(OccupiedSlot { entry, index: index as u32, free: &mut self.free, len: &mut self.len })
            }
            Body::Free { .. } => None,
        }
    }

    /// Runs `f` on the element and [renews](Self::renew) it if `f` answers. `None`: stale or unanswered.
    // HOT
    #[inline]
    pub fn renew_if<R>(&mut self, id: SlotId, f: impl FnOnce(&mut T) -> Option<R>) -> Option<(SlotId, R)> {
        let index = Self::index_of(id);
        match &mut self.chunks.get_mut(index / CHUNK)?[index % CHUNK] {
            Entry { generation, body: Body::Full(value) } if *generation == id.0 >> INDEX_BITS => {
                let answer = f(value)?;
                *generation = Self::next_generation(*generation);
                Some((Self::id(index as u32, *generation), answer))
            }
            _ => None,
        }
    }

    /// Gives the element a new id in place. `None` if `id` is stale.
    // HOT
    #[inline]
    pub fn renew(&mut self, id: SlotId) -> Option<(SlotId, &mut T)> {
        let index = Self::index_of(id);
        match &mut self.chunks.get_mut(index / CHUNK)?[index % CHUNK] {
            Entry { generation, body: Body::Full(value) } if *generation == id.0 >> INDEX_BITS => {
                *generation = Self::next_generation(*generation);
                Some((Self::id(index as u32, *generation), value))
            }
            _ => None,
        }
    }

    #[inline]
    const fn next_generation(generation: u32) -> u32 {
        let next = generation + 1;
        if next == Self::GENERATIONS.1 { Self::GENERATIONS.0 } else { next }
    }

    /// Removes every element, in order of slot number, handing each to `each`. All ids become stale.
    pub fn drain(&mut self, mut each: impl FnMut(SlotId, T)) {
        let ids: Vec<SlotId> = self.iter().map(|(id, _)| id).collect();
        for id in ids {
            if let Some(value) = self.remove(id) {
                each(id, value);
            }
        }
    }

    /// All elements in order of slot number.
    pub fn iter(&self) -> impl Iterator<Item = (SlotId, &T)> {
        self.chunks.iter().flat_map(|chunk| chunk.iter()).enumerate().filter_map(
            |(index, entry)| match &entry.body {
                Body::Full(value) => Some((Self::id(index as u32, entry.generation), value)),
                Body::Free { .. } => None,
            },
        )
    }

    /// All elements in order of slot number, to change in place.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (SlotId, &mut T)> {
        self.chunks.iter_mut().flat_map(|chunk| chunk.iter_mut()).enumerate().filter_map(|(index, entry)| {
            match &mut entry.body {
                Body::Full(value) => Some((Self::id(index as u32, entry.generation), value)),
                Body::Free { .. } => None,
            }
        })
    }
}

impl<T, const INDEX_BITS: u32, const HALF: u8> Default for Slots<T, INDEX_BITS, HALF> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: fmt::Debug, const INDEX_BITS: u32, const HALF: u8> fmt::Debug for Slots<T, INDEX_BITS, HALF> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

/// An element that may end where it is: see [`Slots::occupied`].
pub struct OccupiedSlot<'a, T, const INDEX_BITS: u32, const HALF: u8> {
    entry: &'a mut Entry<T>,
    index: u32,
    free: &'a mut u32,
    len: &'a mut u32,
}

impl<T, const INDEX_BITS: u32, const HALF: u8> OccupiedSlot<'_, T, INDEX_BITS, HALF> {
    /// The element.
    // HOT
    #[inline(always)]
    pub fn element(&mut self) -> &mut T {
        match &mut self.entry.body {
            Body::Full(value) => value,
            Body::Free { .. } => unreachable!("it is looked at because it is there"),
        }
    }

    /// Drops it; its id is stale from now on.
    // HOT
    #[inline(always)]
    pub fn end(self) {
        self.entry.generation = Slots::<T, INDEX_BITS, HALF>::next_generation(self.entry.generation);
        self.entry.body = Body::Free { next: *self.free };
        *self.free = self.index;
        *self.len -= 1;
    }
}

#[cfg(test)]
mod tests;
