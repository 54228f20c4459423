//! What a worker keeps for active messages: handlers, and the messages that were handed over and are to be handled.
//! Used by `am` and, while packets are taken in, by `inlet`. Calls no handler.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;
use ucs::sync::scalar_load;

use crate::rdm::RecvStatus;
use crate::rdm::io::PeerId;

use crate::api::am::pool::{AmBuf, AmPool};
use crate::api::am::recv::{AmMessage, POSTED_LEN, Place};

/// Numbers of handlers that are found by an index.
const LOW: usize = 256;

pub(crate) type Handler = Rc<dyn Fn(AmMessage)>;

/// A message that has come.
pub(crate) struct Come {
    pub from: PeerId,
    pub tag: u64,
    /// Header and data.
    pub buf: AmBuf,
}

impl Come {
    /// A message that was received into the first bytes of `buf`.
    pub(crate) fn of(status: &RecvStatus, buf: AmBuf) -> Come {
        Come { from: status.from, tag: status.tag, buf: buf.cut(status.len) }
    }
}

/// Handlers, by number.
#[derive(Default)]
struct Handlers {
    /// The first [`LOW`].
    low: Vec<Option<Handler>>,
    high: HashMap<u16, Handler, FxBuildHasher>,
}

/// What a worker keeps for active messages. Nothing, until the first handler is set.
#[derive(Default)]
pub(crate) struct Ams {
    /// There has been a handler: before, no message is handed over.
    pub(crate) on: Cell<bool>,
    handlers: RefCell<Handlers>,
    /// Buffers posted, by place; `arg` of their callbacks points to the place.
    pub(crate) posted: RefCell<Vec<Rc<Place>>>,
    /// Those among them that could not be posted, for too many operations were running: to be posted when that has passed.
    pub(crate) idle: RefCell<Vec<Rc<Place>>>,
    pool: RefCell<AmPool>,
    /// Messages that came whole and in their turn, to be handled: how many, the first, and those after it.
    waiting: Cell<usize>,
    first: Cell<Option<Come>>,
    rest: RefCell<VecDeque<Come>>,
    pub(crate) next_number: Cell<u64>,
}

impl Ams {
    /// Takes a message in, to be handled behind this poll; false if there has been no handler yet, or it is too long.
    /// // HOT
    #[inline]
    pub(crate) fn take_in(&self, from: PeerId, tag: u64, payload: &[u8]) -> bool {
        if !self.on.get() || payload.len() > POSTED_LEN {
            return false;
        }
        let buf = AmBuf::of_word(payload).unwrap_or_else(|| self.pool.borrow_mut().copy(payload));
        let come = Come { from, tag, buf };
        match self.waiting.replace(self.waiting.get() + 1) {
            0 => self.first.set(Some(come)),
            _ => self.rest.borrow_mut().push_back(come),
        }
        true
    }

    /// Whether a message is to be handled. // HOT
    #[inline(always)]
    pub(crate) fn has_come(&self) -> bool {
        self.waiting.get() > 0
    }

    /// The next message to handle. // HOT
    #[inline]
    pub(crate) fn next(&self) -> Option<Come> {
        self.waiting.set(self.waiting.get().checked_sub(1)?);
        match self.first.take() {
            Some(Come { from, tag, buf }) => Some(Come {
                from: PeerId(scalar_load(from.0.into()) as u32),
                tag: scalar_load(tag),
                buf: buf.apart(),
            }),
            None => self.rest.borrow_mut().pop_front(),
        }
    }

    /// The handler of messages with this number. // HOT
    #[inline(always)]
    pub(crate) fn handler(&self, id: u16) -> Option<Handler> {
        let handlers = self.handlers.borrow();
        match handlers.low.get(usize::from(id)) {
            Some(handler) => handler.clone(),
            None => handlers.high.get(&id).cloned(),
        }
    }

    /// Sets or takes away the handler of messages with this number.
    pub(crate) fn set_handler(&self, id: u16, handler: Option<Handler>) {
        let mut handlers = self.handlers.borrow_mut();
        let at = usize::from(id);
        let old = if at >= LOW {
            match handler {
                Some(handler) => handlers.high.insert(id, handler),
                None => handlers.high.remove(&id),
            }
        } else {
            if at >= handlers.low.len() {
                handlers.low.resize(at + 1, None);
            }
            std::mem::replace(&mut handlers.low[at], handler)
        };
        // What it has captured is user code's, and may use the worker.
        drop(handlers);
        drop(old);
    }

    /// Room for a message of [`POSTED_LEN`] bytes.
    pub(crate) fn room(&self) -> AmBuf {
        self.pool.borrow_mut().room()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handlers_are_found_by_their_number_alone() {
        let ams = Ams::default();
        let ids = [0, 1, LOW as u16 - 1, LOW as u16, u16::MAX];
        let handlers: Vec<Handler> = ids.iter().map(|_| Rc::new(|_| {}) as Handler).collect();
        ids.iter().zip(&handlers).for_each(|(id, handler)| ams.set_handler(*id, Some(handler.clone())));
        for id in 0..=u16::MAX {
            let want = ids.iter().position(|known| *known == id).map(|at| &handlers[at]);
            let found = ams.handler(id);
            assert!(
                found.as_ref().zip(want).map_or(found.is_none() && want.is_none(), |(a, b)| Rc::ptr_eq(a, b))
            );
        }
        ids.iter().for_each(|id| ams.set_handler(*id, None));
        assert!(ids.iter().all(|id| ams.handler(*id).is_none()));
        assert!(handlers.iter().all(|handler| Rc::strong_count(handler) == 1));
    }

    #[test]
    fn messages_come_out_as_they_came_in() {
        let ams = Ams::default();
        assert!(!ams.take_in(PeerId(1), 2, b"before the first handler"));
        ams.on.set(true);
        let bytes: Vec<u8> = (0..=POSTED_LEN).map(|n| n as u8).collect();
        let lens = [0, 1, 7, 8, 9, POSTED_LEN];
        lens.iter().for_each(|len| assert!(ams.take_in(PeerId(1), 2, &bytes[..*len])));
        assert!(!ams.take_in(PeerId(1), 2, &bytes));
        for len in lens {
            let come = ams.next().unwrap();
            assert_eq!((come.from, come.tag, come.buf.bytes()), (PeerId(1), 2, &bytes[..len]));
        }
        assert!(ams.next().is_none() && !ams.has_come());
    }
}
