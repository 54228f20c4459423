//! The operations of a completion queue by number, and those that have ended, in the order of their ends.

use std::collections::VecDeque;

use crate::api::core::requests::{Ended, RequestId};
use crate::api::request::buf::LentBuf;
use crate::api::request::tracked::SetFilled;

/// Number and buffer of an operation, which its end hands out.
pub(super) struct Entry<B: 'static> {
    pub context: u64,
    pub buf: Option<LentBuf<B>>,
    /// Of an operation that fills its buffer.
    pub set_filled: Option<SetFilled<B>>,
}

enum Slot<B: 'static> {
    Free,
    Running(RequestId, Entry<B>),
    Ended(Ended, Entry<B>),
}

/// As many slots as the queue is deep. Nothing is allocated after the first operations.
pub(super) struct Slots<B: 'static> {
    slots: Box<[Slot<B>]>,
    free: Vec<u32>,
    ended: VecDeque<u32>,
}

impl<B: 'static> Slots<B> {
    pub(super) fn new(depth: u32) -> Slots<B> {
        Slots {
            slots: (0..depth).map(|_| Slot::Free).collect(),
            free: (0..depth).rev().collect(),
            ended: VecDeque::with_capacity(depth as usize),
        }
    }

    pub(super) fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    /// Operations that run.
    pub(super) fn running(&self) -> usize {
        self.slots.len() - self.free.len() - self.ended.len()
    }

    /// Operations that have ended and were not read.
    pub(super) fn ended(&self) -> usize {
        self.ended.len()
    }

    /// Number of the slot that the next operation gets. // HOT
    #[inline]
    pub(super) fn next(&self) -> Option<u32> {
        self.free.last().copied()
    }

    /// Puts an operation that runs into the slot of [`Slots::next`]. // HOT
    #[inline]
    pub(super) fn push_running(&mut self, id: RequestId, entry: Entry<B>) {
        if let Some(at) = self.free.pop() {
            self.slots[at as usize] = Slot::Running(id, entry);
        }
    }

    /// Puts an operation that has ended into the slot of [`Slots::next`]. // HOT
    #[inline]
    pub(super) fn push_ended(&mut self, ended: Ended, entry: Entry<B>) {
        if let Some(at) = self.free.pop() {
            self.slots[at as usize] = Slot::Ended(ended, entry);
            self.ended.push_back(at);
        }
    }

    /// Notes the end of an operation. // HOT
    #[inline]
    pub(super) fn end(&mut self, at: u32, ended: Ended) {
        let Some(slot) = self.slots.get_mut(at as usize) else { return };
        match std::mem::replace(slot, Slot::Free) {
            Slot::Running(_, entry) => {
                *slot = Slot::Ended(ended, entry);
                self.ended.push_back(at);
            }
            other => *slot = other,
        }
    }

    /// Takes the operation that has ended first. // HOT
    #[inline]
    pub(super) fn pop(&mut self) -> Option<(Ended, Entry<B>)> {
        let at = self.ended.pop_front()?;
        self.free.push(at);
        match std::mem::replace(&mut self.slots[at as usize], Slot::Free) {
            Slot::Ended(ended, entry) => Some((ended, entry)),
            _ => None,
        }
    }

    /// Requests that run with this context, or all of them.
    pub(super) fn requests(&self, context: Option<u64>) -> Vec<RequestId> {
        let running = self.slots.iter().filter_map(|slot| match slot {
            Slot::Running(id, entry) if context.is_none_or(|asked| asked == entry.context) => Some(*id),
            _ => None,
        });
        running.collect()
    }

    /// Requests that run and receive.
    pub(super) fn receives(&self) -> Vec<RequestId> {
        let running = self.slots.iter().filter_map(|slot| match slot {
            Slot::Running(id, entry) if entry.set_filled.is_some() => Some(*id),
            _ => None,
        });
        running.collect()
    }

    /// Takes an operation out that runs.
    pub(super) fn take_running(&mut self) -> Option<(RequestId, Entry<B>)> {
        let at = self.slots.iter().position(|slot| matches!(slot, Slot::Running(..)))?;
        match std::mem::replace(&mut self.slots[at], Slot::Free) {
            Slot::Running(id, entry) => {
                self.free.push(at as u32);
                Some((id, entry))
            }
            _ => None,
        }
    }
}
