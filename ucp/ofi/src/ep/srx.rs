//! Shared receive contexts: several endpoints take their receives from one. The completion goes to the queue
//! of the endpoint that got the message.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Mutex, MutexGuard, PoisonError};

use ucp::{Iov, Layout, Match, SharedRecvs};

use super::Ep;
use super::recv::Recv;
use super::remote_writes::SHARED_RX;
use super::send::Memory;
use crate::abi::info::RxAttr;
use crate::abi::ops::{EpOps, FidOps};
use crate::abi::{ADDR_UNSPEC, FiAddr, Fid, IoVec, Msg, MsgTagged, flags};
use crate::domain::Domain;
use crate::errno::Errno;
use crate::info::DEFAULT_RX_SIZE;
use crate::object::{Object, UserCount, checked, from_fid, from_handle, read, store_handle};
use crate::refused::{self, Refused, RefusedTable};

/// `struct fid_ep` of a shared receive context, and what belongs to it.
#[repr(C)]
pub(crate) struct Srx {
    fid: Fid,
    ops: &'static EpOps,
    cm: &'static RefusedTable<9>,
    msg: &'static Messages,
    rma: &'static RefusedTable<9>,
    tagged: &'static Tagged,
    atomic: &'static RefusedTable<13>,
    collective: &'static RefusedTable<11>,
    domain: *const Domain,
    users: UserCount,
    recvs: SharedRecvs<Posted>,
    /// Endpoints that take receives.
    eps: Mutex<Vec<*const Ep>>,
    /// Somebody may sleep on one of them.
    is_awaited: AtomicBool,
    /// Most receives that wait.
    size: usize,
    op_flags: Cell<u64>,
}

impl Object for Srx {
    const CLASS: usize = flags::CLASS_SRX_CTX;
    const NAME: &'static str = "a shared receive context";
    fn users(&self) -> &UserCount {
        &self.users
    }
}

/// A receive that no message has taken.
#[derive(Debug)]
struct Posted {
    pieces: Vec<Iov>,
    tag: Option<(u64, u64)>,
    flags: u64,
    context: *mut c_void,
}

// SAFETY: memory and context are the program's, which leaves them to whichever thread completes the receive.
unsafe impl Send for Posted {}

/// `struct fi_ops_msg` without sends.
#[repr(C)]
struct Messages {
    size: usize,
    recv: unsafe extern "C" fn(*mut Fid, P, usize, P, FiAddr, P) -> isize,
    recvv: unsafe extern "C" fn(*mut Fid, *const IoVec, *mut P, usize, FiAddr, P) -> isize,
    recvmsg: unsafe extern "C" fn(*mut Fid, *const Msg, u64) -> isize,
    sends: [Refused; 6],
}

/// `struct fi_ops_tagged` without sends.
#[repr(C)]
struct Tagged {
    size: usize,
    recv: unsafe extern "C" fn(*mut Fid, P, usize, P, FiAddr, u64, u64, P) -> isize,
    recvv: unsafe extern "C" fn(*mut Fid, *const IoVec, *mut P, usize, FiAddr, u64, u64, P) -> isize,
    recvmsg: unsafe extern "C" fn(*mut Fid, *const MsgTagged, u64) -> isize,
    sends: [Refused; 6],
}

type P = *mut c_void;

static FID_OPS: FidOps = refused::fid_ops(close, refused::bind, control);

static EP_OPS: EpOps = EpOps { cancel, rx_size_left, ..crate::pep::EP_OPS };

static MESSAGES: Messages =
    Messages { size: size_of::<Messages>(), recv, recvv, recvmsg, sends: [refused::of_shared_receives; 6] };

static TAGGED: Tagged = Tagged {
    size: size_of::<Tagged>(),
    recv: trecv,
    recvv: trecvv,
    recvmsg: trecvmsg,
    sends: [refused::of_shared_receives; 6],
};

static CM: RefusedTable<9> = RefusedTable::all(refused::of_shared_receives);
static ATOMIC: RefusedTable<13> = RefusedTable::all(refused::of_shared_receives);

/// Opens a shared receive context.
/// # Safety
/// `attr` is null or whole, with objects that are open; `to` is null or can be written.
pub(crate) unsafe fn open(
    domain: &Domain,
    attr: *const RxAttr,
    to: *mut *mut Fid,
    context: *mut c_void,
) -> Result<(), Errno> {
    // SAFETY: this function's contract.
    let attr = if attr.is_null() { None } else { Some(unsafe { read(attr) }?) };
    let directed = flags::DIRECTED_RECV | flags::MULTI_RECV;
    if attr.is_some_and(|attr| attr.caps & directed != 0 || attr.op_flags & !flags::COMPLETION != 0) {
        tracing::error!("fi_srx_context: shared receives are for one message, of any source");
        return Err(Errno::OPNOTSUPP);
    }
    let size = attr.map_or(0, |attr| attr.size);
    let made = Srx {
        fid: refused::fid(flags::CLASS_SRX_CTX, context, &FID_OPS),
        ops: &EP_OPS,
        cm: &CM,
        msg: &MESSAGES,
        rma: &CM,
        tagged: &TAGGED,
        atomic: &ATOMIC,
        collective: &refused::COLLECTIVE,
        domain,
        users: UserCount::default(),
        recvs: SharedRecvs::default(),
        eps: Mutex::default(),
        is_awaited: AtomicBool::new(false),
        size: if size == 0 { DEFAULT_RX_SIZE } else { size },
        op_flags: Cell::new(attr.map_or(0, |attr| attr.op_flags)),
    };
    // SAFETY: as above.
    unsafe { store_handle(to, made) }?;
    domain.users().add();
    Ok(())
}

impl Srx {
    fn post(
        &self,
        memory: &Memory<'_>,
        tag: Option<(u64, u64)>,
        flags: u64,
        context: P,
    ) -> Result<isize, Errno> {
        if flags & !(flags::COMPLETION | flags::MORE) != 0 {
            tracing::debug!("a shared receive with flags {flags:#x}, which are not supported");
            return Err(Errno::OPNOTSUPP);
        }
        if self.recvs.len() >= self.size {
            return Err(Errno::AGAIN);
        }
        let pieces = match *memory {
            Memory::Bytes(addr, len) => vec![Iov { addr, len }],
            Memory::Pieces(pieces) => pieces.to_vec(),
        };
        let matching = match tag {
            Some((tag, ignore)) => Match::tagged(tag, !ignore),
            None => Match::untagged(),
        };
        self.recvs.post(matching, Posted { pieces, tag, flags, context });
        // Either a sleeper that has looked before sees this receive, or it is seen here.
        fence(Ordering::SeqCst);
        if self.is_awaited.load(Ordering::Relaxed) {
            self.wake_eps();
        }
        Ok(0)
    }

    fn eps(&self) -> MutexGuard<'_, Vec<*const Ep>> {
        self.eps.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes those that sleep on an endpoint: its message may wait for the receive that has been posted.
    #[cold]
    #[inline(never)]
    fn wake_eps(&self) {
        // Who sleeps from here on is woken below, or stores it again.
        self.is_awaited.store(false, Ordering::Relaxed);
        for ep in &*self.eps() {
            // SAFETY: an endpoint leaves the list before it is freed.
            unsafe { &**ep }.shared.signal();
        }
    }
}

impl Ep {
    /// Receives messages of this endpoint into what was posted at its shared context. Inside the lock.
    pub(super) fn take_shared(&self, plain: &ucp::Worker) {
        // SAFETY: a shared context is not closed before its endpoints.
        let Some(srx) = (unsafe { self.srx.get().as_ref() }) else { return };
        while self.rx.has_room() {
            let Some((mut message, posted)) = srx.recvs.take(plain) else { break };
            let memory = match posted.pieces[..] {
                [one] => Memory::Bytes(one.addr, one.len),
                _ => Memory::Pieces(&posted.pieces),
            };
            let Posted { tag, flags, context, .. } = posted;
            let op = self.new_recv(&Recv { memory, from: ADDR_UNSPEC, tag, flags, context });
            // SAFETY: as for a receive that is posted at the endpoint.
            let started = self.receive_into(&memory, op, |memory, params| unsafe {
                match *memory {
                    Memory::Bytes(at, len) => message.recv_raw(at, len, params),
                    Memory::Pieces(pieces) => message.recv_layout_raw(Layout::Iov(pieces), params),
                }
            });
            if let Err(errno) = started {
                tracing::error!("a shared receive could not be started: error {}", errno.0);
                self.end_recv(&op, Err(ucp::Error::Exhausted), None);
            }
        }
    }

    /// Notes that a receive which is posted at the shared context is to wake those that sleep on this
    /// endpoint. They look for receives after that. Inside the lock.
    pub(super) fn await_shared(&self) {
        // SAFETY: a shared context is not closed before its endpoints.
        if let Some(srx) = unsafe { self.srx.get().as_ref() } {
            srx.is_awaited.store(true, Ordering::Relaxed);
            fence(Ordering::SeqCst);
        }
    }

    /// Whether it was opened for a shared receive context.
    pub(super) fn shares_rx(&self) -> bool {
        self.caps & SHARED_RX != 0
    }

    /// Binds a shared receive context.
    pub(super) fn bind_srx(&self, srx: &Srx) -> Result<(), Errno> {
        if !self.shares_rx() || !self.srx.get().is_null() {
            return Err(Errno::INVAL);
        }
        self.inside(|_| self.srx.set(srx));
        srx.eps().push(self);
        srx.users.add();
        Ok(())
    }

    /// Leaves the shared receive context.
    pub(super) fn unbind_srx(&self) {
        // SAFETY: a shared context is not closed before its endpoints.
        if let Some(srx) = unsafe { self.inside(|_| self.srx.replace(std::ptr::null())).as_ref() } {
            srx.eps().retain(|known| !std::ptr::eq(*known, self));
            srx.users.remove();
        }
    }
}

calls! {
    /// Closes a context. Receives that wait end without a completion.
    fn close(fid: *mut Fid) -> c_int {
        let gone = from_handle::<Srx>(fid)?;
        // SAFETY: a domain is not closed before its contexts.
        unsafe { &*gone.domain }.users().remove();
        Ok(0)
    }

    /// Enables a context, which it is from the beginning.
    fn control(fid: *mut Fid, command: c_int, _arg: P) -> c_int {
        checked::<Srx>(fid)?;
        match command {
            flags::ENABLE => Ok(0),
            command => Err(refused::log_refusal(&format!("fi_control of shared receives: command {command}"))),
        }
    }

    /// Removes a receive that no message has taken. No queue is of the context, so that nothing is reported.
    fn cancel(fid: *mut Fid, context: P) -> isize {
        let srx: &Srx = checked(fid)?;
        srx.recvs.cancel(|posted| posted.context == context).map(|_| 0).ok_or(Errno::NOENT)
    }

    fn rx_size_left(fid: *mut Fid) -> isize {
        let srx: &Srx = checked(fid)?;
        Ok(srx.size.saturating_sub(srx.recvs.len()) as isize)
    }

    fn recv(fid: *mut Fid, buf: P, len: usize, _desc: P, _from: FiAddr, context: P) -> isize {
        let srx: &Srx = from_fid(fid)?;
        srx.post(&Memory::bytes(buf, len)?, None, srx.op_flags.get(), context)
    }

    fn recvv(fid: *mut Fid, iov: *const IoVec, _desc: *mut P, count: usize, _from: FiAddr, context: P) -> isize {
        let srx: &Srx = from_fid(fid)?;
        srx.post(&Memory::pieces(iov, count)?, None, srx.op_flags.get(), context)
    }

    fn recvmsg(fid: *mut Fid, msg: *const Msg, flags: u64) -> isize {
        let msg = read(msg)?;
        from_fid::<Srx>(fid)?.post(&Memory::pieces(msg.msg_iov, msg.iov_count)?, None, flags, msg.context)
    }

    fn trecv(
        fid: *mut Fid, buf: P, len: usize, _desc: P, _from: FiAddr, tag: u64, ignore: u64, context: P,
    ) -> isize {
        let srx: &Srx = from_fid(fid)?;
        srx.post(&Memory::bytes(buf, len)?, Some((tag, ignore)), srx.op_flags.get(), context)
    }

    fn trecvv(
        fid: *mut Fid, iov: *const IoVec, _desc: *mut P, count: usize, _from: FiAddr, tag: u64, ignore: u64, context: P,
    ) -> isize {
        let srx: &Srx = from_fid(fid)?;
        srx.post(&Memory::pieces(iov, count)?, Some((tag, ignore)), srx.op_flags.get(), context)
    }

    fn trecvmsg(fid: *mut Fid, msg: *const MsgTagged, flags: u64) -> isize {
        let msg = read(msg)?;
        let memory = Memory::pieces(msg.msg_iov, msg.iov_count)?;
        from_fid::<Srx>(fid)?.post(&memory, Some((msg.tag, msg.ignore)), flags, msg.context)
    }
}
