//! Functions that are not supported: connections by socket addresses, for which `ucp` has listeners, and tag
//! matching by devices.

use std::ffi::{c_char, c_int, c_uint, c_void};

use ::ucs::Status;

use super::component::Component;
use super::ep::Ep;
use super::iface::Iface;
use super::worker::Worker;
use crate::entry::{CStatus, StatusPtr};

/// Refuses a call, and says so in the log.
pub(super) fn refuse<T>(name: &str) -> Result<T, Status> {
    tracing::error!("{name} is not supported");
    Err(Status::Unsupported)
}

entry! {
    /// Not supported: connection managers.
    fn uct_cm_open(
        _component: *const Component, _worker: *mut Worker, _config: *const c_void, _cm: *mut *mut c_void,
    ) -> CStatus {
        refuse("uct_cm_open")
    }

    /// There is nothing to close.
    fn uct_cm_close(_cm: *mut c_void) {
        refuse("uct_cm_close")
    }

    /// Not supported.
    fn uct_cm_query(_cm: *mut c_void, _attr: *mut c_void) -> CStatus {
        refuse("uct_cm_query")
    }

    /// Not supported.
    fn uct_cm_config_read(
        _component: *const Component, _prefix: *const c_char, _file: *const c_char, _config: *mut *mut c_void,
    ) -> CStatus {
        refuse("uct_cm_config_read")
    }

    /// Not supported.
    fn uct_cm_client_ep_conn_notify(_ep: *mut Ep) -> CStatus {
        refuse("uct_cm_client_ep_conn_notify")
    }

    /// Not supported: listeners of connection managers.
    fn uct_listener_create(
        _cm: *mut c_void, _address: *const libc::sockaddr, _length: libc::socklen_t, _params: *const c_void,
        _listener: *mut *mut c_void,
    ) -> CStatus {
        refuse("uct_listener_create")
    }

    /// There is nothing to destroy.
    fn uct_listener_destroy(_listener: *mut c_void) {
        refuse("uct_listener_destroy")
    }

    /// Not supported.
    fn uct_listener_reject(_listener: *mut c_void, _request: *mut c_void) -> CStatus {
        refuse("uct_listener_reject")
    }

    /// Not supported.
    fn uct_listener_query(_listener: *mut c_void, _attr: *mut c_void) -> CStatus {
        refuse("uct_listener_query")
    }

    /// Not supported.
    fn uct_iface_accept(_iface: *mut Iface, _request: *mut c_void) -> CStatus {
        refuse("uct_iface_accept")
    }

    /// Not supported.
    fn uct_iface_reject(_iface: *mut Iface, _request: *mut c_void) -> CStatus {
        refuse("uct_iface_reject")
    }

    /// Not supported.
    fn uct_ep_connect(_ep: *mut Ep, _params: *const c_void) -> CStatus {
        refuse("uct_ep_connect")
    }

    /// Not supported.
    fn uct_ep_disconnect(_ep: *mut Ep, _flags: c_uint) -> CStatus {
        refuse("uct_ep_disconnect")
    }

    /// Not supported: no memory domain reaches socket addresses.
    fn uct_md_is_sockaddr_accessible(_md: *mut c_void, _address: *const c_void, _mode: c_int) -> c_int {
        Ok(0)
    }
}

operation! {
    /// Not supported: an operation that answers a status.
    fn refused_status(_object: *mut c_void) -> CStatus {
        refuse("tag matching by a device")
    }

    /// Not supported: an operation that answers a length.
    fn refused_length(_object: *mut c_void) -> isize {
        refuse("tag matching by a device")
    }

    /// Not supported: an operation that answers a status pointer.
    fn refused_pointer(_object: *mut c_void) -> StatusPtr {
        refuse("tag matching by a device")
    }
}
