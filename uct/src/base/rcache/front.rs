//! A thread's own view of a [`RegCache`]: finds again what it has found before, without the lock.

use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use ucs::mem::watch::Cursor;

use super::{Coherence, Found, RegCache};
use crate::api::{Access, Error, Md, Memory};

/// Most ranges that a front remembers.
const MAX_RANGES: usize = 256;

/// The recent registrations of one user of a cache. Keeps none alive: the cache alone evicts. Follows
/// unmapped memory by itself, as the cache does, and forgets everything after a revocation.
pub struct CacheFront<D: Md> {
    cache: Arc<RegCache<D>>,
    ranges: BTreeMap<usize, Range<D::Mem>>,
    cursor: Cursor,
    /// [`RegCache`]'s number of revocations that this front has followed.
    revoked: u64,
    /// Written by this front alone.
    hits: Arc<AtomicU64>,
    made: u64,
}

struct Range<M> {
    mem: Weak<M>,
    len: usize,
    access: Access,
    note: Arc<AtomicBool>,
}

impl<D: Md> CacheFront<D> {
    /// A front that remembers nothing yet.
    pub fn new(cache: Arc<RegCache<D>>) -> CacheFront<D> {
        let hits = Arc::default();
        let mut entries = cache.lock();
        entries.hits_of_fronts();
        entries.front_hits.push(Arc::downgrade(&hits));
        drop(entries);
        CacheFront { cache, ranges: BTreeMap::new(), cursor: Cursor::default(), revoked: 0, hits, made: 0 }
    }

    /// The cache behind it.
    pub fn cache(&self) -> &Arc<RegCache<D>> {
        &self.cache
    }

    /// Registrations made through this front.
    pub fn made(&self) -> u64 {
        self.made
    }

    /// Finds or makes a registration, as [`RegCache::get`]. One that it has found before costs no lock.
    /// # Safety
    /// As for [`RegCache::get`].
    pub unsafe fn get(
        &mut self,
        addr: NonNull<u8>,
        len: usize,
        access: Access,
    ) -> Result<Arc<D::Mem>, Error> {
        let at = addr.addr().get();
        self.catch_up();
        // What was unmapped before this call is known once no thread is in the midst of unmapping.
        if self.range_of(at, len, access).is_some() && self.cache.is_quiescent() {
            self.catch_up();
            if let Some((mem, note)) = self.find(at, len, access) {
                // Read first: the line is written once between two evictions.
                if !note.load(Ordering::Relaxed) {
                    note.store(true, Ordering::Relaxed);
                }
                self.hits.store(self.hits.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
                return Ok(mem);
            }
        }
        // SAFETY: the caller's promise is the same.
        let found = unsafe { self.cache.get_noted(addr, len, access) }?;
        self.made += u64::from(found.is_new);
        Ok(self.remember(found))
    }

    fn find(&self, at: usize, len: usize, access: Access) -> Option<(Arc<D::Mem>, &AtomicBool)> {
        let range = self.range_of(at, len, access)?;
        Some((range.mem.upgrade()?, &range.note))
    }

    fn range_of(&self, at: usize, len: usize, access: Access) -> Option<&Range<D::Mem>> {
        let (start, range) = self.ranges.range(..=at).next_back()?;
        let covers = range.len.checked_sub(at - start).is_some_and(|room| len <= room);
        (covers && range.access.contains(access)).then_some(range)
    }

    fn remember(&mut self, Found { mem, note, .. }: Found<D::Mem>) -> Arc<D::Mem> {
        let Some(note) = note else { return mem };
        if self.ranges.len() >= MAX_RANGES {
            self.ranges.retain(|_, range| range.mem.strong_count() > 0);
        }
        if self.ranges.len() >= MAX_RANGES {
            self.ranges.clear();
        }
        let (len, access) = (mem.len(), mem.access());
        self.ranges.insert(mem.addr().addr(), Range { mem: Arc::downgrade(&mem), len, access, note });
        mem
    }

    /// Forgets what has been unmapped or revoked since last time.
    fn catch_up(&mut self) {
        let revoked = self.cache.revoked.load(Ordering::Acquire);
        if revoked != self.revoked {
            self.revoked = revoked;
            self.ranges.clear();
        }
        let Coherence::Kernel(watch) = self.cache.coherence() else { return };
        let ranges = &mut self.ranges;
        watch.drain(&mut self.cursor, |start, len| {
            let end = start.saturating_add(len);
            ranges.retain(|at, range| at.saturating_add(range.len) <= start || end <= *at);
        });
    }
}

impl<D: Md> Drop for CacheFront<D> {
    fn drop(&mut self) {
        let hits = self.hits.load(Ordering::Relaxed);
        let mut entries = self.cache.lock();
        entries.past_hits += hits;
        let gone = Arc::as_ptr(&self.hits);
        entries.front_hits.retain(|front| !std::ptr::eq(front.as_ptr(), gone));
    }
}
