//! Domains: a context of the engine, with the memory and configuration that its endpoints share.

use std::ffi::{c_int, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};

use ucp::mt::ThreadMode;
use ucp::{RequestParams, Rkey};

use crate::abi::info::Info;
use crate::abi::ops::{DomainOps, FidOps, MrOps};
use crate::abi::queue::{AvAttr, CntrAttr, CqAttr};
use crate::abi::{Fid, flags};
use crate::deferred::WorkQueue;
use crate::ep::OP_SIZE;
use crate::errno::Errno;
use crate::fabric::Fabric;
use crate::info::{KeyMode, NameForm, ONE_SIDED};
use crate::object::{Object, UserCount, checked, from_handle, store_handle};
use crate::open_objects::DOMAINS;
use crate::refused;
use crate::region_events::RegionEvents;

/// `struct fid_domain`, and what belongs to it.
#[repr(C)]
pub(crate) struct Domain {
    fid: Fid,
    ops: &'static DomainOps,
    mr: &'static MrOps,
    fabric: *const Fabric,
    users: UserCount,
    pub(crate) context: ucp::Context,
    pub(crate) name: String,
    /// Which threads may use an endpoint.
    pub(crate) mode: ThreadMode,
    /// Whether endpoints have a thread that makes progress.
    pub(crate) has_progress_thread: bool,
    pub(crate) name_form: NameForm,
    /// Whose keys and addresses of memory peers use.
    pub(crate) keys: KeyMode,
    /// Capabilities with which it was opened.
    pub(crate) caps: u64,
    pub(crate) av_type: u32,
    /// Deferred work.
    pub(crate) work: WorkQueue,
    pub(crate) region_events: RegionEvents,
    joins: Mutex<()>,
}

impl Domain {
    /// Held while endpoints join counters that are not bound to them, or leave counters, and while a counter
    /// is closed: neither is freed meanwhile. Before all other locks.
    pub(crate) fn lock_joins(&self) -> MutexGuard<'_, ()> {
        self.joins.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn fabric(&self) -> &Fabric {
        // SAFETY: a fabric is not closed before its domains.
        unsafe { &*self.fabric }
    }

    /// Whether peers name memory by keys of the program.
    pub(crate) fn has_own_keys(&self) -> bool {
        self.keys.own && self.caps & ONE_SIDED != 0
    }

    /// Whether addresses of peers count from the beginning of a region.
    pub(crate) fn counts_offsets(&self) -> bool {
        self.keys.by_offset && self.caps & ONE_SIDED != 0
    }

    /// Whether memory may be registered that has no pages yet, such as the whole address space.
    pub(crate) fn takes_unbacked(&self) -> bool {
        self.keys.unbacked && self.caps & ONE_SIDED != 0
    }

    /// Key of a peer's memory, for operations of an endpoint of the engine.
    // HOT
    #[inline]
    pub(crate) fn rkey(&self, ep: &ucp::Ep, key: u64) -> Rkey {
        match u32::try_from(key) {
            Ok(key) if self.has_own_keys() => Rkey::from_program_key(key),
            _ => Rkey::from_libfabric_key(ep, key),
        }
    }
}

impl Object for Domain {
    const CLASS: usize = flags::CLASS_DOMAIN;
    const NAME: &'static str = "a domain";
    fn users(&self) -> &UserCount {
        &self.users
    }
}

static FID_OPS: FidOps = refused::fid_ops(close, refused::bind, control);

static OPS: DomainOps = DomainOps {
    size: size_of::<DomainOps>(),
    av_open,
    cq_open,
    endpoint,
    scalable_ep,
    cntr_open,
    poll_open,
    stx_ctx,
    srx_ctx,
    query_atomic: crate::ep::query_atomic,
    query_collective: crate::ep::query_collective,
    endpoint2,
};

/// Threads of an endpoint, by the domain's threading. With `FI_THREAD_COMPLETION`, a call with an object of
/// one thread may use an endpoint of another: one that starts deferred work, reads a counter of a region or
/// removes an address.
fn thread_mode(threading: u32, has_progress_thread: bool) -> ThreadMode {
    match threading {
        _ if has_progress_thread => ThreadMode::Multi,
        flags::THREAD_DOMAIN => ThreadMode::Single,
        _ => ThreadMode::Multi,
    }
}

fn new_context(name: &str, format: u32) -> Result<ucp::Context, Errno> {
    let mut source = crate::provider::source()?;
    if let Some(device) = crate::info::device_of(name) {
        source.set("UCX_NET_DEVICES", device);
    }
    if format == flags::ADDR_EFA {
        // A name of this form leads to the NIC only.
        source.set("UCX_TLS", "efa");
    }
    let context = ucp::Context::configured(source).map_err(|error| {
        tracing::error!("domain {name}: {error}");
        Errno(libc::ENODEV)
    })?;
    Ok(context.with_request_params(RequestParams::bytes(OP_SIZE)))
}

/// Removes address vectors with a name that killed processes have left, once in this process.
fn remove_abandoned_vectors() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(ucp::AddressTable::remove_abandoned);
}

/// Opens a domain.
/// # Safety
/// `info` is null or a whole tree; `to` is null or can be written.
pub(crate) unsafe fn open(
    fabric: &Fabric,
    info: *const Info,
    to: *mut *mut Fid,
    context: *mut c_void,
) -> Result<(), Errno> {
    // SAFETY: this function's contract.
    let info = unsafe { crate::object::read(info) }?;
    // SAFETY: as above.
    let attr = unsafe { crate::object::read(info.domain_attr) }?;
    // SAFETY: as above.
    let name = unsafe { crate::provider::text(attr.name) }.ok_or(Errno::INVAL)?;
    remove_abandoned_vectors();
    let made_context = new_context(&name, info.addr_format)?;
    // SAFETY: the caller passes a whole tree.
    let ep_attr = unsafe { info.ep_attr.as_ref() };
    let is_scalable = info.caps & flags::NAMED_RX_CTX != 0
        || crate::info::is_scalable(attr.max_ep_tx_ctx, attr.max_ep_rx_ctx)
        || ep_attr.is_some_and(|attr| crate::info::is_scalable(attr.tx_ctx_cnt, attr.rx_ctx_cnt));
    let nics = crate::info::count_nics(&made_context);
    let name_form = NameForm::of(info.addr_format, nics, is_scalable);
    let has_progress_thread =
        attr.data_progress == flags::PROGRESS_AUTO || crate::provider::settings()?.auto_progress;
    let made = Domain {
        fid: refused::fid(flags::CLASS_DOMAIN, context, &FID_OPS),
        ops: &OPS,
        mr: &crate::mr::OPS,
        fabric,
        users: UserCount::default(),
        context: made_context,
        name,
        mode: thread_mode(attr.threading, has_progress_thread),
        has_progress_thread,
        name_form,
        keys: KeyMode::of(attr.mr_mode),
        caps: info.caps,
        av_type: attr.av_type,
        work: WorkQueue::default(),
        region_events: RegionEvents::default(),
        joins: Mutex::default(),
    };
    let name = made.name.clone();
    // SAFETY: this function's contract.
    unsafe { store_handle(to, made) }?;
    // SAFETY: it has just been stored.
    DOMAINS.add(unsafe { *to }, &name);
    fabric.users().add();
    Ok(())
}

calls! {
    fn close(fid: *mut Fid) -> c_int {
        let gone = from_handle::<Domain>(fid)?;
        DOMAINS.remove(fid);
        gone.fabric().users().remove();
        Ok(0)
    }

    fn control(fid: *mut Fid, command: c_int, arg: *mut c_void) -> c_int {
        let domain: &Domain = checked(fid)?;
        domain.control_work(command, arg)
    }

    fn av_open(fid: *mut Fid, attr: *mut AvAttr, av: *mut *mut Fid, context: *mut c_void) -> c_int {
        crate::av::open(checked(fid)?, attr, av, context).map(|()| 0)
    }

    fn cq_open(fid: *mut Fid, attr: *mut CqAttr, cq: *mut *mut Fid, context: *mut c_void) -> c_int {
        crate::cq::open(checked(fid)?, attr, cq, context).map(|()| 0)
    }

    fn cntr_open(fid: *mut Fid, attr: *mut CntrAttr, cntr: *mut *mut Fid, context: *mut c_void) -> c_int {
        crate::cntr::open(checked(fid)?, attr, cntr, context).map(|()| 0)
    }

    fn endpoint(fid: *mut Fid, info: *mut Info, ep: *mut *mut Fid, context: *mut c_void) -> c_int {
        crate::ep::open(checked(fid)?, info, ep, context).map(|()| 0)
    }

    fn scalable_ep(fid: *mut Fid, info: *mut Info, ep: *mut *mut Fid, context: *mut c_void) -> c_int {
        crate::ep::sep::open(checked(fid)?, info, ep, context).map(|()| 0)
    }

    fn stx_ctx(fid: *mut Fid, _attr: *mut c_void, stx: *mut *mut Fid, context: *mut c_void) -> c_int {
        crate::ep::stx::open(checked(fid)?, stx, context).map(|()| 0)
    }

    fn srx_ctx(fid: *mut Fid, attr: *mut c_void, srx: *mut *mut Fid, context: *mut c_void) -> c_int {
        crate::ep::srx::open(checked(fid)?, attr.cast(), srx, context).map(|()| 0)
    }

    fn poll_open(fid: *mut Fid, attr: *const u64, set: *mut *mut Fid) -> c_int {
        crate::poll::open(checked(fid)?, attr, set).map(|()| 0)
    }

    fn endpoint2(
        fid: *mut Fid, info: *mut Info, ep: *mut *mut Fid, flags: u64, context: *mut c_void,
    ) -> c_int {
        if flags != 0 {
            tracing::debug!("fi_endpoint2: flags {flags:#x} are not supported");
            return Err(Errno::NOSYS);
        }
        crate::ep::open(checked(fid)?, info, ep, context).map(|()| 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_thread_at_a_time_takes_no_locks() {
        let completion = 4;
        assert_eq!(thread_mode(flags::THREAD_DOMAIN, false), ThreadMode::Single);
        assert_eq!(thread_mode(flags::THREAD_DOMAIN, true), ThreadMode::Multi);
        for threading in [0, flags::THREAD_SAFE, completion, flags::THREAD_ENDPOINT] {
            assert_eq!(thread_mode(threading, false), ThreadMode::Multi);
        }
    }
}
