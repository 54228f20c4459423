//! Opening, binding, enabling and closing of endpoints; their names.

use std::cell::{Cell, RefCell};
use std::ffi::{c_int, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use ucp::mt::{ProgressThread, SharedWorker};

use super::connection::{self, Connection};
use super::ep_fid::EpFid;
use super::options::Options;
use super::remote_writes::{KEPT, SHARED_RX};
use super::stx::Stx;
use super::{Direction, Ep};
use crate::abi::info::Info;
use crate::abi::ops::{CmOps, EpOps, FidOps};
use crate::abi::{ADDR_UNSPEC, Alias, Fid, flags};
use crate::domain::Domain;
use crate::eq::Eq;
use crate::errno::Errno;
use crate::info::{Answer, EpKind, MIN_MULTI_RECV, NameForm, is_scalable};
use crate::name_server::Service;
use crate::object::{Object, UserCount, checked, from_handle, read, store};
use crate::refused;

/// Longest time for which a close waits until messages have left this process.
pub(super) const FLUSH_WITHIN: Duration = Duration::from_secs(2);

static FID_OPS: FidOps = refused::fid_ops(close, bind, control);

pub(super) static EP_OPS: EpOps = EpOps {
    size: size_of::<EpOps>(),
    cancel,
    getopt: super::options::getopt,
    setopt: super::options::setopt,
    tx_ctx: refused::tx_context,
    rx_ctx: refused::rx_context,
    rx_size_left,
    tx_size_left,
};

pub(super) static CM_OPS: CmOps = CmOps {
    size: size_of::<CmOps>(),
    setname: connection::setname,
    getname,
    getpeer: connection::getpeer,
    connect: connection::connect,
    listen: refused::listen,
    accept: connection::accept,
    reject: refused::reject,
    shutdown: connection::shutdown,
    join: super::groups::join,
};

/// The name of an endpoint: the address of its worker.
fn name_of(plain: &ucp::Worker, form: NameForm) -> Result<Vec<u8>, Errno> {
    let address = plain.address();
    let mut name = match form {
        NameForm::Efa => address.efa_raw().ok_or(Errno(libc::ENODEV))?.to_vec(),
        NameForm::Packed | NameForm::Wide | NameForm::Scalable => address.pack(),
    };
    if name.len() > form.len() {
        tracing::error!(
            "an endpoint with {} transports has a name of {} bytes, longer than {}: choose fewer by UCX_TLS or UCX_NET_DEVICES",
            address.transports().count(),
            name.len(),
            form.len()
        );
        return Err(Errno(libc::EOVERFLOW));
    }
    name.resize(form.len(), 0);
    Ok(name)
}

/// Stores a name, of which a caller has to have room for all bytes.
/// # Safety
/// `len` is null or can be read and written; `name` is null or memory of as many bytes.
pub(crate) unsafe fn store_name(from: &[u8], name: *mut c_void, len: *mut usize) -> Result<(), Errno> {
    // SAFETY: this function's contract.
    let room = unsafe { read(len) }?;
    // SAFETY: as above.
    unsafe { store(len, from.len()) }?;
    if room < from.len() || name.is_null() {
        return Err(Errno::TOOSMALL);
    }
    // SAFETY: the caller passes memory of `room` bytes.
    unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), name.cast(), from.len()) };
    Ok(())
}

/// Starts the thread that makes progress of an endpoint, and starts deferred work which is due then. The
/// endpoint ends it before its domain can be closed.
fn spawn_progress(domain: &Domain, shared: &SharedWorker) -> Result<ProgressThread, Errno> {
    struct OfThread(*const Domain);
    // SAFETY: threads of the mode that has such a thread use a domain at the same time.
    unsafe impl Send for OfThread {}
    impl OfThread {
        fn run_work(&self) {
            // SAFETY: a domain is not closed before its endpoints, which end their threads first.
            unsafe { &*self.0 }.run_work();
        }
    }
    let of_thread = OfThread(domain);
    shared.spawn_progress_with(move || of_thread.run_work()).map_err(|_| Errno::NOMEM)
}

/// Opens an endpoint.
/// # Safety
/// `info` is null or a whole tree; `to` is null or can be written.
pub(crate) unsafe fn open(
    domain: &Domain,
    info: *const Info,
    to: *mut *mut Fid,
    context: *mut c_void,
) -> Result<(), Errno> {
    // SAFETY: this function's contract.
    let info = unsafe { read(info) }?;
    // SAFETY: the caller passes a whole tree.
    if unsafe { info.ep_attr.as_ref() }.is_some_and(|attr| is_scalable(attr.tx_ctx_cnt, attr.rx_ctx_cnt)) {
        tracing::error!("fi_endpoint: an endpoint with several contexts is opened by fi_scalable_ep");
        return Err(Errno::INVAL);
    }
    // SAFETY: this function's contract.
    unsafe { open_any(domain, &info, to, context) }
}

/// Opens an endpoint, or the one beneath contexts of a scalable endpoint.
/// # Safety
/// The parts of `info` are null or whole; `to` is null or can be written.
pub(super) unsafe fn open_any(
    domain: &Domain,
    info: &Info,
    to: *mut *mut Fid,
    context: *mut c_void,
) -> Result<(), Errno> {
    // SAFETY: the caller passes a whole tree.
    let (ep_attr, tx, rx) = unsafe { (info.ep_attr.as_ref(), info.tx_attr.as_ref(), info.rx_attr.as_ref()) };
    let kind = EpKind::of(ep_attr.map_or(flags::EP_RDM, |attr| attr.ep_type)).ok_or(Errno::INVAL)?;
    let connection = match kind {
        // SAFETY: the caller passes a whole tree.
        EpKind::Msg => unsafe { Connection::of(info) }?,
        EpKind::Rdm | EpKind::Dgram => Connection::default(),
    };
    let shared = domain.context.shared_worker(domain.mode).map_err(|error| {
        tracing::error!("fi_endpoint: {error}");
        Errno::NOMEM
    })?;
    let name = match kind {
        EpKind::Msg => Vec::new(),
        // SAFETY: nothing of the worker leaves the closure.
        _ => unsafe { shared.with(|plain| name_of(plain, domain.name_form)) }.map_err(Errno::from)??,
    };
    // SAFETY: the caller passes a whole tree.
    let service = match unsafe { Answer::of(info) } {
        Some(answer) if kind != EpKind::Msg => Service::of(&answer.src_addr),
        _ => Service::default(),
    };
    let progress_thread = match domain.has_progress_thread {
        true => Some(spawn_progress(domain, &shared)?),
        false => None,
    };
    let size = |size: usize| if size == 0 { 1 } else { size };
    let direction = |limit: usize| Direction { size: size(limit), ..Direction::default() };
    let op_flags = (tx.map_or(0, |attr| attr.op_flags), rx.map_or(0, |attr| attr.op_flags));
    let shares_tx = ep_attr.is_some_and(|attr| attr.tx_ctx_cnt == flags::SHARED_CONTEXT);
    let shares_rx = ep_attr.is_some_and(|attr| attr.rx_ctx_cnt == flags::SHARED_CONTEXT);
    let caps = info.caps & !SHARED_RX | if shares_rx { SHARED_RX } else { 0 };
    let made = Ep {
        ep_fid: EpFid::new(refused::fid(flags::CLASS_EP, context, &FID_OPS), op_flags),
        domain,
        users: UserCount::default(),
        progress_thread: RefCell::new(progress_thread),
        flush_thread: RefCell::default(),
        shared,
        kept_events_timer: OnceLock::new(),
        caps,
        keeps_unreported: caps & KEPT != 0 && domain.has_progress_thread,
        name,
        av: Cell::new(std::ptr::null()),
        rx_ctx_bits: Cell::new(0),
        is_enabled: AtomicBool::new(false),
        can_recv: AtomicBool::new(false),
        can_send: AtomicBool::new(false),
        kind,
        address_mask: if kind == EpKind::Msg { 0 } else { ADDR_UNSPEC },
        connection,
        shares_tx,
        stx: Cell::new(std::ptr::null()),
        srx: Cell::new(std::ptr::null()),
        tx: direction(tx.map_or(2048, |attr| attr.size)),
        rx: direction(rx.map_or(4096, |attr| attr.size)),
        reads: Cell::new(std::ptr::null()),
        writes: Cell::new(std::ptr::null()),
        remote_reads: Cell::new(std::ptr::null()),
        remote_writes: Cell::new(std::ptr::null()),
        served: Cell::default(),
        deferred: Cell::new(std::ptr::null()),
        joined: Default::default(),
        peers: Default::default(),
        running: Default::default(),
        running_tx: Default::default(),
        multi_recvs: RefCell::default(),
        min_multi_recv: AtomicUsize::new(MIN_MULTI_RECV),
        options: Options::default(),
        service,
        claimed: RefCell::default(),
        groups: Default::default(),
        inject_bufs: RefCell::default(),
    };
    let is_server = made.caps & flags::RMA_EVENT != 0;
    // SAFETY: this function's contract.
    unsafe { EpFid::store(to, made) }?;
    domain.users().add();
    if is_server {
        // SAFETY: as above.
        let fid = unsafe { read(to) }?;
        // SAFETY: it has just been stored.
        let joined = domain.add_server(unsafe { EpFid::checked(fid) }?.0);
        // SAFETY: as above; the caller does not get it.
        joined.or_else(|errno| unsafe { close_ep(fid) }.and(Err(errno)))?;
    }
    Ok(())
}

/// Closes an endpoint.
/// # Safety
/// As for [`from_handle`].
pub(super) unsafe fn close_ep(fid: *mut Fid) -> Result<(), Errno> {
    // SAFETY: this function's contract.
    if let Ok((ep, _)) = unsafe { EpFid::checked(fid) } {
        ep.domain().forget_triggered(ep, None)?;
    }
    // SAFETY: as above.
    let ep = unsafe { from_handle::<Ep>(fid) }?;
    drop(ep.progress_thread.take());
    let flush_thread = ep.inside(|_| ep.flush_thread.take());
    drop(flush_thread);
    ep.domain().remove_server(&ep);
    ep.unbind();
    ep.inside(|plain| {
        if plain.flush_within(FLUSH_WITHIN).wait().is_err() {
            tracing::debug!("fi_close: not everything that was sent has left the endpoint");
        }
        ep.groups.close();
        drop(ep.claimed.take());
        drop(ep.multi_recvs.take());
        ep.forget_all_peers();
        ep.disconnect();
        plain.close();
    });
    ep.domain().users().remove();
    Ok(())
}

impl Ep {
    /// Cancels an operation that has started, a receive or another one if `is_recv` says so. False: there is
    /// none with this context, or it goes on.
    pub(crate) fn cancel_running(&self, context: *mut c_void, is_recv: Option<bool>) -> bool {
        let (recvs, others) = (is_recv != Some(false), is_recv != Some(true));
        self.inside(|plain| {
            if recvs && self.cancel_multi(context) {
                return true;
            }
            let ways = [(recvs, &self.running), (others, &self.running_tx)];
            let of_context = ways.into_iter().filter(|(is_asked, _)| *is_asked);
            // SAFETY: the record lies in the request of an operation that runs.
            let mut ids = of_context
                .flat_map(|(_, running)| running.with(context))
                .map(|record| unsafe { ucp::RequestId::from_user_memory(record.cast()) });
            ids.any(|id| ucp::cancel_unsent(plain, id))
        })
    }
}

calls! {
    /// Closes an endpoint: what has been sent leaves the process, what is posted ends without a completion.
    fn close(fid: *mut Fid) -> c_int {
        close_ep(fid).map(|()| 0)
    }

    fn bind(fid: *mut Fid, to: *mut Fid, flags: u64) -> c_int {
        let (ep, _) = EpFid::checked(fid)?;
        if ep.is_enabled.load(Ordering::Relaxed) {
            return Err(Errno::OPBADSTATE);
        }
        // SAFETY: every object begins with its class.
        match unsafe { to.as_ref() }.ok_or(Errno::INVAL)?.fclass {
            flags::CLASS_CQ => ep.bind_cq(checked(to)?, flags)?,
            flags::CLASS_CNTR => ep.bind_cntr(checked(to)?, flags)?,
            flags::CLASS_EQ => {
                let eq: &Eq = checked(to)?;
                // Nothing of an endpoint of another type is reported there.
                if ep.kind == EpKind::Msg {
                    ep.connection.bind(eq)?;
                } else if ep.caps & flags::COLLECTIVE != 0 {
                    ep.groups.bind(eq)?;
                }
            }
            flags::CLASS_AV if ep.kind == EpKind::Msg => {
                tracing::error!("fi_ep_bind: an endpoint of type FI_EP_MSG has no address vector");
                return Err(Errno::INVAL);
            }
            flags::CLASS_AV => {
                ep.bind_av(checked(to)?)?;
            }
            flags::CLASS_STX_CTX if ep.shares_tx && ep.stx.get().is_null() => {
                let stx: &Stx = checked(to)?;
                ep.inside(|_| ep.stx.set(stx));
                stx.users().add();
            }
            flags::CLASS_SRX_CTX => ep.bind_srx(checked(to)?)?,
            class => {
                tracing::error!("fi_ep_bind: an object of class {class} cannot be bound to an endpoint");
                return Err(Errno::INVAL);
            }
        }
        Ok(0)
    }

    fn control(fid: *mut Fid, command: c_int, arg: *mut c_void) -> c_int {
        let (ep, ep_fid) = EpFid::checked(fid)?;
        match command {
            flags::ENABLE => ep.enable()?,
            flags::GETOPSFLAG | flags::SETOPSFLAG => {
                let asked: u64 = read(arg.cast::<u64>())?;
                let of = ep_fid.flags_of(asked)?;
                match command {
                    flags::GETOPSFLAG => store(arg.cast::<u64>(), of.load(Ordering::Relaxed))?,
                    _ => of.store(asked & !(flags::SEND | flags::RECV), Ordering::Relaxed),
                }
            }
            flags::ALIAS => {
                let asked = read(arg.cast::<Alias>())?;
                ep_fid.alias(asked.fid, asked.flags)?;
            }
            command => return Err(refused::log_refusal(&format!("fi_control of an endpoint: command {command}"))),
        }
        Ok(0)
    }

    /// Cancels an operation: a receive until a message has been matched, another one until some of it has
    /// been sent. It ends with `FI_ECANCELED`, as one that waits for its counter does.
    fn cancel(fid: *mut Fid, context: *mut c_void) -> isize {
        let (ep, ep_fid) = EpFid::checked(fid)?;
        let is_recv = ep_fid.is_recv();
        if !ep.cancel_running(context, is_recv) {
            ep.domain().cancel_triggered(ep, context, is_recv)?;
        }
        Ok(0)
    }

    /// Number of receives that may be started now.
    fn rx_size_left(fid: *mut Fid) -> isize {
        let (ep, _) = EpFid::checked(fid)?;
        if !ep.is_enabled.load(Ordering::Relaxed) {
            return Err(Errno::OPBADSTATE);
        }
        Ok(ep.inside(|_| ep.rx.room() as isize))
    }

    /// Number of other operations that may be started now.
    fn tx_size_left(fid: *mut Fid) -> isize {
        let (ep, _) = EpFid::checked(fid)?;
        if !ep.is_enabled.load(Ordering::Relaxed) {
            return Err(Errno::OPBADSTATE);
        }
        Ok(ep.inside(|_| ep.tx.room() as isize))
    }

    fn getname(fid: *mut Fid, name: *mut c_void, len: *mut usize) -> c_int {
        let (ep, _) = EpFid::checked(fid)?;
        match ep.kind {
            EpKind::Msg => store_name(&ep.connection.local_name()?, name, len).map(|()| 0),
            EpKind::Rdm | EpKind::Dgram => store_name(&ep.name, name, len).map(|()| 0),
        }
    }
}
