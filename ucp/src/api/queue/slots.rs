//! The operations of a completion queue, and those that have ended, in the order of their ends.

use std::cell::{Cell, RefCell};
use std::ptr::null;
use std::rc::Rc;
use std::task::Waker;

use crate::api::core::requests::{EMPTY_STATUS, Ended, RequestId};
use crate::api::request::buf::InFlightBuf;
use crate::api::request::tracked::SetFilled;

/// Number and buffer of an operation, which its end hands out.
pub(super) struct Entry<B: 'static> {
    pub context: u64,
    pub buf: Option<InFlightBuf<B>>,
    /// Of an operation that fills its buffer.
    pub set_filled: Option<SetFilled<B>>,
}

/// Place of one operation. It is in the list of the free ones, or its operation runs, or it is in the list of
/// those that have ended.
pub(crate) struct Slot<B: 'static> {
    /// All slots, whose memory is not moved.
    pub(super) all: Cell<*const Slots<B>>,
    number: u32,
    /// Next in its list; [`NONE`] is no slot.
    next: Cell<u32>,
    /// Of an operation that runs.
    request: Cell<Option<RequestId>>,
    /// Of an operation that has ended.
    ended: Cell<Ended>,
    context: Cell<u64>,
    buf: Cell<Option<InFlightBuf<B>>>,
    set_filled: Cell<Option<SetFilled<B>>>,
}

const NONE: u32 = u32::MAX;

impl<B: 'static> Slot<B> {
    // HOT
    #[inline(always)]
    fn put(&self, Entry { context, buf, set_filled }: Entry<B>) {
        self.context.set(context);
        // What was there has been taken.
        self.buf.set(buf);
        self.set_filled.set(set_filled);
    }

    // HOT
    #[inline(always)]
    fn take(&self) -> Entry<B> {
        Entry { context: self.context.get(), buf: self.buf.take(), set_filled: self.set_filled.get() }
    }

    /// Request and entry of an operation that runs.
    fn running(&self) -> Option<(RequestId, &Slot<B>)> {
        Some((self.request.get()?, self))
    }
}

/// As many slots as the queue is deep. Nothing is allocated for an operation.
pub(super) struct Slots<B: 'static> {
    slots: Box<[Slot<B>]>,
    first_free: Cell<u32>,
    first_ended: Cell<u32>,
    last_ended: Cell<u32>,
    running: Cell<u32>,
    ended: Cell<u32>,
    /// Threads that wait for an end, of a shared worker. Their wakers use no worker.
    waiting: RefCell<Vec<Waker>>,
}

impl<B: 'static> Slots<B> {
    pub(super) fn new(depth: u32) -> Rc<Slots<B>> {
        let slot = |number| Slot {
            all: Cell::new(null()),
            number,
            next: Cell::new(if number + 1 == depth { NONE } else { number + 1 }),
            request: Cell::new(None),
            ended: Cell::new(Ok(EMPTY_STATUS)),
            context: Cell::new(0),
            buf: Cell::new(None),
            set_filled: Cell::new(None),
        };
        let all = Rc::new(Slots {
            slots: (0..depth).map(slot).collect(),
            first_free: Cell::new(0),
            first_ended: Cell::new(NONE),
            last_ended: Cell::new(NONE),
            running: Cell::new(0),
            ended: Cell::new(0),
            waiting: RefCell::default(),
        });
        for slot in &all.slots {
            slot.all.set(Rc::as_ptr(&all));
        }
        all
    }

    /// Wakes a thread at the next end.
    pub(super) fn wait_for_end(&self, waker: Waker) {
        self.waiting.borrow_mut().push(waker);
    }

    /// Operations that run.
    pub(super) fn running(&self) -> usize {
        self.running.get() as usize
    }

    /// Operations that have ended and were not read.
    pub(super) fn ended(&self) -> usize {
        self.ended.get() as usize
    }

    /// The slot that the next operation gets. `None`: the queue is full.
    // HOT
    #[inline(always)]
    pub(super) fn free(&self) -> Option<&Slot<B>> {
        self.slots.get(self.first_free.get() as usize)
    }

    /// Puts an operation that runs into the slot of [`Slots::free`].
    // HOT
    #[inline(always)]
    pub(super) fn start(&self, slot: &Slot<B>, id: RequestId, entry: Entry<B>) {
        self.first_free.set(slot.next.get());
        slot.request.set(Some(id));
        slot.put(entry);
        self.running.set(self.running.get() + 1);
    }

    /// Puts an operation that has ended into the slot of [`Slots::free`].
    // HOT
    #[inline(always)]
    pub(super) fn push_ended(&self, slot: &Slot<B>, ended: Ended, entry: Entry<B>) {
        self.first_free.set(slot.next.get());
        slot.put(entry);
        self.append_ended(slot, ended);
    }

    /// Notes the end of the operation of a slot, which runs.
    // HOT
    #[inline(always)]
    pub(super) fn end(&self, slot: &Slot<B>, ended: Ended) {
        slot.request.set(None);
        self.running.set(self.running.get() - 1);
        self.append_ended(slot, ended);
    }

    // HOT
    #[inline(always)]
    fn append_ended(&self, slot: &Slot<B>, ended: Ended) {
        slot.ended.set(ended);
        slot.next.set(NONE);
        match self.slots.get(self.last_ended.replace(slot.number) as usize) {
            Some(last) => last.next.set(slot.number),
            None => self.first_ended.set(slot.number),
        }
        self.ended.set(self.ended.get() + 1);
        if !self.waiting.borrow().is_empty() {
            self.wake_waiting();
        }
    }

    #[cold]
    #[inline(never)]
    fn wake_waiting(&self) {
        self.waiting.take().into_iter().for_each(Waker::wake);
    }

    /// Takes the operation that has ended first.
    // HOT
    #[inline(always)]
    pub(super) fn pop(&self) -> Option<(Ended, Entry<B>)> {
        let slot = self.slots.get(self.first_ended.get() as usize)?;
        self.first_ended.set(slot.next.get());
        if slot.next.get() == NONE {
            self.last_ended.set(NONE);
        }
        self.ended.set(self.ended.get() - 1);
        self.free_slot(slot);
        Some((slot.ended.get(), slot.take()))
    }

    // HOT
    #[inline(always)]
    fn free_slot(&self, slot: &Slot<B>) {
        slot.next.set(self.first_free.replace(slot.number));
    }

    /// Requests that run with this context.
    pub(super) fn requests(&self, context: u64) -> Vec<RequestId> {
        let running = self.slots.iter().filter_map(Slot::running);
        running.filter(|(_, slot)| slot.context.get() == context).map(|(id, _)| id).collect()
    }

    /// Requests that run and receive.
    pub(super) fn receives(&self) -> Vec<RequestId> {
        let running = self.slots.iter().filter_map(Slot::running);
        running.filter(|(_, slot)| slot.set_filled.get().is_some()).map(|(id, _)| id).collect()
    }

    /// Takes an operation out that runs.
    pub(super) fn take_running(&self) -> Option<(RequestId, Entry<B>)> {
        let (id, slot) = self.slots.iter().find_map(Slot::running)?;
        slot.request.set(None);
        self.running.set(self.running.get() - 1);
        self.free_slot(slot);
        Some((id, slot.take()))
    }
}
