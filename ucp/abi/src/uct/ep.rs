//! Endpoints.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::ffi::{c_uint, c_void};
use std::rc::Rc;

use ::ucs::Status;
use ::uct::any;
use ::uct::api::{Ep as _, Iface as _};

use super::answer;
use super::iface::{Iface, checked_iface};
use super::progress::comp_of;
use super::types::{Completion, EpParams, PendingReq, ep_param};
use crate::entry::{CStatus, mask_of};
use crate::handle::{Magic, Named, into_handle, store, take};

/// `uct_ep_t`, and behind it the endpoint.
#[repr(C)]
pub(crate) struct Ep {
    /// Read by inline functions of programs.
    iface: *const Iface,
    magic: Magic,
    pub(crate) inner: any::Ep,
    /// Addresses of the device and the interface that it is connected to.
    pub(crate) remote: (Box<[u8]>, Box<[u8]>),
    /// Operations that wait for room, in order.
    pub(crate) pending: Rc<RefCell<VecDeque<*mut PendingReq>>>,
}

const EP: u32 = 0x7563_7465;

impl Ep {
    /// The interface, which is closed after its endpoints. // HOT
    #[inline(always)]
    pub(crate) fn iface(&self) -> &Iface {
        // SAFETY: the program destroys endpoints before it closes their interface.
        unsafe { &*self.iface }
    }
}

impl Named for Ep {
    const NAME: &'static str = "uct endpoint";
    const IS_STATIC: bool = false;
}

/// An endpoint of the caller on a slow path.
pub(crate) fn checked_ep<'a>(ep: *const Ep) -> Result<&'a Ep, Status> {
    // SAFETY: a handle that is not null is one of ours and has not been freed.
    let found = unsafe { ep.as_ref() }.ok_or(Status::InvalidParam)?;
    if found.magic.kind() == EP {
        return Ok(found);
    }
    tracing::error!("not a uct endpoint handle, or one that has been destroyed: {ep:p}");
    Err(Status::InvalidParam)
}

entry! {
    /// Connects a new endpoint to an interface.
    fn uct_ep_create(params: *const EpParams, ep: *mut *mut Ep) -> CStatus {
        let mask = mask_of(params)?;
        if ep.is_null() {
            return Err(Status::InvalidParam);
        }
        let Some(handle) = field!(params, mask, ep_param::IFACE, iface) else {
            tracing::error!("uct_ep_create: endpoints are made on interfaces, not by connection managers");
            return Err(Status::Unsupported);
        };
        let iface = checked_iface(handle)?;
        let device = field!(params, mask, ep_param::DEV_ADDR, dev_addr);
        let address = field!(params, mask, ep_param::IFACE_ADDR, iface_addr);
        let Some((device, address)) = device.zip(address) else {
            tracing::error!("uct_ep_create: an endpoint is connected to an interface: pass both addresses");
            return Err(Status::Unsupported);
        };
        let attr = iface.inner.attr();
        let device = super::bytes(device, attr.device_addr_len)?;
        let address = super::bytes(address, attr.iface_addr_len)?;
        let inner = iface.inner.connect(device, address).map_err(|error| {
            tracing::error!("cannot connect an endpoint of {}/{}: {error}", attr.tl, attr.dev);
            Status::Unreachable
        })?;
        let remote = (device.into(), address.into());
        let made = Ep { iface: handle, magic: Magic::of_static(EP), inner, remote, pending: Rc::default() };
        let made = into_handle(made);
        let tag = iface.add_ep(made);
        // SAFETY: the endpoint has just been made.
        unsafe { (*made).inner.set_tag(tag) };
        store(ep, made)
    }

    /// Destroys an endpoint. The program has flushed it, or its completions stay valid until they are called.
    fn uct_ep_destroy(ep: *mut Ep) {
        let destroyed = checked_ep(ep)?;
        destroyed.iface().remove_ep(destroyed.inner.tag());
        destroyed.magic.clear();
        // SAFETY: it is an endpoint of `uct_ep_create`, which the program destroys once.
        drop(unsafe { take(ep) });
        Ok(())
    }

    /// Not supported: endpoints have no addresses, they connect to interfaces.
    fn uct_ep_get_address(ep: *mut Ep, _address: *mut c_void) -> CStatus {
        checked_ep(ep)?;
        Err(Status::Unsupported)
    }

    /// Not supported, for the same reason.
    fn uct_ep_connect_to_ep(ep: *mut Ep, _device: *const c_void, _address: *const c_void) -> CStatus {
        checked_ep(ep)?;
        Err(Status::Unsupported)
    }

    /// Asks whether the peer is alive.
    fn uct_ep_check(ep: *const Ep, flags: c_uint, completion: *mut Completion) -> CStatus {
        let ep = checked_ep(ep)?;
        if flags != 0 {
            return Err(Status::InvalidParam);
        }
        answer(ep.inner.check(comp_of(completion)))
    }
}
