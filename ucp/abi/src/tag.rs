//! Tagged messages: sends, receives, probes.

mod probe;

pub(crate) use probe::ProbedMessages;

use std::cell::Cell;
use std::ffi::c_void;
use std::ptr::NonNull;

use ::ucs::Status;
use ucp::select::DeliveryComplete;
use ucp::{Match, OpParams, SendParams, TAG_MASK_FULL};

use crate::check::{argument, enter, is_on};
use crate::datatype::{Data, Use};
use crate::entry::{CStatus, StatusPtr, guard, invalid};
use crate::ep::Ep;
use crate::handle::from_ptr;
use crate::op::{
    Call, NoResult, REMOTE_LIST, SLOW_PATH_RECV, SLOW_PATH_SEND, TagRecv, run, set_priv_unchecked,
};
use crate::request::as_result;
use crate::types::{RequestParam, op_attr};
use crate::worker::Worker;

/// Sends a message: a short one at once, others by `general`.
/// # Safety
/// `ep` is null or live, `plain` that of its worker in mode single, `param` as for [`Call::fast`], and the
/// data can be read during the call.
// HOT
#[inline(always)]
unsafe fn send(
    ep: *mut Ep,
    plain: Option<&ucp::Worker>,
    (buffer, count): (*const c_void, usize),
    tag: u64,
    param: *const RequestParam,
    general: impl FnOnce() -> StatusPtr,
) -> StatusPtr {
    // SAFETY: this function's contract.
    if let Some(call) = unsafe { Call::fast(param) }
        && let Some(len) = call.plain_len(buffer, count, SLOW_PATH_SEND | REMOTE_LIST)
        // SAFETY: as above.
        && let Ok(ep) = unsafe { from_ptr(ep) }
        // A callback may free the endpoint, and not the worker.
        && let worker = ep.worker()
        && let Some(plain) = plain
        // SAFETY: as above: the bytes are readable, and the endpoint is valid until a callback frees it.
        && unsafe { ucp::send_now_calling(plain, &raw const ep.ep, tag, buffer.cast(), len) }
    {
        worker.wake_sleepers();
        return StatusPtr::OK;
    }
    general()
}

/// The plain worker of an endpoint, in mode single.
/// # Safety
/// `ep` is null or live, and is not freed while the result is used.
// HOT
#[inline(always)]
unsafe fn plain_of<'a>(ep: *mut Ep) -> Option<&'a ucp::Worker> {
    // SAFETY: this function's contract.
    unsafe { ep.as_ref() }?.worker().plain()
}

/// [`ucp_tag_send_nbx`] in mode single, where nothing is checked.
/// # Safety
/// As for [`ucp_tag_send_nbx`]; `plain` is that of the endpoint's worker.
// HOT
#[inline(never)]
unsafe extern "C" fn send_nbx_single(
    ep: NonNull<Ep>,
    buffer: *const c_void,
    count: usize,
    tag: u64,
    param: NonNull<RequestParam>,
    plain: &ucp::Worker,
) -> StatusPtr {
    let (ep, param) = (ep.as_ptr(), param.as_ptr());
    guard("ucp_tag_send_nbx", || {
        // SAFETY: this function's contract.
        let general = || unsafe { send_nbx_general(ep, buffer, count, tag, param) };
        // SAFETY: as above.
        Ok(unsafe { send(ep, Some(plain), (buffer, count), tag, param, general) })
    })
}

/// General path of [`ucp_tag_send_nbx`]: for sends that do not complete at once, run under `UCX_CHECK=y`, or
/// need the worker's lock.
/// # Safety
/// As for [`ucp_tag_send_nbx`].
// HOT
#[inline(never)]
unsafe extern "C" fn send_nbx_general(
    ep: *mut Ep,
    buffer: *const c_void,
    count: usize,
    tag: u64,
    param: *const RequestParam,
) -> StatusPtr {
    guard("ucp_tag_send_nbx", || {
        if is_on() {
            // SAFETY: this function's contract.
            unsafe { enter("ucp_tag_send_nbx", &[argument!(ep), argument!(param)]) };
        }
        // SAFETY: this function's contract.
        if let Some(call) = unsafe { Call::fast(param) }
            && let Some(len) = call.plain_len(buffer, count, SLOW_PATH_SEND | REMOTE_LIST)
            // SAFETY: as above.
            && let Ok(ep) = unsafe { from_ptr(ep) }
            // SAFETY: as above: the bytes are readable.
            && ep.worker().locked(|_| unsafe { ucp::send_now_raw(&ep.ep, tag, buffer.cast(), len) }) == Some(true)
        {
            return Ok(StatusPtr::OK);
        }
        // SAFETY: this function's contract.
        let call = unsafe { Call::read_general(param) }?;
        // SAFETY: as above.
        Ok(unsafe { send_general(ep, (buffer, count), (tag, DeliveryComplete::No), &call) })
    })
}

/// Starts a send.
/// # Safety
/// `ep` is null or live, and the data can be read until the send has ended.
#[inline(never)]
unsafe fn send_general(
    ep: *mut Ep,
    (buffer, count): (*const c_void, usize),
    (tag, sync): (u64, DeliveryComplete),
    call: &Call,
) -> StatusPtr {
    let started = || {
        // SAFETY: this function's contract.
        let ep = unsafe { from_ptr(ep) }?;
        if call.must_complete_now() {
            // SAFETY: as above.
            return unsafe { send_now(ep, (buffer, count), tag, call) };
        }
        // SAFETY: as above.
        let data = unsafe { Data::new(buffer, count, call.datatype(), Use::Pack) }?;
        let worker = ep.worker();
        worker.with_worker(|plain| {
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
    let sent = ep.worker().with_worker(|_| unsafe { ucp::send_now_raw(&ep.ep, tag, at, len) })?;
    if sent { Ok(StatusPtr::OK) } else { Err(Status::NoResource) }
}

/// Starts a receive: of a message that has not come at once, others by `general`. Nothing is checked:
/// `is_on` was false.
/// # Safety
/// `worker` is null or live, `param` as for [`Call::fast`], and the buffer can be written until the receive
/// has ended.
// HOT
#[inline(always)]
unsafe fn recv(
    worker: *mut Worker,
    (buffer, count): (*mut c_void, usize),
    (tag, mask): (u64, u64),
    param: *const RequestParam,
    general: impl FnOnce() -> StatusPtr,
) -> StatusPtr {
    // SAFETY: this function's contract.
    if let Some(call) = unsafe { Call::fast(param) }
        && let Some(len) = call.plain_len(buffer, count, SLOW_PATH_RECV | REMOTE_LIST | op_attr::FORCE_IMM_CMPL)
        // SAFETY: as above.
        && let Ok(of) = unsafe { from_ptr(worker) }
        && let Some(plain) = of.plain()
        // SAFETY: as above.
        && let Some(request) = unsafe { post(of, plain, (buffer, len), (tag, mask), &call) }
    {
        of.wake_sleepers();
        return request;
    }
    general()
}

/// Posts a receive of a message that has not come. `None`: nothing has happened.
/// # Safety
/// The buffer can be written until the receive has ended.
// HOT
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
    Some(StatusPtr(set_priv_unchecked(id, worker, callback)))
}

/// Receives a message that has arrived, of whose end nobody wants to be told. `None`: nothing was received.
/// Only exact tags are searched: for a partial mask the caller takes the general path.
/// # Safety
/// The buffer can be written during the call.
// HOT
#[inline(always)]
unsafe fn take_arrived(
    plain: &ucp::Worker,
    (buffer, len): (*mut c_void, usize),
    (tag, mask): (u64, u64),
    call: &Call,
) -> Option<StatusPtr> {
    if call.reports_immediate_completion() || mask != TAG_MASK_FULL {
        return None;
    }
    // SAFETY: this function's contract.
    unsafe { ucp::recv_arrived_raw(plain, buffer.cast(), len, Match::tagged(tag, mask)) }
        .map(|_| StatusPtr::OK)
}

/// [`post`] with a request in memory of the caller.
/// # Safety
/// As for [`post`].
// HOT
#[inline(never)]
unsafe fn post_in_request(
    worker: &Worker,
    plain: &ucp::Worker,
    (buffer, len): (*mut c_void, usize),
    (tag, mask): (u64, u64),
    call: Call,
) -> Option<StatusPtr> {
    let memory = call.request_memory()?;
    // SAFETY: this function's contract.
    let post = || unsafe { post(worker, plain, (buffer, len), (tag, mask), &call) };
    // SAFETY: the caller has `REQUEST_SIZE` bytes there for this operation.
    unsafe { plain.with_request_memory(memory, post) }
}

/// [`ucp_tag_recv_nbx`] in mode single, where nothing is checked.
/// # Safety
/// As for [`ucp_tag_recv_nbx`].
// HOT
#[inline(never)]
unsafe extern "C" fn recv_nbx_single(
    worker: NonNull<Worker>,
    buffer: *mut c_void,
    count: usize,
    tag: u64,
    mask: u64,
    param: NonNull<RequestParam>,
) -> StatusPtr {
    let (worker, param) = (worker.as_ptr(), param.as_ptr());
    guard("ucp_tag_recv_nbx", || {
        // SAFETY: this function's contract.
        let general = || unsafe { recv_nbx_general(worker, buffer, count, tag, mask, param) };
        // SAFETY: as above.
        Ok(unsafe { recv(worker, (buffer, count), (tag, mask), param, general) })
    })
}

/// [`ucp_tag_recv_nbx`] of what is not posted at once, is checked, or needs the lock of the worker. Its
/// arguments stay in registers.
/// # Safety
/// As for [`ucp_tag_recv_nbx`].
// HOT
#[inline(never)]
unsafe extern "C" fn recv_nbx_general(
    worker: *mut Worker,
    buffer: *mut c_void,
    count: usize,
    tag: u64,
    mask: u64,
    param: *const RequestParam,
) -> StatusPtr {
    guard("ucp_tag_recv_nbx", || {
        const SLOW_PATH: u32 = SLOW_PATH_RECV & !op_attr::REQUEST | REMOTE_LIST | op_attr::FORCE_IMM_CMPL;
        if is_on() {
            // SAFETY: this function's contract.
            unsafe { enter("ucp_tag_recv_nbx", &[argument!(worker), argument!(param)]) };
        // SAFETY: this function's contract.
        } else if let Some(call) = unsafe { Call::fast(param) }
            && let Some(len) = call.plain_len(buffer, count, SLOW_PATH)
            // SAFETY: as above.
            && let Ok(of) = unsafe { from_ptr(worker) }
        {
            let begin = |plain: &_| {
                if call.mask() & op_attr::REQUEST != 0 {
                    // SAFETY: as above.
                    return unsafe { post_in_request(of, plain, (buffer, len), (tag, mask), call) };
                }
                // SAFETY: as above.
                unsafe { post(of, plain, (buffer, len), (tag, mask), &call) }
                    // SAFETY: as above.
                    .or_else(|| unsafe { take_arrived(plain, (buffer, len), (tag, mask), &call) })
            };
            let begun = match of.plain() {
                // It was not posted, as a message waits.
                Some(plain) if call.mask() & op_attr::REQUEST == 0 => {
                    // SAFETY: as above.
                    unsafe { take_arrived(plain, (buffer, len), (tag, mask), &call) }
                }
                _ => of.try_with_worker(begin).flatten(),
            };
            if let Some(begun) = begun {
                return Ok(begun);
            }
        }
        // SAFETY: this function's contract.
        let call = unsafe { Call::read_general(param) }?;
        // SAFETY: as above.
        Ok(unsafe { recv_general(worker, (buffer, count), (tag, mask), &call) })
    })
}

/// A receive of the deprecated interface.
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
    let general = || unsafe { recv_general(worker, (buffer, count), (tag, mask), &Call::of(param)) };
    if is_on() {
        return general();
    }
    // SAFETY: as above.
    unsafe { recv(worker, (buffer, count), (tag, mask), param, general) }
}

/// Starts a receive.
/// # Safety
/// `worker` is null or live, and the buffer can be written until the receive has ended.
#[inline(never)]
unsafe fn recv_general(
    worker: *mut Worker,
    (buffer, count): (*mut c_void, usize),
    (tag, mask): (u64, u64),
    call: &Call,
) -> StatusPtr {
    let started = || {
        // SAFETY: this function's contract.
        let worker = unsafe { from_ptr(worker) }?;
        // SAFETY: as above.
        let data = unsafe { Data::new(buffer, count, call.datatype(), Use::Unpack) }?;
        let truncated = Cell::new(ucp::RecvStatus::EMPTY);
        worker.with_worker(|plain| {
            let matching = Match::tagged(tag, mask);
            if call.must_complete_now() && (call.always_request() || !ucp::has_whole_message(plain, matching))
            {
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

/// Sends a tagged message.
/// # Safety
/// `ep` is null or live, `param` as for [`Call::fast`], and the data can be read until the send has ended.
// HOT
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ucp_tag_send_nbx(
    ep: *mut Ep,
    buffer: *const c_void,
    count: usize,
    tag: u64,
    param: *const RequestParam,
) -> StatusPtr {
    if let (Some(of), Some(call)) = (NonNull::new(ep), NonNull::new(param.cast_mut()))
        && !is_on()
        // SAFETY: this function's contract.
        && let Some(plain) = unsafe { of.as_ref() }.worker().plain()
    {
        // SAFETY: as above.
        return unsafe { send_nbx_single(of, buffer, count, tag, call, plain) };
    }
    // SAFETY: as above.
    unsafe { send_nbx_general(ep, buffer, count, tag, param) }
}

/// Receives a tagged message.
/// # Safety
/// `worker` is null or live, `param` as for [`Call::fast`], and the buffer can be written until the receive
/// has ended.
// HOT
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ucp_tag_recv_nbx(
    worker: *mut Worker,
    buffer: *mut c_void,
    count: usize,
    tag: u64,
    mask: u64,
    param: *const RequestParam,
) -> StatusPtr {
    if let (Some(of), Some(call)) = (NonNull::new(worker), NonNull::new(param.cast_mut()))
        && !is_on()
        // SAFETY: this function's contract.
        && unsafe { of.as_ref() }.plain().is_some()
    {
        // SAFETY: as above.
        return unsafe { recv_nbx_single(of, buffer, count, tag, mask, call) };
    }
    // SAFETY: as above.
    unsafe { recv_nbx_general(worker, buffer, count, tag, mask, param) }
}

entry! {
    /// Sends a tagged message, complete when it has been matched.
    fn ucp_tag_send_sync_nbx(
        ep: *mut Ep, buffer: *const c_void, count: usize, tag: u64, param: *const RequestParam,
    ) -> StatusPtr {
        // SAFETY: the caller's contract.
        Ok(unsafe { send_general(ep, (buffer, count), (tag, DeliveryComplete::Yes), &Call::read(param)?) })
    }

    /// Sends a tagged message; deprecated (`ucp_compat.h`).
    fn ucp_tag_send_nb(
        ep: *mut Ep, buffer: *const c_void, count: usize, datatype: u64, tag: u64, cb: *const c_void,
    ) -> StatusPtr {
        let param = RequestParam::old(cb, datatype);
        // SAFETY: the caller's contract.
        let general = || unsafe { send_general(ep, (buffer, count), (tag, DeliveryComplete::No), &Call::of(&param)) };
        // SAFETY: as above.
        let plain = unsafe { plain_of(ep) };
        // SAFETY: as above.
        Ok(unsafe { send(ep, plain, (buffer, count), tag, &param, general) })
    }

    /// Sends a synchronous tagged message; deprecated (`ucp_compat.h`).
    fn ucp_tag_send_sync_nb(
        ep: *mut Ep, buffer: *const c_void, count: usize, datatype: u64, tag: u64, cb: *const c_void,
    ) -> StatusPtr {
        let param = RequestParam::old(cb, datatype);
        // SAFETY: the caller's contract.
        Ok(unsafe { send_general(ep, (buffer, count), (tag, DeliveryComplete::Yes), &Call::of(&param)) })
    }

    /// Sends a tagged message with a request in memory of the caller.
    // HOT
    fn ucp_tag_send_nbr(
        ep: *mut Ep, buffer: *const c_void, count: usize, datatype: u64, tag: u64, request: *mut c_void,
    ) -> CStatus {
        if request.is_null() {
            return Err(invalid("ucp_tag_send_nbr: the request is null"));
        }
        let param = RequestParam::in_request(request, datatype);
        // SAFETY: the caller's contract.
        let general = || unsafe { send_general(ep, (buffer, count), (tag, DeliveryComplete::No), &Call::of(&param)) };
        // SAFETY: as above.
        let plain = unsafe { plain_of(ep) };
        // SAFETY: as above.
        let started = unsafe { send(ep, plain, (buffer, count), tag, &param, general) };
        match started.status() {
            None => Err(Status::InProgress),
            Some(status) => as_result(status),
        }
    }

    /// Receives a tagged message; deprecated (`ucp_compat.h`), which always returns a request.
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
}
