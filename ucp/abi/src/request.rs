//! Requests: status, result, cancel, free.

use std::ffi::{c_int, c_void};

use ::ucs::Status;
use ucp::RequestId;

use crate::entry::{CStatus, mask_of};
use crate::handle::{checked, store};
use crate::op::{id_of, worker_of};
use crate::types::{RequestAttr, TagInfo};
use crate::worker::Worker;

/// Status of a request that the caller holds. // HOT
#[inline(always)]
fn status_of(request: *mut c_void) -> Result<(RequestId, Status), Status> {
    let id = id_of(request)?;
    Ok((id, id.status().unwrap_or(Status::Ok)))
}

/// A status as the result of an entry point that returns one.
#[inline(always)]
pub(crate) fn as_result(status: Status) -> Result<(), Status> {
    if status == Status::Ok { Ok(()) } else { Err(status) }
}

entry! {
    /// Status of a request: in progress, well, or the error it has ended with. // HOT
    fn ucp_request_check_status(request: *mut c_void) -> CStatus {
        as_result(status_of(request)?.1)
    }

    /// Status of a receive, and what it has received.
    fn ucp_tag_recv_request_test(request: *mut c_void, info: *mut TagInfo) -> CStatus {
        let (id, status) = status_of(request)?;
        if let Some(message) = id.info() {
            store(info, TagInfo { sender_tag: message.tag, length: message.len })?;
        }
        as_result(status)
    }

    /// Old name of [`ucp_tag_recv_request_test`].
    fn ucp_request_test(request: *mut c_void, info: *mut TagInfo) -> CStatus {
        let (id, status) = status_of(request)?;
        if let Some(message) = id.info().filter(|_| !info.is_null()) {
            store(info, TagInfo { sender_tag: message.tag, length: message.len })?;
        }
        as_result(status)
    }

    /// Status of a stream's receive, and its length.
    fn ucp_stream_recv_request_test(request: *mut c_void, length: *mut usize) -> CStatus {
        let (id, status) = status_of(request)?;
        if let Some(message) = id.info() {
            store(length, message.len)?;
        }
        as_result(status)
    }

    /// Whether a request has ended.
    fn ucp_request_is_completed(request: *mut c_void) -> c_int {
        Ok(c_int::from(status_of(request)?.1 != Status::InProgress))
    }

    /// Frees a request, now or when its operation ends.
    fn ucp_request_free(request: *mut c_void) {
        let id = id_of(request)?;
        worker_of(id)?.inside(|plain| plain.free(id))
    }

    /// Old name of [`ucp_request_free`].
    fn ucp_request_release(request: *mut c_void) {
        let id = id_of(request)?;
        worker_of(id)?.inside(|plain| plain.free(id))
    }

    /// Cancels an operation, if that is still possible. Its callback is called with the status.
    fn ucp_request_cancel(worker: *mut Worker, request: *mut c_void) {
        let id = id_of(request)?;
        checked(worker)?.inside(|plain| plain.cancel(id)).map(drop)
    }

    /// Not supported: a request is made with its operation.
    fn ucp_request_alloc(worker: *mut Worker) -> *mut c_void {
        checked(worker)?;
        tracing::warn!("ucp_request_alloc: not supported; pass memory by UCP_OP_ATTR_FIELD_REQUEST");
        Err(Status::Unsupported)
    }

    /// Status, memory type and description of a request.
    fn ucp_request_query(request: *mut c_void, attr: *mut RequestAttr) -> CStatus {
        let (_, status) = status_of(request)?;
        let mask = mask_of(attr)?;
        answer!(attr, mask, 1 << 2, status = status.into());
        answer!(attr, mask, 1 << 3, mem_type = 0);
        let text = field!(attr, mask, 1 << 0, debug_string);
        let size = field!(attr, mask, 1 << 1, debug_string_size);
        if let (Some(text), Some(size)) = (text, size) {
            crate::info::fill_string(text, size, &format!("request {request:p}: {status}"));
        }
        Ok(())
    }
}
