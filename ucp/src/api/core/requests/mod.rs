//! Requests of a worker: a block for each operation that did not complete in its call. Completing an
//! operation returns an [`Action`], user code that the worker runs with nothing borrowed.

#![allow(unsafe_code)]

mod block;
mod pool;
mod request_id;
#[cfg(test)]
mod tests;

use std::any::Any;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Waker;

use crate::api::core::ep_state::EpState;
use crate::api::core::error::Error;
use crate::token::UserToken;

use crate::rdm::io::PeerId;
use crate::rdm::{OpId, RecvStatus};

use block::{Block, BlockPtr, Stage, State};
use pool::Pool;

pub use pool::RequestRoom;
pub use request_id::RequestId;

/// Result of an operation. The status of a send has no meaning.
pub(crate) type Ended = Result<RecvStatus, Error>;

pub(crate) const EMPTY_STATUS: RecvStatus =
    RecvStatus { len: 0, tag: 0, from: PeerId(u32::MAX), cq_data: None };

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
    Rma(OpId),
    /// Receive from the stream of this peer; belongs to the worker, not the engine.
    Stream(PeerId),
    /// Flush or close; belongs to the worker, not the engine.
    Flush,
    /// Operation that waits until the peer of its endpoint is known.
    Deferred,
    /// Deferred operation that another request carries out now.
    Forwarded,
}

#[derive(Default)]
pub(crate) enum Notify {
    #[default]
    None,
    Waker(Waker),
    Raw(Callback),
    Boxed(Box<dyn FnOnce(Ended)>),
    /// Nothing to call: the buffer of a dropped request.
    Kept(Box<dyn Any>),
}

impl Notify {
    fn into_waker(self) -> Option<Waker> {
        if let Notify::Waker(waker) = self { Some(waker) } else { None }
    }
}

/// Buffer and waker that a dropped request no longer needs. Dropping them may use the worker.
pub(crate) type Leftovers = (Option<Box<dyn Any>>, Option<Waker>);

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
///
/// A token is the address of an operation's block. The engine reports an operation once, when it removes the
/// operation from its table, and an operation that it does not accept never. A block is released after that
/// report only. So no token is ever stale.
#[repr(C)]
pub(crate) struct Requests {
    /// Free blocks; the first is the next operation's.
    first_free: Option<BlockPtr>,
    /// Operations that have ended, with an action to run, oldest first.
    first_ready: Option<BlockPtr>,
    last_ready: Option<BlockPtr>,
    /// Number of this table; differs between all tables of the process.
    number: u32,
    /// Generation of the next block of a caller.
    callers_generation: u32,
    pool: Pool,
}

impl Requests {
    /// Allocates nothing before the first operation.
    pub(crate) fn new(room: RequestRoom) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(1);
        Requests {
            first_free: None,
            first_ready: None,
            last_ready: None,
            number: NUMBER.fetch_add(1, Ordering::Relaxed),
            callers_generation: 0,
            pool: Pool::new(room),
        }
    }

    /// The block of a request of this worker that has not been freed. // HOT
    #[inline(always)]
    fn find(&self, id: RequestId) -> Option<BlockPtr> {
        let RequestId { block, generation } = id;
        (block.generation() == generation && block.owner() == self.number).then_some(block)
    }

    /// Token of the operation that [`Requests::start`] starts next. // HOT
    #[inline]
    pub(crate) fn next_token(&mut self) -> Result<u64, Error> {
        match self.first_free {
            Some(block) => Ok(UserToken::Request(block.address()).pack()),
            None => self.grow(),
        }
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self) -> Result<u64, Error> {
        let block = self.pool.grow(self.number).ok_or(Error::Exhausted)?;
        self.first_free = Some(block);
        Ok(UserToken::Request(block.address()).pack())
    }

    /// Starts the operation with this [`Requests::next_token`]; no other has started since. // HOT
    #[inline]
    pub(crate) fn start(&mut self, token: u64, role: Role, call: Option<Callback>) -> RequestId {
        let block = self.block_of(token as usize);
        debug_assert_eq!(self.first_free, Some(block));
        self.first_free = block.next.get();
        block.begin(role);
        if let Some(call) = call {
            block.set_stage(Stage::Awaited);
            block.notify.set(Notify::Raw(call));
        }
        RequestId { block, generation: block.generation() }
    }

    /// Starts a one-sided operation of `len` bytes, as [`Requests::start`].
    #[inline]
    pub(crate) fn start_rma(
        &mut self,
        token: u64,
        op: OpId,
        len: usize,
        call: Option<Callback>,
    ) -> RequestId {
        let id = self.start(token, Role::Rma(op), call);
        id.block.set_len(len);
        id
    }

    pub(crate) fn room(&self) -> &RequestRoom {
        self.pool.room()
    }

    /// Number of operations that are running, or completed and not freed, in blocks of the worker.
    pub(crate) fn len(&self) -> usize {
        let free = std::iter::successors(self.first_free, |block| block.next.get());
        self.pool.iter().count() - free.count()
    }

    #[inline]
    fn release(&mut self, block: BlockPtr) {
        match block.state().is_callers() {
            true => block.release(),
            false => self.release_own(block),
        }
    }

    /// Releases a block of the worker. // HOT
    #[inline(always)]
    fn release_own(&mut self, block: BlockPtr) {
        block.release();
        block.next.set(self.first_free);
        self.first_free = Some(block);
    }

    /// The block of a token of the engine. // HOT
    #[inline(always)]
    fn block_of(&self, address: usize) -> BlockPtr {
        // SAFETY: a token is an address of a block, and never stale: see `Requests`. A block of the caller is
        // valid until its operation has ended.
        let block = unsafe { BlockPtr::from_address(address) };
        debug_assert_eq!(block.owner(), self.number);
        block
    }

    /// Length of the one-sided operation with this token.
    #[inline]
    pub(crate) fn rma_len(&self, user: u64) -> usize {
        self.block_of(user as usize).len()
    }

    /// Completes the operation with this token. // HOT
    #[inline]
    pub(crate) fn complete_token(&mut self, user: u64, ended: Ended) -> Option<Action> {
        let block = self.block_of(user as usize);
        debug_assert!(!matches!(block.stage(), Stage::Free | Stage::Ended), "reported twice");
        block.store_result(ended);
        self.finish(block)
    }

    /// Completes an operation that the engine does not know.
    pub(crate) fn complete(&mut self, id: RequestId, ended: Ended) -> Option<Action> {
        let block = self.find(id)?;
        block.store_result(ended);
        self.finish(block)
    }

    /// Ends an operation whose result is stored, and returns what is to be run. // HOT
    #[inline]
    fn finish(&mut self, block: BlockPtr) -> Option<Action> {
        let stage = block.stage();
        block.publish();
        if stage == Stage::Running { None } else { self.notify(block, stage) }
    }

    // HOT
    #[inline]
    fn notify(&mut self, block: BlockPtr, stage: Stage) -> Option<Action> {
        let (id, ended) = (RequestId { block, generation: block.generation() }, block.result());
        let notify = block.notify.take();
        if stage == Stage::Detached || matches!(notify, Notify::Boxed(_)) {
            self.release(block);
        }
        match notify {
            Notify::None => None,
            Notify::Waker(waker) => Some(Action::Wake(waker)),
            Notify::Raw(call) => Some(Action::Raw(call, id, ended)),
            Notify::Boxed(call) => Some(Action::Boxed(call, ended)),
            Notify::Kept(buf) => Some(Action::Free(buf)),
        }
    }

    /// Completes the receive with token `user`. One with a notification becomes ready if `is_next`: no event
    /// precedes it. False: nothing has happened. // HOT
    #[inline(always)]
    pub(crate) fn complete_recv(&mut self, user: u64, status: RecvStatus, is_next: bool) -> bool {
        let UserToken::Request(address) = UserToken::unpack(user) else { return false };
        let block = self.block_of(address);
        if block.state() == State::RUNNING {
            block.end_well(&status);
            return true;
        }
        self.complete_other_recv(block, status, is_next)
    }

    /// Completes a receive with a notification, or in memory of the caller. // HOT
    #[inline(never)]
    fn complete_other_recv(&mut self, block: BlockPtr, status: RecvStatus, is_next: bool) -> bool {
        match block.stage() {
            // The call that posts the receive has not returned.
            Stage::Free | Stage::Ended => return false,
            Stage::Running => {
                block.store_result(Ok(status));
                block.publish();
            }
            Stage::Awaited | Stage::Detached if is_next => {
                block.store_result(Ok(status));
                self.push_ready(block);
            }
            Stage::Awaited | Stage::Detached => return false,
        }
        true
    }

    /// Ends an operation that the engine does not know, behind those that are ready.
    pub(crate) fn end(&mut self, id: RequestId, ended: Ended) {
        let Some(block) = self.find(id) else { return };
        block.store_result(ended);
        // Nothing is left to cancel.
        block.role.set(Role::Announced);
        if block.stage() == Stage::Running && !self.has_ready() {
            block.publish();
        } else {
            self.push_ready(block);
        }
    }

    // HOT
    #[inline]
    fn push_ready(&mut self, block: BlockPtr) {
        block.next.set(None);
        match self.last_ready.replace(block) {
            Some(last) => last.next.set(Some(block)),
            None => self.first_ready = Some(block),
        }
    }

    /// Whether an operation has ended whose action is to be run. // HOT
    #[inline(always)]
    pub(crate) fn has_ready(&self) -> bool {
        self.first_ready.is_some()
    }

    /// Finishes operations that are ready, until one has an action to run. // HOT
    #[inline]
    pub(crate) fn next_ready(&mut self) -> Option<Action> {
        while let Some(block) = self.first_ready {
            self.first_ready = block.next.get();
            if self.first_ready.is_none() {
                self.last_ready = None;
            }
            if let Some(action) = self.finish(block) {
                return Some(action);
            }
        }
        None
    }

    /// Takes the result of a completed operation and frees its request. // HOT
    #[inline(always)]
    pub(crate) fn take(&mut self, id: RequestId) -> Option<Ended> {
        let block = self.find(id)?;
        if block.state() != State::ENDED_WELL {
            return self.take_other(block);
        }
        let message = block.load_message();
        self.release_own(block);
        Some(Ok(message))
    }

    #[inline(never)]
    fn take_other(&mut self, block: BlockPtr) -> Option<Ended> {
        if block.stage() != Stage::Ended {
            return None;
        }
        let ended = block.result();
        self.release(block);
        Some(ended)
    }

    // HOT
    #[inline(always)]
    pub(crate) fn is_complete(&self, id: RequestId) -> bool {
        self.find(id).is_some_and(|block| block.stage() == Stage::Ended)
    }

    pub(crate) fn knows(&self, id: RequestId) -> bool {
        self.find(id).is_some()
    }

    /// Role of a running operation.
    pub(crate) fn role(&self, id: RequestId) -> Option<Role> {
        self.find(id).filter(|block| block.stage() != Stage::Ended).map(|block| block.role.get())
    }

    /// Notes that another request carries out a deferred operation.
    pub(crate) fn set_forwarded(&mut self, id: RequestId, to: RequestId) {
        if let Some(block) = self.find(id) {
            block.role.set(Role::Forwarded);
            block.next.set(Some(to.block));
        }
    }

    /// The request that carries out a deferred operation that has not ended.
    pub(crate) fn forwarded(&self, id: RequestId) -> Option<RequestId> {
        let block = self.find(id).filter(|block| block.role.get() == Role::Forwarded)?.next.get()?;
        Some(RequestId { block, generation: block.generation() })
    }

    /// Returns the waker set before: dropping it is user code, which may use the worker.
    #[must_use]
    pub(crate) fn set_waker(&mut self, id: RequestId, waker: &Waker) -> Option<Waker> {
        let block = self.find(id)?;
        debug_assert!(matches!(block.stage(), Stage::Running | Stage::Awaited));
        block.set_stage(Stage::Awaited);
        match block.notify.take() {
            Notify::Waker(old) if old.will_wake(waker) => {
                block.notify.set(Notify::Waker(old));
                None
            }
            old => {
                block.notify.set(Notify::Waker(waker.clone()));
                old.into_waker()
            }
        }
    }

    /// Returns the waker set before, as [`Requests::set_waker`].
    #[must_use]
    pub(crate) fn set_callback(&mut self, id: RequestId, call: Box<dyn FnOnce(Ended)>) -> Option<Waker> {
        let block = self.find(id)?;
        debug_assert!(matches!(block.stage(), Stage::Running | Stage::Awaited));
        block.set_stage(Stage::Awaited);
        block.notify.replace(Notify::Boxed(call)).into_waker()
    }

    /// Drops the request. Keeps `buf` until completion, or returns it. A raw callback is still called.
    #[must_use]
    pub(crate) fn detach(&mut self, id: RequestId, buf: Option<Box<dyn Any>>) -> Leftovers {
        let Some(block) = self.find(id) else { return (buf, None) };
        if block.stage() == Stage::Ended {
            self.release(block);
            return (buf, None);
        }
        block.set_stage(Stage::Detached);
        let before = block.notify.take();
        let (notify, waker) = match (before, buf) {
            (Notify::Raw(call), None) => (Notify::Raw(call), None),
            (Notify::Raw(call), Some(buf)) => (call_and_drop(call, id, buf), None),
            (before, buf) => (buf.map_or(Notify::None, Notify::Kept), before.into_waker()),
        };
        block.notify.set(notify);
        (None, waker)
    }

    /// Makes `memory` the block of the next operation. [`Requests::end_lending`] follows.
    ///
    /// Safety: as for [`BlockPtr::init`].
    pub(crate) unsafe fn lend(&mut self, memory: NonNull<u8>) -> RequestId {
        self.callers_generation = self.callers_generation.wrapping_add(1);
        let block = Block::new(self.number, self.callers_generation);
        // SAFETY: this function's contract.
        let block = unsafe { BlockPtr::init(memory, block) };
        block.next.set(self.first_free.replace(block));
        RequestId { block, generation: self.callers_generation }
    }

    /// Notes whose block it is, or forgets it if no operation has used it.
    pub(crate) fn end_lending(&mut self, id: RequestId) {
        if id.block.stage() != Stage::Free {
            return id.block.mark_callers();
        }
        let mut before: Option<BlockPtr> = None;
        let mut next = self.first_free;
        while let Some(block) = next {
            next = block.next.get();
            if block == id.block {
                match before {
                    Some(before) => before.next.set(next),
                    None => self.first_free = next,
                }
                return;
            }
            before = Some(block);
        }
    }
}

/// Callback of a request that was dropped with its buffer.
#[cold]
fn call_and_drop(call: Callback, id: RequestId, buf: Box<dyn Any>) -> Notify {
    Notify::Boxed(Box::new(move |ended| {
        Action::Raw(call, id, ended).run();
        drop(buf);
    }))
}

impl Drop for Requests {
    /// Drops what running operations keep; their callbacks are not called. The engine is gone by now.
    fn drop(&mut self) {
        for block in self.pool.iter() {
            drop(block.notify.take());
            block.release();
        }
    }
}
