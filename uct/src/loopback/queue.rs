//! Queue of messages sent and not yet polled, in order. One thread. Never grows.

use std::cell::Cell;

use ucs::coll::ring::Ring;

use crate::api::Imm;

#[derive(Clone, Copy, Debug)]
pub(super) enum Arrived {
    Message { slot: u32, len: u32, from: u64 },
    Imm(Imm),
}

impl Arrived {
    fn bytes(&self) -> usize {
        match self {
            Arrived::Message { len, .. } => *len as usize,
            Arrived::Imm(_) => 0,
        }
    }
}

pub(super) struct Queue {
    ring: Ring<Arrived>,
    /// Bytes from which on nothing more is taken: none while something is being packed, or once it is closed.
    most_bytes: Cell<usize>,
    bytes: Cell<usize>,
    is_closed: Cell<bool>,
}

/// The room that there was, kept for one message while that is packed. Nobody else finds any meanwhile.
pub(super) struct Reservation<'a> {
    queue: &'a Queue,
    most_bytes: usize,
}

impl Drop for Reservation<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if !self.queue.is_closed() {
            self.queue.most_bytes.set(self.most_bytes);
        }
    }
}

impl Queue {
    pub(super) fn new(depth: usize, most_bytes: usize) -> Self {
        let (bytes, is_closed) = (Cell::new(0), Cell::new(false));
        Queue { ring: Ring::new(depth), most_bytes: Cell::new(most_bytes), bytes, is_closed }
    }

    // HOT
    #[inline(always)]
    pub(super) fn is_empty(&self) -> bool {
        self.ring.is_empty()
    }

    /// Nothing waits, and one more would be taken.
    // HOT
    #[inline(always)]
    pub(super) fn is_vacant(&self) -> bool {
        self.ring.is_empty() && self.most_bytes.get() > 0
    }

    /// Whether one more is taken, however long it is.
    // HOT
    #[inline(always)]
    pub(super) fn has_room(&self) -> bool {
        !self.ring.is_full() && self.bytes.get() < self.most_bytes.get()
    }

    /// Keeps the room that there is.
    // HOT
    #[inline(always)]
    pub(super) fn reserve(&self) -> Reservation<'_> {
        Reservation { most_bytes: self.most_bytes.replace(0), queue: self }
    }

    pub(super) fn close(&self) {
        self.most_bytes.set(0);
        self.is_closed.set(true);
    }

    #[inline(always)]
    pub(super) fn is_closed(&self) -> bool {
        self.is_closed.get()
    }

    /// Appends. False: there is no room.
    // HOT
    #[inline(always)]
    pub(super) fn push(&self, arrived: Arrived) -> bool {
        let taken = self.bytes.get() < self.most_bytes.get() && self.ring.push(arrived).is_ok();
        if taken {
            self.bytes.set(self.bytes.get() + arrived.bytes());
        }
        taken
    }

    /// The oldest, which stays.
    // HOT
    #[inline(always)]
    pub(super) fn front(&self) -> Option<Arrived> {
        self.ring.front()
    }

    /// Takes the oldest.
    // HOT
    #[inline(always)]
    pub(super) fn pop(&self) -> Option<Arrived> {
        let arrived = self.ring.pop()?;
        self.bytes.set(self.bytes.get() - arrived.bytes());
        Some(arrived)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(slot: u32, len: u32) -> Arrived {
        Arrived::Message { slot, len, from: 0 }
    }

    fn slot(arrived: Option<Arrived>) -> Option<u32> {
        match arrived {
            Some(Arrived::Message { slot, .. }) => Some(slot),
            _ => None,
        }
    }

    #[test]
    fn queue_holds_its_depth_in_order() {
        let queue = Queue::new(3, 1000);
        for round in 0..10 {
            for n in 0..3 {
                assert!(queue.push(message(3 * round + n, 1)));
            }
            assert!(!queue.has_room() && !queue.push(message(99, 1)));
            for n in 0..3 {
                assert_eq!(slot(queue.pop()), Some(3 * round + n));
            }
            assert!(queue.is_empty() && queue.pop().is_none());
        }
    }

    #[test]
    fn reserved_space_is_exclusive_and_returned() {
        let queue = Queue::new(3, 1000);
        let reserved = queue.reserve();
        assert!(!queue.has_room() && !queue.is_vacant() && !queue.push(message(1, 1)));
        drop(reserved);
        assert!(queue.is_vacant() && queue.has_room() && queue.push(message(1, 1)));
        assert!(!queue.is_vacant());
        let reserved = queue.reserve();
        queue.close();
        drop(reserved);
        assert!(queue.is_closed() && !queue.has_room() && !queue.is_vacant() && !queue.push(message(2, 1)));
        assert_eq!(slot(queue.pop()), Some(1), "what it has taken stays");
    }

    #[test]
    fn a_message_longer_than_the_bound_is_taken_alone() {
        let queue = Queue::new(8, 100);
        assert!(queue.push(message(1, 5000)));
        assert!(!queue.push(message(2, 1)));
        assert_eq!(slot(queue.pop()), Some(1));
        for n in 0..4 {
            assert!(queue.push(message(n, 30)), "{n}");
        }
        assert!(!queue.has_room() && !queue.push(message(9, 1)));
        assert_eq!(slot(queue.pop()), Some(0));
        assert!(queue.push(message(4, 1)), "90 bytes are below it");
    }
}
