//! Endpoints.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::VecDeque;
use std::ffi::{c_uint, c_void};
use std::ops::Deref;
use std::rc::Rc;

use ::ucs::Status;
use ::uct::any;
use ::uct::api::{Ep as _, EpTag, Iface as _};

use super::answer;
use super::iface::{Iface, checked_iface};
use super::ops::Ops;
use super::progress::comp_of;
use super::types::{Completion, EpParams, PendingReq, ep_param};
use crate::arg::{OutPtr, ParamsPtr};
use crate::entry::{CStatus, invalid};
use crate::handle::{Magic, Named, found, free_read_inline, into_handle};

/// `uct_ep_t`, and behind it the endpoint.
#[repr(C)]
pub(crate) struct Ep {
    /// Read by inline functions of programs: the interface's, or one that refuses until it is connected.
    ops: Cell<*const Ops>,
    magic: Magic,
    iface: *const Iface,
    pub(crate) inner: Connection,
    tag: Cell<EpTag>,
    /// Operations that wait for room, in order.
    pub(crate) pending: Rc<RefCell<VecDeque<*mut PendingReq>>>,
}

/// The endpoint of the transport. Functions of the table of an interface are called of connected ones only.
pub(crate) struct Connection(OnceCell<Connected>);

/// A connected endpoint.
pub(crate) struct Connected {
    ep: any::Ep,
    /// Addresses of the device and the interface that it is connected to.
    pub(crate) remote: (Box<[u8]>, Box<[u8]>),
}

impl Connection {
    /// The endpoint, if it is connected, for functions that are exported.
    pub(crate) fn get(&self) -> Result<&Connected, Status> {
        self.0.get().ok_or(Status::NotConnected)
    }
}

impl Deref for Connection {
    type Target = any::Ep;

    // HOT
    #[inline(always)]
    fn deref(&self) -> &any::Ep {
        // SAFETY: until it is connected, the program's endpoint has a table of other functions.
        let connected = unsafe { self.0.get().unwrap_unchecked() };
        &connected.ep
    }
}

const EP: u32 = 0x7563_7465;

impl Ep {
    /// The interface, which is closed after its endpoints.
    // HOT
    #[inline(always)]
    pub(crate) fn iface(&self) -> &Iface {
        // SAFETY: the program destroys endpoints before it closes their interface.
        unsafe { &*self.iface }
    }

    /// Lets the program use the endpoint, if it is connected.
    fn begin(&self) {
        if let Ok(connected) = self.inner.get() {
            connected.ep.set_tag(self.tag.get());
            self.ops.set(self.iface.cast());
        }
    }
}

impl Named for Ep {
    const NAME: &'static str = "uct endpoint";
    const IS_STATIC: bool = false;
}

/// An endpoint of the caller on a slow path.
pub(crate) fn checked_ep<'a>(ep: *const Ep) -> Result<&'a Ep, Status> {
    found(ep)
}

/// Frees an endpoint that its interface has forgotten.
/// # Safety
/// It is live, and nobody else frees it.
pub(super) unsafe fn free(ep: *mut Ep) {
    // SAFETY: this function's contract.
    unsafe {
        (*ep).magic.clear();
        free_read_inline(ep, |ep| (&raw mut (*ep).ops).write(Cell::new(Ops::at_freed())));
    }
}

/// Connects an endpoint of the transport to addresses of the caller.
/// # Safety
/// They are null or have the lengths that the attributes of the interface say.
unsafe fn connect(iface: &Iface, device: *const c_void, address: *const c_void) -> Result<Connected, Status> {
    let attr = iface.inner.attr();
    // SAFETY: this function's contract.
    let (device, address) =
        unsafe { (super::bytes(device, attr.device_addr_len)?, super::bytes(address, attr.iface_addr_len)?) };
    let ep = iface.inner.connect(device, address).map_err(|error| {
        tracing::error!("cannot connect an endpoint of {}/{}: {error}", attr.tl, attr.dev);
        Status::Unreachable
    })?;
    Ok(Connected { ep, remote: (device.into(), address.into()) })
}

entry! {
    /// Connects a new endpoint to an interface.
    fn uct_ep_create(params: ParamsPtr<EpParams>, ep: OutPtr<*mut Ep>) -> CStatus {
        let params = params.fields("uct_ep_create")?;
        if ep.is_null() {
            return Err(invalid("uct_ep_create: ep is null"));
        }
        let Some(handle) = field!(params, ep_param::IFACE, iface) else {
            tracing::error!("uct_ep_create: endpoints are made on interfaces, not by connection managers");
            return Err(Status::Unsupported);
        };
        let iface = checked_iface(handle)?;
        let device = field!(params, ep_param::DEV_ADDR, dev_addr);
        let address = field!(params, ep_param::IFACE_ADDR, iface_addr);
        let connected = match (device, address) {
            // SAFETY: the caller's contract.
            (Some(device), Some(address)) => OnceCell::from(unsafe { connect(iface, device, address) }?),
            (None, None) => OnceCell::new(),
            _ => {
                tracing::error!("uct_ep_create: pass both addresses of an interface, or none");
                return Err(Status::Unsupported);
            }
        };
        let made = into_handle(Ep {
            ops: Cell::new(iface.unconnected()),
            magic: Magic::of_static(EP),
            iface: handle,
            inner: Connection(connected),
            tag: Cell::new(EpTag(0)),
            pending: Rc::default(),
        });
        let tag = iface.add_ep(made);
        // SAFETY: the endpoint has just been made.
        let endpoint = unsafe { &*made };
        endpoint.tag.set(tag);
        endpoint.begin();
        ep.store(made)
    }

    /// Destroys an endpoint. The program has flushed it, or its completions stay valid until they are called.
    fn uct_ep_destroy(ep: *mut Ep) {
        let destroyed = checked_ep(ep)?;
        destroyed.iface().remove_ep(destroyed.tag.get());
        // SAFETY: it is an endpoint of `uct_ep_create`, and was live until now.
        unsafe { free(ep) };
        Ok(())
    }

    /// Address of an endpoint: that of its interface, where its messages arrive.
    fn uct_ep_get_address(ep: *mut Ep, address: *mut c_void) -> CStatus {
        let iface = checked_ep(ep)?.iface();
        let own = iface.inner.iface_addr();
        // SAFETY: the caller's contract.
        unsafe { Iface::store_address(address, &own, iface.inner.attr().iface_addr_len) }
    }

    /// Connects an endpoint that was created without addresses.
    fn uct_ep_connect_to_ep(ep: *mut Ep, device: *const c_void, address: *const c_void) -> CStatus {
        let ep = checked_ep(ep)?;
        if ep.inner.get().is_ok() {
            tracing::error!("uct_ep_connect_to_ep: the endpoint is connected");
            return Err(Status::InvalidParam);
        }
        // SAFETY: the caller's contract.
        let connected = unsafe { connect(ep.iface(), device, address) }?;
        ep.inner.0.set(connected).map_err(|_| Status::InvalidParam)?;
        ep.begin();
        Ok(())
    }

    /// Asks whether the peer is alive.
    fn uct_ep_check(ep: *const Ep, flags: c_uint, completion: *mut Completion) -> CStatus {
        let ep = checked_ep(ep)?;
        if flags != 0 {
            return Err(invalid("uct_ep_check: there are no flags"));
        }
        ep.inner.get()?;
        // SAFETY: the caller's contract.
        answer(ep.inner.check(unsafe { comp_of(completion) }))
    }
}
