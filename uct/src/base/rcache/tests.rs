//! The cache over the memory domain of `self`, with the kernel's notices where there are any.

use super::*;
use crate::api::{AllocReq, Iface as _};
use crate::loopback;
use proptest::prelude::*;
use ucs::mem::{MapOpts, Mapping};

/// One at a time: memory that one test unmaps makes the others' caches careful.
static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

fn alone() -> std::sync::MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

const RW: Access = Access::LOCAL_READ.union(Access::LOCAL_WRITE);

fn cache(limits: Limits) -> Option<RegCache<loopback::Md>> {
    let md = loopback::Iface::open(&Default::default()).unwrap().md().clone();
    match Coherence::open() {
        coherence @ Coherence::Kernel(_) => Some(RegCache::new(md, limits, coherence)),
        Coherence::Nobody(why) => {
            ucs::testing::skipped("a test of the registration cache", why);
            None
        }
    }
}

fn map(pages: usize) -> Mapping {
    Mapping::new(pages * page_size(), MapOpts::default()).unwrap()
}

fn get(cache: &RegCache<loopback::Md>, map: &Mapping, from: usize, len: usize) -> Rc<loopback::Mem> {
    let at = NonNull::new(map.as_ptr().wrapping_add(from)).unwrap();
    // SAFETY: the tests keep the mapping while they use the registration.
    unsafe { cache.get(at, len, RW) }.unwrap()
}

#[test]
fn the_same_buffer_is_registered_once_until_it_is_unmapped() {
    let _alone = alone();
    let Some(cache) = cache(Limits::default()) else { return };
    let memory = map(4);
    let first = get(&cache, &memory, 100, 5000);
    assert_eq!((first.addr(), first.len()), (memory.as_ptr(), 2 * page_size()));
    assert!(Rc::ptr_eq(&first, &get(&cache, &memory, 0, 8192)));
    let wider = get(&cache, &memory, 5000, 5000);
    assert!(!Rc::ptr_eq(&first, &wider));
    assert_eq!((cache.stats().hits, cache.stats().misses, cache.stats().count), (1, 2, 1));
    let at = memory.as_ptr().addr();
    drop((first, wider, memory));
    let again = map(4);
    let _mem = get(&cache, &again, 0, 100);
    assert_eq!((cache.stats().invalidated, cache.stats().misses), (1, 3), "old {at:#x}, new {again:?}");
}

#[test]
fn bounds_hold_and_the_least_used_goes_first() {
    let _alone = alone();
    let Some(cache) = cache(Limits { count: 3, bytes: 5 * page_size() }) else { return };
    let maps: Vec<_> = (0..4).map(|_| map(1)).collect();
    let held = get(&cache, &maps[0], 0, 1);
    maps[1..].iter().for_each(|map| drop(get(&cache, map, 0, 1)));
    assert_eq!((cache.stats().count, cache.stats().evicted), (3, 1));
    assert!(Rc::ptr_eq(&held, &get(&cache, &maps[0], 0, 1)), "in use: not evicted, though the oldest");
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
fn explicit_handles_come_first_and_stay() {
    let _alone = alone();
    let md = loopback::Iface::open(&Default::default()).unwrap().md().clone();
    let cache = RegCache::new(md.clone(), Limits { count: 0, bytes: 0 }, Coherence::Nobody(Errno(38)));
    let mem = Rc::new(md.alloc(&AllocReq::new(10_000, "explicit")).unwrap());
    cache.adopt(mem.clone());
    let at = NonNull::new(mem.addr().wrapping_add(5000)).unwrap();
    // SAFETY: the allocation outlives the registrations.
    let ask = |access| unsafe { cache.get(at, 100, access) }.unwrap();
    assert!(Rc::ptr_eq(&mem, &ask(RW)));
    assert!(cache.disown(&mem).is_some_and(|back| Rc::ptr_eq(&back, &mem)));
    let (one, two) = (ask(RW), ask(RW));
    assert!(!Rc::ptr_eq(&one, &two), "nobody tells when memory goes: nothing is kept");
}

proptest! {
    /// Against the obvious rule: whatever is found covers what was asked for, and lies where nothing went away since.
    #[test]
    fn what_is_found_is_alive(steps in prop::collection::vec((0u8..4, 0usize..16, 1usize..5), 1..80)) {
        let _alone = alone();
        let md = loopback::Iface::open(&Default::default()).unwrap().md().clone();
        let Coherence::Kernel(watch) = Coherence::open() else { return Ok(()) };
        let cache = RegCache::new(md, Limits { count: 6, bytes: 12 * page_size() }, Coherence::Kernel(watch));
        let memory = map(24);
        let mut fresh_after = [0u64; 24];
        let mut born: Vec<(Rc<loopback::Mem>, u64)> = Vec::new();
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
            match born.iter().find(|(known, _)| Rc::ptr_eq(known, &mem)) {
                Some((_, birth)) => prop_assert!(fresh_after[start..end].iter().all(|gone| gone < birth)),
                None => born.push((mem, now)),
            }
            if what == 1 {
                born.clear();
            }
        }
        // What was in use may have been too much; what nobody uses is within the bounds after the next call.
        drop(born);
        get(&cache, &memory, 23 * page_size(), 1);
        prop_assert!(cache.stats().bytes <= 12 * page_size() && cache.stats().count <= 6);
    }
}
