//! Structures and values of UCX's public headers (API 1.23), as far as functions here read or write them.

use std::ffi::{c_char, c_int, c_uint, c_void};

use crate::entry::CStatus;
use crate::ep::Ep;
use crate::listener::ConnRequest;
use crate::mem::Mem;

/// `UCP_ENTITY_NAME_MAX`.
pub(crate) const NAME_MAX: usize = 32;

/// `ucs_sock_addr_t`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct SockAddr {
    pub addr: *const libc::sockaddr,
    pub len: libc::socklen_t,
}

/// `ucp_params_t`.
#[repr(C)]
pub(crate) struct Params {
    pub field_mask: u64,
    pub features: u64,
    pub request_size: usize,
    pub request_init: Option<RequestHook>,
    pub request_cleanup: Option<RequestHook>,
    pub tag_sender_mask: u64,
    pub mt_workers_shared: c_int,
    pub estimated_num_eps: usize,
    pub estimated_num_ppn: usize,
    pub name: *const c_char,
    pub node_local_id: usize,
}

pub(crate) type RequestHook = unsafe extern "C" fn(request: *mut c_void);

/// Bits of [`Params::field_mask`].
pub(crate) mod params {
    pub(crate) const FEATURES: u64 = 1 << 0;
    pub(crate) const REQUEST_SIZE: u64 = 1 << 1;
    pub(crate) const REQUEST_INIT: u64 = 1 << 2;
    pub(crate) const REQUEST_CLEANUP: u64 = 1 << 3;
    pub(crate) const MT_WORKERS_SHARED: u64 = 1 << 5;
    pub(crate) const NAME: u64 = 1 << 8;
}

/// `ucp_context_attr_t`.
#[repr(C)]
pub(crate) struct ContextAttr {
    pub field_mask: u64,
    pub request_size: usize,
    pub thread_mode: c_int,
    pub memory_types: u64,
    pub name: [c_char; NAME_MAX],
    pub device_counter_size: usize,
}

/// Bits of [`ContextAttr::field_mask`].
pub(crate) mod context_attr {
    pub(crate) const REQUEST_SIZE: u64 = 1 << 0;
    pub(crate) const THREAD_MODE: u64 = 1 << 1;
    pub(crate) const MEMORY_TYPES: u64 = 1 << 2;
    pub(crate) const NAME: u64 = 1 << 3;
    pub(crate) const DEVICE_COUNTER_SIZE: u64 = 1 << 4;
}

/// `ucp_lib_attr_t`.
#[repr(C)]
pub(crate) struct LibAttr {
    pub field_mask: u64,
    pub max_thread_level: c_int,
}

/// `ucs_thread_mode_t`.
pub(crate) mod thread_mode {
    use std::ffi::c_int;
    pub(crate) const SINGLE: c_int = 0;
    pub(crate) const SERIALIZED: c_int = 1;
    pub(crate) const MULTI: c_int = 2;
}

/// `ucp_worker_params_t`.
#[repr(C)]
pub(crate) struct WorkerParams {
    pub field_mask: u64,
    pub thread_mode: c_int,
    pub cpu_mask: [usize; 16],
    pub events: c_uint,
    pub user_data: *mut c_void,
    pub event_fd: c_int,
    pub flags: u64,
    pub name: *const c_char,
    pub am_alignment: usize,
    pub client_id: u64,
}

/// Bits of [`WorkerParams::field_mask`].
pub(crate) mod worker_params {
    pub(crate) const THREAD_MODE: u64 = 1 << 0;
    pub(crate) const EVENTS: u64 = 1 << 2;
    pub(crate) const USER_DATA: u64 = 1 << 3;
    pub(crate) const EVENT_FD: u64 = 1 << 4;
    pub(crate) const NAME: u64 = 1 << 6;
    pub(crate) const AM_ALIGNMENT: u64 = 1 << 7;
    pub(crate) const CLIENT_ID: u64 = 1 << 8;
}

/// `ucp_worker_attr_t`.
#[repr(C)]
pub(crate) struct WorkerAttr {
    pub field_mask: u64,
    pub thread_mode: c_int,
    pub address_flags: u32,
    pub address: *mut c_void,
    pub address_length: usize,
    pub max_am_header: usize,
    pub name: [c_char; NAME_MAX],
    pub max_debug_string: usize,
}

/// Bits of [`WorkerAttr::field_mask`].
pub(crate) mod worker_attr {
    pub(crate) const THREAD_MODE: u64 = 1 << 0;
    pub(crate) const ADDRESS: u64 = 1 << 1;
    pub(crate) const ADDRESS_FLAGS: u64 = 1 << 2;
    pub(crate) const MAX_AM_HEADER: u64 = 1 << 3;
    pub(crate) const NAME: u64 = 1 << 4;
    pub(crate) const MAX_INFO_STRING: u64 = 1 << 5;
}

/// `UCP_WORKER_ADDRESS_FLAG_NET_ONLY`.
pub(crate) const ADDRESS_NET_ONLY: u32 = 1 << 0;

/// `ucp_worker_address_attr_t`.
#[repr(C)]
pub(crate) struct AddressAttr {
    pub field_mask: u64,
    pub worker_uid: u64,
}

/// `ucp_err_handler_t`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ErrHandler {
    pub cb: Option<ErrorCallback>,
    pub arg: *mut c_void,
}

/// `ucp_err_handler_cb_t`.
pub(crate) type ErrorCallback = unsafe extern "C" fn(arg: *mut c_void, ep: *mut Ep, status: CStatus);

/// `ucp_ep_params_t`.
#[repr(C)]
pub(crate) struct EpParams {
    pub field_mask: u64,
    pub address: *const c_void,
    pub err_mode: c_int,
    pub err_handler: ErrHandler,
    pub user_data: *mut c_void,
    pub flags: c_uint,
    pub sockaddr: SockAddr,
    pub conn_request: *mut ConnRequest,
    pub name: *const c_char,
    pub local_sockaddr: SockAddr,
}

/// Bits of [`EpParams::field_mask`].
pub(crate) mod ep_params {
    pub(crate) const REMOTE_ADDRESS: u64 = 1 << 0;
    pub(crate) const ERR_HANDLING_MODE: u64 = 1 << 1;
    pub(crate) const ERR_HANDLER: u64 = 1 << 2;
    pub(crate) const USER_DATA: u64 = 1 << 3;
    pub(crate) const SOCK_ADDR: u64 = 1 << 4;
    pub(crate) const FLAGS: u64 = 1 << 5;
    pub(crate) const CONN_REQUEST: u64 = 1 << 6;
    pub(crate) const NAME: u64 = 1 << 7;
    pub(crate) const LOCAL_SOCK_ADDR: u64 = 1 << 8;
}

/// `UCP_EP_PARAMS_FLAGS_CLIENT_SERVER`.
pub(crate) const EP_CLIENT_SERVER: c_uint = 1 << 0;
/// `UCP_EP_PARAMS_FLAGS_SEND_CLIENT_ID`.
pub(crate) const EP_SEND_CLIENT_ID: c_uint = 1 << 2;

/// `ucp_transport_entry_t`.
#[repr(C)]
pub(crate) struct TransportEntry {
    pub transport_name: *const c_char,
    pub device_name: *const c_char,
}

/// `ucp_transports_t`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Transports {
    pub entries: *mut TransportEntry,
    pub num_entries: c_uint,
    pub entry_size: usize,
}

/// `ucp_ep_attr_t`.
#[repr(C)]
pub(crate) struct EpAttr {
    pub field_mask: u64,
    pub name: [c_char; NAME_MAX],
    pub local_sockaddr: libc::sockaddr_storage,
    pub remote_sockaddr: libc::sockaddr_storage,
    pub transports: Transports,
    pub user_data: *mut c_void,
}

/// Bits of [`EpAttr::field_mask`].
pub(crate) mod ep_attr {
    pub(crate) const NAME: u64 = 1 << 0;
    pub(crate) const LOCAL_SOCKADDR: u64 = 1 << 1;
    pub(crate) const REMOTE_SOCKADDR: u64 = 1 << 2;
    pub(crate) const TRANSPORTS: u64 = 1 << 3;
    pub(crate) const USER_DATA: u64 = 1 << 4;
}

/// `ucp_ep_evaluate_perf_param_t`.
#[repr(C)]
pub(crate) struct PerfParam {
    pub field_mask: u64,
    pub message_size: usize,
}

/// `ucp_ep_evaluate_perf_attr_t`.
#[repr(C)]
pub(crate) struct PerfAttr {
    pub field_mask: u64,
    pub estimated_time: f64,
}

/// `ucp_tag_recv_info_t`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub(crate) struct TagInfo {
    pub sender_tag: u64,
    pub length: usize,
}

/// `ucp_request_param_t`.
#[repr(C)]
pub(crate) struct RequestParam {
    pub op_attr_mask: u32,
    pub flags: u32,
    pub request: *mut c_void,
    pub cb: *const c_void,
    pub datatype: u64,
    pub user_data: *mut c_void,
    pub reply_buffer: *mut c_void,
    pub memory_type: c_int,
    pub recv_info: *mut c_void,
    pub memh: *const Mem,
    pub remote_datatype: u64,
    pub remote: *const c_void,
    pub remote_count: usize,
}

impl RequestParam {
    /// Parameters of an operation of the deprecated interface, with a callback that gets two or three
    /// arguments, or null.
    #[inline(always)]
    pub(crate) const fn old(cb: *const c_void, datatype: u64) -> RequestParam {
        RequestParam {
            op_attr_mask: op_attr::CALLBACK | op_attr::DATATYPE,
            flags: 0,
            request: std::ptr::null_mut(),
            cb,
            datatype,
            user_data: std::ptr::null_mut(),
            reply_buffer: std::ptr::null_mut(),
            memory_type: 0,
            recv_info: std::ptr::null_mut(),
            memh: std::ptr::null(),
            remote_datatype: 0,
            remote: std::ptr::null(),
            remote_count: 0,
        }
    }

    /// Parameters of an operation of the deprecated interface with a request in memory of the caller, or
    /// null.
    #[inline(always)]
    pub(crate) fn in_request(request: *mut c_void, datatype: u64) -> RequestParam {
        let op_attr_mask = op_attr::REQUEST | op_attr::DATATYPE;
        RequestParam { op_attr_mask, request, ..RequestParam::old(std::ptr::null(), datatype) }
    }

    /// These parameters, with more bits in the mask.
    #[inline(always)]
    pub(crate) fn and(self, bits: u32) -> RequestParam {
        RequestParam { op_attr_mask: self.op_attr_mask | bits, ..self }
    }

    /// These parameters, with flags.
    #[inline(always)]
    pub(crate) fn with_flags(self, flags: u32) -> RequestParam {
        RequestParam { flags, ..self.and(op_attr::FLAGS) }
    }
}

/// Bits of [`RequestParam::op_attr_mask`].
pub(crate) mod op_attr {
    pub(crate) const REQUEST: u32 = 1 << 0;
    pub(crate) const CALLBACK: u32 = 1 << 1;
    pub(crate) const USER_DATA: u32 = 1 << 2;
    pub(crate) const DATATYPE: u32 = 1 << 3;
    pub(crate) const FLAGS: u32 = 1 << 4;
    pub(crate) const REPLY_BUFFER: u32 = 1 << 5;
    pub(crate) const MEMORY_TYPE: u32 = 1 << 6;
    pub(crate) const RECV_INFO: u32 = 1 << 7;
    pub(crate) const MEMH: u32 = 1 << 8;
    pub(crate) const REMOTE_DATATYPE: u32 = 1 << 9;
    pub(crate) const REMOTE: u32 = 1 << 10;
    pub(crate) const REMOTE_COUNT: u32 = 1 << 11;
    pub(crate) const NO_IMM_CMPL: u32 = 1 << 16;
    pub(crate) const FORCE_IMM_CMPL: u32 = 1 << 18;
}

/// `ucp_request_attr_t`.
#[repr(C)]
pub(crate) struct RequestAttr {
    pub field_mask: u64,
    pub debug_string: *mut c_char,
    pub debug_string_size: usize,
    pub status: CStatus,
    pub mem_type: c_int,
}

/// `ucp_mem_map_params_t`.
#[repr(C)]
pub(crate) struct MemMapParams {
    pub field_mask: u64,
    pub address: *mut c_void,
    pub length: usize,
    pub flags: c_uint,
    pub prot: c_uint,
    pub memory_type: c_int,
    pub exported_memh_buffer: *const c_void,
}

/// Bits of [`MemMapParams::field_mask`].
pub(crate) mod mem_map {
    pub(crate) const ADDRESS: u64 = 1 << 0;
    pub(crate) const LENGTH: u64 = 1 << 1;
    pub(crate) const FLAGS: u64 = 1 << 2;
    pub(crate) const PROT: u64 = 1 << 3;
    pub(crate) const MEMORY_TYPE: u64 = 1 << 4;
    pub(crate) const EXPORTED_MEMH_BUFFER: u64 = 1 << 5;
    /// Values of `flags`.
    pub(crate) const NONBLOCK: u32 = 1 << 0;
    pub(crate) const ALLOCATE: u32 = 1 << 1;
    pub(crate) const FIXED: u32 = 1 << 2;
    /// Values of `prot`.
    pub(crate) const REMOTE_READ: u32 = 1 << 8;
    pub(crate) const REMOTE_WRITE: u32 = 1 << 9;
}

/// `ucp_mem_attr_t`.
#[repr(C)]
pub(crate) struct MemAttr {
    pub field_mask: u64,
    pub address: *mut c_void,
    pub length: usize,
    pub mem_type: c_int,
}

/// `ucp_mem_advise_params_t`.
#[repr(C)]
pub(crate) struct MemAdviseParams {
    pub field_mask: u64,
    pub address: *mut c_void,
    pub length: usize,
    pub advice: c_int,
}

/// `ucp_memh_pack_params_t`.
#[repr(C)]
pub(crate) struct MemhPackParams {
    pub field_mask: u64,
    pub flags: u64,
}

/// `ucp_generic_dt_ops_t`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct GenericDtOps {
    pub start_pack: Option<StartPack>,
    pub start_unpack: Option<StartUnpack>,
    pub packed_size: Option<unsafe extern "C" fn(state: *mut c_void) -> usize>,
    pub pack: Option<unsafe extern "C" fn(*mut c_void, usize, *mut c_void, usize) -> usize>,
    pub unpack: Option<unsafe extern "C" fn(*mut c_void, usize, *const c_void, usize) -> i8>,
    pub finish: Option<unsafe extern "C" fn(state: *mut c_void)>,
}

pub(crate) type StartPack = unsafe extern "C" fn(*mut c_void, *const c_void, usize) -> *mut c_void;
pub(crate) type StartUnpack = unsafe extern "C" fn(*mut c_void, *mut c_void, usize) -> *mut c_void;

/// `ucp_datatype_attr_t`.
#[repr(C)]
pub(crate) struct DatatypeAttr {
    pub field_mask: u64,
    pub packed_size: usize,
    pub buffer: *const c_void,
    pub count: usize,
}

/// `ucp_am_handler_param_t`.
#[repr(C)]
pub(crate) struct AmHandlerParam {
    pub field_mask: u64,
    pub id: c_uint,
    pub flags: u32,
    pub cb: Option<AmRecvCallback>,
    pub arg: *mut c_void,
}

/// `ucp_am_recv_param_t`.
#[repr(C)]
pub(crate) struct AmRecvParam {
    pub recv_attr: u64,
    pub reply_ep: *mut Ep,
}

pub(crate) type AmRecvCallback = unsafe extern "C" fn(
    arg: *mut c_void,
    header: *const c_void,
    header_length: usize,
    data: *mut c_void,
    length: usize,
    param: *const AmRecvParam,
) -> CStatus;

/// `ucp_am_callback_t`, of the deprecated interface.
pub(crate) type AmCallback = unsafe extern "C" fn(
    arg: *mut c_void,
    data: *mut c_void,
    length: usize,
    reply_ep: *mut Ep,
    flags: c_uint,
) -> CStatus;

/// `ucp_listener_conn_handler_t`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ConnHandler {
    pub cb: Option<unsafe extern "C" fn(request: *mut ConnRequest, arg: *mut c_void)>,
    pub arg: *mut c_void,
}

/// `ucp_listener_accept_handler_t`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct AcceptHandler {
    pub cb: Option<unsafe extern "C" fn(ep: *mut Ep, arg: *mut c_void)>,
    pub arg: *mut c_void,
}

/// `ucp_listener_params_t`.
#[repr(C)]
pub(crate) struct ListenerParams {
    pub field_mask: u64,
    pub sockaddr: SockAddr,
    pub accept_handler: AcceptHandler,
    pub conn_handler: ConnHandler,
}

/// `ucp_listener_attr_t`.
#[repr(C)]
pub(crate) struct ListenerAttr {
    pub field_mask: u64,
    pub sockaddr: libc::sockaddr_storage,
}

/// `ucp_conn_request_attr_t`.
#[repr(C)]
pub(crate) struct ConnRequestAttr {
    pub field_mask: u64,
    pub client_address: libc::sockaddr_storage,
    pub client_id: u64,
}

/// `ucp_stream_poll_ep_t`.
#[repr(C)]
pub(crate) struct StreamPollEp {
    pub ep: *mut Ep,
    pub user_data: *mut c_void,
    pub flags: c_uint,
    pub reserved: [u8; 16],
}

#[cfg(test)]
mod tests;
