//! Log of memory events: a counter read at every look, and a log read when it has moved. Written by the
//! listening thread. Loom models are here.

use crate::sync::{AtomicU64, Mutex, MutexGuard, Ordering, thread};
use std::sync::PoisonError;

/// UnmapEvents that are kept for caches that have not looked yet.
pub const CAPACITY: usize = if cfg!(loom) { 2 } else { 1024 };

/// UnmapEvents of this process. `seq` is odd while one is being taken from the kernel.
#[derive(Debug)]
pub struct UnmapEvents {
    seq: AtomicU64,
    log: Mutex<Log>,
}

/// Last events, of fixed size: the writer must not call an allocator whose lock an unmapping thread may hold.
#[derive(Debug)]
struct Log {
    gone: Box<[(usize, usize); CAPACITY]>,
    count: u64,
}

/// Up to where a user of a [`Watch`](super::Watch) has taken events.
#[derive(Clone, Copy, Default, Debug)]
pub struct Cursor {
    seq: u64,
    count: u64,
}

impl UnmapEvents {
    /// None yet.
    pub fn new() -> UnmapEvents {
        let log = Log { gone: Box::new([(0, 0); CAPACITY]), count: 0 };
        UnmapEvents { seq: AtomicU64::new(0), log: Mutex::new(log) }
    }

    /// Whether [`UnmapEvents::drain`] has something new, perhaps.
    // HOT
    #[inline(always)]
    pub fn is_new(&self, taken: &Cursor) -> bool {
        // SYNC(notice): a thread that has unmapped was let go after the count was made odd.
        self.seq.load(Ordering::Acquire) != taken.seq
    }

    /// Events are about to be read from the kernel, which then releases the unmapping threads.
    pub fn begin(&self) {
        // SYNC(notice): odd before the kernel lets the thread that unmaps go on.
        self.seq.fetch_add(1, Ordering::AcqRel);
    }

    /// One of them: `len` bytes at `start` went away.
    pub fn push(&self, start: usize, len: usize) {
        let mut log = lock(&self.log);
        let at = (log.count % CAPACITY as u64) as usize;
        log.gone[at] = (start, len);
        log.count += 1;
    }

    /// All of them have been logged.
    pub fn end(&self) {
        self.seq.fetch_add(1, Ordering::Release);
    }

    /// Gives each range that went away since `taken` to `each`: everything, if there were too many.
    #[cold]
    pub fn drain(&self, taken: &mut Cursor, mut each: impl FnMut(usize, usize)) {
        let seq = loop {
            let seq = self.seq.load(Ordering::Acquire);
            if seq.is_multiple_of(2) {
                break seq;
            }
            thread::yield_now();
        };
        loop {
            // Not held while `each` runs, which may unmap memory.
            let gone = {
                let log = lock(&self.log);
                match log.count - taken.count {
                    0 => break,
                    n if n > CAPACITY as u64 => {
                        taken.count = log.count;
                        (0, usize::MAX)
                    }
                    _ => {
                        taken.count += 1;
                        log.gone[((taken.count - 1) % CAPACITY as u64) as usize]
                    }
                }
            };
            each(gone.0, gone.1);
        }
        taken.seq = seq;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::{Arc, AtomicU32, model};

    fn take(events: &UnmapEvents, taken: &mut Cursor) -> Vec<(usize, usize)> {
        let mut all = Vec::new();
        if events.is_new(taken) {
            events.drain(taken, |start, len| all.push((start, len)));
        }
        all
    }

    #[test]
    fn loom_a_released_unmap_is_visible() {
        model(|| {
            let events = Arc::new(UnmapEvents::new());
            let gone = Arc::new(AtomicU32::new(0));
            let listener = {
                let (events, gone) = (events.clone(), gone.clone());
                thread::spawn(move || {
                    for n in 1..=2 {
                        events.begin();
                        gone.store(n, Ordering::Release);
                        events.push(n as usize, 1);
                        events.end();
                    }
                })
            };
            let mut taken = Cursor::default();
            let let_go = gone.load(Ordering::Acquire);
            let mut told = take(&events, &mut taken);
            assert!(told.len() >= let_go as usize, "{let_go} let go, {} told", told.len());
            listener.join().unwrap();
            told.extend(take(&events, &mut taken));
            assert_eq!(told, [(1, 1), (2, 1)]);
            assert_eq!(take(&events, &mut taken), []);
        });
    }

    #[test]
    fn loom_overflow_is_reported_as_everything() {
        model(|| {
            let events = Arc::new(UnmapEvents::new());
            let listener = {
                let events = events.clone();
                thread::spawn(move || {
                    events.begin();
                    (0..=CAPACITY).for_each(|n| events.push(n, 1));
                    events.end();
                })
            };
            let mut taken = Cursor::default();
            let mut told = take(&events, &mut taken);
            listener.join().unwrap();
            told.extend(take(&events, &mut taken));
            assert!(
                told.contains(&(0, usize::MAX)) || told.iter().copied().eq((0..=CAPACITY).map(|n| (n, 1)))
            );
        });
    }

    #[test]
    fn loom_events_within_capacity_are_reported_singly() {
        model(|| {
            let events = UnmapEvents::new();
            let mut taken = Cursor::default();
            let mut told = |from: usize, to: usize| {
                events.begin();
                (from..to).for_each(|n| events.push(n, 8));
                events.end();
                take(&events, &mut taken)
            };
            assert_eq!(told(0, 1), [(0, 8)]);
            assert_eq!(told(0, CAPACITY).len(), CAPACITY);
            assert_eq!(told(0, CAPACITY + 1), [(0, usize::MAX)]);
            assert_eq!(told(0, 0), []);
        });
    }
}
