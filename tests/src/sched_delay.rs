//! A clock for time limits on a busy machine: scheduling delay does not count. Used by suites that limit the
//! time to a notification.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const SLEEP: Duration = Duration::from_millis(10);
/// A later wake-up is a delay.
const TOLERANCE: Duration = Duration::from_millis(1);

/// A clock that measures scheduling delay by the oversleep of a thread that only sleeps.
pub struct Clock {
    start: Instant,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    /// Sum of delays, ns.
    delay: AtomicU64,
    /// Time of the next wake-up, ns from the start.
    wake_at: AtomicU64,
    stop: AtomicBool,
}

/// A point in time.
#[derive(Clone, Copy, Debug)]
pub struct Timestamp {
    at: Instant,
    delay: Duration,
}

impl Clock {
    /// Starts the measuring thread.
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

    /// Delay up to now, including a late wake-up that has not happened yet.
    fn delay(&self, now: Instant) -> Duration {
        let wake_at = Duration::from_nanos(self.shared.wake_at.load(Ordering::SeqCst));
        let delay = Duration::from_nanos(self.shared.delay.load(Ordering::SeqCst));
        delay + (now - self.start).saturating_sub(wake_at + TOLERANCE)
    }

    /// The present time.
    pub fn now(&self) -> Timestamp {
        let at = Instant::now();
        Timestamp { at, delay: self.delay(at) }
    }

    /// Time since `then` without the delay in between.
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
