//! A thread that progresses deferred requests while the program does not poll, as a NIC would. Started by the
//! first deferred request; takes no completions.

use crate::split_lock::SplitLock;
use crate::state::State;
use std::process;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError, TryLockError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Time between two rounds while requests are deferred.
const ROUND: Duration = Duration::from_micros(50);
/// Polls of a busy program in that time.
const ROUND_POLLS: u32 = 512;
/// Longest time that a verb waits for the lock to free an object. Others hold it for microseconds.
const FREE_WAIT: Duration = Duration::from_secs(1);
/// Attempts to lock between two looks at the clock.
const FREE_SPINS: u32 = 64;

/// Locked while the thread holds a context's lock, which a fork would leave locked in the child.
static FORK_LOCK: SplitLock<()> = SplitLock::new(());

extern "C" fn before_fork() {
    FORK_LOCK.lock();
}

extern "C" fn after_fork() {
    FORK_LOCK.unlock();
}

/// State of a context, its lock, and its thread.
pub struct ProgressThread {
    shared: Arc<Mutex<State>>,
    /// The lock could not be had to free an object: whatever is left goes with the process.
    abandoned: AtomicBool,
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    // A panic in a verb ends the process, so nobody sees a poisoned lock.
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ProgressThread {
    pub fn new(state: State) -> ProgressThread {
        ProgressThread { shared: Arc::new(Mutex::new(state)), abandoned: AtomicBool::new(false) }
    }

    /// Locks the state, in which regions that the program unmapped have no key any more. // HOT
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, State> {
        let mut state = lock(&self.shared);
        revoke_unmapped(&mut state);
        state
    }

    /// Locks to free an object; `None` if that would wait for ever. A signal handler that interrupted a verb
    /// and calls `exit` runs in the thread that holds the lock. The first caller waits for a second, later
    /// ones not at all, and what they would free is left to the kernel.
    #[cold]
    pub fn lock_to_free(&self) -> Option<MutexGuard<'_, State>> {
        let mut until = None;
        loop {
            for _ in 0..FREE_SPINS {
                match self.shared.try_lock() {
                    Ok(state) => return Some(state),
                    Err(TryLockError::Poisoned(state)) => return Some(state.into_inner()),
                    Err(TryLockError::WouldBlock) => std::hint::spin_loop(),
                }
            }
            if self.abandoned.load(Ordering::Relaxed) {
                return None;
            }
            if Instant::now() >= *until.get_or_insert_with(|| Instant::now() + FREE_WAIT) {
                self.abandoned.store(true, Ordering::Relaxed);
                return None;
            }
            thread::yield_now();
        }
    }

    #[cold]
    pub fn wake(&self, state: &mut State) {
        let thread = &mut state.thread;
        match &thread.handle {
            Some((handle, _)) if thread.idle => handle.thread().unpark(),
            Some(_) => {}
            None => {
                let shared = self.shared.clone();
                // Without a thread, requests progress when the program polls.
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
            // A forked child has no such thread to join.
            thread => std::mem::forget(thread),
        }
    }
}

/// Starts a thread with all signals blocked: they are for the program.
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

// HOT
#[inline]
fn revoke_unmapped(state: &mut State) {
    let State { unmapped, mrs, .. } = state;
    unmapped.revoke(mrs);
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

/// Progresses deferred requests; returns whether some remain, or `None` to end.
fn round(state: &mut State) -> Option<bool> {
    revoke_unmapped(state);
    let more =
        state.cqs.iter().fold(false, |more, (_, cq_state)| cq_state.cq.progress_for(ROUND_POLLS) || more);
    state.thread.idle = !more;
    (!state.thread.stop).then_some(more)
}
