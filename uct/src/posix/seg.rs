//! Layout of an interface's segment, and raw access to its parts.
//! Made by the interface (`rx.rs`), attached by peers (`peer.rs`). Never makes a reference to packet bytes; atomics
//! and raw pointers only, each inside the mapping whatever the segment contains.
//!
//! ```text
//! 0      Header       never changes after creation, but for the two words of `Live`
//! 128    head         next ticket to claim; written by writers
//! 256    tail         first ticket not yet released, and behind it whether messages are looked at; written by the reader
//! 384    writers      one line each: who, and which ticket it is going for
//! ...    slot_of      slot bound to each place; written by the reader, seldom
//! ...    cells        192 bytes each
//! ...    slots        as long as the longest message, one bound to each place, the others spare
//! ```

use super::fifo;
use super::lines::Writer;
use super::porter::Name;
use crate::api::ConnectError;
use std::mem::{offset_of, size_of};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use ucs::mem::{MapOpts, MemError, SharedMap, SharedMem};

/// Longest packet (id byte included) that travels inside its cell.
pub const INLINE: usize = 176;
/// Longest packet of an interface whose name does not say otherwise: the default of `UCX_POSIX_SEG_SIZE`. Part of what
/// addresses mean, so another value is another [`VERSION`].
pub const USUAL_SLOT: usize = 16640;
/// Longest packet that fits the cell's first cache line.
pub const FIRST_LINE: usize = 48;
/// Layout version; a peer with another one is refused.
pub const VERSION: u32 = 6;

const MAGIC: u64 = u64::from_le_bytes(*b"uctposix");

/// Marks in a cell's word, beside the packet's length.
pub const LEN_BITS: u32 = 24;
/// The packet is in a slot, not in the cell.
pub const IN_SLOT: u32 = 1 << LEN_BITS;
/// In the two bits above it: the packet's [spread](Lay::spread).
const SPREAD_SHIFT: u32 = LEN_BITS + 1;
/// In the five above those, and that is all: bytes of the slot before the packet.
const LEAD_SHIFT: u32 = SPREAD_SHIFT + 2;
/// Most of them.
const MAX_LEAD: usize = 31;
/// Most places of a cell.
const MOST_PLACES: u32 = 4;

/// What every process must agree on.
#[repr(C)]
pub struct Header {
    magic: u64,
    version: u32,
    reserved: u32,
    /// What the interface is called.
    name: u64,
    cells: u32,
    places: u32,
    slots: u32,
    slot_len: u32,
    writers: u32,
    /// [`fifo::ARMED`], [`fifo::CLOSED`].
    pub state: AtomicU32,
}

/// A message in the FIFO. A packet of up to 48 bytes lies in one cache line with its word.
///
/// Three lines and not two or four: the first lines of cells, which every message goes through, lie in all sets of a first-level cache
/// then, and not in half or a quarter of them, where those of two rings, ours and a peer's, leave too little room for others.
#[repr(C, align(64))]
pub struct CellMem {
    /// Sequence in the low half, length and marks in the high half.
    pub word: AtomicU64,
    /// Interface id of the sender.
    pub source: AtomicU64,
    packet: [u8; INLINE],
}

const _: () = {
    assert!(size_of::<Header>() <= 64);
    assert!(size_of::<Writer>() == 64);
    assert!(size_of::<CellMem>() == 192);
    assert!(offset_of!(CellMem, packet) == 16);
    assert!(offset_of!(CellMem, packet) + FIRST_LINE == 64);
    assert!(u32::MAX >> LEAD_SHIFT == MAX_LEAD as u32);
};

const HEAD: usize = 128;
const TAIL: usize = 256;
const WRITERS: usize = 384;

/// The sizes that fix a segment's layout.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// Cells, a power of two.
    pub cells: u32,
    /// Places that slots are bound to, a power of two. Place `p` is for tickets of cell `p % cells`.
    pub places: u32,
    /// Slots, as many as places or more.
    pub slots: u32,
    /// Longest packet, id byte included.
    pub slot_len: u32,
    /// Writers' lines.
    pub writers: u32,
}

/// How a packet lies in slots: marks of a cell's word. What is not known when it is packed is taken from the one before, so
/// it says what is fast, not what is right.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Lay(u32);

impl Lay {
    /// The best for packets of `len` bytes, which are looked at or, as the reader says, [passed over](super::looks).
    ///
    /// The spread: over how many places a writer goes round, two to the power of it for each cell. Lines that are written again
    /// while both processors still hold them are slow to come on some machines, and all go faster where a packet's lines have
    /// left for the cache that the two share. So much is gone round that this is so; packets so short that it takes too many
    /// stay close together, and so do those of which a few fill a cache. Those that nobody reads stay where they are, in ours.
    ///
    /// The lead: the packet ends where 32 bytes end, so a payload of as many or a multiple begins there too, whatever is before
    /// it. Copies that straddle lines take a tenth to a fourth longer, at either end.
    pub fn of(len: usize, passed_over: bool) -> Lay {
        let spread = match len {
            _ if passed_over => 0,
            0..=2048 => 0,
            2049..=8192 => 2,
            _ => 1,
        };
        let lead = len.wrapping_neg() & MAX_LEAD;
        Lay(spread << SPREAD_SHIFT | (lead as u32) << LEAD_SHIFT)
    }

    /// What a cell's word says, which may come from a peer. // HOT
    #[inline(always)]
    pub fn in_word(about: u32) -> Lay {
        Lay(about & !((1 << SPREAD_SHIFT) - 1))
    }

    /// As marks of a cell's word. // HOT
    #[inline(always)]
    pub fn marks(self) -> u32 {
        self.0
    }

    /// 0 to 3.
    #[inline(always)]
    fn spread(self) -> u32 {
        (self.0 >> SPREAD_SHIFT) & 3
    }

    /// 0 to [`MAX_LEAD`]. // HOT
    #[inline(always)]
    pub fn lead(self) -> usize {
        (self.0 >> LEAD_SHIFT) as usize
    }
}

/// Where the parts begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Parts {
    slot_of: usize,
    cells: usize,
    slots: usize,
    stride: usize,
    end: usize,
}

impl Shape {
    /// How many places there are for so many cells, `wanted` if that can be: one for each cell or more, four at most.
    pub fn places_for(cells: u32, wanted: u32) -> u32 {
        wanted.clamp(cells, cells * MOST_PLACES)
    }

    /// The layout, if the sizes make sense. Sizes may come from a peer.
    fn parts(&self) -> Option<Parts> {
        let sane = self.cells.is_power_of_two()
            && (2..=1 << 16).contains(&self.cells)
            && self.places.is_power_of_two()
            && (self.cells..=self.cells * MOST_PLACES).contains(&self.places)
            && (self.places..=1 << 18).contains(&self.slots)
            && (INLINE as u32..1 << LEN_BITS).contains(&self.slot_len)
            && (1..=1 << 16).contains(&self.writers);
        if !sane {
            return None;
        }
        // Within these bounds nothing below overflows 64 bits: 2^18 slots of 2^24 bytes are 2^42.
        let stride = (MAX_LEAD + self.slot_len as usize).next_multiple_of(64);
        let slot_of = WRITERS + self.writers as usize * size_of::<Writer>();
        let cells = (slot_of + self.places as usize * 4).next_multiple_of(128);
        let slots = (cells + self.cells as usize * size_of::<CellMem>()).next_multiple_of(4096);
        Some(Parts { slot_of, cells, slots, stride, end: slots + self.slots as usize * stride })
    }
}

/// A mapped segment whose layout has been checked against its size.
#[derive(Debug)]
#[repr(C)]
pub struct Segment {
    /// The first cell, and their number less one: first, since every poll and every send finds its cell by them.
    cells: (*mut CellMem, u64),
    /// Where it is mapped: `mem`'s first byte.
    base: *mut u8,
    shape: Shape,
    parts: Parts,
    /// Where the line is that is ours in a peer's segment.
    mine: usize,
    mem: Hold,
}

/// What keeps it mapped.
#[derive(Debug)]
enum Hold {
    Own(Arc<SharedMem>),
    Peer(#[expect(dead_code, reason = "held for its mapping")] SharedMap),
}

impl Segment {
    /// Makes a segment with every cell free and the first slots bound to the places.
    pub fn create(shape: Shape, name: Name) -> Result<Self, MemError> {
        let parts = shape.parts().ok_or(MemError::BadLength { len: shape.slot_len as usize })?;
        let mem = Arc::new(SharedMem::create("uct-posix", parts.end, MapOpts::default())?);
        let seg = Segment::laid_out(shape, parts, mem.as_ptr(), Hold::Own(mem));
        let header = Header {
            magic: MAGIC,
            version: VERSION,
            reserved: 0,
            name: name.0,
            cells: shape.cells,
            places: shape.places,
            slots: shape.slots,
            slot_len: shape.slot_len,
            writers: shape.writers,
            state: AtomicU32::new(0),
        };
        // SAFETY: the mapping is page aligned and longer than a header, and no peer knows of it yet.
        unsafe { seg.base.cast::<Header>().write(header) };
        for place in 0..shape.places {
            seg.slot_of(place).store(place, Ordering::Relaxed);
        }
        for writer in 0..shape.writers {
            seg.writer(writer).intent.store(fifo::NO_TICKET, Ordering::Relaxed);
        }
        Ok(seg)
    }

    /// A segment of this layout at `base`, which `mem` keeps mapped.
    fn laid_out(shape: Shape, parts: Parts, base: *mut u8, mem: Hold) -> Segment {
        let cells = (base.wrapping_add(parts.cells).cast(), u64::from(shape.cells) - 1);
        Segment { shape, parts, base, cells, mine: WRITERS, mem }
    }

    /// Maps a peer's segment, if it is the one of this name and of our version.
    pub fn attach(fd: OwnedFd, name: Name) -> Result<Self, ConnectError> {
        let map = SharedMap::from(SharedMem::from_fd(fd, WRITERS).map_err(connect_error)?);
        let base = map.as_ptr();
        // A page first touched by a write is mapped alone; a read maps the sixteen around it, which would then count as
        // ours for every peer. An exchange counts as a write, also of a value for itself.
        // SAFETY: `state` lies below WRITERS, the least length, aligned; other processes touch it by atomics only.
        let state = unsafe { &*base.wrapping_add(offset_of!(Header, state)).cast::<AtomicU32>() };
        let _ = state.compare_exchange(0, 0, Ordering::Relaxed, Ordering::Relaxed);
        // SAFETY: a header lies inside the mapping (from_fd checked its length), aligned; `offset` is one of a
        // 32-bit field. Volatile: read once; the peer may change it any time, so decisions are made on the copy.
        let short = |offset| unsafe { base.wrapping_add(offset).cast::<u32>().read_volatile() };
        // SAFETY: as above, for 64-bit fields.
        let long = |offset| unsafe { base.wrapping_add(offset).cast::<u64>().read_volatile() };
        if long(offset_of!(Header, magic)) != MAGIC {
            return Err(ConnectError::Gone);
        }
        let theirs = short(offset_of!(Header, version));
        if theirs != VERSION {
            return Err(ConnectError::Version { theirs, ours: VERSION });
        }
        if long(offset_of!(Header, name)) != name.0 {
            return Err(ConnectError::Gone);
        }
        let shape = Shape {
            cells: short(offset_of!(Header, cells)),
            places: short(offset_of!(Header, places)),
            slots: short(offset_of!(Header, slots)),
            slot_len: short(offset_of!(Header, slot_len)),
            writers: short(offset_of!(Header, writers)),
        };
        let parts = shape.parts().filter(|parts| parts.end <= map.len()).ok_or(ConnectError::Malformed)?;
        let seg = Segment::laid_out(shape, parts, base, Hold::Peer(map));
        // The same for the page of the first cells.
        let _ = seg.slot_of(0).compare_exchange(0, 0, Ordering::Relaxed, Ordering::Relaxed);
        Ok(seg)
    }

    /// The sizes.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// The memory, for peers to be given; `None` if it is a peer's.
    pub fn own(&self) -> Option<&Arc<SharedMem>> {
        match &self.mem {
            Hold::Own(mem) => Some(mem),
            Hold::Peer(_) => None,
        }
    }

    /// # Safety
    /// A `T` of atomics must lie at `offset`, inside the layout and aligned.
    #[inline(always)]
    unsafe fn shared<T>(&self, offset: usize) -> &T {
        // SAFETY: the caller vouches for offset and type; the mapping lives as long as `self`, all bit patterns are
        // valid atomics, and other processes touch these words by atomics only.
        unsafe { &*self.base.wrapping_add(offset).cast::<T>() }
    }

    /// The words of the header that change.
    #[inline(always)]
    pub fn state(&self) -> &AtomicU32 {
        // SAFETY: inside the header, aligned by its layout.
        unsafe { self.shared(offset_of!(Header, state)) }
    }

    /// Next ticket to claim.
    #[inline(always)]
    pub fn head(&self) -> &AtomicU64 {
        // SAFETY: HEAD is aligned and below WRITERS, the least length of a mapping.
        unsafe { self.shared(HEAD) }
    }

    /// First ticket not released.
    #[inline(always)]
    pub fn tail(&self) -> &AtomicU64 {
        // SAFETY: as for HEAD.
        unsafe { self.shared(TAIL) }
    }

    /// Whether packets in slots are [looked at](super::looks).
    #[inline(always)]
    pub fn looks(&self) -> &AtomicU32 {
        // SAFETY: as for TAIL, in whose line it is; aligned.
        unsafe { self.shared(TAIL + size_of::<AtomicU64>()) }
    }

    /// A writer's line; the index is taken modulo their number.
    pub fn writer(&self, n: u32) -> &Writer {
        // SAFETY: `line` answers an offset in the layout, aligned.
        unsafe { self.shared(self.line(n)) }
    }

    /// All of them.
    pub fn writers(&self) -> impl Iterator<Item = &Writer> + Clone {
        (0..self.shape.writers).map(|n| self.writer(n))
    }

    fn line(&self, n: u32) -> usize {
        // Line n of `writers` lies in the layout; 384 and 64 keep it aligned.
        WRITERS + (n % self.shape.writers) as usize * size_of::<Writer>()
    }

    /// Makes a writer's line the one that [`Segment::mine`] answers.
    pub fn take(&mut self, n: u32) {
        self.mine = self.line(n);
    }

    /// The line taken, or the first. // HOT
    #[inline(always)]
    pub fn mine(&self) -> &Writer {
        // SAFETY: as in `writer`; only `take` changes it.
        unsafe { self.shared(self.mine) }
    }

    /// The slot bound to a place; the index is taken modulo their number.
    #[inline(always)]
    pub fn slot_of(&self, place: u32) -> &AtomicU32 {
        let offset = self.parts.slot_of + (place & (self.shape.places - 1)) as usize * 4;
        // SAFETY: entry `place` of `slot_of` lies in the layout, at a multiple of 4.
        unsafe { self.shared(offset) }
    }

    /// The place of a ticket's packet. // HOT
    #[inline(always)]
    pub fn place(&self, ticket: u64, lay: Lay) -> u32 {
        ticket as u32 & ((self.shape.cells << lay.spread()) - 1) & (self.shape.places - 1)
    }

    /// The cell of a ticket. // HOT
    #[inline(always)]
    pub fn cell(&self, ticket: u64) -> CellRef<'_> {
        let (first, mask) = self.cells;
        CellRef { at: first.wrapping_add((ticket & mask) as usize), _seg: self }
    }

    /// First byte of a slot, valid for `slot_len` bytes behind any [lead](Lay::lead), if there is such a slot. // HOT
    #[inline(always)]
    pub fn slot(&self, n: u32) -> Option<*mut u8> {
        if n >= self.shape.slots {
            return None;
        }
        Some(self.base.wrapping_add(self.parts.slots + n as usize * self.parts.stride))
    }
}

/// One cell of a segment.
#[derive(Clone, Copy)]
pub struct CellRef<'a> {
    at: *mut CellMem,
    _seg: &'a Segment,
}

impl<'a> CellRef<'a> {
    /// The word that publishes it.
    #[inline(always)]
    pub fn word(self) -> &'a AtomicU64 {
        // SAFETY: `Segment::cell` made the pointer from a masked index: inside the layout and aligned to 64; the
        // field is an atomic.
        unsafe { &(*self.at).word }
    }

    /// The sender.
    #[inline(always)]
    pub fn source(self) -> &'a AtomicU64 {
        // SAFETY: as for `word`.
        unsafe { &(*self.at).source }
    }

    /// First byte of the packet, valid for [`INLINE`] bytes, aligned to 16.
    #[inline(always)]
    pub fn packet(self) -> *mut u8 {
        self.at.cast::<u8>().wrapping_add(offset_of!(CellMem, packet))
    }
}

/// What a failure to map a peer's segment means for connecting.
pub fn connect_error(e: MemError) -> ConnectError {
    use crate::api::Error;
    match e {
        MemError::Gone { .. } => ConnectError::Gone,
        MemError::Denied { .. } => ConnectError::Permission,
        MemError::Refused { .. } => ConnectError::Gone,
        MemError::Descriptors { .. } => ConnectError::Op(Error::NoDescriptor),
        MemError::Exhausted { .. } | MemError::FileLimit { .. } | MemError::LockLimit { .. } => {
            ConnectError::Op(Error::NoMemory)
        }
        MemError::BadLength { .. } => ConnectError::Malformed,
        MemError::Os { op, errno } => ConnectError::Op(Error::Sys { call: op, errno }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    const SHAPE: Shape = Shape { cells: 64, places: 128, slots: 160, slot_len: 16640, writers: 16 };

    #[test]
    fn parts_do_not_overlap_and_are_aligned() {
        let parts = SHAPE.parts().unwrap();
        assert!(parts.slot_of >= WRITERS + 16 * 64 && parts.cells >= parts.slot_of + 128 * 4);
        assert!(parts.slots >= parts.cells + 64 * 192 && parts.end == parts.slots + 160 * parts.stride);
        assert_eq!(
            (parts.slot_of % 4, parts.cells % 128, parts.slots % 4096, parts.stride % 64),
            (0, 0, 0, 0)
        );
    }

    #[test]
    fn senseless_sizes_are_refused() {
        for shape in [
            Shape { cells: 63, ..SHAPE },
            Shape { cells: 0, ..SHAPE },
            Shape { places: 32, ..SHAPE },
            Shape { places: 96, ..SHAPE },
            Shape { places: 512, slots: 512, ..SHAPE },
            Shape { slots: 127, ..SHAPE },
            Shape { slots: u32::MAX, ..SHAPE },
            Shape { slot_len: 1 << 24, ..SHAPE },
            Shape { slot_len: 8, ..SHAPE },
            Shape { writers: 0, ..SHAPE },
            Shape { writers: u32::MAX, ..SHAPE },
        ] {
            assert_eq!(shape.parts(), None, "{shape:?}");
        }
    }

    #[test]
    fn places_of_two_cells_are_never_the_same() {
        for cells in [2, 64, 256, 1024] {
            let places = Shape::places_for(cells, 256);
            let seg =
                Segment::create(Shape { cells, places, slots: places, slot_len: 192, ..SHAPE }, Name(7))
                    .unwrap();
            let mut seen = vec![false; places as usize];
            for ticket in (0..u64::from(places) * 2).chain([u64::MAX - 5, 1 << 32]) {
                for about in [0, 1 << SPREAD_SHIFT, 2 << SPREAD_SHIFT, 3 << SPREAD_SHIFT, u32::MAX] {
                    let place = seg.place(ticket, Lay::in_word(about));
                    assert_eq!(u64::from(place % cells), ticket % u64::from(cells));
                    seen[place as usize] = true;
                }
            }
            assert!(seen.iter().all(|seen| *seen), "{cells} cells: each place is gone to");
        }
    }

    #[test]
    fn payloads_begin_where_32_bytes_do() {
        for (head, data) in [(17, 128), (17, 1024), (25, 4096), (1, 8192), (60, 16_384), (0, 32)] {
            let lay = Lay::of(head + data, false);
            assert_eq!((lay.lead() + head) % 32, 0, "{data} bytes behind {head}");
            assert_eq!(Lay::in_word(lay.marks() | IN_SLOT | (head + data) as u32), lay);
        }
        assert_eq!(Lay::in_word(u32::MAX).lead(), MAX_LEAD);
    }

    #[test]
    fn attach_checks_the_header() {
        let seg = Segment::create(SHAPE, Name(77)).unwrap();
        let copy = || seg.own().unwrap().as_fd().try_clone_to_owned().unwrap();
        let peer = Segment::attach(copy(), Name(77)).unwrap();
        assert_eq!(peer.shape(), SHAPE);
        seg.slot_of(3).store(9, Ordering::Relaxed);
        assert_eq!(peer.slot_of(3).load(Ordering::Relaxed), 9);
        assert_eq!(Segment::attach(copy(), Name(78)).unwrap_err(), ConnectError::Gone);
        let base = seg.base;
        // SAFETY: the offsets are of 32-bit fields of the header; the test is alone with it.
        let set = |offset, to: u32| unsafe { base.wrapping_add(offset).cast::<u32>().write(to) };
        set(offset_of!(Header, version), VERSION + 1);
        let wrong = ConnectError::Version { theirs: VERSION + 1, ours: VERSION };
        assert_eq!(Segment::attach(copy(), Name(77)).unwrap_err(), wrong);
        set(offset_of!(Header, version), VERSION);
        set(offset_of!(Header, slots), 1 << 18);
        assert_eq!(Segment::attach(copy(), Name(77)).unwrap_err(), ConnectError::Malformed);
        let other = SharedMem::create("other", 1 << 16, MapOpts::default()).unwrap();
        assert_eq!(
            Segment::attach(other.as_fd().try_clone_to_owned().unwrap(), Name(77)).unwrap_err(),
            ConnectError::Gone
        );
    }
}
