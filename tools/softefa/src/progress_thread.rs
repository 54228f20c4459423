//! A thread that progresses deferred requests while the program does not poll, as a NIC would. Started by the
//! first deferred request; takes no completions.

use crate::freeing_lock::FreeingLock;
use crate::split_lock::SplitLock;
use crate::state::State;
use std::process;
use std::sync::{Arc, MutexGuard, Once};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use ucs::sys::thread::spawn_masked;

/// Time between two rounds while requests are deferred.
const ROUND: Duration = Duration::from_micros(50);
/// Polls of a busy program in that time.
const ROUND_POLLS: u32 = 512;
/// As much as threads have by default: rounds copy and write to the log.
const STACK: usize = 2 << 20;

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
    shared: Arc<FreeingLock<State>>,
}

impl ProgressThread {
    pub fn new(state: State) -> ProgressThread {
        ProgressThread { shared: Arc::new(FreeingLock::new(state)) }
    }

    /// Locks the state, in which regions that the program unmapped have no key any more.
    // HOT
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, State> {
        let mut state = self.shared.lock();
        revoke_unmapped(&mut state);
        state
    }

    /// Locks to free an object, or answers that it stays ([`FreeingLock::lock_to_free`]).
    pub fn lock_to_free(&self) -> Option<MutexGuard<'_, State>> {
        self.shared.lock_to_free()
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
    spawn_masked("softefa", STACK, body).ok()
}

// HOT
#[inline]
fn revoke_unmapped(state: &mut State) {
    let State { unmapped, mrs, .. } = state;
    unmapped.revoke(mrs);
}

fn run(shared: &FreeingLock<State>) {
    loop {
        FORK_LOCK.lock();
        let more = round(&mut shared.lock());
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
