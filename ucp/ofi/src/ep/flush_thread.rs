//! A thread that sends datagrams that were reported complete but found no room at the receiver, while the
//! program makes no calls.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use ucp::mt::SharedWorker;

/// Time that the calls of the program have to send a datagram, before the thread makes progress. It doubles
/// while no datagram leaves.
const MIN_DELAY: Duration = Duration::from_millis(1);
const MAX_DELAY: Duration = Duration::from_millis(16);

/// The thread of an endpoint. Ends when it is dropped.
pub(super) struct FlushThread {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    /// Datagrams that have not left.
    waiting: AtomicUsize,
    is_stopped: Mutex<bool>,
    /// The first datagram waits, or the thread is to stop.
    changed: Condvar,
}

impl FlushThread {
    /// Starts the thread of a worker of mode multi.
    pub(super) fn spawn(worker: SharedWorker) -> std::io::Result<FlushThread> {
        let shared = Arc::new(Shared::default());
        let of_thread = shared.clone();
        let builder = std::thread::Builder::new().name("efa4-flush".into());
        let thread = builder.spawn(move || of_thread.run(&worker))?;
        Ok(FlushThread { shared, thread: Some(thread) })
    }

    /// A datagram waits.
    pub(super) fn add(&self) {
        if self.shared.waiting.fetch_add(1, Ordering::AcqRel) == 0 {
            self.shared.wake(false);
        }
    }

    /// A datagram has left.
    pub(super) fn remove(&self) {
        self.shared.waiting.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Shared {
    fn wake(&self, stops: bool) {
        *self.is_stopped.lock().unwrap_or_else(PoisonError::into_inner) |= stops;
        self.changed.notify_one();
    }

    fn run(&self, worker: &SharedWorker) {
        let mut delay = MIN_DELAY;
        loop {
            let is_stopped = self.is_stopped.lock().unwrap_or_else(PoisonError::into_inner);
            let has_none = |is_stopped: &mut bool| !*is_stopped && self.waiting.load(Ordering::Acquire) == 0;
            let is_stopped =
                self.changed.wait_while(is_stopped, has_none).unwrap_or_else(PoisonError::into_inner);
            let waited = self.changed.wait_timeout_while(is_stopped, delay, |is_stopped| !*is_stopped);
            if *waited.unwrap_or_else(PoisonError::into_inner).0 {
                return;
            }
            let before = self.waiting.load(Ordering::Acquire);
            if worker.progress().is_err() {
                return;
            }
            let has_left = self.waiting.load(Ordering::Acquire) < before;
            delay = if has_left { MIN_DELAY } else { MAX_DELAY.min(delay * 2) };
        }
    }
}

impl Drop for FlushThread {
    fn drop(&mut self) {
        self.shared.wake(true);
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::warn!("a callback panicked in the thread that sends datagrams");
        }
    }
}
