//! The part of a NIC that works while its program does not: a thread that moves requests which a post could not finish
//! (held back on a rough network, before a receiver that is not ready, long RDMA). Owned by a context, which posts wake it through.
//! Never runs, nor is started, while every request is finished by its post; takes no completion.

use crate::split_lock::SplitLock;
use crate::state::State;
use std::process;
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Time between two rounds while requests wait.
const ROUND: Duration = Duration::from_micros(50);
/// Polls that a busy program makes in that time: what a round counts for.
const ROUND_POLLS: u32 = 512;

/// Held while an engine has a context's lock: a fork in that moment would leave the child a lock that nobody gives back.
static FORK_LOCK: SplitLock<()> = SplitLock::new(());

extern "C" fn before_fork() {
    FORK_LOCK.lock();
}

extern "C" fn after_fork() {
    FORK_LOCK.unlock();
}

/// A context's state, its lock, and its engine.
pub struct ProgressThread(Arc<Mutex<State>>);

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    // A panic in a verb ends the process, so a poisoned lock is never seen by anybody who could go on.
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ProgressThread {
    /// An engine that has nothing to do yet.
    pub fn new(state: State) -> ProgressThread {
        ProgressThread(Arc::new(Mutex::new(state)))
    }

    /// The state. // HOT
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.0)
    }

    /// There are requests that wait.
    #[cold]
    pub fn wake(&self, state: &mut State) {
        let thread = &mut state.thread;
        match &thread.handle {
            Some((handle, _)) if thread.idle => handle.thread().unpark(),
            Some(_) => {}
            None => {
                let shared = self.0.clone();
                // Without a thread, requests move when the program polls.
                thread.handle = spawn(move || run(&shared)).map(|handle| (handle, process::id()));
            }
        }
        thread.idle = false;
    }
}

impl Drop for ProgressThread {
    fn drop(&mut self) {
        let thread = {
            let mut state = self.lock();
            state.thread.stop = true;
            state.thread.handle.take()
        };
        match thread {
            Some((thread, pid)) if pid == process::id() => {
                thread.thread().unpark();
                // It ends without a panic, or the process has ended.
                let _ = thread.join();
            }
            // In a child there is no such thread: nothing about it may be given back.
            thread => std::mem::forget(thread),
        }
    }
}

/// Starts a thread that no signal is delivered to: they are for the program.
fn spawn(body: impl FnOnce() + Send + 'static) -> Option<JoinHandle<()>> {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handlers take and give a flag, which may be done around a fork.
        unsafe { libc::pthread_atfork(Some(before_fork), Some(after_fork), Some(after_fork)) };
    });
    // SAFETY: all-zero is a valid signal set, and is filled below.
    let mut all: libc::sigset_t = unsafe { std::mem::zeroed() };
    let mut before = all;
    // SAFETY: `all` is writable.
    unsafe { libc::sigfillset(&raw mut all) };
    // SAFETY: both sets are valid; the new thread inherits the mask of this one.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before) };
    let thread = thread::Builder::new().name("softefa".into()).spawn(body);
    // SAFETY: `before` was filled by the call above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut()) };
    thread.ok()
}

fn run(state: &Mutex<State>) {
    loop {
        FORK_LOCK.lock();
        let more = round(&mut lock(state));
        FORK_LOCK.unlock();
        match more {
            None => return,
            Some(true) => thread::sleep(ROUND),
            Some(false) => thread::park(),
        }
    }
}

/// Moves what waits; answers whether something waits on, or nothing if the engine shall end.
fn round(state: &mut State) -> Option<bool> {
    let more = state.cqs.iter().fold(false, |more, (_, row)| row.cq.progress_for(ROUND_POLLS) || more);
    state.thread.idle = !more;
    (!state.thread.stop).then_some(more)
}
