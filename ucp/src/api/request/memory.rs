//! Memory of requests: the user's behind each request, and the caller's for a single one.

#![allow(unsafe_code)]

use std::ptr::NonNull;

use crate::api::core::requests::RequestId;
use crate::api::worker::handle::Worker;

impl Worker {
    /// Size of the user memory behind each request, see
    /// [`Context::with_request_params`](crate::Context::with_request_params).
    pub fn request_size(&self) -> usize {
        self.core_keep_idle().reqs.room().size()
    }

    /// Runs `start`, which starts one operation; unless that ends in the call, its request is in `memory`.
    ///
    /// The request is used as any other one, but has no user memory. [`Worker::test`] and [`Worker::free`] do
    /// not free `memory`. After the end of the operation, its status is in `memory` until that is used again:
    /// [`RequestId::from_user_memory`] finds it there. When the worker is dropped, an operation that runs
    /// ends as cancelled.
    /// # Safety
    /// `memory` is aligned to 8 bytes and has [`RequestId::SIZE`] of them, which nobody else uses until the
    /// operation has ended or the worker is dropped, and as long as a `RequestId` of it is used. `start`
    /// starts at most one operation of this worker and makes no progress.
    pub unsafe fn with_request_memory<R>(&self, memory: NonNull<u8>, start: impl FnOnce() -> R) -> R {
        struct NextBlock<'a>(&'a Worker, RequestId);
        impl Drop for NextBlock<'_> {
            fn drop(&mut self) {
                self.0.core_keep_idle().reqs.clear_next_block(self.1);
            }
        }
        debug_assert!(memory.cast::<u64>().is_aligned());
        // SAFETY: this function's contract.
        let id = unsafe { self.core_keep_idle().reqs.set_next_block(memory) };
        let _next_block = NextBlock(self, id);
        start()
    }
}
