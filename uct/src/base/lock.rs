//! Who may be inside of an interface: one thread for ever, one at a time by promise, or one at a time by waiting.
//! The lock of `mt`, with the thread as its key so that a handler may send on the interface that is calling it.
//! Never blocks by itself: it answers, and the caller decides.

use ucs::sync::{AtomicBool, AtomicU32, AtomicUsize, CachePadded, Ordering};

/// Which threads use an interface.
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

/// The calling thread. // HOT
#[inline(always)]
pub fn this_thread() -> ThreadKey {
    thread_local! { static HERE: u8 = const { 0 } }
    HERE.with(|here| std::ptr::from_ref(here).addr())
}

/// How often in a row who can do without lets others in first, as they may not be running.
const PATIENCE: u32 = 4;

/// Nobody is inside.
const NOBODY: ThreadKey = 0;

/// What [`RecursiveLock::enter`] says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LockResult {
    /// Inside, until [`RecursiveLock::leave`].
    Locked,
    /// Another thread is inside.
    Busy,
    /// The interface is another thread's.
    Foreign,
}

/// A lock that knows its mode and its holder.
#[derive(Debug)]
pub struct RecursiveLock {
    mode: ThreadMode,
    holder: AtomicUsize,
    /// How often the holder has entered beyond the first time. Only the holder touches it.
    again: AtomicU32,
    /// On lines of its own: it is written while others are inside.
    outside: CachePadded<Outside>,
}

/// What those that are not inside tell each other.
#[derive(Debug)]
struct Outside {
    /// A thread that waits has looked and found the gate closed.
    wanted: AtomicBool,
    /// How often in a row way was given to those that wait: about, as several may at a time.
    given: AtomicU32,
}

impl RecursiveLock {
    /// An open gate; in mode [`ThreadMode::Single`] it is `me`'s for ever.
    pub fn new(mode: ThreadMode, me: ThreadKey) -> Self {
        let holder = if mode == ThreadMode::Single { me } else { NOBODY };
        RecursiveLock {
            mode,
            holder: AtomicUsize::new(holder),
            again: AtomicU32::new(0),
            outside: Outside { wanted: AtomicBool::new(false), given: AtomicU32::new(0) }.into(),
        }
    }

    /// The mode.
    pub fn mode(&self) -> ThreadMode {
        self.mode
    }

    /// Thread `me` wants in. // HOT
    #[inline]
    pub fn enter(&self, me: ThreadKey) -> LockResult {
        let holder = self.holder.load(Ordering::Relaxed);
        if holder == me {
            // Ours alone: nobody else writes it while we hold the gate.
            self.again.store(self.again.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
            return LockResult::Locked;
        }
        if self.mode == ThreadMode::Single {
            return LockResult::Foreign;
        }
        if holder != NOBODY {
            // Without an exchange, which would take the line from who is inside.
            return LockResult::Busy;
        }
        // SYNC(gate): what the last holder did is ours to see.
        match self.holder.compare_exchange(NOBODY, me, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => LockResult::Locked,
            Err(_) => LockResult::Busy,
        }
    }

    /// [`enter`](Self::enter) for who comes back until it is inside: those that can do without let it in first.
    pub fn enter_waiting(&self, me: ThreadKey) -> LockResult {
        let entry = self.enter(me);
        match entry {
            LockResult::Locked => self.outside.wanted.store(false, Ordering::Relaxed),
            _ if !self.outside.wanted.load(Ordering::Relaxed) => {
                self.outside.wanted.store(true, Ordering::Relaxed)
            }
            _ => {}
        }
        entry
    }

    /// [`enter`](Self::enter) for who can do without. `None`: somebody waits, who is let in first. // HOT
    #[inline]
    pub fn try_enter(&self, me: ThreadKey) -> Option<LockResult> {
        if self.outside.wanted.load(Ordering::Relaxed) && self.gives_way(me) {
            None
        } else {
            Some(self.enter(me))
        }
    }

    /// Whether those that wait are let in first, by who is not inside itself.
    #[cold]
    fn gives_way(&self, me: ThreadKey) -> bool {
        let given = self.outside.given.load(Ordering::Relaxed);
        let gives = given < PATIENCE && self.holder.load(Ordering::Relaxed) != me;
        self.outside.given.store(if gives { given + 1 } else { 0 }, Ordering::Relaxed);
        gives
    }

    /// Whether thread `me` is inside. In mode [`ThreadMode::Single`] its owner always is.
    pub fn is_inside(&self, me: ThreadKey) -> bool {
        self.holder.load(Ordering::Relaxed) == me
    }

    /// The thread that is inside goes out, as often as it came in. // HOT
    #[inline]
    pub fn leave(&self) {
        let again = self.again.load(Ordering::Relaxed);
        if again > 0 {
            self.again.store(again - 1, Ordering::Relaxed);
        } else {
            // SYNC(gate)
            self.holder.store(NOBODY, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ucs::sync::{Arc, UnsafeCell, thread};

    #[test]
    fn loom_the_gate_excludes_other_threads_and_not_its_holder() {
        ucs::sync::model(|| {
            struct Room(RecursiveLock, UnsafeCell<u32>);
            // SAFETY: the cell is touched by whoever holds the gate.
            unsafe impl Sync for Room {}
            // SAFETY: nothing in it is bound to a thread.
            unsafe impl Send for Room {}
            let room = Arc::new(Room(RecursiveLock::new(ThreadMode::Multi, 0), UnsafeCell::new(0)));
            let visit = |room: &Room, me: ThreadKey, enter: fn(&RecursiveLock, ThreadKey) -> LockResult| {
                if enter(&room.0, me) != LockResult::Locked {
                    return 0;
                }
                assert_eq!(room.0.enter(me), LockResult::Locked, "again");
                // SAFETY: we hold the gate.
                room.1.with_mut(|n| unsafe { *n += 1 });
                room.0.leave();
                // SAFETY: we still do.
                room.1.with_mut(|n| unsafe { *n += 1 });
                room.0.leave();
                2
            };
            let other = {
                let room = room.clone();
                thread::spawn(move || visit(&room, 1, RecursiveLock::enter_waiting))
            };
            let mine = visit(&room, 2, RecursiveLock::enter)
                + visit(&room, 2, |gate, me| gate.try_enter(me).unwrap_or(LockResult::Busy));
            let all = mine + other.join().unwrap();
            // SAFETY: the other thread is gone.
            assert_eq!(room.1.with(|n| unsafe { *n }), all);
            assert!(all >= 2, "one of them got in");
        });
    }

    #[test]
    fn who_can_do_without_lets_in_who_waits() {
        let gate = RecursiveLock::new(ThreadMode::Multi, 0);
        assert_eq!((gate.enter(1), gate.try_enter(2)), (LockResult::Locked, Some(LockResult::Busy)));
        assert_eq!(
            (gate.enter_waiting(2), gate.try_enter(1)),
            (LockResult::Busy, Some(LockResult::Locked)),
            "who is inside is"
        );
        gate.leave();
        gate.leave();
        let tries: Vec<_> = (0..=PATIENCE).map(|_| gate.try_enter(1)).collect();
        let (last, first) = tries.split_last().unwrap();
        assert!(first.iter().all(Option::is_none), "{first:?}");
        assert_eq!(*last, Some(LockResult::Locked), "not for ever: it may not be running");
        gate.leave();
        assert_eq!(gate.try_enter(1), None, "again");
        assert_eq!(gate.enter_waiting(2), LockResult::Locked);
        gate.leave();
        assert_eq!(gate.try_enter(1), Some(LockResult::Locked), "nobody waits any more");
    }

    #[test]
    fn a_single_gate_is_its_makers() {
        let gate = RecursiveLock::new(ThreadMode::Single, 7);
        assert_eq!((gate.enter(8), gate.enter(7)), (LockResult::Foreign, LockResult::Locked));
        gate.leave();
        assert_eq!((gate.enter(8), gate.enter(7)), (LockResult::Foreign, LockResult::Locked));
    }
}
