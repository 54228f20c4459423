//! Memory that peers may access: regions, and the checked pieces of them that a request names. Nothing else
//! in the engine writes or reads a region, and nothing here does without a check of range and rights.
//!
//! A key of ours is a number above 32 bits, for packets only. Where a device has registered the region too,
//! its 32-bit key names it as well, on that device's wires (RDM v4 6.4, wire facts). Keys of a [`KeySpace`]
//! name regions on every wire.
//!
//! [`KeySpace`]: crate::rdm::KeySpace

#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use arrayvec::ArrayVec;
use bitflags::bitflags;
use ucs::coll::slots::SlotId;

use crate::rdm::op::Piece;
use crate::rdm::op::piece::{for_each_overlap, piece_at};
use crate::wire::MAX_IOV;

bitflags! {
    /// Access that peers have to a region.
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
    /// Address of the first byte, as peers name it.
    base: u64,
    len: usize,
    access: Access,
    /// Access to pages that may not be there: each piece is looked at before it is used.
    late: Access,
}

// SAFETY: `new` promises that the bytes may be used from whichever threads drive engines.
unsafe impl Send for Region {}
// SAFETY: as above; a region itself never changes.
unsafe impl Sync for Region {}

impl Region {
    /// The `len` bytes at `ptr`, for `access`. `None` if `ptr` is null or the range wraps.
    /// # Safety
    /// They stay valid for reads, and for writes if `access` has more than [`Access::READ`], until the region
    /// is removed from its table or the table and its engines are dropped. Meanwhile nobody holds a Rust
    /// reference to bytes that a peer may write: the program uses volatile or atomic accesses, or agrees with
    /// the peers on when.
    pub unsafe fn new(ptr: *mut u8, len: usize, access: Access) -> Option<Region> {
        ptr.addr().checked_add(len)?;
        Some(Region { ptr: NonNull::new(ptr)?, base: ptr.addr() as u64, len, access, late: Access::empty() })
    }

    /// The `len` bytes at `ptr`, for `access` by peers, some of which are not there now: the pages of each
    /// piece that a peer names are asked of the system. `None` if `ptr` is null or the range wraps.
    /// # Safety
    /// As for [`Region::new`], of the pages that are there: what a peer uses stays there meanwhile.
    pub unsafe fn unbacked(ptr: *mut u8, len: usize, access: Access) -> Option<Region> {
        // SAFETY: nobody has access to the region without the look at its pages.
        Some(Region { late: access, ..unsafe { Region::new(ptr, len, Access::empty()) }? })
    }

    /// The region, whose first byte peers name by this address. `None` if the range wraps.
    pub fn named_from(self, base: u64) -> Option<Region> {
        base.checked_add(self.len as u64)?;
        Some(Region { base, ..self })
    }

    /// First address, as peers name it.
    pub fn addr(&self) -> u64 {
        self.base
    }

    /// First address, length and access.
    pub(super) fn range(&self) -> (u64, u64, Access) {
        (self.ptr.addr().get() as u64, self.len as u64, self.access | self.late)
    }

    /// Returns the piece at the address `addr`, if it lies inside and `need` is permitted.
    // HOT
    #[inline]
    pub(super) fn span(&self, addr: u64, len: u64, need: Access, region: SlotId) -> Option<Span> {
        // An address below the region wraps to a huge offset.
        let offset = addr.wrapping_sub(self.base);
        if offset > self.len as u64 || len > self.len as u64 - offset || !self.access.contains(need) {
            return if self.late.is_empty() { None } else { self.late_span(offset, len, need, region) };
        }
        // SAFETY: offset <= len, checked above, so the result is inside the region or one past its end.
        Some(Span { ptr: unsafe { self.ptr.add(offset as usize) }, len: len as usize, region })
    }

    /// As [`Region::span`], of a region that may have no pages there.
    #[cold]
    #[inline(never)]
    fn late_span(&self, offset: u64, len: u64, need: Access, region: SlotId) -> Option<Span> {
        if offset > self.len as u64 || len > self.len as u64 - offset || !self.late.contains(need) {
            return None;
        }
        let ptr = NonNull::new(self.ptr.as_ptr().wrapping_add(offset as usize))?;
        let writes = need.intersects(Access::WRITE | Access::ATOMIC);
        let is_there = ucs::mem::rights::populate(ptr.addr().get(), len as usize, writes);
        is_there.then_some(Span { ptr, len: len as usize, region })
    }
}

/// A piece of a region.
#[derive(Clone, Debug)]
pub(super) struct Span {
    ptr: NonNull<u8>,
    len: usize,
    region: SlotId,
}

// SAFETY: a piece of a `Region`, which may be used from any one thread.
unsafe impl Send for Span {}

impl Span {
    /// The region it is of.
    pub(super) fn region(&self) -> SlotId {
        self.region
    }

    /// No bytes, of no region.
    pub(super) const EMPTY: Span = Span { ptr: NonNull::dangling(), len: 0, region: SlotId::NONE };

    /// Writes `bytes`; false if the piece has another length.
    // HOT
    #[inline]
    pub(super) fn put(&self, bytes: &[u8]) -> bool {
        if self.len != bytes.len() {
            return false;
        }
        // SAFETY: the piece lies inside a region whose bytes may be written (`Region::new`), and has as many;
        // `bytes` is packet memory, which is no region.
        unsafe { copy(bytes.as_ptr(), self.ptr.as_ptr(), bytes.len()) };
        true
    }

    /// Address of the first byte, valid as [`Spans`] are.
    // HOT
    #[inline(always)]
    pub(super) fn ptr(&self) -> *mut u8 {
        self.ptr.as_ptr()
    }

    /// Writes the bytes at `from`, as many as there are. They may be bytes of a region, too.
    /// # Safety
    /// They can be read.
    // HOT
    #[inline(always)]
    pub(super) unsafe fn store(&self, from: *const u8) {
        // SAFETY: the piece lies inside a region whose bytes may be written (`Region::new`). The caller has
        // as many.
        unsafe { move_bytes(from, self.ptr.as_ptr(), self.len) };
    }

    /// Copies all bytes to `to`, which may be bytes of a region, too.
    /// # Safety
    /// As many can be written there.
    // HOT
    #[inline(always)]
    pub(super) unsafe fn load(&self, to: *mut u8) {
        // SAFETY: as in `store`, the other way round.
        unsafe { move_bytes(self.ptr.as_ptr(), to, self.len) };
    }
}

/// Checked pieces of regions, as one run of bytes. Valid until one of its regions is removed: the engine then
/// ends the operations that [use](Spans::uses) it, before it touches any.
#[derive(Clone, Debug)]
pub struct Spans {
    list: ArrayVec<Span, MAX_IOV>,
    len: u64,
}

impl Spans {
    /// The pieces of `list`, `len` bytes in all.
    #[inline]
    pub(super) fn new(list: ArrayVec<Span, MAX_IOV>, len: u64) -> Spans {
        Spans { list, len }
    }

    /// One piece.
    // HOT
    #[inline(always)]
    pub(super) fn one(span: Span) -> Spans {
        let (mut list, len) = (ArrayVec::new(), span.len as u64);
        list.push(span);
        Spans { list, len }
    }

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

    /// Regions of the pieces.
    pub(super) fn regions(&self) -> impl Iterator<Item = SlotId> {
        self.list.iter().map(|span| span.region)
    }

    /// Whether a piece of this region is among them.
    pub fn uses(&self, region: SlotId) -> bool {
        self.list.iter().any(|span| span.region == region)
    }

    /// The piece that byte `at` of the run lies in, for the device, its number, and how far into it.
    pub fn piece_at(&self, at: u64) -> Option<(usize, Piece, usize)> {
        // SAFETY: the bytes of a region stay valid until it is removed (`Region::new`), and the engine
        // releases what it has registered of it then (`Engine::follow_memory`).
        let piece = |span: &Span| unsafe { Piece::new(span.ptr.as_ptr(), span.len) };
        piece_at(self.list.iter().filter_map(piece), at)
    }

    /// Writes `from` at offset `at` of the run; what lies behind the end is dropped.
    // HOT
    #[inline]
    pub fn put(&self, at: u64, from: &[u8]) {
        for_each_overlap(self.lens(), at, from.len(), |piece, to, out, n| {
            // SAFETY: `to` + n <= the piece's length, by `for_each_overlap`.
            let to = unsafe { self.list[piece].ptr.add(to) };
            // SAFETY: `resolve` put the piece inside a region, whose bytes may be written (`Region::new`);
            // `from` is packet memory, which is no region, and has out + n bytes at least.
            unsafe { copy(from[out..].as_ptr(), to.as_ptr(), n) };
        });
    }

    /// Copies the bytes from `at` on to `to`: as many as there are and as fit. Answers how many.
    // HOT
    #[inline]
    pub fn copy_to(&self, at: u64, to: &mut [u8]) -> usize {
        let mut done = 0;
        for_each_overlap(self.lens(), at, to.len(), |piece, from, out, n| {
            // SAFETY: `from` + n <= the piece's length, by `for_each_overlap`.
            let from = unsafe { self.list[piece].ptr.add(from) };
            // SAFETY: as in `put`, the other way round.
            unsafe { copy(from.as_ptr(), to[out..].as_mut_ptr(), n) };
            done += n;
        });
        done
    }

    /// Replaces each element of `N` bytes by what `change` makes of it, of its operand in `with` and its
    /// compare value in `than` (zeros where there is none), unless that is `None`. The elements as they were
    /// go to `old`, as many as fit; what is left of a piece behind its last whole element is not touched.
    /// Aligned elements of up to 8 bytes change in one step for every processor, so that this goes together
    /// with atomics by shared memory; others are safe among this engine's requests only.
    // HOT
    #[inline]
    pub fn update<const N: usize>(
        &self,
        with: &[u8],
        than: &[u8],
        old: &mut [u8],
        change: impl Fn([u8; N], [u8; N], [u8; N]) -> Option<[u8; N]>,
    ) {
        let operand = |of: &[u8], at: usize| match of.get(at..).and_then(<[u8]>::first_chunk) {
            Some(bytes) => *bytes,
            None => [0; N],
        };
        let mut at = 0;
        for span in &self.list {
            let aligned = N <= 8 && span.ptr.addr().get().is_multiple_of(N);
            for n in 0..span.len / N {
                let (with, than) = (operand(with, at), operand(than, at));
                // SAFETY: element n of at most len / N ends inside the piece.
                let ptr = unsafe { span.ptr.add(n * N) }.as_ptr();
                let was = if aligned {
                    // SAFETY: the element is inside a region that may be written (`resolve`), and aligned.
                    unsafe { exchange(ptr, |was| change(was, with, than)) }
                } else {
                    // SAFETY: the element is inside a region that may be written.
                    unsafe { rewrite(ptr, |was| change(was, with, than)) }
                };
                if let Some(to) = old.get_mut(at..at + N) {
                    to.copy_from_slice(&was);
                }
                at += N;
            }
        }
    }
}

/// Replaces an element in one step; answers what it was.
/// # Safety
/// `ptr` is aligned to `N` bytes and valid for reads and writes of them; `N` is 1, 2, 4 or 8.
// HOT
#[inline(always)]
unsafe fn exchange<const N: usize>(ptr: *mut u8, change: impl Fn([u8; N]) -> Option<[u8; N]>) -> [u8; N] {
    macro_rules! word {
        ($Atomic:ident, $Int:ty) => {{
            // SAFETY: the caller vouches for alignment and validity; whoever else uses the word does so with
            // atomics, or agrees with the peers on when (`Region::new`).
            let word = unsafe { $Atomic::from_ptr(ptr.cast()) };
            let mut old = word.load(Ordering::Acquire);
            loop {
                let was = cut(old.to_ne_bytes());
                let Some(new) = change(was) else { return was };
                let new = <$Int>::from_ne_bytes(cut(new));
                match word.compare_exchange_weak(old, new, Ordering::AcqRel, Ordering::Acquire) {
                    Ok(_) => return was,
                    Err(seen) => old = seen,
                }
            }
        }};
    }
    match N {
        1 => word!(AtomicU8, u8),
        2 => word!(AtomicU16, u16),
        4 => word!(AtomicU32, u32),
        8 => word!(AtomicU64, u64),
        // SAFETY: the caller's promise.
        _ => unsafe { rewrite(ptr, change) },
    }
}

/// Converts between arrays of equal length where the compiler does not see that `A` is `B`.
#[inline(always)]
fn cut<const A: usize, const B: usize>(from: [u8; A]) -> [u8; B] {
    let mut to = [0; B];
    to[..A.min(B)].copy_from_slice(&from[..A.min(B)]);
    to
}

/// Replaces an element, not for others who do so at the same time; answers what it was.
/// # Safety
/// `ptr` is valid for reads and writes of `N` bytes.
#[inline(always)]
unsafe fn rewrite<const N: usize>(ptr: *mut u8, change: impl Fn([u8; N]) -> Option<[u8; N]>) -> [u8; N] {
    // SAFETY: the caller's promise; bytes have no alignment.
    let was = unsafe { ptr.cast::<[u8; N]>().read() };
    if let Some(new) = change(was) {
        // SAFETY: as above.
        unsafe { ptr.cast::<[u8; N]>().write(new) };
    }
    was
}

/// Copies `n` bytes between places that may overlap; a word as [`copy`] does.
/// # Safety
/// As for `std::ptr::copy`.
// HOT
#[inline(always)]
unsafe fn move_bytes(from: *const u8, to: *mut u8, n: usize) {
    if n == 8 {
        // SAFETY: the caller's promise; a word is read before it is written.
        unsafe { copy(from, to, n) };
    } else {
        // SAFETY: the caller's promise.
        unsafe { std::ptr::copy(from, to, n) };
    }
}

/// Copies `n` bytes; a word by one load and one store, so that a reader that polls the word sees it whole.
/// # Safety
/// As for `std::ptr::copy_nonoverlapping`.
// HOT
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
        unsafe { ucs::mem::copy_bytes(from, to, n) };
    }
}

#[cfg(test)]
mod tests;
