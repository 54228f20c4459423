//! Completions that any thread may hold. Inside the lock, operations carry tokens. The loom model of the
//! count is here.

#![allow(unsafe_code)]

use crate::api::{Comp, Error};
use std::cell::RefCell;
use std::sync::PoisonError;
use ucs::sync::{Arc, AtomicU32, Mutex, Ordering};

type Callback = Box<dyn FnMut(Result<(), Error>) + Send>;

/// A completion shared by operations and threads; calls back in the thread that progresses the last one.
pub struct Completion {
    count: AtomicU32,
    state: Mutex<State>,
}

struct State {
    result: Result<(), Error>,
    callback: Callback,
}

impl Completion {
    /// Expects `count` operations; `callback` gets the first error. It may send, not progress or touch this.
    pub fn new(count: u32, callback: impl FnMut(Result<(), Error>) + Send + 'static) -> Arc<Self> {
        let state = State { result: Ok(()), callback: Box::new(callback) };
        Arc::new(Completion { count: AtomicU32::new(count), state: Mutex::new(state) })
    }

    /// Expects `n` more operations. Before they are started.
    pub fn add(&self, n: u32) {
        self.count.fetch_add(n, Ordering::Relaxed);
    }

    /// Operations still expected.
    pub fn outstanding(&self) -> u32 {
        self.count.load(Ordering::Acquire)
    }

    /// Counts down for an operation that was *done* or did not start. At zero the callback runs.
    pub fn update(&self, result: Result<(), Error>) {
        if result.is_err() {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.result = state.result.and(result);
        }
        // SYNC(completion): the last one sees the errors and the effects of all.
        let before = self.count.fetch_sub(1, Ordering::AcqRel);
        assert!(before > 0, "completion counted below zero");
        if before == 1 {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            let result = std::mem::replace(&mut state.result, Ok(()));
            (state.callback)(result);
        }
    }
}

impl std::fmt::Debug for Completion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Completion(outstanding {})", self.outstanding())
    }
}

#[derive(Default)]
pub(super) struct Tokens {
    table: RefCell<TokenTable>,
}

#[derive(Default)]
struct TokenTable {
    all: Vec<Option<Arc<Completion>>>,
    free: Vec<u32>,
}

impl Tokens {
    pub(super) fn issue(&self, comp: Option<&Arc<Completion>>) -> Comp {
        let Some(comp) = comp else { return Comp::None };
        let mut table = self.table.borrow_mut();
        let at = table.free.pop().unwrap_or_else(|| {
            table.all.push(None);
            table.all.len() as u32 - 1
        });
        table.all[at as usize] = Some(comp.clone());
        Comp::Token(u64::from(at))
    }

    pub(super) fn take(&self, token: u64) -> Option<Arc<Completion>> {
        let mut table = self.table.borrow_mut();
        let comp = table.all.get_mut(token as usize)?.take()?;
        table.free.push(token as u32);
        Some(comp)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ucs::sync::{UnsafeCell, model, thread};

    #[test]
    fn loom_the_last_one_calls_back_and_sees_all() {
        model(|| {
            struct Work([UnsafeCell<u32>; 2], AtomicU32);
            // SAFETY: each cell is written by its thread before that counts down, and read by the callback of
            // the last.
            unsafe impl Sync for Work {}
            // SAFETY: nothing in it is bound to a thread.
            unsafe impl Send for Work {}
            let work = Arc::new(Work([UnsafeCell::new(0), UnsafeCell::new(0)], AtomicU32::new(0)));
            let seen = work.clone();
            let comp = Completion::new(1, move |result| {
                assert_eq!(result, Err(Error::PeerDead));
                // SAFETY: both have counted down.
                assert!(seen.0.iter().all(|cell| cell.with(|at| unsafe { at.read() }) == 1));
                seen.1.fetch_add(1, Ordering::Relaxed);
            });
            comp.add(1);
            let end = |n: usize, result| {
                let (work, comp) = (work.clone(), comp.clone());
                move || {
                    // SAFETY: ours alone until the count says otherwise.
                    work.0[n].with_mut(|at| unsafe { at.write(1) });
                    comp.update(result);
                }
            };
            let other = thread::spawn(end(0, Err(Error::PeerDead)));
            end(1, Ok(()))();
            other.join().unwrap();
            assert_eq!((comp.outstanding(), work.1.load(Ordering::Relaxed)), (0, 1));
        });
    }
}
