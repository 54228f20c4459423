//! Address handles of a protection domain: one for each GID, for all interfaces on it. Changed under a lock,
//! read by posts and completions without one.

#![allow(unsafe_code)]

use super::context::PORT;
use super::efadv;
use super::status::error;
use crate::api::Error;
use crate::efa::dev::Gid;
use rdma_sys::*;
use rustc_hash::FxHashMap;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering, fence};
use std::sync::{Mutex, MutexGuard, PoisonError};
use ucs::Errno;
use zerocopy::FromZeros;

/// An address handle: an index in its domain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ah(u32);

/// Most handles of a domain. The device numbers them with 16 bits.
const MAX_AHS: usize = 1 << 16;

pub(super) struct AhTable {
    /// The library's handles by index; null where there is none.
    handles: Box<[AtomicPtr<ibv_ah>]>,
    /// GIDs by AHN, by which completions name senders.
    gids: Box<[GidEntry]>,
    registry: Mutex<Registry>,
}

#[derive(Default)]
struct Registry {
    entries: Vec<Option<AhEntry>>,
    free: Vec<u32>,
    by_gid: FxHashMap<Gid, u32>,
}

struct AhEntry {
    ptr: NonNull<ibv_ah>,
    gid: Gid,
    ahn: u16,
    refs: u32,
}

// SAFETY: a handle of the library is for any thread; it is destroyed under the lock.
unsafe impl Send for AhEntry {}

/// A GID in two words, of which the low one is never zero; zero: none.
#[derive(FromZeros)]
#[repr(C)]
struct GidEntry {
    low: AtomicU64,
    high: AtomicU64,
}

impl GidEntry {
    /// Sets or clears the entry. The caller holds the lock.
    fn set(&self, gid: Option<Gid>) {
        // SYNC(ahn): an entry in use has no low word while it changes; a reader that sees the same low word
        // before and after has both words of one GID.
        self.low.store(0, Ordering::Relaxed);
        fence(Ordering::Release);
        if let Some(gid) = gid {
            let bits = u128::from_ne_bytes(gid.0);
            self.high.store((bits >> 64) as u64, Ordering::Relaxed);
            self.low.store(bits as u64, Ordering::Release);
        }
    }

    // HOT
    #[inline]
    fn get(&self) -> Option<Gid> {
        // SYNC(ahn)
        let low = self.low.load(Ordering::Acquire);
        let high = self.high.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        let whole = low != 0 && self.low.load(Ordering::Relaxed) == low;
        whole.then(|| Gid((u128::from(high) << 64 | u128::from(low)).to_ne_bytes()))
    }
}

impl AhTable {
    pub(super) fn new() -> Result<AhTable, Error> {
        Ok(AhTable {
            handles: <[AtomicPtr<ibv_ah>]>::new_box_zeroed_with_elems(MAX_AHS)
                .map_err(|_| Error::NoMemory)?,
            gids: <[GidEntry]>::new_box_zeroed_with_elems(1 << 16).map_err(|_| Error::NoMemory)?,
            registry: Mutex::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Creates the handle of a GID, or adds a reference. `pd` is the live domain of the table.
    pub(super) fn create(&self, pd: *mut ibv_pd, gid: Gid) -> Result<Ah, Error> {
        let t = &mut *self.lock();
        if let Some(&at) = t.by_gid.get(&gid) {
            if let Some(entry) = &mut t.entries[at as usize] {
                entry.refs += 1;
            }
            return Ok(Ah(at));
        }
        if t.free.is_empty() && t.entries.len() == MAX_AHS {
            return Err(Error::Exhausted("address handles"));
        }
        let (ptr, ahn) = make(pd, gid)?;
        let at = t.free.pop().unwrap_or_else(|| {
            t.entries.push(None);
            t.entries.len() as u32 - 1
        });
        t.entries[at as usize] = Some(AhEntry { ptr, gid, ahn, refs: 1 });
        t.by_gid.insert(gid, at);
        self.gids[usize::from(ahn)].set(Some(gid));
        // SYNC(ah): what the library has written is seen with the pointer.
        self.handles[at as usize].store(ptr.as_ptr(), Ordering::Release);
        Ok(Ah(at))
    }

    /// Drops a reference to a handle; the last one destroys it.
    pub(super) fn destroy(&self, ah: Ah) {
        let t = &mut *self.lock();
        let Some(slot) = t.entries.get_mut(ah.0 as usize) else { return };
        let Some(entry) = slot else { return };
        entry.refs -= 1;
        if entry.refs > 0 {
            return;
        }
        t.by_gid.remove(&entry.gid);
        t.free.push(ah.0);
        self.handles[ah.0 as usize].store(std::ptr::null_mut(), Ordering::Relaxed);
        self.gids[usize::from(entry.ahn)].set(None);
        // SAFETY: made by `make`, destroyed once: its entry is emptied now. No endpoint refers to it.
        unsafe { ibv_destroy_ah(entry.ptr.as_ptr()) };
        *slot = None;
    }

    /// The library's handle; `None` if it was destroyed.
    // HOT
    #[inline]
    pub(super) fn handle(&self, ah: Ah) -> Option<*mut ibv_ah> {
        // SYNC(ah)
        let handle = self.handles.get(ah.0 as usize)?.load(Ordering::Acquire);
        (!handle.is_null()).then_some(handle)
    }

    /// GID of an AHN.
    // HOT
    #[inline]
    pub(super) fn gid_of(&self, ahn: u32) -> Option<Gid> {
        self.gids.get(ahn as usize)?.get()
    }
}

impl Drop for AhTable {
    fn drop(&mut self) {
        for entry in self.lock().entries.drain(..).flatten() {
            // SAFETY: made by `make`; nobody is left to post with it.
            unsafe { ibv_destroy_ah(entry.ptr.as_ptr()) };
        }
    }
}

fn make(pd: *mut ibv_pd, gid: Gid) -> Result<(NonNull<ibv_ah>, u16), Error> {
    // SAFETY: integers only.
    let mut attr: ibv_ah_attr = unsafe { std::mem::zeroed() };
    attr.grh.dgid = ibv_gid { raw: gid.0 };
    attr.is_global = 1;
    attr.port_num = PORT;
    // SAFETY: a live domain (the caller's promise to `create`), a whole attribute.
    let ptr = unsafe { ibv_create_ah(pd, &mut attr) };
    let ptr = NonNull::new(ptr).ok_or_else(|| match Errno::last_os().0 {
        libc::ENOMEM => Error::Exhausted("address handles"),
        e => error("ibv_create_ah", Errno(e)),
    })?;
    let mut efa = efadv::AhAttr::default();
    // SAFETY: a live handle; `efa` is as long as is said.
    let failed = unsafe { efadv::efadv_query_ah(ptr.as_ptr(), &mut efa, size_of_val(&efa) as u32) };
    if failed != 0 {
        // SAFETY: made above, known to nobody.
        unsafe { ibv_destroy_ah(ptr.as_ptr()) };
        return Err(error("efadv_query_ah", Errno(failed)));
    }
    Ok((ptr, efa.ahn))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gid_is_read_whole() {
        let entry = GidEntry { low: AtomicU64::new(0), high: AtomicU64::new(0) };
        let (a, b) = (Gid::link_local(0x1111), Gid::link_local(u64::MAX));
        assert_eq!(entry.get(), None);
        entry.set(Some(a));
        assert_eq!(entry.get(), Some(a));
        entry.set(None);
        assert_eq!(entry.get(), None);
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                (0..100_000).for_each(|n| entry.set([Some(a), None, Some(b)][n % 3]));
            });
            while !writer.is_finished() {
                assert!(entry.get().is_none_or(|gid| gid == a || gid == b));
            }
        });
    }
}
