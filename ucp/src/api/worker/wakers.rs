//! Wakers of ended requests, kept for a caller of progress that wakes them outside of its lock.

use std::cell::{Cell, RefCell};
use std::task::Waker;

use arrayvec::ArrayVec;

/// Wakers of one progress call. Those that find no room are woken within it.
pub(crate) type Wakers = ArrayVec<Waker, 32>;

/// Wakes wakers, or collects them once [`WakerList::collect`] has been called.
#[derive(Default)]
pub(crate) struct WakerList {
    is_collecting: Cell<bool>,
    has_some: Cell<bool>,
    wakers: RefCell<Wakers>,
}

impl WakerList {
    /// Collects wakers from now on, for [`WakerList::take`].
    pub(crate) fn collect(&self) {
        self.is_collecting.set(true);
    }

    /// Whether there are collected wakers.
    // HOT
    #[inline]
    pub(crate) fn has_some(&self) -> bool {
        self.has_some.get()
    }

    pub(crate) fn take(&self) -> Wakers {
        self.has_some.set(false);
        self.wakers.take()
    }

    /// Wakes a waker, now or once it is taken. Runs user code: nothing of the worker may be borrowed.
    pub(crate) fn wake(&self, waker: Waker) {
        if !self.is_collecting.get() {
            return waker.wake();
        }
        self.has_some.set(true);
        let no_room = self.wakers.borrow_mut().try_push(waker).err();
        no_room.into_iter().for_each(|waker| waker.element().wake());
    }
}
