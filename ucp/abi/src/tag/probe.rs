//! Probes of tagged messages, and receives of messages that a probe has taken.

use std::cell::{Cell, RefCell};
use std::ffi::{c_int, c_void};

use ::ucs::Status;
use ucp::{Match, Message, OpParams};

use crate::arg::OutPtr;
use crate::datatype::{Data, Use};
use crate::entry::{StatusPtr, invalid};
use crate::handle::{Named, from_ptr, into_handle, take};
use crate::op::{Call, TagRecv, run};
use crate::types::{RequestParam, TagInfo, op_attr};
use crate::worker::Worker;

/// `ucp_tag_message_h`: a message that a probe has taken.
pub(crate) struct ProbedMessage {
    message: Message,
    worker: *const Worker,
    /// Position among those of the worker.
    at: Cell<usize>,
}

impl Named for ProbedMessage {
    const NAME: &'static str = "probed message";
    const IS_STATIC: bool = false;
    // The data path makes and takes them.
    const IS_LOOKED_UP: bool = false;
}

/// Messages of a worker that probes have taken and the program has not received. Used inside the worker's
/// lock.
#[derive(Default)]
pub(crate) struct ProbedMessages(RefCell<Vec<*mut ProbedMessage>>);

impl ProbedMessages {
    /// Hands a message out.
    fn add(&self, message: Message, worker: &Worker) -> *mut ProbedMessage {
        let mut all = self.0.borrow_mut();
        let handle = into_handle(ProbedMessage { message, worker, at: Cell::new(all.len()) });
        all.push(handle);
        handle
    }

    /// Takes a message back, to free it.
    /// # Safety
    /// It is one of these, and the program does not use it any more.
    unsafe fn remove(&self, handle: *mut ProbedMessage) -> Box<ProbedMessage> {
        // SAFETY: this function's contract.
        let taken = unsafe { take(handle) };
        let (mut all, at) = (self.0.borrow_mut(), taken.at.get());
        all.swap_remove(at);
        if let Some(moved) = all.get(at) {
            // SAFETY: those that are left are live.
            unsafe { &**moved }.at.set(at);
        }
        taken
    }

    /// Frees all: the worker is freed.
    pub(crate) fn clear(&self) {
        for handle in self.0.take() {
            // SAFETY: it was one of these, and its worker is gone for the program.
            drop(unsafe { take(handle) });
        }
    }
}

/// Receives a message that a probe has taken.
/// # Safety
/// `worker` is null or live. `message` is null, or a result of `ucp_tag_probe_nb` that has not been received.
/// The buffer can be written until the receive has ended.
unsafe fn recv_message(
    worker: *mut Worker,
    (buffer, count): (*mut c_void, usize),
    message: *mut ProbedMessage,
    call: &Call,
) -> Result<StatusPtr, Status> {
    // SAFETY: this function's contract.
    let worker = unsafe { from_ptr(worker) }?;
    if message.is_null() || message == not_taken() {
        return Err(invalid("the message is null, or its probe has not removed it"));
    }
    // SAFETY: this function's contract.
    if !std::ptr::eq(unsafe { (*message).worker }, worker) {
        return Err(invalid("the message is of another worker"));
    }
    // SAFETY: this function's contract.
    let data = unsafe { Data::new(buffer, count, call.datatype(), Use::Unpack) }?;
    let (truncated, refused) = (Cell::new(ucp::RecvStatus::EMPTY), Cell::new(true));
    worker.with_worker(|plain| {
        // SAFETY: as above: buffer and callback stay valid until the end. Nobody else has the message.
        let received = unsafe {
            run::<TagRecv, _>(worker, plain, call, Some(&truncated), |done| {
                let params = OpParams { done, mem: call.mem(), truncated: Some(&truncated) };
                let started = match data {
                    Data::Bytes(at, len) => (*message).message.recv_raw(at, len, &params),
                    ref other => (*message).message.recv_layout_raw(other.layout(&other.single()), &params),
                };
                refused.set(started.as_ref().is_err_and(|error| error.keeps_message()));
                started
            })
        };
        if !refused.get() {
            // SAFETY: as above: the program does not use it any more.
            drop(unsafe { worker.taken.remove(message) });
        }
        received
    })?
}

/// Result of a probe that leaves the message in the queue: not null, and nothing to receive.
fn not_taken() -> *mut ProbedMessage {
    static MARK: u64 = 0;
    std::ptr::from_ref(&MARK).cast_mut().cast()
}

entry! {
    /// Finds an unexpected message, and takes it out of the queue if `remove` is not 0.
    fn ucp_tag_probe_nb(
        worker: *mut Worker, tag: u64, mask: u64, remove: c_int, info: OutPtr<TagInfo>,
    ) -> *mut ProbedMessage {
        let matching = Match::tagged(tag, mask);
        // SAFETY: the caller's contract.
        let worker = unsafe { from_ptr(worker) }?;
        let (message, found) = worker.with_worker(|plain| match remove {
            0 => (not_taken(), plain.probe(matching)),
            _ => match plain.mprobe(matching) {
                Some(message) => {
                    let found = message.envelope();
                    (worker.taken.add(message, worker), Some(found))
                }
                None => (std::ptr::null_mut(), None),
            },
        })?;
        let Some(found) = found else { return Ok(std::ptr::null_mut()) };
        if !info.is_null() {
            info.store(TagInfo { sender_tag: found.tag, length: found.len as usize })?;
        }
        Ok(message)
    }

    /// Receives a message that a probe has taken; deprecated (`ucp_compat.h`), which always returns a
    /// request.
    fn ucp_tag_msg_recv_nb(
        worker: *mut Worker,
        buffer: *mut c_void,
        count: usize,
        datatype: u64,
        message: *mut ProbedMessage,
        cb: *const c_void,
    ) -> StatusPtr {
        let param = RequestParam::old(cb, datatype).and(op_attr::NO_IMM_CMPL);
        // SAFETY: the caller's contract.
        unsafe { recv_message(worker, (buffer, count), message, &Call::of(&param)) }
    }

    /// Receives a message that a probe has taken.
    fn ucp_tag_msg_recv_nbx(
        worker: *mut Worker, buffer: *mut c_void, count: usize, message: *mut ProbedMessage, param: *const RequestParam,
    ) -> StatusPtr {
        // SAFETY: the caller's contract.
        unsafe { recv_message(worker, (buffer, count), message, &Call::read(param)?) }
    }
}
