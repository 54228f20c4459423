//! The connection of an endpoint of type `FI_EP_MSG`: an engine with one peer, whose address comes over TCP.
//! The thread of connections ([`ucp::SockCm`]) reports what becomes of it; the endpoint of the engine is made
//! when the first operation needs it.

use std::cell::{Cell, RefCell};
use std::ffi::{c_int, c_void};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Mutex, PoisonError};

use ucp::{Address, ConnRequest, ConnectFailure, SockCm, SockCmEvent, SockConn};

use super::Ep;
use super::ep_fid::EpFid;
use super::setup::{FLUSH_WITHIN, store_name};
use crate::abi::info::Info;
use crate::abi::{Fid, flags};
use crate::eq::{CmError, Eq};
use crate::errno::Errno;
use crate::info::EpKind;
use crate::object::Object;
use crate::sockaddr;

/// Stages of a connection.
const IDLE: u8 = 0;
const CONNECTING: u8 = 1;
const CONNECTED: u8 = 2;
const DOWN: u8 = 3;
/// There never was a connection, and there will be none.
const FAILED: u8 = 4;

/// Calls of progress without an event after which nothing of a peer that has gone is left.
const MAX_EMPTY: u32 = 16;

/// A connection, before it is made and after. The thread of connections uses `stage`, `peer`, `is_held` and
/// `eq`.
pub(super) struct Connection {
    eq: Cell<*const Eq>,
    stage: AtomicU8,
    /// Address of the peer's worker.
    peer: Mutex<Option<Address>>,
    conn: Cell<Option<SockConn>>,
    /// The request that the endpoint was opened for.
    request: RefCell<Option<ConnRequest>>,
    /// The peer has closed the connection, which the event queue holds back.
    is_held: AtomicBool,
    local: Cell<Option<SocketAddr>>,
    remote: Cell<Option<SocketAddr>>,
}

impl Default for Connection {
    fn default() -> Connection {
        Connection {
            eq: Cell::new(std::ptr::null()),
            stage: AtomicU8::new(IDLE),
            peer: Mutex::default(),
            conn: Cell::new(None),
            request: RefCell::default(),
            is_held: AtomicBool::new(false),
            local: Cell::new(None),
            remote: Cell::new(None),
        }
    }
}

impl Connection {
    /// The connection of an endpoint that is opened.
    /// # Safety
    /// `info` is a whole tree.
    pub(super) unsafe fn of(info: &Info) -> Result<Connection, Errno> {
        let made = Connection::default();
        // SAFETY: this function's contract.
        unsafe {
            made.local.set(sockaddr::of_caller(info.src_addr));
            made.remote.set(sockaddr::of_caller(info.dest_addr));
        }
        if !info.handle.is_null() {
            let Some(request) = crate::pep::take_request(info.handle) else {
                tracing::error!("fi_endpoint: the handle is no request to be connected, or has been used");
                return Err(Errno::INVAL);
            };
            made.local.set(Some(request.local_addr()));
            made.remote.set(Some(request.peer_addr()));
            *made.request.borrow_mut() = Some(request);
        }
        Ok(made)
    }

    pub(super) fn eq(&self) -> Option<&Eq> {
        // SAFETY: a queue is not closed before the endpoints that use it.
        unsafe { self.eq.get().as_ref() }
    }

    pub(super) fn bind(&self, eq: &Eq) -> Result<(), Errno> {
        if !self.eq.get().is_null() {
            return Err(Errno::INVAL);
        }
        self.eq.set(eq);
        eq.users().add();
        Ok(())
    }

    /// Address of the peer's worker, once there is a connection.
    pub(super) fn peer(&self) -> Option<Address> {
        self.peer.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_peer(&self, address: Address) {
        *self.peer.lock().unwrap_or_else(PoisonError::into_inner) = Some(address);
    }

    /// The socket address of this end.
    pub(super) fn local_name(&self) -> Result<Vec<u8>, Errno> {
        self.local.get().map(sockaddr::write).ok_or(Errno::ADDRNOTAVAIL)
    }

    fn begin(&self) -> Result<(), Errno> {
        let begun = self.stage.compare_exchange(IDLE, CONNECTING, Ordering::AcqRel, Ordering::Acquire);
        begun.map(drop).map_err(|stage| {
            if stage == DOWN || stage == FAILED { Errno::OPBADSTATE } else { Errno(libc::EISCONN) }
        })
    }
}

/// The error of a connection that there is not.
fn errno_of(why: ConnectFailure) -> Errno {
    match why {
        ConnectFailure::Refused | ConnectFailure::Rejected => Errno::CONNREFUSED,
        ConnectFailure::Malformed => Errno(libc::EPROTO),
        why => Errno::of_status(why.status()),
    }
}

/// Data of the program that goes with a call.
/// # Safety
/// `at` is null or has `len` bytes, as long as the result is used.
unsafe fn data_of<'a>(at: *const c_void, len: usize) -> Result<&'a [u8], Errno> {
    match (at.is_null(), len) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(Errno::INVAL),
        (false, len) if len > SockCm::MAX_DATA => Err(Errno::INVAL),
        // SAFETY: the caller passes as many bytes.
        (false, len) => Ok(unsafe { std::slice::from_raw_parts(at.cast(), len) }),
    }
}

/// The endpoint of a call, which has to be of type `FI_EP_MSG`.
/// # Safety
/// As for [`EpFid::checked`].
unsafe fn of_type_msg<'a>(fid: *mut Fid) -> Result<&'a Ep, Errno> {
    // SAFETY: this function's contract.
    let (ep, _) = unsafe { EpFid::checked(fid) }?;
    if ep.kind != EpKind::Msg {
        return Err(crate::refused::log_refusal("the endpoint is not of type FI_EP_MSG"));
    }
    Ok(ep)
}

impl Ep {
    /// Number of the endpoint in events.
    fn number(&self) -> u64 {
        std::ptr::from_ref(self).addr() as u64
    }

    /// Handles an event of the connection, in the thread of connections.
    pub(crate) fn on_cm_event(&self, event: SockCmEvent) {
        let Some(eq) = self.connection.eq() else { return };
        let fid = std::ptr::from_ref(&self.ep_fid.fid);
        let set = |stage: u8| {
            self.connection.stage.store(stage, Ordering::Release);
            self.can_send.store(stage == CONNECTED, Ordering::Release);
        };
        match event {
            SockCmEvent::Accepted(_, address, data) => {
                self.connection.set_peer(address);
                set(CONNECTED);
                eq.report_cm(flags::CONNECTED, fid, None, &data);
            }
            SockCmEvent::Confirmed(_) => {
                set(CONNECTED);
                eq.report_cm(flags::CONNECTED, fid, None, &[]);
            }
            SockCmEvent::Failed(_, why, data) => {
                set(FAILED);
                tracing::debug!("an endpoint is not connected: {why}");
                let prov_errno = why.status().code();
                eq.report_cm_error(&self.ep_fid.fid, CmError { errno: errno_of(why), prov_errno, data });
            }
            SockCmEvent::Closed(_) => {
                set(DOWN);
                eq.hold_shutdown(fid);
                self.connection.is_held.store(true, Ordering::Release);
            }
            _ => {}
        }
    }

    /// Reports that the peer has closed the connection, if it has and nothing of it is left to be read.
    /// Inside the lock, when a read of a queue has found nothing.
    // HOT
    #[inline(always)]
    pub(crate) fn release_shutdown(&self, plain: &ucp::Worker) {
        if self.connection.is_held.load(Ordering::Acquire) {
            self.release_held(plain);
        }
    }

    #[cold]
    fn release_held(&self, plain: &ucp::Worker) {
        // What the peer sent has arrived before its event. A call may look at some of the transports only.
        let mut empty = 0;
        while self.rx.ring.is_empty() && empty < MAX_EMPTY {
            empty = if plain.progress() == 0 { empty + 1 } else { 0 };
        }
        if self.rx.ring.is_empty()
            && self.connection.is_held.swap(false, Ordering::AcqRel)
            && let Some(eq) = self.connection.eq()
        {
            eq.release_shutdown(&self.ep_fid.fid);
        }
    }

    /// Why an operation cannot be started.
    // HOT
    #[cold]
    pub(super) fn refusal(&self) -> Errno {
        match self.connection.stage.load(Ordering::Acquire) {
            DOWN => Errno::SHUTDOWN,
            _ if self.kind == EpKind::Msg && self.is_enabled.load(Ordering::Relaxed) => Errno::NOTCONN,
            _ => Errno::OPBADSTATE,
        }
    }

    fn worker_address(&self) -> Address {
        self.inside(|plain| plain.address())
    }

    /// Ends the connection, for good: no event of it comes any more.
    pub(super) fn disconnect(&self) {
        if let (Some(conn), Ok(cm)) = (self.connection.conn.take(), self.domain().fabric().cm()) {
            cm.close(conn, self.number());
        }
        drop(self.connection.request.take());
        // SAFETY: a queue is not closed before the endpoints that use it.
        if let Some(eq) = unsafe { self.connection.eq.replace(std::ptr::null()).as_ref() } {
            eq.discard(&self.ep_fid.fid);
            eq.users().remove();
        }
    }
}

calls! {
    /// Connects to a socket address; the event queue tells what becomes of it.
    fn connect(fid: *mut Fid, addr: *const c_void, data: *const c_void, len: usize) -> c_int {
        let ep = of_type_msg(fid)?;
        let data = data_of(data, len)?;
        let connection = &ep.connection;
        // SAFETY: the caller passes a socket address.
        let to = unsafe { sockaddr::of_caller(addr) }.or(connection.remote.get()).ok_or(Errno::INVAL)?;
        if !ep.is_enabled.load(Ordering::Relaxed) {
            ep.enable()?;
        }
        let (address, cm) = (ep.worker_address(), ep.domain().fabric().cm()?);
        connection.begin()?;
        let from = connection.local.get();
        let (conn, local) = cm.connect((from, to), ep.number(), &address, data).map_err(|why| {
            connection.stage.store(IDLE, Ordering::Release);
            tracing::error!("fi_connect: {to}: {why}");
            errno_of(why)
        })?;
        connection.conn.set(Some(conn));
        connection.local.set(local.or(from));
        connection.remote.set(Some(to));
        Ok(0)
    }

    /// Accepts the request that the endpoint was opened for.
    fn accept(fid: *mut Fid, data: *const c_void, len: usize) -> c_int {
        let ep = of_type_msg(fid)?;
        let data = data_of(data, len)?;
        let connection = &ep.connection;
        if !ep.is_enabled.load(Ordering::Relaxed) {
            ep.enable()?;
        }
        let (address, cm) = (ep.worker_address(), ep.domain().fabric().cm()?);
        let request = connection.request.take().ok_or(Errno::OPBADSTATE)?;
        connection.begin()?;
        connection.set_peer(request.address().clone());
        let conn = cm.accept(request, ep.number(), &address, data).map_err(|why| {
            connection.stage.store(FAILED, Ordering::Release);
            errno_of(why)
        })?;
        connection.conn.set(Some(conn));
        Ok(0)
    }

    /// Disconnects, when what has been sent has left the endpoint. Both sides get `FI_SHUTDOWN`, once.
    fn shutdown(fid: *mut Fid, flags: u64) -> c_int {
        let ep = of_type_msg(fid)?;
        if flags != 0 {
            return Err(Errno::BADFLAGS);
        }
        let conn = ep.connection.conn.take().ok_or(Errno::NOTCONN)?;
        let flushed = ep.inside(|plain| plain.flush_within(FLUSH_WITHIN).wait().is_ok());
        if !flushed {
            tracing::debug!("fi_shutdown: not everything that was sent has left the endpoint");
        }
        ep.domain().fabric().cm()?.close(conn, ep.number());
        ep.can_send.store(false, Ordering::Release);
        // Unless the peer was faster, which has been reported.
        if ep.connection.stage.swap(DOWN, Ordering::AcqRel) == CONNECTED
            && let Some(eq) = ep.connection.eq()
        {
            eq.report_cm(flags::SHUTDOWN, &ep.ep_fid.fid, None, &[]);
        }
        Ok(0)
    }

    /// Socket address of the peer.
    fn getpeer(fid: *mut Fid, name: *mut c_void, len: *mut usize) -> c_int {
        let ep = of_type_msg(fid)?;
        if ep.connection.stage.load(Ordering::Acquire) != CONNECTED {
            return Err(Errno::NOTCONN);
        }
        let peer = ep.connection.remote.get().ok_or(Errno::NOTCONN)?;
        store_name(&sockaddr::write(peer), name, len).map(|()| 0)
    }

    /// Chooses the socket address to connect from.
    fn setname(fid: *mut Fid, name: *mut c_void, len: usize) -> c_int {
        let ep = of_type_msg(fid)?;
        if name.is_null() || ep.connection.stage.load(Ordering::Acquire) != IDLE {
            return Err(Errno::INVAL);
        }
        // SAFETY: the caller passes a name of this length.
        let name = unsafe { std::slice::from_raw_parts(name.cast::<u8>(), len) };
        ep.connection.local.set(Some(sockaddr::read(name).ok_or(Errno::INVAL)?));
        Ok(0)
    }
}
