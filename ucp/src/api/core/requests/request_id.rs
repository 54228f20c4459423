//! Handle of an operation in progress.

use std::fmt;
use std::hash::Hash;
use std::ptr::NonNull;

use ucs::Status;

use super::block::{BLOCK_SIZE, BlockPtr, Generation};

use crate::rdm::RecvStatus;

/// A running operation of a worker, until its request is freed. Refers to a block of memory that does not
/// move while the operation runs; later it may serve another operation, which has another `RequestId`.
///
/// [`RequestId::status`] and [`RequestId::info`] need no worker, and any thread may call them.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct RequestId {
    pub(super) block: BlockPtr,
    pub(super) generation: Generation,
}

// SAFETY: the methods below use the atomic fields of the block, and compare addresses. `Requests` uses the
// other fields after it has found that the block is its own, and so belongs to the thread that has the
// worker.
unsafe impl Send for RequestId {}
// SAFETY: as above.
unsafe impl Sync for RequestId {}

impl RequestId {
    /// Bytes of a request without the user's memory, which follows them.
    pub const SIZE: usize = BLOCK_SIZE;

    /// Status: [`Status::InProgress`], then [`Status::Ok`] or [`Error::status`](crate::Error::status).
    /// `None`: the request has been freed. An operation with a callback or waker ends just before progress
    /// calls that.
    #[inline]
    pub fn status(self) -> Option<Status> {
        self.block.status_of(self.generation)
    }

    /// Message that a receive has taken, once it has ended well or with a truncated message, whose length is
    /// its whole one; otherwise an empty status. `None`: the operation is running, or its request has been
    /// freed.
    #[inline]
    pub fn info(self) -> Option<RecvStatus> {
        self.block.message_of(self.generation)
    }

    /// Memory of the user in this request, [`RequestId::SIZE`] bytes behind its start. Its size and contents
    /// are those of [`Context::with_request_params`](crate::Context::with_request_params). In memory of the
    /// caller, it lies behind what the caller has given to the request.
    #[inline]
    pub fn user_memory(self) -> NonNull<u8> {
        self.block.user_memory()
    }

    /// The request whose user memory is at `memory`, as [`RequestId::user_memory`] returned it.
    /// # Safety
    /// The request has not been freed.
    #[inline(always)]
    pub unsafe fn from_user_memory(memory: NonNull<u8>) -> RequestId {
        // SAFETY: the block lies before its user memory, see `BlockPtr::user_memory`.
        let at = unsafe { memory.sub(BLOCK_SIZE) };
        // SAFETY: the caller's promise: the block is that of a request.
        let block = unsafe { BlockPtr::at(at) };
        RequestId { block, generation: block.generation() }
    }

    /// [`RequestId::status`] of the request whose user memory is at `memory`.
    /// # Safety
    /// The request has not been freed.
    // HOT
    #[inline(always)]
    pub unsafe fn status_at(memory: NonNull<u8>) -> Status {
        // SAFETY: as in `from_user_memory`.
        let at = unsafe { memory.sub(BLOCK_SIZE) };
        // SAFETY: as above.
        unsafe { BlockPtr::at(at) }.status()
    }
}

impl fmt::Debug for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RequestId({:?}, {:?})", self.block, self.generation)
    }
}
