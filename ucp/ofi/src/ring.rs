//! Entries of one direction of an endpoint, from the end of their operations until a queue is read.

use std::cell::{Cell, RefCell, UnsafeCell};
use std::collections::VecDeque;
use std::ffi::c_void;
use std::mem::MaybeUninit;

use ucp::{Error, PeerId};

use crate::abi::queue::CqTaggedEntry;

/// Entries for which a ring has memory from the beginning.
const FIRST_CAPACITY: usize = 256;

/// A completion, as a queue hands it out: one cache line.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Entry {
    pub shown: CqTaggedEntry,
    /// Sender of a message or write; [`NO_SOURCE`]: there is none.
    pub from: PeerId,
    /// There is a [`Failure`].
    pub is_error: bool,
}

const _: () = assert!(size_of::<Entry>() == 64);

impl Entry {
    /// An entry of an operation that has received nothing.
    // HOT
    #[inline(always)]
    pub(crate) fn without_data(op_context: *mut c_void, flags: u64) -> Entry {
        let buf = std::ptr::null_mut();
        let shown = CqTaggedEntry { op_context, flags, len: 0, buf, data: 0, tag: 0 };
        Entry { shown, from: NO_SOURCE, is_error: false }
    }
}

/// Stands for the sender of what has none.
pub(crate) const NO_SOURCE: PeerId = PeerId::NONE;

/// The part of an entry that only operations have which have failed.
#[derive(Clone, Copy)]
pub(crate) struct Failure {
    pub cause: Cause,
    /// Bytes of a message that did not fit its receive.
    pub cut: usize,
}

impl Failure {
    /// The failure of an operation without a message.
    pub(crate) fn of(error: Error) -> Failure {
        Failure { cause: Cause::Failed(error), cut: 0 }
    }
}

/// Why an entry is one of an error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Cause {
    /// The operation has failed.
    Failed(Error),
    /// The operation has ended well, and the address vector does not have the sender (`FI_SOURCE_ERR`).
    UnknownSource,
}

/// A queue of entries. Used inside the lock of the endpoint.
pub(crate) struct Ring {
    /// As many as a power of two.
    slots: UnsafeCell<Box<[MaybeUninit<Entry>]>>,
    /// Positions of the first entry and behind the last; not reduced to the size of the list.
    head: Cell<usize>,
    tail: Cell<usize>,
    /// Faults of the entries that have one, in their order.
    faults: RefCell<VecDeque<Failure>>,
}

impl Default for Ring {
    fn default() -> Ring {
        Ring {
            slots: UnsafeCell::new(Box::new_uninit_slice(FIRST_CAPACITY)),
            head: Cell::new(0),
            tail: Cell::new(0),
            faults: RefCell::default(),
        }
    }
}

impl Ring {
    // HOT
    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        self.tail.get().wrapping_sub(self.head.get())
    }

    // HOT
    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.tail.get() == self.head.get()
    }

    /// Whether the next entry needs more memory.
    // HOT
    #[inline(always)]
    pub(crate) fn is_full(&self) -> bool {
        // SAFETY: one thread is inside the lock, and no reference to the list leaves this type's methods.
        self.len() == unsafe { &*self.slots.get() }.len()
    }

    /// Adds the entry of an operation that has ended well.
    // HOT
    #[inline(always)]
    pub(crate) fn push(&self, entry: Entry) {
        if self.is_full() {
            self.grow();
        }
        // SAFETY: as in `is_full`.
        let slots = unsafe { &mut *self.slots.get() };
        let (tail, mask) = (self.tail.get(), slots.len() - 1);
        slots[tail & mask].write(entry);
        self.tail.set(tail.wrapping_add(1));
    }

    /// Adds the entry of an operation that has failed.
    #[cold]
    #[inline(never)]
    pub(crate) fn push_error(&self, entry: Entry, failure: Failure) {
        self.faults.borrow_mut().push_back(failure);
        self.push(Entry { is_error: true, ..entry });
    }

    #[cold]
    #[inline(never)]
    fn grow(&self) {
        let len = self.len();
        // SAFETY: as in `is_full`.
        let slots = unsafe { &mut *self.slots.get() };
        let mut grown = Box::new_uninit_slice(2 * slots.len());
        let mask = slots.len() - 1;
        for (at, slot) in grown.iter_mut().take(len).enumerate() {
            *slot = slots[self.head.get().wrapping_add(at) & mask];
        }
        *slots = grown;
        self.head.set(0);
        self.tail.set(len);
    }

    /// The first entry.
    // HOT
    #[inline(always)]
    pub(crate) fn front(&self) -> Option<&Entry> {
        if self.is_empty() {
            return None;
        }
        // SAFETY: as in `is_full`; the caller takes the entry before it adds others.
        let slots = unsafe { &*self.slots.get() };
        let slot = &slots[self.head.get() & (slots.len() - 1)];
        // SAFETY: slots from head to tail have been written.
        Some(unsafe { slot.assume_init_ref() })
    }

    /// Whether the first entry is of an operation that has failed.
    pub(crate) fn has_error(&self) -> bool {
        self.front().is_some_and(|entry| entry.is_error)
    }

    /// Removes the first entry, of an operation that has ended well. An empty ring begins with its first slot
    /// again, which the cache has.
    // HOT
    #[inline(always)]
    pub(crate) fn pop(&self) {
        let head = self.head.get().wrapping_add(1);
        if head == self.tail.get() {
            self.head.set(0);
            self.tail.set(0);
        } else {
            self.head.set(head);
        }
    }

    /// Takes the first entry if its operation has failed.
    pub(crate) fn take_error(&self) -> Option<(Entry, Failure)> {
        let entry = *self.front().filter(|entry| entry.is_error)?;
        self.pop();
        Some((entry, self.faults.borrow_mut().pop_front()?))
    }

    /// Makes the first entry one of an error: its sender is not known.
    #[cold]
    pub(crate) fn fail_front(&self) {
        let Some(entry) = self.front().copied().filter(|entry| !entry.is_error) else { return };
        // SAFETY: as in `is_full`.
        let slots = unsafe { &mut *self.slots.get() };
        let at = self.head.get() & (slots.len() - 1);
        slots[at].write(Entry { is_error: true, ..entry });
        self.faults.borrow_mut().push_front(Failure { cause: Cause::UnknownSource, cut: 0 });
    }

    /// Removes all.
    pub(crate) fn clear(&self) {
        self.head.set(0);
        self.tail.set(0);
        self.faults.borrow_mut().clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(tag: u64) -> Entry {
        let shown = CqTaggedEntry {
            op_context: std::ptr::null_mut(),
            flags: 0,
            len: 0,
            buf: std::ptr::null_mut(),
            data: 0,
            tag,
        };
        Entry { shown, from: NO_SOURCE, is_error: false }
    }

    #[test]
    fn entries_leave_in_order_while_the_ring_grows() {
        let ring = Ring::default();
        let (mut next, mut taken) = (0, 0);
        for round in 0..40u64 {
            for _ in 0..20 + round {
                ring.push(entry(next));
                next += 1;
            }
            for _ in 0..10 {
                assert_eq!(ring.front().map(|entry| entry.shown.tag), Some(taken));
                ring.pop();
                taken += 1;
            }
        }
        assert_eq!(ring.len() as u64, next - taken);
        while let Some(tag) = ring.front().map(|entry| entry.shown.tag) {
            assert_eq!(tag, taken);
            ring.pop();
            taken += 1;
        }
        assert_eq!(taken, next);
    }

    #[test]
    fn each_error_keeps_its_fault() {
        let ring = Ring::default();
        ring.push_error(entry(1), Failure { cause: Cause::Failed(Error::Cancelled), cut: 1 });
        ring.push(entry(2));
        ring.push_error(entry(3), Failure { cause: Cause::Failed(Error::Closed), cut: 3 });
        assert!(ring.has_error());
        assert_eq!(ring.take_error().map(|(entry, failure)| (entry.shown.tag, failure.cut)), Some((1, 1)));
        assert!(ring.take_error().is_none());
        ring.pop();
        let (last, failure) = ring.take_error().unwrap();
        assert_eq!((last.shown.tag, failure.cut, failure.cause), (3, 3, Cause::Failed(Error::Closed)));
        assert!(ring.is_empty());
    }

    #[test]
    fn an_entry_fails_before_the_errors_behind_it() {
        let ring = Ring::default();
        ring.push(entry(1));
        ring.push_error(entry(2), Failure::of(Error::Closed));
        ring.fail_front();
        ring.fail_front();
        let next = || ring.take_error().map(|(entry, failure)| (entry.shown.tag, failure.cause));
        assert_eq!(next(), Some((1, Cause::UnknownSource)));
        assert_eq!(next(), Some((2, Cause::Failed(Error::Closed))));
        assert_eq!(next(), None);
    }
}
