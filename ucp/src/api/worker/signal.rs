//! Signals of other threads, which end the sleep of a worker, and the wait for a word of memory.

use std::cell::{Cell, OnceCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use ucs::Errno;
use ucs::sync::SpinHint;
use ucs::sys::fd::{Epoll, EventFd};

/// Token of the descriptor in the worker's set, beside those of lanes and of the exchange of addresses.
const TOKEN: u64 = u64::MAX - 1;
/// Token of the descriptor for operations that begin while a program sleeps.
const BEGUN_TOKEN: u64 = u64::MAX - 2;
/// Looks of one [`wait_mem`].
const POLLS: u32 = 256;

/// Wakes a worker from any thread, see [`Worker::signaller`](crate::Worker::signaller). It may outlive the
/// worker.
#[derive(Clone, Debug)]
pub struct WorkerSignal(Arc<Signal>);

#[derive(Debug)]
struct Signal {
    eventfd: EventFd,
    /// Set after the descriptor has become readable: whoever takes it finds that.
    is_set: AtomicBool,
}

impl WorkerSignal {
    /// Ends the present [`Worker::wait`](crate::Worker::wait), or the next at once. Makes the worker's armed
    /// descriptor readable, or the next [`Worker::arm`](crate::Worker::arm) return false. Signals that nobody
    /// has seen yet count once. From any thread, and from a signal handler of the process.
    pub fn signal(&self) {
        // It fails only where the counter is at its maximum, and readable.
        _ = self.0.eventfd.signal();
        self.0.is_set.store(true, Ordering::Release);
    }
}

/// The worker's end of its signals, once a thread has asked for one, and the wake-up for what this thread
/// begins while the descriptor is armed.
#[derive(Default)]
pub(crate) struct Signals {
    of_threads: OnceCell<WorkerSignal>,
    /// Readable from such a beginning to the next arming, whoever waits meanwhile.
    begun: OnceCell<EventFd>,
    has_begun: Cell<bool>,
}

impl Signals {
    /// Returns a handle that wakes who waits on `events`.
    pub(crate) fn handle(&self, events: Option<&Epoll>) -> Result<WorkerSignal, Errno> {
        if let Some(signal) = self.of_threads.get() {
            return Ok(signal.clone());
        }
        let signal = Signal { eventfd: EventFd::new()?, is_set: AtomicBool::new(false) };
        if let Some(events) = events {
            events.add(&signal.eventfd, TOKEN)?;
        }
        Ok(self.of_threads.get_or_init(|| WorkerSignal(Arc::new(signal))).clone())
    }

    /// Takes a signal that has come since the last time.
    pub(crate) fn take(&self) -> bool {
        let Some(WorkerSignal(signal)) = self.of_threads.get() else { return false };
        let was_set = signal.is_set.swap(false, Ordering::Acquire);
        if was_set {
            _ = signal.eventfd.clear();
        }
        was_set
    }

    /// Makes ready for [`Signals::wake`].
    pub(crate) fn prepare(&self, events: &Epoll) -> Result<(), Errno> {
        match self.begun.get() {
            Some(begun) => {
                if self.has_begun.replace(false) {
                    begun.clear()?;
                }
            }
            None => {
                let begun = EventFd::new()?;
                events.add(&begun, BEGUN_TOKEN)?;
                _ = self.begun.set(begun);
            }
        }
        Ok(())
    }

    /// Makes the descriptor readable until it is armed again.
    pub(crate) fn wake(&self) {
        if let Some(begun) = self.begun.get()
            && !self.has_begun.replace(true)
        {
            _ = begun.signal();
        }
    }
}

/// Waits until `word` differs from `seen`, for some microseconds at most; returns whether it does. Its loads
/// leave the cache line to whoever writes the word. For words that peers write directly: no worker makes
/// progress, so call [`Worker::progress`](crate::Worker::progress) between two waits.
pub fn wait_mem(word: &AtomicU64, seen: u64) -> bool {
    wait_while(|| word.load(Ordering::Acquire) == seen)
}

/// Waits as [`wait_mem`] does, for memory of another form, until `is_same` says no; returns whether it has.
pub fn wait_while(mut is_same: impl FnMut() -> bool) -> bool {
    let hint = SpinHint::measured();
    for _ in 0..POLLS {
        if !is_same() {
            return true;
        }
        hint.pause();
    }
    false
}
