//! Time limits on a machine that has other things to do: what it was delay by itself does not count.
//! Used by suites that say how soon something has to be told. A limit is as sharp as the machine is idle, never wrong.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long the thread sleeps that looks whether it is woken in time.
const SLEEP: Duration = Duration::from_millis(10);
/// Later than this is delay.
const TOLERANCE: Duration = Duration::from_millis(1);

/// A clock that knows how delay the machine was: by how much a thread overslept that only sleeps.
pub struct Clock {
    start: Instant,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    /// Overslept so far, in ns.
    delay: AtomicU64,
    /// When it wants to be woken, in ns from the start.
    wake_at: AtomicU64,
    stop: AtomicBool,
}

/// A moment.
#[derive(Clone, Copy, Debug)]
pub struct Timestamp {
    at: Instant,
    delay: Duration,
}

impl Clock {
    /// Starts its thread.
    pub fn start() -> Clock {
        let start = Instant::now();
        let wake_at = AtomicU64::new(SLEEP.as_nanos() as u64);
        let shared = Arc::new(Shared { delay: AtomicU64::new(0), wake_at, stop: AtomicBool::new(false) });
        let thread_shared = shared.clone();
        let thread = std::thread::spawn(move || {
            while !thread_shared.stop.load(Ordering::Relaxed) {
                let wake_at = start.elapsed() + SLEEP;
                thread_shared.wake_at.store(wake_at.as_nanos() as u64, Ordering::SeqCst);
                std::thread::sleep(SLEEP);
                let delay = start.elapsed().saturating_sub(wake_at + TOLERANCE);
                thread_shared.delay.fetch_add(delay.as_nanos() as u64, Ordering::SeqCst);
            }
        });
        Clock { start, shared, thread: Some(thread) }
    }

    /// Overslept until now, also if it sleeps still.
    fn delay(&self, now: Instant) -> Duration {
        let wake_at = Duration::from_nanos(self.shared.wake_at.load(Ordering::SeqCst));
        let delay = Duration::from_nanos(self.shared.delay.load(Ordering::SeqCst));
        delay + (now - self.start).saturating_sub(wake_at + TOLERANCE)
    }

    /// This moment.
    pub fn now(&self) -> Timestamp {
        let at = Instant::now();
        Timestamp { at, delay: self.delay(at) }
    }

    /// How long ago a moment was, less what the machine was delay in between.
    pub fn since(&self, then: Timestamp) -> Duration {
        let now = self.now();
        (now.at - then.at).saturating_sub(now.delay.saturating_sub(then.delay))
    }
}

impl Drop for Clock {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scheduling_delay_is_subtracted() {
        let clock = Clock::start();
        let then = clock.now();
        std::thread::sleep(Duration::from_millis(100));
        assert!(clock.since(then) <= then.at.elapsed());
        // As if its thread had not been woken for an hour.
        clock.shared.delay.fetch_add(3_600_000_000_000, Ordering::SeqCst);
        assert_eq!(clock.since(then), Duration::ZERO);
    }
}
