//! Put and get.

use std::ffi::c_void;

use ::ucs::Status;
use ucp::{Error, Iov, OpStatus, RecvStatus, RemoteIov, RmaParams, RmaPiece};

use crate::check::{argument, enter, is_on};
use crate::datatype::{Data, Use};
use crate::entry::{CStatus, StatusPtr, guard};
use crate::ep::Ep;
use crate::flush::wait;
use crate::handle::from_ptr;
use crate::op::{
    BYTES, Call, Message, NoResult, SLOW_PATH, SLOW_PATH_NOW, free_started, run, run_plain, target_now,
};
use crate::rkey::Rkey;
use crate::sgl::{List, is_list};
use crate::types::RequestParam;

/// The bytes or pieces of an operation's data, which is no datatype of callbacks.
/// # Safety
/// A list of the data is valid as long as the result is used.
unsafe fn pieces_of<'a>(data: &Data, single: &'a [Iov; 1]) -> Result<&'a [Iov], Status> {
    match *data {
        Data::Bytes(..) => Ok(single),
        Data::Pieces(_, 0) => Ok(&[]),
        Data::Pieces(pieces, count) => {
            // SAFETY: this function's contract.
            Ok(unsafe { std::slice::from_raw_parts(pieces, count) })
        }
        Data::Generic(_) => {
            tracing::error!("puts and gets take no datatype of callbacks");
            Err(Status::Unsupported)
        }
    }
}

/// Direction of an operation: the calls of `ucp` that carry it out.
trait Direction {
    /// Function of the interface that starts it.
    const FUNCTION: &'static str;
    /// Use of the caller's data.
    const USE: Use;
    /// Result of an operation that has ended.
    type Ended: Message;
    /// Result of an operation on no bytes.
    const NOTHING: Self::Ended;

    /// Copies `len` bytes between `buf` and mapped memory. False: nothing has happened.
    /// # Safety
    /// The bytes can be read, or written, during the call.
    unsafe fn now(ep: &ucp::Ep, buf: *mut u8, len: usize, target: (u64, &ucp::Rkey)) -> bool;

    /// Starts an operation on bytes.
    /// # Safety
    /// The bytes can be read, or written, and callback and memory are valid until the operation has ended.
    unsafe fn start(
        ep: &ucp::Ep,
        buf: *mut u8,
        len: usize,
        target: (u64, &ucp::Rkey),
        params: &RmaParams<'_>,
    ) -> Result<OpStatus<Self::Ended>, Error>;

    /// Starts an operation on pieces.
    /// # Safety
    /// As for [`Direction::start`], of each piece.
    unsafe fn start_list(
        ep: &ucp::Ep,
        list: &[Iov],
        remote: &RemoteIov<'_>,
        params: &RmaParams<'_>,
    ) -> Result<OpStatus<Self::Ended>, Error>;

    /// Copies all pieces of lists between mapped memory. False: nothing of a put has happened.
    /// # Safety
    /// As for [`Direction::now`], of each piece.
    unsafe fn lists_now<'a>(ep: &ucp::Ep, pieces: impl Iterator<Item = RmaPiece<'a>> + Clone) -> bool;

    /// Starts an operation on lists.
    /// # Safety
    /// As for [`Direction::start`], of each piece.
    unsafe fn start_lists<'a>(
        ep: &ucp::Ep,
        pieces: impl Iterator<Item = RmaPiece<'a>> + Clone,
        params: &RmaParams<'_>,
    ) -> Result<OpStatus<Self::Ended>, Error>;
}

/// Writes to a peer's memory.
struct Put;
/// Reads a peer's memory.
struct Get;

impl Direction for Put {
    const FUNCTION: &'static str = "ucp_put_nbx";
    const USE: Use = Use::Pack;
    type Ended = ();
    const NOTHING: () = ();

    // HOT
    #[inline(always)]
    unsafe fn now(ep: &ucp::Ep, buf: *mut u8, len: usize, (remote, rkey): (u64, &ucp::Rkey)) -> bool {
        // SAFETY: this function's contract.
        unsafe { ucp::put_now_raw(ep, buf, len, remote, rkey) }
    }

    #[inline(always)]
    unsafe fn start(
        ep: &ucp::Ep,
        buf: *mut u8,
        len: usize,
        (remote, rkey): (u64, &ucp::Rkey),
        params: &RmaParams<'_>,
    ) -> Result<OpStatus<()>, Error> {
        // SAFETY: this function's contract.
        unsafe { ep.put_raw(buf, len, remote, rkey, params) }
    }

    unsafe fn start_list(
        ep: &ucp::Ep,
        list: &[Iov],
        remote: &RemoteIov<'_>,
        params: &RmaParams<'_>,
    ) -> Result<OpStatus<()>, Error> {
        // SAFETY: as above.
        unsafe { ep.put_iov_raw(list, &[*remote], params) }
    }

    unsafe fn lists_now<'a>(ep: &ucp::Ep, pieces: impl Iterator<Item = RmaPiece<'a>> + Clone) -> bool {
        // SAFETY: as above.
        unsafe { ucp::put_list_now_raw(ep, pieces) }
    }

    unsafe fn start_lists<'a>(
        ep: &ucp::Ep,
        pieces: impl Iterator<Item = RmaPiece<'a>> + Clone,
        params: &RmaParams<'_>,
    ) -> Result<OpStatus<()>, Error> {
        // SAFETY: as above.
        unsafe { ucp::put_list_raw(ep, pieces, params) }
    }
}

impl Direction for Get {
    const FUNCTION: &'static str = "ucp_get_nbx";
    const USE: Use = Use::Unpack;
    type Ended = RecvStatus;
    const NOTHING: RecvStatus = RecvStatus::EMPTY;

    // HOT
    #[inline(always)]
    unsafe fn now(ep: &ucp::Ep, buf: *mut u8, len: usize, (remote, rkey): (u64, &ucp::Rkey)) -> bool {
        // SAFETY: this function's contract.
        unsafe { ucp::get_now_raw(ep, buf, len, remote, rkey) }
    }

    #[inline(always)]
    unsafe fn start(
        ep: &ucp::Ep,
        buf: *mut u8,
        len: usize,
        (remote, rkey): (u64, &ucp::Rkey),
        params: &RmaParams<'_>,
    ) -> Result<OpStatus<RecvStatus>, Error> {
        // SAFETY: this function's contract.
        unsafe { ep.get_raw(buf, len, remote, rkey, params) }
    }

    unsafe fn start_list(
        ep: &ucp::Ep,
        list: &[Iov],
        remote: &RemoteIov<'_>,
        params: &RmaParams<'_>,
    ) -> Result<OpStatus<RecvStatus>, Error> {
        // SAFETY: as above.
        unsafe { ep.get_iov_raw(list, &[*remote], params) }
    }

    unsafe fn lists_now<'a>(ep: &ucp::Ep, pieces: impl Iterator<Item = RmaPiece<'a>> + Clone) -> bool {
        // SAFETY: as above.
        unsafe { ucp::get_list_now_raw(ep, pieces) }
    }

    unsafe fn start_lists<'a>(
        ep: &ucp::Ep,
        pieces: impl Iterator<Item = RmaPiece<'a>> + Clone,
        params: &RmaParams<'_>,
    ) -> Result<OpStatus<RecvStatus>, Error> {
        // SAFETY: as above.
        unsafe { ucp::get_list_raw(ep, pieces, params) }
    }
}

/// Copies to or from mapped memory. False: nothing has happened, and [`later`] does it, or tells the
/// error.
/// # Safety
/// `ep` and `rkey` are null or live, and the buffer can be read, or written, during the call.
// HOT
#[inline(always)]
unsafe fn is_done_now<D: Direction>(
    ep: *mut Ep,
    (buffer, count): (*mut c_void, usize),
    (remote, rkey): (u64, *mut Rkey),
    call: &Call,
) -> bool {
    let Some(len) = call.plain_len(buffer, count, 0) else { return false };
    // SAFETY: this function's contract.
    let Some((ep, rkey)) = (unsafe { target_now(ep, rkey) }) else { return false };
    // SAFETY: as above.
    unsafe { D::now(ep, buffer.cast(), len, (remote, rkey)) }
}

/// Starts an operation that does not end at once, or needs the lock of its worker.
/// # Safety
/// `ep` and `rkey` are null or live, and the buffer can be read, or written, until the operation has ended.
#[inline(never)]
unsafe fn later<D: Direction>(
    ep: *mut Ep,
    (buffer, count): (*mut c_void, usize),
    (remote, rkey): (u64, *mut Rkey),
    call: &Call,
) -> Result<StatusPtr, Status> {
    // SAFETY: this function's contract.
    let (ep, rkey) = unsafe { (from_ptr(ep)?, &from_ptr(rkey)?.rkey) };
    let worker = ep.worker();
    if call.mask() & SLOW_PATH_NOW == 0
        && let Some(len) = call.plain_len(buffer, count, 0)
        // SAFETY: as above.
        && worker.locked(|_| unsafe { D::now(&ep.ep, buffer.cast(), len, (remote, rkey)) }) == Some(true)
    {
        return Ok(StatusPtr::OK);
    }
    if let Some(len) = call.plain_len(buffer, count, SLOW_PATH)
        && let Some(plain) = worker.unlocked()
    {
        return run_plain::<NoResult, _>(worker, &plain, call, None, |done| {
            let params = RmaParams { done, ..RmaParams::default() };
            // SAFETY: as above: buffer and callback stay valid until the end.
            unsafe { D::start(&ep.ep, buffer.cast(), len, (remote, rkey), &params) }
        });
    }
    // SAFETY: this function's contract.
    let data = unsafe { Data::new(buffer, count, call.datatype(), D::USE) }?;
    let single = data.single();
    // SAFETY: as above.
    let pieces = unsafe { pieces_of(&data, &single) }?;
    worker.with_worker(|plain| {
        // SAFETY: as above: buffer and callback stay valid until the end.
        unsafe {
            run::<NoResult, _>(worker, plain, call, None, |done| {
                let params = RmaParams { done, mem: call.mem(), ..RmaParams::default() };
                match pieces {
                    [one] => D::start(&ep.ep, one.addr, one.len, (remote, rkey), &params),
                    [] => Ok(OpStatus::Done(D::NOTHING)),
                    list => D::start_list(&ep.ep, list, &remote_iov(list, remote, rkey), &params),
                }
            })
        }
    })?
}

/// Starts an operation of the deprecated interface.
/// # Safety
/// As for [`later`]; what `param` names is valid as long.
#[inline(always)]
unsafe fn start<D: Direction>(
    ep: *mut Ep,
    data: (*mut c_void, usize),
    target: (u64, *mut Rkey),
    param: &RequestParam,
) -> Result<StatusPtr, Status> {
    // SAFETY: this function's contract.
    let call = unsafe { Call::of(param) };
    // SAFETY: as above.
    if unsafe { is_done_now::<D>(ep, data, target, &call) } {
        return Ok(StatusPtr::OK);
    }
    // SAFETY: as above.
    unsafe { later::<D>(ep, data, target, &call) }
}

/// `ucp_put_nbx` or `ucp_get_nbx`.
/// # Safety
/// As for [`later`], with `param` as for [`Call::fast`].
// HOT
#[inline(always)]
unsafe fn start_nbx<D: Direction>(
    ep: *mut Ep,
    buffer: *mut c_void,
    count: usize,
    remote: u64,
    rkey: *mut Rkey,
    param: *const RequestParam,
) -> StatusPtr {
    guard(D::FUNCTION, || {
        // SAFETY: this function's contract.
        if let Some(call) = unsafe { Call::now(param) }
            // SAFETY: as above.
            && unsafe { is_done_now::<D>(ep, (buffer, count), (remote, rkey), &call) }
        {
            return Ok(StatusPtr::OK);
        }
        // SAFETY: as above.
        Ok(unsafe { nbx_general::<D>(ep, buffer, count, remote, rkey, param) })
    })
}

/// General path of [`start_nbx`]. Its arguments stay in registers and it does not unwind, so the caller needs
/// no frame.
/// # Safety
/// As for [`start_nbx`].
#[inline(never)]
unsafe extern "C" fn nbx_general<D: Direction>(
    ep: *mut Ep,
    buffer: *mut c_void,
    count: usize,
    remote: u64,
    rkey: *mut Rkey,
    param: *const RequestParam,
) -> StatusPtr {
    guard(D::FUNCTION, || {
        if is_on() {
            // SAFETY: this function's contract.
            unsafe {
                enter(D::FUNCTION, &[argument!(ep), argument!(buffer), argument!(rkey), argument!(param)]);
            }
        }
        // SAFETY: this function's contract.
        let call = unsafe { Call::read_with_lists(param) }?;
        if is_list(&call) {
            // SAFETY: as above: the buffer is a list then.
            let list = unsafe { List::read(&call, (buffer.cast(), count), (remote, rkey)) }?;
            // SAFETY: as above.
            return unsafe { lists::<D>(ep, &list, &call) };
        }
        if call.must_complete_now() {
            // SAFETY: this function's contract.
            let (ep, rkey) = unsafe { (from_ptr(ep)?, &from_ptr(rkey)?.rkey) };
            return call.end_now(ep, || {
                call.plain_len(buffer, count, 0).is_some_and(|len| {
                    // SAFETY: as above.
                    unsafe { D::now(&ep.ep, buffer.cast(), len, (remote, rkey)) }
                })
            });
        }
        // SAFETY: this function's contract.
        unsafe { later::<D>(ep, (buffer, count), (remote, rkey), &call) }
    })
}

/// Starts an operation on lists.
/// # Safety
/// `ep` is null or live.
#[cold]
unsafe fn lists<D: Direction>(ep: *mut Ep, list: &List<'_>, call: &Call) -> Result<StatusPtr, Status> {
    // SAFETY: this function's contract.
    let ep = unsafe { from_ptr(ep) }?;
    if call.must_complete_now() {
        // SAFETY: the pieces of a list can be read, or written, until its operation has ended.
        return call.end_now(ep, || unsafe { D::lists_now(&ep.ep, list.pieces()) });
    }
    let worker = ep.worker();
    worker.with_worker(|plain| {
        // SAFETY: as above; the callback is valid as long.
        unsafe {
            run::<NoResult, _>(worker, plain, call, None, |done| {
                let params = RmaParams { done, ..RmaParams::default() };
                D::start_lists(&ep.ep, list.pieces(), &params)
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
/// # Safety
/// As for [`free_started`].
unsafe fn without_request(started: StatusPtr) -> Result<(), Status> {
    // SAFETY: this function's contract.
    if unsafe { free_started(started) }? { Err(Status::InProgress) } else { Ok(()) }
}

/// Writes to a peer's memory.
/// # Safety
/// `ep` and `rkey` are null or live, `param` as for [`Call::fast`], and the data can be read until the put
/// has ended.
// HOT
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ucp_put_nbx(
    ep: *mut Ep,
    buffer: *const c_void,
    count: usize,
    remote: u64,
    rkey: *mut Rkey,
    param: *const RequestParam,
) -> StatusPtr {
    // SAFETY: this function's contract.
    unsafe { start_nbx::<Put>(ep, buffer.cast_mut(), count, remote, rkey, param) }
}

/// Reads from a peer's memory.
/// # Safety
/// `ep` and `rkey` are null or live, `param` as for [`Call::fast`], and the buffer can be written until the
/// get has ended.
// HOT
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ucp_get_nbx(
    ep: *mut Ep,
    buffer: *mut c_void,
    count: usize,
    remote: u64,
    rkey: *mut Rkey,
    param: *const RequestParam,
) -> StatusPtr {
    // SAFETY: this function's contract.
    unsafe { start_nbx::<Get>(ep, buffer, count, remote, rkey, param) }
}

entry! {
    /// Writes to a peer's memory; deprecated (`ucp_compat.h`).
    fn ucp_put_nb(
        ep: *mut Ep, buffer: *const c_void, len: usize, remote: u64, rkey: *mut Rkey, cb: *const c_void,
    ) -> StatusPtr {
        // SAFETY: the caller's contract.
        unsafe { start::<Put>(ep, (buffer.cast_mut(), len), (remote, rkey), &bytes_param(cb)) }
    }

    /// Writes to a peer's memory; a flush completes it.
    // HOT
    fn ucp_put_nbi(ep: *mut Ep, buffer: *const c_void, len: usize, remote: u64, rkey: *mut Rkey) -> CStatus {
        // SAFETY: the caller's contract.
        unsafe { without_request(start::<Put>(ep, (buffer.cast_mut(), len), (remote, rkey), &NO_CALLBACK)?) }
    }

    /// Writes to a peer's memory and waits.
    fn ucp_put(ep: *mut Ep, buffer: *const c_void, len: usize, remote: u64, rkey: *mut Rkey) -> CStatus {
        // SAFETY: the caller's contract.
        unsafe {
            let started = start::<Put>(ep, (buffer.cast_mut(), len), (remote, rkey), &NO_CALLBACK)?;
            wait(from_ptr(ep)?.worker(), started)
        }
    }

    /// Reads from a peer's memory; deprecated (`ucp_compat.h`).
    fn ucp_get_nb(
        ep: *mut Ep, buffer: *mut c_void, len: usize, remote: u64, rkey: *mut Rkey, cb: *const c_void,
    ) -> StatusPtr {
        // SAFETY: the caller's contract.
        unsafe { start::<Get>(ep, (buffer, len), (remote, rkey), &bytes_param(cb)) }
    }

    /// Reads from a peer's memory; a flush completes it.
    fn ucp_get_nbi(ep: *mut Ep, buffer: *mut c_void, len: usize, remote: u64, rkey: *mut Rkey) -> CStatus {
        // SAFETY: the caller's contract.
        unsafe { without_request(start::<Get>(ep, (buffer, len), (remote, rkey), &NO_CALLBACK)?) }
    }

    /// Reads from a peer's memory and waits.
    fn ucp_get(ep: *mut Ep, buffer: *mut c_void, len: usize, remote: u64, rkey: *mut Rkey) -> CStatus {
        // SAFETY: the caller's contract.
        unsafe {
            let started = start::<Get>(ep, (buffer, len), (remote, rkey), &NO_CALLBACK)?;
            wait(from_ptr(ep)?.worker(), started)
        }
    }
}
