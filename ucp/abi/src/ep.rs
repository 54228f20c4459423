//! Endpoints: creation, close, attributes.

use std::cell::Cell;
use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use ::ucs::Status;
use ucp::select::{DeliveryComplete, Kind};
use ucp::{CloseMode, ConnectError, ConnectParams, ErrorMode, OpStatus};

use crate::arg::{AttrFields, AttrPtr, Fields, OutPtr, ParamsPtr, StrPtr};
use crate::context::copy_name;
use crate::entry::{CStatus, StatusPtr, invalid};
use crate::flush::wait;
use crate::handle::{Handle, Magic, checked, from_handle, from_ptr, into_handle};
use crate::op::{BYTES, Call, NoResult, run};
use crate::types::{
    EP_CLIENT_SERVER, EP_SEND_CLIENT_ID, EpAttr, EpParams, ErrorCallback, PerfAttr, PerfParam, RequestParam,
    SockAddr, TransportEntry, ep_attr, ep_params,
};
use crate::worker::{Worker, read_address};

mod reply;
pub(crate) use reply::{ReplyEps, reply_ep};

/// Bit 0 of the flags of `ucp_ep_close_nbx`: by force.
const CLOSE_FORCE: u32 = 1 << 0;
/// `UCP_EP_CLOSE_MODE_FORCE`, of the deprecated form.
const MODE_FORCE: c_uint = 0;
/// Longest flush of a close. A dead peer ends it much earlier.
const CLOSE_WITHIN: Duration = Duration::from_secs(3600);

/// `ucp_ep_h`. Used inside the lock of its worker.
#[repr(C)]
pub(crate) struct Ep {
    magic: Magic,
    pub(crate) ep: ucp::Ep,
    worker: *const Worker,
    /// Function of the program for failures; it gets the user data.
    handler: Cell<Option<ErrorCallback>>,
    pub(crate) user_data: Cell<*mut c_void>,
    /// Whether the program has named it as user data, not as the argument of the function only.
    has_user_data: Cell<bool>,
    /// This handle, for the error handler; null once it is closed.
    link: Rc<Cell<*mut Ep>>,
    name: String,
}

impl Handle for Ep {
    const MAGIC: u32 = 0x7570_6570;
    const NAME: &'static str = "endpoint";
    fn magic(&self) -> &Magic {
        &self.magic
    }
}

impl Drop for Ep {
    fn drop(&mut self) {
        self.link.set(std::ptr::null_mut());
    }
}

impl Ep {
    // HOT
    #[inline(always)]
    pub(crate) fn worker(&self) -> &Worker {
        // SAFETY: a worker frees its endpoints before it is freed.
        unsafe { &*self.worker }
    }
}

/// Parameters of an endpoint that the program chooses: a function for failures, user data, a name.
#[derive(Default)]
struct Named {
    handler: Option<ErrorCallback>,
    /// User data, or the argument of the function.
    arg: Option<*mut c_void>,
    has_user_data: bool,
    name: String,
}

impl Named {
    /// Reads the parameters. User data wins over the argument of the handler, as in UCX.
    fn read(params: &Fields<EpParams>) -> Named {
        let handler = field!(params, ep_params::ERR_HANDLER, err_handler);
        let user_data = field!(params, ep_params::USER_DATA, user_data);
        let name = field!(params, ep_params::NAME, name);
        Named {
            handler: handler.and_then(|handler| handler.cb),
            arg: user_data.or(handler.map(|handler| handler.arg)),
            has_user_data: user_data.is_some(),
            // SAFETY: the program's name is a C string.
            name: name.map_or_else(String::new, |name| unsafe { StrPtr::new(name) }.text()),
        }
    }
}

/// Hands an endpoint out, inside the lock.
fn add_ep(worker: &Worker, ep: ucp::Ep, link: Rc<Cell<*mut Ep>>, named: Named) -> *mut Ep {
    let handle = into_handle(Ep {
        magic: Magic::of::<Ep>(),
        ep,
        worker,
        handler: Cell::new(named.handler),
        user_data: Cell::new(named.arg.unwrap_or(std::ptr::null_mut())),
        has_user_data: Cell::new(named.has_user_data),
        link: link.clone(),
        name: named.name,
    });
    link.set(handle);
    worker.eps.borrow_mut().insert(handle);
    handle
}

/// The link of an endpoint that is not handed out yet.
fn new_link() -> Rc<Cell<*mut Ep>> {
    Rc::new(Cell::new(std::ptr::null_mut()))
}

/// Hands an endpoint out that the program has not created, inside the lock. It may be given a function for
/// failures later.
pub(crate) fn add_unnamed_ep(worker: &Worker, ep: ucp::Ep) -> *mut Ep {
    let link = new_link();
    ucp::set_default_error_mode(&ep, error_mode(&link));
    add_ep(worker, ep, link, Named::default())
}

fn connect_status(error: &ConnectError) -> Status {
    tracing::error!("{error}");
    error.status()
}

/// A socket address of the caller.
/// # Safety
/// It is null or has the length that it says, and begins with its family.
pub(crate) unsafe fn socket_addr(from: SockAddr) -> Result<SocketAddr, Status> {
    if from.addr.is_null() {
        return Err(invalid("the socket address is null"));
    }
    // SAFETY: this function's contract.
    let family = c_int::from(unsafe { (&raw const (*from.addr).sa_family).read_unaligned() });
    match family {
        libc::AF_INET if from.len as usize >= size_of::<libc::sockaddr_in>() => {
            // SAFETY: the length says that it is all there.
            let at = unsafe { from.addr.cast::<libc::sockaddr_in>().read_unaligned() };
            let ip = IpAddr::from(u32::from_be(at.sin_addr.s_addr).to_be_bytes());
            Ok(SocketAddr::new(ip, u16::from_be(at.sin_port)))
        }
        libc::AF_INET6 if from.len as usize >= size_of::<libc::sockaddr_in6>() => {
            // SAFETY: as above.
            let at = unsafe { from.addr.cast::<libc::sockaddr_in6>().read_unaligned() };
            let ip = std::net::Ipv6Addr::from(at.sin6_addr.s6_addr);
            let addr = std::net::SocketAddrV6::new(ip, u16::from_be(at.sin6_port), 0, at.sin6_scope_id);
            Ok(addr.into())
        }
        _ => Err(Status::InvalidAddr),
    }
}

/// A socket address as C programs get it.
pub(crate) fn socket_storage(from: SocketAddr) -> libc::sockaddr_storage {
    // SAFETY: all zeros are a value of the type.
    let mut out: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    match from {
        SocketAddr::V4(from) => {
            // SAFETY: all zeros are a value of the type.
            let mut at: libc::sockaddr_in = unsafe { std::mem::zeroed() };
            at.sin_family = libc::AF_INET as libc::sa_family_t;
            at.sin_port = from.port().to_be();
            at.sin_addr.s_addr = u32::from_be_bytes(from.ip().octets()).to_be();
            // SAFETY: storage is larger than any address.
            unsafe { (&raw mut out).cast::<libc::sockaddr_in>().write_unaligned(at) };
        }
        SocketAddr::V6(from) => {
            // SAFETY: all zeros are a value of the type.
            let mut at: libc::sockaddr_in6 = unsafe { std::mem::zeroed() };
            at.sin6_family = libc::AF_INET6 as libc::sa_family_t;
            at.sin6_port = from.port().to_be();
            at.sin6_addr.s6_addr = from.ip().octets();
            at.sin6_scope_id = from.scope_id();
            // SAFETY: storage is larger than any address.
            unsafe { (&raw mut out).cast::<libc::sockaddr_in6>().write_unaligned(at) };
        }
    }
    out
}

/// How failures of a new endpoint are told: by the function that it has then.
fn error_mode(link: &Rc<Cell<*mut Ep>>) -> ErrorMode {
    let link = link.clone();
    ErrorMode::Peer(Box::new(move |error| {
        let handle = link.get();
        // SAFETY: the link is null once the endpoint is closed.
        let Ok(ep) = (unsafe { from_ptr(handle) }) else { return };
        if let Some(cb) = ep.handler.get() {
            // SAFETY: the program's function, with the endpoint that it has not closed.
            unsafe { cb(ep.user_data.get(), handle, error.status().into()) };
        }
    }))
}

/// The peer of an endpoint that is created.
enum PeerOfEp {
    /// A client that asks a listener.
    Client(ucp::ConnRequest),
    Listener {
        to: SocketAddr,
        local: Option<SocketAddr>,
        client_id: u64,
    },
    Worker(ucp::Address),
}

fn create(worker: &Worker, params: ParamsPtr<EpParams>) -> Result<*mut Ep, Status> {
    let params = params.fields("ucp_ep_create")?;
    let mode = field!(params, ep_params::ERR_HANDLING_MODE, err_mode).unwrap_or(0);
    if !(0..=2).contains(&mode) {
        return Err(invalid("ucp_ep_create: no such err_mode"));
    }
    let flags = field!(params, ep_params::FLAGS, flags).unwrap_or(0);
    let named = Named::read(&params);
    let to = if let Some(request) = field!(params, ep_params::CONN_REQUEST, conn_request) {
        PeerOfEp::Client(from_handle(request)?.request)
    } else if flags & EP_CLIENT_SERVER != 0 || params.mask() & ep_params::SOCK_ADDR != 0 {
        let to = field!(params, ep_params::SOCK_ADDR, sockaddr)
            .ok_or_else(|| invalid("ucp_ep_create: sockaddr is missing"))?;
        let local = field!(params, ep_params::LOCAL_SOCK_ADDR, local_sockaddr);
        // SAFETY: the program's addresses are of that kind.
        let (to, local) = unsafe { (socket_addr(to)?, local.map(|local| socket_addr(local)).transpose()?) };
        let client_id = if flags & EP_SEND_CLIENT_ID != 0 { worker.client_id } else { 0 };
        PeerOfEp::Listener { to, local, client_id }
    } else {
        let at = field!(params, ep_params::REMOTE_ADDRESS, address)
            .ok_or_else(|| invalid("ucp_ep_create: address is missing"))?;
        // SAFETY: the program's address is of a worker.
        PeerOfEp::Worker(unsafe { read_address(at) }?)
    };
    // UCP_ERR_HANDLING_MODE_PEER, or _FAILOVER.
    let check_peer = mode != 0;
    // Another thread may learn of a failure as soon as the lock is free: the handler has its endpoint then.
    worker.with_worker(|plain| {
        let link = new_link();
        let ep = ucp::EpParams { errors: error_mode(&link), check_peer };
        let connected = match to {
            PeerOfEp::Client(request) => plain.accept(request, ep),
            PeerOfEp::Listener { to, local, client_id } => {
                plain.connect_to(to, ConnectParams { ep, local, client_id })
            }
            PeerOfEp::Worker(address) => plain.connect(&address, ep),
        };
        let connected = connected.map_err(|error| connect_status(&error))?;
        Ok(add_ep(worker, connected, link, named))
    })?
}

/// Changes the function for failures and the user data of an endpoint. Its peer and its error mode stay.
fn modify(ep: &Ep, params: ParamsPtr<EpParams>) -> Result<(), Status> {
    let params = params.fields("ucp_ep_modify_nb")?;
    let mask = params.mask();
    if mask & (ep_params::REMOTE_ADDRESS | ep_params::SOCK_ADDR | ep_params::ERR_HANDLING_MODE) != 0 {
        return Err(invalid("ucp_ep_modify_nb: the peer and the error mode of an endpoint stay"));
    }
    let named = Named::read(&params);
    ep.worker().with_worker(|_| {
        if mask & ep_params::ERR_HANDLER != 0 {
            ep.handler.set(named.handler);
        }
        if let Some(arg) = named.arg {
            ep.user_data.set(arg);
        }
        ep.has_user_data.set(ep.has_user_data.get() || named.has_user_data);
    })
}

/// Parameters without a callback.
const NO_CALLBACK: RequestParam = RequestParam::old(std::ptr::null(), BYTES);

/// Closes an endpoint; the handle is gone afterwards.
fn close(ep: *mut Ep, by_force: bool, call: &Call) -> Result<StatusPtr, Status> {
    let worker = checked(ep)?.worker();
    worker.with_worker(|plain| {
        let gone = from_handle(ep)?;
        gone.link.set(std::ptr::null_mut());
        worker.eps.borrow_mut().remove(&ep);
        worker.reply_eps.borrow_mut().forget(ep);
        let how = if by_force { CloseMode::Force } else { CloseMode::Flush(CLOSE_WITHIN) };
        // An endpoint that has failed is closed all the same.
        // SAFETY: the callback of a call is valid until the end.
        let closed = unsafe {
            run::<NoResult, _>(worker, plain, call, None, |done| match gone.ep.close_raw(how, done) {
                Err(_) => Ok(OpStatus::Done(())),
                closed => closed,
            })
        };
        drop(gone);
        closed
    })?
}

/// A name that lives as long as the process.
fn interned(name: &str) -> *const c_char {
    static NAMES: Mutex<Vec<CString>> = Mutex::new(Vec::new());
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    let name = CString::new(name).unwrap_or_default();
    match names.iter().position(|known| *known == name) {
        Some(at) => names[at].as_ptr(),
        None => {
            names.push(name);
            names[names.len() - 1].as_ptr()
        }
    }
}

/// Answers the transports of an endpoint, in memory that the attributes name: of each entry what it has room
/// for.
fn fill_transports(ep: &Ep, attr: &AttrFields<EpAttr>) -> Result<(), Status> {
    let Some(mut transports) = field!(attr, ep_attr::TRANSPORTS, transports) else { return Ok(()) };
    let entry_size = transports.entry_size;
    let lanes = ep.ep.protocols().lanes();
    let count = lanes.len().min(transports.num_entries as usize);
    if count > 0 && (transports.entries.is_null() || entry_size < size_of::<*const c_char>()) {
        return Err(invalid("ucp_ep_query: no room for the transports"));
    }
    for (at, (transport, device)) in lanes.iter().take(count).enumerate() {
        let entry = transports.entries.cast::<u8>().wrapping_add(at * entry_size).cast::<*const c_char>();
        // SAFETY: the attributes name room for `num_entries` of `entry_size` bytes: the first member fits.
        unsafe { entry.write_unaligned(interned(transport)) };
        if entry_size >= size_of::<TransportEntry>() {
            // SAFETY: as above; the second member fits, too.
            unsafe { entry.wrapping_add(1).write_unaligned(interned(device)) };
        }
    }
    transports.num_entries = count as c_uint;
    answer!(attr, ep_attr::TRANSPORTS, transports = transports);
    Ok(())
}

entry! {
    /// Makes an endpoint: to an address, to a socket address, or for a connection request.
    fn ucp_ep_create(worker: *mut Worker, params: ParamsPtr<EpParams>, ep: OutPtr<*mut Ep>) -> CStatus {
        if ep.is_null() {
            return Err(invalid("ucp_ep_create: ep is null"));
        }
        ep.store(create(checked(worker)?, params)?)
    }

    /// Closes an endpoint.
    fn ucp_ep_close_nbx(ep: *mut Ep, param: *const RequestParam) -> StatusPtr {
        // SAFETY: the caller's contract.
        let call = unsafe { Call::read(param) }?;
        close(ep, call.flags() & CLOSE_FORCE != 0, &call)
    }

    /// Closes an endpoint; deprecated (`ucp_compat.h`).
    fn ucp_ep_close_nb(ep: *mut Ep, mode: c_uint) -> StatusPtr {
        // SAFETY: the parameters name nothing.
        close(ep, mode == MODE_FORCE, &unsafe { Call::of(&NO_CALLBACK) })
    }

    /// Flushes and closes an endpoint; deprecated (`ucp_compat.h`).
    fn ucp_disconnect_nb(ep: *mut Ep) -> StatusPtr {
        // SAFETY: the parameters name nothing.
        close(ep, false, &unsafe { Call::of(&NO_CALLBACK) })
    }

    /// Flushes and closes an endpoint, and waits; deprecated (`ucp_compat.h`).
    fn ucp_ep_destroy(ep: *mut Ep) {
        let worker = std::ptr::from_ref(checked(ep)?.worker());
        // SAFETY: the parameters name nothing.
        let closing = close(ep, false, &unsafe { Call::of(&NO_CALLBACK) })?;
        // SAFETY: the close has just been started, and the worker outlives its endpoints.
        unsafe { wait(from_ptr(worker)?, closing) }
    }

    /// Changes the error handler and the user data of an endpoint, at once.
    fn ucp_ep_modify_nb(ep: *mut Ep, params: ParamsPtr<EpParams>) -> StatusPtr {
        modify(checked(ep)?, params).map(|()| StatusPtr::OK)
    }

    /// Name, socket addresses, transports and user data of an endpoint.
    fn ucp_ep_query(ep: *mut Ep, attr: AttrPtr<EpAttr>) -> CStatus {
        let ep = checked(ep)?;
        let attr = attr.fields("ucp_ep_query")?;
        let sockets = ep.worker().with_worker(|_| ep.ep.socket_addrs())?;
        answer!(attr, ep_attr::NAME, name = copy_name(&ep.name));
        if attr.mask() & (ep_attr::LOCAL_SOCKADDR | ep_attr::REMOTE_SOCKADDR) != 0 {
            let sockets = sockets.ok_or(Status::NotConnected)?;
            answer!(attr, ep_attr::LOCAL_SOCKADDR, local_sockaddr = socket_storage(sockets.local));
            answer!(attr, ep_attr::REMOTE_SOCKADDR, remote_sockaddr = socket_storage(sockets.remote));
        }
        if attr.mask() & ep_attr::TRANSPORTS != 0 {
            ep.worker().with_worker(|_| fill_transports(ep, &attr))??;
        }
        // The argument of the function for failures alone is none, as in UCX.
        let user_data = if ep.has_user_data.get() { ep.user_data.get() } else { std::ptr::null_mut() };
        answer!(attr, ep_attr::USER_DATA, user_data = user_data);
        Ok(())
    }

    /// Estimated time of a message, seconds.
    fn ucp_ep_evaluate_perf(ep: *mut Ep, param: ParamsPtr<PerfParam>, attr: AttrPtr<PerfAttr>) -> CStatus {
        let ep = checked(ep)?;
        let param = param.fields("ucp_ep_evaluate_perf")?;
        let len = field!(param, 1 << 0, message_size).ok_or_else(|| invalid("ucp_ep_evaluate_perf: message_size is missing"))?;
        let candidates = ep.worker().with_worker(|_| ep.ep.protocols().explain(Kind::Tagged, DeliveryComplete::No, len))?;
        let best = candidates.iter().filter_map(|candidate| candidate.ns).min().ok_or_else(|| {
            tracing::error!("ucp_ep_evaluate_perf: no protocol of the endpoint carries {len} bytes at a known cost");
            Status::Unsupported
        })?;
        let attr = attr.fields("ucp_ep_evaluate_perf")?;
        answer!(attr, 1 << 0, estimated_time = best as f64 * 1e-9);
        Ok(())
    }
}
