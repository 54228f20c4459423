//! The operations in progress.

use std::sync::Arc;

use crate::rdm::recv::Recvs;
use crate::rdm::rma::mem_table::MemTable;
use crate::rdm::rma::{Reads, RmaOps};
use crate::rdm::send::Sends;

/// The owners of operations in progress. A function takes all of them if an operation of any kind may be
/// concerned: one that a packet names by its id, or each of a peer that has failed.
///
/// Field order in memory: what a short message reads comes first.
#[repr(C)]
pub(in crate::rdm) struct Operations {
    pub(in crate::rdm) recvs: Recvs,
    pub(in crate::rdm) sends: Sends,
    pub(in crate::rdm) rma_ops: RmaOps,
    pub(in crate::rdm) reads: Reads,
}

impl Operations {
    /// Makes empty tables; one-sided operations serve the memory of this table.
    pub(in crate::rdm) fn new(memory: Arc<MemTable>) -> Operations {
        Operations {
            recvs: Recvs::default(),
            sends: Sends::default(),
            rma_ops: RmaOps::new(memory),
            reads: Reads::default(),
        }
    }
}
