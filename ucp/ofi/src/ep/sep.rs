//! Scalable endpoints: several transmit and receive contexts behind one address. Each pair of a transmit and
//! a receive context of one number is an endpoint, which is an engine with queues of its own; the address is
//! those of all of them.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use super::ep_fid::EpFid;
use super::setup::{close_ep, open_any, store_name};
use super::{Ep, setup};
use crate::abi::info::{Info, RxAttr, TxAttr};
use crate::abi::ops::{CmOps, EpOps, FidOps};
use crate::abi::{Fid, flags};
use crate::av::Av;
use crate::cntr::Cntr;
use crate::cq::Cq;
use crate::domain::Domain;
use crate::errno::Errno;
use crate::info::{Answer, MAX_CONTEXTS, NameForm};
use crate::name_server::Service;
use crate::object::{Object, UserCount, checked, from_handle, read, store, store_handle};
use crate::refused::{self, RefusedTable};

/// `struct fid_ep` of a scalable endpoint, and what belongs to it.
#[repr(C)]
pub(crate) struct Sep {
    fid: Fid,
    ops: &'static EpOps,
    cm: &'static CmOps,
    msg: &'static RefusedTable<9>,
    rma: &'static RefusedTable<9>,
    tagged: &'static RefusedTable<9>,
    atomic: &'static RefusedTable<13>,
    collective: &'static RefusedTable<11>,
    users: UserCount,
    /// Handles of the endpoints beneath the contexts.
    eps: Vec<*mut Fid>,
    /// Number of contexts for sends, and for receives.
    counts: [usize; 2],
    /// Bits of the contexts that are open.
    open: [AtomicU32; 2],
    name: Vec<u8>,
    service: Service,
    is_enabled: AtomicBool,
}

impl Object for Sep {
    const CLASS: usize = flags::CLASS_SEP;
    const NAME: &'static str = "a scalable endpoint";
    fn users(&self) -> &UserCount {
        &self.users
    }
}

/// `struct fid_ep` of a context: a handle of the endpoint of its number.
#[repr(C)]
struct Context {
    ep_fid: EpFid,
    sep: *const Sep,
    number: usize,
    is_tx: bool,
}

static FID_OPS: FidOps = refused::fid_ops(close, bind, control);
static CONTEXT_OPS: FidOps = refused::fid_ops(close_context, bind_context, control_context);
static EP_OPS: EpOps = EpOps { tx_ctx, rx_ctx, ..crate::pep::EP_OPS };
static CM_OPS: CmOps = CmOps { getname, ..setup::CM_OPS };
static NINE: RefusedTable<9> = RefusedTable::all(refused::of_scalable);
static ATOMIC: RefusedTable<13> = RefusedTable::all(refused::of_scalable);

/// Opens a scalable endpoint.
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
    // SAFETY: as above.
    let attr = unsafe { read(info.ep_attr) }?;
    let counts = [attr.tx_ctx_cnt.max(1), attr.rx_ctx_cnt.max(1)];
    let number = counts[0].max(counts[1]);
    if number > MAX_CONTEXTS || ![flags::EP_UNSPEC, flags::EP_RDM].contains(&attr.ep_type) {
        tracing::error!("fi_scalable_ep: {counts:?} contexts, of at most {MAX_CONTEXTS}, of an FI_EP_RDM");
        return Err(Errno::INVAL);
    }
    if number > 1 && domain.name_form != NameForm::Scalable {
        tracing::error!("fi_scalable_ep: the domain was opened for endpoints with one context");
        return Err(Errno::INVAL);
    }
    if info.caps & flags::DIRECTED_RECV != 0 {
        tracing::error!("fi_scalable_ep: FI_DIRECTED_RECV is not supported by scalable endpoints");
        return Err(Errno::INVAL);
    }
    let mut made = Sep {
        fid: refused::fid(flags::CLASS_SEP, context, &FID_OPS),
        ops: &EP_OPS,
        cm: &CM_OPS,
        msg: &NINE,
        rma: &NINE,
        tagged: &NINE,
        atomic: &ATOMIC,
        collective: &refused::COLLECTIVE,
        users: UserCount::default(),
        eps: Vec::new(),
        counts,
        open: Default::default(),
        name: Vec::new(),
        // SAFETY: the caller passes a whole tree.
        service: unsafe { Answer::of(&info) }.map_or(Service::default(), |it| Service::of(&it.src_addr)),
        is_enabled: AtomicBool::new(false),
    };
    // SAFETY: this function's contract.
    let result = unsafe { made.open_eps(domain, &info, number) }.and_then(|()| {
        // SAFETY: as above.
        unsafe { store(to, std::ptr::null_mut()) }?;
        made.name.resize(domain.name_form.len(), 0);
        Ok(())
    });
    if let Err(errno) = result {
        made.close_eps();
        return Err(errno);
    }
    // SAFETY: as above.
    unsafe { store_handle(to, made) }
}

impl Sep {
    /// Opens the endpoints beneath, each of which holds the domain, and makes the name.
    /// # Safety
    /// As for [`open_any`].
    unsafe fn open_eps(&mut self, domain: &Domain, info: &Info, number: usize) -> Result<(), Errno> {
        for _ in 0..number {
            let mut fid = std::ptr::null_mut();
            // SAFETY: this function's contract.
            unsafe { open_any(domain, info, &mut fid, std::ptr::null_mut()) }?;
            self.eps.push(fid);
            // SAFETY: it has just been opened.
            let (ep, _) = unsafe { EpFid::checked(fid) }?;
            self.name.extend(ep.inside(|plain| plain.address().pack()));
        }
        if self.name.len() > domain.name_form.len() {
            tracing::error!(
                "fi_scalable_ep: {number} contexts have a name of {} bytes, longer than {}: choose fewer \
                 contexts, or fewer transports by UCX_TLS or UCX_NET_DEVICES",
                self.name.len(),
                domain.name_form.len()
            );
            return Err(Errno(libc::EOVERFLOW));
        }
        Ok(())
    }

    /// Whether neither contexts nor work use the endpoints beneath, which are closed without a result.
    fn check_unused(&self) -> Result<(), Errno> {
        if self.users.count() > 0 {
            return Err(Errno::BUSY);
        }
        (0..self.eps.len()).try_for_each(|number| {
            let ep = self.ep(number)?;
            ep.domain().forget_triggered(ep, None)
        })
    }

    /// Flags of the operations of a context with these capabilities and flags, if the endpoint has the
    /// capabilities. What the context does not ask for is there all the same.
    fn flags_of_context(&self, attr: Option<(u64, u64)>) -> Result<u64, Errno> {
        let Some((caps, op_flags)) = attr else { return Ok(0) };
        let absent = caps & !self.ep(0)?.caps;
        if absent != 0 {
            tracing::error!("a context has capabilities {absent:#x}, which its endpoint does not have");
            return Err(Errno::INVAL);
        }
        Ok(op_flags)
    }

    fn close_eps(&mut self) {
        for fid in std::mem::take(&mut self.eps) {
            // SAFETY: `open_eps` has opened it, and no context uses it any more.
            if let Err(errno) = unsafe { close_ep(fid) } {
                tracing::error!("an endpoint of a scalable one cannot be closed: error {}", errno.0);
            }
        }
    }

    /// The endpoint beneath the contexts of a number.
    fn ep(&self, number: usize) -> Result<&Ep, Errno> {
        let fid = *self.eps.get(number).ok_or(Errno::INVAL)?;
        // SAFETY: `open_eps` has opened it; it is closed with this endpoint.
        Ok(unsafe { EpFid::checked(fid) }?.0)
    }

    /// Opens a context.
    /// # Safety
    /// `to` is null or can be written.
    unsafe fn open_context(
        &self,
        (is_tx, number): (bool, c_int),
        op_flags: (u64, u64),
        to: *mut *mut Fid,
        context: *mut c_void,
    ) -> Result<c_int, Errno> {
        let way = usize::from(!is_tx);
        let number = usize::try_from(number).map_err(|_| Errno::INVAL)?;
        let is_one = number < self.counts[way];
        // The bit is the thread's that has set it.
        if !is_one || self.open[way].fetch_or(1 << number, Ordering::AcqRel) & 1 << number != 0 {
            tracing::error!("context {number} of {} is open, or there is none", self.counts[way]);
            return Err(Errno::INVAL);
        }
        self.users.add();
        // SAFETY: this function's contract.
        let opened = unsafe { self.store_context((is_tx, number), op_flags, to, context) };
        opened.map(|()| 0).inspect_err(|_| self.forget_context(is_tx, number))
    }

    /// Stores the handle of a context whose bit is set.
    /// # Safety
    /// As for [`Sep::open_context`].
    unsafe fn store_context(
        &self,
        (is_tx, number): (bool, usize),
        op_flags: (u64, u64),
        to: *mut *mut Fid,
        context: *mut c_void,
    ) -> Result<(), Errno> {
        if to.is_null() {
            return Err(Errno::INVAL);
        }
        let class = if is_tx { flags::CLASS_TX_CTX } else { flags::CLASS_RX_CTX };
        let ep = self.ep(number)?;
        let ep_fid = EpFid::with_ep(refused::fid(class, context, &CONTEXT_OPS), ep, op_flags);
        let made = Box::new(Context { ep_fid, sep: self, number, is_tx });
        // SAFETY: this function's contract.
        unsafe { store(to, Box::into_raw(made).cast()) }
    }

    /// Lets another context of the number be opened.
    fn forget_context(&self, is_tx: bool, number: usize) {
        self.open[usize::from(!is_tx)].fetch_and(!(1 << number), Ordering::AcqRel);
        self.users.remove();
    }
}

impl Context {
    /// # Safety
    /// As for [`checked`].
    unsafe fn checked<'a>(fid: *mut Fid) -> Result<&'a Context, Errno> {
        // SAFETY: every object begins with its class.
        match unsafe { fid.as_ref() }.ok_or(Errno::INVAL)?.fclass {
            // SAFETY: handles of these classes are of contexts.
            flags::CLASS_TX_CTX | flags::CLASS_RX_CTX => Ok(unsafe { &*fid.cast::<Context>() }),
            _ => Err(Errno::INVAL),
        }
    }

    /// The flags of a binding that are of this context's direction; none means all.
    fn direction(&self, asked: u64, of_tx: u64, of_rx: u64) -> Result<u64, Errno> {
        let (own, other) = if self.is_tx { (of_tx, of_rx) } else { (of_rx, of_tx) };
        match asked & (of_tx | of_rx) {
            0 => Ok(asked | own),
            bits if bits & other == 0 => Ok(asked),
            _ => Err(Errno::BADFLAGS),
        }
    }

    /// Permits the operations of the context.
    fn enable(&self) -> Result<(), Errno> {
        let ep = self.ep_fid.ep();
        if ep.av.get().is_null() {
            tracing::error!("fi_enable: no address vector is bound to the scalable endpoint");
            return Err(Errno::NOAV);
        }
        let bit = if self.is_tx { flags::SEND } else { flags::RECV };
        ep.enable_direction(bit)
    }
}

calls! {
    /// Closes a scalable endpoint, after its contexts.
    fn close(fid: *mut Fid) -> c_int {
        checked::<Sep>(fid)?.check_unused()?;
        from_handle::<Sep>(fid)?.close_eps();
        Ok(0)
    }

    /// Binds an address vector to all contexts.
    fn bind(fid: *mut Fid, to: *mut Fid, flags: u64) -> c_int {
        let sep: &Sep = checked(fid)?;
        // SAFETY: every object begins with its class.
        let class = unsafe { to.as_ref() }.ok_or(Errno::INVAL)?.fclass;
        if class == flags::CLASS_EQ {
            // Nothing of such an endpoint is reported there.
            return Ok(0);
        }
        if class != flags::CLASS_AV || flags != 0 || sep.is_enabled.load(Ordering::Relaxed) {
            tracing::error!("fi_scalable_ep_bind: an address vector is bound, before the endpoint is enabled");
            return Err(Errno::INVAL);
        }
        let av: &Av = checked(to)?;
        (0..sep.eps.len()).try_for_each(|number| sep.ep(number)?.bind_av(av))?;
        Ok(0)
    }

    fn control(fid: *mut Fid, command: c_int, _arg: *mut c_void) -> c_int {
        let sep: &Sep = checked(fid)?;
        if command != flags::ENABLE {
            return Err(refused::log_refusal(&format!("fi_control of a scalable endpoint: command {command}")));
        }
        if sep.ep(0)?.av.get().is_null() {
            tracing::error!("fi_enable: no address vector is bound");
            return Err(Errno::NOAV);
        }
        sep.is_enabled.store(true, Ordering::Relaxed);
        sep.service.start(&sep.name, sep.ep(0)?.domain().name_form);
        Ok(0)
    }

    fn getname(fid: *mut Fid, name: *mut c_void, len: *mut usize) -> c_int {
        let sep: &Sep = checked(fid)?;
        store_name(&sep.name, name, len).map(|()| 0)
    }

    fn tx_ctx(fid: *mut Fid, number: c_int, attr: *mut c_void, to: *mut *mut Fid, context: *mut c_void) -> c_int {
        let sep: &Sep = checked(fid)?;
        let attr = if attr.is_null() { None } else { Some(read(attr.cast::<TxAttr>())?) };
        let op_flags = sep.flags_of_context(attr.map(|attr| (attr.caps, attr.op_flags)))?;
        sep.open_context((true, number), (op_flags, 0), to, context)
    }

    fn rx_ctx(fid: *mut Fid, number: c_int, attr: *mut c_void, to: *mut *mut Fid, context: *mut c_void) -> c_int {
        let sep: &Sep = checked(fid)?;
        let attr = if attr.is_null() { None } else { Some(read(attr.cast::<RxAttr>())?) };
        let op_flags = sep.flags_of_context(attr.map(|attr| (attr.caps, attr.op_flags)))?;
        sep.open_context((false, number), (0, op_flags), to, context)
    }

    /// Closes a context: it leaves its queue and counters, and its operations are reported no more.
    fn close_context(fid: *mut Fid) -> c_int {
        let context = Context::checked(fid)?;
        let ep = context.ep_fid.ep();
        ep.disable_direction(if context.is_tx { flags::SEND } else { flags::RECV })?;
        let (sep, is_tx, number) = (context.sep, context.is_tx, context.number);
        // SAFETY: the handle begins with its class, which nobody reads any more.
        unsafe { (*fid).fclass = 0 };
        // SAFETY: `open_context` has made it; the program closes it once.
        drop(unsafe { Box::from_raw(fid.cast::<Context>()) });
        // SAFETY: a scalable endpoint is not closed before its contexts.
        unsafe { &*sep }.forget_context(is_tx, number);
        Ok(0)
    }

    /// Binds a queue or counter to a context.
    fn bind_context(fid: *mut Fid, to: *mut Fid, asked: u64) -> c_int {
        let context = Context::checked(fid)?;
        let ep = context.ep_fid.ep();
        // SAFETY: every object begins with its class.
        match unsafe { to.as_ref() }.ok_or(Errno::INVAL)?.fclass {
            flags::CLASS_CQ => {
                ep.bind_cq(checked::<Cq>(to)?, context.direction(asked, flags::SEND, flags::RECV)?)?;
            }
            flags::CLASS_CNTR => {
                let of_tx = flags::SEND | flags::READ | flags::WRITE;
                let of_rx = flags::RECV | flags::REMOTE_READ | flags::REMOTE_WRITE;
                context.direction(asked, of_tx, of_rx)?;
                ep.bind_cntr(checked::<Cntr>(to)?, asked)?;
            }
            class => {
                tracing::error!("fi_ep_bind: an object of class {class} cannot be bound to a context");
                return Err(Errno::INVAL);
            }
        }
        Ok(0)
    }

    fn control_context(fid: *mut Fid, command: c_int, arg: *mut c_void) -> c_int {
        let context = Context::checked(fid)?;
        match command {
            flags::ENABLE => context.enable()?,
            flags::GETOPSFLAG | flags::SETOPSFLAG => {
                let asked: u64 = read(arg.cast::<u64>())?;
                let of = context.ep_fid.flags_of(asked)?;
                match command {
                    flags::GETOPSFLAG => store(arg.cast::<u64>(), of.load(Ordering::Relaxed))?,
                    _ => of.store(asked & !(flags::SEND | flags::RECV), Ordering::Relaxed),
                }
            }
            command => return Err(refused::log_refusal(&format!("fi_control of a context: command {command}"))),
        }
        Ok(0)
    }
}
