//! Requests of a worker: a block for each operation that did not complete in its call. Completing an
//! operation returns an [`Action`], user code that the worker runs with nothing borrowed.

#![allow(unsafe_code)]

mod block;
mod callers;
mod count;
mod notify;
mod op;
mod pool;
mod request_id;
#[cfg(test)]
mod tests;

use hashbrown::HashMap;

use crate::api::core::error::Error;
use crate::token::UserToken;

use crate::rdm::{OpError, OpId, RecvStatus};

use block::{BlockPtr, OwnerNumber, Stage};
use callers::CallersBlocks;
use pool::Pool;

pub use count::RequestTable;
pub(crate) use op::{Action, EMPTY_STATUS, Ended, Notify, ReadyCall, Role};
pub use op::{CallAt, Callback, OpStatus};
pub use pool::{MAX_OPERATIONS, RequestParams};
pub use request_id::RequestId;

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
    /// Number of this table, as it is in the states of its blocks; differs between all tables of the process.
    number: OwnerNumber,
    callers: CallersBlocks,
    pool: Pool,
    /// Requests of parts of an operation that run, and the request of the whole.
    parts: HashMap<BlockPtr, RequestId>,
}

impl Requests {
    /// Allocates nothing before the first operation.
    pub(crate) fn new(room: RequestParams) -> Self {
        Requests {
            first_free: None,
            first_ready: None,
            last_ready: None,
            number: OwnerNumber::next(),
            callers: CallersBlocks::default(),
            pool: Pool::new(room),
            parts: HashMap::new(),
        }
    }

    /// The block of a request of this worker that has not been freed.
    // HOT
    #[inline(always)]
    fn find(&self, id: RequestId) -> Option<BlockPtr> {
        id.block.is_of(self.number, id.generation).then_some(id.block)
    }

    /// Token of the operation that [`Requests::start`] starts next.
    // HOT
    #[inline(always)]
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

    /// Starts the operation with this [`Requests::next_token`]; no other has started since.
    // HOT
    #[inline(always)]
    pub(crate) fn start(&mut self, token: u64, role: Role, call: Option<Callback>) -> RequestId {
        let block = self.block_of(token);
        debug_assert_eq!(self.first_free, Some(block));
        self.first_free = block.next.get();
        let generation = match call {
            None => block.begin(role),
            Some(call) => block.begin_awaited(role, call),
        };
        RequestId { block, generation }
    }

    /// A request that has ended with this message, and error if there is one.
    pub(crate) fn start_ended(
        &mut self,
        message: RecvStatus,
        error: Option<Error>,
    ) -> Result<RequestId, Error> {
        let token = self.next_token()?;
        // A role that cannot be cancelled; `Unstarted` would look as if the block were free.
        let id = self.start(token, Role::Announced, None);
        id.block.store_result(error.map_or(Ok(message), Err));
        id.block.store_message(&message);
        id.block.publish();
        Ok(id)
    }

    /// A request whose operation has ended with this message, and error if there is one. The next progress
    /// completes it and calls `call`. Without a callback it completes now, unless others complete first.
    pub(crate) fn start_ending(
        &mut self,
        message: RecvStatus,
        error: Option<Error>,
        call: Option<Callback>,
    ) -> Result<RequestId, Error> {
        let token = self.next_token()?;
        let id = self.start(token, Role::Announced, call);
        id.block.store_message(&message);
        self.end(id, error.map_or(Ok(message), Err));
        Ok(id)
    }

    /// Starts a one-sided operation of an endpoint, of `len` bytes, as [`Requests::start`].
    #[inline]
    pub(crate) fn start_rma(
        &mut self,
        token: u64,
        (op, ep): (OpId, u32),
        len: usize,
        call: Option<Callback>,
    ) -> RequestId {
        let id = self.start(token, Role::Rma(op), call);
        self.set_ep(id, ep);
        id.block.set_len(len);
        id
    }

    /// Notes the endpoint of an operation of the engine that has just started.
    #[inline]
    pub(crate) fn set_ep(&self, id: RequestId, ep: u32) {
        id.block.ep.set(ep);
    }

    /// Whether the operation of the engine with this token, a send or one on memory, is of an endpoint. Notes
    /// are of none.
    pub(crate) fn is_of_ep(&self, token: u64, ep: u32) -> bool {
        matches!(UserToken::unpack(token), UserToken::Request(_)) && self.block_of(token).ep.get() == ep
    }

    pub(crate) fn room(&self) -> &RequestParams {
        self.pool.room()
    }

    /// Number of operations that are running, or completed and not freed, in blocks of the worker.
    pub(crate) fn len(&self) -> usize {
        let free = std::iter::successors(self.first_free, |block| block.next.get());
        self.pool.iter().count() - free.count()
    }

    /// Operations that have not ended.
    pub(crate) fn running(&self) -> Vec<RequestId> {
        let is_running = |block: &BlockPtr| block.stage() != Stage::Ended;
        let blocks = self.pool.iter().filter(is_running).chain(self.callers.iter());
        blocks.map(|block| RequestId { block, generation: block.generation() }).collect()
    }

    #[inline]
    fn release(&mut self, block: BlockPtr) {
        if block.state().is_callers() {
            return block.release_callers();
        }
        block.release();
        self.list_free(block);
    }

    // HOT
    #[inline(always)]
    fn list_free(&mut self, block: BlockPtr) {
        block.next.set(self.first_free);
        self.first_free = Some(block);
    }

    /// The block of a token of the engine, which is a request's.
    // HOT
    #[inline(always)]
    fn block_of(&self, token: u64) -> BlockPtr {
        debug_assert!(matches!(UserToken::unpack(token), UserToken::Request(_)), "{token:#x}");
        // SAFETY: a token is an address of a block, and never stale: see `Requests`. A block of the caller is
        // valid until its operation has ended.
        let block = unsafe { BlockPtr::from_address(token as usize) };
        debug_assert!(block.state().is_of(self.number));
        block
    }

    /// Completes a one-sided operation, whose length its request has.
    #[inline]
    pub(crate) fn complete_rma(&mut self, token: u64, result: Result<(), OpError>) -> Option<Action> {
        let len = self.block_of(token).len();
        self.complete_token(token, result.map(|()| RecvStatus { len, ..EMPTY_STATUS }))
    }

    /// Whether nobody waits for the operation with this token, or for the whole that it is a part of.
    pub(crate) fn is_detached(&mut self, token: u64) -> bool {
        let block = self.block_of(token);
        let mut whole = block;
        while let Some(of) = self.parts.get(&whole) {
            whole = of.block;
        }
        whole.stage() == Stage::Detached
    }

    /// Notes that the operation of `part` is a part of that of `whole`, which ends later.
    pub(crate) fn set_part(&mut self, part: RequestId, whole: RequestId) {
        self.parts.insert(part.block, whole);
    }

    /// The parts of an operation that run, in any order.
    pub(crate) fn parts_of(&self, whole: RequestId) -> Vec<RequestId> {
        let parts = self.parts.iter().filter(|(_, of)| **of == whole);
        parts.map(|(&block, _)| RequestId { block, generation: block.generation() }).collect()
    }

    /// Forgets what [`Requests::set_part`] has noted, if it was.
    pub(crate) fn end_part(&mut self, part: RequestId) {
        self.parts.remove(&part.block);
    }

    /// Completes the operation with this token.
    // HOT
    #[inline]
    pub(crate) fn complete_token(
        &mut self,
        token: u64,
        result: Result<RecvStatus, OpError>,
    ) -> Option<Action> {
        let block = self.block_of(token);
        debug_assert!(block.stage() != Stage::Ended, "reported twice");
        // SAFETY: an operation is reported to the worker that has started it.
        let state = unsafe { block.own_state() };
        match result {
            Ok(message) if state.is_plainly_running() && message.cq_data.is_none() => {
                block.store_plain_message(&message);
                block.end_well();
                None
            }
            result => self.complete_other(block, result),
        }
    }

    /// Completes an operation with a notification, in memory of the caller, or with an error.
    #[inline(never)]
    fn complete_other(&mut self, block: BlockPtr, result: Result<RecvStatus, OpError>) -> Option<Action> {
        block.store_result(result.map_err(Error::from));
        if let Err(OpError::Truncated { len, tag, from, .. }) = result {
            block.store_message(&RecvStatus { len: len as usize, tag, from, cq_data: None });
        }
        self.finish(block)
    }

    /// Completes an operation that the engine does not know.
    pub(crate) fn complete(&mut self, id: RequestId, ended: Ended) -> Option<Action> {
        let block = self.find(id)?;
        block.store_result(ended);
        self.finish(block)
    }

    /// Frees the request of an operation that has ended in the call that started it: its callback is not
    /// called, and nobody has seen the request.
    pub(crate) fn end_in_call(&mut self, id: RequestId) {
        if let Some(block) = self.find(id) {
            drop(block.notify.take());
        }
        drop(self.complete(id, Ok(EMPTY_STATUS)));
        if let Some(block) = self.find(id) {
            // Memory of the caller leaves the list of free blocks by this.
            block.role.set(Role::Unstarted);
        }
        let _ = self.take(id);
    }

    /// Completes the receive with this token. One with a notification becomes ready if `is_next`: no event
    /// precedes it. False: nothing has happened.
    // HOT
    #[inline(always)]
    pub(crate) fn complete_recv(&mut self, token: u64, status: RecvStatus, is_next: bool) -> bool {
        let block = self.block_of(token);
        // Nobody reads it before the state says that it is there, which may be later.
        block.store_plain_message(&status);
        // SAFETY: an operation is reported to the worker that has started it.
        let state = unsafe { block.own_state() };
        if state.is_plainly_running() && status.cq_data.is_none() {
            block.end_well();
            return true;
        }
        self.complete_awaited_recv(block, status.cq_data, is_next)
    }

    /// Takes the result of a completed operation and frees its request.
    // HOT
    #[inline(always)]
    pub(crate) fn take(&mut self, id: RequestId) -> Option<Ended> {
        let block = id.block;
        if !block.has_ended_well(self.number, id.generation) {
            return self.take_other(id);
        }
        let message = block.load_plain_message();
        block.release_well();
        self.list_free(block);
        Some(Ok(message))
    }

    /// Frees the request of an operation that has ended well, which has no notification left. False: nothing
    /// has happened, also for some that have.
    // HOT
    #[inline(always)]
    pub(crate) fn free_ended(&mut self, id: RequestId) -> bool {
        let has_ended = id.block.has_ended_well(self.number, id.generation);
        if has_ended {
            id.block.release_well();
            self.list_free(id.block);
        }
        has_ended
    }

    #[inline(never)]
    fn take_other(&mut self, id: RequestId) -> Option<Ended> {
        let block = self.find(id)?;
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

    /// Token of a running operation.
    pub(crate) fn token(&self, id: RequestId) -> Option<u64> {
        let block = self.find(id).filter(|block| block.stage() != Stage::Ended)?;
        Some(UserToken::Request(block.address()).pack())
    }

    /// Role of a running operation.
    pub(crate) fn role(&self, id: RequestId) -> Option<Role> {
        self.find(id).filter(|block| block.stage() != Stage::Ended).map(|block| block.role.get())
    }

    /// Whether the operation of a request runs, whose memory may be gone after its end.
    pub(crate) fn is_running(&self, id: RequestId) -> bool {
        self.at(id.block.address()) == Some(id) && self.role(id).is_some()
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
}

impl Drop for Requests {
    /// Drops what running operations keep; their callbacks are not called. The engine is gone by now.
    fn drop(&mut self) {
        self.end_callers();
        for block in self.pool.iter() {
            drop(block.notify.take());
            block.release();
        }
    }
}
