//! `fi_rma`: reads and writes of a peer's memory.

use std::ffi::c_void;

use super::ep_fid::EpFid;
use super::one_sided::{OneSided, remote_pieces};
use super::send::Memory;
use crate::abi::ops::RmaOps;
use crate::abi::{FiAddr, Fid, IoVec, MsgRma, RmaIov, flags};
use crate::errno::Errno;
use crate::object::read as read_struct;

pub(super) static OPS: RmaOps = RmaOps {
    size: size_of::<RmaOps>(),
    read,
    readv,
    readmsg,
    write,
    writev,
    writemsg,
    inject,
    writedata,
    injectdata,
};

type P = *mut c_void;

/// Reads or writes one piece of a peer's memory, as long as the local memory.
#[inline(always)]
fn one(
    memory: Memory<'_>,
    (peer, addr, key): (FiAddr, u64, u64),
    context: P,
    run: impl FnOnce(&OneSided<'_>) -> Result<isize, Errno>,
) -> Result<isize, Errno> {
    let remote = [RmaIov { addr, len: memory.len(), key }];
    run(&OneSided { memory, peer, remote: &remote, data: None, flags: 0, context, is_silent: false })
}

/// Reads or writes what a structure of the caller describes.
/// # Safety
/// `msg` is null or whole, with its lists; memory is as for [`Memory::bytes`].
unsafe fn of_msg(
    msg: *const MsgRma,
    flags: u64,
    run: impl FnOnce(&OneSided<'_>) -> Result<isize, Errno>,
) -> Result<isize, Errno> {
    // SAFETY: this function's contract.
    let msg = unsafe { read_struct(msg) }?;
    // SAFETY: as above.
    let memory = unsafe { Memory::pieces(msg.msg_iov, msg.iov_count) }?;
    // SAFETY: as above.
    let remote = unsafe { remote_pieces(msg.rma_iov, msg.rma_iov_count) }?;
    let data = (flags & flags::REMOTE_CQ_DATA != 0).then_some(msg.data);
    run(&OneSided { memory, peer: msg.addr, remote, data, flags, context: msg.context, is_silent: false })
}

calls! {
    // HOT
    fn read(ep: *mut Fid, buf: P, len: usize, _desc: P, from: FiAddr, addr: u64, key: u64, context: P) -> isize {
        let (ep, on) = EpFid::of(ep)?;
        let flags = on.tx_flags() & !flags::INJECT;
        one(Memory::bytes(buf, len)?, (from, addr, key), context, |read| ep.read(&OneSided { flags, ..*read }))
    }

    fn readv(
        ep: *mut Fid, iov: *const IoVec, _desc: *mut P, count: usize, from: FiAddr, addr: u64, key: u64, context: P,
    ) -> isize {
        let (ep, on) = EpFid::of(ep)?;
        let flags = on.tx_flags() & !flags::INJECT;
        let memory = Memory::pieces(iov, count)?;
        one(memory, (from, addr, key), context, |read| ep.read(&OneSided { flags, ..*read }))
    }

    fn readmsg(ep: *mut Fid, msg: *const MsgRma, flags: u64) -> isize {
        let (ep, _) = EpFid::of(ep)?;
        of_msg(msg, flags, |read| ep.read(read))
    }

    // HOT
    fn write(
        ep: *mut Fid, buf: *const c_void, len: usize, _desc: P, to: FiAddr, addr: u64, key: u64, context: P,
    ) -> isize {
        let (ep, on) = EpFid::of(ep)?;
        let flags = on.tx_flags();
        one(Memory::bytes(buf, len)?, (to, addr, key), context, |write| ep.write(&OneSided { flags, ..*write }))
    }

    fn writev(
        ep: *mut Fid, iov: *const IoVec, _desc: *mut P, count: usize, to: FiAddr, addr: u64, key: u64, context: P,
    ) -> isize {
        let (ep, on) = EpFid::of(ep)?;
        let flags = on.tx_flags();
        let memory = Memory::pieces(iov, count)?;
        one(memory, (to, addr, key), context, |write| ep.write(&OneSided { flags, ..*write }))
    }

    fn writemsg(ep: *mut Fid, msg: *const MsgRma, flags: u64) -> isize {
        let (ep, _) = EpFid::of(ep)?;
        of_msg(msg, flags, |write| ep.write(write))
    }

    fn inject(ep: *mut Fid, buf: *const c_void, len: usize, to: FiAddr, addr: u64, key: u64) -> isize {
        let (ep, _) = EpFid::of(ep)?;
        let (flags, is_silent) = (flags::INJECT, true);
        one(Memory::bytes(buf, len)?, (to, addr, key), std::ptr::null_mut(), |write| {
            ep.write(&OneSided { flags, is_silent, ..*write })
        })
    }

    fn writedata(
        ep: *mut Fid, buf: *const c_void, len: usize, _desc: P, data: u64, to: FiAddr, addr: u64, key: u64, context: P,
    ) -> isize {
        let (ep, on) = EpFid::of(ep)?;
        let (flags, data) = (on.tx_flags(), Some(data));
        one(Memory::bytes(buf, len)?, (to, addr, key), context, |write| {
            ep.write(&OneSided { flags, data, ..*write })
        })
    }

    fn injectdata(
        ep: *mut Fid, buf: *const c_void, len: usize, data: u64, to: FiAddr, addr: u64, key: u64,
    ) -> isize {
        let (ep, _) = EpFid::of(ep)?;
        let (flags, data, is_silent) = (flags::INJECT, Some(data), true);
        one(Memory::bytes(buf, len)?, (to, addr, key), std::ptr::null_mut(), |write| {
            ep.write(&OneSided { flags, data, is_silent, ..*write })
        })
    }
}
