//! Delivery of active messages to the handlers of a program: of data that is here, and of announced data.

use std::cell::{Cell, RefCell};
use std::ffi::{c_uint, c_void};

use ::ucs::Status;
use ucp::{AmMessage, Callback, Error, OpParams, OpStatus, RecvStatus, RequestId};

use super::{AmState, Handled, Handler, Kept, WordBox};
use crate::entry::CStatus;
use crate::ep::{Ep, reply_ep};
use crate::types::{AmRecvCallback, AmRecvParam};
use crate::worker::Worker;

/// Values of `ucp_am_recv_attr_t`.
const RECV_REPLY_EP: u64 = 1 << 0;
const RECV_DATA: u64 = 1 << 16;
const RECV_RNDV: u64 = 1 << 17;
/// `UCP_CB_PARAM_FLAG_DATA`.
const CB_DATA: c_uint = 1 << 0;

/// Calls a handler of the program for data that is there. Returns whether the program keeps the data.
/// # Safety
/// The handler may be called with its argument. The data can be read until the call returns, or longer if the
/// program keeps it.
unsafe fn call(
    (handler, arg): (Handler, *mut c_void),
    header: &[u8],
    (data, len): (*const u8, usize),
    (reply, attr): (*mut Ep, u64),
) -> bool {
    let data = data.cast_mut().cast();
    let status = match handler {
        Handler::Present(cb) => {
            let has_reply = if reply.is_null() { 0 } else { RECV_REPLY_EP };
            let param = AmRecvParam { recv_attr: attr | has_reply, reply_ep: reply };
            // SAFETY: this function's contract.
            unsafe { cb(arg, header.as_ptr().cast(), header.len(), data, len, &param) }
        }
        // SAFETY: as above.
        Handler::Old(cb) => unsafe { cb(arg, data, len, reply, CB_DATA) },
    };
    if status.0 < 0 {
        log_failed(status);
    }
    wants_to_keep(status)
}

/// Whether a handler returns that its program keeps the data.
// HOT
#[inline(always)]
fn wants_to_keep(status: CStatus) -> bool {
    status == CStatus::from(Status::InProgress)
}

#[cold]
#[inline(never)]
fn log_failed(status: CStatus) {
    tracing::debug!(status = status.0, "a handler of active messages has returned an error");
}

/// A message has arrived for a handler of the present interface. Inside the lock, with nothing of the worker
/// borrowed. What most messages are is handed over here: with data that has come, and no wish for a reply.
/// # Safety
/// `cb` may be called with `arg`.
// HOT
#[inline(always)]
pub(super) unsafe fn on_message(worker: &Worker, cb: AmRecvCallback, arg: *mut c_void, message: AmMessage) {
    let am = &worker.am;
    // SAFETY: this function's contract.
    let general = |message| unsafe { on_message_general(worker, Handler::Present(cb), arg, message) };
    let Some(data) = message.data() else { return general(message) };
    if worker.ends.get() || message.wants_reply() {
        return general(message);
    }
    let header = message.header();
    let (mut at, len, mut memory) = (data.as_ptr(), data.len(), None);
    if let Some(word) = message.inline_word() {
        let Some(copy) = am.copy_word(word) else { return general(message) };
        at = memory.insert(copy).as_mut_ptr().wrapping_add(header.len()).cast_const();
    }
    let before = am.handled.replace(Handled { data: at, message: &message });
    let param = AmRecvParam { recv_attr: RECV_DATA, reply_ep: std::ptr::null_mut() };
    // SAFETY: this function's contract; the memory stays valid during the call.
    let status = unsafe { cb(arg, header.as_ptr().cast(), header.len(), at.cast_mut().cast(), len, &param) };
    let after = am.handled.replace(before);
    if wants_to_keep(status) && !after.data.is_null() {
        return keep(am, at, memory, message);
    }
    if status.0 < 0 {
        log_failed(status);
    }
    if let Some(memory) = memory {
        am.give_back_word(memory);
    }
}

/// Keeps a message, whose data may have been copied.
#[cold]
#[inline(never)]
fn keep(am: &AmState, data: *const u8, memory: Option<WordBox>, message: AmMessage) {
    let kept = match memory {
        Some(memory) => Kept::Word { memory, message },
        None => Kept::Message(message),
    };
    am.keep(data, kept);
}

/// [`on_message`] of any message and handler.
/// # Safety
/// The handler may be called with `arg`.
#[inline(never)]
pub(super) unsafe fn on_message_general(
    worker: &Worker,
    handler: Handler,
    arg: *mut c_void,
    message: AmMessage,
) {
    if worker.ends.get() {
        return;
    }
    if !message.wants_reply() {
        // SAFETY: this function's contract.
        return unsafe { hand_over(worker, handler, arg, message, std::ptr::null_mut()) };
    }
    let reply = reply_ep(worker, &message);
    worker.reply_eps.borrow_mut().hold(reply);
    // SAFETY: as above.
    unsafe { hand_over(worker, handler, arg, message, reply) };
    worker.reply_eps.borrow_mut().release(reply);
}

/// Hands a message over, with the endpoint for answers, which may be null.
/// # Safety
/// The handler may be called with `arg`.
unsafe fn hand_over(worker: &Worker, handler: Handler, arg: *mut c_void, message: AmMessage, reply: *mut Ep) {
    if message.data().is_none() {
        // SAFETY: this function's contract.
        return unsafe { on_announced(worker, handler, arg, message, reply) };
    }
    let (header, data) = (message.header(), message.data().unwrap_or(&[]));
    let (mut at, len, mut memory) = (data.as_ptr(), data.len(), None);
    if let Some(word) = message.inline_word() {
        let Some(copy) = worker.am.copy_word(word) else {
            return tracing::error!("no memory for an active message of eight bytes: dropped");
        };
        at = memory.insert(copy).as_mut_ptr().wrapping_add(header.len()).cast_const();
    }
    // SAFETY: this function's contract; message and copy are kept if the program keeps the data.
    let called = || unsafe { call((handler, arg), header, (at, len), (reply, RECV_DATA)) };
    if worker.am.handle(at, &message, called) {
        return keep(&worker.am, at, memory, message);
    }
    memory.into_iter().for_each(|memory| worker.am.give_back_word(memory));
}

/// A message whose data the handler asks for (`UCP_AM_RECV_ATTR_FLAG_RNDV`), or, by the deprecated interface,
/// gets when it has been received.
/// # Safety
/// The handler may be called with `arg`.
unsafe fn on_announced(
    worker: &Worker,
    handler: Handler,
    arg: *mut c_void,
    message: AmMessage,
    reply: *mut Ep,
) {
    let Ok(len) = usize::try_from(message.data_len()) else { return };
    match handler {
        Handler::Present(_) => {
            let Some(header) = worker.am.spare.copy(message.header()) else {
                return tracing::error!("no memory for the header of an active message: dropped");
            };
            // Inside the message's memory, and so unlike any other message's.
            let at = message.header().as_ptr().wrapping_add(message.header().len());
            worker.am.keep(at, Kept::Message(message));
            // SAFETY: this function's contract. Announced data is not read.
            if !unsafe { call((handler, arg), &header, (at, len), (reply, RECV_RNDV)) } {
                // Unless the handler has received it.
                drop(worker.am.take(at.cast()));
            }
            worker.am.spare.give_back(header);
        }
        Handler::Old(_) => {
            let Some(memory) = worker.am.spare.take(len) else {
                return tracing::error!("no memory for an active message of {len} bytes: dropped");
            };
            // SAFETY: this function's contract.
            unsafe {
                receive_for_old(
                    OldRecv { worker, handler, arg, reply, memory, at: Cell::new(0) },
                    len,
                    message,
                )
            };
        }
    }
}

/// A receive of the data of a message for a handler of the deprecated interface.
pub(super) struct OldRecv {
    worker: *const Worker,
    handler: Handler,
    arg: *mut c_void,
    reply: *mut Ep,
    memory: Vec<u8>,
    /// Position among those that run.
    at: Cell<usize>,
}

/// The receives that run for handlers of the deprecated interface. Freed behind the engine, which writes into
/// their memory.
#[derive(Default)]
pub(super) struct OldRecvs {
    /// From [`Box::into_raw`].
    running: RefCell<Vec<*mut OldRecv>>,
    /// Memory of ended ones, for later ones.
    #[expect(clippy::vec_box, reason = "they are leaked one by one, at their address")]
    spare: RefCell<Vec<Box<OldRecv>>>,
}

impl OldRecvs {
    /// Keeps a receive that begins at one address, until [`OldRecvs::end`].
    fn begin(&self, recv: OldRecv) -> *mut OldRecv {
        let spare = self.spare.borrow_mut().pop();
        let state = match spare {
            Some(mut state) => {
                *state = recv;
                state
            }
            None => Box::new(recv),
        };
        let mut running = self.running.borrow_mut();
        state.at.set(running.len());
        let state = Box::into_raw(state);
        running.push(state);
        state
    }

    /// Takes a receive that has ended.
    /// # Safety
    /// It is from `begin`, and has not ended before.
    unsafe fn end(&self, state: *mut OldRecv) -> Box<OldRecv> {
        // SAFETY: this function's contract.
        let state = unsafe { Box::from_raw(state) };
        let mut running = self.running.borrow_mut();
        let at = state.at.get();
        running.swap_remove(at);
        if let Some(moved) = running.get(at) {
            // SAFETY: those that run are alive.
            unsafe { &**moved }.at.set(at);
        }
        state
    }
}

impl Drop for OldRecvs {
    fn drop(&mut self) {
        for state in self.running.get_mut().drain(..) {
            // SAFETY: from `begin`; the engine that used it is gone.
            drop(unsafe { Box::from_raw(state) });
        }
    }
}

/// Starts the receive. The handler is called at its end.
/// # Safety
/// The handler may be called with its argument. A handler of the worker runs.
unsafe fn receive_for_old(recv: OldRecv, len: usize, mut message: AmMessage) {
    // SAFETY: this function's contract.
    let worker = unsafe { &*recv.worker };
    worker.reply_eps.borrow_mut().hold(recv.reply);
    let state = worker.am.received.begin(recv);
    // SAFETY: just made; nothing else has it yet.
    let at = unsafe { (*state).memory.as_mut_ptr() };
    let params = OpParams::with_callback(Callback::new(on_old_received, state.cast()));
    // SAFETY: the memory has room for this many bytes, and is kept until the end.
    match unsafe { message.recv_raw(at, len, &params) } {
        Ok(OpStatus::InProgress(_)) => {}
        ended => {
            let ended = ended.map(|_| len).map_err(drop);
            // SAFETY: the operation has ended, and its callback is not called.
            unsafe { old_received(state, ended) };
        }
    }
}

/// Called by progress when the data of a message has come, or will not.
/// # Safety
/// `state` is one of `receive_for_old`, whose operation has ended.
unsafe fn on_old_received(state: *mut (), id: RequestId, ended: Result<RecvStatus, Error>) {
    let state = state.cast::<OldRecv>();
    // SAFETY: the state lives until this call; progress of its worker makes it, so the worker is there.
    let worker = unsafe { &*(*state).worker };
    _ = worker.with_worker(|plain| plain.free(id));
    // SAFETY: this is the callback of the operation, called once.
    unsafe { old_received(state, ended.map(|status| status.len).map_err(drop)) };
}

/// Calls the handler, and frees the state.
/// # Safety
/// `state` is one of `receive_for_old`, whose operation has ended.
unsafe fn old_received(state: *mut OldRecv, ended: Result<usize, ()>) {
    // SAFETY: this function's contract; the worker is there.
    let worker = unsafe { &*(*state).worker };
    // SAFETY: as above.
    let mut state = unsafe { worker.am.received.end(state) };
    let (memory, held) = (std::mem::take(&mut state.memory), state.reply);
    let (handler, arg) = (state.handler, state.arg);
    worker.am.received.spare.borrow_mut().push(state);
    // The program may have closed it since.
    let reply = if worker.eps.borrow().contains(&held) { held } else { std::ptr::null_mut() };
    match ended {
        // SAFETY: this function's contract: the operation has written this many bytes.
        Ok(len) => unsafe { call_old(worker, (handler, arg), (memory, len), reply) },
        Err(()) => worker.am.spare.give_back(memory),
    }
    worker.reply_eps.borrow_mut().release(held);
}

/// Calls a handler for data that has been received.
/// # Safety
/// The handler may be called with its argument. `len` bytes of the memory have been written.
unsafe fn call_old(
    worker: &Worker,
    handler: (Handler, *mut c_void),
    (mut memory, len): (Vec<u8>, usize),
    reply: *mut Ep,
) {
    // SAFETY: this function's contract.
    unsafe { memory.set_len(len.min(memory.capacity())) };
    let data = memory.as_ptr();
    // SAFETY: as above; the memory is kept if the program keeps it.
    if !worker.ends.get() && unsafe { call(handler, &[], (data, memory.len()), (reply, 0)) } {
        worker.am.keep(data, Kept::Received(memory));
    } else {
        worker.am.spare.give_back(memory);
    }
}
