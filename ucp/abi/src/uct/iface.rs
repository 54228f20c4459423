//! Interfaces: opened on a memory domain, progressed by a worker.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::AsRawFd as _;

use ::ucs::Status;
use ::uct::any;
use ::uct::api::{EpTag, Error, Events, Iface as _};

use super::config::Config;
use super::ep::Ep;
use super::md::{Md, allocate, free, memory_name};
use super::ops::Ops;
use super::progress::{Handler, progress_member};
use super::types::{
    self, AM_IDS, AllocatedMemory, AmCallback, ErrorHandler, IfaceParams, OPEN_MODE_DEVICE, event_flag,
    iface_param,
};
use super::worker::{Worker, checked_worker};
use crate::arg::{Fields, OutPtr, ParamsPtr, StrPtr};
use crate::entry::{CStatus, invalid};
use crate::handle::{Named, checked, found, free_read_inline, into_handle};
use crate::types::thread_mode;

/// `uct_iface_t`, and behind it the interface.
#[repr(C)]
pub(crate) struct Iface {
    /// Called by inline functions of programs. Also tells that this is an interface.
    ops: Ops,
    pub(crate) inner: any::Iface,
    /// Called of endpoints that are not connected.
    unconnected: Ops,
    /// Number of the memory domain.
    pub(crate) md_id: usize,
    md: *mut Md,
    worker: *mut Worker,
    /// Number in the worker, while progress is enabled.
    member: Cell<Option<c_int>>,
    pub(crate) is_progressing: Cell<bool>,
    /// Messages go to their handler within the send: mostly there is nothing to progress.
    pub(crate) delivers_within_send: Cell<bool>,
    pub(crate) handlers: [Cell<Option<Handler>>; AM_IDS],
    on_error: Option<(ErrorHandler, *mut c_void)>,
    /// Endpoints by the numbers that errors name.
    eps: RefCell<HashMap<u64, *mut Ep>>,
    next_ep: Cell<u64>,
    /// Room for what callbacks pack where the remote range is short.
    pub(crate) scratch: RefCell<Vec<u8>>,
}

impl Iface {
    /// The operations of endpoints that are not connected.
    pub(crate) fn unconnected(&self) -> *const Ops {
        &self.unconnected
    }

    /// Gives an endpoint a number.
    pub(crate) fn add_ep(&self, ep: *mut Ep) -> EpTag {
        let tag = self.next_ep.get();
        self.next_ep.set(tag + 1);
        self.eps.borrow_mut().insert(tag, ep);
        EpTag(tag)
    }

    /// Forgets an endpoint.
    pub(crate) fn remove_ep(&self, tag: EpTag) {
        self.eps.borrow_mut().remove(&tag.0);
    }

    /// Tells the program of the failure of an operation without a completion.
    #[cold]
    pub(crate) fn report_error(&self, tag: EpTag, error: Error) {
        let ep = self.eps.borrow().get(&tag.0).copied();
        let Some(((call, arg), ep)) = self.on_error.zip(ep) else {
            return tracing::warn!("operation without a completion failed: {error}");
        };
        // SAFETY: the handler is the program's, and the endpoint has not been destroyed.
        let answer = unsafe { call(arg, ep, error.status().into()) };
        if answer != CStatus(0) {
            tracing::error!("the error handler of an interface answers {}; the error was: {error}", answer.0);
        }
    }

    /// The address with zeros behind it, as the program has `length` bytes for it.
    /// # Safety
    /// `to` is null or has room for `length` bytes.
    pub(crate) unsafe fn store_address(to: *mut c_void, address: &[u8], length: usize) -> Result<(), Status> {
        if length == 0 {
            return Ok(());
        }
        if to.is_null() || address.len() > length {
            return Err(invalid("no room for the address"));
        }
        // SAFETY: this function's contract.
        unsafe {
            to.cast::<u8>().write_bytes(0, length);
            to.cast::<u8>().copy_from_nonoverlapping(address.as_ptr(), address.len());
        }
        Ok(())
    }
}

impl Named for Iface {
    const NAME: &'static str = "interface";
    const IS_STATIC: bool = false;
}

/// An interface of the caller on a slow path: it has our operations.
pub(crate) fn checked_iface<'a>(iface: *const Iface) -> Result<&'a Iface, Status> {
    found(iface)
}

/// Checks that the parameters name the transport and device of a domain.
fn check_params(params: &Fields<IfaceParams>, md: &Md) -> Result<(), Status> {
    let mode = field!(params, iface_param::OPEN_MODE, open_mode).unwrap_or(OPEN_MODE_DEVICE);
    if mode & OPEN_MODE_DEVICE == 0 {
        tracing::error!("uct_iface_open: interfaces are opened on devices, not on socket addresses");
        return Err(Status::Unsupported);
    }
    // SAFETY: the open mode says that both names are there, which are C strings.
    let (tl, dev) = unsafe {
        let params = params.at();
        (
            StrPtr::new((&raw const (*params).tl_name).read()),
            StrPtr::new((&raw const (*params).dev_name).read()),
        )
    };
    if tl.get().is_none() || dev.get().is_none() {
        return Err(invalid("tl or dev is null"));
    }
    let (tl, dev) = (tl.text(), dev.text());
    if tl != md.component.tl || dev != md.dev {
        tracing::error!("uct_iface_open: memory domain {} is not one of {tl}/{dev}", md.name());
        return Err(Status::NoDevice);
    }
    Ok(())
}

/// Lets `self` call handlers within the send, as UCX's does: a message needs neither the queue nor progress.
/// # Safety
/// `made` is live, until `uct_iface_close` ends this.
unsafe fn deliver_within_send(made: *mut Iface) {
    // SAFETY: this function's contract.
    let iface = unsafe { &*made };
    if !iface.inner.deliver_within_send(true) {
        return;
    }
    iface.delivers_within_send.set(true);
    for id in 0..AM_IDS as u8 {
        // SAFETY: messages are delivered within the send until `uct_iface_close`.
        iface.inner.set_am_handler(id, Some(Box::new(move |am| unsafe { (*made).on_am(am) })));
    }
}

entry! {
    /// Opens an interface.
    fn uct_iface_open(
        md: *mut Md, worker: *mut Worker, params: ParamsPtr<IfaceParams>, config: *const Config,
        iface: OutPtr<*mut Iface>,
    ) -> CStatus {
        let (domain, group) = (checked(md.cast_const())?, checked_worker(worker)?);
        let params = params.fields("uct_iface_open")?;
        if iface.is_null() {
            return Err(invalid("uct_iface_open: iface is null"));
        }
        check_params(&params, domain)?;
        let source = if config.is_null() { &super::component::from_env()? } else { &checked(config)?.source };
        let opened = match group.mode {
            thread_mode::SINGLE => any::open_iface(&domain.md, source),
            thread_mode::SERIALIZED => any::open_iface_for_threads(&domain.md, source),
            _ => {
                tracing::error!("uct_iface_open: interfaces of a worker of UCS_THREAD_MODE_MULTI are not supported");
                return Err(Status::Unsupported);
            }
        };
        let inner = opened.map_err(|error| {
            tracing::error!("cannot open an interface of {}: {error}", domain.name());
            error.status()
        })?;
        let handler = field!(params, iface_param::ERR_HANDLER, err_handler).flatten();
        let arg = field!(params, iface_param::ERR_HANDLER_ARG, err_handler_arg);
        let made = into_handle(Iface {
            ops: Ops::new(),
            unconnected: Ops::unconnected(),
            inner,
            md_id: domain.id,
            md,
            worker,
            member: Cell::new(None),
            is_progressing: Cell::new(false),
            delivers_within_send: Cell::new(false),
            handlers: [const { Cell::new(None) }; AM_IDS],
            on_error: handler.map(|handler| (handler, arg.unwrap_or(std::ptr::null_mut()))),
            eps: RefCell::default(),
            next_ep: Cell::new(1),
            scratch: RefCell::default(),
        });
        if group.mode == thread_mode::SINGLE {
            // SAFETY: the interface has just been made.
            unsafe { deliver_within_send(made) };
        }
        iface.store(made)
    }

    /// Closes an interface. Destroys endpoints that the program has left.
    fn uct_iface_close(iface: *mut Iface) {
        let closed = checked_iface(iface)?;
        let left = closed.eps.take();
        if !left.is_empty() {
            tracing::warn!("uct_iface_close: {} endpoints have not been destroyed: they are now", left.len());
        }
        for ep in left.into_values() {
            // SAFETY: the interface had it until now, as it does until `uct_ep_destroy`.
            unsafe { super::ep::free(ep) };
        }
        // A worker that the program has destroyed before has no members.
        if let (Some(member), Ok(worker)) = (closed.member.take(), checked_worker(closed.worker)) {
            worker.remove(member);
        }
        // Endpoints of other interfaces keep what `inner` is a handle to, and the functions below with it.
        closed.inner.deliver_within_send(false);
        // SAFETY: it is an interface of `uct_iface_open`, and was live until now.
        unsafe { free_read_inline(iface, |iface| (&raw mut (*iface).ops).write(Ops::freed())) };
        Ok(())
    }

    /// Answers all attributes.
    fn uct_iface_query(iface: *mut Iface, attr: OutPtr<types::IfaceAttr>) -> CStatus {
        attr.store(super::attr::attr_of(checked_iface(iface)?.inner.attr()))
    }

    /// Stores the address of the device.
    fn uct_iface_get_device_address(iface: *mut Iface, address: *mut c_void) -> CStatus {
        let iface = checked_iface(iface)?;
        // SAFETY: the caller's contract.
        unsafe { Iface::store_address(address, &iface.inner.device_addr(), iface.inner.attr().device_addr_len) }
    }

    /// Stores the address of the interface.
    fn uct_iface_get_address(iface: *mut Iface, address: *mut c_void) -> CStatus {
        let iface = checked_iface(iface)?;
        // SAFETY: the caller's contract.
        unsafe { Iface::store_address(address, &iface.inner.iface_addr(), iface.inner.attr().iface_addr_len) }
    }

    /// Whether an endpoint to an address can be created; without an interface's address, to the device.
    fn uct_iface_is_reachable(
        iface: *mut Iface, device: *const c_void, address: *const c_void,
    ) -> c_int {
        let iface = checked_iface(iface)?;
        let attr = iface.inner.attr();
        // SAFETY: the caller's contract.
        let device = unsafe { super::bytes(device, attr.device_addr_len) }?;
        let own = iface.inner.iface_addr();
        // SAFETY: as above.
        let address = if address.is_null() { &own } else { unsafe { super::bytes(address, attr.iface_addr_len) }? };
        match iface.inner.reachable(device, address) {
            Ok(()) => Ok(1),
            Err(error) => {
                tracing::debug!("not reachable: {error}");
                Ok(0)
            }
        }
    }

    /// Sets the handler of an active message id; null removes it.
    fn uct_iface_set_am_handler(
        iface: *mut Iface, id: u8, call: Option<AmCallback>, arg: *mut c_void, _flags: u32,
    ) -> CStatus {
        let handler = checked_iface(iface)?.handlers.get(usize::from(id));
        let handler = handler.ok_or_else(|| invalid("uct_iface_set_am_handler: no such id"))?;
        handler.set(call.map(|call| Handler { call, arg }));
        Ok(())
    }

    /// Takes a tracer of active messages, which is never called: messages are not logged one by one.
    fn uct_iface_set_am_tracer(iface: *mut Iface, _tracer: *const c_void, _arg: *mut c_void) -> CStatus {
        checked_iface(iface).map(drop)
    }

    /// Allocates memory that peers of the interface reach, and registers it.
    fn uct_iface_mem_alloc(
        iface: *mut Iface, length: usize, flags: c_uint, name: StrPtr, memory: OutPtr<AllocatedMemory>,
    ) -> CStatus {
        let iface = checked_iface(iface)?;
        if memory.is_null() || length == 0 {
            return Err(invalid("uct_iface_mem_alloc: memory is null, or length is 0"));
        }
        let nowhere = std::ptr::null_mut();
        memory.store(allocate(iface.md, iface.inner.md(), None, length, flags, nowhere, &memory_name(name))?)
    }

    /// Frees memory of `uct_iface_mem_alloc`.
    fn uct_iface_mem_free(memory: *const AllocatedMemory) {
        // SAFETY: the caller's contract.
        unsafe { free(memory) }
    }

    /// Stores a descriptor that becomes readable after `uct_iface_event_arm`.
    fn uct_iface_event_fd_get(iface: *mut Iface, fd: OutPtr<c_int>) -> CStatus {
        let iface = checked_iface(iface)?;
        fd.store(iface.inner.event_fd().map_err(Error::status)?.as_raw_fd())
    }

    /// Arms the descriptor for one wake-up. Busy: progress first.
    fn uct_iface_event_arm(iface: *mut Iface, events: c_uint) -> CStatus {
        let iface = checked_iface(iface)?;
        let mut wanted = Events::empty();
        wanted.set(Events::SEND, u64::from(events) & event_flag::SEND_COMP != 0);
        wanted.set(Events::RECV, u64::from(events) & (event_flag::RECV | event_flag::RECV_SIG) != 0);
        match iface.inner.arm(wanted) {
            Ok(true) => Ok(()),
            Ok(false) => Err(Status::Busy),
            Err(error) => Err(error.status()),
        }
    }
}

/// `UCT_PROGRESS_SEND | UCT_PROGRESS_RECV`: both are progressed together.
const BOTH: c_uint = 3;

operation! {
    /// Has the worker progress the interface.
    fn progress_enable(handle: *mut Iface, flags: c_uint) {
        let iface = checked_iface(handle)?;
        if flags & BOTH != 0 && iface.member.get().is_none() {
            // SAFETY: an interface leaves the worker before it is freed.
            let member = unsafe { checked_worker(iface.worker)?.add(progress_member, handle.cast(), false) };
            iface.member.set(Some(member));
        }
        Ok(())
    }

    /// Stops progress of the interface once both directions are disabled.
    fn progress_disable(iface: *mut Iface, flags: c_uint) {
        let iface = checked_iface(iface)?;
        if flags & BOTH == BOTH
            && let Some(member) = iface.member.take()
        {
            checked_worker(iface.worker)?.remove(member);
        }
        Ok(())
    }
}
