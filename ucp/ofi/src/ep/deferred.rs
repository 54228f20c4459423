//! Operations of deferred work: how they start at an endpoint, and which counters their ends reach.

use std::ffi::c_void;
use std::sync::{MutexGuard, PoisonError};

use ucp::rdm::amo::Form;

use super::Ep;
use super::atomics::{Atomic, elements};
use super::complete::{NO_CNTR, Op};
use super::ep_fid::EpFid;
use super::one_sided::{OneSided, remote_pieces};
use super::owned_op::OwnedOp;
use super::recv::Recv;
use super::send::{Memory, Send};
use crate::abi::{Fid, Ioc, Msg, MsgAtomic, MsgRma, MsgTagged, flags};
use crate::cntr::Cntr;
use crate::errno::Errno;
use crate::object::{Object, read};

/// `struct fi_op_msg` and its relatives.
#[derive(Clone, Copy)]
#[repr(C)]
struct Of<M> {
    ep: *mut Fid,
    msg: M,
    flags: u64,
}

/// `struct fi_op_fetch_atomic`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Fetch {
    ep: *mut Fid,
    msg: MsgAtomic,
    result: Elements,
    flags: u64,
}

/// `struct fi_op_compare_atomic`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Compare {
    ep: *mut Fid,
    msg: MsgAtomic,
    result: Elements,
    compare: Elements,
    flags: u64,
}

/// `struct fi_msg_fetch` and `struct fi_msg_compare`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Elements {
    iov: *mut Ioc,
    desc: *mut *mut c_void,
    count: usize,
}

impl Elements {
    /// # Safety
    /// The list has as many elements, as long as the result is used.
    unsafe fn list<'a>(self) -> Result<&'a [Ioc], Errno> {
        // SAFETY: this function's contract.
        unsafe { elements(self.iov, self.count) }
    }
}

/// Types of operations; two more change counters.
const RECV: u32 = 0;
const SEND: u32 = 1;
const TRECV: u32 = 2;
const TSEND: u32 = 3;
const READ: u32 = 4;
const WRITE: u32 = 5;
const ATOMIC: u32 = 6;
const FETCH_ATOMIC: u32 = 7;
const COMPARE_ATOMIC: u32 = 8;

/// An operation with the endpoint that it begins with, as a description has it.
/// # Safety
/// `at` is null or a structure of an operation of this type, with its endpoint, lists and memory.
pub(crate) unsafe fn operation<'a>(op_type: u32, at: *const c_void) -> Result<(&'a Ep, OwnedOp), Errno> {
    // SAFETY: this function's contract.
    let fid = unsafe { read(at.cast::<*mut Fid>()) }?;
    // SAFETY: as above.
    let (ep, _) = unsafe { EpFid::checked(fid) }?;
    let op = match op_type {
        RECV | SEND => {
            // SAFETY: as above.
            let Of { msg, flags, .. } = unsafe { read(at.cast::<Of<Msg>>()) }?;
            // SAFETY: as above.
            let memory = unsafe { Memory::pieces(msg.msg_iov, msg.iov_count) }?;
            message(op_type == SEND, memory, (msg.addr, None, msg.data), flags, msg.context)
        }
        TRECV | TSEND => {
            // SAFETY: as above.
            let Of { msg, flags, .. } = unsafe { read(at.cast::<Of<MsgTagged>>()) }?;
            // SAFETY: as above.
            let memory = unsafe { Memory::pieces(msg.msg_iov, msg.iov_count) }?;
            let tag = Some((msg.tag, !msg.ignore));
            message(op_type == TSEND, memory, (msg.addr, tag, msg.data), flags, msg.context)
        }
        READ | WRITE => {
            // SAFETY: as above.
            let Of { msg, flags, .. } = unsafe { read(at.cast::<Of<MsgRma>>()) }?;
            // SAFETY: as above.
            let memory = unsafe { Memory::pieces(msg.msg_iov, msg.iov_count) }?;
            // SAFETY: as above.
            let remote = unsafe { remote_pieces(msg.rma_iov, msg.rma_iov_count) }?;
            let data = (flags & flags::REMOTE_CQ_DATA != 0).then_some(msg.data);
            let (peer, context, is_silent) = (msg.addr, msg.context, false);
            let one_sided = OneSided { memory, peer, remote, data, flags, context, is_silent };
            if op_type == READ { OwnedOp::of_read(&one_sided) } else { OwnedOp::of_write(&one_sided) }
        }
        ATOMIC => {
            // SAFETY: as above.
            let Of { msg, flags, .. } = unsafe { read(at.cast::<Of<MsgAtomic>>()) }?;
            // SAFETY: as above.
            unsafe { atomic(Form::Write, msg, [&[], &[]], flags) }
        }
        FETCH_ATOMIC => {
            // SAFETY: as above.
            let Fetch { msg, result, flags, .. } = unsafe { read(at.cast()) }?;
            // SAFETY: as above.
            let result = unsafe { result.list() }?;
            // SAFETY: as above.
            unsafe { atomic(Form::Fetch, msg, [&[], result], flags) }
        }
        COMPARE_ATOMIC => {
            // SAFETY: as above.
            let Compare { msg, result, compare, flags, .. } = unsafe { read(at.cast()) }?;
            // SAFETY: as above.
            let (compare, result) = (unsafe { compare.list() }?, unsafe { result.list() }?);
            // SAFETY: as above.
            unsafe { atomic(Form::Compare, msg, [compare, result], flags) }
        }
        _ => Err(Errno::NOSYS),
    }?;
    if op.has_trigger() {
        tracing::debug!("an operation of deferred work with FI_TRIGGER, which waits by itself");
        return Err(Errno::BADFLAGS);
    }
    Ok((ep, op))
}

fn message(
    is_send: bool,
    memory: Memory<'_>,
    (peer, tag, data): (u64, Option<(u64, u64)>, u64),
    flags: u64,
    context: *mut c_void,
) -> Result<OwnedOp, Errno> {
    if !is_send {
        return OwnedOp::of_recv(&Recv { memory, from: peer, tag, flags, context });
    }
    let data = (flags & flags::REMOTE_CQ_DATA != 0).then_some(data);
    let tag = tag.map(|(tag, _)| tag);
    OwnedOp::of_send(&Send { memory, to: peer, tag, data, flags, context, is_silent: false })
}

/// # Safety
/// The lists of `msg` are whole.
unsafe fn atomic(
    form: Form,
    msg: MsgAtomic,
    [compare, result]: [&[Ioc]; 2],
    op_flags: u64,
) -> Result<OwnedOp, Errno> {
    // SAFETY: this function's contract.
    OwnedOp::of_atomic(&unsafe { Atomic::of_msg(form, &msg, [compare, result], op_flags) }?)
}

impl Ep {
    /// Starts an operation of deferred work, whose end is counted by `completion` alone unless it asks for a
    /// completion.
    pub(crate) fn start_deferred(&self, completion: Option<&Cntr>, op: &OwnedOp) -> Result<(), Errno> {
        self.inside(|_| {
            // With room, no progress is made in the call, so that no other operation starts in it.
            let way = if op.is_recv() { &self.rx } else { &self.tx };
            if !way.has_room() {
                self.progress();
                return Err(Errno::AGAIN);
            }
            if let Some(cntr) = completion {
                cntr.users().add();
            }
            self.deferred.set(completion.map_or(NO_CNTR, std::ptr::from_ref));
            let started = op.call_on(self);
            self.deferred.set(std::ptr::null());
            if let (Err(_), Some(cntr)) = (&started, completion) {
                cntr.users().remove();
            }
            started.map(drop)
        })
    }

    /// Counts the end of deferred work. Returns the endpoint's counter if that counts it, too.
    #[cold]
    pub(super) fn end_deferred(&self, op: &Op, of_ep: *const Cntr, is_error: bool) -> *const Cntr {
        if op.cntr != NO_CNTR {
            // SAFETY: a counter is not closed while deferred work uses it.
            let cntr = unsafe { &*op.cntr };
            cntr.count(is_error);
            cntr.members.wake();
            cntr.users().remove();
        }
        if op.is_reported && of_ep != op.cntr { of_ep } else { std::ptr::null() }
    }

    /// Makes progress of this endpoint part of waiting for a counter, bound to it or not. Inside the lock of
    /// joins.
    pub(crate) fn join(&self, cntr: &Cntr) -> Result<(), Errno> {
        if !self.has_joined(cntr) {
            cntr.members.add(self)?;
            self.joined().push(cntr);
        }
        Ok(())
    }

    /// Whether it waits with a counter that need not be bound. Inside the lock of joins.
    pub(super) fn has_joined(&self, cntr: &Cntr) -> bool {
        self.joined().iter().any(|known| std::ptr::eq(*known, cntr))
    }

    fn joined(&self) -> MutexGuard<'_, Vec<*const Cntr>> {
        self.joined.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets a counter that is closed. Inside the lock of joins.
    pub(crate) fn leave(&self, cntr: &Cntr) {
        self.joined().retain(|known| !std::ptr::eq(*known, cntr));
    }

    /// Leaves all counters that need not be bound.
    pub(super) fn leave_all(&self) {
        let _joins = self.domain().lock_joins();
        let joined = std::mem::take(&mut *self.joined());
        for cntr in joined {
            // SAFETY: a counter that is closed leaves the list, and none is closed while endpoints leave.
            unsafe { &*cntr }.members.remove(self);
        }
    }
}
