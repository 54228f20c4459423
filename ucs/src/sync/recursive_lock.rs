//! The recursive lock of an interface or worker that threads share: a handler may send on what calls it.
//! [`RecursiveLock::lock`] never blocks; [`RecursiveLock::enter`] does what the thread mode says.

#![allow(unsafe_code)]

use crate::sync::{AtomicBool, AtomicU32, AtomicUsize, CachePadded, Ordering, hint, thread};
use std::marker::PhantomData;

/// Which threads use an interface or worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ThreadMode {
    /// The one that opened it. Another one gets an error.
    #[default]
    Single,
    /// Any, never two at a time. The second one gets an error.
    Serialized,
    /// Any, at any time. The second one waits.
    Multi,
}

/// A thread, as a number that is never 0.
pub type ThreadKey = usize;

/// The calling thread: the address of its control block, which no other running thread has. A variable of the
/// thread would have such an address, too, but a shared library asks the loader for it by a call.
// HOT
#[inline(always)]
#[cfg(all(target_arch = "x86_64", target_pointer_width = "64", target_os = "linux", not(loom), not(miri)))]
pub fn this_thread() -> ThreadKey {
    let here: ThreadKey;
    // SAFETY: by the ABI of thread-local storage the word at `fs:0` is the address of the control block; each
    // thread has one for as long as it runs.
    unsafe {
        core::arch::asm!("mov {}, qword ptr fs:[0]", out(reg) here, options(nostack, preserves_flags, readonly));
    }
    here
}

/// The calling thread: the address of a variable of it, which no other running thread has.
#[inline(always)]
#[cfg(not(all(
    target_arch = "x86_64",
    target_pointer_width = "64",
    target_os = "linux",
    not(loom),
    not(miri)
)))]
pub fn this_thread() -> ThreadKey {
    thread_local! { static HERE: u8 = const { 0 } }
    HERE.with(|here| std::ptr::from_ref(here).addr())
}

/// Most yields in a row to waiters, which may not be running.
const MAX_YIELDS: u32 = 4;
/// Failed tries after which a waiter gives its core away: the holder may be waiting for it.
const YIELD_EVERY: u32 = 64;
/// Longest pause between two tries of a waiter, spin hints. Each try takes the lock's line from the holder.
const MAX_PAUSES: u32 = 8;
/// Pause of a caller that yields to a waiter, spin hints: as long as the waiter takes to see the lock open.
const YIELD_PAUSES: u32 = 32;

const UNLOCKED: ThreadKey = 0;

/// Reason why a thread may not go in.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LockError {
    /// The lock belongs to another thread ([`ThreadMode::Single`]).
    #[error("belongs to another thread (thread mode single)")]
    WrongThread,
    /// Another thread is inside ([`ThreadMode::Serialized`]).
    #[error("two threads at a time (thread mode serialized)")]
    Concurrent,
}

/// Holds a [`RecursiveLock`] once, and unlocks it on drop: in the thread that went in.
#[derive(Debug)]
pub struct RecursiveGuard<'a>(&'a RecursiveLock, PhantomData<*const ()>);

impl<'a> RecursiveGuard<'a> {
    #[inline]
    fn new(lock: &'a RecursiveLock) -> Self {
        RecursiveGuard(lock, PhantomData)
    }
}

impl Drop for RecursiveGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.unlock();
    }
}

#[inline]
fn pause(times: u32) {
    (0..times).for_each(|_| hint::spin_loop());
}

/// Result of [`RecursiveLock::lock`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LockResult {
    /// The thread is inside, once more if it was before.
    Locked,
    /// Another thread is inside.
    Busy,
    /// The lock belongs to another thread ([`ThreadMode::Single`]).
    WrongThread,
}

/// A lock that knows its mode and its holder.
#[derive(Debug)]
pub struct RecursiveLock {
    mode: ThreadMode,
    holder: AtomicUsize,
    /// How often the holder has entered beyond the first time. Only the holder touches it.
    depth: AtomicU32,
    /// On lines of its own: it is written while others are inside.
    waiters: CachePadded<Waiters>,
}

#[derive(Debug)]
struct Waiters {
    /// A thread that waits has looked and found the lock closed.
    waiting: AtomicBool,
    /// How often in a row way was given to those that wait: about, as several may at a time.
    yielded: AtomicU32,
}

impl RecursiveLock {
    /// An open lock; in mode [`ThreadMode::Single`] it is `me`'s for ever.
    pub fn new(mode: ThreadMode, me: ThreadKey) -> Self {
        let holder = if mode == ThreadMode::Single { me } else { UNLOCKED };
        RecursiveLock {
            mode,
            holder: AtomicUsize::new(holder),
            depth: AtomicU32::new(0),
            waiters: Waiters { waiting: AtomicBool::new(false), yielded: AtomicU32::new(0) }.into(),
        }
    }

    /// Gives a lock of mode [`ThreadMode::Single`] to thread `me`. Returns false in other modes, and while
    /// its owner is inside. The caller makes sure that no other thread uses the lock at the same time.
    pub fn adopt(&self, me: ThreadKey) -> bool {
        let is_free = self.mode == ThreadMode::Single && self.depth.load(Ordering::Relaxed) == 0;
        if is_free {
            self.holder.store(me, Ordering::Relaxed);
        }
        is_free
    }

    /// The mode it was made with.
    pub fn mode(&self) -> ThreadMode {
        self.mode
    }

    /// Goes in, as the mode says: [`ThreadMode::Multi`] waits while another thread is inside.
    // HOT
    #[inline]
    pub fn enter(&self) -> Result<RecursiveGuard<'_>, LockError> {
        let me = this_thread();
        match self.lock(me) {
            LockResult::Locked => Ok(RecursiveGuard::new(self)),
            LockResult::WrongThread => Err(LockError::WrongThread),
            LockResult::Busy if self.mode == ThreadMode::Serialized => Err(LockError::Concurrent),
            LockResult::Busy => Ok(self.wait(me)),
        }
    }

    /// Goes in unless another thread is inside or, now and then, one waits (`None`).
    // HOT
    #[inline]
    pub fn try_enter(&self) -> Result<Option<RecursiveGuard<'_>>, LockError> {
        match self.try_lock(this_thread()) {
            Some(LockResult::Locked) => Ok(Some(RecursiveGuard::new(self))),
            Some(LockResult::WrongThread) => Err(LockError::WrongThread),
            Some(LockResult::Busy) if self.mode == ThreadMode::Serialized => Err(LockError::Concurrent),
            Some(LockResult::Busy) => Ok(None),
            None => {
                pause(YIELD_PAUSES);
                Ok(None)
            }
        }
    }

    /// Goes in, waiting in each mode while another thread is inside: for what cannot fail, such as a drop.
    /// `None`: the lock belongs to another thread ([`ThreadMode::Single`]).
    // HOT
    #[inline]
    pub fn enter_waiting(&self) -> Option<RecursiveGuard<'_>> {
        let me = this_thread();
        match self.lock(me) {
            LockResult::Locked => Some(RecursiveGuard::new(self)),
            LockResult::Busy => Some(self.wait(me)),
            LockResult::WrongThread => None,
        }
    }

    /// Goes in as [`RecursiveLock::enter_waiting`], for a drop. `None` as well if another thread is inside
    /// and `is_orphan` says that the lock is that of the process that forked this one: its holder is gone.
    pub fn enter_unless_orphaned(&self, is_orphan: impl FnOnce() -> bool) -> Option<RecursiveGuard<'_>> {
        let me = this_thread();
        match self.lock(me) {
            LockResult::Locked => Some(RecursiveGuard::new(self)),
            LockResult::Busy if is_orphan() => None,
            LockResult::Busy => Some(self.wait(me)),
            LockResult::WrongThread => None,
        }
    }

    /// Waits for the lock with growing pauses.
    #[cold]
    fn wait(&self, me: ThreadKey) -> RecursiveGuard<'_> {
        let mut tries = 0u32;
        while self.lock_waiting(me) != LockResult::Locked {
            tries += 1;
            if tries.is_multiple_of(YIELD_EVERY) {
                thread::yield_now();
            } else {
                pause(1 << tries.min(MAX_PAUSES.ilog2()));
            }
        }
        RecursiveGuard::new(self)
    }

    /// Guard of one entry of the thread that is inside, which has forgotten that of this entry.
    pub fn guard(&self) -> RecursiveGuard<'_> {
        RecursiveGuard::new(self)
    }

    /// Thread `me` wants in.
    // HOT
    #[inline]
    pub fn lock(&self, me: ThreadKey) -> LockResult {
        let holder = self.holder.load(Ordering::Relaxed);
        if holder == me {
            // Only the holder writes it.
            self.depth.store(self.depth.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
            return LockResult::Locked;
        }
        if self.mode == ThreadMode::Single {
            return LockResult::WrongThread;
        }
        if holder != UNLOCKED {
            // Without an exchange, which would take the line from the holder.
            return LockResult::Busy;
        }
        // SYNC(gate): what the last holder did is ours to see.
        match self.holder.compare_exchange(UNLOCKED, me, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => LockResult::Locked,
            Err(_) => LockResult::Busy,
        }
    }

    /// [`lock`](Self::lock) for a caller that retries until locked: `try_lock` callers yield to it.
    pub fn lock_waiting(&self, me: ThreadKey) -> LockResult {
        let result = self.lock(me);
        match result {
            LockResult::Locked => self.waiters.waiting.store(false, Ordering::Relaxed),
            _ if !self.waiters.waiting.load(Ordering::Relaxed) => {
                self.waiters.waiting.store(true, Ordering::Relaxed)
            }
            _ => {}
        }
        result
    }

    /// [`lock`](Self::lock) for a caller that need not lock. `None`: yielded to a waiter.
    // HOT
    #[inline]
    pub fn try_lock(&self, me: ThreadKey) -> Option<LockResult> {
        if self.waiters.waiting.load(Ordering::Relaxed) && self.yields_to_waiter(me) {
            None
        } else {
            Some(self.lock(me))
        }
    }

    /// Whether to yield to waiters; the holder does not.
    #[cold]
    fn yields_to_waiter(&self, me: ThreadKey) -> bool {
        let yielded = self.waiters.yielded.load(Ordering::Relaxed);
        let yields = yielded < MAX_YIELDS && self.holder.load(Ordering::Relaxed) != me;
        self.waiters.yielded.store(if yields { yielded + 1 } else { 0 }, Ordering::Relaxed);
        yields
    }

    /// Whether thread `me` is inside. In mode [`ThreadMode::Single`] its owner always is.
    pub fn is_held_by(&self, me: ThreadKey) -> bool {
        self.holder.load(Ordering::Relaxed) == me
    }

    /// Whether thread `me` is inside: in mode [`ThreadMode::Single`], between going in and out.
    pub fn is_entered_by(&self, me: ThreadKey) -> bool {
        let is_owner = self.mode == ThreadMode::Single;
        self.is_held_by(me) && !(is_owner && self.depth.load(Ordering::Relaxed) == 0)
    }

    /// Whether a thread waits to go in, or has done so a moment ago.
    // HOT
    #[inline]
    pub fn has_waiters(&self) -> bool {
        self.waiters.waiting.load(Ordering::Relaxed)
    }

    /// Whether the thread inside has gone in more than once. For that thread.
    #[inline]
    pub fn is_nested(&self) -> bool {
        // In mode single the owner is inside for ever, and goes in on top of that.
        let once = u32::from(self.mode == ThreadMode::Single);
        self.depth.load(Ordering::Relaxed) > once
    }

    /// The thread that is inside goes out, as often as it came in.
    // HOT
    #[inline]
    pub fn unlock(&self) {
        let depth = self.depth.load(Ordering::Relaxed);
        if depth > 0 {
            self.depth.store(depth - 1, Ordering::Relaxed);
        } else {
            // SYNC(gate)
            self.holder.store(UNLOCKED, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::{Arc, UnsafeCell, thread};

    #[test]
    fn loom_excludes_other_threads_and_not_its_holder() {
        crate::sync::model(|| {
            struct Guarded(RecursiveLock, UnsafeCell<u32>);
            // SAFETY: the cell is touched by whoever holds the lock.
            unsafe impl Sync for Guarded {}
            // SAFETY: nothing in it is bound to a thread.
            unsafe impl Send for Guarded {}
            let guarded = Arc::new(Guarded(RecursiveLock::new(ThreadMode::Multi, 0), UnsafeCell::new(0)));
            let visit =
                |guarded: &Guarded, me: ThreadKey, lock: fn(&RecursiveLock, ThreadKey) -> LockResult| {
                    if lock(&guarded.0, me) != LockResult::Locked {
                        return 0;
                    }
                    assert_eq!(guarded.0.lock(me), LockResult::Locked, "again");
                    // SAFETY: we hold the lock.
                    guarded.1.with_mut(|n| unsafe { *n += 1 });
                    guarded.0.unlock();
                    // SAFETY: we still do.
                    guarded.1.with_mut(|n| unsafe { *n += 1 });
                    guarded.0.unlock();
                    2
                };
            let other = {
                let guarded = guarded.clone();
                thread::spawn(move || visit(&guarded, 1, RecursiveLock::lock_waiting))
            };
            let mine = visit(&guarded, 2, RecursiveLock::lock)
                + visit(&guarded, 2, |lock, me| lock.try_lock(me).unwrap_or(LockResult::Busy));
            let all = mine + other.join().unwrap();
            // SAFETY: the other thread is gone.
            assert_eq!(guarded.1.with(|n| unsafe { *n }), all);
            assert!(all >= 2, "one of them got in");
        });
    }

    #[test]
    fn each_running_thread_is_another() {
        let mine = this_thread();
        let barrier = std::sync::Arc::new(std::sync::Barrier::new(8));
        let threads: Vec<_> = (0..8)
            .map(|_| {
                let barrier = barrier.clone();
                std::thread::spawn(move || {
                    let first = this_thread();
                    // All of them run at this point.
                    barrier.wait();
                    (first, this_thread())
                })
            })
            .collect();
        let mut keys = vec![mine];
        for thread in threads {
            let (first, again) = thread.join().unwrap();
            assert_eq!(first, again);
            keys.push(first);
        }
        assert!(!keys.contains(&UNLOCKED));
        keys.sort_unstable();
        assert!(keys.windows(2).all(|pair| pair[0] != pair[1]), "{keys:x?}");
        assert_eq!(this_thread(), mine);
    }

    #[test]
    fn try_lock_yields_to_a_waiter() {
        let lock = RecursiveLock::new(ThreadMode::Multi, 0);
        assert_eq!((lock.lock(1), lock.try_lock(2)), (LockResult::Locked, Some(LockResult::Busy)));
        assert_eq!(
            (lock.lock_waiting(2), lock.try_lock(1)),
            (LockResult::Busy, Some(LockResult::Locked)),
            "who is inside is"
        );
        lock.unlock();
        lock.unlock();
        let tries: Vec<_> = (0..=MAX_YIELDS).map(|_| lock.try_lock(1)).collect();
        let (last, first) = tries.split_last().unwrap();
        assert!(first.iter().all(Option::is_none), "{first:?}");
        assert_eq!(*last, Some(LockResult::Locked), "not for ever: it may not be running");
        lock.unlock();
        assert_eq!(lock.try_lock(1), None, "again");
        assert!(lock.has_waiters());
        assert_eq!(lock.lock_waiting(2), LockResult::Locked);
        assert!(!lock.has_waiters());
        lock.unlock();
        assert_eq!(lock.try_lock(1), Some(LockResult::Locked), "nobody waits any more");
    }

    #[test]
    fn single_threaded_lock_is_bound_to_its_creator() {
        let lock = RecursiveLock::new(ThreadMode::Single, 7);
        assert_eq!((lock.lock(8), lock.lock(7)), (LockResult::WrongThread, LockResult::Locked));
        lock.unlock();
        assert_eq!((lock.lock(8), lock.lock(7)), (LockResult::WrongThread, LockResult::Locked));
    }
}
