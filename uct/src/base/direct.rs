//! Put, get and atomics on mapped memory: the remote side of `self` and `posix`, by a [`Window`] out of the
//! key. Touches no byte outside; makes Rust references only for bcopy closures.
//!
//! Operations finish in the call; a release store or a [`fence`] makes them visible before what follows.

#![allow(unsafe_code)]

use super::mem_ptr::MemPtr;
use super::{atomic128, check, iov, word};
use crate::api::{
    Access, AtomicCaps, AtomicOp, AtomicOps, Error, Iov, Op, Outcome, Refused, RemoteIov, RmaLimits, Sent,
    Word,
};
use std::ptr::NonNull;
use std::sync::atomic::Ordering;
use ucs::mem::{copy_bytes, copy_word_or_bytes as copy};

/// Most pieces in an iov list; the CPU does not care, a bound keeps calls short.
pub const MAX_IOV: usize = 16;

/// A stretch of the owner's address space, and what may be done with it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Range {
    remote: u64,
    len: usize,
    access: Access,
}

impl Range {
    pub fn new(remote: u64, len: usize, access: Access) -> Self {
        Range { remote, len, access }
    }

    pub fn range(&self) -> (u64, usize) {
        (self.remote, self.len)
    }

    /// Offset of `len` bytes at `remote`, if the range covers them and allows `need`.
    // HOT
    #[inline(always)]
    pub fn offset(&self, remote: u64, len: usize, need: Access) -> Result<usize, Error> {
        // An address below the range wraps to a huge offset.
        let offset = remote.wrapping_sub(self.remote);
        if offset > self.len as u64 || len > self.len - offset as usize || !self.access.contains(need) {
            return Err(Error::RemoteAccess);
        }
        Ok(offset as usize)
    }
}

/// A stretch of the owner's address space and where it is mapped here.
#[derive(Debug)]
pub struct Window {
    bounds: Range,
    local: MemPtr,
}

impl Window {
    /// The owner's `remote..remote + len` is mapped at `local`.
    /// # Safety
    /// `local` must be valid for reads and writes of `len` bytes as long as operations go through the window.
    pub unsafe fn new(remote: u64, len: usize, local: *mut u8, access: Access) -> Self {
        Window { bounds: Range::new(remote, len, access), local: MemPtr(local) }
    }

    pub fn range(&self) -> (u64, usize) {
        self.bounds.range()
    }

    /// Where the window is mapped here.
    pub fn start(&self) -> *mut u8 {
        self.local.0
    }

    pub fn bounds(&self) -> &Range {
        &self.bounds
    }

    pub fn access(&self) -> Access {
        self.bounds.access
    }

    /// Local address of `len` bytes at `remote`, if covered and allowed.
    // HOT
    #[inline(always)]
    pub fn at(&self, remote: u64, len: usize, need: Access) -> Result<*mut u8, Error> {
        Ok(self.local.0.wrapping_add(self.bounds.offset(remote, len, need)?))
    }
}

/// `Ep::put_short`.
// HOT
#[inline]
pub fn put_short(w: &Window, bytes: &[u8], remote: u64) -> Outcome {
    let to = w.at(remote, bytes.len(), Access::REMOTE_WRITE)?;
    // SAFETY: `to` is inside the window, which is valid for writes; `bytes` is a reference to memory that
    // nobody may write meanwhile, so it does not overlap.
    unsafe { copy(bytes.as_ptr(), to, bytes.len()) };
    Ok(Sent::Done)
}

/// `Ep::get_short`.
// HOT
#[inline]
pub fn get_short(w: &Window, out: &mut [u8], remote: u64) -> Outcome {
    let from = w.at(remote, out.len(), Access::REMOTE_READ)?;
    // SAFETY: `from` is inside the window, which is valid for reads; `out` is borrowed alone.
    unsafe { copy(from, out.as_mut_ptr(), out.len()) };
    Ok(Sent::Done)
}

/// `Ep::put_bcopy`: packs into the remote memory. All `max` bytes lie inside the window, mapped meanwhile.
#[inline]
pub fn put_bcopy(
    w: &Window,
    max: usize,
    pack: impl FnOnce(&mut [u8]) -> usize,
    remote: u64,
) -> Outcome<usize> {
    let to = w.at(remote, max, Access::REMOTE_WRITE)?;
    // SAFETY: `max` bytes at `to` are inside the window and mapped; the memory is initialised (pages start
    // zeroed). Its owner may write it meanwhile, which the owner of a key with write access has agreed to.
    let room = unsafe { std::slice::from_raw_parts_mut(to, max) };
    check::packed_bytes(pack(room), max)
}

/// `Ep::get_bcopy`: the closure reads the remote memory in place, which stays mapped until it ends.
#[inline]
pub fn get_bcopy(w: &Window, len: usize, unpack: impl FnOnce(&[u8]), remote: u64) -> Outcome {
    let from = w.at(remote, len, Access::REMOTE_READ)?;
    // SAFETY: as in `put_bcopy`, for reads.
    unpack(unsafe { std::slice::from_raw_parts(from, len) });
    Ok(Sent::Done)
}

/// `Ep::put_zcopy`.
/// # Safety
/// The blocks of `list` must be valid for reads and outside the window.
#[inline]
pub unsafe fn put_zcopy<M>(w: &Window, list: &[Iov<'_, M>], remote: u64) -> Outcome {
    if let [Iov { addr, len, count: 1, .. }] = *list {
        let to = w.at(remote, len, Access::REMOTE_WRITE)?;
        // SAFETY: the caller vouches for the block; `len` bytes at `to` are inside the window.
        unsafe { copy(addr, to, len) };
        return Ok(Sent::Done);
    }
    let len = iov::checked_len(list, MAX_IOV, usize::MAX)?;
    let to = w.at(remote, len, Access::REMOTE_WRITE)?;
    // SAFETY: the caller vouches for the blocks; `len` bytes at `to` are inside the window.
    unsafe { iov::gather(list, to) };
    Ok(Sent::Done)
}

/// `Ep::get_zcopy`.
/// # Safety
/// The blocks of `list` must be valid for writes, by nobody else, and outside the window.
#[inline]
pub unsafe fn get_zcopy<M>(w: &Window, list: &[Iov<'_, M>], remote: u64) -> Outcome {
    if let [Iov { addr, len, count: 1, .. }] = *list {
        let from = w.at(remote, len, Access::REMOTE_READ)?;
        // SAFETY: the caller vouches for the block; `len` bytes at `from` are inside the window.
        unsafe { copy(from, addr, len) };
        return Ok(Sent::Done);
    }
    let len = iov::checked_len(list, MAX_IOV, usize::MAX)?;
    let from = w.at(remote, len, Access::REMOTE_READ)?;
    // SAFETY: the caller vouches for the blocks; `len` bytes at `from` are inside the window.
    unsafe { iov::scatter(from, list) };
    Ok(Sent::Done)
}

/// `Ep::put_sgl`; `window` finds what a key names.
/// # Safety
/// As for [`put_zcopy`], with the windows of all keys.
pub unsafe fn put_sgl<M, K>(
    list: &[Iov<'_, M>],
    remote: &[RemoteIov<'_, K>],
    window: impl Fn(&K) -> Result<&Window, Error>,
) -> Outcome {
    checked_sgl(list, remote, Access::REMOTE_WRITE, &window)?;
    for f in iov::fragments(list, remote) {
        let to = window(f.rkey)?.at(f.remote, f.len, Access::REMOTE_WRITE)?;
        // SAFETY: the caller vouches for the local block; `len` bytes at `to` are inside the window.
        unsafe { copy_bytes(f.addr.cast_const(), to, f.len) };
    }
    Ok(Sent::Done)
}

/// `Ep::get_sgl`; `window` finds what a key names.
/// # Safety
/// As for [`get_zcopy`], with the windows of all keys.
pub unsafe fn get_sgl<M, K>(
    list: &[Iov<'_, M>],
    remote: &[RemoteIov<'_, K>],
    window: impl Fn(&K) -> Result<&Window, Error>,
) -> Outcome {
    checked_sgl(list, remote, Access::REMOTE_READ, &window)?;
    for f in iov::fragments(list, remote) {
        let from = window(f.rkey)?.at(f.remote, f.len, Access::REMOTE_READ)?;
        // SAFETY: the caller vouches for the local block; `len` bytes at `from` are inside the window.
        unsafe { copy_bytes(from.cast_const(), f.addr, f.len) };
    }
    Ok(Sent::Done)
}

fn checked_sgl<M, K>(
    list: &[Iov<'_, M>],
    remote: &[RemoteIov<'_, K>],
    need: Access,
    window: &impl Fn(&K) -> Result<&Window, Error>,
) -> Result<(), Refused> {
    iov::checked_sgl_len(list, remote, MAX_IOV, usize::MAX)?;
    for f in iov::fragments(list, remote) {
        window(f.rkey)?.at(f.remote, f.len, need)?;
    }
    Ok(())
}

/// The limits of put and get on mapped memory: none but the number of pieces.
pub fn limits() -> RmaLimits {
    RmaLimits {
        max_short: usize::MAX,
        max_bcopy: usize::MAX,
        min_zcopy: 0,
        max_zcopy: usize::MAX,
        max_iov: MAX_IOV,
        max_remote: MAX_IOV,
    }
}

/// The atomics this CPU does on memory it has mapped.
pub fn atomics() -> AtomicCaps {
    let all = AtomicOps::all();
    let caps = [1, 2, 4, 8].into_iter().fold(AtomicCaps::default(), |caps, bytes| caps.with(bytes, all, all));
    if atomic128::present() { caps.with(16, all, all) } else { caps }
}

#[inline(always)]
fn word_at<W: Word>(w: &Window, remote: u64) -> Result<*mut W, Refused> {
    let at = w.at(remote, W::BYTES, Access::REMOTE_ATOMIC)?.cast::<W>();
    if !at.is_aligned() {
        return Err(Refused::Failed(Error::InvalidParam("atomic on an unaligned address")));
    }
    Ok(at)
}

/// Applies `op`, gives the old value.
// HOT
#[inline]
fn fetch<W: Word>(w: &Window, op: AtomicOp, value: W, remote: u64) -> Result<W, Refused> {
    let at = word_at::<W>(w, remote)?;
    // SAFETY: `word_at` checked range and alignment; the memory is mapped as long as the window is used, and
    // atomics are all that a key with REMOTE_ATOMIC promises to race with.
    let old = unsafe { word::fetch(at, op, value) };
    old.ok_or(Refused::Failed(Error::Unsupported(Op::AtomicFetch)))
}

/// `Ep::atomic_post`.
// HOT
#[inline]
pub fn atomic_post<W: Word>(w: &Window, op: AtomicOp, value: W, remote: u64) -> Outcome {
    check::postable(op)?;
    fetch(w, op, value, remote)?;
    Ok(Sent::Done)
}

/// `Ep::atomic_fetch`.
/// # Safety
/// `result` must be valid for writes.
// HOT
#[inline]
pub unsafe fn atomic_fetch<W: Word>(
    w: &Window,
    op: AtomicOp,
    value: W,
    result: NonNull<W>,
    remote: u64,
) -> Outcome {
    let old = fetch(w, op, value, remote)?;
    // SAFETY: the caller vouches for `result`.
    unsafe { result.write(old) };
    Ok(Sent::Done)
}

/// `Ep::atomic_cswap`.
/// # Safety
/// `result` must be valid for writes.
// HOT
#[inline]
pub unsafe fn atomic_cswap<W: Word>(
    w: &Window,
    compare: W,
    swap: W,
    result: NonNull<W>,
    remote: u64,
) -> Outcome {
    let at = word_at::<W>(w, remote)?;
    // SAFETY: as in `fetch`.
    let old = unsafe { word::cswap(at, compare, swap) };
    let old = old.ok_or(Refused::Failed(Error::Unsupported(Op::AtomicCswap)))?;
    // SAFETY: the caller vouches for `result`.
    unsafe { result.write(old) };
    Ok(Sent::Done)
}

/// `Ep::fence` and `Ep::flush`: everything before is visible to every process before anything after.
#[inline]
pub fn fence() {
    std::sync::atomic::fence(Ordering::SeqCst);
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn window(mem: &mut [u64], access: Access) -> Window {
        // SAFETY: the tests keep `mem` alive and leave it alone while the window is used.
        unsafe { Window::new(0x1000, size_of_val(mem), mem.as_mut_ptr().cast(), access) }
    }

    #[test]
    fn access_outside_the_window_is_refused() {
        let mut mem = [0u64; 2];
        let w = window(&mut mem, Access::ALL);
        for (remote, len) in
            [(0xfff, 1), (0x1000, 17), (0x1010, 1), (0x1011, 0), (0, 8), (u64::MAX, 2), (0x1008, usize::MAX)]
        {
            assert_eq!(w.at(remote, len, Access::REMOTE_READ), Err(Error::RemoteAccess), "{remote:#x}+{len}");
        }
        assert!(w.at(0x1010, 0, Access::REMOTE_READ).is_ok());
        assert!(w.at(0x100f, 1, Access::REMOTE_WRITE).is_ok());
    }

    #[test]
    fn access_is_by_kind() {
        let mut mem = [7u64; 1];
        let w = window(&mut mem, Access::REMOTE_READ);
        let denied = Err(Refused::Failed(Error::RemoteAccess));
        assert_eq!(put_short(&w, &[1], 0x1000), denied);
        assert_eq!(atomic_post(&w, AtomicOp::Add, 1u32, 0x1000), denied);
        let mut out = [0; 8];
        assert_eq!(get_short(&w, &mut out, 0x1000), Ok(Sent::Done));
        assert_eq!(u64::from_ne_bytes(out), 7);
    }

    #[test]
    fn unaligned_atomics_are_refused() {
        let mut mem = [0u64; 2];
        let w = window(&mut mem, Access::ALL);
        assert!(matches!(
            atomic_post(&w, AtomicOp::Add, 1u64, 0x1004),
            Err(Refused::Failed(Error::InvalidParam(_)))
        ));
        assert_eq!(atomic_post(&w, AtomicOp::Add, 1u32, 0x1004), Ok(Sent::Done));
    }
}
