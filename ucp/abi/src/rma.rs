//! Put and get.

use std::ffi::c_void;

use ::ucs::Status;
use ucp::{Error, Iov, OpStatus, RecvStatus, RemoteIov, RmaParams, RmaPiece};

use crate::check::{argument, enter, is_on};
use crate::datatype::{Data, Use};
use crate::entry::{CStatus, StatusPtr, guard};
use crate::ep::Ep;
use crate::flush::wait;
use crate::handle::given;
use crate::op::{
    BYTES, Call, Message, NOTHING, NoResult, UNUSUAL, UNUSUAL_NOW, let_run, run, run_plain, target_now,
};
use crate::rkey::Rkey;
use crate::sgl::{List, is_list};
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
    unsafe fn now(ep: &ucp::Ep, buf: *mut u8, len: usize, target: (u64, &ucp::Rkey)) -> bool;

    /// Starts an operation on bytes.
    unsafe fn start(
        ep: &ucp::Ep,
        buf: *mut u8,
        len: usize,
        target: (u64, &ucp::Rkey),
        params: &RmaParams<'_>,
    ) -> Result<OpStatus<Self::Ended>, Error>;

    /// Starts an operation on pieces.
    unsafe fn start_list(
        ep: &ucp::Ep,
        list: &[Iov],
        remote: &RemoteIov<'_>,
        params: &RmaParams<'_>,
    ) -> Result<OpStatus<Self::Ended>, Error>;

    /// Copies all pieces of lists between mapped memory. False: nothing of a put has happened.
    unsafe fn lists_now<'a>(ep: &ucp::Ep, pieces: impl Iterator<Item = RmaPiece<'a>> + Clone) -> bool;

    /// Starts an operation on lists.
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
        // SAFETY: the caller passes readable bytes.
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
        // SAFETY: the caller keeps buffer and callback valid until the end.
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
    const NOTHING: RecvStatus = NOTHING;

    // HOT
    #[inline(always)]
    unsafe fn now(ep: &ucp::Ep, buf: *mut u8, len: usize, (remote, rkey): (u64, &ucp::Rkey)) -> bool {
        // SAFETY: the caller passes writable bytes.
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
        // SAFETY: the caller keeps buffer and callback valid until the end.
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
/// error. // HOT
#[inline(always)]
fn is_done_now<D: Direction>(
    ep: *mut Ep,
    (buffer, count): (*mut c_void, usize),
    (remote, rkey): (u64, *mut Rkey),
    call: &Call,
) -> bool {
    let Some(len) = call.plain_len(buffer, count, 0) else { return false };
    let Some((ep, rkey)) = target_now(ep, rkey) else { return false };
    // SAFETY: the caller passes bytes that can be read, or written.
    unsafe { D::now(ep, buffer.cast(), len, (remote, rkey)) }
}

/// Starts an operation that does not end at once, or needs the lock of its worker.
#[inline(never)]
fn later<D: Direction>(
    ep: *mut Ep,
    (buffer, count): (*mut c_void, usize),
    (remote, rkey): (u64, *mut Rkey),
    call: &Call,
) -> Result<StatusPtr, Status> {
    let (ep, rkey) = (given(ep)?, &given(rkey)?.rkey);
    let worker = ep.worker();
    if call.mask() & UNUSUAL_NOW == 0
        && let Some(len) = call.plain_len(buffer, count, 0)
        // SAFETY: the caller passes bytes that can be read, or written.
        && worker.locked(|_| unsafe { D::now(&ep.ep, buffer.cast(), len, (remote, rkey)) }) == Some(true)
    {
        return Ok(StatusPtr::OK);
    }
    if let Some(len) = call.plain_len(buffer, count, UNUSUAL)
        && let Some(plain) = worker.unlocked()
    {
        return run_plain::<NoResult, _>(worker, &plain, call, None, |done| {
            let params = RmaParams { done, ..RmaParams::default() };
            // SAFETY: the caller keeps buffer and callback valid until the end.
            unsafe { D::start(&ep.ep, buffer.cast(), len, (remote, rkey), &params) }
        });
    }
    let data = Data::new(buffer, count, call.datatype(), D::USE)?;
    let single = data.single();
    let pieces = pieces_of(&data, &single)?;
    worker.inside(|plain| {
        // SAFETY: the caller keeps buffer and callback valid until the end.
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

/// Starts an operation of the old interface.
#[inline(always)]
fn start<D: Direction>(
    ep: *mut Ep,
    data: (*mut c_void, usize),
    target: (u64, *mut Rkey),
    call: &Call,
) -> Result<StatusPtr, Status> {
    if is_done_now::<D>(ep, data, target, call) {
        return Ok(StatusPtr::OK);
    }
    later::<D>(ep, data, target, call)
}

/// `ucp_put_nbx` or `ucp_get_nbx`. // HOT
#[inline(always)]
fn start_nbx<D: Direction>(
    ep: *mut Ep,
    buffer: *mut c_void,
    count: usize,
    remote: u64,
    rkey: *mut Rkey,
    param: *const RequestParam,
) -> StatusPtr {
    guard(D::FUNCTION, || {
        if let Some(call) = Call::now(param)
            && is_done_now::<D>(ep, (buffer, count), (remote, rkey), &call)
        {
            return Ok(StatusPtr::OK);
        }
        Ok(nbx_later::<D>(ep, buffer, count, remote, rkey, param))
    })
}

/// [`start_nbx`] of what does not end at once, or is checked. Its arguments stay in registers, and it does
/// not unwind, so that nothing is kept for it.
#[inline(never)]
extern "C" fn nbx_later<D: Direction>(
    ep: *mut Ep,
    buffer: *mut c_void,
    count: usize,
    remote: u64,
    rkey: *mut Rkey,
    param: *const RequestParam,
) -> StatusPtr {
    guard(D::FUNCTION, || {
        if is_on() {
            enter(D::FUNCTION, &[argument!(ep), argument!(buffer), argument!(rkey), argument!(param)]);
        }
        let call = Call::read_with_lists(param)?;
        if is_list(&call) {
            let list = List::read(&call, (buffer.cast(), count), (remote, rkey));
            return lists::<D>(ep, &list?, &call);
        }
        if call.must_end() {
            let (ep, rkey) = (given(ep)?, &given(rkey)?.rkey);
            return call.end_now(ep, || {
                call.plain_len(buffer, count, 0).is_some_and(|len| {
                    // SAFETY: the caller passes bytes that can be read, or written.
                    unsafe { D::now(&ep.ep, buffer.cast(), len, (remote, rkey)) }
                })
            });
        }
        later::<D>(ep, (buffer, count), (remote, rkey), &call)
    })
}

/// Starts an operation on lists.
#[cold]
fn lists<D: Direction>(ep: *mut Ep, list: &List<'_>, call: &Call) -> Result<StatusPtr, Status> {
    let ep = given(ep)?;
    if call.must_end() {
        // SAFETY: the caller passes bytes that can be read, or written.
        return call.end_now(ep, || unsafe { D::lists_now(&ep.ep, list.pieces()) });
    }
    let worker = ep.worker();
    worker.inside(|plain| {
        // SAFETY: the caller keeps buffers and callback valid until the end.
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
    start_nbx::<Put>(ep, buffer.cast_mut(), count, remote, rkey, param)
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
    start_nbx::<Get>(ep, buffer, count, remote, rkey, param)
}

entry! {
    /// Writes to a peer's memory; old form.
    fn ucp_put_nb(
        ep: *mut Ep, buffer: *const c_void, len: usize, remote: u64, rkey: *mut Rkey, cb: *const c_void,
    ) -> StatusPtr {
        start::<Put>(ep, (buffer.cast_mut(), len), (remote, rkey), &Call::of(&bytes_param(cb)))
    }

    /// Writes to a peer's memory; a flush completes it. // HOT
    fn ucp_put_nbi(ep: *mut Ep, buffer: *const c_void, len: usize, remote: u64, rkey: *mut Rkey) -> CStatus {
        without_request(start::<Put>(ep, (buffer.cast_mut(), len), (remote, rkey), &Call::of(&NO_CALLBACK))?)
    }

    /// Writes to a peer's memory and waits.
    fn ucp_put(ep: *mut Ep, buffer: *const c_void, len: usize, remote: u64, rkey: *mut Rkey) -> CStatus {
        let started = start::<Put>(ep, (buffer.cast_mut(), len), (remote, rkey), &Call::of(&NO_CALLBACK))?;
        wait(given(ep)?.worker(), started)
    }

    /// Reads from a peer's memory; old form.
    fn ucp_get_nb(
        ep: *mut Ep, buffer: *mut c_void, len: usize, remote: u64, rkey: *mut Rkey, cb: *const c_void,
    ) -> StatusPtr {
        start::<Get>(ep, (buffer, len), (remote, rkey), &Call::of(&bytes_param(cb)))
    }

    /// Reads from a peer's memory; a flush completes it.
    fn ucp_get_nbi(ep: *mut Ep, buffer: *mut c_void, len: usize, remote: u64, rkey: *mut Rkey) -> CStatus {
        without_request(start::<Get>(ep, (buffer, len), (remote, rkey), &Call::of(&NO_CALLBACK))?)
    }

    /// Reads from a peer's memory and waits.
    fn ucp_get(ep: *mut Ep, buffer: *mut c_void, len: usize, remote: u64, rkey: *mut Rkey) -> CStatus {
        let started = start::<Get>(ep, (buffer, len), (remote, rkey), &Call::of(&NO_CALLBACK))?;
        wait(given(ep)?.worker(), started)
    }
}
