//! Request table: reused slots, one for each operation that did not complete in its call. Completing an
//! operation returns an [`Action`], user code that the worker runs with nothing borrowed.

#![allow(unsafe_code)]

use std::any::Any;
use std::rc::Rc;
use std::task::Waker;

use ucs::coll::slots::SlotId;
use ucs::sync::scalar_load;

use crate::api::core::ep_state::EpState;
use crate::api::core::error::Error;
use crate::token::UserToken;

use crate::rdm::io::PeerId;
use crate::rdm::{OpId, RecvStatus};

/// Result of an operation. The status of a send has no meaning.
pub(crate) type Ended = Result<RecvStatus, Error>;

pub(crate) const EMPTY_STATUS: RecvStatus =
    RecvStatus { len: 0, tag: 0, from: PeerId(u32::MAX), cq_data: None };

/// Identifies a running operation of one worker until its request is freed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RequestId(pub(crate) SlotId);

/// Status of an operation after a `*_raw` call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OpStatus<T> {
    /// The operation completed in the call: the buffer is free, no callback follows.
    Done(T),
    /// The operation is running. `Worker::test`, `wait_for` or `free` ends the request.
    InProgress(RequestId),
}

impl OpStatus<()> {
    /// Status of a send in the form of a receive's.
    pub(crate) fn with_empty_status(self) -> OpStatus<RecvStatus> {
        match self {
            OpStatus::Done(()) => OpStatus::Done(EMPTY_STATUS),
            OpStatus::InProgress(id) => OpStatus::InProgress(id),
        }
    }
}

/// C-style completion callback. Progress calls it once.
#[derive(Clone, Copy, Debug)]
pub struct Callback {
    /// Function, called with `arg`, the operation and its result (a send's [`RecvStatus`] is empty).
    pub fun: unsafe fn(arg: *mut (), request: RequestId, ended: Result<RecvStatus, Error>),
    /// First argument of `fun`.
    pub arg: *mut (),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    Send(OpId),
    /// Send announced by an earlier message; cannot be cancelled.
    Announced,
    Recv(OpId),
    /// One-sided operation and its length in bytes.
    Rma(OpId, usize),
    /// Receive from the stream of this peer; belongs to the worker, not the engine.
    Stream(PeerId),
    /// Flush or close; belongs to the worker, not the engine.
    Flush,
    /// Operation that waits until the peer of its endpoint is known.
    Deferred,
    /// Deferred operation that another request carries out now.
    Forwarded(SlotId),
}

enum Notify {
    None,
    Waker(Waker),
    Raw(Callback),
    Boxed(Box<dyn FnOnce(Ended)>),
}

/// Buffer and waker that a dropped request no longer needs. Dropping them may use the worker.
pub(crate) type Leftovers = (Option<Box<dyn Any>>, Option<Waker>);

impl Notify {
    fn into_waker(self) -> Option<Waker> {
        if let Notify::Waker(waker) = self { Some(waker) } else { None }
    }
}

/// State of a slot. `Copy`, so that changing it runs no destructor.
#[derive(Clone, Copy)]
enum Stage {
    /// Free.
    Free,
    /// Running, without notification.
    Running,
    /// Running; completion wakes the waker or calls the callback.
    Awaited,
    /// Running, and its request was dropped; completion frees the slot and the kept buffer.
    Detached,
    /// Completed, not yet taken.
    Ended(Ended),
}

struct Slot {
    id: SlotId,
    next: u32,
    role: Role,
    stage: Stage,
    /// Set only in the stages `Awaited` and `Detached`.
    notify: Notify,
    kept: Option<Box<dyn Any>>,
}

impl Slot {
    /// Marks the slot free and its id stale. // HOT
    #[inline(always)]
    fn release(&mut self, next: u32) {
        debug_assert!(matches!(self.notify, Notify::None) && self.kept.is_none());
        // The high bits are a generation that skips 0, so that no id is 0.
        let id = self.id.raw().wrapping_add(1 << INDEX_BITS);
        self.id = SlotId::from_raw(if id >> INDEX_BITS == 0 { id | 1 << INDEX_BITS } else { id });
        self.stage = Stage::Free;
        self.next = next;
    }
}

/// Bits of an id that index the slot; the others are its generation.
const INDEX_BITS: u32 = 20;
const NO_SLOT: u32 = u32::MAX;
const SLOTS_PER_CHUNK: u32 = 256;

#[inline(always)]
const fn index(id: SlotId) -> u32 {
    id.raw() & ((1 << INDEX_BITS) - 1)
}

/// Copies a recently stored status by scalar loads. // HOT
#[inline(always)]
fn load_status(status: &RecvStatus) -> RecvStatus {
    RecvStatus {
        len: scalar_load(status.len as u64) as usize,
        tag: scalar_load(status.tag),
        from: PeerId(scalar_load(u64::from(status.from.0)) as u32),
        cq_data: status.cq_data.map(scalar_load),
    }
}

/// Action that the worker runs after completing an operation.
#[must_use]
pub(crate) enum Action {
    Wake(Waker),
    Raw(Callback, RequestId, Ended),
    Boxed(Box<dyn FnOnce(Ended)>, Ended),
    Failed(Vec<Rc<EpState>>, Error),
    /// Drops the buffer of a detached operation, whose destructor is user code.
    Free(#[allow(dead_code)] Box<dyn Any>),
}

impl Action {
    /// Runs user code: nothing of the worker may be borrowed.
    pub(crate) fn run(self) {
        match self {
            Action::Wake(waker) => waker.wake(),
            // SAFETY: the contract of the unsafe `*_raw` calls permits one call with this argument.
            Action::Raw(call, id, ended) => unsafe { (call.fun)(call.arg, id, ended) },
            Action::Boxed(call, ended) => call(ended),
            Action::Failed(eps, error) => eps.iter().for_each(|ep| ep.call_error_handler(error)),
            Action::Free(buf) => drop(buf),
        }
    }
}

/// Running and completed operations of a worker, until they are freed.
pub(crate) struct Requests {
    slots: Vec<Slot>,
    first_free: u32,
    running: usize,
}

impl Requests {
    pub(crate) fn new() -> Self {
        let mut reqs = Requests { slots: Vec::new(), first_free: NO_SLOT, running: 0 };
        reqs.add_chunk();
        reqs
    }

    fn add_chunk(&mut self) {
        let first = self.slots.len() as u32;
        let slots = (first..first + SLOTS_PER_CHUNK).map(|n| Slot {
            id: SlotId::from_raw(1 << INDEX_BITS | n),
            next: if n + 1 < first + SLOTS_PER_CHUNK { n + 1 } else { self.first_free },
            role: Role::Flush,
            stage: Stage::Free,
            notify: Notify::None,
            kept: None,
        });
        self.slots.extend(slots);
        self.first_free = first;
    }

    /// Slot of a valid id, or of the next operation. // HOT
    #[inline(always)]
    fn slot(&mut self, id: SlotId) -> Option<&mut Slot> {
        match self.slots.get_mut(index(id) as usize) {
            Some(slot) if slot.id == id => Some(slot),
            _ => None,
        }
    }

    // HOT
    #[inline]
    pub(crate) fn next_id(&mut self) -> Result<SlotId, Error> {
        match self.slots.get(self.first_free as usize) {
            Some(slot) => Ok(slot.id),
            None => self.grow(),
        }
    }

    #[cold]
    fn grow(&mut self) -> Result<SlotId, Error> {
        if self.slots.len() >= 1 << INDEX_BITS {
            return Err(Error::Exhausted);
        }
        self.add_chunk();
        Ok(self.slots[self.first_free as usize].id)
    }

    // HOT
    #[inline]
    fn free(&mut self, id: SlotId) {
        let next = self.first_free;
        let Some(slot) = self.slot(id) else { return };
        slot.release(next);
        self.first_free = index(id);
        self.running -= 1;
    }

    /// Starts the operation whose id is [`Requests::next_id`]. // HOT
    #[inline]
    pub(crate) fn start(&mut self, role: Role, call: Option<Callback>) -> SlotId {
        let slot =
            self.slots.get_mut(self.first_free as usize).expect("an id was taken before the operation began");
        self.first_free = slot.next;
        self.running += 1;
        slot.role = role;
        slot.stage = Stage::Running;
        if let Some(call) = call {
            slot.stage = Stage::Awaited;
            slot.notify = Notify::Raw(call);
        }
        slot.id
    }

    pub(crate) fn len(&self) -> usize {
        self.running
    }

    // HOT
    #[inline]
    pub(crate) fn complete(&mut self, id: SlotId, ended: Ended) -> Option<Action> {
        let slot = self.slot(id)?;
        match slot.stage {
            Stage::Running => {
                slot.stage = Stage::Ended(ended);
                None
            }
            Stage::Awaited => {
                slot.stage = Stage::Ended(ended);
                match std::mem::replace(&mut slot.notify, Notify::None) {
                    Notify::None => None,
                    Notify::Waker(waker) => Some(Action::Wake(waker)),
                    Notify::Raw(call) => Some(Action::Raw(call, RequestId(id), ended)),
                    Notify::Boxed(call) => {
                        self.free(id);
                        Some(Action::Boxed(call, ended))
                    }
                }
            }
            Stage::Detached => {
                let buf = slot.kept.take();
                let notify = std::mem::replace(&mut slot.notify, Notify::None);
                self.free(id);
                match notify {
                    Notify::Raw(call) => Some(Action::Raw(call, RequestId(id), ended)),
                    _ => buf.map(Action::Free),
                }
            }
            Stage::Ended(_) | Stage::Free => None,
        }
    }

    /// Completes the receive with token `user`, or returns false if a waker or callback is set. // HOT
    #[inline]
    pub(crate) fn complete_recv(&mut self, user: u64, status: RecvStatus) -> bool {
        let UserToken::Request(id) = UserToken::unpack(user) else { return false };
        match self.slot(id) {
            Some(slot @ Slot { stage: Stage::Running, .. }) => {
                slot.stage = Stage::Ended(Ok(status));
                true
            }
            _ => false,
        }
    }

    /// Takes the result of a completed operation and frees its slot. // HOT
    #[inline(always)]
    pub(crate) fn take(&mut self, id: SlotId) -> Option<Ended> {
        let next = self.first_free;
        let slot = self.slot(id)?;
        let Stage::Ended(ended) = &slot.stage else { return None };
        let ended = match ended {
            Ok(status) => Ok(load_status(status)),
            Err(error) => Err(*error),
        };
        slot.release(next);
        self.first_free = index(id);
        self.running -= 1;
        Some(ended)
    }

    // HOT
    #[inline(always)]
    pub(crate) fn is_complete(&self, id: SlotId) -> bool {
        self.get(id).is_some_and(|slot| matches!(slot.stage, Stage::Ended(_)))
    }

    #[inline(always)]
    fn get(&self, id: SlotId) -> Option<&Slot> {
        self.slots.get(index(id) as usize).filter(|slot| slot.id == id)
    }

    pub(crate) fn knows(&self, id: SlotId) -> bool {
        self.get(id).is_some_and(|slot| !matches!(slot.stage, Stage::Free))
    }

    pub(crate) fn role(&self, id: SlotId) -> Option<Role> {
        match self.get(id)? {
            Slot { stage: Stage::Free | Stage::Ended(_), .. } => None,
            slot => Some(slot.role),
        }
    }

    /// Changes the role of a running operation.
    pub(crate) fn set_role(&mut self, id: SlotId, role: Role) {
        if let Some(slot) = self.slot(id) {
            slot.role = role;
        }
    }

    /// Returns the waker set before: dropping it is user code, which may use the worker.
    #[must_use]
    pub(crate) fn set_waker(&mut self, id: SlotId, waker: &Waker) -> Option<Waker> {
        let slot = self.slot(id)?;
        debug_assert!(matches!(slot.stage, Stage::Running | Stage::Awaited));
        slot.stage = Stage::Awaited;
        match &slot.notify {
            Notify::Waker(old) if old.will_wake(waker) => None,
            _ => std::mem::replace(&mut slot.notify, Notify::Waker(waker.clone())).into_waker(),
        }
    }

    /// Returns the waker set before, as [`Requests::set_waker`].
    #[must_use]
    pub(crate) fn set_callback(&mut self, id: SlotId, call: Box<dyn FnOnce(Ended)>) -> Option<Waker> {
        let slot = self.slot(id)?;
        debug_assert!(matches!(slot.stage, Stage::Running | Stage::Awaited));
        slot.stage = Stage::Awaited;
        std::mem::replace(&mut slot.notify, Notify::Boxed(call)).into_waker()
    }

    /// Drops the request. Keeps `buf` until completion, or returns it. A raw callback is still called.
    #[must_use]
    pub(crate) fn detach(&mut self, id: SlotId, buf: Option<Box<dyn Any>>) -> Leftovers {
        let Some(slot) = self.slot(id) else { return (buf, None) };
        match slot.stage {
            Stage::Free => (buf, None),
            Stage::Ended(_) => {
                self.free(id);
                (buf, None)
            }
            Stage::Running | Stage::Awaited | Stage::Detached => {
                slot.stage = Stage::Detached;
                slot.kept = buf;
                let waker = match slot.notify {
                    Notify::Waker(_) => std::mem::replace(&mut slot.notify, Notify::None).into_waker(),
                    _ => None,
                };
                (None, waker)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    fn begin(reqs: &mut Requests) -> SlotId {
        let id = reqs.next_id().unwrap();
        assert_eq!(reqs.start(Role::Flush, None), id);
        id
    }

    #[test]
    fn immediate_completion_uses_no_slot() {
        let mut reqs = Requests::new();
        let id = reqs.next_id().unwrap();
        assert_eq!(reqs.next_id(), Ok(id));
        assert_eq!(reqs.len(), 0);
        assert!(!reqs.knows(id));
        assert_eq!(begin(&mut reqs), id);
        assert_eq!(reqs.len(), 1);
    }

    #[test]
    fn completed_once_and_taken_once() {
        let mut reqs = Requests::new();
        let id = begin(&mut reqs);
        assert_eq!(reqs.take(id), None);
        assert!(reqs.complete(id, Ok(EMPTY_STATUS)).is_none());
        assert!(reqs.complete(id, Err(Error::Cancelled)).is_none());
        assert!(reqs.knows(id));
        assert_eq!(reqs.take(id), Some(Ok(EMPTY_STATUS)));
        assert!(!reqs.knows(id));
        assert_eq!(reqs.take(id), None);
        let next = begin(&mut reqs);
        assert!(next != id && reqs.take(id).is_none());
    }

    #[test]
    fn detached_buffer_lives_until_completion() {
        struct Buf(Rc<Cell<bool>>);
        impl Drop for Buf {
            fn drop(&mut self) {
                self.0.set(true);
            }
        }
        let dropped = Rc::new(Cell::new(false));
        let mut reqs = Requests::new();
        let id = begin(&mut reqs);
        assert!(reqs.detach(id, Some(Box::new(Buf(dropped.clone())))).0.is_none());
        assert!(!dropped.get());
        let action = reqs.complete(id, Ok(EMPTY_STATUS)).unwrap();
        assert!(!dropped.get(), "dropped by the action, outside of any borrow");
        action.run();
        assert!(dropped.get());
        assert_eq!(reqs.len(), 0);
    }

    #[test]
    fn callbacks_run_once_even_when_detached() {
        unsafe fn count(arg: *mut (), _: RequestId, ended: Ended) {
            assert_eq!(ended, Err(Error::PeerGone(PeerId(3))));
            // SAFETY: the test passes a pointer to its own cell.
            let calls = unsafe { &*arg.cast::<Cell<u32>>() };
            calls.set(calls.get() + 1);
        }
        let calls = Cell::new(0u32);
        let call = Callback { fun: count, arg: std::ptr::from_ref(&calls).cast_mut().cast() };
        let mut reqs = Requests::new();
        for detach in [false, true] {
            reqs.next_id().unwrap();
            let id = reqs.start(Role::Flush, Some(call));
            if detach {
                drop(reqs.detach(id, None));
            }
            reqs.complete(id, Err(Error::PeerGone(PeerId(3)))).unwrap().run();
            reqs.take(id);
        }
        assert_eq!((calls.get(), reqs.len()), (2, 0));
    }
}
