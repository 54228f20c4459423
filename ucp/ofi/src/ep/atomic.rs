//! `fi_atomic`: atomic operations on a peer's memory.

use std::ffi::{c_int, c_void};

use ucp::rdm::amo::Form;

use super::Ep;
use super::atomics::{Atomic, elements, limits};
use super::ep_fid::EpFid;
use super::one_sided::remote_pieces;
use crate::abi::ops::AtomicTable;
use crate::abi::{AtomicAttr, FiAddr, Fid, Ioc, MsgAtomic, RmaIov, flags};
use crate::domain::Domain;
use crate::errno::Errno;
use crate::object::{checked, read, store};

pub(super) static OPS: AtomicTable = AtomicTable {
    size: size_of::<AtomicTable>(),
    write,
    writev,
    writemsg,
    inject,
    readwrite,
    readwritev,
    readwritemsg,
    compwrite,
    compwritev,
    compwritemsg,
    writevalid,
    readwritevalid,
    compwritevalid,
};

type P = *mut c_void;

/// The peer's elements, and what is done to them.
#[derive(Clone, Copy)]
struct Target {
    peer: FiAddr,
    addr: u64,
    key: u64,
    datatype: u32,
    op: u32,
}

/// Contiguous elements of the caller.
fn ioc(at: *const c_void, count: usize) -> Ioc {
    Ioc { addr: at.cast_mut(), count }
}

/// An operation on contiguous elements of the peer.
// HOT
#[inline(always)]
fn on_one(
    ep: &Ep,
    form: Form,
    [operand, compare, result]: [&[Ioc]; 3],
    target: Target,
    (op_flags, context, is_silent): (u64, P, bool),
) -> Result<isize, Errno> {
    let Target { peer, addr, key, datatype, op } = target;
    let of = if operand.is_empty() { result } else { operand };
    let count = of.iter().map(|piece| piece.count).fold(0, usize::saturating_add);
    let remote = [RmaIov { addr, len: count, key }];
    ep.atomic(&Atomic {
        form,
        op,
        datatype,
        operand,
        compare,
        result,
        peer,
        remote: &remote,
        flags: op_flags,
        context,
        is_silent,
    })
}

impl<'a> Atomic<'a> {
    /// The operation that a structure of the caller describes.
    /// # Safety
    /// `msg` is null or whole, with its lists, as long as the result is used.
    pub(super) unsafe fn of_msg(
        form: Form,
        msg: *const MsgAtomic,
        [compare, result]: [&'a [Ioc]; 2],
        op_flags: u64,
    ) -> Result<Atomic<'a>, Errno> {
        // SAFETY: this function's contract.
        let msg = unsafe { read(msg) }?;
        if op_flags & flags::REMOTE_CQ_DATA != 0 {
            tracing::debug!("atomic operations carry no completion data");
            return Err(Errno::BADFLAGS);
        }
        Ok(Atomic {
            form,
            op: msg.op,
            datatype: msg.datatype,
            // SAFETY: as above.
            operand: unsafe { elements(msg.msg_iov, msg.iov_count) }?,
            compare,
            result,
            peer: msg.addr,
            // SAFETY: as above.
            remote: unsafe { remote_pieces(msg.rma_iov, msg.rma_iov_count) }?,
            flags: op_flags,
            context: msg.context,
            is_silent: false,
        })
    }
}

/// Starts an operation that a structure of the caller describes.
/// # Safety
/// `msg` is null or whole, with its lists; memory is as for [`Memory::bytes`](super::send::Memory::bytes).
unsafe fn of_msg(
    ep: &Ep,
    form: Form,
    msg: *const MsgAtomic,
    lists: [&[Ioc]; 2],
    op_flags: u64,
) -> Result<isize, Errno> {
    // SAFETY: this function's contract.
    ep.atomic(&unsafe { Atomic::of_msg(form, msg, lists, op_flags) }?)
}

/// Answers which number of elements an operation may have.
/// # Safety
/// As for [`EpFid::checked`]; `count` is null or can be written.
unsafe fn valid(ep: *mut Fid, form: Form, datatype: u32, op: u32, count: *mut usize) -> Result<c_int, Errno> {
    // SAFETY: this function's contract.
    unsafe { EpFid::checked(ep) }?;
    let (most, _) = limits(form, op, datatype)?;
    // SAFETY: as above.
    unsafe { store(count, most) }.map(|()| 0)
}

calls! {
    fn write(
        ep: *mut Fid, buf: *const c_void, count: usize, _desc: P, peer: FiAddr, addr: u64, key: u64, datatype: u32,
        op: u32, context: P,
    ) -> isize {
        let (ep, on) = EpFid::of(ep)?;
        let target = Target { peer, addr, key, datatype, op };
        on_one(ep, Form::Write, [&[ioc(buf, count)], &[], &[]], target, (on.tx_flags(), context, false))
    }

    fn writev(
        ep: *mut Fid, iov: *const Ioc, _desc: *mut P, count: usize, peer: FiAddr, addr: u64, key: u64, datatype: u32,
        op: u32, context: P,
    ) -> isize {
        let (ep, on) = EpFid::of(ep)?;
        let target = Target { peer, addr, key, datatype, op };
        on_one(ep, Form::Write, [elements(iov, count)?, &[], &[]], target, (on.tx_flags(), context, false))
    }

    fn writemsg(ep: *mut Fid, msg: *const MsgAtomic, flags: u64) -> isize {
        of_msg(EpFid::of(ep)?.0, Form::Write, msg, [&[], &[]], flags)
    }

    fn inject(
        ep: *mut Fid, buf: *const c_void, count: usize, peer: FiAddr, addr: u64, key: u64, datatype: u32, op: u32,
    ) -> isize {
        let (ep, _) = EpFid::of(ep)?;
        let target = Target { peer, addr, key, datatype, op };
        let how = (flags::INJECT, std::ptr::null_mut(), true);
        on_one(ep, Form::Write, [&[ioc(buf, count)], &[], &[]], target, how)
    }

    fn readwrite(
        ep: *mut Fid, buf: *const c_void, count: usize, _desc: P, result: P, _result_desc: P, peer: FiAddr, addr: u64,
        key: u64, datatype: u32, op: u32, context: P,
    ) -> isize {
        let (ep, on) = EpFid::of(ep)?;
        let target = Target { peer, addr, key, datatype, op };
        let lists = [&[ioc(buf, count)][..], &[], &[ioc(result, count)]];
        on_one(ep, Form::Fetch, lists, target, (on.tx_flags(), context, false))
    }

    fn readwritev(
        ep: *mut Fid, iov: *const Ioc, _desc: *mut P, count: usize, result: *mut Ioc, _result_desc: *mut P,
        result_count: usize, peer: FiAddr, addr: u64, key: u64, datatype: u32, op: u32, context: P,
    ) -> isize {
        let (ep, on) = EpFid::of(ep)?;
        let target = Target { peer, addr, key, datatype, op };
        let lists = [elements(iov, count)?, &[], elements(result, result_count)?];
        on_one(ep, Form::Fetch, lists, target, (on.tx_flags(), context, false))
    }

    fn readwritemsg(
        ep: *mut Fid, msg: *const MsgAtomic, result: *mut Ioc, _result_desc: *mut P, count: usize, flags: u64,
    ) -> isize {
        of_msg(EpFid::of(ep)?.0, Form::Fetch, msg, [&[], elements(result, count)?], flags)
    }

    fn compwrite(
        ep: *mut Fid, buf: *const c_void, count: usize, _desc: P, compare: *const c_void, _compare_desc: P, result: P,
        _result_desc: P, peer: FiAddr, addr: u64, key: u64, datatype: u32, op: u32, context: P,
    ) -> isize {
        let (ep, on) = EpFid::of(ep)?;
        let target = Target { peer, addr, key, datatype, op };
        let lists = [&[ioc(buf, count)][..], &[ioc(compare, count)], &[ioc(result, count)]];
        on_one(ep, Form::Compare, lists, target, (on.tx_flags(), context, false))
    }

    fn compwritev(
        ep: *mut Fid, iov: *const Ioc, _desc: *mut P, count: usize, compare: *const Ioc, _compare_desc: *mut P,
        compare_count: usize, result: *mut Ioc, _result_desc: *mut P, result_count: usize, peer: FiAddr, addr: u64,
        key: u64, datatype: u32, op: u32, context: P,
    ) -> isize {
        let (ep, on) = EpFid::of(ep)?;
        let target = Target { peer, addr, key, datatype, op };
        let lists =
            [elements(iov, count)?, elements(compare, compare_count)?, elements(result, result_count)?];
        on_one(ep, Form::Compare, lists, target, (on.tx_flags(), context, false))
    }

    fn compwritemsg(
        ep: *mut Fid, msg: *const MsgAtomic, compare: *const Ioc, _compare_desc: *mut P, compare_count: usize,
        result: *mut Ioc, _result_desc: *mut P, result_count: usize, flags: u64,
    ) -> isize {
        let lists = [elements(compare, compare_count)?, elements(result, result_count)?];
        of_msg(EpFid::of(ep)?.0, Form::Compare, msg, lists, flags)
    }

    fn writevalid(ep: *mut Fid, datatype: u32, op: u32, count: *mut usize) -> c_int {
        valid(ep, Form::Write, datatype, op, count)
    }

    fn readwritevalid(ep: *mut Fid, datatype: u32, op: u32, count: *mut usize) -> c_int {
        valid(ep, Form::Fetch, datatype, op, count)
    }

    fn compwritevalid(ep: *mut Fid, datatype: u32, op: u32, count: *mut usize) -> c_int {
        valid(ep, Form::Compare, datatype, op, count)
    }

    /// Limits of an operation: `FI_FETCH_ATOMIC` and `FI_COMPARE_ATOMIC` choose its form.
    fn query_atomic(domain: *mut Fid, datatype: u32, op: u32, attr: *mut AtomicAttr, flags: u64) -> c_int {
        checked::<Domain>(domain)?;
        let form = match flags {
            0 => Form::Write,
            flags::FETCH_ATOMIC => Form::Fetch,
            flags::COMPARE_ATOMIC => Form::Compare,
            _ => return Err(Errno::BADFLAGS),
        };
        let (count, size) = limits(form, op, datatype)?;
        store(attr, AtomicAttr { count, size }).map(|()| 0)
    }
}
