//! Sends: starting and cancelling them, the queue of each peer, and messages to this worker itself.

pub(super) mod cancel;
pub(super) mod drive;
pub(super) mod message;
pub(super) mod self_send;
pub(super) mod sends;

use ucs::coll::slots::SlotId;

use crate::rdm::op::table::SendTable;
use crate::rdm::op::tx::TxOp;
use crate::rdm::status::OpError;

/// Sends that are not complete.
pub(in crate::rdm) struct Sends {
    pub table: SendTable<TxOp>,
    /// The send whose call is in progress, and its result if it ended in the call.
    pub in_call: Option<(SlotId, Option<Result<(), OpError>>)>,
}

impl Default for Sends {
    fn default() -> Sends {
        Sends { table: SendTable::new(), in_call: None }
    }
}
