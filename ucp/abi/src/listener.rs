//! Client-server connections.

use ::ucs::Status;
use ucp::ListenError;

use crate::arg::{AttrPtr, OutPtr, ParamsPtr};
use crate::entry::{CStatus, invalid};
use crate::ep::{add_unnamed_ep, socket_addr, socket_storage};
use crate::handle::{Handle, Magic, checked, from_handle, into_handle};
use crate::types::{AcceptHandler, ConnHandler, ConnRequestAttr, ListenerAttr, ListenerParams};
use crate::worker::Worker;

const SOCK_ADDR: u64 = 1 << 0;
const ACCEPT_HANDLER: u64 = 1 << 1;
const CONN_HANDLER: u64 = 1 << 2;

/// `ucp_listener_h`. Used inside the lock of its worker.
#[repr(C)]
pub(crate) struct Listener {
    magic: Magic,
    listener: ucp::Listener,
    worker: *const Worker,
}

impl Handle for Listener {
    const MAGIC: u32 = 0x7570_6c73;
    const NAME: &'static str = "listener";
    fn magic(&self) -> &Magic {
        &self.magic
    }
}

/// `ucp_conn_request_h`.
#[repr(C)]
pub(crate) struct ConnRequest {
    magic: Magic,
    pub(crate) request: ucp::ConnRequest,
}

impl Handle for ConnRequest {
    const MAGIC: u32 = 0x7570_6372;
    const NAME: &'static str = "connection request";
    fn magic(&self) -> &Magic {
        &self.magic
    }
}

/// A function of the program that a listener calls, which is there.
enum OnRequest {
    Conn(ConnHandler),
    Accept(AcceptHandler),
}

impl OnRequest {
    /// Hands a client to the program.
    /// # Safety
    /// The functions are the program's, which may be called. `worker` is live.
    unsafe fn call(&self, worker: *const Worker, request: ucp::ConnRequest) {
        match self {
            OnRequest::Conn(ConnHandler { cb: Some(cb), arg }) => {
                let request = into_handle(ConnRequest { magic: Magic::of::<ConnRequest>(), request });
                // SAFETY: this function's contract.
                unsafe { cb(request, *arg) };
            }
            OnRequest::Accept(AcceptHandler { cb: Some(cb), arg }) => {
                // SAFETY: this function's contract.
                let Ok(worker) = (unsafe { crate::handle::from_ptr(worker) }) else { return };
                let accepted = worker.with_worker(|plain| {
                    plain.accept(request, ucp::EpParams::default()).map(|ep| add_unnamed_ep(worker, ep))
                });
                let ep = match accepted {
                    Ok(Ok(ep)) => ep,
                    Ok(Err(error)) => return tracing::error!("a client was not accepted: {error}"),
                    Err(status) => return tracing::error!("a client was not accepted: {status}"),
                };
                // SAFETY: this function's contract.
                unsafe { cb(ep, *arg) };
            }
            _ => {}
        }
    }
}

entry! {
    /// Listens at a socket address.
    fn ucp_listener_create(worker: *mut Worker, params: ParamsPtr<ListenerParams>, listener: OutPtr<*mut Listener>) -> CStatus {
        if listener.is_null() {
            return Err(invalid("ucp_listener_create: listener is null"));
        }
        let worker = checked(worker)?;
        let params = params.fields("ucp_listener_create")?;
        let addr = field!(params, SOCK_ADDR, sockaddr).ok_or_else(|| invalid("ucp_listener_create: sockaddr is missing"))?;
        // SAFETY: the caller's contract.
        let addr = unsafe { socket_addr(addr) }?;
        let accept = field!(params, ACCEPT_HANDLER, accept_handler);
        let conn = field!(params, CONN_HANDLER, conn_handler);
        let on_request = match (accept, conn) {
            (Some(accept), None) if accept.cb.is_some() => OnRequest::Accept(accept),
            (None, Some(conn)) if conn.cb.is_some() => OnRequest::Conn(conn),
            _ => return Err(invalid("ucp_listener_create: one of accept_handler and conn_handler is needed, with a function")),
        };
        let at = std::ptr::from_ref(worker);
        // SAFETY: progress of this worker calls this, so it is there.
        let call = move |request| unsafe { on_request.call(at, request) };
        let made = worker.with_worker(|plain| {
            plain.listen(addr, call).map(|listener| {
                let handle = into_handle(Listener { magic: Magic::of::<Listener>(), listener, worker });
                worker.listeners.borrow_mut().insert(handle);
                handle
            })
        })?;
        listener.store(made.map_err(|error| {
            tracing::error!("{error}");
            match error {
                ListenError::Socket { errno, .. } if errno.0 == libc::EADDRINUSE => Status::Busy,
                _ => Status::IoError,
            }
        })?)
    }

    /// Closes a listener.
    fn ucp_listener_destroy(listener: *mut Listener) {
        // SAFETY: a worker frees its listeners, which are no handles any more then.
        let worker = unsafe { crate::handle::from_ptr(checked(listener)?.worker) }?;
        worker.with_worker(|_| {
            worker.listeners.borrow_mut().remove(&listener);
            from_handle(listener).map(drop)
        })?
    }

    /// Socket address of a listener.
    fn ucp_listener_query(listener: *mut Listener, attr: AttrPtr<ListenerAttr>) -> CStatus {
        let listener = checked(listener)?;
        let attr = attr.fields("ucp_listener_query")?;
        answer!(attr, 1 << 0, sockaddr = socket_storage(listener.listener.local_addr()));
        Ok(())
    }

    /// Rejects a client.
    fn ucp_listener_reject(listener: *mut Listener, request: *mut ConnRequest) -> CStatus {
        checked(listener)?;
        from_handle(request)?.request.reject();
        Ok(())
    }

    /// Address and number of a client.
    fn ucp_conn_request_query(request: *mut ConnRequest, attr: AttrPtr<ConnRequestAttr>) -> CStatus {
        let request = &checked(request)?.request;
        let attr = attr.fields("ucp_conn_request_query")?;
        answer!(attr, 1 << 0, client_address = socket_storage(request.peer_addr()));
        answer!(attr, 1 << 1, client_id = request.client_id());
        Ok(())
    }
}
