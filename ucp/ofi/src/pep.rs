//! Passive endpoints: they listen at a socket address. Requests to be connected come as events; an endpoint
//! that is opened for one accepts it.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};

use ucp::{ConnRequest, SockCm, SockCmEvent, SockListener};

use crate::abi::info::Info;
use crate::abi::ops::{CmOps, EpOps, FidOps};
use crate::abi::{Fid, flags};
use crate::ep::{Ep, store_name};
use crate::eq::{Eq, OwnedInfo};
use crate::errno::Errno;
use crate::fabric::Fabric;
use crate::info::{Answer, EpKind};
use crate::object::{Object, UserCount, checked, from_handle, read, store, store_handle};
use crate::{refused, sockaddr};

/// `struct fid_pep`, and what belongs to it.
#[repr(C)]
pub(crate) struct Pep {
    fid: Fid,
    ops: &'static EpOps,
    cm: &'static CmOps,
    fabric: *const Fabric,
    users: UserCount,
    /// Attributes of the endpoints that are opened for requests.
    answer: Answer,
    eq: Cell<*const Eq>,
    addr: Cell<Option<SocketAddr>>,
    listener: Cell<Option<SockListener>>,
}

impl Object for Pep {
    const CLASS: usize = flags::CLASS_PEP;
    const NAME: &'static str = "a passive endpoint";
    fn users(&self) -> &UserCount {
        &self.users
    }
}

static FID_OPS: FidOps = refused::fid_ops(close, bind, control);

pub(crate) static EP_OPS: EpOps = EpOps {
    size: size_of::<EpOps>(),
    cancel: refused::cancel,
    getopt,
    setopt: refused::setopt,
    tx_ctx: refused::tx_context,
    rx_ctx: refused::rx_context,
    rx_size_left: refused::size_left,
    tx_size_left: refused::size_left,
};

static CM_OPS: CmOps = CmOps {
    size: size_of::<CmOps>(),
    setname,
    getname,
    getpeer: refused::getpeer,
    connect: refused::connect,
    listen,
    accept: refused::accept,
    reject,
    shutdown: refused::shutdown,
    join: refused::join,
};

/// Requests that no endpoint has been opened for, by the address of their handle.
static REQUESTS: Mutex<BTreeMap<usize, ConnRequest>> = Mutex::new(BTreeMap::new());

/// Keeps a request. Returns its handle.
fn keep_request(request: ConnRequest) -> *mut Fid {
    static NO_OPS: FidOps = refused::fid_ops(refused::close, refused::bind, refused::control);
    let fid = refused::fid(flags::CLASS_CONNREQ, std::ptr::null_mut(), &NO_OPS);
    let handle = Box::into_raw(Box::new(fid));
    REQUESTS.lock().unwrap_or_else(PoisonError::into_inner).insert(handle.addr(), request);
    handle
}

/// Takes the request of a handle, which is freed. `None`: it is none, or was taken before.
pub(crate) fn take_request(handle: *mut Fid) -> Option<ConnRequest> {
    let request = REQUESTS.lock().unwrap_or_else(PoisonError::into_inner).remove(&handle.addr())?;
    // SAFETY: `keep_request` has made it, and it was in the list.
    drop(unsafe { Box::from_raw(handle) });
    Some(request)
}

/// Handles an event of connections, in their thread. Numbers are addresses of endpoints, which close their
/// connection before they are freed.
pub(crate) fn on_cm_event(event: SockCmEvent) {
    match event {
        SockCmEvent::Requested(number, request) => {
            // SAFETY: a passive endpoint ends its listener before it is freed.
            unsafe { &*(number as usize as *const Pep) }.report(request);
        }
        SockCmEvent::Accepted(number, ..)
        | SockCmEvent::Confirmed(number)
        | SockCmEvent::Failed(number, ..)
        | SockCmEvent::Closed(number) => {
            // SAFETY: an endpoint ends its connection before it is freed.
            unsafe { &*(number as usize as *const Ep) }.on_cm_event(event);
        }
        _ => {}
    }
}

/// Opens a passive endpoint.
/// # Safety
/// `info` is null or a whole tree; `to` is null or can be written.
pub(crate) unsafe fn open(
    fabric: &Fabric,
    info: *const Info,
    to: *mut *mut Fid,
    context: *mut c_void,
) -> Result<(), Errno> {
    // SAFETY: this function's contract.
    let info = unsafe { read(info) }?;
    // SAFETY: the caller passes a whole tree.
    let answer = unsafe { Answer::of(&info) }.ok_or(Errno::INVAL)?;
    // SAFETY: as above.
    let kind = unsafe { info.ep_attr.as_ref() }.and_then(|attr| EpKind::of(attr.ep_type));
    if kind != Some(EpKind::Msg) {
        tracing::error!("fi_passive_ep: only endpoints of type FI_EP_MSG are connected");
        return Err(Errno::INVAL);
    }
    let addr = sockaddr::read(&answer.src_addr);
    let made = Pep {
        fid: refused::fid(flags::CLASS_PEP, context, &FID_OPS),
        ops: &EP_OPS,
        cm: &CM_OPS,
        fabric,
        users: UserCount::default(),
        answer,
        eq: Cell::new(std::ptr::null()),
        addr: Cell::new(addr),
        listener: Cell::new(None),
    };
    // SAFETY: this function's contract.
    unsafe { store_handle(to, made) }?;
    fabric.users().add();
    Ok(())
}

impl Pep {
    fn fabric(&self) -> &Fabric {
        // SAFETY: a fabric is not closed before its passive endpoints.
        unsafe { &*self.fabric }
    }

    fn eq(&self) -> Option<&Eq> {
        // SAFETY: a queue is not closed before the passive endpoints that use it.
        unsafe { self.eq.get().as_ref() }
    }

    /// Reports a request: its end rejects it.
    fn report(&self, request: ConnRequest) {
        let Some(eq) = self.eq() else { return };
        let data = request.data().to_vec();
        let mut answer = self.answer.clone();
        answer.src_addr = sockaddr::write(request.local_addr());
        answer.dest_addr = sockaddr::write(request.peer_addr());
        answer.handle = keep_request(request);
        match answer.build() {
            Some(info) => {
                // SAFETY: it has just been made.
                let info = unsafe { OwnedInfo::new(info) };
                eq.report_cm(flags::CONNREQ, &self.fid, Some(info), &data);
            }
            None => drop(take_request(answer.handle)),
        }
    }
}

calls! {
    /// Closes a passive endpoint. Requests that the program has not read are rejected.
    fn close(fid: *mut Fid) -> c_int {
        let pep = from_handle::<Pep>(fid)?;
        if let Some(listener) = pep.listener.take() {
            pep.fabric().cm()?.unlisten(listener);
        }
        if let Some(eq) = pep.eq() {
            eq.discard(&pep.fid);
            eq.users().remove();
        }
        pep.fabric().users().remove();
        Ok(0)
    }

    /// Takes a backlog, which is the system's own.
    fn control(fid: *mut Fid, command: c_int, arg: *mut c_void) -> c_int {
        checked::<Pep>(fid)?;
        match command {
            flags::BACKLOG => read(arg.cast::<c_int>()).map(|_| 0),
            command => Err(refused::log_refusal(&format!("fi_control of a passive endpoint: command {command}"))),
        }
    }

    fn bind(fid: *mut Fid, to: *mut Fid, flags: u64) -> c_int {
        let pep: &Pep = checked(fid)?;
        let eq: &Eq = checked(to)?;
        if flags != 0 || !pep.eq.get().is_null() {
            return Err(Errno::INVAL);
        }
        pep.eq.set(eq);
        eq.users().add();
        Ok(0)
    }

    /// Listens at the address, whose port may be the system's choice.
    fn listen(fid: *mut Fid) -> c_int {
        let pep: &Pep = checked(fid)?;
        if pep.eq().is_none() {
            return Err(Errno::NOEQ);
        }
        if pep.listener.get().is_some() {
            return Err(Errno::OPBADSTATE);
        }
        let addr = pep.addr.get().unwrap_or_else(|| SocketAddr::from(([0; 4], 0)));
        let number = std::ptr::from_ref(pep).addr() as u64;
        let (listener, bound) = pep.fabric().cm()?.listen(addr, number).map_err(|error| {
            tracing::error!("fi_listen: {addr}: {error}");
            Errno(error.0)
        })?;
        pep.listener.set(Some(listener));
        pep.addr.set(Some(bound));
        Ok(0)
    }

    fn getname(fid: *mut Fid, name: *mut c_void, len: *mut usize) -> c_int {
        let pep: &Pep = checked(fid)?;
        let addr = pep.addr.get().ok_or(Errno::ADDRNOTAVAIL)?;
        store_name(&sockaddr::write(addr), name, len).map(|()| 0)
    }

    /// Chooses the address to listen at.
    fn setname(fid: *mut Fid, name: *mut c_void, len: usize) -> c_int {
        let pep: &Pep = checked(fid)?;
        if name.is_null() || pep.listener.get().is_some() {
            return Err(Errno::INVAL);
        }
        // SAFETY: the caller passes a name of this length.
        let name = unsafe { std::slice::from_raw_parts(name.cast::<u8>(), len) };
        pep.addr.set(Some(sockaddr::read(name).ok_or(Errno::INVAL)?));
        Ok(0)
    }

    /// Rejects a request, with data for the client.
    fn reject(fid: *mut Fid, handle: *mut Fid, data: *const c_void, len: usize) -> c_int {
        checked::<Pep>(fid)?;
        if len > SockCm::MAX_DATA || (data.is_null() && len > 0) {
            return Err(Errno::INVAL);
        }
        let request = take_request(handle).ok_or(Errno::INVAL)?;
        // SAFETY: the caller passes as many bytes; none are read at a null pointer.
        let data = if len == 0 { &[] } else { unsafe { std::slice::from_raw_parts(data.cast::<u8>(), len) } };
        request.reject_with(data);
        Ok(0)
    }

    fn getopt(fid: *mut Fid, level: c_int, name: c_int, value: *mut c_void, len: *mut usize) -> c_int {
        checked::<Pep>(fid)?;
        if (level, name) != (flags::OPT_ENDPOINT, flags::OPT_CM_DATA_SIZE) {
            return Err(Errno::NOPROTOOPT);
        }
        let room = read(len)?;
        store(len, size_of::<usize>())?;
        if room < size_of::<usize>() {
            return Err(Errno::TOOSMALL);
        }
        store(value.cast::<usize>(), SockCm::MAX_DATA).map(|()| 0)
    }
}
