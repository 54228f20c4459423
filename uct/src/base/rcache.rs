//! Registration cache for memory the program owns, bounded by count and bytes, LRU. Keeps a registration only
//! while the kernel reports unmaps ([`ucs::mem::watch`]). Memory registered by handle is found in
//! [`MemHandles`].

#![allow(unsafe_code)]

mod front;

pub use front::CacheFront;

use crate::api::{Access, Error, Md, Memory};
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use ucs::Errno;
use ucs::mem::page::page_size;
use ucs::mem::watch::{Cursor, Watch};

/// Looks at memory that is just going away, before a registration is made for one use.
const QUIESCE_TRIES: u32 = 16;

/// How much a cache may hold.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Registrations.
    pub count: usize,
    /// Bytes in all of them.
    pub bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { count: 4096, bytes: 1 << 30 }
    }
}

/// How a cache learns that memory went away.
#[derive(Debug)]
pub enum Coherence {
    /// The kernel reports unmaps.
    Kernel(Watch),
    /// Not available, for this reason: registrations are not kept after use.
    Unavailable(Errno),
}

impl Coherence {
    /// The kernel, where it can.
    pub fn open() -> Self {
        Watch::open().map_or_else(Coherence::Unavailable, Coherence::Kernel)
    }
}

/// Counters of a cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CacheStats {
    /// Found, by the cache or by a [`CacheFront`].
    pub hits: u64,
    /// Registered anew.
    pub misses: u64,
    /// Dropped to make room.
    pub evicted: u64,
    /// Dropped since their memory went away.
    pub invalidated: u64,
    /// Registrations now.
    pub count: usize,
    /// Their bytes.
    pub bytes: usize,
}

struct Entry<M> {
    mem: Arc<M>,
    len: usize,
    access: Access,
    used: u64,
    /// A front has found it since it was last considered for eviction.
    found: Arc<AtomicBool>,
}

struct Entries<M> {
    at: BTreeMap<usize, Entry<M>>,
    by_use: BTreeMap<u64, usize>,
    clock: u64,
    stats: CacheStats,
    cursor: Cursor,
    /// Hits of each front; and of those that are gone.
    front_hits: Vec<Weak<AtomicU64>>,
    past_hits: u64,
}

/// Registrations of one memory domain, for any thread. Each call takes a lock; a [`CacheFront`] finds what it
/// has found before without.
pub struct RegCache<D: Md> {
    md: D,
    limits: Limits,
    coherence: Coherence,
    /// Number of revocations: fronts forget what they have found when it changes.
    revoked: AtomicU64,
    entries: Mutex<Entries<D::Mem>>,
}

/// A registration that the cache holds, and where a front notes that it has found it again.
struct Found<M> {
    mem: Arc<M>,
    /// `None`: the cache does not hold it.
    note: Option<Arc<AtomicBool>>,
    /// It has been made by this call.
    is_new: bool,
}

/// Registrations made by the program by handle; removed before their memory goes. Copies keep none alive.
pub struct MemHandles<M> {
    /// By first byte, and a number apart from others that begin there.
    at: BTreeMap<(usize, u64), Handle<M>>,
    entered: u64,
    longest: usize,
}

struct Handle<M> {
    len: usize,
    access: Access,
    mem: Weak<M>,
}

impl<M> Clone for Handle<M> {
    fn clone(&self) -> Self {
        Handle { len: self.len, access: self.access, mem: self.mem.clone() }
    }
}

impl<M> Clone for MemHandles<M> {
    fn clone(&self) -> Self {
        MemHandles { at: self.at.clone(), entered: self.entered, longest: self.longest }
    }
}

impl<M> Default for MemHandles<M> {
    fn default() -> Self {
        MemHandles { at: BTreeMap::new(), entered: 0, longest: 0 }
    }
}

impl<M: Memory> MemHandles<M> {
    /// Enters one. They may overlap.
    pub fn insert(&mut self, mem: &Arc<M>) {
        self.entered += 1;
        self.longest = self.longest.max(mem.len());
        let handle = Handle { len: mem.len(), access: mem.access(), mem: Arc::downgrade(mem) };
        self.at.insert((mem.addr().addr(), self.entered), handle);
    }

    /// Takes out what was entered; whether it was there.
    pub fn remove(&mut self, mem: &Arc<M>) -> bool {
        let start = mem.addr().addr();
        let mut same = self.at.range((start, 0)..=(start, u64::MAX));
        let same = same.find(|(_, handle)| std::ptr::eq(handle.mem.as_ptr(), Arc::as_ptr(mem)));
        let Some(at) = same.map(|(at, _)| *at) else { return false };
        self.at.remove(&at);
        if self.at.is_empty() {
            self.longest = 0;
        }
        true
    }

    /// One that covers `len` bytes at `addr` and allows `access`, of several the one that begins last.
    pub fn find(&self, addr: usize, len: usize, access: Access) -> Option<Arc<M>> {
        let end = addr.checked_add(len)?;
        let first = end.saturating_sub(self.longest);
        if first > addr {
            return None;
        }
        let mut before = self.at.range((first, 0)..=(addr, u64::MAX)).rev();
        before.find_map(|((start, _), handle)| {
            let covers = handle.len.checked_sub(addr - start).is_some_and(|room| len <= room);
            if covers && handle.access.contains(access) { handle.mem.upgrade() } else { None }
        })
    }
}

fn is_exhaustion(e: Error) -> bool {
    const MORE: [i32; 5] = [libc::ENOMEM, libc::ENOSPC, libc::EAGAIN, libc::EMFILE, libc::ENFILE];
    match e {
        Error::NoMemory | Error::Exhausted(_) | Error::NoDescriptor => true,
        Error::Sys { errno, .. } => MORE.contains(&errno.0),
        _ => false,
    }
}

impl<M> Default for Entries<M> {
    fn default() -> Self {
        Entries {
            at: BTreeMap::new(),
            by_use: BTreeMap::new(),
            clock: 0,
            stats: CacheStats::default(),
            cursor: Cursor::default(),
            front_hits: Vec::new(),
            past_hits: 0,
        }
    }
}

impl<M> Entries<M> {
    fn find(&mut self, addr: usize, len: usize, access: Access) -> Option<Found<M>> {
        let (&start, entry) = self.at.range_mut(..=addr).next_back()?;
        if addr - start > entry.len || len > entry.len - (addr - start) || !entry.access.contains(access) {
            return None;
        }
        let found = Found { mem: entry.mem.clone(), note: Some(entry.found.clone()), is_new: false };
        self.touch(start);
        Some(found)
    }

    /// Makes an entry the one used last.
    fn touch(&mut self, start: usize) {
        let Some(entry) = self.at.get_mut(&start) else { return };
        self.clock += 1;
        self.by_use.remove(&entry.used);
        self.by_use.insert(self.clock, start);
        entry.used = self.clock;
    }

    /// Takes out the unused entry that was used longest ago; those that a front has found go behind.
    fn take_oldest(&mut self) -> Option<Entry<M>> {
        let found: Vec<usize> = self.by_use.values().copied().filter(|at| self.was_found(*at)).collect();
        found.into_iter().for_each(|at| self.touch(at));
        let idle = |at: &&usize| self.at.get(at).is_some_and(|e| Arc::strong_count(&e.mem) == 1);
        let at = *self.by_use.values().find(idle)?;
        self.stats.evicted += 1;
        self.remove(at)
    }

    fn was_found(&self, at: usize) -> bool {
        self.at.get(&at).is_some_and(|entry| entry.found.swap(false, Ordering::Relaxed))
    }

    /// Adds up the hits of fronts, and forgets those that are gone.
    fn hits_of_fronts(&mut self) -> u64 {
        let hits = |front: &Weak<AtomicU64>| front.upgrade().map_or(0, |hits| hits.load(Ordering::Relaxed));
        self.front_hits.retain(|front| front.strong_count() > 0);
        self.past_hits + self.front_hits.iter().map(hits).sum::<u64>()
    }

    fn insert(&mut self, start: usize, mut entry: Entry<M>) {
        self.clock += 1;
        entry.used = self.clock;
        self.by_use.insert(self.clock, start);
        self.stats.count += 1;
        self.stats.bytes += entry.len;
        if let Some(old) = self.at.insert(start, entry) {
            self.forget(&old);
        }
    }

    fn forget(&mut self, entry: &Entry<M>) {
        self.by_use.remove(&entry.used);
        self.stats.count -= 1;
        self.stats.bytes -= entry.len;
    }

    fn overlapping(&self, start: usize, len: usize) -> Vec<usize> {
        let end = start.saturating_add(len);
        let before =
            self.at.range(..start).next_back().filter(|(at, e)| start - **at < e.len).map(|(at, _)| *at);
        before.into_iter().chain(self.at.range(start..end).map(|(at, _)| *at)).collect()
    }

    fn invalidate(&mut self, start: usize, len: usize) {
        let gone = self.overlapping(start, len);
        self.stats.invalidated += gone.len() as u64;
        gone.into_iter().for_each(|at| drop(self.remove(at)));
    }

    fn remove(&mut self, start: usize) -> Option<Entry<M>> {
        let entry = self.at.remove(&start)?;
        self.forget(&entry);
        Some(entry)
    }
}

impl<D: Md> RegCache<D> {
    /// An empty cache.
    pub fn new(md: D, limits: Limits, coherence: Coherence) -> Self {
        RegCache { md, limits, coherence, revoked: AtomicU64::new(0), entries: Mutex::default() }
    }

    /// How it learns that memory went away.
    pub fn coherence(&self) -> &Coherence {
        &self.coherence
    }

    /// Counters.
    pub fn stats(&self) -> CacheStats {
        let mut entries = self.lock();
        let hits = entries.stats.hits + entries.hits_of_fronts();
        CacheStats { hits, ..entries.stats }
    }

    fn lock(&self) -> MutexGuard<'_, Entries<D::Mem>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Finds or makes a registration of the whole pages that covers `len` bytes and allows `access`. Other
    /// threads wait meanwhile, so that they register the same memory once.
    /// # Safety
    /// As [`Md::register`], for those pages and while the result lives.
    pub unsafe fn get(&self, addr: NonNull<u8>, len: usize, access: Access) -> Result<Arc<D::Mem>, Error> {
        // SAFETY: the caller's promise is the same.
        unsafe { self.get_noted(addr, len, access) }.map(|found| found.mem)
    }

    /// # Safety
    /// As for [`RegCache::get`].
    unsafe fn get_noted(
        &self,
        addr: NonNull<u8>,
        len: usize,
        access: Access,
    ) -> Result<Found<D::Mem>, Error> {
        let mut entries = self.lock();
        self.catch_up(&mut entries);
        let at = addr.addr().get();
        let mut found = entries.find(at, len, access);
        if found.is_some() {
            if !self.is_quiescent() {
                entries.stats.misses += 1;
                drop(entries);
                // SAFETY: the caller's promise is the same.
                return unsafe { self.register_once(addr, len, access) };
            }
            if self.catch_up(&mut entries) {
                found = entries.find(at, len, access);
            }
        }
        if let Some(found) = found {
            entries.stats.hits += 1;
            return Ok(found);
        }
        entries.stats.misses += 1;
        // SAFETY: the caller's promise is the same.
        unsafe { self.register(&mut entries, addr, len, access) }
    }

    /// Registers for one use, beside the cache.
    /// # Safety
    /// As for [`RegCache::get`].
    unsafe fn register_once(
        &self,
        addr: NonNull<u8>,
        len: usize,
        access: Access,
    ) -> Result<Found<D::Mem>, Error> {
        // SAFETY: the caller's promise is the same.
        let mem = unsafe { self.md.register(addr.as_ptr(), len, access) }?;
        Ok(Found { mem: Arc::new(mem), note: None, is_new: true })
    }

    /// Drops a registration from the cache and its fronts; its key must not be used any more. Operations of
    /// other threads that have it keep it until their end.
    pub fn revoke(&self, mem: Arc<D::Mem>) {
        let start = mem.addr().addr();
        let mut entries = self.lock();
        let is_it = |entry: &Entry<D::Mem>| Arc::ptr_eq(&entry.mem, &mem);
        let old = if entries.at.get(&start).is_some_and(is_it) { entries.remove(start) } else { None };
        self.revoked.fetch_add(1, Ordering::Release);
        // Deregistering calls the device: without the lock.
        drop(entries);
        drop((old, mem));
    }

    /// # Safety
    /// As for [`RegCache::get`].
    #[cold]
    unsafe fn register(
        &self,
        entries: &mut Entries<D::Mem>,
        addr: NonNull<u8>,
        len: usize,
        access: Access,
    ) -> Result<Found<D::Mem>, Error> {
        let page = page_size();
        let start = addr.addr().get() & !(page - 1);
        let end = addr.addr().get().checked_add(len).and_then(|end| end.checked_next_multiple_of(page));
        let len = end.ok_or(Error::InvalidParam("range leaves the address space"))? - start;
        let first = addr.as_ptr().wrapping_sub(addr.addr().get() - start);
        // Overlapping entries go, and their access is added, so that two users of a page do not evict each
        // other.
        let mut access = access;
        for at in entries.overlapping(start, len) {
            access |= entries.remove(at).map_or(Access::empty(), |entry| entry.access);
        }
        let watched = match (&self.coherence, NonNull::new(first)) {
            (Coherence::Kernel(watch), Some(first)) => watch.add(first, len).is_ok(),
            _ => false,
        };
        let keep = watched && len <= self.limits.bytes && self.limits.count > 0;
        if keep {
            self.make_room(entries, len);
        }
        let mem = loop {
            // SAFETY: the caller's promise is for the whole pages.
            match unsafe { self.md.register(first, len, access) } {
                Ok(mem) => break Arc::new(mem),
                // The device has no more, or the user no more memory to lock: an unused one may give way.
                Err(e) if is_exhaustion(e) && entries.take_oldest().is_some() => {}
                Err(e) => return Err(e),
            }
        };
        let note = keep.then(Arc::<AtomicBool>::default);
        if let Some(found) = note.clone() {
            entries.insert(start, Entry { mem: mem.clone(), len, access, used: 0, found });
        }
        Ok(Found { mem, note, is_new: true })
    }

    /// Forgets registrations of memory that goes away; running operations keep theirs.
    pub fn invalidate(&self, start: usize, len: usize) {
        self.lock().invalidate(start, len);
    }

    /// Drops all unused registrations.
    pub fn shrink(&self) {
        let mut entries = self.lock();
        while entries.take_oldest().is_some() {}
    }

    /// Applies the unmaps reported since last time; answers whether there were any.
    fn catch_up(&self, entries: &mut Entries<D::Mem>) -> bool {
        let Coherence::Kernel(watch) = &self.coherence else { return false };
        let mut changed = false;
        let mut cursor = std::mem::take(&mut entries.cursor);
        watch.drain(&mut cursor, |start, len| {
            changed = true;
            entries.invalidate(start, len);
        });
        entries.cursor = cursor;
        changed
    }

    /// Whether the kernel has reported every unmap that a mapping in use by now may have replaced.
    fn is_quiescent(&self) -> bool {
        let Coherence::Kernel(watch) = &self.coherence else { return false };
        // The unmapping thread waits for a thread of ours, so this is short.
        let wait = |n| {
            if n > 0 {
                std::thread::yield_now();
            }
            watch.is_quiescent()
        };
        (0..QUIESCE_TRIES).any(wait)
    }

    fn make_room(&self, entries: &mut Entries<D::Mem>, len: usize) {
        let full =
            |s: CacheStats| s.count >= self.limits.count || s.bytes.saturating_add(len) > self.limits.bytes;
        while full(entries.stats) && entries.take_oldest().is_some() {}
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
