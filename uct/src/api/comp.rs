//! Completion of operations: nothing, a token for [`super::Sink::on_comp`], or a counted [`Completion`]. Each
//! fires exactly once, from progress.

use super::Error;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

/// Notification of local completion of an operation that answered *in progress*; unused if *done*.
#[derive(Clone, Default)]
pub enum Comp {
    /// No notification; use flush. Errors go to the endpoint's error report.
    #[default]
    None,
    /// Report this number to the sink of the poll that finds the completion.
    Token(u64),
    /// Count this completion down.
    Handle(Rc<Completion>),
}

type Callback = Box<dyn FnMut(Result<(), Error>)>;

/// Counted completion: calls back when the last of its operations is locally complete. Reusable, also from
/// within the callback; completions during the callback are reported after it.
pub struct Completion {
    count: Cell<u32>,
    status: Cell<Result<(), Error>>,
    callback: Cell<Option<Callback>>,
    completed: RefCell<VecDeque<Result<(), Error>>>,
}

impl Completion {
    /// Expects `count` operations; `callback` gets the first error among them, if any.
    pub fn new(count: u32, callback: impl FnMut(Result<(), Error>) + 'static) -> Rc<Self> {
        Rc::new(Completion {
            count: Cell::new(count),
            status: Cell::new(Ok(())),
            callback: Cell::new(Some(Box::new(callback))),
            completed: RefCell::default(),
        })
    }

    /// Expects `n` more operations.
    pub fn add(&self, n: u32) {
        self.count.set(self.count.get() + n);
    }

    /// Operations still expected.
    pub fn outstanding(&self) -> u32 {
        self.count.get()
    }

    /// For transports, and for callers whose counted operation did not start: counts down; fires at zero.
    pub fn update(&self, result: Result<(), Error>) {
        if self.status.get().is_ok() {
            self.status.set(result);
        }
        let left = self.count.get().checked_sub(1).expect("completion counted below zero");
        self.count.set(left);
        if left == 0 {
            self.call(self.status.replace(Ok(())));
        }
    }

    fn call(&self, status: Result<(), Error>) {
        let Some(callback) = self.callback.take() else {
            // Running: the caller's loop goes on with this.
            return self.completed.borrow_mut().push_back(status);
        };
        let mut running = Running { completion: self, callback: Some(callback) };
        let mut next = Some(status);
        while let (Some(status), Some(callback)) = (next, &mut running.callback) {
            callback(status);
            next = self.completed.borrow_mut().pop_front();
        }
    }
}

/// A callback that is running: put back when this is dropped, also if it panicked.
struct Running<'a> {
    completion: &'a Completion,
    callback: Option<Callback>,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.completion.callback.set(self.callback.take());
    }
}

impl Comp {
    /// For transports: completes an operation; `on_token` gets tokens.
    #[inline]
    pub fn fire(self, result: Result<(), Error>, on_token: impl FnOnce(u64, Result<(), Error>)) {
        match self {
            Comp::None => {}
            Comp::Token(t) => on_token(t, result),
            Comp::Handle(c) => c.update(result),
        }
    }
}

impl std::fmt::Debug for Comp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Comp::None => f.write_str("None"),
            Comp::Token(t) => write!(f, "Token({t:#x})"),
            Comp::Handle(c) => write!(f, "Handle(outstanding {})", c.outstanding()),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn with_itself(mut callback: impl FnMut(&Completion, Result<(), Error>) + 'static) -> Rc<Completion> {
        Rc::new_cyclic(|weak: &std::rc::Weak<Completion>| {
            let weak = weak.clone();
            let callback = move |result| callback(&weak.upgrade().unwrap(), result);
            Completion {
                count: Cell::new(1),
                status: Cell::new(Ok(())),
                callback: Cell::new(Some(Box::new(callback))),
                completed: RefCell::default(),
            }
        })
    }

    #[test]
    fn callback_may_start_immediate_operation() {
        let log = Rc::new(RefCell::new(Vec::new()));
        let seen = log.clone();
        let comp = with_itself(move |comp, result| {
            seen.borrow_mut().push(result);
            if seen.borrow().len() < 4 {
                comp.add(1);
                comp.update(Err(Error::Cancelled));
                if seen.borrow().len() == 1 {
                    comp.add(1);
                    comp.update(Ok(()));
                }
            }
        });
        comp.update(Err(Error::PeerDead));
        let cancelled = Err(Error::Cancelled);
        assert_eq!(*log.borrow(), [Err(Error::PeerDead), cancelled, Ok(()), cancelled, cancelled]);
        assert_eq!(comp.outstanding(), 0);
        comp.add(1);
        comp.update(Ok(()));
        assert_eq!(log.borrow().len(), 6);
    }

    #[test]
    fn a_callback_that_panics_is_called_again() {
        let seen = Rc::new(Cell::new(0));
        let s = seen.clone();
        let comp = Completion::new(1, move |_| {
            s.set(s.get() + 1);
            assert!(s.get() > 1, "the first time");
        });
        let fired = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| comp.update(Ok(()))));
        assert!(fired.is_err());
        comp.add(1);
        comp.update(Ok(()));
        assert_eq!(seen.get(), 2);
    }
}
