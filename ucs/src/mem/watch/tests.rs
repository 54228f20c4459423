//! The watch over the test's memory; skipped where the kernel refuses it.

#![allow(unsafe_code)]

use super::*;
use crate::testing::skipped;
use std::collections::HashMap;

const NAME: &str = "a test of the watch over memory";

fn watch() -> Option<Watch> {
    Watch::open().map_err(|why| skipped(NAME, why)).ok()
}

fn map(bytes: usize) -> (Mapping, NonNull<u8>) {
    let map = Mapping::new(bytes, MapOpts::default()).unwrap();
    let at = NonNull::new(map.as_ptr()).unwrap();
    (map, at)
}

fn gone(watch: &Watch, taken: &mut Cursor, at: NonNull<u8>, len: usize) -> usize {
    let (first, mut sum) = (at.addr().get(), 0);
    watch.drain(taken, |start, bytes| {
        let end = start.saturating_add(bytes).min(first + len);
        sum += end.saturating_sub(start.max(first));
    });
    sum
}

fn wait_quiescent(watch: &Watch) {
    while !watch.is_quiescent() {
        std::thread::yield_now();
    }
}

#[test]
fn unmapping_is_reported_before_it_returns() {
    let Some(watch) = watch() else { return };
    let other = Watch::open().unwrap();
    assert!(Arc::ptr_eq(&watch.0, &other.0), "a page has one watcher only");
    let (mut taken, mut too) = (Cursor::default(), Cursor::default());
    for _ in 0..50 {
        let (map, at) = map(1 << 16);
        wait_quiescent(&watch);
        gone(&watch, &mut taken, at, 1 << 16);
        gone(&other, &mut too, at, 1 << 16);
        if let Err(why) = watch.add(at, map.len()) {
            return skipped(NAME, why);
        }
        other.add(at, map.len()).unwrap();
        // SAFETY: inside the mapping; watched memory is used as any other.
        unsafe { at.as_ptr().write(1) };
        assert_eq!(gone(&watch, &mut taken, at, 1 << 16), 0, "nothing is gone yet");
        let len = map.len();
        drop(map);
        assert!(gone(&watch, &mut taken, at, len) >= len);
        assert!(gone(&other, &mut too, at, len) >= len);
    }
}

#[test]
fn a_quiescent_watch_has_reported_replaced_mappings() {
    let Some(watch) = watch() else { return };
    let (probe, at) = map(page_size());
    if let Err(why) = watch.add(at, probe.len()) {
        return skipped(NAME, why);
    }
    const LEN: usize = 1 << 20;
    let watched = Mutex::new(HashMap::<usize, usize>::new());
    let turn = || {
        let (mut taken, mut told) = (Cursor::default(), HashMap::<usize, usize>::new());
        for _ in 0..200 {
            let (map, at) = map(LEN);
            let sure = watch.is_quiescent();
            watch.drain(&mut taken, |start, _| *told.entry(start).or_default() += 1);
            let first = at.addr().get();
            let before = lock(&watched).get(&first).copied().unwrap_or(0);
            let told = told.get(&first).copied().unwrap_or(0);
            assert!(!sure || told >= before, "{before} mappings were here, and {told} ends were told");
            watch.add(at, LEN).unwrap();
            *lock(&watched).entry(first).or_default() += 1;
            drop(map);
        }
    };
    std::thread::scope(|scope| {
        (0..4).for_each(|_| {
            scope.spawn(turn);
        });
    });
}
