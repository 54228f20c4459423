//! Who may be inside of an interface: one thread for ever, one at a time by promise, or one at a time by waiting.
//! The lock of `mt`, with the thread as its key so that a handler may send on the interface that is calling it.
//! Never blocks by itself: it answers, and the caller decides.

use ucs::sync::{AtomicU32, AtomicUsize, Ordering};

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

/// Nobody is inside.
const NOBODY: ThreadKey = 0;

/// What [`Gate::enter`] says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Entry {
    /// Inside, until [`Gate::leave`].
    In,
    /// Another thread is inside.
    Busy,
    /// The interface is another thread's.
    Foreign,
}

/// A lock that knows its mode and its holder.
#[derive(Debug)]
pub struct Gate {
    mode: ThreadMode,
    holder: AtomicUsize,
    /// How often the holder has entered beyond the first time. Only the holder touches it.
    again: AtomicU32,
}

impl Gate {
    /// An open gate; in mode [`ThreadMode::Single`] it is `me`'s for ever.
    pub fn new(mode: ThreadMode, me: ThreadKey) -> Self {
        let holder = if mode == ThreadMode::Single { me } else { NOBODY };
        Gate { mode, holder: AtomicUsize::new(holder), again: AtomicU32::new(0) }
    }

    /// The mode.
    pub fn mode(&self) -> ThreadMode {
        self.mode
    }

    /// Thread `me` wants in. // HOT
    #[inline]
    pub fn enter(&self, me: ThreadKey) -> Entry {
        let holder = self.holder.load(Ordering::Relaxed);
        if holder == me {
            // Ours alone: nobody else writes it while we hold the gate.
            self.again.store(self.again.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
            return Entry::In;
        }
        if self.mode == ThreadMode::Single {
            return Entry::Foreign;
        }
        // SYNC(gate): what the last holder did is ours to see.
        match self.holder.compare_exchange(NOBODY, me, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => Entry::In,
            Err(_) => Entry::Busy,
        }
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
            struct Room(Gate, UnsafeCell<u32>);
            // SAFETY: the cell is touched by whoever holds the gate.
            unsafe impl Sync for Room {}
            // SAFETY: nothing in it is bound to a thread.
            unsafe impl Send for Room {}
            let room = Arc::new(Room(Gate::new(ThreadMode::Multi, 0), UnsafeCell::new(0)));
            let visit = |room: &Room, me: ThreadKey| {
                if room.0.enter(me) != Entry::In {
                    return 0;
                }
                assert_eq!(room.0.enter(me), Entry::In, "again");
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
                thread::spawn(move || visit(&room, 1))
            };
            let mine = visit(&room, 2) + visit(&room, 2);
            let all = mine + other.join().unwrap();
            // SAFETY: the other thread is gone.
            assert_eq!(room.1.with(|n| unsafe { *n }), all);
            assert!(all >= 2, "one of them got in");
        });
    }

    #[test]
    fn a_single_gate_is_its_makers() {
        let gate = Gate::new(ThreadMode::Single, 7);
        assert_eq!((gate.enter(8), gate.enter(7)), (Entry::Foreign, Entry::In));
        gate.leave();
        assert_eq!((gate.enter(8), gate.enter(7)), (Entry::Foreign, Entry::In));
    }
}
