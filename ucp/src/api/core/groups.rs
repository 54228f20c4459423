//! Groups of operations that end one request, in memory that the worker owns. Operations that run when the
//! worker is dropped never end, and their groups go with it.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::api::core::error::Error;
use crate::api::core::requests::{EMPTY_STATUS, RequestId};

use crate::rdm::RecvStatus;

/// Operations that end one request. `W` refers to the worker.
pub(crate) struct Group<W> {
    pub(crate) worker: W,
    /// Place among all groups of the worker.
    at: usize,
    /// Operations that run, and the call that starts them.
    left: Cell<usize>,
    state: Cell<State>,
}

#[derive(Clone, Copy)]
struct State {
    request: RequestId,
    result: Result<(), Error>,
    /// Bytes of all.
    len: usize,
}

impl<W> Group<W> {
    /// Counts an operation that is about to start.
    pub(crate) fn begin_one(&self) {
        self.left.set(self.left.get() + 1);
    }
}

/// The groups of a worker: as many as have been in use at a time.
pub(crate) struct Groups<W> {
    all: RefCell<Vec<Rc<Group<W>>>>,
    /// Places of those that are not in use.
    free: RefCell<Vec<usize>>,
}

impl<W> Default for Groups<W> {
    fn default() -> Self {
        Groups { all: RefCell::default(), free: RefCell::default() }
    }
}

impl<W> Groups<W> {
    /// A group for a request of `len` bytes. The call that starts the operations counts as one of them.
    pub(crate) fn take(&self, request: RequestId, len: usize, worker: impl FnOnce() -> W) -> Rc<Group<W>> {
        let state = State { request, result: Ok(()), len };
        let mut all = self.all.borrow_mut();
        if let Some(at) = self.free.borrow_mut().pop() {
            let group = &all[at];
            group.left.set(1);
            group.state.set(state);
            return group.clone();
        }
        let (at, left, state) = (all.len(), Cell::new(1), Cell::new(state));
        let group = Rc::new(Group { worker: worker(), at, left, state });
        all.push(group.clone());
        group
    }

    /// Notes the end of an operation of a group. The last one gives the request and the result of all, and
    /// frees the group.
    pub(crate) fn end_one(
        &self,
        group: &Group<W>,
        result: Result<(), Error>,
    ) -> Option<(RequestId, Result<RecvStatus, Error>)> {
        let State { request, result: before, len } = group.state.get();
        let result = before.and(result);
        group.state.set(State { request, result, len });
        group.left.set(group.left.get() - 1);
        if group.left.get() > 0 {
            return None;
        }
        self.free.borrow_mut().push(group.at);
        Some((request, result.map(|()| RecvStatus { len, ..EMPTY_STATUS })))
    }
}
