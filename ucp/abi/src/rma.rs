//! Put and get.

use std::ffi::c_void;

use ::ucs::Status;
use ucp::{Error, Iov, OpStatus, RecvStatus, RemoteIov, RmaParams};

use crate::check::{argument, enter, is_on};
use crate::datatype::{Data, Use};
use crate::entry::{CStatus, StatusPtr, guard};
use crate::ep::Ep;
use crate::flush::wait;
use crate::handle::given;
use crate::op::{BYTES, Call, NoResult, UNUSUAL, UNUSUAL_NOW, let_run, run, run_plain};
use crate::rkey::Rkey;
use crate::types::RequestParam;

/// The bytes or pieces of an operation's data, which is no datatype of callbacks.
fn pieces_of<'a>(data: &Data, single: &'a [Iov; 1]) -> Result<&'a [Iov], Status> {
    match *data {
        Data::Bytes(..) => Ok(single),
        Data::Pieces(_, 0) => Ok(&[]),
        Data::Pieces(pieces, count) => {
            // SAFETY: the list is the caller's and valid during the call.
            Ok(unsafe { std::slice::from_raw_parts(pieces, count) })
        }
        Data::Generic(generic) => {
            // SAFETY: the state is not used afterwards.
            unsafe { (generic.ops.finish)(generic.state) };
            Err(Status::Unsupported)
        }
    }
}

/// Writes to mapped memory. False: nothing has happened, and [`put_later`] does it, or tells the
/// error. // HOT
#[inline(always)]
fn put_now(
    ep: *mut Ep,
    (buffer, count): (*const c_void, usize),
    (remote, rkey): (u64, *mut Rkey),
    call: &Call,
) -> bool {
    let Some(len) = call.plain_len(buffer, count, UNUSUAL_NOW) else { return false };
    // SAFETY: handles that are not null are valid, by the contract of each function of the interface.
    let (Some(ep), Some(rkey)) = (unsafe { ep.as_ref() }, unsafe { rkey.as_ref() }) else { return false };
    // SAFETY: the caller passes readable bytes.
    ep.worker().plain().is_some()
        && unsafe { ucp::put_now_raw(&ep.ep, buffer.cast(), len, remote, &rkey.rkey) }
}

/// Starts a put that does not end at once.
#[inline(never)]
fn put_later(
    ep: *mut Ep,
    (buffer, count): (*const c_void, usize),
    (remote, rkey): (u64, *mut Rkey),
    call: &Call,
) -> Result<StatusPtr, Status> {
    let (ep, rkey) = (given(ep)?, &given(rkey)?.rkey);
    if let Some(len) = call.plain_len(buffer, count, UNUSUAL)
        && let Some(plain) = ep.worker().unlocked()
    {
        return run_plain::<NoResult, _>(ep.worker(), &plain, call, None, |done| {
            let params = RmaParams { done, ..RmaParams::default() };
            // SAFETY: the caller keeps buffer and callback valid until the end.
            unsafe { ep.ep.put_raw(buffer.cast(), len, remote, rkey, &params) }
        });
    }
    put_any(ep, (buffer, count), (remote, rkey), call)
}

/// Writes to a peer's memory.
#[inline(always)]
fn put(
    ep: *mut Ep,
    data: (*const c_void, usize),
    target: (u64, *mut Rkey),
    call: &Call,
) -> Result<StatusPtr, Status> {
    if put_now(ep, data, target, call) { Ok(StatusPtr::OK) } else { put_later(ep, data, target, call) }
}

/// [`ucp_put_nbx`] of what does not end at once, or is checked. Its arguments stay in registers.
#[inline(never)]
fn put_nbx_later(
    ep: *mut Ep,
    buffer: *const c_void,
    count: usize,
    remote: u64,
    rkey: *mut Rkey,
    param: *const RequestParam,
) -> StatusPtr {
    if is_on() {
        enter("ucp_put_nbx", &[argument!(ep), argument!(buffer), argument!(rkey), argument!(param)]);
    }
    let started = Call::read(param).and_then(|call| put_later(ep, (buffer, count), (remote, rkey), &call));
    started.unwrap_or_else(StatusPtr::error)
}

/// Starts a put.
#[inline(never)]
fn put_any(
    ep: &Ep,
    (buffer, count): (*const c_void, usize),
    (remote, rkey): (u64, &ucp::Rkey),
    call: &Call,
) -> Result<StatusPtr, Status> {
    let data = Data::new(buffer, count, call.datatype(), Use::Pack)?;
    let worker = ep.worker();
    let single = data.single();
    let pieces = pieces_of(&data, &single)?;
    worker.inside(|plain| {
        // SAFETY: the caller keeps buffer and callback valid until the end.
        unsafe {
            run::<NoResult, _>(worker, plain, call, None, |done| {
                let params = RmaParams { done, mem: call.mem(), ..RmaParams::default() };
                match pieces {
                    [one] => ep.ep.put_raw(one.addr, one.len, remote, rkey, &params),
                    [] => Ok(OpStatus::Done(())),
                    list => ep.ep.put_iov_raw(list, &[remote_iov(list, remote, rkey)], &params),
                }
            })
        }
    })?
}

/// Reads mapped memory. False: nothing has happened, and [`get_later`] does it, or tells the
/// error. // HOT
#[inline(always)]
fn get_now(
    ep: *mut Ep,
    (buffer, count): (*mut c_void, usize),
    (remote, rkey): (u64, *mut Rkey),
    call: &Call,
) -> bool {
    let Some(len) = call.plain_len(buffer, count, UNUSUAL_NOW) else { return false };
    // SAFETY: handles that are not null are valid, by the contract of each function of the interface.
    let (Some(ep), Some(rkey)) = (unsafe { ep.as_ref() }, unsafe { rkey.as_ref() }) else { return false };
    // SAFETY: the caller passes writable bytes.
    ep.worker().plain().is_some()
        && unsafe { ucp::get_now_raw(&ep.ep, buffer.cast(), len, remote, &rkey.rkey) }
}

/// Starts a get that does not end at once.
#[inline(never)]
fn get_later(
    ep: *mut Ep,
    (buffer, count): (*mut c_void, usize),
    (remote, rkey): (u64, *mut Rkey),
    call: &Call,
) -> Result<StatusPtr, Status> {
    let (ep, rkey) = (given(ep)?, &given(rkey)?.rkey);
    if let Some(len) = call.plain_len(buffer, count, UNUSUAL)
        && let Some(plain) = ep.worker().unlocked()
    {
        return run_plain::<NoResult, _>(ep.worker(), &plain, call, None, |done| {
            let params = RmaParams { done, ..RmaParams::default() };
            // SAFETY: the caller keeps buffer and callback valid until the end.
            unsafe { ep.ep.get_raw(buffer.cast(), len, remote, rkey, &params) }
        });
    }
    get_any(ep, (buffer, count), (remote, rkey), call)
}

/// Reads a peer's memory.
#[inline(always)]
fn get(
    ep: *mut Ep,
    data: (*mut c_void, usize),
    target: (u64, *mut Rkey),
    call: &Call,
) -> Result<StatusPtr, Status> {
    if get_now(ep, data, target, call) { Ok(StatusPtr::OK) } else { get_later(ep, data, target, call) }
}

/// [`ucp_get_nbx`] of what does not end at once, or is checked. Its arguments stay in registers.
#[inline(never)]
fn get_nbx_later(
    ep: *mut Ep,
    buffer: *mut c_void,
    count: usize,
    remote: u64,
    rkey: *mut Rkey,
    param: *const RequestParam,
) -> StatusPtr {
    if is_on() {
        enter("ucp_get_nbx", &[argument!(ep), argument!(buffer), argument!(rkey), argument!(param)]);
    }
    let started = Call::read(param).and_then(|call| get_later(ep, (buffer, count), (remote, rkey), &call));
    started.unwrap_or_else(StatusPtr::error)
}

/// Starts a get.
#[inline(never)]
fn get_any(
    ep: &Ep,
    (buffer, count): (*mut c_void, usize),
    (remote, rkey): (u64, &ucp::Rkey),
    call: &Call,
) -> Result<StatusPtr, Status> {
    let data = Data::new(buffer, count, call.datatype(), Use::Unpack)?;
    let worker = ep.worker();
    let single = data.single();
    let pieces = pieces_of(&data, &single)?;
    worker.inside(|plain| {
        // SAFETY: the caller keeps buffer and callback valid until the end.
        unsafe {
            run::<NoResult, _>(worker, plain, call, None, |done| -> Result<OpStatus<RecvStatus>, Error> {
                let params = RmaParams { done, mem: call.mem(), ..RmaParams::default() };
                match pieces {
                    [one] => ep.ep.get_raw(one.addr, one.len, remote, rkey, &params),
                    [] => Ok(OpStatus::Done(crate::op::NOTHING)),
                    list => ep.ep.get_iov_raw(list, &[remote_iov(list, remote, rkey)], &params),
                }
            })
        }
    })?
}

fn remote_iov<'a>(list: &[Iov], addr: u64, rkey: &'a ucp::Rkey) -> RemoteIov<'a> {
    RemoteIov { addr, len: list.iter().map(|piece| piece.len).fold(0, usize::saturating_add), rkey }
}

/// Parameters of an operation on bytes without a callback.
const NO_CALLBACK: RequestParam = RequestParam::old(std::ptr::null(), BYTES);

#[inline(always)]
fn bytes_param(cb: *const c_void) -> RequestParam {
    RequestParam::old(cb, BYTES)
}

/// Result of a call whose operation a flush completes.
fn without_request(started: StatusPtr) -> Result<(), Status> {
    if let_run(started)? { Err(Status::InProgress) } else { Ok(()) }
}

/// Writes to a peer's memory. // HOT
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ucp_put_nbx(
    ep: *mut Ep,
    buffer: *const c_void,
    count: usize,
    remote: u64,
    rkey: *mut Rkey,
    param: *const RequestParam,
) -> StatusPtr {
    guard("ucp_put_nbx", || {
        if !param.is_null()
            && !is_on()
            && let Some(call) = Call::quick(param)
            && put_now(ep, (buffer, count), (remote, rkey), &call)
        {
            return Ok(StatusPtr::OK);
        }
        Ok(put_nbx_later(ep, buffer, count, remote, rkey, param))
    })
}

/// Reads from a peer's memory. // HOT
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ucp_get_nbx(
    ep: *mut Ep,
    buffer: *mut c_void,
    count: usize,
    remote: u64,
    rkey: *mut Rkey,
    param: *const RequestParam,
) -> StatusPtr {
    guard("ucp_get_nbx", || {
        if !param.is_null()
            && !is_on()
            && let Some(call) = Call::quick(param)
            && get_now(ep, (buffer, count), (remote, rkey), &call)
        {
            return Ok(StatusPtr::OK);
        }
        Ok(get_nbx_later(ep, buffer, count, remote, rkey, param))
    })
}

entry! {
    /// Writes to a peer's memory; old form.
    fn ucp_put_nb(
        ep: *mut Ep, buffer: *const c_void, len: usize, remote: u64, rkey: *mut Rkey, cb: *const c_void,
    ) -> StatusPtr {
        put(ep, (buffer, len), (remote, rkey), &Call::of(&bytes_param(cb)))
    }

    /// Writes to a peer's memory; a flush completes it. // HOT
    fn ucp_put_nbi(ep: *mut Ep, buffer: *const c_void, len: usize, remote: u64, rkey: *mut Rkey) -> CStatus {
        without_request(put(ep, (buffer, len), (remote, rkey), &Call::of(&NO_CALLBACK))?)
    }

    /// Writes to a peer's memory and waits.
    fn ucp_put(ep: *mut Ep, buffer: *const c_void, len: usize, remote: u64, rkey: *mut Rkey) -> CStatus {
        let started = put(ep, (buffer, len), (remote, rkey), &Call::of(&NO_CALLBACK))?;
        wait(given(ep)?.worker(), started)
    }

    /// Reads from a peer's memory; old form.
    fn ucp_get_nb(
        ep: *mut Ep, buffer: *mut c_void, len: usize, remote: u64, rkey: *mut Rkey, cb: *const c_void,
    ) -> StatusPtr {
        get(ep, (buffer, len), (remote, rkey), &Call::of(&bytes_param(cb)))
    }

    /// Reads from a peer's memory; a flush completes it.
    fn ucp_get_nbi(ep: *mut Ep, buffer: *mut c_void, len: usize, remote: u64, rkey: *mut Rkey) -> CStatus {
        without_request(get(ep, (buffer, len), (remote, rkey), &Call::of(&NO_CALLBACK))?)
    }

    /// Reads from a peer's memory and waits.
    fn ucp_get(ep: *mut Ep, buffer: *mut c_void, len: usize, remote: u64, rkey: *mut Rkey) -> CStatus {
        let started = get(ep, (buffer, len), (remote, rkey), &Call::of(&NO_CALLBACK))?;
        wait(given(ep)?.worker(), started)
    }
}
