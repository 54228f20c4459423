//! Streams.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{c_uint, c_void};

use ::ucs::Status;
use ucp::{Error, OpParams, OpStatus, RecvStatus, StreamData, StreamRecvMode};

use crate::arg::OutPtr;
use crate::datatype::{Data, Use, element_size};
use crate::entry::StatusPtr;
use crate::ep::Ep;
use crate::handle::{checked, from_ptr};
use crate::op::{Call, LengthRecv, NoResult, run};
use crate::types::{RequestParam, StreamPollEp};
use crate::worker::Worker;

/// `UCP_STREAM_RECV_FLAG_WAITALL`.
const WAIT_ALL: u32 = 1 << 0;

/// Bytes of streams that the program keeps, by their address. Used inside the worker's lock.
#[derive(Default)]
pub(crate) struct StreamState(RefCell<HashMap<usize, StreamData>>);

impl StreamState {
    /// Drops what the program keeps.
    pub(crate) fn clear(&self) {
        self.0.borrow_mut().clear();
    }
}

/// Starts a send.
/// # Safety
/// `ep` is null or live, and the data can be read until the send has ended.
unsafe fn send(
    ep: *mut Ep,
    (buffer, count): (*const c_void, usize),
    call: &Call,
) -> Result<StatusPtr, Status> {
    // SAFETY: this function's contract.
    let ep = unsafe { from_ptr(ep) }?;
    // SAFETY: as above.
    let data = unsafe { Data::new(buffer, count, call.datatype(), Use::Pack) }?;
    let worker = ep.worker();
    worker.with_worker(|plain| {
        // SAFETY: as above: buffer and callback stay valid until the end.
        unsafe {
            run::<NoResult, _>(worker, plain, call, None, |done| {
                let params = OpParams { done, mem: call.mem(), truncated: None };
                match data {
                    Data::Bytes(at, len) => ep.ep.stream_send_raw(at, len, &params),
                    ref other => ep.ep.stream_send_layout_raw(other.layout(&other.single()), &params),
                }
            })
        }
    })?
}

/// Starts a receive.
/// # Safety
/// `ep` is null or live. The buffer, and `length` unless it is null, can be written until the receive has
/// ended.
unsafe fn recv(
    ep: *mut Ep,
    (buffer, count): (*mut c_void, usize),
    length: *mut usize,
    call: &Call,
) -> Result<StatusPtr, Status> {
    // SAFETY: this function's contract.
    let ep = unsafe { from_ptr(ep) }?;
    // SAFETY: as above.
    let data = unsafe { Data::new(buffer, count, call.datatype(), Use::Unpack) }?;
    let mode = match call.flags() & WAIT_ALL {
        0 => StreamRecvMode::Elements(element_size(call.datatype())),
        _ => StreamRecvMode::WaitAll,
    };
    // SAFETY: as above.
    let call = &unsafe { call.with_length(length) };
    let worker = ep.worker();
    worker.with_worker(|plain| {
        // SAFETY: as above: buffer and callback stay valid until the end.
        unsafe {
            run::<LengthRecv, _>(worker, plain, call, None, |done| -> Result<OpStatus<RecvStatus>, Error> {
                let params = OpParams { done, mem: call.mem(), truncated: None };
                let id = match data {
                    Data::Bytes(at, len) => ep.ep.stream_recv_raw(at, len, mode, &params),
                    ref other => ep.ep.stream_recv_layout_raw(other.layout(&other.single()), mode, &params),
                }?;
                // What is there already is received by the call.
                match done {
                    None => Ok(plain.test(id).transpose()?.map_or(OpStatus::InProgress(id), OpStatus::Done)),
                    Some(_) => Ok(OpStatus::InProgress(id)),
                }
            })
        }
    })?
}

entry! {
    /// Sends bytes of a stream.
    fn ucp_stream_send_nbx(ep: *mut Ep, buffer: *const c_void, count: usize, param: *const RequestParam) -> StatusPtr {
        // SAFETY: the caller's contract.
        unsafe { send(ep, (buffer, count), &Call::read(param)?) }
    }

    /// Sends bytes of a stream; deprecated (`ucp_compat.h`).
    fn ucp_stream_send_nb(
        ep: *mut Ep, buffer: *const c_void, count: usize, datatype: u64, cb: *const c_void, _flags: c_uint,
    ) -> StatusPtr {
        // SAFETY: the caller's contract.
        unsafe { send(ep, (buffer, count), &Call::of(&RequestParam::old(cb, datatype))) }
    }

    /// Receives bytes of a stream.
    fn ucp_stream_recv_nbx(
        ep: *mut Ep, buffer: *mut c_void, count: usize, length: *mut usize, param: *const RequestParam,
    ) -> StatusPtr {
        // SAFETY: the caller's contract.
        unsafe { recv(ep, (buffer, count), length, &Call::read(param)?) }
    }

    /// Receives bytes of a stream; deprecated (`ucp_compat.h`).
    fn ucp_stream_recv_nb(
        ep: *mut Ep,
        buffer: *mut c_void,
        count: usize,
        datatype: u64,
        cb: *const c_void,
        length: *mut usize,
        flags: c_uint,
    ) -> StatusPtr {
        let param = RequestParam::old(cb, datatype).with_flags(flags);
        // SAFETY: the caller's contract.
        unsafe { recv(ep, (buffer, count), length, &Call::of(&param)) }
    }

    /// Returns bytes of a stream in memory of the library; null if there are none.
    fn ucp_stream_recv_data_nb(ep: *mut Ep, length: OutPtr<usize>) -> StatusPtr {
        // SAFETY: the caller's contract.
        let ep = unsafe { from_ptr(ep) }?;
        let worker = ep.worker();
        let data = worker.with_worker(|_| ep.ep.stream_recv_data())?.map_err(Error::status)?;
        let Some(data) = data else { return Ok(StatusPtr::OK) };
        let at = data.as_ptr().cast_mut().cast::<c_void>();
        length.store(data.len())?;
        worker.with_worker(|_| worker.streams.0.borrow_mut().insert(at.addr(), data)).map(drop)?;
        Ok(StatusPtr(at))
    }

    /// Frees bytes of a stream.
    fn ucp_stream_data_release(ep: *mut Ep, data: *mut c_void) {
        let worker = checked(ep)?.worker();
        let released = worker.with_worker(|_| worker.streams.0.borrow_mut().remove(&data.addr()))?;
        crate::check::kept(data, released.is_some());
        worker.with_worker(|_| drop(released))
    }

    /// Finds endpoints with bytes to receive. Returns their number.
    fn ucp_stream_worker_poll(
        worker: *mut Worker, found: *mut StreamPollEp, max: usize, _flags: c_uint,
    ) -> isize {
        let worker = checked(worker)?;
        worker.with_worker(|_| {
            let eps = worker.eps.borrow();
            let ready = eps.iter().copied().filter(|ep| {
                // SAFETY: a worker has endpoints that are live.
                unsafe { from_ptr(*ep) }.is_ok_and(|ep| ep.ep.has_stream_data())
            });
            let mut count = 0;
            for ep in ready.take(max) {
                // SAFETY: as above.
                let user_data = unsafe { from_ptr(ep) }?.user_data.get();
                let entry = StreamPollEp { ep, user_data, flags: 0, reserved: [0; 16] };
                // SAFETY: the caller has room for `max` of them.
                unsafe { OutPtr::new(found.wrapping_add(count)) }.store(entry)?;
                count += 1;
            }
            Ok(count as isize)
        })?
    }
}
