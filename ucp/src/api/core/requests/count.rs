//! A table of requests by itself, whose instructions `perf/count` counts.

use super::{RequestId, RequestParams, Requests, Role};

use crate::rdm::RecvStatus;

/// Requests of receives without a worker.
#[doc(hidden)]
pub struct RequestTable(Requests);

impl Default for RequestTable {
    fn default() -> Self {
        RequestTable(Requests::new(RequestParams::default()))
    }
}

impl RequestTable {
    /// Starts the request of a receive. Panics without memory.
    #[inline]
    pub fn start(&mut self) -> RequestId {
        let token = self.0.next_token().expect("memory for a request");
        self.0.start(token, Role::Stream, None)
    }

    /// Ends a receive that runs.
    #[inline]
    pub fn end(&mut self, id: RequestId, status: RecvStatus) -> bool {
        self.0.complete_recv(id.block.address() as u64, status, true)
    }

    /// Takes the status of a receive and frees its request.
    #[inline]
    pub fn take(&mut self, id: RequestId) -> Option<RecvStatus> {
        self.0.take(id)?.ok()
    }
}
