//! The cache over the memory domain of `self`, with the kernel's notices where there are any.

#![allow(unsafe_code)]

use super::*;
use crate::api::{AllocReq, Iface as _, MdAttr};
use crate::loopback;
use proptest::prelude::*;
use std::sync::{Arc, Mutex};
use ucs::mem::{MapOpts, Mapping};

static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> std::sync::MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

const RW: Access = Access::LOCAL_READ.union(Access::LOCAL_WRITE);

fn cache(limits: Limits) -> Option<RegCache<loopback::Md>> {
    let md = loopback::Iface::open(&Default::default()).unwrap().md().clone();
    match Coherence::open() {
        coherence @ Coherence::Kernel(_) => Some(RegCache::new(md, limits, coherence)),
        Coherence::Unavailable(why) => {
            ucs::testing::skipped("a test of the registration cache", why);
            None
        }
    }
}

fn map(pages: usize) -> Mapping {
    Mapping::new(pages * page_size(), MapOpts::default()).unwrap()
}

fn get(cache: &RegCache<loopback::Md>, map: &Mapping, from: usize, len: usize) -> Arc<loopback::Mem> {
    let at = NonNull::new(map.as_ptr().wrapping_add(from)).unwrap();
    // SAFETY: the tests keep the mapping while they use the registration.
    unsafe { cache.get(at, len, RW) }.unwrap()
}

#[test]
fn a_buffer_is_registered_once_until_it_is_unmapped() {
    let _alone = alone();
    let Some(cache) = cache(Limits::default()) else { return };
    let memory = map(4);
    let first = get(&cache, &memory, 100, 5000);
    assert_eq!((first.addr(), first.len()), (memory.as_ptr(), 2 * page_size()));
    assert!(Arc::ptr_eq(&first, &get(&cache, &memory, 0, 8192)));
    let wider = get(&cache, &memory, 5000, 5000);
    assert!(!Arc::ptr_eq(&first, &wider));
    assert_eq!((cache.stats().hits, cache.stats().misses, cache.stats().count), (1, 2, 1));
    let at = memory.as_ptr().addr();
    drop((first, wider, memory));
    let again = map(4);
    let _mem = get(&cache, &again, 0, 100);
    assert_eq!((cache.stats().invalidated, cache.stats().misses), (1, 3), "old {at:#x}, new {again:?}");
}

#[test]
fn limits_hold_and_the_least_recently_used_is_evicted() {
    let _alone = alone();
    let Some(cache) = cache(Limits { count: 3, bytes: 5 * page_size() }) else { return };
    let maps: Vec<_> = (0..4).map(|_| map(1)).collect();
    let held = get(&cache, &maps[0], 0, 1);
    maps[1..].iter().for_each(|map| drop(get(&cache, map, 0, 1)));
    assert_eq!((cache.stats().count, cache.stats().evicted), (3, 1));
    assert!(Arc::ptr_eq(&held, &get(&cache, &maps[0], 0, 1)), "in use: not evicted, though the oldest");
    get(&cache, &maps[2], 0, 1);
    assert_eq!(cache.stats().misses, 4, "the one evicted was the second");
    let large = map(6);
    let mem = get(&cache, &large, 0, 6 * page_size());
    let why = "too large to keep, and in nobody's way";
    assert_eq!((mem.len(), cache.stats().count), (6 * page_size(), 3), "{why}");
    drop(held);
    cache.shrink();
    assert_eq!((cache.stats().count, cache.stats().bytes), (0, 0));
}

#[test]
fn overlapping_handles_are_found() {
    let md = loopback::Iface::open(&Default::default()).unwrap().md().clone();
    let memory = map(4);
    let reg = |from: usize, len, access| {
        // SAFETY: the mapping outlives its registrations.
        Arc::new(unsafe { md.register(memory.as_ptr().wrapping_add(from), len, access) }.unwrap())
    };
    let mut handles = MemHandles::default();
    let at = |from: usize| memory.as_ptr().addr() + from;
    assert!(handles.find(at(0), 1, RW).is_none());
    let all = reg(0, 10_000, Access::ALL);
    let (short, same, nested) = (reg(0, 100, RW), reg(0, 100, RW), reg(5000, 10, RW));
    [&all, &short, &same, &nested].into_iter().for_each(|mem| handles.insert(mem));
    let found = |handles: &MemHandles<_>, from, len, access, want: Option<&Arc<loopback::Mem>>| match want {
        Some(want) => handles.find(at(from), len, access).is_some_and(|mem| Arc::ptr_eq(&mem, want)),
        None => handles.find(at(from), len, access).is_none(),
    };
    assert!(found(&handles, 5000, 10, RW, Some(&nested)));
    assert!(found(&handles, 5000, 11, RW, Some(&all)), "the one that begins last is too short");
    assert!(found(&handles, 5000, 10, Access::REMOTE_READ, Some(&all)), "or may not be used like that");
    assert!(found(&handles, 0, 10_000, RW, Some(&all)) && found(&handles, 9999, 1, RW, Some(&all)));
    for (from, len) in [(0, 10_001), (9999, 2), (10_001, 0), (1, usize::MAX)] {
        assert!(found(&handles, from, len, RW, None), "{len} at {from}");
    }
    assert!(handles.remove(&same) && !handles.remove(&same));
    assert!(found(&handles, 0, 100, RW, Some(&short)), "another one that begins there stays");
    assert!(handles.remove(&all));
    assert!(found(&handles, 5000, 11, RW, None));
    assert!(handles.remove(&short) && handles.remove(&nested));
    assert!(found(&handles, 5000, 1, RW, None));
}

struct Refusing {
    md: loopback::Md,
    why: Arc<Mutex<Option<Error>>>,
}

impl Md for Refusing {
    type Mem = loopback::Mem;
    type Rkey = loopback::Rkey;

    fn attr(&self) -> &MdAttr {
        self.md.attr()
    }

    fn alloc(&self, req: &AllocReq<'_>) -> Result<loopback::Mem, Error> {
        self.md.alloc(req)
    }

    unsafe fn register(&self, addr: *mut u8, len: usize, access: Access) -> Result<loopback::Mem, Error> {
        match *self.why.lock().unwrap() {
            Some(why) => Err(why),
            // SAFETY: the caller's promise is the same.
            None => unsafe { self.md.register(addr, len, access) },
        }
    }
}

#[test]
fn only_exhaustion_evicts() {
    let _alone = alone();
    let Some(inner) = cache(Limits::default()) else { return };
    let why = Arc::new(Mutex::new(None));
    let md = Refusing { md: inner.md.clone(), why: why.clone() };
    let cache = RegCache::new(md, Limits::default(), Coherence::open());
    let maps: Vec<_> = (0..4).map(|_| map(1)).collect();
    // SAFETY: the mappings outlive their registrations.
    let get = |map: &Mapping| unsafe { cache.get(NonNull::new(map.as_ptr()).unwrap(), 1, RW) }.map(drop);
    maps[..3].iter().for_each(|map| get(map).unwrap());
    let sys = |errno| Error::Sys { call: "ibv_reg_mr", errno: Errno(errno) };
    for error in [sys(libc::EINVAL), sys(libc::EFAULT), sys(libc::EPERM), Error::BadLocalKey] {
        *why.lock().unwrap() = Some(error);
        assert_eq!(get(&maps[3]), Err(error));
        assert_eq!((cache.stats().count, cache.stats().evicted), (3, 0), "{error}");
    }
    *why.lock().unwrap() = Some(sys(libc::ENOMEM));
    assert_eq!(get(&maps[3]), Err(sys(libc::ENOMEM)));
    assert_eq!((cache.stats().count, cache.stats().evicted), (0, 3));
}

proptest! {
    #[test]
    fn found_registrations_are_valid(steps in prop::collection::vec((0u8..4, 0usize..16, 1usize..5), 1..80)) {
        let _alone = alone();
        let md = loopback::Iface::open(&Default::default()).unwrap().md().clone();
        let Coherence::Kernel(watch) = Coherence::open() else { return Ok(()) };
        let cache = RegCache::new(md, Limits { count: 6, bytes: 12 * page_size() }, Coherence::Kernel(watch));
        let memory = map(24);
        let mut fresh_after = [0u64; 24];
        let mut born: Vec<(Arc<loopback::Mem>, u64)> = Vec::new();
        for (now, (what, page, pages)) in (1u64..).zip(steps) {
            if what == 0 {
                cache.invalidate(memory.as_ptr().addr() + page * page_size(), pages * page_size());
                fresh_after[page..page + pages].fill(now);
                continue;
            }
            let mem = get(&cache, &memory, page * page_size() + 1, pages * page_size() - 1);
            let start = (mem.addr().addr() - memory.as_ptr().addr()) / page_size();
            let end = start + mem.len() / page_size();
            prop_assert!(start <= page && page + pages <= end);
            match born.iter().find(|(known, _)| Arc::ptr_eq(known, &mem)) {
                Some((_, birth)) => prop_assert!(fresh_after[start..end].iter().all(|gone| gone < birth)),
                None => born.push((mem, now)),
            }
            if what == 1 {
                born.clear();
            }
        }
        // Registrations in use may exceed the limits; unused ones do not after the next call.
        drop(born);
        get(&cache, &memory, 23 * page_size(), 1);
        prop_assert!(cache.stats().bytes <= 12 * page_size() && cache.stats().count <= 6);
    }
}

fn find(front: &mut CacheFront<loopback::Md>, map: &Mapping) -> Arc<loopback::Mem> {
    let at = NonNull::new(map.as_ptr()).unwrap();
    // SAFETY: the tests keep the mapping while they use the registration.
    unsafe { front.get(at, map.len(), RW) }.unwrap()
}

#[test]
fn fronts_share_registrations_and_forget_what_is_revoked_or_unmapped() {
    let _alone = alone();
    let Some(cache) = cache(Limits::default()).map(Arc::new) else { return };
    let (mut one, mut two) = (CacheFront::new(cache.clone()), CacheFront::new(cache.clone()));
    let memory = map(2);
    let mem = find(&mut one, &memory);
    for n in 0..4 {
        assert!(Arc::ptr_eq(&mem, &find(if n % 2 == 0 { &mut one } else { &mut two }, &memory)));
    }
    assert_eq!((cache.stats().hits, cache.stats().misses, one.made(), two.made()), (4, 1, 1, 0));
    // The key of a registration that one revokes is not given out by the other.
    cache.revoke(mem.clone());
    let new = find(&mut two, &memory);
    assert!(!Arc::ptr_eq(&mem, &new) && Arc::ptr_eq(&new, &find(&mut one, &memory)));
    // Nobody has it now but the cache, which alone decides to keep it.
    let kept = Arc::downgrade(&new);
    drop((mem, new));
    assert_eq!(kept.strong_count(), 1);
    cache.shrink();
    assert_eq!(kept.strong_count(), 0);
    assert_eq!((find(&mut one, &memory).len(), cache.stats().misses), (memory.len(), 3));
    // Memory at the same place later is other memory.
    let start = memory.as_ptr();
    drop(memory);
    let again = map(2);
    let mem = find(&mut one, &again);
    assert_eq!(mem.addr(), again.as_ptr(), "was at {start:?}");
    assert!(Arc::ptr_eq(&mem, &find(&mut two, &again)));
    assert_eq!((cache.stats().misses, cache.stats().invalidated), (4, 1));
    let hits = cache.stats().hits;
    drop((one, two));
    assert_eq!(cache.stats().hits, hits, "of fronts that are gone, too");
}

#[test]
fn what_fronts_find_is_evicted_last() {
    let _alone = alone();
    let Some(cache) = cache(Limits { count: 3, bytes: 1 << 20 }).map(Arc::new) else { return };
    let mut front = CacheFront::new(cache.clone());
    let maps: Vec<_> = (0..5).map(|_| map(1)).collect();
    maps[..3].iter().for_each(|map| drop(find(&mut front, map)));
    // The front finds the oldest without the cache's knowing; the second is the oldest then.
    drop(find(&mut front, &maps[0]));
    drop(find(&mut front, &maps[3]));
    let misses = cache.stats().misses;
    [0, 2, 3].into_iter().for_each(|n: usize| drop(find(&mut front, &maps[n])));
    assert_eq!(cache.stats().misses, misses);
    drop(find(&mut front, &maps[1]));
    assert_eq!((cache.stats().misses, cache.stats().evicted), (misses + 1, 2));
}

/// Threads register, revoke and unmap. What a front finds always covers memory as it is.
#[test]
fn threads_with_fronts_never_find_memory_that_is_gone() {
    let _alone = alone();
    let Some(cache) = cache(Limits { count: 4, bytes: 1 << 20 }).map(Arc::new) else { return };
    let shared: Vec<_> = (0..6).map(|_| map(1)).collect();
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let (cache, shared) = (cache.clone(), &shared);
            scope.spawn(move || {
                let mut front = CacheFront::new(cache.clone());
                for n in 0..300 {
                    let mem = find(&mut front, &shared[(n + thread) % shared.len()]);
                    if n % 7 == thread {
                        cache.revoke(mem);
                    }
                    // A mapping that only this thread knows comes and goes, often at the same address.
                    let own = map(1 + n % 3);
                    let mem = find(&mut front, &own);
                    assert!(mem.addr() == own.as_ptr() && mem.len() >= own.len());
                    let kept = Arc::downgrade(&mem);
                    drop((mem, own));
                    let own = map(1 + n % 3);
                    let mem = find(&mut front, &own);
                    assert!(!std::ptr::eq(Arc::as_ptr(&mem), kept.as_ptr()), "of memory that was unmapped");
                }
            });
        }
    });
    cache.shrink();
    assert_eq!((cache.stats().count, cache.stats().bytes), (0, 0));
}
