//! How the end of an operation is told.
//!
//! An operation takes a [`Comp`]: nothing, a token that comes back through [`super::Sink::on_comp`], or a
//! counted [`Completion`] with a callback. Each fires exactly once, from progress only.

use super::Error;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// What to do when an operation that answered *in progress* is locally complete. Ignored when it answered *done*.
#[derive(Clone, Default)]
pub enum Comp {
    /// Tell nobody; use flush. Errors go to the endpoint's error report.
    #[default]
    None,
    /// Report this number to the sink of the poll that finds the completion.
    Token(u64),
    /// Count this completion down.
    Handle(Rc<Completion>),
}

/// What a completion calls, with the first error among its operations.
type Callback = Box<dyn FnMut(Result<(), Error>)>;

/// A completion shared by one or more operations: calls back when the last of them is locally complete.
///
/// Reusable: [`Completion::add`] may be called again after it has fired.
pub struct Completion {
    count: Cell<u32>,
    status: Cell<Result<(), Error>>,
    callback: RefCell<Callback>,
}

impl Completion {
    /// Expects `count` operations; `callback` gets the first error among them, if any.
    pub fn new(count: u32, callback: impl FnMut(Result<(), Error>) + 'static) -> Rc<Self> {
        Rc::new(Completion {
            count: Cell::new(count),
            status: Cell::new(Ok(())),
            callback: RefCell::new(Box::new(callback)),
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

    /// For transports, and for a caller whose operation answered *done* or *no resource* after it was counted:
    /// one operation fewer. Fires the callback at zero.
    pub fn update(&self, result: Result<(), Error>) {
        if self.status.get().is_ok() {
            self.status.set(result);
        }
        let left = self.count.get().checked_sub(1).expect("completion counted below zero");
        self.count.set(left);
        if left == 0 {
            let status = self.status.replace(Ok(()));
            (self.callback.borrow_mut())(status);
        }
    }
}

impl Comp {
    /// For transports: tells the end of an operation. `sink` gets tokens; without one (`None`) the completion
    /// is a handle or nothing.
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
