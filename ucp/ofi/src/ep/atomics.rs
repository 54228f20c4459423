//! Atomic operations on a peer's memory: which there are, and how they start.

use std::ffi::c_void;

use ucp::rdm::amo::{Form, has_form, has_type};
use ucp::{AtomicIovParams, AtomicOp, AtomicParams, Datatype, Iov, atomic_self_raw};

use super::Ep;
use super::one_sided::{packet_key, sync_of};
use super::owned_op::OwnedOp;
use super::send::{Memory, check_count};
use crate::abi::{FiAddr, Ioc, RmaIov, flags};
use crate::errno::Errno;
use crate::info::{IOV_LIMIT, RMA_IOV_LIMIT};

/// Longest list of elements of one operation, bytes: it fits a packet of every transport.
pub(super) const MAX_BYTES: usize = 1024;

/// An atomic operation, as a call describes it.
pub(super) struct Atomic<'a> {
    pub form: Form,
    pub op: u32,
    pub datatype: u32,
    pub operand: &'a [Ioc],
    /// Empty unless the form compares.
    pub compare: &'a [Ioc],
    /// Empty for the form without result.
    pub result: &'a [Ioc],
    pub peer: FiAddr,
    /// Pieces whose lengths are numbers of elements.
    pub remote: &'a [RmaIov],
    pub flags: u64,
    pub context: *mut c_void,
    pub is_silent: bool,
}

/// Operation and type of the engine; their numbers are libfabric's.
fn known(form: Form, op: u32, datatype: u32) -> Result<(AtomicOp, Datatype), Errno> {
    let pair = AtomicOp::try_from(op).ok().zip(Datatype::try_from(datatype).ok());
    let pair = pair.filter(|(op, ty)| has_form(*op, form) && has_type(*op, *ty));
    pair.ok_or_else(|| {
        tracing::debug!("there is no atomic operation {op} of form {form:?} on type {datatype}");
        Errno::OPNOTSUPP
    })
}

/// Most elements of one operation, and the size of one.
pub(super) fn limits(form: Form, op: u32, datatype: u32) -> Result<(usize, usize), Errno> {
    let (_, ty) = known(form, op, datatype)?;
    let most = if form == Form::Compare { MAX_BYTES / 2 } else { MAX_BYTES };
    Ok((most / ty.size(), ty.size()))
}

/// Elements that a call passes.
/// # Safety
/// `at` is null or has `count` of them, as long as the result is used.
pub(super) unsafe fn elements<'a>(at: *const Ioc, count: usize) -> Result<&'a [Ioc], Errno> {
    check_count(count, IOV_LIMIT)?;
    if at.is_null() && count > 0 {
        return Err(Errno::INVAL);
    }
    // SAFETY: this function's contract.
    Ok(if count == 0 { &[] } else { unsafe { std::slice::from_raw_parts(at, count) } })
}

/// Lists of elements as pieces of memory.
#[derive(Clone, Copy)]
struct Pieces([Iov; IOV_LIMIT], usize);

impl Pieces {
    const NONE: Pieces = Pieces([Iov { addr: std::ptr::null_mut(), len: 0 }; IOV_LIMIT], 0);

    fn of(list: &[Ioc], size: usize) -> Result<Pieces, Errno> {
        let mut made = Pieces::NONE;
        for (piece, ioc) in made.0.iter_mut().zip(list) {
            let len = ioc.count.checked_mul(size).ok_or(Errno::INVAL)?;
            if ioc.addr.is_null() && len > 0 {
                return Err(Errno::INVAL);
            }
            *piece = Iov { addr: ioc.addr.cast(), len };
            made.1 += 1;
        }
        Ok(made)
    }

    fn list(&self) -> &[Iov] {
        &self.0[..self.1]
    }

    fn len(&self) -> usize {
        self.list().iter().map(|piece| piece.len).fold(0, usize::saturating_add)
    }

    fn start(&self) -> *mut u8 {
        self.list().first().map_or(std::ptr::null_mut(), |piece| piece.addr)
    }
}

/// Memory of an operation, as the engine has it.
struct Lists {
    operand: Pieces,
    compare: Pieces,
    result: Pieces,
    remote: [RmaIov; RMA_IOV_LIMIT],
}

impl Lists {
    /// Checks the lists: those that the operation has are equally long.
    fn of(atomic: &Atomic<'_>, op: AtomicOp, size: usize) -> Result<Lists, Errno> {
        let mut remote = [RmaIov { addr: 0, len: 0, key: 0 }; RMA_IOV_LIMIT];
        let mut total = 0usize;
        for (to, from) in remote.iter_mut().zip(atomic.remote) {
            let len = from.len.checked_mul(size).ok_or(Errno::INVAL)?;
            total = total.checked_add(len).ok_or(Errno::INVAL)?;
            *to = RmaIov { len, ..*from };
        }
        let operand = match op {
            AtomicOp::Read => Pieces::NONE,
            _ => Pieces::of(atomic.operand, size)?,
        };
        let (compare, result) = (Pieces::of(atomic.compare, size)?, Pieces::of(atomic.result, size)?);
        let is_whole = (op == AtomicOp::Read || operand.len() == total)
            && (atomic.form != Form::Compare || compare.len() == total)
            && (atomic.form == Form::Write || result.len() == total);
        if !is_whole || total == 0 {
            return Err(Errno::INVAL);
        }
        Ok(Lists { operand, compare, result, remote })
    }
}

/// Parameters of an operation on one piece of a peer's memory whose lists have at most one piece each, all of
/// its length. `None`: it is another one, or refused.
// HOT
#[inline(always)]
fn plain_params(atomic: &Atomic<'_>, op: AtomicOp, ty: Datatype) -> Option<AtomicParams<'static>> {
    let [RmaIov { len: count, .. }] = *atomic.remote else { return None };
    let start = |list: &[Ioc], is_needed: bool| match list {
        [one] if is_needed && one.count == count && !one.addr.is_null() => Some(one.addr.cast()),
        _ if !is_needed => Some(std::ptr::null_mut()),
        _ => None,
    };
    let operand: *mut u8 = start(atomic.operand, op != AtomicOp::Read)?;
    let compare: *mut u8 = start(atomic.compare, atomic.form == Form::Compare)?;
    let result = start(atomic.result, atomic.form != Form::Write)?;
    let is_possible = count > 0 && count <= MAX_BYTES && atomic.flags & flags::INJECT == 0;
    let sync = sync_of(atomic.flags);
    is_possible.then_some(AtomicParams {
        op,
        ty,
        count,
        operand,
        compare,
        result,
        sync,
        done: None,
        mem: None,
    })
}

impl Ep {
    /// Starts an atomic operation.
    // HOT
    #[inline(never)]
    pub(super) fn atomic(&self, atomic: &Atomic<'_>) -> Result<isize, Errno> {
        let direction = if atomic.form == Form::Write { flags::WRITE } else { flags::READ };
        let what = (atomic.peer, atomic.flags & !flags::TAGGED);
        let start = |ep: &ucp::Ep| self.atomic_to(ep, atomic, flags::ATOMIC | direction);
        self.start_one_sided(flags::ATOMIC | direction, what, start, || {
            self.trigger(OwnedOp::of_atomic(atomic))
        })
    }

    // HOT
    #[inline(always)]
    fn atomic_to(&self, ep: &ucp::Ep, atomic: &Atomic<'_>, kind: u64) -> Result<isize, Errno> {
        let (op, ty) = known(atomic.form, atomic.op, atomic.datatype)?;
        let Some(params) = plain_params(atomic, op, ty) else {
            return self.atomic_to_many(ep, atomic, (op, ty), kind);
        };
        let record = self.new_transmit(kind, atomic.flags, atomic.context, atomic.is_silent);
        let RmaIov { addr, key, .. } = atomic.remote[0];
        let AtomicParams { count, operand, compare, result, .. } = params;
        if count == 1
            && let Some(key) = packet_key(key)
            // SAFETY: the caller's memory is there during the call.
            && unsafe { atomic_self_raw(ep, (op, ty, atomic.form), [operand, compare], result, addr, key) }
        {
            self.end_send(&record, Ok(()));
            return Ok(0);
        }
        let params = AtomicParams { done: Some(self.on_sent()), ..params };
        // SAFETY: the caller keeps the memory until the completion. The endpoint outlives its worker's
        // operations.
        let started = unsafe { ep.atomic_raw(addr, &self.domain().rkey(ep, key), &params) };
        self.finish_send(started, record)
    }

    /// Starts an operation with lists of several pieces, or whose operands are copied.
    #[inline(never)]
    fn atomic_to_many(
        &self,
        ep: &ucp::Ep,
        atomic: &Atomic<'_>,
        (op, ty): (AtomicOp, Datatype),
        kind: u64,
    ) -> Result<isize, Errno> {
        let mut lists = Lists::of(atomic, op, ty.size())?;
        let mut record = self.new_transmit(kind, atomic.flags, atomic.context, atomic.is_silent);
        if atomic.flags & flags::INJECT != 0 {
            // Operands, and behind them the values that are compared.
            let (first, second) = (lists.operand.len(), lists.compare.len());
            let mut all = [Iov { addr: std::ptr::null_mut(), len: 0 }; 2 * IOV_LIMIT];
            let parts = lists.operand.list().iter().chain(lists.compare.list());
            let count = all.iter_mut().zip(parts).map(|(to, from)| *to = *from).count();
            let mut copy = self.copied(&Memory::Pieces(&all[..count]))?;
            let at = copy.address();
            let piece = |addr: *mut u8, len: usize| Ioc { addr: addr.cast(), count: len };
            lists.operand = Pieces::of(&[piece(at, first)], 1)?;
            if second > 0 {
                lists.compare = Pieces::of(&[piece(at.wrapping_add(first), second)], 1)?;
            }
            record.copy = Box::into_raw(copy);
        }
        let remote = &lists.remote[..atomic.remote.len()];
        let (sync, done) = (sync_of(atomic.flags), Some(self.on_sent()));
        let is_plain = lists.operand.1 <= 1 && lists.compare.1 <= 1 && lists.result.1 <= 1;
        // SAFETY: the caller keeps the memory until the completion; a copy is kept until then, too. The
        // endpoint outlives its worker's operations.
        let started = unsafe {
            match remote {
                [one] if is_plain => {
                    let params = AtomicParams {
                        op,
                        ty,
                        count: one.len / ty.size(),
                        operand: lists.operand.start(),
                        compare: lists.compare.start(),
                        result: lists.result.start(),
                        sync,
                        done,
                        mem: None,
                    };
                    ep.atomic_raw(one.addr, &self.domain().rkey(ep, one.key), &params)
                }
                remote => {
                    let params = AtomicIovParams {
                        op,
                        ty,
                        operand: lists.operand.list(),
                        compare: lists.compare.list(),
                        result: (atomic.form != Form::Write).then(|| lists.result.list()),
                        sync,
                        done,
                        mem: None,
                    };
                    self.with_remote_iovs(ep, remote, |remote| ep.atomic_iov_raw(remote, &params))
                }
            }
        };
        self.finish_send(started, record)
    }
}
