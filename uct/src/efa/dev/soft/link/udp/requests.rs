//! Requests of this process that wait for the far side, and requests of peers that wait for bytes to go.

#![allow(unsafe_code)]

use super::super::shm::Shm;
use super::super::{Link, Rdma, SendBuf, TryOutcome};
use super::head::OpHead;
use crate::api::Access;
use crate::base::mem_ptr::MemPtr;
use ucs::mem::guard;
use usnic::EpId;

/// A range of registered memory of this process. Each access checks the key again: the program may have
/// deregistered it since.
pub(super) struct LocalRange {
    dev: Shm,
    addr: MemPtr,
    pub len: u32,
    lkey: u32,
    pd: u32,
}

impl LocalRange {
    pub fn new(dev: &Shm, op: &Rdma) -> LocalRange {
        LocalRange { dev: dev.clone(), addr: MemPtr(op.local), len: op.len, lkey: op.lkey, pd: op.pd }
    }

    /// Address of `len` bytes, if they lie in the range and the key allows the access.
    fn at(&self, offset: u32, len: usize, need: Access) -> Option<*mut u8> {
        let end = u64::from(offset) + len as u64;
        let at = self.addr.0.wrapping_add(offset as usize);
        let allowed = || self.dev.regions().allows(self.lkey, self.pd, at as u64, len as u64, need);
        (end <= u64::from(self.len) && allowed()).then_some(at)
    }

    /// Copies bytes out of the range. Called under the lock of the NIC, which deregistration waits for.
    pub fn read(&self, offset: u32, to: &mut [u8]) -> bool {
        let Some(from) = self.at(offset, to.len(), Access::LOCAL_READ) else { return false };
        // SAFETY: the range is a live registration for local reads, checked just now. Its key is removed
        // before its memory goes, and whoever removes it waits for the lock that this thread holds.
        to.is_empty() || unsafe { guard::copy(from, to.as_mut_ptr(), to.len()) }
    }

    /// Copies bytes into the range. Called under the lock of the NIC, which deregistration waits for.
    pub fn write(&self, offset: u32, bytes: &[u8]) -> bool {
        let Some(to) = self.at(offset, bytes.len(), Access::LOCAL_WRITE) else { return false };
        // SAFETY: as in `read`, for local writes.
        bytes.is_empty() || unsafe { guard::copy(bytes.as_ptr(), to, bytes.len()) }
    }
}

/// Copies a message to `to`, which has room for it. False: the program has unmapped a part of it.
pub(super) fn copy_message(msg: &super::super::Msg<'_>, to: &mut [u8]) -> bool {
    // SAFETY: `to` is as long as the message, checked here.
    msg.len() as usize == to.len() && unsafe { msg.copy_to(to.as_mut_ptr()) }
}

/// Copies the local range of a request that was checked within the same call.
pub(super) fn copy_checked(op: &Rdma, to: &mut [u8]) -> bool {
    // SAFETY: the poster has checked the range against its key within this call.
    let from = unsafe { SendBuf::raw(op.local, op.len) };
    // SAFETY: `to` is as long as the range, checked here.
    op.len as usize == to.len() && unsafe { from.copy_to(to.as_mut_ptr()) }
}

/// Where the bytes of a request come from, or go to.
pub(super) enum Bytes {
    /// They were sent with the request, or there are none.
    Sent,
    /// A copy of a message, from which chunks are cut.
    Staged(Vec<u8>),
    /// Source of a write.
    Source(LocalRange),
    /// Target of a read.
    Target(LocalRange),
}

/// A request of this process. It ends with the response of the far side.
pub(super) struct Request {
    pub ep: EpId,
    /// Queue pair that has posted it.
    pub qpn: u16,
    pub bytes: Bytes,
    /// The program has unmapped or deregistered the source.
    pub lost: bool,
}

/// A read of a peer: bytes of this process on their way.
pub(super) struct ReadService {
    pub ep: EpId,
    pub iid: u64,
    /// Head of the request.
    pub head: OpHead,
    /// Why it cannot be served, if so.
    pub failed: Option<TryOutcome>,
}

/// A fragment that arrives in chunks.
pub(super) struct Arrival {
    pub ep: EpId,
    pub iid: u64,
    pub head: OpHead,
    /// Bytes of the whole fragment.
    pub total: u32,
    pub to: ArrivalTo,
}

/// Where chunks go.
pub(super) enum ArrivalTo {
    /// A message: into a buffer, until all of it is there.
    Message(Vec<u8>),
    /// A write: into registered memory, each chunk checked. Keeps the first failure.
    Memory(TryOutcome),
    /// Bytes that a request of this process reads.
    Read,
}
