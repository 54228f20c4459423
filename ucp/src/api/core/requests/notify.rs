//! Notifications of the end of an operation, and the list of operations that have ended with an action to
//! run.

use std::any::Any;
use std::task::Waker;

use super::block::{BlockPtr, Stage};
use super::op::{Action, CallAt, Callback, Ended, Leftovers, Notify, ReadyCall, Role};
use super::{RequestId, Requests};

use crate::rdm::RecvStatus;

impl Requests {
    /// Ends an operation whose result is stored, and returns what is to be run.
    // HOT
    #[inline]
    pub(super) fn finish(&mut self, block: BlockPtr) -> Option<Action> {
        let stage = block.stage();
        self.publish(block);
        if stage == Stage::Running { None } else { self.notify(block, stage) }
    }

    /// Shows every thread that an operation has ended. Memory of the caller is the caller's again, unless a
    /// notification follows.
    #[inline]
    fn publish(&mut self, block: BlockPtr) {
        if block.state().is_callers() {
            self.callers.remove(block);
        }
        block.publish();
    }

    // HOT
    #[inline]
    fn notify(&mut self, block: BlockPtr, stage: Stage) -> Option<Action> {
        let (id, ended) = (RequestId { block, generation: block.generation() }, block.result());
        let notify = block.notify.take();
        if let Notify::Raw(call @ Callback { at: CallAt::End, .. }) = notify {
            self.call_early(block, call, ended);
            return None;
        }
        if let (Stage::Detached, &Notify::Raw(call)) = (stage, &notify) {
            return Some(match block.state().is_callers() {
                // What is there stays until the caller uses its memory again.
                true => Action::Raw(call, id, ended),
                false => Action::RawOfDropped(call, id, ended),
            });
        }
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

    /// Calls a callback of [`CallAt::End`], and frees the request.
    // HOT
    #[inline(always)]
    fn call_early(&mut self, block: BlockPtr, call: Callback, ended: Ended) {
        let id = RequestId { block, generation: block.generation() };
        // The callback uses nothing of the worker, by its own contract.
        call.run(id, ended);
        self.release(block);
    }

    /// Completes a receive that is not plainly running. The message but for `cq_data` is stored. One that is
    /// plainly awaited by a callback of [`CallAt::End`] ends here.
    // HOT
    #[inline(never)]
    pub(super) fn complete_awaited_recv(
        &mut self,
        block: BlockPtr,
        cq_data: Option<u64>,
        is_next: bool,
    ) -> bool {
        if !is_next || cq_data.is_some() || !block.state().is_plainly_awaited() {
            return self.complete_recv_general(block, cq_data, is_next);
        }
        let Some(call) = block.callback(CallAt::End) else {
            block.set_no_error();
            self.push_ready(block);
            return true;
        };
        let ended = Ok(block.load_plain_message());
        block.end_awaited_well();
        let id = RequestId { block, generation: block.generation() };
        call.run(id, ended);
        block.release_well();
        self.list_free(block);
        true
    }

    /// Completes a receive with a notification, in memory of the caller, or with `cq_data`. The rest of its
    /// message is stored.
    // HOT
    #[inline(never)]
    fn complete_recv_general(&mut self, block: BlockPtr, cq_data: Option<u64>, is_next: bool) -> bool {
        let stage = block.stage();
        let ends_now = match stage {
            // The call that posts the receive has not returned.
            Stage::Ended => false,
            Stage::Running => true,
            Stage::Awaited | Stage::Detached => is_next,
        };
        if !ends_now {
            return false;
        }
        block.store_cq_data(cq_data);
        block.set_no_error();
        if stage == Stage::Running {
            self.publish(block);
        } else if let Some(call) = block.callback(CallAt::End) {
            self.publish(block);
            let message = RecvStatus { cq_data, ..block.load_plain_message() };
            self.call_early(block, call, Ok(message));
        } else {
            self.push_ready(block);
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
            self.publish(block);
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

    /// Whether an operation has ended whose action is to be run.
    // HOT
    #[inline(always)]
    pub(crate) fn has_ready(&self) -> bool {
        self.first_ready.is_some()
    }

    /// Takes the first operation out of those that are ready.
    // HOT
    #[inline(always)]
    fn pop_ready(&mut self) -> Option<BlockPtr> {
        let block = self.first_ready?;
        self.first_ready = block.next.get();
        if self.first_ready.is_none() {
            self.last_ready = None;
        }
        Some(block)
    }

    /// Finishes operations that are ready, until one has an action to run.
    #[inline]
    pub(crate) fn next_ready(&mut self) -> Option<Action> {
        while let Some(block) = self.pop_ready() {
            if let Some(action) = self.finish(block) {
                return Some(action);
            }
        }
        None
    }

    /// Finishes the first operation that is ready, if it has ended well and a callback awaits it, as most
    /// do. Returns the callback, and its arguments.
    // HOT
    #[inline(always)]
    pub(crate) fn next_call(&mut self) -> Option<ReadyCall> {
        let block = self.first_ready?;
        if !block.state().is_plainly_awaited() || block.has_error() {
            return None;
        }
        let call = block.callback(CallAt::Progress)?;
        self.pop_ready();
        block.end_awaited_well();
        let id = RequestId { block, generation: block.generation() };
        Some((call, id, block.load_plain_message()))
    }

    /// Ends the receive with this token if a callback of [`CallAt::Progress`] awaits it, and nothing is ready
    /// before it. Returns what is to be called. `None`: nothing has happened.
    // HOT
    #[inline(always)]
    pub(crate) fn end_awaited_recv(&mut self, token: u64, message: RecvStatus) -> Option<ReadyCall> {
        let block = self.block_of(token);
        if self.has_ready() || message.cq_data.is_some() || !block.state().is_plainly_awaited() {
            return None;
        }
        let call = block.callback(CallAt::Progress)?;
        block.store_plain_message(&message);
        block.end_awaited_well();
        Some((call, RequestId { block, generation: block.generation() }, message))
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

    /// Has `call` called at the end of an operation that runs, in place of a waker. That is returned: to drop
    /// it is user code, which may use the worker. `None`: nothing was set, as there is no such operation, its
    /// request was dropped, or it has a callback, which may be the library's own.
    // HOT
    #[must_use]
    #[inline(always)]
    pub(crate) fn set_raw_callback(&mut self, id: RequestId, call: Callback) -> Option<Option<Waker>> {
        let block = self.find(id)?;
        match block.stage() {
            Stage::Running => {
                block.await_end(call);
                Some(None)
            }
            Stage::Awaited => replace_waker(block, call).map(Some),
            Stage::Ended | Stage::Detached => None,
        }
    }

    /// The callback of [`CallAt::Progress`] that awaits the end of an operation.
    pub(crate) fn raw_callback(&self, id: RequestId) -> Option<Callback> {
        let block = self.find(id)?;
        if block.stage() == Stage::Awaited { block.callback(CallAt::Progress) } else { None }
    }

    /// Drops the request and its notification. Keeps `buf` as [`Requests::detach`] does.
    #[must_use]
    pub(crate) fn abandon(&mut self, id: RequestId, buf: Option<Box<dyn Any>>) -> (Notify, Leftovers) {
        let notify = self.find(id).map_or(Notify::None, |block| block.notify.take());
        (notify, self.detach(id, buf))
    }

    /// Drops the request. Keeps `buf` until completion, or returns it. A raw callback is still called.
    #[must_use]
    pub(crate) fn detach(&mut self, id: RequestId, buf: Option<Box<dyn Any>>) -> Leftovers {
        let Some(block) = self.find(id) else { return (buf, None) };
        let stage = block.stage();
        if stage == Stage::Ended {
            self.release(block);
            return (buf, None);
        }
        block.set_stage(Stage::Detached);
        let before = block.notify.take();
        // Nothing awaits it: what is there is the callback of an operation before, which has been called.
        let before = if stage == Stage::Running { Notify::None } else { before };
        let (notify, waker) = match (before, buf) {
            (Notify::Raw(call), None) => (Notify::Raw(call), None),
            (Notify::Raw(call), Some(buf)) => (call_and_drop(call, id, buf), None),
            (before, buf) => (buf.map_or(Notify::None, Notify::Kept), before.into_waker()),
        };
        block.notify.set(notify);
        (None, waker)
    }
}

/// Has `call` called at the end of an operation whose end a waker awaits, which is returned.
#[cold]
#[inline(never)]
fn replace_waker(block: BlockPtr, call: Callback) -> Option<Waker> {
    match block.notify.take() {
        Notify::Waker(waker) => {
            block.notify.set(Notify::Raw(call));
            Some(waker)
        }
        other => {
            block.notify.set(other);
            None
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
