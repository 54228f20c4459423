//! Queue of received active messages whose handlers are still to be called. Calls no handler.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use ucs::sync::scalar_load;

use crate::api::am::pool::{AmBuf, AmPool};
use crate::api::am::tag::POSTED_LEN;

use crate::rdm::RecvStatus;
use crate::rdm::io::PeerId;

pub(crate) struct ReceivedAm {
    pub from: PeerId,
    pub tag: u64,
    pub buf: AmBuf,
}

impl ReceivedAm {
    pub(crate) fn of(status: &RecvStatus, buf: AmBuf) -> ReceivedAm {
        ReceivedAm { from: status.from, tag: status.tag, buf: buf.truncate(status.len) }
    }
}

/// Received messages in order, and the pool with their bytes.
#[derive(Default)]
pub(crate) struct AmQueue {
    /// Set with the first handler; no message is accepted before.
    pub(crate) enabled: Cell<bool>,
    pool: RefCell<AmPool>,
    /// Messages: one in `first`, the others in `rest`.
    len: Cell<usize>,
    first: Cell<Option<ReceivedAm>>,
    rest: RefCell<VecDeque<ReceivedAm>>,
}

impl AmQueue {
    /// Queues a message; false if there is no handler yet or it is longer than [`POSTED_LEN`]. // HOT
    #[inline(always)]
    pub(crate) fn try_push(&self, from: PeerId, tag: u64, payload: &[u8]) -> bool {
        if self.enabled.get()
            && self.len.get() == 0
            && let Some(buf) = AmBuf::try_inline(payload)
        {
            self.len.set(1);
            let before = self.first.replace(Some(ReceivedAm { from, tag, buf }));
            debug_assert!(before.is_none(), "the queue was empty");
            // Spares the hot path a drop.
            std::mem::forget(before);
            return true;
        }
        self.try_push_any(from, tag, payload)
    }

    /// Queues a message of another length than a word, or behind others.
    #[inline(never)]
    fn try_push_any(&self, from: PeerId, tag: u64, payload: &[u8]) -> bool {
        if !self.enabled.get() || payload.len() > POSTED_LEN {
            return false;
        }
        let buf = AmBuf::try_inline(payload).unwrap_or_else(|| self.pool.borrow_mut().copy(payload));
        let message = ReceivedAm { from, tag, buf };
        match self.len.replace(self.len.get() + 1) {
            0 => self.first.set(Some(message)),
            _ => self.rest.borrow_mut().push_back(message),
        }
        true
    }

    /// Whether a message is queued. // HOT
    #[inline(always)]
    pub(crate) fn has_messages(&self) -> bool {
        self.len.get() > 0
    }

    /// Removes and returns the oldest message. // HOT
    #[inline]
    pub(crate) fn next(&self) -> Option<ReceivedAm> {
        self.len.set(self.len.get().checked_sub(1)?);
        match self.first.take() {
            Some(ReceivedAm { from, tag, buf }) => Some(ReceivedAm {
                from: PeerId(scalar_load(from.0.into()) as u32),
                tag: scalar_load(tag),
                buf: buf.scalar_reload(),
            }),
            None => self.rest.borrow_mut().pop_front(),
        }
    }

    pub(crate) fn reserve(&self) -> AmBuf {
        self.pool.borrow_mut().reserve()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_is_fifo() {
        let queue = AmQueue::default();
        assert!(!queue.try_push(PeerId(1), 2, b"before the first handler"));
        queue.enabled.set(true);
        let bytes: Vec<u8> = (0..=POSTED_LEN).map(|n| n as u8).collect();
        let lens = [0, 1, 7, 8, 9, POSTED_LEN];
        lens.iter().for_each(|len| assert!(queue.try_push(PeerId(1), 2, &bytes[..*len])));
        assert!(!queue.try_push(PeerId(1), 2, &bytes));
        for len in lens {
            let message = queue.next().unwrap();
            assert_eq!((message.from, message.tag, message.buf.bytes()), (PeerId(1), 2, &bytes[..len]));
        }
        assert!(queue.next().is_none() && !queue.has_messages());
    }

    /// Lengths and numbers in a queued message are read again later, so it is no longer the sender's memory.
    #[test]
    fn what_the_sender_writes_later_changes_no_queued_message() {
        let queue = AmQueue::default();
        queue.enabled.set(true);
        for len in [8, 24, 100] {
            let mut packet = vec![1; len];
            assert!(queue.try_push(PeerId(1), 2, &packet));
            packet.fill(9);
            assert_eq!(queue.next().unwrap().buf.bytes(), vec![1; len]);
        }
    }
}
