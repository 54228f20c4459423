//! Functions of UCX's header `ucp/api/device/ucp_host.h`: communication that code on a GPU starts. There is
//! none: all refuse.

use std::ffi::{c_uint, c_void};

use ::ucs::Status;

use crate::entry::CStatus;
use crate::worker::Worker;

/// Refuses a call, and says so in the log.
fn refuse<T>(name: &str) -> Result<T, Status> {
    crate::log::init_from_env();
    tracing::error!("{name}: communication that a GPU starts is not supported");
    Err(Status::Unsupported)
}

entry! {
    /// Not supported.
    fn ucp_device_local_mem_list_create(_params: *const c_void, _list: *mut *mut c_void) -> CStatus {
        refuse("ucp_device_local_mem_list_create")
    }

    /// Not supported.
    fn ucp_device_remote_mem_list_create(_params: *const c_void, _list: *mut *mut c_void) -> CStatus {
        refuse("ucp_device_remote_mem_list_create")
    }

    /// Length of a list. There is none: 0.
    fn ucp_device_get_mem_list_length(_list: *const c_void) -> c_uint {
        refuse("ucp_device_get_mem_list_length")
    }

    /// There is nothing to free.
    fn ucp_device_mem_list_release(_list: *mut c_void) {
        refuse("ucp_device_mem_list_release")
    }

    /// Not supported.
    fn ucp_device_counter_init(_worker: *mut Worker, _params: *const c_void, _counter: *mut c_void) -> CStatus {
        refuse("ucp_device_counter_init")
    }

    /// Value of a counter. There is none: 0.
    fn ucp_device_counter_read(_worker: *mut Worker, _params: *const c_void, _counter: *mut c_void) -> u64 {
        refuse("ucp_device_counter_read")
    }
}
