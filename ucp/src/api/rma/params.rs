//! Parameters of puts and gets, and pieces of a peer's memory.

use crate::api::core::requests::Callback;
use crate::api::mem::memory::Mem;
use crate::api::rma::rkey::Rkey;

use crate::select::DeliveryComplete;

/// Parameters of a `*_raw` put or get.
#[derive(Clone, Copy, Debug, Default)]
pub struct RmaParams<'a> {
    /// When a put is complete.
    pub sync: DeliveryComplete,
    /// 64 bits delivered to the target after the bytes of the put
    /// ([`Worker::take_remote_write`](crate::Worker::take_remote_write)).
    pub cq_data: Option<u64>,
    /// Called at completion, unless the operation completes in the call.
    pub done: Option<Callback>,
    /// Registered memory that holds the data, as in [`OpParams::mem`](crate::OpParams::mem).
    pub mem: Option<&'a Mem>,
}

impl RmaParams<'_> {
    /// Parameters of an operation that is deferred: its callback and memory are kept and checked apart.
    pub(crate) fn without_borrows(&self) -> RmaParams<'static> {
        RmaParams { sync: self.sync, cq_data: self.cq_data, done: None, mem: None }
    }
}

/// Piece of a peer's memory.
#[derive(Clone, Copy, Debug)]
pub struct RemoteIov<'a> {
    /// First address, as in the owner's process.
    pub addr: u64,
    /// Length, bytes.
    pub len: usize,
    /// Remote key of the memory.
    pub rkey: &'a Rkey,
}
