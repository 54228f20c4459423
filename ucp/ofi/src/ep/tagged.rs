//! `fi_tagged`: tagged messages.

use std::ffi::c_void;

use super::ep_fid::EpFid;
use super::recv::Recv;
use super::send::{Memory, Send};
use crate::abi::ops::TaggedOps;
use crate::abi::{FiAddr, Fid, IoVec, MsgTagged, flags};
use crate::errno::Errno;
use crate::object::{from_fid, read};

pub(super) static OPS: TaggedOps = TaggedOps {
    size: size_of::<TaggedOps>(),
    recv: trecv,
    recvv: trecvv,
    recvmsg: trecvmsg,
    send: tsend,
    sendv: tsendv,
    sendmsg: tsendmsg,
    inject: tinject,
    senddata: tsenddata,
    injectdata: tinjectdata,
};

type P = *mut c_void;

/// General path of [`trecv`].
/// # Safety
/// As for [`Memory::bytes`].
#[inline(never)]
unsafe fn trecv_any(
    on: &EpFid,
    (buf, len): (P, usize),
    from: FiAddr,
    tag: (u64, u64),
    context: P,
) -> Result<isize, Errno> {
    // SAFETY: this function's contract.
    let (memory, flags) = (unsafe { Memory::bytes(buf, len) }?, on.rx_flags() & !flags::MULTI_RECV);
    on.ep().recv(&Recv { memory, from, tag: Some(tag), flags, context })
}

/// General path of [`tsend`] and [`tinject`]. `is_silent`: no completion is reported.
/// # Safety
/// As for [`Memory::bytes`].
#[inline(never)]
unsafe fn tsend_any(
    on: &EpFid,
    (buf, len): (*const c_void, usize),
    to: FiAddr,
    tag: u64,
    (flags, is_silent): (u64, bool),
    context: P,
) -> Result<isize, Errno> {
    // SAFETY: this function's contract.
    let memory = unsafe { Memory::bytes(buf, len) }?;
    on.ep().send(&Send { memory, to, tag: Some(tag), data: None, flags, context, is_silent })
}

calls! {
    // HOT
    fn trecv(ep: *mut Fid, buf: P, len: usize, _desc: P, from: FiAddr, tag: u64, ignore: u64, context: P) -> isize {
        let on: &EpFid = from_fid(ep)?;
        let flags = on.rx_flags();
        if on.ep().post_short((buf, len), from, (tag, !ignore), flags, context) {
            return Ok(0);
        }
        trecv_any(on, (buf, len), from, (tag, !ignore), context)
    }

    fn trecvv(
        ep: *mut Fid, iov: *const IoVec, _desc: *mut P, count: usize, from: FiAddr, tag: u64, ignore: u64, context: P,
    ) -> isize {
        let (ep, on) = EpFid::of(ep)?;
        let (memory, flags) = (Memory::pieces(iov, count)?, on.rx_flags() & !flags::MULTI_RECV);
        ep.recv(&Recv { memory, from, tag: Some((tag, !ignore)), flags, context })
    }

    fn trecvmsg(ep: *mut Fid, msg: *const MsgTagged, flags: u64) -> isize {
        let msg = read(msg)?;
        let memory = Memory::pieces(msg.msg_iov, msg.iov_count)?;
        let tag = Some((msg.tag, !msg.ignore));
        EpFid::of(ep)?.0.recv(&Recv { memory, from: msg.addr, tag, flags, context: msg.context })
    }

    // HOT
    fn tsend(ep: *mut Fid, buf: *const c_void, len: usize, _desc: P, to: FiAddr, tag: u64, context: P) -> isize {
        let on: &EpFid = from_fid(ep)?;
        let flags = on.tx_flags();
        if on.ep().send_short((buf, len), to, tag, (flags, false), context) {
            return Ok(0);
        }
        tsend_any(on, (buf, len), to, tag, (flags, false), context)
    }

    fn tsendv(
        ep: *mut Fid, iov: *const IoVec, _desc: *mut P, count: usize, to: FiAddr, tag: u64, context: P,
    ) -> isize {
        let (ep, on) = EpFid::of(ep)?;
        let (memory, flags) = (Memory::pieces(iov, count)?, on.tx_flags());
        ep.send(&Send { memory, to, tag: Some(tag), data: None, flags, context, is_silent: false })
    }

    fn tsendmsg(ep: *mut Fid, msg: *const MsgTagged, flags: u64) -> isize {
        let msg = read(msg)?;
        let memory = Memory::pieces(msg.msg_iov, msg.iov_count)?;
        let data = (flags & flags::REMOTE_CQ_DATA != 0).then_some(msg.data);
        let (to, tag, context) = (msg.addr, Some(msg.tag), msg.context);
        EpFid::of(ep)?.0.send(&Send { memory, to, tag, data, flags, context, is_silent: false })
    }

    // HOT
    fn tinject(ep: *mut Fid, buf: *const c_void, len: usize, to: FiAddr, tag: u64) -> isize {
        let (on, context): (&EpFid, _) = (from_fid(ep)?, std::ptr::null_mut());
        if on.ep().send_short((buf, len), to, tag, (flags::INJECT, true), context) {
            return Ok(0);
        }
        tsend_any(on, (buf, len), to, tag, (flags::INJECT, true), context)
    }

    fn tsenddata(
        ep: *mut Fid, buf: *const c_void, len: usize, _desc: P, data: u64, to: FiAddr, tag: u64, context: P,
    ) -> isize {
        let (ep, on) = EpFid::of(ep)?;
        let (memory, flags, data) = (Memory::bytes(buf, len)?, on.tx_flags(), Some(data));
        ep.send(&Send { memory, to, tag: Some(tag), data, flags, context, is_silent: false })
    }

    fn tinjectdata(ep: *mut Fid, buf: *const c_void, len: usize, data: u64, to: FiAddr, tag: u64) -> isize {
        let (memory, flags) = (Memory::bytes(buf, len)?, flags::INJECT);
        let (tag, data, context) = (Some(tag), Some(data), std::ptr::null_mut());
        EpFid::of(ep)?.0.send(&Send { memory, to, tag, data, flags, context, is_silent: true })
    }
}
