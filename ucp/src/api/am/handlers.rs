//! Active-message state of a worker: handlers, queue and posted receives. Calls no handler.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use crate::api::am::queue::AmQueue;

/// Handlers with lower numbers are in the vector, the others in the hash map.
const DIRECT_IDS: usize = 256;

pub(crate) type Handler<M> = Rc<dyn Fn(M)>;

struct Handlers<M> {
    direct: Vec<Option<Handler<M>>>,
    by_id: HashMap<u16, Handler<M>, FxBuildHasher>,
}

pub(crate) struct AmHandlers<M, P> {
    pub(crate) queue: AmQueue,
    handlers: RefCell<Handlers<M>>,
    /// Posted receives. The `arg` of their callback points to one of these.
    pub(crate) posted: RefCell<Vec<Rc<P>>>,
    /// Receives that wait to be posted again because too many operations were running.
    pub(crate) idle: RefCell<Vec<Rc<P>>>,
    next_number: Cell<u64>,
}

impl<M, P> AmHandlers<M, P> {
    /// State without handlers, for messages whose data has this alignment, a power of two.
    pub(crate) fn new(align: usize) -> Self {
        AmHandlers {
            queue: AmQueue::new(align),
            handlers: RefCell::new(Handlers { direct: Vec::new(), by_id: HashMap::default() }),
            posted: RefCell::default(),
            idle: RefCell::default(),
            next_number: Cell::new(0),
        }
    }

    /// Returns handler number `id`.
    // HOT
    #[inline(always)]
    pub(crate) fn handler(&self, id: u16) -> Option<Handler<M>> {
        let handlers = self.handlers.borrow();
        match handlers.direct.get(usize::from(id)) {
            Some(handler) => handler.clone(),
            None => handlers.by_id.get(&id).cloned(),
        }
    }

    /// Number of the next message whose data follows.
    pub(crate) fn take_number(&self) -> u64 {
        self.next_number.replace(self.next_number.get().wrapping_add(1))
    }

    /// Removes all handlers. No receive is posted for active messages any more.
    #[must_use]
    pub(crate) fn clear(&self) -> impl Sized + use<M, P> {
        self.queue.set_enabled(false);
        let mut handlers = self.handlers.borrow_mut();
        (std::mem::take(&mut handlers.direct), std::mem::take(&mut handlers.by_id))
    }

    pub(crate) fn set_handler(&self, id: u16, handler: Option<Handler<M>>) {
        let mut handlers = self.handlers.borrow_mut();
        let at = usize::from(id);
        let old = if at >= DIRECT_IDS {
            match handler {
                Some(handler) => handlers.by_id.insert(id, handler),
                None => handlers.by_id.remove(&id),
            }
        } else {
            if at >= handlers.direct.len() {
                handlers.direct.resize(at + 1, None);
            }
            std::mem::replace(&mut handlers.direct[at], handler)
        };
        // Dropping the old handler runs user code, which may use the worker.
        drop(handlers);
        drop(old);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handler_lookup_by_number() {
        let am_handlers = AmHandlers::<(), ()>::new(1);
        let ids = [0, 1, DIRECT_IDS as u16 - 1, DIRECT_IDS as u16, u16::MAX];
        let handlers: Vec<Handler<()>> = ids.iter().map(|_| Rc::new(|_| {}) as Handler<()>).collect();
        ids.iter()
            .zip(&handlers)
            .for_each(|(id, handler)| am_handlers.set_handler(*id, Some(handler.clone())));
        for id in 0..=u16::MAX {
            let want = ids.iter().position(|known| *known == id).map(|at| &handlers[at]);
            let found = am_handlers.handler(id);
            assert!(
                found.as_ref().zip(want).map_or(found.is_none() && want.is_none(), |(a, b)| Rc::ptr_eq(a, b))
            );
        }
        ids.iter().for_each(|id| am_handlers.set_handler(*id, None));
        assert!(ids.iter().all(|id| am_handlers.handler(*id).is_none()));
        assert!(handlers.iter().all(|handler| Rc::strong_count(handler) == 1));
    }
}
