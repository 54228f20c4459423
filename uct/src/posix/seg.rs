//! Layout of an interface's segment, and raw access to its parts. Made by `rx.rs`, attached by `link.rs`.
//! Never makes a reference to packet bytes: atomics and raw pointers only, inside the mapping whatever the
//! segment contains.
//! ```text
//! 0      Header     constant after creation, except `state`
//! 128    head       next ticket to claim; written by writers
//! 256    tail       first ticket not released, and the payload-access hint; written by the reader
//! 384    writers    one entry of 64 bytes each: owner and intent; untouched, hence no memory, until used
//! ...    slot map   slot bound to each map entry; written by the reader, rarely
//! ...    cells      192 bytes each
//! ...    slots      one bound to each map entry, the others spare
//! ```

#![allow(unsafe_code)]

use super::writer_table::{self, Writer};
use crate::api::ConnectError;
use crate::host::fd_server::Name;
use std::mem::{offset_of, size_of};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use ucs::mem::{Fill, MapOpts, MemError, SharedMap, SharedMem};

/// Longest packet (id byte included) that travels inside its cell.
pub const INLINE: usize = 176;
/// Longest packet of an interface whose name does not say otherwise: the default of `UCX_POSIX_SEG_SIZE`.
/// Addresses rely on it, so another value needs another [`VERSION`].
pub const DEFAULT_SLOT_LEN: usize = 16640;
/// Longest packet that fits the cell's first cache line.
pub const FIRST_LINE: usize = 48;
/// Layout version; a peer with another one is rejected.
pub const VERSION: u32 = 7;

const MAGIC: u64 = u64::from_le_bytes(*b"uctposix");

/// Low bits of the upper half of a cell's word: the packet's length.
pub const LEN_BITS: u32 = 24;
/// The packet is in a slot, not in the cell.
pub const IN_SLOT: u32 = 1 << LEN_BITS;
/// Shift of two bits, [`SlotLayout::bufs_log2`], below the five of [`SlotLayout::padding`].
const BUFS_SHIFT: u32 = LEN_BITS + 1;
const PADDING_SHIFT: u32 = BUFS_SHIFT + 2;
const MAX_PADDING: usize = 31;
const MAX_BUFS_PER_CELL: u32 = 4;

/// The sizes and the name, which every process must agree on.
#[repr(C)]
pub struct Header {
    magic: u64,
    version: u32,
    /// Entries of the writer table in use.
    writers_used: AtomicU32,
    name: u64,
    cells: u32,
    map_entries: u32,
    slots: u32,
    slot_len: u32,
    writers: u32,
    pub state: AtomicU32,
}

/// A message in the FIFO. Three lines, so that the first lines of cells, which every message uses, spread
/// over all sets of a first-level cache; in half of them two rings would leave too little room.
#[repr(C, align(64))]
pub struct CellMem {
    pub word: AtomicU64,
    pub source: AtomicU64,
    packet: [u8; INLINE],
}

const _: () = {
    assert!(size_of::<Header>() <= 64);
    assert!(size_of::<Writer>() == 64);
    assert!(size_of::<CellMem>() == 192);
    assert!(offset_of!(CellMem, packet) == 16);
    assert!(offset_of!(CellMem, packet) + FIRST_LINE == 64);
    assert!(u32::MAX >> PADDING_SHIFT == MAX_PADDING as u32);
};

const HEAD: usize = 128;
const TAIL: usize = 256;
const WRITERS: usize = 384;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// Cells, a power of two.
    pub cells: u32,
    /// Map entries that slots are bound to, a power of two. Entry `e` serves tickets of cell `e % cells`.
    pub map_entries: u32,
    pub slots: u32,
    pub slot_len: u32,
    pub writers: u32,
}

/// How a packet lies in its slot, as bits of a cell's word. Chosen by the packet before: only for speed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SlotLayout(u32);

impl SlotLayout {
    /// The best layout for packets of `len` bytes, whose payloads handlers read or leave
    /// [unread](super::tuning).
    ///
    /// `bufs_log2`: the writer goes round two to the power of it map entries for each cell. Lines that are
    /// written again while both processors hold them are slow, so it goes round so many that they have left
    /// for the shared cache. Packets too short for that, or so long that a few fill a cache, stay close
    /// together, and unread ones in the writer's cache.
    ///
    /// `padding`: the packet ends at a multiple of 32 bytes, so a payload whose length is one begins there
    /// too. Copies that straddle lines take a tenth to a fourth longer.
    pub fn of(len: usize, unread: bool) -> SlotLayout {
        let bufs_log2 = match len {
            _ if unread => 0,
            0..=2048 => 0,
            2049..=8192 => 2,
            _ => 1,
        };
        let padding = len.wrapping_neg() & MAX_PADDING;
        SlotLayout(bufs_log2 << BUFS_SHIFT | (padding as u32) << PADDING_SHIFT)
    }

    /// Reads the layout from a cell's word, which may come from a peer.
    // HOT
    #[inline(always)]
    pub fn from_word(meta: u32) -> SlotLayout {
        SlotLayout(meta & !((1 << BUFS_SHIFT) - 1))
    }

    /// The layout as bits of a cell's word.
    // HOT
    #[inline(always)]
    pub fn bits(self) -> u32 {
        self.0
    }

    #[inline(always)]
    fn bufs_log2(self) -> u32 {
        (self.0 >> BUFS_SHIFT) & 3
    }

    /// Bytes of the slot before the packet: 0 to [`MAX_PADDING`].
    // HOT
    #[inline(always)]
    pub fn padding(self) -> usize {
        (self.0 >> PADDING_SHIFT) as usize
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Offsets {
    slot_entry: usize,
    cells: usize,
    slots: usize,
    stride: usize,
    end: usize,
}

impl Shape {
    /// The number of map entries nearest to `wanted` that `cells` cells can have: one to four for each.
    pub fn map_entries_for(cells: u32, wanted: u32) -> u32 {
        wanted.clamp(cells, cells * MAX_BUFS_PER_CELL)
    }

    fn offsets(&self) -> Option<Offsets> {
        let sane = self.cells.is_power_of_two()
            && (2..=1 << 16).contains(&self.cells)
            && self.map_entries.is_power_of_two()
            && (self.cells..=self.cells * MAX_BUFS_PER_CELL).contains(&self.map_entries)
            && (self.map_entries..=1 << 18).contains(&self.slots)
            && (INLINE as u32..1 << LEN_BITS).contains(&self.slot_len)
            && (1..=1 << 16).contains(&self.writers);
        if !sane {
            return None;
        }
        // Within these bounds nothing below overflows 64 bits: 2^18 slots of 2^24 bytes are 2^42.
        let stride = (MAX_PADDING + self.slot_len as usize).next_multiple_of(64);
        let slot_entry = WRITERS + self.writers as usize * size_of::<Writer>();
        let cells = (slot_entry + self.map_entries as usize * 4).next_multiple_of(128);
        let slots = (cells + self.cells as usize * size_of::<CellMem>()).next_multiple_of(4096);
        Some(Offsets { slot_entry, cells, slots, stride, end: slots + self.slots as usize * stride })
    }
}

/// A mapped segment whose layout has been checked against its size.
#[derive(Debug)]
#[repr(C)]
pub struct Segment {
    /// The first cell and the number of cells less one; first, since every poll and every send uses them.
    cells: (*mut CellMem, u64),
    base: *mut u8,
    shape: Shape,
    offsets: Offsets,
    own_writer_offset: usize,
    mem: Backing,
}

#[derive(Debug)]
enum Backing {
    Own(Arc<SharedMem>),
    Peer(#[expect(dead_code, reason = "held for its mapping")] SharedMap),
}

impl Segment {
    /// Creates a segment with every cell free and the first slots bound to the map entries.
    pub fn create(shape: Shape, name: Name) -> Result<Self, MemError> {
        let offsets = shape.offsets().ok_or(MemError::BadLength { len: shape.slot_len as usize })?;
        let lazy = MapOpts { fill: Fill::Lazy, ..MapOpts::default() };
        let mem = Arc::new(SharedMem::create("uct-posix", offsets.end, lazy)?);
        // Further writer entries take memory when they are claimed.
        let first_writers = shape.writers.min(writer_table::REUSE_FROM) as usize;
        mem.fill(0..WRITERS + first_writers * size_of::<Writer>())?;
        mem.fill(offsets.slot_entry..offsets.end)?;
        let seg = Segment::with_offsets(shape, offsets, mem.as_ptr(), Backing::Own(mem));
        let header = Header {
            magic: MAGIC,
            version: VERSION,
            writers_used: AtomicU32::new(0),
            name: name.0,
            cells: shape.cells,
            map_entries: shape.map_entries,
            slots: shape.slots,
            slot_len: shape.slot_len,
            writers: shape.writers,
            state: AtomicU32::new(0),
        };
        // SAFETY: the mapping is page aligned and longer than a header, and no peer knows of it yet.
        unsafe { seg.base.cast::<Header>().write(header) };
        for map_entry in 0..shape.map_entries {
            seg.slot_entry(map_entry).store(map_entry, Ordering::Relaxed);
        }
        Ok(seg)
    }

    fn with_offsets(shape: Shape, offsets: Offsets, base: *mut u8, mem: Backing) -> Segment {
        let cells = (base.wrapping_add(offsets.cells).cast(), u64::from(shape.cells) - 1);
        Segment { shape, offsets, base, cells, own_writer_offset: WRITERS, mem }
    }

    pub fn attach(fd: OwnedFd, name: Name) -> Result<Self, ConnectError> {
        let map = SharedMap::from(SharedMem::from_fd(fd, WRITERS).map_err(connect_error)?);
        let base = map.as_ptr();
        // A read of an untouched page would map sixteen pages, a write maps one; an exchange counts as a
        // write.
        // SAFETY: `state` lies below WRITERS, the least length, aligned; others touch it by atomics only.
        let state = unsafe { &*base.wrapping_add(offset_of!(Header, state)).cast::<AtomicU32>() };
        let _ = state.compare_exchange(0, 0, Ordering::Relaxed, Ordering::Relaxed);
        // SAFETY: from_fd checked that a header lies inside the mapping, aligned; `offset` is one of its
        // 32-bit fields. Volatile: read once, since the peer may change it any time.
        let read_u32 = |offset| unsafe { base.wrapping_add(offset).cast::<u32>().read_volatile() };
        // SAFETY: as above, for 64-bit fields.
        let read_u64 = |offset| unsafe { base.wrapping_add(offset).cast::<u64>().read_volatile() };
        if read_u64(offset_of!(Header, magic)) != MAGIC {
            return Err(ConnectError::Gone);
        }
        let theirs = read_u32(offset_of!(Header, version));
        if theirs != VERSION {
            return Err(ConnectError::Version { theirs, ours: VERSION });
        }
        if read_u64(offset_of!(Header, name)) != name.0 {
            return Err(ConnectError::Gone);
        }
        let shape = Shape {
            cells: read_u32(offset_of!(Header, cells)),
            map_entries: read_u32(offset_of!(Header, map_entries)),
            slots: read_u32(offset_of!(Header, slots)),
            slot_len: read_u32(offset_of!(Header, slot_len)),
            writers: read_u32(offset_of!(Header, writers)),
        };
        let offsets =
            shape.offsets().filter(|offsets| offsets.end <= map.len()).ok_or(ConnectError::Malformed)?;
        let seg = Segment::with_offsets(shape, offsets, base, Backing::Peer(map));
        let _ = seg.slot_entry(0).compare_exchange(0, 0, Ordering::Relaxed, Ordering::Relaxed);
        Ok(seg)
    }

    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// The memory, to be exported; `None` for a peer's segment.
    pub fn own_mem(&self) -> Option<&Arc<SharedMem>> {
        match &self.mem {
            Backing::Own(mem) => Some(mem),
            Backing::Peer(_) => None,
        }
    }

    /// # Safety
    /// A `T` of atomics must lie at `offset`, inside the layout and aligned.
    #[inline(always)]
    unsafe fn shared<T>(&self, offset: usize) -> &T {
        // SAFETY: the caller vouches for offset and type; the mapping lives as long as `self`, all bit
        // patterns are valid atomics, and other processes touch these words by atomics only.
        unsafe { &*self.base.wrapping_add(offset).cast::<T>() }
    }

    #[inline(always)]
    pub fn state(&self) -> &AtomicU32 {
        // SAFETY: inside the header, aligned by its layout.
        unsafe { self.shared(offset_of!(Header, state)) }
    }

    #[inline(always)]
    pub fn head(&self) -> &AtomicU64 {
        // SAFETY: HEAD is aligned and below WRITERS, the least length of a mapping.
        unsafe { self.shared(HEAD) }
    }

    #[inline(always)]
    pub fn tail(&self) -> &AtomicU64 {
        // SAFETY: as for HEAD.
        unsafe { self.shared(TAIL) }
    }

    #[inline(always)]
    pub fn payload_hint(&self) -> &AtomicU32 {
        // SAFETY: as for TAIL, in whose line it is; aligned.
        unsafe { self.shared(TAIL + size_of::<AtomicU64>()) }
    }

    /// Entry `n` of the writer table, modulo its length.
    pub fn writer(&self, n: u32) -> &Writer {
        // SAFETY: `writer_offset` returns an aligned offset in the layout.
        unsafe { self.shared(self.writer_offset(n)) }
    }

    /// The entries of the writer table in use, whose number other processes raise.
    pub fn writers(&self) -> impl Iterator<Item = &Writer> + Clone {
        // SYNC(used)
        let used = self.writers_used().load(Ordering::Acquire).min(self.shape.writers);
        (0..used).map(|n| self.writer(n))
    }

    /// Claims an entry of the writer table for the process `me`.
    pub fn claim_writer(&self, me: u64, is_alive: impl Fn(u64) -> bool) -> Option<u32> {
        let entries = |count| (0..count).map(|n| self.writer(n));
        writer_table::claim_or_grow(self.writers_used(), self.shape.writers, entries, me, is_alive)
    }

    pub fn writers_used(&self) -> &AtomicU32 {
        // SAFETY: inside the header, aligned by its layout.
        unsafe { self.shared(offset_of!(Header, writers_used)) }
    }

    fn writer_offset(&self, n: u32) -> usize {
        WRITERS + (n % self.shape.writers) as usize * size_of::<Writer>()
    }

    pub fn use_writer(&mut self, n: u32) {
        self.own_writer_offset = self.writer_offset(n);
    }

    /// The entry in use, or the first.
    // HOT
    #[inline(always)]
    pub fn own_writer(&self) -> &Writer {
        // SAFETY: as in `writer`; only `use_writer` changes it.
        unsafe { self.shared(self.own_writer_offset) }
    }

    /// The slot bound to a map entry; the index is taken modulo their number.
    #[inline(always)]
    pub fn slot_entry(&self, map_entry: u32) -> &AtomicU32 {
        let offset = self.offsets.slot_entry + (map_entry & (self.shape.map_entries - 1)) as usize * 4;
        // SAFETY: entry `map_entry` of `slot_entry` lies in the layout, at a multiple of 4.
        unsafe { self.shared(offset) }
    }

    /// The map entry of a ticket's packet.
    // HOT
    #[inline(always)]
    pub fn map_entry(&self, ticket: u64, layout: SlotLayout) -> u32 {
        ticket as u32 & ((self.shape.cells << layout.bufs_log2()) - 1) & (self.shape.map_entries - 1)
    }

    /// The cell of a ticket.
    // HOT
    #[inline(always)]
    pub fn cell(&self, ticket: u64) -> CellRef<'_> {
        let (first, mask) = self.cells;
        CellRef { at: first.wrapping_add((ticket & mask) as usize), _seg: self }
    }

    /// First byte of slot `n`, if it exists, valid for `slot_len` bytes behind any padding.
    // HOT
    #[inline(always)]
    pub fn slot(&self, n: u32) -> Option<*mut u8> {
        if n >= self.shape.slots {
            return None;
        }
        Some(self.base.wrapping_add(self.offsets.slots + n as usize * self.offsets.stride))
    }
}

#[derive(Clone, Copy)]
pub struct CellRef<'a> {
    at: *mut CellMem,
    _seg: &'a Segment,
}

impl<'a> CellRef<'a> {
    #[inline(always)]
    pub fn word(self) -> &'a AtomicU64 {
        // SAFETY: `Segment::cell` made the pointer from a masked index: in the layout, aligned to 64; the
        // field is an atomic.
        unsafe { &(*self.at).word }
    }

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

    const SHAPE: Shape = Shape { cells: 64, map_entries: 128, slots: 160, slot_len: 16640, writers: 16 };

    #[test]
    fn parts_are_disjoint_and_aligned() {
        let offsets = SHAPE.offsets().unwrap();
        assert!(offsets.slot_entry >= WRITERS + 16 * 64 && offsets.cells >= offsets.slot_entry + 128 * 4);
        assert!(
            offsets.slots >= offsets.cells + 64 * 192 && offsets.end == offsets.slots + 160 * offsets.stride
        );
        assert_eq!(
            (offsets.slot_entry % 4, offsets.cells % 128, offsets.slots % 4096, offsets.stride % 64),
            (0, 0, 0, 0)
        );
    }

    #[test]
    fn invalid_shapes_are_rejected() {
        for shape in [
            Shape { cells: 63, ..SHAPE },
            Shape { cells: 0, ..SHAPE },
            Shape { map_entries: 32, ..SHAPE },
            Shape { map_entries: 96, ..SHAPE },
            Shape { map_entries: 512, slots: 512, ..SHAPE },
            Shape { slots: 127, ..SHAPE },
            Shape { slots: u32::MAX, ..SHAPE },
            Shape { slot_len: 1 << 24, ..SHAPE },
            Shape { slot_len: 8, ..SHAPE },
            Shape { writers: 0, ..SHAPE },
            Shape { writers: u32::MAX, ..SHAPE },
        ] {
            assert_eq!(shape.offsets(), None, "{shape:?}");
        }
    }

    #[test]
    fn cells_share_no_map_entry() {
        for cells in [2, 64, 256, 1024] {
            let map_entries = Shape::map_entries_for(cells, 256);
            let seg = Segment::create(
                Shape { cells, map_entries, slots: map_entries, slot_len: 192, ..SHAPE },
                Name(7),
            )
            .unwrap();
            let mut seen = vec![false; map_entries as usize];
            for ticket in (0..u64::from(map_entries) * 2).chain([u64::MAX - 5, 1 << 32]) {
                for meta in [0, 1 << BUFS_SHIFT, 2 << BUFS_SHIFT, 3 << BUFS_SHIFT, u32::MAX] {
                    let entry = seg.map_entry(ticket, SlotLayout::from_word(meta));
                    assert_eq!(u64::from(entry % cells), ticket % u64::from(cells));
                    seen[entry as usize] = true;
                }
            }
            assert!(seen.iter().all(|seen| *seen), "{cells} cells: each entry is used");
        }
    }

    #[test]
    fn unused_writer_entries_take_no_memory() {
        let seg = Segment::create(Shape { writers: 1 << 16, ..SHAPE }, Name(7)).unwrap();
        let pages = || {
            let file = rustix::fs::fstat(seg.own_mem().unwrap().as_fd()).unwrap();
            file.st_blocks * 512 / 4096
        };
        let before = pages();
        assert_eq!(seg.writers().count(), 0);
        assert!((0..1000).all(|n| seg.claim_writer(n + 1, |_| true) == Some(n as u32)));
        assert_eq!(seg.writers().count(), 1000, "the reader looks at no more");
        assert!(pages() - before <= 1000 * 64 / 4096 + 2, "{} pages", pages() - before);
    }

    #[test]
    fn payloads_are_aligned_to_32_bytes() {
        for (header, data) in [(17, 128), (17, 1024), (25, 4096), (1, 8192), (60, 16_384), (0, 32)] {
            let layout = SlotLayout::of(header + data, false);
            assert_eq!((layout.padding() + header) % 32, 0, "{data} bytes behind {header}");
            assert_eq!(SlotLayout::from_word(layout.bits() | IN_SLOT | (header + data) as u32), layout);
        }
        assert_eq!(SlotLayout::from_word(u32::MAX).padding(), MAX_PADDING);
    }

    #[test]
    fn attach_checks_the_header() {
        let seg = Segment::create(SHAPE, Name(77)).unwrap();
        let copy = || seg.own_mem().unwrap().as_fd().try_clone_to_owned().unwrap();
        let peer = Segment::attach(copy(), Name(77)).unwrap();
        assert_eq!(peer.shape(), SHAPE);
        seg.slot_entry(3).store(9, Ordering::Relaxed);
        assert_eq!(peer.slot_entry(3).load(Ordering::Relaxed), 9);
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
