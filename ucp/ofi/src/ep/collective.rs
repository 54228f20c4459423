//! `fi_collective`: operations of the members of a group.

use std::ffi::{c_int, c_void};

use ucp::rdm::amo::combines;
use ucp::{AtomicOp, Datatype};

use super::ep_fid::EpFid;
use super::groups::ResultBuf;
use crate::abi::ops::CollectiveOps;
use crate::abi::{AtomicAttr, CollectiveAttr, FiAddr, Fid, flags};
use crate::av_set::MAX_MEMBERS;
use crate::domain::Domain;
use crate::errno::Errno;
use crate::object::{checked, read, store};

pub(super) static OPS: CollectiveOps = CollectiveOps {
    size: size_of::<CollectiveOps>(),
    barrier,
    broadcast,
    alltoall,
    allreduce,
    allgather,
    reduce_scatter,
    reduce,
    scatter,
    gather,
    msg,
    barrier2,
};

type P = *mut c_void;

/// `enum fi_collective_op`.
const BARRIER: u32 = 0;
const ALLREDUCE: u32 = 3;
const REDUCE_SCATTER: u32 = 5;
const REDUCE: u32 = 6;
const GATHER: u32 = 8;

/// Flags that an operation may have. They change nothing: each end is reported.
const KNOWN: u64 = flags::COMPLETION
    | flags::MORE
    | flags::INJECT_COMPLETE
    | flags::TRANSMIT_COMPLETE
    | flags::DELIVERY_COMPLETE
    | flags::MATCH_COMPLETE;

const NOTHING: ResultBuf = ResultBuf { at: std::ptr::null_mut(), len: 0 };

/// The type of elements, and the bytes of `count` of them.
fn sized(datatype: u32, count: usize) -> Result<(Datatype, usize), Errno> {
    let ty = Datatype::try_from(datatype).map_err(|_| Errno::OPNOTSUPP)?;
    Ok((ty, count.checked_mul(ty.size()).ok_or(Errno::INVAL)?))
}

/// An operation that combines elements.
fn reduction(op: u32, ty: Datatype) -> Result<AtomicOp, Errno> {
    let op = AtomicOp::try_from(op).map_err(|_| Errno::OPNOTSUPP)?;
    if combines(op, ty) { Ok(op) } else { Err(Errno::OPNOTSUPP) }
}

/// A copy of the caller's data.
/// # Safety
/// `buf` is null or memory of `len` bytes.
unsafe fn copied(buf: *const c_void, len: usize) -> Result<Vec<u8>, Errno> {
    match len {
        0 => Ok(Vec::new()),
        _ if buf.is_null() => Err(Errno::INVAL),
        // SAFETY: this function's contract.
        _ => Ok(unsafe { std::slice::from_raw_parts(buf.cast::<u8>(), len) }.to_vec()),
    }
}

/// Room for a result.
fn result_buf(result: P, len: usize) -> Result<ResultBuf, Errno> {
    if result.is_null() && len > 0 {
        return Err(Errno::INVAL);
    }
    Ok(ResultBuf { at: result.cast(), len })
}

fn check_flags(op_flags: u64) -> Result<(), Errno> {
    if op_flags & !KNOWN == 0 { Ok(()) } else { Err(Errno::BADFLAGS) }
}

/// Length of the pieces of all members together.
/// # Safety
/// As for [`EpFid::of`].
unsafe fn of_all(ep: *mut Fid, coll_addr: FiAddr, len: usize) -> Result<usize, Errno> {
    // SAFETY: this function's contract.
    let (ep, _) = unsafe { EpFid::of(ep) }?;
    let size = ep.group_size(coll_addr)?;
    len.checked_mul(size).ok_or(Errno::INVAL)
}

calls! {
    fn barrier(ep: *mut Fid, coll_addr: FiAddr, context: P) -> isize {
        let (ep, _) = EpFid::of(ep)?;
        ep.collective(coll_addr, NOTHING, context, |joined| Ok(joined.group.barrier()))
    }

    fn barrier2(ep: *mut Fid, coll_addr: FiAddr, flags: u64, context: P) -> isize {
        check_flags(flags)?;
        let (ep, _) = EpFid::of(ep)?;
        ep.collective(coll_addr, NOTHING, context, |joined| Ok(joined.group.barrier()))
    }

    /// `buf` is the data of the root, and room for it of the others.
    fn broadcast(
        ep: *mut Fid, buf: P, count: usize, _desc: P, coll_addr: FiAddr, root: FiAddr, datatype: u32, flags: u64,
        context: P,
    ) -> isize {
        check_flags(flags)?;
        let (_, len) = sized(datatype, count)?;
        let (ep, _) = EpFid::of(ep)?;
        let data = if ep.is_rank(coll_addr, root)? { copied(buf, len)? } else { vec![0; len] };
        let to = result_buf(buf, len)?;
        ep.collective(coll_addr, to, context, |joined| Ok(joined.group.broadcast(joined.rank_of(root)?, data)))
    }

    /// `count` elements for each member.
    fn alltoall(
        ep: *mut Fid, buf: *const c_void, count: usize, _desc: P, result: P, _result_desc: P, coll_addr: FiAddr,
        datatype: u32, flags: u64, context: P,
    ) -> isize {
        check_flags(flags)?;
        let len = of_all(ep, coll_addr, sized(datatype, count)?.1)?;
        let (data, to) = (copied(buf, len)?, result_buf(result, len)?);
        let (ep, _) = EpFid::of(ep)?;
        ep.collective(coll_addr, to, context, |joined| Ok(joined.group.all_to_all(data)))
    }

    fn allreduce(
        ep: *mut Fid, buf: *const c_void, count: usize, _desc: P, result: P, _result_desc: P, coll_addr: FiAddr,
        datatype: u32, op: u32, flags: u64, context: P,
    ) -> isize {
        check_flags(flags)?;
        let (ty, len) = sized(datatype, count)?;
        let op = reduction(op, ty)?;
        let (data, to) = (copied(buf, len)?, result_buf(result, len)?);
        let (ep, _) = EpFid::of(ep)?;
        ep.collective(coll_addr, to, context, |joined| Ok(joined.group.all_reduce(op, ty, data)))
    }

    /// `count` elements of each member.
    fn allgather(
        ep: *mut Fid, buf: *const c_void, count: usize, _desc: P, result: P, _result_desc: P, coll_addr: FiAddr,
        datatype: u32, flags: u64, context: P,
    ) -> isize {
        check_flags(flags)?;
        let (_, len) = sized(datatype, count)?;
        let (data, to) = (copied(buf, len)?, result_buf(result, of_all(ep, coll_addr, len)?)?);
        let (ep, _) = EpFid::of(ep)?;
        ep.collective(coll_addr, to, context, |joined| Ok(joined.group.all_gather(data)))
    }

    /// `count` elements of the result for each member, and as many for all of each member.
    fn reduce_scatter(
        ep: *mut Fid, buf: *const c_void, count: usize, _desc: P, result: P, _result_desc: P, coll_addr: FiAddr,
        datatype: u32, op: u32, flags: u64, context: P,
    ) -> isize {
        check_flags(flags)?;
        let (ty, len) = sized(datatype, count)?;
        let op = reduction(op, ty)?;
        let (data, to) = (copied(buf, of_all(ep, coll_addr, len)?)?, result_buf(result, len)?);
        let (ep, _) = EpFid::of(ep)?;
        ep.collective(coll_addr, to, context, |joined| Ok(joined.group.reduce_scatter(op, ty, data)))
    }

    /// `result` is looked at in the root only.
    fn reduce(
        ep: *mut Fid, buf: *const c_void, count: usize, _desc: P, result: P, _result_desc: P, coll_addr: FiAddr,
        root: FiAddr, datatype: u32, op: u32, flags: u64, context: P,
    ) -> isize {
        check_flags(flags)?;
        let (ty, len) = sized(datatype, count)?;
        let op = reduction(op, ty)?;
        let data = copied(buf, len)?;
        let (ep, _) = EpFid::of(ep)?;
        let to = if ep.is_rank(coll_addr, root)? { result_buf(result, len)? } else { NOTHING };
        ep.collective(coll_addr, to, context, |joined| {
            Ok(joined.group.reduce(joined.rank_of(root)?, op, ty, data))
        })
    }

    /// `count` elements for each member; `buf` is looked at in the root only.
    fn scatter(
        ep: *mut Fid, buf: *const c_void, count: usize, _desc: P, result: P, _result_desc: P, coll_addr: FiAddr,
        root: FiAddr, datatype: u32, flags: u64, context: P,
    ) -> isize {
        check_flags(flags)?;
        let (_, len) = sized(datatype, count)?;
        let all = of_all(ep, coll_addr, len)?;
        let (ep, _) = EpFid::of(ep)?;
        let data = if ep.is_rank(coll_addr, root)? { copied(buf, all)? } else { Vec::new() };
        let to = result_buf(result, len)?;
        ep.collective(coll_addr, to, context, |joined| Ok(joined.group.scatter(joined.rank_of(root)?, data, len)))
    }

    /// `count` elements of each member; `result` is looked at in the root only.
    fn gather(
        ep: *mut Fid, buf: *const c_void, count: usize, _desc: P, result: P, _result_desc: P, coll_addr: FiAddr,
        root: FiAddr, datatype: u32, flags: u64, context: P,
    ) -> isize {
        check_flags(flags)?;
        let (_, len) = sized(datatype, count)?;
        let all = of_all(ep, coll_addr, len)?;
        let data = copied(buf, len)?;
        let (ep, _) = EpFid::of(ep)?;
        let to = if ep.is_rank(coll_addr, root)? { result_buf(result, all)? } else { NOTHING };
        ep.collective(coll_addr, to, context, |joined| Ok(joined.group.gather(joined.rank_of(root)?, data)))
    }

    /// Operations that a structure describes are not there. libfabric has no function that calls this.
    fn msg(_ep: *mut Fid, _msg: P, _result: P, _desc: *mut P, _count: usize, _flags: u64) -> isize {
        Err(crate::refused::log_refusal("a collective operation by struct fi_msg_collective"))
    }

    /// Whether an operation is there, and its limits.
    fn query_collective(fid: *mut Fid, coll: u32, attr: *mut CollectiveAttr, flags: u64) -> c_int {
        let domain: &Domain = checked(fid)?;
        let mut asked = read(attr)?;
        if flags != 0 || asked.mode != 0 {
            return Err(Errno::INVAL);
        }
        if coll > GATHER || domain.caps & crate::abi::flags::COLLECTIVE == 0 {
            return Err(Errno::OPNOTSUPP);
        }
        if coll != BARRIER
            && let Ok(ty) = Datatype::try_from(asked.datatype)
        {
            if [ALLREDUCE, REDUCE_SCATTER, REDUCE].contains(&coll) {
                reduction(asked.op, ty)?;
            }
            asked.datatype_attr = AtomicAttr { count: isize::MAX as usize / ty.size(), size: ty.size() };
        }
        asked.max_members = MAX_MEMBERS;
        store(attr, asked).map(|()| 0)
    }
}
