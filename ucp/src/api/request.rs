//! Running operations: a table of reused slots, one for each operation that did not finish in its call.
//! Filled by send and receive, settled by `Worker::progress`, read through the request types of `op.rs`.
//! Never runs user code itself: settling answers an [`Act`], which the worker runs with nothing borrowed.

use std::any::Any;
use std::rc::Rc;
use std::task::Waker;

use ucs::coll::slots::{SlotId, Slots};

use crate::rdm::io::PeerId;
use crate::rdm::{OpId, RecvStatus};

use super::Error;
use super::ep::EpState;
use super::stream::OF_STREAM;

/// What an operation ended with. A send's status has no meaning.
pub(crate) type Ended = Result<RecvStatus, Error>;

/// Names a running operation of one worker. Stale once the operation has been told and freed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RequestId(pub(crate) SlotId);

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
    /// Running; somebody holds its id.
    Running,
    /// Running; nobody asks for it any more. Freed at its end, with the buffer it kept alive.
    Detached,
    /// Ended, to be picked up.
    Ended(Ended),
}

struct Slot {
    role: Role,
    stage: Stage,
    /// [`Notify::Nobody`] while it is idle or ended.
    notify: Notify,
    /// The buffer that a detached operation keeps alive.
    kept: Option<Box<dyn Any>>,
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
    slots: Slots<Slot>,
    /// Idle slots; the last is the next operation's. An operation that ends in its call leaves it unused. They stay in
    /// the table: writing a few words of a slot costs less than moving it in and out.
    idle: Vec<SlotId>,
}

impl Requests {
    pub(crate) fn new() -> Self {
        let mut slots = Slots::new();
        slots.reserve_total(256);
        Requests { slots, idle: Vec::with_capacity(256) }
    }

    /// The id that the next operation will have if it does not end in its call. // HOT
    #[inline]
    pub(crate) fn next_id(&mut self) -> Result<SlotId, Error> {
        match self.idle.last() {
            Some(&id) => Ok(id),
            None => self.grow(),
        }
    }

    #[cold]
    fn grow(&mut self) -> Result<SlotId, Error> {
        let idle = Slot { role: Role::Flush, stage: Stage::Idle, notify: Notify::Nobody, kept: None };
        let id = self.slots.insert(idle).map_err(|_| Error::Exhausted)?;
        // Room for all, so that freeing never allocates.
        self.idle.reserve(self.slots.len());
        self.idle.push(id);
        Ok(id)
    }

    /// The operation is over and nobody asks for it: its id is stale from now on. // HOT
    #[inline]
    fn free(&mut self, id: SlotId) {
        let Some((next, slot)) = self.slots.renew(id) else { return };
        debug_assert!(matches!(slot.notify, Notify::Nobody) && slot.kept.is_none());
        slot.stage = Stage::Idle;
        self.idle.push(next);
    }

    /// The operation that was given [`Requests::next_id`] is running. // HOT
    #[inline]
    pub(crate) fn start(&mut self, role: Role, call: Option<Callback>) -> SlotId {
        let id = self.idle.pop().expect("an id was taken before the operation began");
        if let Some(slot) = self.slots.get_mut(id) {
            slot.role = role;
            slot.stage = Stage::Running;
            if let Some(call) = call {
                slot.notify = Notify::Raw(call);
            }
        }
        id
    }

    /// How many operations are running or unclaimed.
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.idle.len()
    }

    /// The operation has ended. // HOT
    #[inline]
    pub(crate) fn settle(&mut self, id: SlotId, ended: Ended) -> Option<Act> {
        let slot = self.slots.get_mut(id)?;
        match slot.stage {
            Stage::Running => {
                slot.stage = Stage::Ended(ended);
                if let Notify::Nobody = slot.notify {
                    return None;
                }
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
        if user & OF_STREAM != 0 {
            return false;
        }
        match self.slots.get_mut(SlotId::from_raw(user as u32)) {
            Some(slot @ Slot { stage: Stage::Running, notify: Notify::Nobody, .. }) => {
                slot.stage = Stage::Ended(Ok(status));
                true
            }
            _ => false,
        }
    }

    /// The end of an operation, if it has one; frees its slot. // HOT
    #[inline]
    pub(crate) fn take(&mut self, id: SlotId) -> Option<Ended> {
        let ended = self.slots.renew_if(id, |slot| {
            let Stage::Ended(ended) = slot.stage else { return None };
            slot.stage = Stage::Idle;
            Some(ended)
        });
        let (next, ended) = ended?;
        self.idle.push(next);
        Some(ended)
    }

    /// Whether `id` names an operation of this table that runs or is unclaimed.
    pub(crate) fn knows(&self, id: SlotId) -> bool {
        self.slots.get(id).is_some_and(|slot| !matches!(slot.stage, Stage::Idle))
    }

    /// What the operation is, while it runs.
    pub(crate) fn role(&self, id: SlotId) -> Option<Role> {
        match self.slots.get(id) {
            Some(Slot { role, stage: Stage::Running | Stage::Detached, .. }) => Some(*role),
            _ => None,
        }
    }

    /// Wakes `waker` at the operation's end, which must not have come yet.
    pub(crate) fn wake_at_end(&mut self, id: SlotId, waker: &Waker) {
        let Some(slot) = self.slots.get_mut(id) else { return };
        match &slot.notify {
            Notify::Waker(old) if old.will_wake(waker) => {}
            _ => slot.notify = Notify::Waker(waker.clone()),
        }
    }

    /// Calls `call` at the operation's end, which must not have come yet, and frees the slot then.
    pub(crate) fn call_at_end(&mut self, id: SlotId, call: Box<dyn FnOnce(Ended)>) {
        if let Some(slot) = self.slots.get_mut(id) {
            debug_assert!(matches!(slot.stage, Stage::Running));
            slot.notify = Notify::Boxed(call);
        }
    }

    /// Nobody asks for the operation any more. If it runs, `buf` is kept until its end; if it has ended, the slot is
    /// freed and `buf` comes back to be dropped. A raw callback is still called.
    pub(crate) fn detach(&mut self, id: SlotId, buf: Option<Box<dyn Any>>) -> Option<Box<dyn Any>> {
        let Some(slot) = self.slots.get_mut(id) else { return buf };
        match slot.stage {
            Stage::Idle => buf,
            Stage::Ended(_) => {
                self.free(id);
                buf
            }
            Stage::Running | Stage::Detached => {
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
    use crate::api::core::NO_MESSAGE;
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
