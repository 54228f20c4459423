//! Time limits on a machine that has other things to do: what it was late by itself does not count.
//! Used by suites that say how soon something has to be told. A limit is as sharp as the machine is idle, never wrong.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long the thread sleeps that looks whether it is woken in time.
const SLEEP: Duration = Duration::from_millis(10);
/// Later than this is late.
const TOLERANCE: Duration = Duration::from_millis(1);

/// A clock that knows how late the machine was: by how much a thread overslept that only sleeps.
pub struct Clock {
    start: Instant,
    shared: Arc<Shared>,
    sleeper: Option<JoinHandle<()>>,
}

struct Shared {
    /// Overslept so far, in ns.
    late: AtomicU64,
    /// When it wants to be woken, in ns from the start.
    due: AtomicU64,
    stop: AtomicBool,
}

/// A moment.
#[derive(Clone, Copy, Debug)]
pub struct Timestamp {
    at: Instant,
    late: Duration,
}

impl Clock {
    /// Starts its thread.
    pub fn start() -> Clock {
        let start = Instant::now();
        let due = AtomicU64::new(SLEEP.as_nanos() as u64);
        let shared = Arc::new(Shared { late: AtomicU64::new(0), due, stop: AtomicBool::new(false) });
        let thread_shared = shared.clone();
        let sleeper = std::thread::spawn(move || {
            while !thread_shared.stop.load(Ordering::Relaxed) {
                let due = start.elapsed() + SLEEP;
                thread_shared.due.store(due.as_nanos() as u64, Ordering::SeqCst);
                std::thread::sleep(SLEEP);
                let late = start.elapsed().saturating_sub(due + TOLERANCE);
                thread_shared.late.fetch_add(late.as_nanos() as u64, Ordering::SeqCst);
            }
        });
        Clock { start, shared, sleeper: Some(sleeper) }
    }

    /// Overslept until now, also if it sleeps still.
    fn late(&self, now: Instant) -> Duration {
        let due = Duration::from_nanos(self.shared.due.load(Ordering::SeqCst));
        let late = Duration::from_nanos(self.shared.late.load(Ordering::SeqCst));
        late + (now - self.start).saturating_sub(due + TOLERANCE)
    }

    /// This moment.
    pub fn now(&self) -> Timestamp {
        let at = Instant::now();
        Timestamp { at, late: self.late(at) }
    }

    /// How long ago a moment was, less what the machine was late in between.
    pub fn since(&self, then: Timestamp) -> Duration {
        let now = self.now();
        (now.at - then.at).saturating_sub(now.late.saturating_sub(then.late))
    }
}

impl Drop for Clock {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(sleeper) = self.sleeper.take() {
            let _ = sleeper.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_passes_and_lateness_is_forgiven() {
        let clock = Clock::start();
        let then = clock.now();
        std::thread::sleep(Duration::from_millis(100));
        assert!(clock.since(then) <= then.at.elapsed());
        // As if its thread had not been woken for an hour.
        clock.shared.late.fetch_add(3_600_000_000_000, Ordering::SeqCst);
        assert_eq!(clock.since(then), Duration::ZERO);
    }
}
