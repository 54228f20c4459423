//! Running operations: a table of reused slots, one for each operation that did not finish in its call.
//! Filled by send and receive, settled by `Worker::progress`, read through the request types of `op.rs`.
//! Never runs user code itself: settling answers an [`Act`], which the worker runs with nothing borrowed.
//!
//! Every message passes here three times, when it is started, noted and tested: each is one look at one slot.

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

/// What an operation ended with. A send's status has no meaning.
pub(crate) type Ended = Result<RecvStatus, Error>;

/// The status of an operation that received nothing.
pub(crate) const NO_MESSAGE: RecvStatus =
    RecvStatus { len: 0, tag: 0, from: PeerId(u32::MAX), cq_data: None };

/// Names a running operation of one worker. Stale once the operation has been told and freed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RequestId(pub(crate) SlotId);

/// How a `*_raw` call began.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OpStatus<T> {
    /// It ended in the call: the buffer is free, no callback follows.
    Done(T),
    /// It runs; the request is to be freed by [`Worker::test`], [`Worker::wait_for`] or [`Worker::free`].
    InProgress(RequestId),
}

/// A callback of the C kind: a function and the pointer it is called with. Called once, from progress.
#[derive(Clone, Copy, Debug)]
pub struct Callback {
    /// Called with `arg`, the operation and its end (a send's [`RecvStatus`] is empty).
    pub fun: unsafe fn(arg: *mut (), request: RequestId, ended: Result<RecvStatus, Error>),
    /// Handed to `fun`.
    pub arg: *mut (),
}

/// Which half of the engine runs an operation: decides how it is cancelled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    Send(OpId),
    /// A send that a message before it has announced: it is not given up.
    Announced,
    Recv(OpId),
    /// A one-sided operation, and its bytes.
    One(OpId, usize),
    /// A receive from the stream of this peer: the worker's own.
    Stream(PeerId),
    /// A flush or close: the worker's own, not the engine's.
    Flush,
}

/// Who hears of the end.
enum Notify {
    Nobody,
    Waker(Waker),
    Raw(Callback),
    Boxed(Box<dyn FnOnce(Ended)>),
}

/// Where an operation is. Plain, so that changing it drops nothing.
#[derive(Clone, Copy)]
enum Stage {
    /// Nothing: the slot waits for its next operation.
    Idle,
    /// Running; somebody holds its id, and is not to be called.
    Running,
    /// Running; somebody holds its id, and is called at its end.
    Called,
    /// Running; nobody asks for it any more. Freed at its end, with the buffer it kept alive.
    Detached,
    /// Ended, to be picked up.
    Ended(Ended),
}

struct Slot {
    /// The operation's id, or if it is idle that of the next one. No other names the slot.
    id: SlotId,
    /// While it is idle: the slot that is used after this one.
    next: u32,
    role: Role,
    stage: Stage,
    /// [`Notify::Nobody`] but while it is called or detached.
    notify: Notify,
    /// The buffer that a detached operation keeps alive.
    kept: Option<Box<dyn Any>>,
}

impl Slot {
    /// The operation is over: its id is stale from now on. // HOT
    #[inline(always)]
    fn rest(&mut self, next: u32) {
        debug_assert!(matches!(self.notify, Notify::Nobody) && self.kept.is_none());
        // The generation in the high bits counts reuses; 0 is left out, so that no id is 0.
        let id = self.id.raw().wrapping_add(1 << INDEX_BITS);
        self.id = SlotId::from_raw(if id >> INDEX_BITS == 0 { id | 1 << INDEX_BITS } else { id });
        self.stage = Stage::Idle;
        self.next = next;
    }
}

/// Bits of an id that name the slot; the others count its reuses.
const INDEX_BITS: u32 = 20;
/// No slot.
const NONE: u32 = u32::MAX;
/// Slots made at a time.
const CHUNK: u32 = 256;

#[inline(always)]
const fn index(id: SlotId) -> u32 {
    id.raw() & ((1 << INDEX_BITS) - 1)
}

/// A status that has just been noted, read word by word. // HOT
#[inline(always)]
fn word_by_word(status: &RecvStatus) -> RecvStatus {
    RecvStatus {
        len: scalar_load(status.len as u64) as usize,
        tag: scalar_load(status.tag),
        from: PeerId(scalar_load(u64::from(status.from.0)) as u32),
        cq_data: status.cq_data.map(scalar_load),
    }
}

/// What settling an operation asks the worker to do.
#[must_use]
pub(crate) enum Act {
    Wake(Waker),
    Raw(Callback, RequestId, Ended),
    Boxed(Box<dyn FnOnce(Ended)>, Ended),
    /// Tell endpoints that their peer has failed.
    Failed(Vec<Rc<EpState>>, Error),
    /// Drop a buffer that outlived its request; its destructor is user code.
    Free(#[allow(dead_code)] Box<dyn Any>),
}

impl Act {
    /// Runs user code: nothing of the worker may be borrowed.
    pub(crate) fn run(self) {
        match self {
            Act::Wake(waker) => waker.wake(),
            // SAFETY: whoever gave the callback vouched (in the contract of the unsafe `*_raw` calls) that it may
            // be called once with its argument when the operation ends.
            Act::Raw(call, id, ended) => unsafe { (call.fun)(call.arg, id, ended) },
            Act::Boxed(call, ended) => call(ended),
            Act::Failed(eps, error) => eps.iter().for_each(|ep| ep.tell(error)),
            Act::Free(buf) => drop(buf),
        }
    }
}

/// All running and unclaimed operations of a worker.
pub(crate) struct Requests {
    slots: Vec<Slot>,
    /// The idle slot that is used next, which names the one after it. An operation that ends in its call leaves it idle.
    idle: u32,
    running: usize,
}

impl Requests {
    pub(crate) fn new() -> Self {
        let mut reqs = Requests { slots: Vec::new(), idle: NONE, running: 0 };
        reqs.add_chunk();
        reqs
    }

    fn add_chunk(&mut self) {
        let first = self.slots.len() as u32;
        let slots = (first..first + CHUNK).map(|n| Slot {
            id: SlotId::from_raw(1 << INDEX_BITS | n),
            next: if n + 1 < first + CHUNK { n + 1 } else { self.idle },
            role: Role::Flush,
            stage: Stage::Idle,
            notify: Notify::Nobody,
            kept: None,
        });
        self.slots.extend(slots);
        self.idle = first;
    }

    /// The slot of a live id, or of the next operation's. // HOT
    #[inline(always)]
    fn slot(&mut self, id: SlotId) -> Option<&mut Slot> {
        match self.slots.get_mut(index(id) as usize) {
            Some(slot) if slot.id == id => Some(slot),
            _ => None,
        }
    }

    /// The id that the next operation will have if it does not end in its call. // HOT
    #[inline]
    pub(crate) fn next_id(&mut self) -> Result<SlotId, Error> {
        match self.slots.get(self.idle as usize) {
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
        Ok(self.slots[self.idle as usize].id)
    }

    /// The operation is over and nobody asks for it. // HOT
    #[inline]
    fn free(&mut self, id: SlotId) {
        let next = self.idle;
        let Some(slot) = self.slot(id) else { return };
        slot.rest(next);
        self.idle = index(id);
        self.running -= 1;
    }

    /// The operation that was given [`Requests::next_id`] is running. // HOT
    #[inline]
    pub(crate) fn start(&mut self, role: Role, call: Option<Callback>) -> SlotId {
        let slot =
            self.slots.get_mut(self.idle as usize).expect("an id was taken before the operation began");
        self.idle = slot.next;
        self.running += 1;
        slot.role = role;
        slot.stage = Stage::Running;
        if let Some(call) = call {
            slot.stage = Stage::Called;
            slot.notify = Notify::Raw(call);
        }
        slot.id
    }

    /// How many operations are running or unclaimed.
    pub(crate) fn len(&self) -> usize {
        self.running
    }

    /// The operation has ended. // HOT
    #[inline]
    pub(crate) fn settle(&mut self, id: SlotId, ended: Ended) -> Option<Act> {
        let slot = self.slot(id)?;
        match slot.stage {
            Stage::Running => {
                slot.stage = Stage::Ended(ended);
                None
            }
            Stage::Called => {
                slot.stage = Stage::Ended(ended);
                match std::mem::replace(&mut slot.notify, Notify::Nobody) {
                    Notify::Nobody => None,
                    Notify::Waker(waker) => Some(Act::Wake(waker)),
                    Notify::Raw(call) => Some(Act::Raw(call, RequestId(id), ended)),
                    Notify::Boxed(call) => {
                        self.free(id);
                        Some(Act::Boxed(call, ended))
                    }
                }
            }
            Stage::Detached => {
                let buf = slot.kept.take();
                let notify = std::mem::replace(&mut slot.notify, Notify::Nobody);
                self.free(id);
                match notify {
                    Notify::Raw(call) => Some(Act::Raw(call, RequestId(id), ended)),
                    _ => buf.map(Act::Free),
                }
            }
            Stage::Ended(_) | Stage::Idle => None,
        }
    }

    /// Notes that the receive which the engine knows by `user` has ended well, if nobody is to be called at that; false
    /// if somebody is, or if it is not one of these. // HOT
    #[inline]
    pub(crate) fn note_received(&mut self, user: u64, status: RecvStatus) -> bool {
        let UserToken::Request(id) = UserToken::unpack(user) else { return false };
        match self.slot(id) {
            Some(slot @ Slot { stage: Stage::Running, .. }) => {
                slot.stage = Stage::Ended(Ok(status));
                true
            }
            _ => false,
        }
    }

    /// The end of an operation, if it has one; frees its slot. // HOT
    #[inline(always)]
    pub(crate) fn take(&mut self, id: SlotId) -> Option<Ended> {
        let next = self.idle;
        let slot = self.slot(id)?;
        let Stage::Ended(ended) = &slot.stage else { return None };
        let ended = match ended {
            Ok(status) => Ok(word_by_word(status)),
            Err(error) => Err(*error),
        };
        slot.rest(next);
        self.idle = index(id);
        self.running -= 1;
        Some(ended)
    }

    /// Whether the operation has ended and not been picked up. // HOT
    #[inline(always)]
    pub(crate) fn has_ended(&self, id: SlotId) -> bool {
        self.look(id).is_some_and(|slot| matches!(slot.stage, Stage::Ended(_)))
    }

    #[inline(always)]
    fn look(&self, id: SlotId) -> Option<&Slot> {
        self.slots.get(index(id) as usize).filter(|slot| slot.id == id)
    }

    /// Whether `id` names an operation of this table that runs or is unclaimed.
    pub(crate) fn knows(&self, id: SlotId) -> bool {
        self.look(id).is_some_and(|slot| !matches!(slot.stage, Stage::Idle))
    }

    /// What the operation is, while it runs.
    pub(crate) fn role(&self, id: SlotId) -> Option<Role> {
        match self.look(id)? {
            Slot { stage: Stage::Idle | Stage::Ended(_), .. } => None,
            slot => Some(slot.role),
        }
    }

    /// Wakes `waker` at the operation's end, which must not have come yet.
    pub(crate) fn wake_at_end(&mut self, id: SlotId, waker: &Waker) {
        let Some(slot) = self.slot(id) else { return };
        debug_assert!(matches!(slot.stage, Stage::Running | Stage::Called));
        match &slot.notify {
            Notify::Waker(old) if old.will_wake(waker) => {}
            _ => slot.notify = Notify::Waker(waker.clone()),
        }
        slot.stage = Stage::Called;
    }

    /// Calls `call` at the operation's end, which must not have come yet, and frees the slot then.
    pub(crate) fn call_at_end(&mut self, id: SlotId, call: Box<dyn FnOnce(Ended)>) {
        if let Some(slot) = self.slot(id) {
            debug_assert!(matches!(slot.stage, Stage::Running | Stage::Called));
            slot.notify = Notify::Boxed(call);
            slot.stage = Stage::Called;
        }
    }

    /// Nobody asks for the operation any more. If it runs, `buf` is kept until its end; if it has ended, the slot is
    /// freed and `buf` comes back to be dropped. A raw callback is still called.
    pub(crate) fn detach(&mut self, id: SlotId, buf: Option<Box<dyn Any>>) -> Option<Box<dyn Any>> {
        let Some(slot) = self.slot(id) else { return buf };
        match slot.stage {
            Stage::Idle => buf,
            Stage::Ended(_) => {
                self.free(id);
                buf
            }
            Stage::Running | Stage::Called | Stage::Detached => {
                slot.stage = Stage::Detached;
                slot.kept = buf;
                if let Notify::Waker(_) = slot.notify {
                    slot.notify = Notify::Nobody;
                }
                None
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
    fn an_operation_that_ends_in_its_call_uses_no_slot() {
        let mut reqs = Requests::new();
        let id = reqs.next_id().unwrap();
        assert_eq!(reqs.next_id(), Ok(id));
        assert_eq!(reqs.len(), 0);
        assert!(!reqs.knows(id));
        assert_eq!(begin(&mut reqs), id);
        assert_eq!(reqs.len(), 1);
    }

    #[test]
    fn settled_once_and_taken_once() {
        let mut reqs = Requests::new();
        let id = begin(&mut reqs);
        assert_eq!(reqs.take(id), None);
        assert!(reqs.settle(id, Ok(NO_MESSAGE)).is_none());
        assert!(reqs.settle(id, Err(Error::Cancelled)).is_none());
        assert!(reqs.knows(id));
        assert_eq!(reqs.take(id), Some(Ok(NO_MESSAGE)));
        assert!(!reqs.knows(id));
        assert_eq!(reqs.take(id), None);
        // The slot's next operation is another one.
        let next = begin(&mut reqs);
        assert!(next != id && reqs.take(id).is_none());
    }

    #[test]
    fn a_detached_buffer_lives_until_the_end() {
        struct Buf(Rc<Cell<bool>>);
        impl Drop for Buf {
            fn drop(&mut self) {
                self.0.set(true);
            }
        }
        let dropped = Rc::new(Cell::new(false));
        let mut reqs = Requests::new();
        let id = begin(&mut reqs);
        assert!(reqs.detach(id, Some(Box::new(Buf(dropped.clone())))).is_none());
        assert!(!dropped.get());
        let act = reqs.settle(id, Ok(NO_MESSAGE)).unwrap();
        assert!(!dropped.get(), "dropped by the act, outside of any borrow");
        act.run();
        assert!(dropped.get());
        assert_eq!(reqs.len(), 0);
    }

    #[test]
    fn callbacks_are_called_once_even_when_detached() {
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
                reqs.detach(id, None);
            }
            reqs.settle(id, Err(Error::PeerGone(PeerId(3)))).unwrap().run();
            reqs.take(id);
        }
        assert_eq!((calls.get(), reqs.len()), (2, 0));
    }
}
