//! Completed messages of multi-receives, until the program takes them.

use std::any::Any;
use std::collections::VecDeque;
use std::rc::Rc;
use std::task::Waker;

use ucs::coll::slots::Slots;

use crate::api::core::error::Error;
use crate::api::core::requests::Action;

use crate::rdm::{OpId, RecvStatus};

#[derive(Default)]
pub(crate) struct MultiRecvState {
    pub(crate) messages: VecDeque<(usize, Result<RecvStatus, Error>)>,
    pub(crate) result: Option<Result<(), Error>>,
    /// The operation that takes messages; it may have ended.
    pub(crate) op: Option<OpId>,
    /// Of the future that awaits the next message.
    pub(crate) waker: Option<Waker>,
    /// Woken at every message, and at the end.
    pub(crate) watcher: Option<Rc<Waker>>,
    pub(crate) kept_buf: Option<Box<dyn Any>>,
    /// Bytes from the start of the buffer that hold messages without a gap.
    pub(crate) filled: usize,
    /// Offset and length of messages behind a gap.
    beyond: Vec<(usize, usize)>,
}

impl MultiRecvState {
    pub(crate) fn watched(watcher: Option<Rc<Waker>>) -> MultiRecvState {
        MultiRecvState { watcher, ..MultiRecvState::default() }
    }

    /// Adds a message that has ended, and its bytes to those that are there.
    pub(crate) fn add(&mut self, at: usize, status: Result<RecvStatus, Error>) {
        self.messages.push_back((at, status));
        let len = match status {
            Ok(status) => status.len,
            Err(Error::Truncated { room, .. }) => room,
            // The gap stays: it may not have been written.
            Err(_) => return,
        };
        self.beyond.push((at, len));
        while let Some(next) = self.beyond.iter().position(|(at, _)| *at == self.filled) {
            self.filled += self.beyond.swap_remove(next).1;
        }
    }

    /// How the program is told of a message or of the end.
    pub(crate) fn wake(&mut self) -> Option<Action> {
        let waker = self.waker.take();
        match &self.watcher {
            None => waker.map(Action::Wake),
            Some(watcher) => Some(Action::WakeMultiRecv(waker, watcher.clone())),
        }
    }
}

pub(crate) type MultiRecvs = Slots<MultiRecvState>;
