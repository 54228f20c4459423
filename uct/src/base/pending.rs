//! Pending operations: FIFO per endpoint, endpoints in turn; O(1). Owned by an interface. Operations may add
//! others: none runs while the queue is borrowed.

use crate::api::{Pending, Retry};
use rustc_hash::FxHashMap;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

/// The waiting operations of one interface.
#[derive(Default)]
pub struct Arbiter {
    waiting: Cell<usize>,
    inner: RefCell<Inner>,
}

#[derive(Default)]
struct Inner {
    queues: FxHashMap<QueueId, Queue>,
    /// Numbers given so far, and those that came back.
    next_id: u32,
    free: Vec<QueueId>,
    ready: VecDeque<QueueId>,
}

#[derive(Default)]
struct Queue {
    ops: VecDeque<Pending>,
    is_ready: bool,
    /// The first operation is off the queue and being tried.
    is_tried: bool,
    closed: bool,
}

/// An endpoint's queue.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct QueueId(u32);

/// Whether endpoints compete for the same room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TxRoom {
    /// One queue of room for all: the first refusal ends the round.
    Shared,
    /// Each endpoint has its own: a refusal passes the turn on.
    PerEp,
}

impl Arbiter {
    /// A queue for a new endpoint. Give it back with [`Arbiter::close`].
    pub fn open(&self) -> QueueId {
        let mut inner = self.inner.borrow_mut();
        inner.free.pop().unwrap_or_else(|| {
            inner.next_id += 1;
            QueueId(inner.next_id - 1)
        })
    }

    /// The endpoint is gone: its operations are dropped untried.
    pub fn close(&self, id: QueueId) {
        let ops = self.take_all(id);
        let mut inner = self.inner.borrow_mut();
        match inner.queues.get_mut(&id) {
            // It ends with the turn that it has.
            Some(queue) if queue.is_tried => queue.closed = true,
            _ => inner.forget(id),
        }
        drop(inner);
        // Dropping a closure may drop what it owns, such as another endpoint: outside the borrow.
        drop(ops);
    }

    /// Operations waiting on all endpoints.
    #[inline(always)]
    pub fn waiting(&self) -> usize {
        self.waiting.get()
    }

    /// Whether nothing waits on this endpoint, nor is being tried.
    pub fn is_empty(&self, id: QueueId) -> bool {
        let inner = self.inner.borrow();
        inner.queues.get(&id).is_none_or(|queue| queue.ops.is_empty() && !queue.is_tried)
    }

    /// Whether a send on this endpoint would overtake waiting operations; not if it is the one being tried.
    #[cold]
    pub fn holds_back(&self, id: QueueId) -> bool {
        let inner = self.inner.borrow();
        inner.queues.get(&id).is_some_and(|queue| !queue.ops.is_empty() && !queue.is_tried)
    }

    pub fn add(&self, id: QueueId, op: Pending) {
        let mut inner = self.inner.borrow_mut();
        inner.queues.entry(id).or_default().ops.push_back(op);
        inner.make_ready(id);
        self.waiting.set(self.waiting.get() + 1);
    }

    pub fn take_all(&self, id: QueueId) -> VecDeque<Pending> {
        let ops = self.inner.borrow_mut().queues.get_mut(&id).map(|queue| std::mem::take(&mut queue.ops));
        let ops = ops.unwrap_or_default();
        self.waiting.set(self.waiting.get() - ops.len());
        ops
    }

    /// Tries up to `max` operations, one an endpoint and turn; answers how many went out.
    #[cold]
    pub fn dispatch(&self, max: usize, room: TxRoom) -> usize {
        let mut done = 0;
        let mut refused = 0;
        while done < max {
            if refused > 0 && refused >= self.inner.borrow().ready.len() {
                break;
            }
            let Some((id, mut op)) = self.next() else { break };
            let tried = Tried { arbiter: self, id };
            match op() {
                Retry::Done => {
                    done += 1;
                    drop(tried);
                }
                Retry::NoResource => {
                    std::mem::forget(tried);
                    self.put_back(id, op, room);
                    refused += 1;
                    if room == TxRoom::Shared {
                        break;
                    }
                }
            }
        }
        done
    }

    fn next(&self) -> Option<(QueueId, Pending)> {
        let mut inner = self.inner.borrow_mut();
        loop {
            let id = inner.ready.pop_front()?;
            let queue = inner.queues.get_mut(&id);
            match queue.and_then(|queue| Some((queue.ops.pop_front()?, &mut queue.is_tried))) {
                Some((op, is_tried)) => {
                    *is_tried = true;
                    return Some((id, op));
                }
                None => inner.finish_turn(id),
            }
        }
    }

    fn put_back(&self, id: QueueId, op: Pending, room: TxRoom) {
        let mut inner = self.inner.borrow_mut();
        let queue = inner.queues.entry(id).or_default();
        queue.is_tried = false;
        if queue.closed {
            // The operation dropped its own endpoint.
            self.waiting.set(self.waiting.get() - 1);
            inner.finish_turn(id);
            drop(inner);
            return drop(op);
        }
        queue.ops.push_front(op);
        match room {
            TxRoom::Shared => inner.ready.push_front(id),
            TxRoom::PerEp => inner.ready.push_back(id),
        }
    }
}

/// An operation being tried; on drop it no longer waits: done, or lost by a panic without those behind it.
struct Tried<'a> {
    arbiter: &'a Arbiter,
    id: QueueId,
}

impl Drop for Tried<'_> {
    fn drop(&mut self) {
        self.arbiter.waiting.set(self.arbiter.waiting.get() - 1);
        self.arbiter.inner.borrow_mut().finish_turn(self.id);
    }
}

impl Inner {
    fn make_ready(&mut self, id: QueueId) {
        let queue = self.queues.entry(id).or_default();
        if !queue.is_ready {
            queue.is_ready = true;
            self.ready.push_back(id);
        }
    }

    /// Gives an id back whose queue has no operation.
    fn forget(&mut self, id: QueueId) {
        if self.queues.remove(&id).is_some_and(|queue| queue.is_ready) {
            self.ready.retain(|ready| *ready != id);
        }
        self.free.push(id);
    }

    fn finish_turn(&mut self, id: QueueId) {
        let Some(queue) = self.queues.get_mut(&id) else { return };
        (queue.is_ready, queue.is_tried) = (false, false);
        if !queue.ops.is_empty() {
            self.make_ready(id);
        } else if self.queues.remove(&id).is_some_and(|queue| queue.closed) {
            self.free.push(id);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::rc::Rc;

    type Log = Rc<RefCell<Vec<u32>>>;

    fn op(log: &Log, n: u32) -> Pending {
        let log = log.clone();
        Box::new(move || {
            log.borrow_mut().push(n);
            Retry::Done
        })
    }

    #[test]
    fn endpoints_take_turns_in_order() {
        let (arbiter, log) = (Arbiter::default(), Log::default());
        let (a, b) = (arbiter.open(), arbiter.open());
        for n in [10, 11, 12] {
            arbiter.add(a, op(&log, n));
        }
        arbiter.add(b, op(&log, 20));
        arbiter.add(b, op(&log, 21));
        assert_eq!(arbiter.dispatch(4, TxRoom::Shared), 4);
        assert_eq!(*log.borrow(), [10, 20, 11, 21]);
        assert_eq!((arbiter.waiting(), arbiter.is_empty(b)), (1, true));
        assert_eq!(arbiter.dispatch(4, TxRoom::Shared), 1);
        assert_eq!(arbiter.waiting(), 0);
    }

    #[test]
    fn refused_operation_stays_at_the_head() {
        let (arbiter, log) = (Arbiter::default(), Log::default());
        let (a, b) = (arbiter.open(), arbiter.open());
        let refusals = Rc::new(Cell::new(2u32));
        let left = refusals.clone();
        arbiter.add(
            a,
            Box::new(move || match left.replace(left.get().saturating_sub(1)) {
                0 => Retry::Done,
                _ => Retry::NoResource,
            }),
        );
        arbiter.add(a, op(&log, 1));
        arbiter.add(b, op(&log, 2));
        assert_eq!(arbiter.dispatch(10, TxRoom::Shared), 0);
        assert_eq!(refusals.get(), 1);
        assert_eq!(arbiter.dispatch(10, TxRoom::PerEp), 1);
        assert_eq!(*log.borrow(), [2]);
        assert_eq!(arbiter.dispatch(10, TxRoom::PerEp), 2);
        assert_eq!(*log.borrow(), [2, 1]);
    }

    #[test]
    fn operations_may_add_and_close() {
        let (arbiter, log) = (Rc::new(Arbiter::default()), Log::default());
        let a = arbiter.open();
        let (arb, l) = (arbiter.clone(), log.clone());
        arbiter.add(
            a,
            Box::new(move || {
                arb.add(a, op(&l, 2));
                arb.close(a);
                Retry::NoResource
            }),
        );
        assert_eq!(arbiter.dispatch(10, TxRoom::PerEp), 0);
        assert_eq!(arbiter.waiting(), 0);
        assert!(log.borrow().is_empty());
        assert_eq!(arbiter.open(), a);
    }

    #[test]
    fn a_panicking_operation_leaves_others_queued() {
        let (arbiter, log) = (Arbiter::default(), Log::default());
        let (a, b) = (arbiter.open(), arbiter.open());
        arbiter.add(a, Box::new(|| panic!("no")));
        arbiter.add(a, op(&log, 1));
        arbiter.add(b, op(&log, 2));
        let tried =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| arbiter.dispatch(9, TxRoom::PerEp)));
        assert!(tried.is_err());
        assert_eq!(arbiter.waiting(), 2);
        assert_eq!((arbiter.dispatch(9, TxRoom::PerEp), arbiter.waiting()), (2, 0));
        assert_eq!(*log.borrow(), [2, 1]);
        arbiter.close(a);
        assert_eq!(arbiter.open(), a, "its queue is free again");
    }

    #[test]
    fn a_closed_queue_leaves_nothing() {
        let (arbiter, log) = (Arbiter::default(), Log::default());
        let kept = arbiter.open();
        arbiter.add(kept, op(&log, 7));
        for n in 0..1000 {
            let id = arbiter.open();
            assert_ne!(id, kept);
            arbiter.add(id, op(&log, n));
            arbiter.close(id);
            let inner = arbiter.inner.borrow();
            assert_eq!((inner.queues.len(), inner.ready.len(), inner.next_id), (1, 1, 2));
        }
        assert_eq!((arbiter.dispatch(9, TxRoom::PerEp), arbiter.waiting()), (1, 0));
        assert_eq!(*log.borrow(), [7]);
    }

    #[test]
    fn a_tried_operation_is_not_blocked_by_its_followers() {
        let (arbiter, seen) = (Rc::new(Arbiter::default()), Rc::new(Cell::new(None)));
        let a = arbiter.open();
        assert!(arbiter.is_empty(a) && !arbiter.holds_back(a));
        let (arb, s) = (arbiter.clone(), seen.clone());
        let mut refusals = 1;
        arbiter.add(
            a,
            Box::new(move || {
                s.set(Some((arb.is_empty(a), arb.holds_back(a))));
                refusals -= 1;
                if refusals == 0 { Retry::NoResource } else { Retry::Done }
            }),
        );
        for behind in [0, 1] {
            assert!(!arbiter.is_empty(a) && arbiter.holds_back(a));
            assert_eq!(arbiter.dispatch(1, TxRoom::PerEp), behind);
            assert_eq!(seen.take(), Some((false, false)));
            if behind == 0 {
                arbiter.add(a, Box::new(|| Retry::Done));
            }
        }
        assert!(arbiter.holds_back(a));
        assert_eq!(arbiter.dispatch(1, TxRoom::PerEp), 1);
        assert!(arbiter.is_empty(a) && !arbiter.holds_back(a));
    }

    #[test]
    fn purge_returns_operations_in_order() {
        let (arbiter, log) = (Arbiter::default(), Log::default());
        let a = arbiter.open();
        arbiter.add(a, op(&log, 1));
        arbiter.add(a, op(&log, 2));
        for mut op in arbiter.take_all(a) {
            assert_eq!(op(), Retry::Done);
        }
        assert_eq!(*log.borrow(), [1, 2]);
        assert_eq!((arbiter.waiting(), arbiter.dispatch(1, TxRoom::Shared)), (0, 0));
    }
}
