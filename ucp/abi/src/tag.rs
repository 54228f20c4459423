//! Tagged messages: sends, receives, probes.

use std::cell::Cell;
use std::ffi::{c_int, c_void};

use ::ucs::Status;
use ucp::select::Sync;
use ucp::{Match, Message, OpParams, SendParams, TAG_MASK_FULL};

use crate::arg::OutPtr;
use crate::check::{argument, enter, is_on};
use crate::datatype::{Data, Use};
use crate::entry::{CStatus, StatusPtr, guard, invalid};
use crate::ep::Ep;
use crate::handle::{Named, given, into_handle, take};
use crate::op::{
    Call, NOTHING, NoResult, REMOTE_LIST, TagRecv, UNUSUAL_RECV, UNUSUAL_SEND, run, set_words_unchecked,
};
use crate::request::as_result;
use crate::types::{RequestParam, TagInfo, op_attr};
use crate::worker::Worker;

impl Named for Message {
    const NAME: &'static str = "probed message";
    const IS_STATIC: bool = false;
    // The data path makes and takes them.
    const IS_LOOKED_UP: bool = false;
}

/// Sends a message: a short one at once, others by `any`. // HOT
/// # Safety
/// `ep` is null or live, `param` as for [`Call::quick`], and the data can be read during the call.
#[inline(always)]
unsafe fn send(
    ep: *mut Ep,
    (buffer, count): (*const c_void, usize),
    tag: u64,
    param: *const RequestParam,
    any: impl FnOnce() -> StatusPtr,
) -> StatusPtr {
    // SAFETY: this function's contract.
    if let Some(call) = unsafe { Call::quick(param) }
        && let Some(len) = call.plain_len(buffer, count, UNUSUAL_SEND | REMOTE_LIST)
        // SAFETY: as above.
        && let Ok(ep) = unsafe { given(ep) }
        // A callback may free the endpoint, and not the worker.
        && let worker = ep.worker()
        && worker.plain().is_some()
        // SAFETY: as above: the bytes are readable, and the endpoint is valid until a callback frees it.
        && unsafe { ucp::send_now_calling(&raw const ep.ep, tag, buffer.cast(), len) }
    {
        worker.wake_sleepers();
        return StatusPtr::OK;
    }
    any()
}

/// Arguments of [`ucp_tag_send_nbx`], in memory: the short way has more to keep than there are registers, and
/// would store and load them.
struct SendArgs {
    ep: *mut Ep,
    buffer: *const c_void,
    count: usize,
    tag: u64,
    param: *const RequestParam,
}

/// [`ucp_tag_send_nbx`] of what does not end at once, is checked, or needs the lock of its worker. // HOT
/// # Safety
/// As for [`ucp_tag_send_nbx`].
#[inline(never)]
unsafe fn send_nbx_any(args: &SendArgs) -> StatusPtr {
    let SendArgs { ep, buffer, count, tag, param } = *args;
    if is_on() {
        // SAFETY: this function's contract.
        unsafe { enter("ucp_tag_send_nbx", &[argument!(ep), argument!(param)]) };
    }
    // SAFETY: this function's contract.
    if let Some(call) = unsafe { Call::quick(param) }
        && let Some(len) = call.plain_len(buffer, count, UNUSUAL_SEND | REMOTE_LIST)
        // SAFETY: as above.
        && let Ok(ep) = unsafe { given(ep) }
        && let worker = ep.worker()
        && let ep = &raw const ep.ep
        // SAFETY: as above: the bytes are readable, and the endpoint is valid until a callback frees it.
        && worker.locked(|_| unsafe { ucp::send_now_calling(ep, tag, buffer.cast(), len) }) == Some(true)
    {
        return StatusPtr::OK;
    }
    // SAFETY: this function's contract.
    match unsafe { Call::read_any(param) } {
        // SAFETY: as above.
        Ok(call) => unsafe { send_any(ep, (buffer, count), (tag, Sync::No), &call) },
        Err(status) => StatusPtr::error(status),
    }
}

/// Starts a send.
/// # Safety
/// `ep` is null or live, and the data can be read until the send has ended.
#[inline(never)]
unsafe fn send_any(
    ep: *mut Ep,
    (buffer, count): (*const c_void, usize),
    (tag, sync): (u64, Sync),
    call: &Call,
) -> StatusPtr {
    let started = || {
        // SAFETY: this function's contract.
        let ep = unsafe { given(ep) }?;
        if call.must_end() {
            // SAFETY: as above.
            return unsafe { send_now(ep, (buffer, count), tag, call) };
        }
        // SAFETY: as above.
        let data = unsafe { Data::new(buffer, count, call.datatype(), Use::Pack) }?;
        let worker = ep.worker();
        worker.inside(|plain| {
            // SAFETY: as above: data and callback stay valid until the end.
            unsafe {
                run::<NoResult, _>(worker, plain, call, None, |done| {
                    let params =
                        SendParams { tag: Some(tag), sync, mem: call.mem(), done, ..SendParams::default() };
                    match data {
                        Data::Bytes(at, len) => ep.ep.send_raw(at, len, &params),
                        ref other => ep.ep.send_layout_raw(other.layout(&other.single()), &params),
                    }
                })
            }
        })?
    };
    started().unwrap_or_else(StatusPtr::error)
}

/// Sends contiguous data within the call, or nothing (`UCP_OP_ATTR_FLAG_FORCE_IMM_CMPL`).
/// # Safety
/// The data can be read during the call.
unsafe fn send_now(
    ep: &Ep,
    (buffer, count): (*const c_void, usize),
    tag: u64,
    call: &Call,
) -> Result<StatusPtr, Status> {
    // SAFETY: this function's contract.
    let Data::Bytes(at, len) = (unsafe { Data::contiguous(buffer, count, call.datatype()) })? else {
        return Err(Status::NoResource);
    };
    // SAFETY: as above.
    let sent = ep.worker().inside(|_| unsafe { ucp::send_now_raw(&ep.ep, tag, at, len) })?;
    if sent { Ok(StatusPtr::OK) } else { Err(Status::NoResource) }
}

/// Starts a receive: of a message that has not come at once, others by `any`. Nothing is checked: `is_on` was
/// false. // HOT
/// # Safety
/// `worker` is null or live, `param` as for [`Call::quick`], and the buffer can be written until the receive
/// has ended.
#[inline(always)]
unsafe fn recv(
    worker: *mut Worker,
    (buffer, count): (*mut c_void, usize),
    (tag, mask): (u64, u64),
    param: *const RequestParam,
    any: impl FnOnce() -> StatusPtr,
) -> StatusPtr {
    // SAFETY: this function's contract.
    if let Some(call) = unsafe { Call::quick(param) }
        && let Some(len) = call.plain_len(buffer, count, UNUSUAL_RECV | REMOTE_LIST | op_attr::FORCE_IMM_CMPL)
        // SAFETY: as above.
        && let Ok(of) = unsafe { given(worker) }
        && let Some(plain) = of.plain()
        // SAFETY: as above.
        && let Some(request) = unsafe { post(of, plain, (buffer, len), (tag, mask), &call) }
    {
        of.wake_sleepers();
        return request;
    }
    any()
}

/// Posts a receive of a message that has not come. `None`: nothing has happened. // HOT
/// # Safety
/// The buffer can be written until the receive has ended.
#[inline(always)]
unsafe fn post(
    worker: &Worker,
    plain: &ucp::Worker,
    (buffer, len): (*mut c_void, usize),
    (tag, mask): (u64, u64),
    call: &Call,
) -> Option<StatusPtr> {
    let callback = call.callback();
    let done = call.done::<TagRecv>(callback);
    let matching = Match::tagged(tag, mask);
    // SAFETY: this function's contract; the callback is valid as long.
    let id = unsafe { ucp::post_recv_raw(plain, buffer.cast(), len, matching, done) }?;
    Some(StatusPtr(set_words_unchecked(id, worker, callback)))
}

/// Receives a message that has arrived, of whose end nobody wants to be told. `None`: nothing was received.
/// Only exact tags are searched: for a partial mask the caller takes the general way. // HOT
/// # Safety
/// The buffer can be written during the call.
#[inline(always)]
unsafe fn take_arrived(
    plain: &ucp::Worker,
    (buffer, len): (*mut c_void, usize),
    (tag, mask): (u64, u64),
    call: &Call,
) -> Option<StatusPtr> {
    if call.tells_end_in_call() || mask != TAG_MASK_FULL {
        return None;
    }
    // SAFETY: this function's contract.
    unsafe { ucp::recv_arrived_raw(plain, buffer.cast(), len, Match::tagged(tag, mask)) }
        .map(|_| StatusPtr::OK)
}

/// [`ucp_tag_recv_nbx`] of what is not posted at once, is checked, or needs the lock of the worker. Its
/// arguments stay in registers. // HOT
/// # Safety
/// As for [`ucp_tag_recv_nbx`].
#[inline(never)]
unsafe fn recv_nbx_any(
    worker: *mut Worker,
    buffer: *mut c_void,
    count: usize,
    tag: u64,
    mask: u64,
    param: *const RequestParam,
) -> StatusPtr {
    if is_on() {
        // SAFETY: this function's contract.
        unsafe { enter("ucp_tag_recv_nbx", &[argument!(worker), argument!(param)]) };
    // SAFETY: this function's contract.
    } else if let Some(call) = unsafe { Call::quick(param) }
        && let Some(len) = call.plain_len(buffer, count, UNUSUAL_RECV | REMOTE_LIST | op_attr::FORCE_IMM_CMPL)
        // SAFETY: as above.
        && let Ok(of) = unsafe { given(worker) }
    {
        let begun = match of.plain() {
            // It was not posted, as a message waits.
            // SAFETY: as above.
            Some(plain) => unsafe { take_arrived(plain, (buffer, len), (tag, mask), &call) },
            None => {
                let begin = |plain: &_| {
                    // SAFETY: as above.
                    unsafe { post(of, plain, (buffer, len), (tag, mask), &call) }
                        // SAFETY: as above.
                        .or_else(|| unsafe { take_arrived(plain, (buffer, len), (tag, mask), &call) })
                };
                of.locked(begin).flatten()
            }
        };
        if let Some(begun) = begun {
            return begun;
        }
    }
    // SAFETY: this function's contract.
    match unsafe { Call::read_any(param) } {
        // SAFETY: as above.
        Ok(call) => unsafe { recv_any(worker, (buffer, count), (tag, mask), &call) },
        Err(status) => StatusPtr::error(status),
    }
}

/// A receive of the old interface.
/// # Safety
/// As for [`recv`].
#[inline(always)]
unsafe fn recv_old(
    worker: *mut Worker,
    (buffer, count): (*mut c_void, usize),
    (tag, mask): (u64, u64),
    param: &RequestParam,
) -> StatusPtr {
    // SAFETY: this function's contract.
    let any = || unsafe { recv_any(worker, (buffer, count), (tag, mask), &Call::of(param)) };
    if is_on() {
        return any();
    }
    // SAFETY: as above.
    unsafe { recv(worker, (buffer, count), (tag, mask), param, any) }
}

/// Starts a receive.
/// # Safety
/// `worker` is null or live, and the buffer can be written until the receive has ended.
#[inline(never)]
unsafe fn recv_any(
    worker: *mut Worker,
    (buffer, count): (*mut c_void, usize),
    (tag, mask): (u64, u64),
    call: &Call,
) -> StatusPtr {
    let started = || {
        // SAFETY: this function's contract.
        let worker = unsafe { given(worker) }?;
        // SAFETY: as above.
        let data = unsafe { Data::new(buffer, count, call.datatype(), Use::Unpack) }?;
        let truncated = Cell::new(NOTHING);
        worker.inside(|plain| {
            let matching = Match::tagged(tag, mask);
            if call.must_end() && (call.always_request() || !ucp::has_whole_message(plain, matching)) {
                return Err(Status::NoResource);
            }
            // SAFETY: as above: buffer and callback stay valid until the end.
            unsafe {
                run::<TagRecv, _>(worker, plain, call, Some(&truncated), |done| {
                    let params = OpParams { done, mem: call.mem(), truncated: Some(&truncated) };
                    match data {
                        Data::Bytes(at, len) => plain.recv_raw(at, len, matching, &params),
                        ref other => plain.recv_layout_raw(other.layout(&other.single()), matching, &params),
                    }
                })
            }
        })?
    };
    started().unwrap_or_else(StatusPtr::error)
}

/// Receives a message that a probe has taken: `ucp_tag_message_h`.
/// # Safety
/// `worker` is null or live. `message` is null, or a result of `ucp_tag_probe_nb` that has not been received.
/// The buffer can be written until the receive has ended.
unsafe fn recv_message(
    worker: *mut Worker,
    (buffer, count): (*mut c_void, usize),
    message: *mut Message,
    call: &Call,
) -> Result<StatusPtr, Status> {
    // SAFETY: this function's contract.
    let worker = unsafe { given(worker) }?;
    if message.is_null() || message == not_taken() {
        return Err(invalid("the message is null, or its probe has not removed it"));
    }
    // SAFETY: this function's contract.
    let data = unsafe { Data::new(buffer, count, call.datatype(), Use::Unpack) }?;
    let (truncated, refused) = (Cell::new(NOTHING), Cell::new(true));
    worker.inside(|plain| {
        // SAFETY: as above: buffer and callback stay valid until the end. Nobody else has the message.
        let received = unsafe {
            run::<TagRecv, _>(worker, plain, call, Some(&truncated), |done| {
                let params = OpParams { done, mem: call.mem(), truncated: Some(&truncated) };
                let started = match data {
                    Data::Bytes(at, len) => (*message).recv_raw(at, len, &params),
                    ref other => (*message).recv_layout_raw(other.layout(&other.single()), &params),
                };
                refused.set(started.as_ref().is_err_and(|error| error.keeps_message()));
                started
            })
        };
        if !refused.get() {
            // SAFETY: as above: the program does not use it any more.
            drop(unsafe { take(message) });
        }
        received
    })?
}

/// Result of a probe that leaves the message in the queue: not null, and nothing to receive.
fn not_taken() -> *mut Message {
    static MARK: u64 = 0;
    std::ptr::from_ref(&MARK).cast_mut().cast()
}

/// Sends a tagged message. // HOT
/// # Safety
/// `ep` is null or live, `param` as for [`Call::quick`], and the data can be read until the send has ended.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ucp_tag_send_nbx(
    ep: *mut Ep,
    buffer: *const c_void,
    count: usize,
    tag: u64,
    param: *const RequestParam,
) -> StatusPtr {
    guard("ucp_tag_send_nbx", || {
        let args = SendArgs { ep, buffer, count, tag, param };
        // SAFETY: this function's contract.
        let any = || unsafe { send_nbx_any(&args) };
        // In this order: the load between them keeps the compiler from joining the conditions.
        if param.is_null() || is_on() {
            return Ok(any());
        }
        // SAFETY: this function's contract.
        Ok(unsafe { send(ep, (buffer, count), tag, param, any) })
    })
}

/// Receives a tagged message. // HOT
/// # Safety
/// `worker` is null or live, `param` as for [`Call::quick`], and the buffer can be written until the receive
/// has ended.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ucp_tag_recv_nbx(
    worker: *mut Worker,
    buffer: *mut c_void,
    count: usize,
    tag: u64,
    mask: u64,
    param: *const RequestParam,
) -> StatusPtr {
    guard("ucp_tag_recv_nbx", || {
        // SAFETY: this function's contract.
        let any = || unsafe { recv_nbx_any(worker, buffer, count, tag, mask, param) };
        if param.is_null() || is_on() {
            return Ok(any());
        }
        // SAFETY: this function's contract.
        Ok(unsafe { recv(worker, (buffer, count), (tag, mask), param, any) })
    })
}

entry! {
    /// Sends a tagged message, complete when it has been matched.
    fn ucp_tag_send_sync_nbx(
        ep: *mut Ep, buffer: *const c_void, count: usize, tag: u64, param: *const RequestParam,
    ) -> StatusPtr {
        // SAFETY: the caller's contract.
        Ok(unsafe { send_any(ep, (buffer, count), (tag, Sync::Yes), &Call::read(param)?) })
    }

    /// Sends a tagged message; old form.
    fn ucp_tag_send_nb(
        ep: *mut Ep, buffer: *const c_void, count: usize, datatype: u64, tag: u64, cb: *const c_void,
    ) -> StatusPtr {
        let param = RequestParam::old(cb, datatype);
        // SAFETY: the caller's contract.
        let any = || unsafe { send_any(ep, (buffer, count), (tag, Sync::No), &Call::of(&param)) };
        // SAFETY: as above.
        Ok(unsafe { send(ep, (buffer, count), tag, &param, any) })
    }

    /// Sends a synchronous tagged message; old form.
    fn ucp_tag_send_sync_nb(
        ep: *mut Ep, buffer: *const c_void, count: usize, datatype: u64, tag: u64, cb: *const c_void,
    ) -> StatusPtr {
        let param = RequestParam::old(cb, datatype);
        // SAFETY: the caller's contract.
        Ok(unsafe { send_any(ep, (buffer, count), (tag, Sync::Yes), &Call::of(&param)) })
    }

    /// Sends a tagged message with a request in memory of the caller. // HOT
    fn ucp_tag_send_nbr(
        ep: *mut Ep, buffer: *const c_void, count: usize, datatype: u64, tag: u64, request: *mut c_void,
    ) -> CStatus {
        if request.is_null() {
            return Err(invalid("ucp_tag_send_nbr: the request is null"));
        }
        let param = RequestParam::in_request(request, datatype);
        // SAFETY: the caller's contract.
        let any = || unsafe { send_any(ep, (buffer, count), (tag, Sync::No), &Call::of(&param)) };
        // SAFETY: as above.
        let started = unsafe { send(ep, (buffer, count), tag, &param, any) };
        match started.status() {
            None => Err(Status::InProgress),
            Some(status) => as_result(status),
        }
    }

    /// Receives a tagged message; old form, which always returns a request.
    fn ucp_tag_recv_nb(
        worker: *mut Worker,
        buffer: *mut c_void,
        count: usize,
        datatype: u64,
        tag: u64,
        mask: u64,
        cb: *const c_void,
    ) -> StatusPtr {
        let param = RequestParam::old(cb, datatype).and(op_attr::NO_IMM_CMPL);
        // SAFETY: the caller's contract.
        Ok(unsafe { recv_old(worker, (buffer, count), (tag, mask), &param) })
    }

    /// Receives a tagged message with a request in memory of the caller, which tells the result.
    fn ucp_tag_recv_nbr(
        worker: *mut Worker,
        buffer: *mut c_void,
        count: usize,
        datatype: u64,
        tag: u64,
        mask: u64,
        request: *mut c_void,
    ) -> CStatus {
        if request.is_null() {
            return Err(invalid("ucp_tag_recv_nbr: the request is null"));
        }
        let param = RequestParam::in_request(request, datatype).and(op_attr::NO_IMM_CMPL);
        // SAFETY: the caller's contract.
        let started = unsafe { recv_old(worker, (buffer, count), (tag, mask), &param) };
        started.status().map_or(Ok(()), as_result)
    }

    /// Finds an unexpected message, and takes it out of the queue if `remove` is not 0.
    fn ucp_tag_probe_nb(
        worker: *mut Worker, tag: u64, mask: u64, remove: c_int, info: OutPtr<TagInfo>,
    ) -> *mut Message {
        let matching = Match::tagged(tag, mask);
        // SAFETY: the caller's contract.
        let (message, found) = unsafe { given(worker) }?.inside(|plain| match remove {
            0 => (not_taken(), plain.probe(matching)),
            _ => match plain.mprobe(matching) {
                Some(message) => {
                    let found = message.envelope();
                    (into_handle(message), Some(found))
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

    /// Receives a message that a probe has taken; old form, which always returns a request.
    fn ucp_tag_msg_recv_nb(
        worker: *mut Worker,
        buffer: *mut c_void,
        count: usize,
        datatype: u64,
        message: *mut Message,
        cb: *const c_void,
    ) -> StatusPtr {
        let param = RequestParam::old(cb, datatype).and(op_attr::NO_IMM_CMPL);
        // SAFETY: the caller's contract.
        unsafe { recv_message(worker, (buffer, count), message, &Call::of(&param)) }
    }

    /// Receives a message that a probe has taken.
    fn ucp_tag_msg_recv_nbx(
        worker: *mut Worker, buffer: *mut c_void, count: usize, message: *mut Message, param: *const RequestParam,
    ) -> StatusPtr {
        // SAFETY: the caller's contract.
        unsafe { recv_message(worker, (buffer, count), message, &Call::read(param)?) }
    }
}
