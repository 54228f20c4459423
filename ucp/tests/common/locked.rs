//! Shared workers of one thread at a time: the test's thread has locked them, but while it waits for
//! progress, which another thread makes.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use ucp::mt::{LockError, SharedWorker, ThreadMode, WorkerGuard};

/// Most idle progress calls of a turn.
const IDLE: u32 = 16;

/// The calls of the test's thread to the plain workers, endpoints and requests are inside the locks.
pub struct LockedWorkers {
    // Dropped before what they are of.
    guards: RefCell<Vec<WorkerGuard<'static>>>,
    workers: Arc<Vec<SharedWorker>>,
    /// `None`: the thread is to end.
    turns: Option<Sender<()>>,
    events: Receiver<usize>,
    thread: Option<JoinHandle<()>>,
}

impl LockedWorkers {
    pub fn new(workers: Vec<SharedWorker>) -> LockedWorkers {
        let workers = Arc::new(workers);
        let (turns, their_turns) = channel();
        let (their_events, events) = channel();
        let all = workers.clone();
        let thread = std::thread::spawn(move || {
            // The first turn: the test's thread is inside.
            let refused = their_turns.recv().map(|()| all.iter().filter(|worker| is_refused(worker)).count());
            _ = their_events.send(refused.unwrap_or(0));
            while their_turns.recv().is_ok() {
                let round = |_| all.iter().map(|worker| worker.progress().unwrap()).sum();
                _ = their_events.send((0..IDLE).map(round).find(|events| *events > 0).unwrap_or(0));
            }
        });
        let locked = LockedWorkers {
            guards: RefCell::default(),
            workers,
            turns: Some(turns),
            events,
            thread: Some(thread),
        };
        locked.lock();
        assert_eq!(locked.turn(), locked.workers.len(), "two threads are inside");
        locked
    }

    fn lock(&self) {
        for worker in self.workers.iter() {
            // SAFETY: the thread of `new` waits for its turn. A test uses plain objects in its own thread,
            // which is inside but for the turns, and drops them while the other one waits or after it.
            let guard = unsafe { worker.lock() }.unwrap();
            // SAFETY: `guards` are dropped before `workers`, which do not move in their `Arc`.
            let guard: WorkerGuard<'static> = unsafe { std::mem::transmute(guard) };
            self.guards.borrow_mut().push(guard);
        }
    }

    /// Lets the other thread make progress for a turn. Returns the number of events.
    pub fn progress(&self) -> usize {
        self.guards.borrow_mut().clear();
        let events = self.turn();
        self.lock();
        events
    }

    fn turn(&self) -> usize {
        self.turns.as_ref().expect("not dropped").send(()).expect("the thread lives");
        self.events.recv().expect("no handler panics")
    }

    pub fn workers(&self) -> &[SharedWorker] {
        &self.workers
    }
}

impl Drop for LockedWorkers {
    fn drop(&mut self) {
        self.turns = None;
        if let Some(thread) = self.thread.take() {
            _ = thread.join();
        }
    }
}

/// Whether a worker, in which another thread is, refuses this one: an error, or no progress.
fn is_refused(worker: &SharedWorker) -> bool {
    match worker.mode() {
        ThreadMode::Multi => worker.progress() == Ok(0),
        _ => worker.progress() == Err(LockError::Concurrent.into()),
    }
}
