//! Memory that peers may reach: regions by key, and the checked pieces of them that a request names. Nothing else in
//! the engine writes or reads a region, and nothing here does without a check of key, range and rights.
//!
//! A key of ours is a number above 32 bits, for packets only. Where a device has registered the region too, its
//! 32-bit key names it as well, on that device's wire (RDM v4 6.4, wire facts).

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use arrayvec::ArrayVec;
use bitflags::bitflags;
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;
use ucs::coll::slots::{SlotId, Slots};

use super::ask::WireId;
use super::op::{Piece, piece_at, stretch};
use crate::wire::{Iovs, MAX_IOV};

bitflags! {
    /// What peers may do to a region.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
    pub struct Access: u8 {
        /// Read it.
        const READ = 1;
        /// Write it.
        const WRITE = 2;
        /// Do atomic operations on it.
        const ATOMIC = 4;
    }
}

/// The key of a region in packets. Never the key of a region removed since.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct MemKey(pub u64);

/// Memory that peers may reach.
#[derive(Clone, Copy, Debug)]
pub struct Region {
    ptr: NonNull<u8>,
    len: usize,
    access: Access,
}

// SAFETY: `new` promises that the bytes may be used from whichever thread drives the engine.
unsafe impl Send for Region {}

impl Region {
    /// The `len` bytes at `ptr`, for `access`. `None` if `ptr` is null or the range wraps.
    ///
    /// # Safety
    /// They stay valid for reads, and for writes if `access` has more than [`Access::READ`], until the region is
    /// removed from the engine or the engine is dropped; meanwhile nobody holds a Rust reference to bytes that a peer
    /// may write, and whoever looks at them uses volatile or atomic accesses, or agrees with the peers on when.
    pub unsafe fn new(ptr: *mut u8, len: usize, access: Access) -> Option<Region> {
        ptr.addr().checked_add(len)?;
        Some(Region { ptr: NonNull::new(ptr)?, len, access })
    }

    /// First address, as peers name it.
    pub fn addr(&self) -> u64 {
        self.ptr.addr().get() as u64
    }

    /// The piece at the address `addr`, if it lies inside and `need` is allowed. // HOT
    #[inline]
    fn piece(&self, addr: u64, len: u64, need: Access) -> Option<(NonNull<u8>, usize)> {
        // An address below the region wraps to a huge offset.
        let offset = addr.wrapping_sub(self.addr());
        if offset > self.len as u64 || len > self.len as u64 - offset || !self.access.contains(need) {
            return None;
        }
        // SAFETY: offset <= len, checked above, so the result is inside the region or one past its end.
        Some((unsafe { self.ptr.add(offset as usize) }, len as usize))
    }
}

/// All regions of an engine.
#[derive(Debug)]
pub struct Regions {
    slots: Slots<Region>,
    /// High half of every key: tells keys of another life of this process, or of another worker.
    nonce: u32,
    devices: HashMap<(WireId, u64), SlotId, FxBuildHasher>,
}

impl Regions {
    /// None.
    pub fn new(nonce: u32) -> Regions {
        Regions { slots: Slots::new(), nonce: nonce | 1 << 31, devices: HashMap::default() }
    }

    /// True when no memory is offered.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Adds one; `None` if there are too many.
    pub fn add(&mut self, region: Region) -> Option<MemKey> {
        let id = self.slots.insert(region).ok()?;
        Some(MemKey(u64::from(self.nonce) << 32 | u64::from(id.raw())))
    }

    /// On `wire`, the region of `key` is also named by the device's key. False if there is no such region.
    pub fn also(&mut self, key: MemKey, wire: WireId, device_key: u64) -> bool {
        match self.id(key.0) {
            Some(id) => self.devices.insert((wire, device_key), id).is_none(),
            None => false,
        }
    }

    /// Removes one, and all its names. Answers what pieces of it are marked with.
    pub fn remove(&mut self, key: MemKey) -> Option<SlotId> {
        let id = self.id(key.0)?;
        self.slots.remove(id)?;
        self.devices.retain(|_, named| *named != id);
        Some(id)
    }

    fn id(&self, key: u64) -> Option<SlotId> {
        let id = SlotId::from_raw(key as u32);
        ((key >> 32) as u32 == self.nonce && self.slots.contains(id)).then_some(id)
    }

    /// The memory that a request from `wire` names, if every piece of it is inside a region and `need` is allowed.
    /// A piece without bytes needs no region. // HOT
    // [M8.1] [M8.11]
    #[inline]
    pub fn resolve(&self, wire: WireId, iovs: &Iovs, need: Access) -> Option<Spans> {
        let mut spans = Spans { list: ArrayVec::new(), len: 0 };
        for iov in iovs.as_slice() {
            let span = match iov.len {
                0 => Span { ptr: NonNull::dangling(), len: 0, region: SlotId::NONE },
                _ => {
                    let region = match (iov.key >> 32) as u32 {
                        0 => *self.devices.get(&(wire, iov.key))?,
                        nonce if nonce == self.nonce => SlotId::from_raw(iov.key as u32),
                        _ => return None,
                    };
                    let (ptr, len) = self.slots.get(region)?.piece(iov.addr, iov.len, need)?;
                    Span { ptr, len, region }
                }
            };
            spans.len = spans.len.checked_add(span.len as u64)?;
            spans.list.try_push(span).ok()?;
        }
        Some(spans)
    }
}

/// A piece of a region.
#[derive(Clone, Debug)]
struct Span {
    ptr: NonNull<u8>,
    len: usize,
    region: SlotId,
}

// SAFETY: a piece of a `Region`, which may be used from any one thread.
unsafe impl Send for Span {}

/// Checked pieces of regions, as one run of bytes. Good until one of its regions is removed: the engine drops what
/// [uses](Spans::uses) it then.
#[derive(Clone, Debug)]
pub struct Spans {
    list: ArrayVec<Span, MAX_IOV>,
    len: u64,
}

/// Longest element of an atomic operation, bytes.
pub const MAX_ELEMENT: usize = 32;

impl Spans {
    /// Bytes in all.
    #[inline]
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// No bytes at all.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Lengths of the pieces.
    pub fn lens(&self) -> impl Iterator<Item = usize> {
        self.list.iter().map(|span| span.len)
    }

    /// Whether a piece of this region is among them.
    pub fn uses(&self, region: SlotId) -> bool {
        self.list.iter().any(|span| span.region == region)
    }

    /// The piece that byte `at` of the run lies in, for the device, its number, and how far into it.
    pub fn piece_at(&self, at: u64) -> Option<(usize, Piece, usize)> {
        // SAFETY: the bytes of a region stay valid until it is removed (`Region::new`), and the engine releases what it
        // has registered of it then (`Engine::remove_memory`).
        let piece = |span: &Span| unsafe { Piece::new(span.ptr.as_ptr(), span.len) };
        piece_at(self.list.iter().filter_map(piece), at)
    }

    /// Writes `from` at offset `at` of the run; what lies behind the end is dropped. // HOT
    #[inline]
    pub fn put(&self, at: u64, from: &[u8]) {
        stretch(self.lens(), at, from.len(), |piece, to, out, n| {
            // SAFETY: `to` + n <= the piece's length, by `stretch`.
            let to = unsafe { self.list[piece].ptr.add(to) };
            // SAFETY: `resolve` put the piece inside a region, whose bytes may be written (`Region::new`); `from` is
            // packet memory, which is no region, and has out + n bytes at least.
            unsafe { copy(from[out..].as_ptr(), to.as_ptr(), n) };
        });
    }

    /// Copies the bytes from `at` on to `to`: as many as there are and as fit. Answers how many. // HOT
    #[inline]
    pub fn copy_to(&self, at: u64, to: &mut [u8]) -> usize {
        let mut done = 0;
        stretch(self.lens(), at, to.len(), |piece, from, out, n| {
            // SAFETY: `from` + n <= the piece's length, by `stretch`.
            let from = unsafe { self.list[piece].ptr.add(from) };
            // SAFETY: as in `put`, the other way round.
            unsafe { copy(from.as_ptr(), to[out..].as_mut_ptr(), n) };
            done += n;
        });
        done
    }

    /// Replaces the `size` bytes (at most [`MAX_ELEMENT`]) at `at` of piece `piece` by what `change` makes of them, and
    /// hands out the old ones. Aligned elements of up to 8 bytes change in one step for every processor, so that this
    /// goes together with atomics by shared memory; others are safe among this engine's requests only.
    /// Does nothing if the element is not inside the piece. // HOT
    #[inline]
    pub fn update(
        &self,
        piece: usize,
        at: usize,
        size: usize,
        old: &mut [u8],
        change: impl FnMut(&mut [u8]),
    ) {
        let Some(span) = self.list.get(piece) else { return };
        let inside = at.checked_add(size).is_some_and(|end| end <= span.len);
        if !inside || size > MAX_ELEMENT || old.len() != size {
            return;
        }
        // SAFETY: at + size <= the piece's length.
        let ptr = unsafe { span.ptr.add(at) }.as_ptr();
        match size {
            // SAFETY: one byte inside a region that may be written; aligned.
            1 => unsafe { swap::<AtomicU8, 1>(ptr, old, change) },
            // SAFETY: two aligned bytes inside a region that may be written.
            2 if ptr.addr().is_multiple_of(2) => unsafe { swap::<AtomicU16, 2>(ptr, old, change) },
            // SAFETY: four aligned bytes inside a region that may be written.
            4 if ptr.addr().is_multiple_of(4) => unsafe { swap::<AtomicU32, 4>(ptr, old, change) },
            // SAFETY: eight aligned bytes inside a region that may be written.
            8 if ptr.addr().is_multiple_of(8) => unsafe { swap::<AtomicU64, 8>(ptr, old, change) },
            // SAFETY: `size` bytes inside a region that may be written.
            _ => unsafe { rewrite(ptr, old, change) },
        }
    }
}

/// A word that can be compared and exchanged.
trait Word<const N: usize> {
    /// # Safety
    /// `ptr` is aligned and valid for reads and writes of `N` bytes.
    unsafe fn swap(ptr: *mut u8, change: impl FnMut([u8; N]) -> [u8; N]) -> [u8; N];
}

macro_rules! word {
    ($Atomic:ident, $Int:ident, $N:literal) => {
        impl Word<$N> for $Atomic {
            #[inline(always)]
            unsafe fn swap(ptr: *mut u8, mut change: impl FnMut([u8; $N]) -> [u8; $N]) -> [u8; $N] {
                // SAFETY: the caller vouches for alignment and validity; whoever else uses the word does so with
                // atomics, or agrees with the peers on when (`Region::new`).
                let word = unsafe { $Atomic::from_ptr(ptr.cast()) };
                let mut old = word.load(Ordering::Acquire);
                loop {
                    let new = $Int::from_ne_bytes(change(old.to_ne_bytes()));
                    match word.compare_exchange_weak(old, new, Ordering::AcqRel, Ordering::Acquire) {
                        Ok(_) => return old.to_ne_bytes(),
                        Err(seen) => old = seen,
                    }
                }
            }
        }
    };
}
word!(AtomicU8, u8, 1);
word!(AtomicU16, u16, 2);
word!(AtomicU32, u32, 4);
word!(AtomicU64, u64, 8);

/// # Safety
/// As for [`Word::swap`].
#[inline(always)]
unsafe fn swap<W: Word<N>, const N: usize>(ptr: *mut u8, old: &mut [u8], mut change: impl FnMut(&mut [u8])) {
    // SAFETY: the caller's promise.
    let was = unsafe {
        W::swap(ptr, |mut bytes| {
            change(&mut bytes);
            bytes
        })
    };
    old.copy_from_slice(&was);
}

/// # Safety
/// `ptr` is valid for reads and writes of `old.len()` bytes, at most [`MAX_ELEMENT`].
unsafe fn rewrite(ptr: *mut u8, old: &mut [u8], mut change: impl FnMut(&mut [u8])) {
    // SAFETY: the caller's promise; `old` is not in a region.
    unsafe { std::ptr::copy_nonoverlapping(ptr, old.as_mut_ptr(), old.len()) };
    let mut new = [0; MAX_ELEMENT];
    let new = &mut new[..old.len()];
    new.copy_from_slice(old);
    change(new);
    // SAFETY: as above.
    unsafe { std::ptr::copy_nonoverlapping(new.as_ptr(), ptr, new.len()) };
}

/// Copies `n` bytes; a word by one load and one store, so that a reader that polls the word sees it whole. // HOT
///
/// # Safety
/// As for `std::ptr::copy_nonoverlapping`.
#[inline(always)]
unsafe fn copy(from: *const u8, to: *mut u8, n: usize) {
    #[repr(C, packed)]
    struct Unaligned(u64);
    if n == 8 {
        // SAFETY: eight bytes may be read by the caller's promise.
        let word = unsafe { from.cast::<Unaligned>().read_volatile() };
        // SAFETY: eight bytes may be written by the caller's promise.
        unsafe { to.cast::<Unaligned>().write_volatile(word) };
    } else {
        // SAFETY: the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(from, to, n) };
    }
}

#[cfg(test)]
mod tests;
