//! Queue of received active messages whose handlers are still to be called. Calls no handler.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use ucs::sync::scalar_load;

use crate::api::am::pool::{AmBuf, AmPool};
use crate::api::am::tag::{AmTag, POSTED_LEN};

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
pub(crate) struct AmQueue {
    /// Set with the first handler; no message is accepted before.
    is_enabled: Cell<bool>,
    /// Whether messages are accepted, and those of a word lie in their value: no alignment is asked for.
    takes_words: Cell<bool>,
    pool: RefCell<AmPool>,
    /// Messages: one in `first`, the others in `rest`.
    len: Cell<usize>,
    first: Cell<Option<ReceivedAm>>,
    rest: RefCell<VecDeque<ReceivedAm>>,
}

impl AmQueue {
    /// A queue of messages whose data has this alignment, a power of two.
    pub(crate) fn new(align: usize) -> AmQueue {
        AmQueue {
            is_enabled: Cell::new(false),
            takes_words: Cell::new(false),
            pool: RefCell::new(AmPool::new(align)),
            len: Cell::new(0),
            first: Cell::new(None),
            rest: RefCell::default(),
        }
    }

    /// Alignment of the data of messages, bytes.
    pub(crate) fn align(&self) -> usize {
        self.pool.borrow().align()
    }

    pub(crate) fn is_enabled(&self) -> bool {
        self.is_enabled.get()
    }

    /// Accepts messages from now on, or no more. Returns whether it did.
    pub(crate) fn set_enabled(&self, is_enabled: bool) -> bool {
        self.takes_words.set(is_enabled && self.align() == 1);
        self.is_enabled.replace(is_enabled)
    }

    /// Queues a message; false if there is no handler yet or it is longer than [`POSTED_LEN`].
    // HOT
    #[inline(always)]
    pub(crate) fn try_push(&self, from: PeerId, tag: u64, payload: &[u8]) -> bool {
        if self.takes_words.get()
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
        if !self.takes_words.get() {
            return self.try_push_aligned(from, tag, payload);
        }
        if payload.len() > POSTED_LEN {
            return false;
        }
        let buf = AmBuf::try_inline(payload).unwrap_or_else(|| self.pool.borrow_mut().copy(payload));
        self.push(ReceivedAm { from, tag, buf });
        true
    }

    /// Queues a message whose data is aligned.
    #[cold]
    #[inline(never)]
    fn try_push_aligned(&self, from: PeerId, tag: u64, payload: &[u8]) -> bool {
        if !self.is_enabled.get() || payload.len() > POSTED_LEN {
            return false;
        }
        let lead = usize::from(AmTag::header_len_of(tag)).min(payload.len());
        match self.pool.borrow_mut().copy_aligned(payload, lead) {
            Some(buf) => self.push(ReceivedAm { from, tag, buf }),
            None => tracing::error!("no memory to align an active message: dropped"),
        }
        true
    }

    // HOT
    #[inline(always)]
    fn push(&self, message: ReceivedAm) {
        match self.len.replace(self.len.get() + 1) {
            0 => self.first.set(Some(message)),
            _ => self.rest.borrow_mut().push_back(message),
        }
    }

    /// Whether a message is queued.
    // HOT
    #[inline(always)]
    pub(crate) fn has_messages(&self) -> bool {
        self.len.get() > 0
    }

    /// Removes and returns the oldest message.
    // HOT
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
        let queue = AmQueue::new(1);
        assert!(!queue.try_push(PeerId(1), 2, b"before the first handler"));
        queue.set_enabled(true);
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
        let queue = AmQueue::new(1);
        queue.set_enabled(true);
        for len in [8, 24, 100] {
            let mut packet = vec![1; len];
            assert!(queue.try_push(PeerId(1), 2, &packet));
            packet.fill(9);
            assert_eq!(queue.next().unwrap().buf.bytes(), vec![1; len]);
        }
    }
}
