//! `fi_msg`: untagged messages.

use std::ffi::c_void;

use super::ep_fid::EpFid;
use super::recv::Recv;
use super::send::{Memory, Send};
use crate::abi::ops::MsgOps;
use crate::abi::{FiAddr, Fid, IoVec, Msg, flags};
use crate::object::read;

pub(super) static OPS: MsgOps = MsgOps {
    size: size_of::<MsgOps>(),
    recv,
    recvv,
    recvmsg,
    send,
    sendv,
    sendmsg,
    inject,
    senddata,
    injectdata,
};

type P = *mut c_void;

calls! {
    fn recv(ep: *mut Fid, buf: P, len: usize, _desc: P, from: FiAddr, context: P) -> isize {
        let (ep, on) = EpFid::of(ep)?;
        ep.recv(&Recv { memory: Memory::bytes(buf, len)?, from, tag: None, flags: on.rx_flags(), context })
    }

    fn recvv(ep: *mut Fid, iov: *const IoVec, _desc: *mut P, count: usize, from: FiAddr, context: P) -> isize {
        let (ep, on) = EpFid::of(ep)?;
        ep.recv(&Recv { memory: Memory::pieces(iov, count)?, from, tag: None, flags: on.rx_flags(), context })
    }

    fn recvmsg(ep: *mut Fid, msg: *const Msg, flags: u64) -> isize {
        let msg = read(msg)?;
        let memory = Memory::pieces(msg.msg_iov, msg.iov_count)?;
        EpFid::of(ep)?.0.recv(&Recv { memory, from: msg.addr, tag: None, flags, context: msg.context })
    }

    fn send(ep: *mut Fid, buf: *const c_void, len: usize, _desc: P, to: FiAddr, context: P) -> isize {
        let (ep, on) = EpFid::of(ep)?;
        let (memory, flags) = (Memory::bytes(buf, len)?, on.tx_flags());
        ep.send(&Send { memory, to, tag: None, data: None, flags, context, is_silent: false })
    }

    fn sendv(ep: *mut Fid, iov: *const IoVec, _desc: *mut P, count: usize, to: FiAddr, context: P) -> isize {
        let (ep, on) = EpFid::of(ep)?;
        let (memory, flags) = (Memory::pieces(iov, count)?, on.tx_flags());
        ep.send(&Send { memory, to, tag: None, data: None, flags, context, is_silent: false })
    }

    fn sendmsg(ep: *mut Fid, msg: *const Msg, flags: u64) -> isize {
        let msg = read(msg)?;
        let memory = Memory::pieces(msg.msg_iov, msg.iov_count)?;
        let data = (flags & flags::REMOTE_CQ_DATA != 0).then_some(msg.data);
        let (to, context) = (msg.addr, msg.context);
        EpFid::of(ep)?.0.send(&Send { memory, to, tag: None, data, flags, context, is_silent: false })
    }

    fn inject(ep: *mut Fid, buf: *const c_void, len: usize, to: FiAddr) -> isize {
        let (memory, flags) = (Memory::bytes(buf, len)?, flags::INJECT);
        let context = std::ptr::null_mut();
        EpFid::of(ep)?.0.send(&Send { memory, to, tag: None, data: None, flags, context, is_silent: true })
    }

    fn senddata(ep: *mut Fid, buf: *const c_void, len: usize, _desc: P, data: u64, to: FiAddr, context: P) -> isize {
        let (ep, on) = EpFid::of(ep)?;
        let (memory, flags) = (Memory::bytes(buf, len)?, on.tx_flags());
        ep.send(&Send { memory, to, tag: None, data: Some(data), flags, context, is_silent: false })
    }

    fn injectdata(ep: *mut Fid, buf: *const c_void, len: usize, data: u64, to: FiAddr) -> isize {
        let (memory, flags) = (Memory::bytes(buf, len)?, flags::INJECT);
        let (data, context) = (Some(data), std::ptr::null_mut());
        EpFid::of(ep)?.0.send(&Send { memory, to, tag: None, data, flags, context, is_silent: true })
    }
}
