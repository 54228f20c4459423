//! Reads and writes of a peer's memory, and what all operations on such memory have in common.

use std::ffi::c_void;

use ucp::select::DeliveryComplete;
use ucp::{Iov, RemoteIov, Rkey, RmaParams, get_self_raw, put_self_raw};

use super::Ep;
use super::complete::Op;
use super::owned_op::OwnedOp;
use super::send::{Memory, check_count};
use crate::abi::{FiAddr, RmaIov, flags};
use crate::errno::Errno;
use crate::info::RMA_IOV_LIMIT;

/// A read or write, as a call describes it.
pub(super) struct OneSided<'a> {
    pub memory: Memory<'a>,
    pub peer: FiAddr,
    pub remote: &'a [RmaIov],
    pub data: Option<u64>,
    pub flags: u64,
    pub context: *mut c_void,
    /// A call that reports nothing, whatever the flags say.
    pub is_silent: bool,
}

/// Pieces of a peer's memory that a call passes: at least one.
/// # Safety
/// `at` is null or has `count` of them, as long as the result is used.
// HOT
#[inline]
pub(super) unsafe fn remote_pieces<'a>(at: *const RmaIov, count: usize) -> Result<&'a [RmaIov], Errno> {
    check_count(count, RMA_IOV_LIMIT)?;
    if at.is_null() || count == 0 {
        return Err(Errno::INVAL);
    }
    // SAFETY: this function's contract.
    Ok(unsafe { std::slice::from_raw_parts(at, count) })
}

/// When an operation with these flags is complete: when the target has done it, unless the caller asks only
/// for its buffer. Programs that count completions rely on that at every level but the lowest.
pub(super) fn sync_of(op_flags: u64) -> DeliveryComplete {
    let levels = flags::TRANSMIT_COMPLETE | flags::DELIVERY_COMPLETE | flags::MATCH_COMPLETE;
    match op_flags & (levels | flags::INJECT_COMPLETE) {
        flags::INJECT_COMPLETE => DeliveryComplete::No,
        _ => DeliveryComplete::Yes,
    }
}

/// The key in packets of a key that a call passes, whatever the transport: one of 64 bits.
// HOT
#[inline(always)]
pub(super) fn packet_key(key: u64) -> Option<u64> {
    (key > u64::from(u32::MAX)).then_some(key)
}

impl Ep {
    /// Runs `f` with a list of pieces as the engine has it.
    pub(super) fn with_remote_iovs<R>(
        &self,
        ep: &ucp::Ep,
        remote: &[RmaIov],
        f: impl FnOnce(&[RemoteIov<'_>]) -> R,
    ) -> R {
        let piece = |at: usize| remote.get(at).copied().unwrap_or(RmaIov { addr: 0, len: 0, key: 0 });
        let keys: [Rkey; RMA_IOV_LIMIT] = std::array::from_fn(|at| self.domain().rkey(ep, piece(at).key));
        let pieces: [RemoteIov<'_>; RMA_IOV_LIMIT] = std::array::from_fn(|at| {
            let RmaIov { addr, len, .. } = piece(at);
            RemoteIov { addr, len, rkey: &keys[at] }
        });
        f(&pieces[..remote.len().min(RMA_IOV_LIMIT)])
    }

    /// Starts an operation on memory of a peer. The endpoint has to have capabilities `need`.
    // HOT
    #[inline(always)]
    pub(super) fn start_one_sided(
        &self,
        need: u64,
        what: (FiAddr, u64),
        start: impl FnOnce(&ucp::Ep) -> Result<isize, Errno>,
        trigger: impl FnOnce() -> Result<isize, Errno>,
    ) -> Result<isize, Errno> {
        if self.caps & need != need {
            return Err(refuse_capability(need));
        }
        self.transmit(what, start, trigger)
    }

    /// Starts a write to memory of a peer.
    // HOT
    #[inline(never)]
    pub(super) fn write(&self, write: &OneSided<'_>) -> Result<isize, Errno> {
        let what = (write.peer, write.flags);
        let trigger = || self.trigger(OwnedOp::of_write(write));
        self.start_one_sided(flags::RMA | flags::WRITE, what, |ep| self.write_to(ep, write), trigger)
    }

    // HOT
    #[inline(always)]
    fn write_to(&self, ep: &ucp::Ep, write: &OneSided<'_>) -> Result<isize, Errno> {
        let kind = flags::RMA | flags::WRITE;
        let op = self.new_transmit(kind, write.flags, write.context, write.is_silent);
        if let (Memory::Bytes(at, len), [one], None) = (write.memory, write.remote, write.data)
            && one.len == len
            && write.flags & flags::INJECT == 0
            && let Some(key) = packet_key(one.key)
            // SAFETY: the caller's bytes are there during the call.
            && unsafe { put_self_raw(ep, at, len, one.addr, key) }
        {
            self.end_send(&op, Ok(()));
            return Ok(0);
        }
        self.start_write(ep, write, op)
    }

    /// Starts a write that has not been done at once.
    #[inline(never)]
    fn start_write(&self, ep: &ucp::Ep, write: &OneSided<'_>, mut op: Op) -> Result<isize, Errno> {
        let mut memory = write.memory;
        if write.flags & flags::INJECT != 0 {
            let mut copy = self.copied(&memory)?;
            memory = Memory::Bytes(copy.address(), memory.len());
            op.copy = Box::into_raw(copy);
        }
        let sync = sync_of(write.flags);
        let params = RmaParams { sync, cq_data: write.data, done: Some(self.on_sent()), mem: None };
        // SAFETY: the caller keeps the memory until the completion; a copy is kept until then, too. The
        // endpoint outlives its worker's operations.
        let started = unsafe {
            match (memory, write.remote) {
                (Memory::Bytes(at, len), [one]) if one.len == len => {
                    ep.put_raw(at, len, one.addr, &self.domain().rkey(ep, one.key), &params)
                }
                (Memory::Bytes(addr, len), remote) => self.with_remote_iovs(ep, remote, |remote| {
                    ep.put_iov_raw(&[Iov { addr, len }], remote, &params)
                }),
                (Memory::Pieces(local), remote) => {
                    self.with_remote_iovs(ep, remote, |remote| ep.put_iov_raw(local, remote, &params))
                }
            }
        };
        self.finish_send(started, op)
    }

    /// Starts a read of memory of a peer.
    // HOT
    #[inline(never)]
    pub(super) fn read(&self, read: &OneSided<'_>) -> Result<isize, Errno> {
        if read.flags & (flags::INJECT | flags::REMOTE_CQ_DATA) != 0 {
            return Err(Errno::BADFLAGS);
        }
        let what = (read.peer, read.flags);
        let trigger = || self.trigger(OwnedOp::of_read(read));
        self.start_one_sided(flags::RMA | flags::READ, what, |ep| self.read_from(ep, read), trigger)
    }

    // HOT
    #[inline(always)]
    fn read_from(&self, ep: &ucp::Ep, read: &OneSided<'_>) -> Result<isize, Errno> {
        let op = self.new_transmit(flags::RMA | flags::READ, read.flags, read.context, false);
        if let (Memory::Bytes(at, len), [one]) = (read.memory, read.remote)
            && one.len == len
            && let Some(key) = packet_key(one.key)
            // SAFETY: the caller's bytes are there during the call.
            && unsafe { get_self_raw(ep, at, len, one.addr, key) }
        {
            self.end_send(&op, Ok(()));
            return Ok(0);
        }
        self.start_read(ep, read, op)
    }

    /// Starts a read that has not been done at once.
    #[inline(never)]
    fn start_read(&self, ep: &ucp::Ep, read: &OneSided<'_>, op: Op) -> Result<isize, Errno> {
        let params = RmaParams { done: Some(self.on_sent()), ..RmaParams::default() };
        // SAFETY: the caller keeps the memory, which nobody else uses, until the completion. The endpoint
        // outlives its worker's operations.
        let started = unsafe {
            match (read.memory, read.remote) {
                (Memory::Bytes(at, len), [one]) if one.len == len => {
                    ep.get_raw(at, len, one.addr, &self.domain().rkey(ep, one.key), &params)
                }
                (Memory::Bytes(addr, len), remote) => self.with_remote_iovs(ep, remote, |remote| {
                    ep.get_iov_raw(&[Iov { addr, len }], remote, &params)
                }),
                (Memory::Pieces(local), remote) => {
                    self.with_remote_iovs(ep, remote, |remote| ep.get_iov_raw(local, remote, &params))
                }
            }
        };
        self.finish_send(started, op)
    }
}

#[cold]
fn refuse_capability(need: u64) -> Errno {
    tracing::debug!("the endpoint was not opened with capabilities {need:#x}, which the call needs");
    Errno::OPNOTSUPP
}
