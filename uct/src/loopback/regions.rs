//! Registrations of the process by number. A number finds its region without a lock and without a search; the
//! region keeps the memory that its domain allocated as long as any key of it lives.
//!
//! Regions lie in slots that are never freed and are used again. A slot counts what refers to it, and knows
//! which registration it holds now, so that the number of an earlier one finds nothing.

#![allow(unsafe_code)]

use crate::api::Error;
use crate::base::alloc::Backing;
use crate::base::direct::Window;
use std::hash::{BuildHasher, RandomState};
use std::mem::MaybeUninit;
use std::sync::OnceLock;
use ucs::sync::{AtomicU32, AtomicU64, Ordering, UnsafeCell, fence};

/// Bits of a number that say which slot; the others say which registration, counted from a random start.
const INDEX_BITS: u32 = 24;
const MAX_SLOTS: u32 = 1 << INDEX_BITS;
const INDEX_MASK: u64 = MAX_SLOTS as u64 - 1;

/// State of a slot: the registration's part of the number, whether that is open, and how many refer to it.
struct State(AtomicU64);

const OPEN: u64 = 1 << (INDEX_BITS - 1);
const MAX_REFS: u64 = OPEN - 1;

impl State {
    /// Begins registration `serial`, which is open and referred to once. The slot was free.
    fn open(&self, serial: u64) {
        // SYNC(region): the region was written before.
        self.0.store(serial << INDEX_BITS | OPEN | 1, Ordering::Release);
    }

    /// Adds a reference if the slot holds registration `serial`, open.
    #[inline]
    fn acquire(&self, serial: u64) -> bool {
        let mut now = self.0.load(Ordering::Relaxed);
        loop {
            if now >> INDEX_BITS != serial || now & OPEN == 0 || now & MAX_REFS == MAX_REFS {
                return false;
            }
            // SYNC(region)
            match self.0.compare_exchange_weak(now, now + 1, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(other) => now = other,
            }
        }
    }

    #[inline]
    fn is_open(&self) -> bool {
        self.0.load(Ordering::Relaxed) & OPEN != 0
    }

    /// No reference is added from now on.
    fn close(&self) {
        self.0.fetch_and(!OPEN, Ordering::Relaxed);
    }

    /// Drops a reference. True: it was the last, and the slot is the caller's.
    #[inline]
    fn release(&self) -> bool {
        // SYNC(region): what others did with the region is over.
        if self.0.fetch_sub(1, Ordering::Release) & MAX_REFS > 1 {
            return false;
        }
        fence(Ordering::Acquire);
        true
    }

    #[inline]
    fn serial(&self) -> u64 {
        self.0.load(Ordering::Relaxed) >> INDEX_BITS
    }
}

struct Body {
    window: Window,
    /// Keeps domain-allocated memory mapped.
    #[expect(dead_code, reason = "held for its Drop")]
    backing: Option<Backing>,
}

struct Slot {
    state: State,
    index: u32,
    /// The free slot after this one, plus one; 0 if there is none.
    next_free: AtomicU32,
    body: UnsafeCell<MaybeUninit<Body>>,
}

// SAFETY: the body is written by whoever has taken the slot while nothing refers to it, and is read by what
// refers to it; its parts are `Send` and `Sync`.
unsafe impl Sync for Slot {}
// SAFETY: nothing in it is bound to a thread.
unsafe impl Send for Slot {}

const FIRST_CHUNK: u32 = 64;
const CHUNKS: usize = (MAX_SLOTS / FIRST_CHUNK).ilog2() as usize + 1;

/// All slots there have been: chunk `n` has `FIRST_CHUNK << n` of them.
static SLOTS: [OnceLock<Box<[Slot]>>; CHUNKS] = [const { OnceLock::new() }; CHUNKS];

/// Chunk of a slot, and its place there.
#[inline]
const fn place(index: u32) -> (usize, usize) {
    let at = index + FIRST_CHUNK;
    let chunk = at.ilog2() - FIRST_CHUNK.ilog2();
    (chunk as usize, (at - (FIRST_CHUNK << chunk)) as usize)
}

#[inline]
fn slot(index: u32) -> Option<&'static Slot> {
    let (chunk, at) = place(index);
    SLOTS.get(chunk)?.get()?.get(at)
}

/// A slot that was never used.
fn new_slot() -> Result<&'static Slot, Error> {
    static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let next = |count: u32| (count < MAX_SLOTS - FIRST_CHUNK).then_some(count + 1);
    let index = COUNT
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, next)
        .map_err(|_| Error::Exhausted("registrations of transport 'self'"))?;
    let (chunk, at) = place(index);
    let first = index - at as u32;
    let slots =
        SLOTS[chunk].get_or_init(|| (0..FIRST_CHUNK << chunk).map(|n| Slot::new(first + n)).collect());
    Ok(&slots[at])
}

impl Slot {
    fn new(index: u32) -> Slot {
        let (state, next_free) = (State(AtomicU64::new(0)), AtomicU32::new(0));
        Slot { state, index, next_free, body: UnsafeCell::new(MaybeUninit::uninit()) }
    }
}

/// The free slots: a stack. Its word is the top slot's index plus one, and a count of changes above that.
static FREE: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);

fn free_with(word: u64, top: u32) -> u64 {
    ((word >> 32).wrapping_add(1) << 32) | u64::from(top)
}

fn push_free(slot: &Slot) {
    let push = |word: u64| {
        slot.next_free.store(word as u32, Ordering::Relaxed);
        Some(free_with(word, slot.index + 1))
    };
    // SYNC(free): the link is seen with the word.
    let _ = FREE.fetch_update(Ordering::Release, Ordering::Relaxed, push);
}

fn pop_free() -> Option<&'static Slot> {
    // The count makes a word differ from all before it, so that the link read is the top's.
    let pop = |word: u64| {
        let top = slot((word as u32).checked_sub(1)?)?;
        Some(free_with(word, top.next_free.load(Ordering::Relaxed)))
    };
    // SYNC(free)
    let word = FREE.fetch_update(Ordering::Acquire, Ordering::Acquire, pop).ok()?;
    slot((word as u32).checked_sub(1)?)
}

/// A reference to a registration.
pub(super) struct Region(&'static Slot);

/// A registration. Dropping it ends it: its number finds nothing, and its keys give no access any more.
#[derive(Debug)]
pub(super) struct Registration(Region);

impl Drop for Registration {
    fn drop(&mut self) {
        self.close();
    }
}

impl std::ops::Deref for Registration {
    type Target = Region;

    fn deref(&self) -> &Region {
        &self.0
    }
}

impl Registration {
    /// # Safety
    /// The window may be used until the region is closed and operations on it are over, or its backing
    /// dropped where it has one.
    pub(super) unsafe fn open(window: Window, backing: Option<Backing>) -> Result<Registration, Error> {
        let slot = pop_free().map_or_else(new_slot, Ok)?;
        // SAFETY: the slot was taken from the free ones, so nothing refers to it and nobody else writes it.
        slot.body.with_mut(|body| unsafe { body.write(MaybeUninit::new(Body { window, backing })) });
        slot.state.open(next_serial());
        Ok(Registration(Region(slot)))
    }
}

impl Region {
    /// The open region of a number.
    // HOT
    #[inline]
    pub(super) fn of(number: u64) -> Result<Region, Error> {
        let slot = slot((number & INDEX_MASK) as u32).ok_or(Error::RemoteAccess)?;
        if slot.state.acquire(number >> INDEX_BITS) { Ok(Region(slot)) } else { Err(Error::RemoteAccess) }
    }

    /// Ends the registration before it is dropped.
    pub(super) fn close(&self) {
        self.0.state.close();
    }

    /// The number of the registration, which no other of this process has or had.
    // HOT
    #[inline]
    pub(super) fn number(&self) -> u64 {
        self.0.state.serial() << INDEX_BITS | u64::from(self.0.index)
    }

    /// The memory, while it is registered.
    // HOT
    #[inline(always)]
    pub(super) fn window(&self) -> Result<&Window, Error> {
        if self.0.state.is_open() { Ok(self.any_window()) } else { Err(Error::RemoteAccess) }
    }

    /// The memory, also when it is registered no longer.
    #[inline(always)]
    pub(super) fn any_window(&self) -> &Window {
        // SAFETY: the body was written before the registration began, and is not written while `self`, to
        // which the result is bound, refers to it.
        let body = self.0.body.with(|body| unsafe { &*body.cast::<Body>() });
        &body.window
    }
}

impl PartialEq for Region {
    fn eq(&self, other: &Region) -> bool {
        self.number() == other.number()
    }
}

impl Eq for Region {}

impl PartialOrd for Region {
    fn partial_cmp(&self, other: &Region) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Region {
    fn cmp(&self, other: &Region) -> std::cmp::Ordering {
        self.number().cmp(&other.number())
    }
}

impl std::fmt::Debug for Region {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Region").field(self.any_window()).field(&self.0.state.is_open()).finish()
    }
}

impl Drop for Region {
    #[inline]
    fn drop(&mut self) {
        if self.0.state.release() {
            reclaim(self.0);
        }
    }
}

/// Frees a slot to which nothing refers any more.
fn reclaim(slot: &'static Slot) {
    // SAFETY: the last reference is gone, and a closed region gets no new one. What is read is not used again
    // before it is written.
    let body = slot.body.with_mut(|body| unsafe { body.cast::<Body>().read() });
    push_free(slot);
    drop(body);
}

/// The registration's part of the next number.
fn next_serial() -> u64 {
    static START: OnceLock<u64> = OnceLock::new();
    static COUNT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    let start = START.get_or_init(|| RandomState::new().hash_one(0));
    start.wrapping_add(COUNT.fetch_add(1, Ordering::Relaxed)) & (u64::MAX >> INDEX_BITS)
}

/// Distinguishes this process, forked children too, from others that see its keys.
pub(super) fn this_process() -> u64 {
    static KEY: OnceLock<RandomState> = OnceLock::new();
    KEY.get_or_init(RandomState::new).hash_one(std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ucs::sync::{Arc, model, thread};

    #[test]
    fn loom_the_last_reference_alone_frees_a_slot() {
        model(|| {
            let state = Arc::new(State(AtomicU64::new(0)));
            let frees = Arc::new(AtomicU32::new(0));
            state.open(7);
            let user = |state: Arc<State>, frees: Arc<AtomicU32>| {
                move || {
                    if state.acquire(7) {
                        assert_eq!(frees.load(Ordering::Relaxed), 0, "freed while it is referred to");
                        if state.release() {
                            frees.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                }
            };
            let other = thread::spawn(user(state.clone(), frees.clone()));
            state.close();
            assert!(!state.acquire(7) && !state.is_open());
            if state.release() {
                frees.fetch_add(1, Ordering::Relaxed);
            }
            other.join().unwrap();
            assert_eq!(frees.load(Ordering::Relaxed), 1);
            state.open(8);
            assert!(!state.acquire(7) && state.acquire(8));
        });
    }

    #[cfg(not(loom))]
    fn register(memory: &mut [u64]) -> Registration {
        use crate::api::Access;
        let at = memory.as_mut_ptr().cast::<u8>();
        // SAFETY: the tests keep `memory` while they use the window.
        let window = unsafe { Window::new(at.addr() as u64, size_of_val(memory), at, Access::ALL) };
        // SAFETY: as above.
        unsafe { Registration::open(window, None) }.unwrap()
    }

    #[cfg(not(loom))]
    #[test]
    fn numbers_find_open_regions_only() {
        let mut memory = [0u64; 4];
        let mut seen = std::collections::HashSet::new();
        for _ in 0..1000 {
            let region = register(&mut memory);
            let number = region.number();
            assert!(seen.insert(number), "no number comes twice");
            let key = Region::of(number).unwrap();
            assert_eq!(key.window().unwrap().range(), region.any_window().range());
            region.close();
            assert!(Region::of(number).is_err() && key.window().is_err());
            drop(region);
            assert_eq!(key.any_window().range().1, 32);
        }
        assert!(Region::of(u64::MAX).is_err() && Region::of(0).is_err());
    }

    #[test]
    fn every_index_has_its_place() {
        let mut next = (0, 0);
        for index in 0..100_000 {
            assert_eq!(place(index), next);
            let last = next.1 + 1 == (FIRST_CHUNK << next.0) as usize;
            next = if last { (next.0 + 1, 0) } else { (next.0, next.1 + 1) };
        }
        assert_eq!(place(MAX_SLOTS - FIRST_CHUNK - 1).0, CHUNKS - 2);
    }

    #[cfg(not(loom))]
    #[test]
    fn threads_share_the_slots() {
        let run = |_| {
            let mut memory = [0u64; 4];
            for n in 0..20_000u64 {
                memory[0] = n;
                let region = register(&mut memory);
                let key = Region::of(region.number()).unwrap();
                assert_eq!(key.window().unwrap().range().0, memory.as_ptr().addr() as u64);
            }
        };
        std::thread::scope(|scope| (0..4).for_each(|n| drop(scope.spawn(move || run(n)))));
    }
}
